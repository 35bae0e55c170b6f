"""`aioresolve poll`: many clusters at once, with the status of each."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Group
from rich.text import Text

from aioresolve import ClusterSpec, ClusterState, KubernetesClusterResolver, SimpleClusterResolver
from aioresolve.cli import formats
from aioresolve.cli.commands import poll
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, DeadlineExceededError
from aioresolve.fleet import Fleet, TargetStatus
from aioresolve.testing import GoogleServer, KubernetesServer, pod

from .process import SHOW_CURSOR, Run, Running, Terminal, cluster, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

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


def test_a_round_prints_a_table_in_the_order_of_the_targets(
    run: Run, fleet: Path, env: dict[str, str]
) -> None:
    done = run(("poll", str(fleet), "--once"), env)
    assert (done.code, done.stderr) == (1, "2 of 3 targets ready, 8 tasks; 1 degraded\n")
    header, *rows = (line.split(maxsplit=5) for line in done.stdout.splitlines())
    assert header == ["TARGET", "STATUS", "TASKS", "AGE", "LATENCY", "REASON"]
    assert [(*row[:4], row[5].split()[0]) for row in rows] == [
        ("east", "Degraded", "worker:3,ps:1", "0s", "ml/ps-0:"),
        ("west", "Ready", "worker:3", "0s", "<none>"),
        ("fixed", "Ready", "worker:1", "0s", "<none>"),
    ]
    without_header = run(("poll", str(fleet), "--once", "--no-headers"), env).stdout.splitlines()
    assert [line.split()[0] for line in without_header] == ["east", "west", "fixed"]


def test_targets_that_respond_but_are_sick_are_shown_sick(
    run: Run, tmp_path: Path, env: dict[str, str]
) -> None:
    with ExitStack() as stack:
        pods = [
            pod("bad-0", "ml", labels={"app": "bad"}, phase="Pending", node=None),
            pod("bad-1", "ml", labels={"app": "bad"}, waiting="CrashLoopBackOff", restarts=7),
        ]
        server = stack.enter_context(KubernetesServer(pods).in_thread())
        google = stack.enter_context(GoogleServer().in_thread())
        config = str(server.write_kubeconfig(tmp_path / "config"))
        targets: dict[str, Any] = {
            "tpu": {"tpu": {"name": "gone", "project": "p", "zone": "us-central1-a"}},
            "selector": {"kubernetes": {"kubeconfig": config, "jobs": {"worker": "app=bda"}}},
            "namespace": {
                "kubernetes": {"kubeconfig": config, "namespace": "lm", "jobs": {"worker": "app=bad"}}
            },
            "pods": {"kubernetes": {"kubeconfig": config, "jobs": {"worker": "app=bad"}}},
        }
        file = tmp_path / "fleet.yaml"
        file.write_text(json.dumps({"targets": targets}))
        done = run(
            ("poll", str(file), "--once", "--timeout", "20s"), env | google.environ(tmp_path / "google")
        )
    table = [line.split(maxsplit=5) for line in done.stdout.splitlines()]
    rows = {row[0]: (row[1], row[-1]) for row in table}
    assert done.code == 1
    assert rows["selector"] == rows["namespace"] == ("Empty", "nothing was found")
    assert rows["pods"][0] == "Degraded"
    assert rows["pods"][1].startswith("ml/bad-0: Pending (Unschedulable")
    assert rows["pods"][1].endswith(", and 1 more")
    assert rows["tpu"][0] in ("Error", "Degraded")
    assert "gone" in rows["tpu"][1]
    assert done.stderr.startswith("0 of 4 targets ready")


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
        assert (change["name"], change["tasks"], change["latency"]) == (
            *("east", {"worker": 2, "ps": 1}),
            None,
        )


# On a terminal


@pytest.mark.slow
def test_a_terminal_shows_all_targets_in_place(
    fleet: Path, env: dict[str, str], west: ThreadedKubernetesServer
) -> None:
    with Terminal(("poll", str(fleet)), env) as terminal:
        shown = terminal.wait_for_text("2 of 3 targets ready, 8 tasks; 1 degraded")
        assert [line.split()[:3] for line in shown[:4]] == [
            ["TARGET", "STATUS", "TASKS"],
            ["east", "Degraded", "worker:3,ps:1"],
            ["west", "Ready", "worker:3"],
            ["fixed", "Ready", "worker:1"],
        ]
        with west.down():
            shown = terminal.wait_for_text("1 of 3 targets ready, 8 tasks; 1 stale, 1 degraded")
            assert west.url[:20] in shown[2]
        terminal.wait_for_text("2 of 3 targets ready")
        assert terminal.wait_for_exit(signal.SIGTERM) == 143
        assert terminal.sent.endswith(SHOW_CURSOR)
        assert terminal.shown[1].split()[0] == "east"


# Shards


def test_shards_partition_the_targets(run: Run, fleet: Path, env: dict[str, str]) -> None:
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


def test_a_shard_without_an_index_is_invalid_configuration(
    run: Run, fleet: Path, env: dict[str, str]
) -> None:
    done = run(("poll", str(fleet), "--shards", "4"), env)
    assert (done.code, done.stdout) == (2, "")
    assert "--shards: cannot determine which of 4 shards this is" in done.stderr
    assert "$JOB_COMPLETION_INDEX is not set" in done.stderr
    assert "Pass the index as well, or" in done.stderr


# Invalid usage and configuration


def test_an_invalid_or_missing_file_is_reported(run: Run, fleet: Path, env: dict[str, str]) -> None:
    fleet.write_text("targets:\n  east:\n    kubernetes: {jobs: {worker: app=train}, namespaces: ml}\n")
    done = run(("poll", str(fleet)), env)
    assert (done.code, done.stdout) == (2, "")
    assert f"{fleet.name}: targets.east.kubernetes.namespaces: unknown field" in done.stderr
    assert "namespaces" in done.stderr
    missing = run(("poll", str(fleet.with_name("none.yaml"))), env)
    assert (missing.code, missing.stdout) == (2, "")
    assert "none.yaml" in missing.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--once", "--watch"), "--once and --watch exclude each other"),
        (("--shards", "4/"), "'4/' is not a valid shard; write INDEX/N"),
        (("--shards", "0"), "is not a valid shard"),
        (("--shards", "-1/4"), "is not a valid shard"),
        (("--shards", "5/1001"), "--shards: 1001 shards are more than 1,000. Pass the number of"),
        (("--shards", "4/4"), "'4/4' is not a valid shard: the index must be less than 4"),
        (("--interval", "0"), "is zero"),
    ],
)
def test_invalid_usage_exits_with_2(
    run: Run, fleet: Path, env: dict[str, str], options: tuple[str, ...], message: str
) -> None:
    done = run(("poll", str(fleet), *options), env)
    assert (done.code, done.stdout) == (2, "")
    assert message in " ".join(done.stderr.split())


# Formats

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATE = ClusterState.from_spec(
    ClusterSpec({"worker": ["10.0.0.1:1", "10.0.0.2:1"], "ps": []}), version="41", observed_at=NOW
)
FIXED = SimpleClusterResolver(STATE.spec)
MISSING = KubernetesClusterResolver({"worker": "app=x"}, kubeconfig="/nowhere/config")
LATE = DeadlineExceededError("no complete response within 1 s", hint="Raise {timeout}.")
BROKEN = ConnectionFailedError("nothing listens; connection refused")
RETRIED = DeadlineExceededError("late", timeout=4, missing={"pods": "last attempt: https://a"})
RETRIED.__cause__ = APIError("https://a returned 503", status=503, host="https://a")
WAITING = DeadlineExceededError("late", timeout=4, missing={"pods": "no response yet"})


def test_a_status_is_a_row() -> None:
    old = TargetStatus("b", STATE, LATE, 1.0, NOW)
    assert poll.status_row(old, NOW, NOW + timedelta(minutes=5, seconds=12)) == (
        *("b", "Stale", "worker:2,ps:0", "5m12s", "1.00s"),
        "no complete response within 1 s",
    )
    never = TargetStatus("c", None, BROKEN)
    assert poll.status_row(never, NOW, NOW) == ("c", "Error", "", "", "", "nothing listens")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RETRIED, "no complete response within 4s: 503 Service Unavailable: https://a"),
        (WAITING, "no complete response within 4s: no response yet (pods)"),
        (
            APIError("https://a returned 599", status=599, host="https://a", reason="odd"),
            "599 odd: https://a",
        ),
    ],
)
def test_the_reason_of_an_error_comes_before_its_place(error: DeadlineExceededError, reason: str) -> None:
    assert poll.status_row(TargetStatus("a", None, error), NOW, NOW)[-1] == reason


def test_an_error_names_the_option_or_the_field_of_the_fleet_file() -> None:
    document = poll.status_document(TargetStatus("b", STATE, LATE, 1.0000004, NOW))
    assert (document["latency"], document["stale_since"]) == (1.0, "2026-01-02T03:04:05Z")
    assert document["error"] == {
        "type": "DeadlineExceededError",
        "message": "no complete response within 1 s. Raise --timeout.",
        "retryable": True,
    }
    error = ConfigurationError("0 is not a valid port", argument="tf_server_port", hint="Pass {kubeconfig}.")
    message = poll.status_document(TargetStatus("a", None, error))["error"]["message"]
    assert message == "`port`: 0 is not a valid port. Pass `kubeconfig`."


@pytest.mark.parametrize(
    ("errors", "code"), [((), 0), ((None, None), 0), ((None, LATE), 3), ((None, LATE, BROKEN), 1)]
)
def test_the_exit_code_of_a_round_is_that_of_the_worst_status(errors: tuple[Any, ...], code: int) -> None:
    assert poll.round_exit_code([TargetStatus("a", STATE, error) for error in errors]) == code


async def test_a_terminal_shows_as_many_targets_as_fit_and_the_failing_ones_first() -> None:
    fleet = Fleet({**{f"t-{number}": FIXED for number in range(40)}, "broken": MISSING})
    await fleet.resolve()
    for lines in (5, 6, 43, 44, 60):
        drawn = poll.render_fleet(fleet, 80, lines, is_watched=False)
        assert isinstance(drawn, Group)
        shown = [line.plain for line in drawn.renderables if isinstance(line, Text)]
        assert len(shown) == len(drawn.renderables) == min(lines, 44)
        assert (shown[-3] == f"... and {45 - lines} more") == (lines < 44)
        assert any(line.startswith("broken") for line in shown)
        assert shown[-1] == "40 of 41 targets ready, 80 tasks; 1 error"
        assert shown[1].startswith("broken" if lines < 44 else "t-0")


def test_a_narrow_terminal_shows_the_reasons() -> None:
    row = ("us-west", "Error", "worker:1", "0s", "2.00s", "Connection refused")
    table = formats.Table(poll.COLUMNS, [row])
    assert poll.fit_columns(table, 120).columns == [*poll.COLUMNS]
    assert poll.fit_columns(table, 60).columns == ["TARGET", "STATUS", "TASKS", "AGE", "REASON"]
    narrow = poll.fit_columns(table, 1)
    assert (narrow.columns, narrow.rows) == (
        ["TARGET", "STATUS", "REASON"],
        [["us-west", "Error", "Connection refused"]],
    )
