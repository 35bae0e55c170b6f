"""`aioresolve poll`: many clusters at once, with the status of each."""

import http.client
import json
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Group
from rich.text import Text

from aioresolve import ClusterResolver, ClusterSpec, ClusterState, Observation, Progress, Want
from aioresolve.cli.commands import poll
from aioresolve.errors import ConnectionFailedError, DeadlineExceededError
from aioresolve.fleet import Fleet, TargetStatus
from aioresolve.spec import Missing
from aioresolve.testing import Hang, ThreadedKubernetesServer

from .process import Run, Running, cluster, environment

pytest.importorskip("pty", reason="this system has no pseudo-terminals")


@pytest.fixture
def east(server: ThreadedKubernetesServer) -> ThreadedKubernetesServer:
    return server


@pytest.fixture
def west() -> Iterator[ThreadedKubernetesServer]:
    with cluster() as west:
        yield west


@pytest.fixture
def fleet(east: ThreadedKubernetesServer, west: ThreadedKubernetesServer, tmp_path: Path) -> Path:
    """A file with three targets: two clusters and a static one. Paths are relative to the file."""
    east.write_kubeconfig(tmp_path / "east")
    west.write_kubeconfig(tmp_path / "west")
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "interval: 100ms\n"
        "timeout: 3s\n"
        "targets:\n"
        "  east: {kubernetes: {kubeconfig: east, namespace: ml, jobs: {worker: app=train, ps: app=ps}}}\n"
        "  west: {kubernetes: {kubeconfig: west, namespace: ml, jobs: {worker: app=train}}}\n"
        '  fixed: {static: {jobs: {worker: ["10.9.0.1:8470"]}}}\n'
    )
    return file


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "none")


# One round


def test_a_round_prints_the_worst_target_first(run: Run, fleet: Path, env: dict[str, str]) -> None:
    done = run(("poll", str(fleet), "--once"), env)
    assert (done.code, done.stderr) == (1, "2 of 3 targets ready, 8 tasks; 1 degraded\n")
    header, *rows = (re.split("   +", line) for line in done.stdout.splitlines())
    assert header == ["TARGET", "STATUS", "TASKS", "AGE", "REASON"]
    assert [(*row[:3], row[4].split()[0]) for row in rows] == [
        ("east", "Degraded 3/4", "worker:3,ps:1", "ml/ps-0:"),
        ("west", "Ready 3/3", "worker:3", "<none>"),
        ("fixed", "Ready 1/1", "worker:1", "<none>"),
    ]
    without_header = run(("poll", str(fleet), "--once", "--no-headers", "--max-concurrency", "1"), env).stdout
    assert [line.split()[0] for line in without_header.splitlines()] == ["east", "west", "fixed"]


# Continuous polling


@pytest.mark.slow
def test_a_failing_target_keeps_its_state_with_stale_since(
    fleet: Path, env: dict[str, str], west: ThreadedKubernetesServer
) -> None:
    with Running(("poll", str(fleet), "-o", "json"), env) as running:

        def next_status(name: str, *, is_failing: bool) -> dict[str, Any]:
            while True:
                found: dict[str, Any] = json.loads(running.line())
                if found["name"] == name and (found["error"] is not None) == is_failing:
                    return found

        next_status("west", is_failing=False)
        with west.down():
            failing = next_status("west", is_failing=True)
            assert failing["tasks"] == {"worker": 3}
            assert failing["error"]["type"] in ("ConnectionFailedError", "DeadlineExceededError")
            assert failing["stale_since"] >= failing["observed_at"]
            next_status("east", is_failing=False)
        assert next_status("west", is_failing=False)["stale_since"] is None


@pytest.mark.slow
def test_watching_prints_each_change_and_nothing_else(
    fleet: Path, env: dict[str, str], east: ThreadedKubernetesServer
) -> None:
    with Running(("poll", str(fleet), "-w", "-o", "json", "--interval", "1h"), env) as running:
        first = {json.loads(line)["name"] for line in running.lines(3)}
        assert first == {"east", "west", "fixed"}
        east.delete("train-10", "ml")
        change = json.loads(running.line())
        assert (change["name"], change["tasks"]) == ("east", {"worker": 2, "ps": 1})
        assert change["latency"] > 0


# Shards


def test_shards_partition_the_targets(run: Run, fleet: Path, env: dict[str, str]) -> None:
    few = [run(("poll", str(fleet), "--once", "--shards", f"{index}/9"), env) for index in range(9)]
    assert [done.stderr for done in few].count("this shard is empty; the fleet has 3 targets\n") >= 6
    more = [f'  more-{number}: {{static: {{jobs: {{worker: ["10.9.1.1:1"]}}}}}}\n' for number in range(12)]
    fleet.write_text(fleet.read_text() + "".join(more))
    rounds = [
        run(("poll", str(fleet), "--once", "-o", "json", "--shards", shards), env | variables)
        for shards, variables in (
            ("0/3", {}),
            ("1/3", {"JOB_COMPLETION_INDEX": "0"}),
            ("3", {"JOB_COMPLETION_INDEX": "2"}),
        )
    ]
    parts = [{json.loads(line)["name"] for line in done.stdout.splitlines()} for done in rounds]
    assert sum(map(len, parts)) == 15
    assert set().union(*parts) == {"east", "west", "fixed", *(f"more-{number}" for number in range(12))}


# Invalid usage and configuration


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--once", "--watch"), "--once and --watch exclude each other"),
        (("--shards", "4/"), "'4/' is not a valid shard; write INDEX/N"),
        (("--shards", "5/1001"), "--shards: (5, 1001) is not a valid shard."),
        (("--shards", "4/4"), "'4/4' is not a valid shard; write INDEX/N with an index below N"),
        (
            ("--shards", "4"),
            "which of 4 shards this is, because $JOB_COMPLETION_INDEX is not set. Pass the index as well, or",
        ),
        (("--interval", "0"), "is zero"),
        (("--once", "--listen", "127.0.0.1:8080"), "--once and --listen exclude each other"),
        (
            ("--listen", "::1:8080"),
            "'::1:8080' is not an address and a port; write one such as 127.0.0.1:8080",
        ),
        (("--listen", "8080"), "'8080' is not an address and a port"),
        (("--listen", "127.0.0.1:65536"), "is not an address and a port"),
        (("--listen", "192.0.2.1:8080"), "cannot listen on port 8080 of 192.0.2.1: "),
        (("--allow-host", "a"), "--allow-host and --peer need --listen HOST:PORT"),
        (("--peer", "http://shard-1:8080"), "--allow-host and --peer need --listen HOST:PORT"),
    ],
)
def test_invalid_usage_exits_with_2(
    run: Run, fleet: Path, env: dict[str, str], options: tuple[str, ...], message: str
) -> None:
    done = run(("poll", str(fleet), *options), env)
    assert (done.code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


# Statuses

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATE = ClusterState.from_spec(
    ClusterSpec({"worker": ["10.0.0.1:1", "10.0.0.2:1"], "ps": ["10.0.0.3:1"]}), observed_at=NOW
)
MISSING = Missing("worker", "ml/train-7", "Pending (Unschedulable)")
LATE = DeadlineExceededError("no complete response within 1 s", hint="Raise {timeout}.")
BROKEN = ConnectionFailedError("nothing listens; connection refused")


class Found(ClusterResolver):
    """Returns what a test has found, or raises its error."""

    def __init__(self, found: Observation | Exception) -> None:
        super().__init__()
        self.found = found

    async def observe(self, want: Want, progress: Progress) -> Observation:
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


async def statuses_of(*found: Observation | Exception) -> list[TargetStatus]:
    """Return the statuses of targets `t0`, `t1`, ... with these observations and errors."""
    fleet = Fleet({f"t{number}": Found(each) for number, each in enumerate(found)})
    return list((await fleet.resolve()).values())


async def test_a_stale_status_has_the_age_of_its_state() -> None:
    resolver = Found(Observation(STATE))
    fleet = Fleet({"b": resolver}, expected={"b": {"worker": 2, "ps": 2}})
    [status] = (await fleet.resolve()).values()
    assert poll.status_row(status, status.since) == (
        *("b", "Degraded 3/4", "worker:2/2,ps:1/2"),
        *("0s", "job 'ps': 1 of 2 tasks"),
    )
    resolver.found = LATE
    [status] = (await fleet.resolve()).values()
    assert status.stale_since is not None
    row = poll.status_row(status, status.stale_since + timedelta(seconds=1))
    assert row == ("b", "Stale 3/4", "worker:2/2,ps:1/2", "1s", "no complete response within 1 s")


def test_an_error_names_the_option_or_the_field_of_the_fleet_file(
    run: Run, fleet: Path, env: dict[str, str], west: ThreadedKubernetesServer
) -> None:
    west.inject(Hang(), times=None)
    done = run(("poll", str(fleet), "--once", "-o", "json", "--timeout", "300ms"), env)
    document = json.loads(done.stdout.splitlines()[1])
    assert document["error"]["type"] == "DeadlineExceededError"
    assert document["error"]["retryable"] is True
    assert "--timeout" in document["error"]["message"]


@pytest.mark.parametrize(
    ("found", "code"),
    [((), 0), ((Observation(STATE),), 0), ((Observation(STATE), LATE), 3), ((LATE, BROKEN), 1)],
)
async def test_the_exit_code_is_that_of_the_worst_status(found: tuple[Any, ...], code: int) -> None:
    assert poll.round_exit_code(await statuses_of(*found)) == code


# The size of a terminal


def drawn(fleet: Fleet, columns: int, lines: int) -> list[str]:
    """Return what a terminal of that size shows, without colors."""
    content = poll.render_fleet(fleet, columns, lines)
    assert isinstance(content, Group)
    shown = []
    for line in content.renderables:
        assert isinstance(line, Text)
        line.truncate(columns, overflow="ellipsis")
        shown.append(line.plain)
    assert len(shown) <= lines
    return shown


async def test_a_small_terminal_folds_the_ready_targets_and_shows_each_sick_one() -> None:
    targets = {f"t-{number}": Found(Observation(STATE)) for number in range(40)}
    fleet = Fleet({**targets, "late": Found(LATE), "sick": Found(Observation(STATE, (MISSING,)))})
    assert drawn(fleet, 80, 44)[1].startswith("42 without a response yet: t-0, t-1, ")
    waiting = [line.split() for line in drawn(fleet, 80, 45)[1:-2]]
    assert [(line[0], line[-2:]) for line in waiting] == [
        (name, ["response", "yet"]) for name in fleet.targets
    ]
    await fleet.resolve()
    for lines in (6, 24, 44):
        shown = drawn(fleet, 80, lines)
        assert [line.split()[:3] for line in shown[1:3]] == [
            ["late", "Error", "<none>"],
            ["sick", "Degraded", "3/4"],
        ]
        assert shown[3].startswith("40 ready: t-0, t-1, ")
        assert shown[-1] == "40 of 42 targets ready, 123 tasks; 1 error, 1 degraded"
    shown = drawn(fleet, 80, 45)
    assert [line.split()[0] for line in shown[1:-2]] == ["late", "sick", *targets]


async def test_sick_targets_without_a_row_are_listed_by_name() -> None:
    sick = {f"sick-{number}": Found(LATE) for number in range(60)}
    fleet = Fleet({**sick, "well": Found(Observation(STATE))})
    await fleet.resolve()
    shown = drawn(fleet, 80, 27)
    assert (len(shown), shown[1].split()[0], shown[-3]) == (27, "sick-0", "1 ready: well")
    assert set(re.findall("sick-[0-9]+", "\n".join(shown))) == set(sick)
    assert drawn(fleet, 80, 5)[1:3] == ["... and more: 60 targets are not ready", "1 ready: well"]


async def test_a_terminal_of_80_columns_shows_each_status_and_a_part_of_the_reason() -> None:
    fleet = Fleet({"a" * 60: Found(Observation(STATE, (MISSING,))), "b": Found(Observation(STATE))})
    await fleet.resolve()
    [header, row, *_] = drawn(fleet, 80, 24)
    assert header.split() == ["TARGET", "STATUS", "REASON"]
    assert re.fullmatch(r"a{20,}…   Degraded 3/4   ml/train-7: Pending \(Un…", row)
    [header, row, *_] = drawn(fleet, 140, 24)
    assert header.split() == ["TARGET", "STATUS", "TASKS", "AGE", "REASON"]
    assert row.split()[1:3] == ["Degraded", "3/4"]
    assert "ml/train-7: Pending (Unschedulable)" in row


async def test_summary_of_one_task() -> None:
    state = ClusterState.from_spec(ClusterSpec({"worker": ["10.0.0.1:1"]}))
    found = await statuses_of(Observation(state), BROKEN)
    assert poll.fleet_summary(3, found) == "1 of 3 targets ready, 1 task; 1 error"


# The server


@pytest.mark.slow
def test_sigterm_ends_the_server_and_its_streams(fleet: Path, env: dict[str, str]) -> None:
    with Running(("poll", str(fleet), "--listen", "127.0.0.1:0", "-o", "json"), env) as running:
        running.lines(3)
        url = running.stderr_line("serving http://").rpartition(" ")[2]
        with urllib.request.urlopen(f"{url}events", timeout=60) as stream:
            assert stream.readline()
            started_at = time.monotonic()
            running.process.send_signal(signal.SIGTERM)
            with suppress(OSError, http.client.HTTPException):
                stream.read()
        assert time.monotonic() - started_at < 1.0
        assert running.wait_for_exit().code == 143


def test_options_of_the_server_are_passed_to_it(run: Run, fleet: Path, env: dict[str, str]) -> None:
    names, urls = ("--allow-host", "a", "--allow-host", "b"), ("--peer", "http://c", "--peer", "http://d")
    with mock.patch.object(Fleet, "serve", side_effect=BROKEN) as serve:
        assert run(("poll", str(fleet), "--listen", "[::1]:65535", *names, *urls), env).code == 1
    serve.assert_called_once_with("::1", 65535, allowed_hosts=("a", "b"), peers=("http://c", "http://d"))
