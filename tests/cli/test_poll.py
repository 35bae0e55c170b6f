"""`aioresolve poll`: many clusters side by side, what each answers, and what is wrong with whom."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Group
from rich.text import Text

from aioresolve import ClusterSpec, ClusterState
from aioresolve.cli.error_messages import error_message
from aioresolve.cli.options import shard
from aioresolve.cli.output.fleet_tables import ReadingRows, reading_document, reading_row, round_code
from aioresolve.cli.terminal.views import PollPicture
from aioresolve.errors import ConfigurationError, ConnectionFailedError, DeadlineExceededError
from aioresolve.fleet import Fleet, TargetStatus
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.static import SimpleClusterResolver
from aioresolve.spec import Missing
from aioresolve.testing import Answer, Hang, pod

from .process import PATIENCE, SHOW_CURSOR, Running, Terminal, cluster, environment, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve._core.retry import Progress
    from aioresolve.testing import ThreadedKubernetesServer

pytest.importorskip("pty", reason="this system has no pseudo-terminals")


@pytest.fixture
def servers() -> Iterator[tuple[ThreadedKubernetesServer, ThreadedKubernetesServer]]:
    with cluster() as east, cluster() as west:
        yield east, west


@pytest.fixture
def east(servers: tuple[ThreadedKubernetesServer, ThreadedKubernetesServer]) -> ThreadedKubernetesServer:
    return servers[0]


@pytest.fixture
def west(servers: tuple[ThreadedKubernetesServer, ThreadedKubernetesServer]) -> ThreadedKubernetesServer:
    return servers[1]


@pytest.fixture
def fleet(
    servers: tuple[ThreadedKubernetesServer, ThreadedKubernetesServer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A file of three targets: two clusters, and one that is given. Relative paths are relative to it."""
    for name, server in zip(("east", "west"), servers, strict=True):
        server.write_kubeconfig(tmp_path / name)
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


def test_one_round_is_a_table_in_the_order_of_the_targets(fleet: Path, env: dict[str, str]) -> None:
    done = run(("poll", str(fleet), "--once"), env)
    assert (done.code, done.stderr) == (0, "")
    header, *rows = (line.split() for line in done.stdout.splitlines())
    assert header == ["TARGET", "TASKS", "MISSING", "AGE", "LATENCY", "ERROR"]
    assert [(row[0], row[1], row[2], row[3], row[5]) for row in rows] == [
        ("east", "worker:3,ps:1", "1", "0s", "<none>"),
        ("west", "worker:3", "0", "0s", "<none>"),
        ("fixed", "worker:1", "0", "0s", "<none>"),
    ]


def test_a_round_has_every_target_and_says_by_its_code_that_one_did_not_answer(
    fleet: Path, env: dict[str, str], west: ThreadedKubernetesServer
) -> None:
    west.inject(Answer(403), times=None)
    done = run(("poll", str(fleet), "--once", "-o", "json"), env)
    assert done.code == 1
    readings = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert list(readings) == ["east", "west", "fixed"]
    assert readings["east"]["error"] is None
    assert readings["east"]["tasks"] == {"worker": 3, "ps": 1}
    assert readings["west"]["tasks"] == {}
    assert readings["west"]["error"]["type"] == "ForbiddenError"
    assert readings["west"]["error"]["retryable"] is False


def test_a_round_in_which_some_were_late_has_a_code_of_its_own(
    fleet: Path, env: dict[str, str], east: ThreadedKubernetesServer, west: ThreadedKubernetesServer
) -> None:
    west.inject(Hang(), times=None)
    late = run(("poll", str(fleet), "--once", "--timeout", "800ms"), env)
    assert late.code == 3
    assert "no complete answer" in late.stdout
    east.inject(Answer(403), times=None)
    assert run(("poll", str(fleet), "--once", "--timeout", "800ms"), env).code == 1


def test_a_line_has_the_members_and_who_is_missing(
    fleet: Path, env: dict[str, str], east: ThreadedKubernetesServer
) -> None:
    east.add(pod("train-3", "ml", labels={"app": "train"}, phase="Pending", node=None))
    done = run(("poll", str(fleet), "--once", "-o", "json"), env)
    found = json.loads(done.stdout.splitlines()[0])
    assert [task["name"] for task in found["jobs"]["worker"]] == ["train-1", "train-2", "train-10"]
    assert [(one["job"], one["name"]) for one in found["absent"]] == [("worker", "ml/train-3")]
    assert "Unschedulable" in found["absent"][0]["reason"]
    assert [one["name"] for one in found["unready"]] == ["ml/ps-0"]
    assert 0 < found["latency"] < 10
    assert found["stale_since"] is None
    assert datetime.fromisoformat(found["observed_at"]).tzinfo is not None


# Round after round


def test_rows_are_told_answer_by_answer_under_one_header(fleet: Path, env: dict[str, str]) -> None:
    with Running(("poll", str(fleet)), env) as poll:
        lines = [line.split() for line in poll.lines(13)]
    assert lines[0] == ["TARGET", "TASKS", "MISSING", "AGE", "LATENCY", "ERROR"]
    assert {line[0] for line in lines[1:]} == {"east", "west", "fixed"}
    assert {len(line) for line in lines} == {6}


def test_a_target_that_fails_keeps_its_state_and_says_since_when(
    fleet: Path, env: dict[str, str], west: ThreadedKubernetesServer
) -> None:
    with Running(("poll", str(fleet), "-o", "json"), env) as poll:

        def reading(name: str, *, is_failing: bool) -> dict[str, Any]:
            while True:
                found: dict[str, Any] = json.loads(poll.line())
                if found["name"] == name and (found["error"] is not None) == is_failing:
                    return found

        reading("west", is_failing=False)
        with west.down():
            failing = reading("west", is_failing=True)
            assert failing["tasks"] == {"worker": 3}
            assert failing["error"]["type"] in ("ConnectionFailedError", "DeadlineExceededError")
            assert failing["stale_since"] >= failing["observed_at"]
            reading("east", is_failing=False)
        assert reading("west", is_failing=False)["stale_since"] is None


def test_watching_tells_a_change_as_it_happens_and_nothing_else(
    fleet: Path, env: dict[str, str], east: ThreadedKubernetesServer
) -> None:
    with Running(("poll", str(fleet), "-w", "-o", "json", "--interval", "1h"), env) as poll:
        first = {json.loads(line)["name"] for line in poll.lines(3)}
        assert first == {"east", "west", "fixed"}
        east.delete("train-10", "ml")
        change = json.loads(poll.line())
        assert (change["name"], change["tasks"], change["latency"]) == (
            *("east", {"worker": 2, "ps": 1}),
            None,
        )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_all_its_connections(
    fleet: Path,
    env: dict[str, str],
    east: ThreadedKubernetesServer,
    west: ThreadedKubernetesServer,
    number: int,
    code: int,
) -> None:
    west.inject(Hang(), times=None)
    with Running(("poll", str(fleet), "-o", "json"), env) as poll:
        poll.line()
        west.until(lambda: len(west.requests) > 0, PATIENCE)
        ended = poll.ended(number)
    assert (ended.code, ended.stderr) == (code, "")
    for server in (east, west):
        server.until(lambda server=server: server.connections == 0)  # type: ignore[misc]


def test_a_reader_who_goes_ends_it(fleet: Path, env: dict[str, str]) -> None:
    with Running(("poll", str(fleet), "--interval", "1h"), env) as poll:
        assert poll.first_line().startswith("TARGET")
        poll.leave()
        ended = poll.ended()
    assert (ended.code, ended.stderr) == (141, "")


# On a terminal


def test_a_terminal_shows_all_targets_in_place(
    fleet: Path, env: dict[str, str], west: ThreadedKubernetesServer
) -> None:
    with Terminal(("poll", str(fleet)), env) as terminal:
        shown = terminal.until_it_shows("3 of 3 targets answer, 8 tasks")
        assert [line.split()[:2] for line in shown[:4]] == [
            ["TARGET", "TASKS"],
            ["east", "worker:3,ps:1"],
            ["west", "worker:3"],
            ["fixed", "worker:1"],
        ]
        with west.down():
            shown = terminal.until_it_shows("2 of 3 targets answer, 8 tasks; 1 do")
            assert west.url[:20] in shown[2]
        terminal.until_it_shows("3 of 3 targets answer")
        assert terminal.ended(signal.SIGTERM) == 143
        assert terminal.sent.endswith(SHOW_CURSOR)
        assert terminal.shown[1].split()[0] == "east"


# Shards


def test_shards_share_the_targets(fleet: Path, env: dict[str, str]) -> None:
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


def test_a_shard_without_targets_says_so(fleet: Path, env: dict[str, str]) -> None:
    fleet.write_text('targets: {only: {static: {jobs: {worker: ["10.9.0.1:1"]}}}}\n')
    done = [run(("poll", str(fleet), "--once", "--shards", f"{index}/2"), env) for index in (0, 1)]
    assert [one.code for one in done] == [0, 0]
    assert sorted(one.stderr for one in done) == ["", "there is no target in this shard, and 1 in all\n"]


def test_a_shard_of_nobody_knows_which_is_wrong_configuration(fleet: Path, env: dict[str, str]) -> None:
    done = run(("poll", str(fleet), "--shards", "4"), env)
    assert (done.code, done.stdout) == (2, "")
    assert "--shards: the index of this shard of 4 is unknown" in done.stderr
    assert "$JOB_COMPLETION_INDEX is not set" in done.stderr
    assert "Pass the index as well" in done.stderr


# What is wrong with the request


def test_a_file_that_is_wrong_is_told_with_its_line(fleet: Path, env: dict[str, str]) -> None:
    fleet.write_text("targets:\n  east:\n    kubernetes: {jobs: {worker: app=train}, namespaces: ml}\n")
    done = run(("poll", str(fleet)), env)
    assert (done.code, done.stdout) == (2, "")
    assert f"{fleet.name}:3" in done.stderr
    assert "namespaces" in done.stderr


def test_a_file_that_is_not_there_is_wrong_configuration(tmp_path: Path, env: dict[str, str]) -> None:
    done = run(("poll", str(tmp_path / "none.yaml")), env)
    assert (done.code, done.stdout) == (2, "")
    assert "none.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--once", "--watch"), "--once asks once and --watch goes on"),
        (("--shards", "4/"), "'4/' is no shard; write INDEX/N"),
        (("--shards", "4/4"), "the index counts from 0 and must be less than 4"),
        (("--interval", "0"), "is no time at all"),
    ],
)
def test_a_request_that_makes_no_sense_is_wrong_usage(
    fleet: Path, env: dict[str, str], options: tuple[str, ...], said: str
) -> None:
    done = run(("poll", str(fleet), *options), env)
    assert (done.code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("text", "meant"), [("4", 4), ("0/4", (0, 4)), ("3/4", (3, 4)), ("12/400", (12, 400))]
)
def test_a_shard_is_an_index_of_a_number(text: str, meant: int | tuple[int, int]) -> None:
    assert shard(text) == meant


@pytest.mark.parametrize("text", ["", "0", "a", "-1/4", "1/", "/4", "1/0", "1/2/3", "1 /2", "\u0661/4"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no shard"):
        shard(text)


# Words

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STATE = ClusterState.from_spec(
    ClusterSpec({"worker": ["10.0.0.1:1", "10.0.0.2:1"], "ps": []}), version="41", observed_at=NOW
)
LATE = DeadlineExceededError("no complete answer to it within 1 s", hint="Raise {timeout}.")
BROKEN = ConnectionFailedError("nobody listens; see to it")


def test_a_reading_is_a_row() -> None:
    missing = (Missing("ps", "ml/ps-0", "Pending"),)
    good = TargetStatus("a", STATE, latency=0.0123, absent=missing)
    assert reading_row(good, NOW, NOW) == ("a", "worker:2,ps:0", "1", "0s", "12.3ms", "")
    old = TargetStatus("b", STATE, LATE, 1.0, NOW)
    assert reading_row(old, NOW, NOW + timedelta(minutes=5, seconds=12)) == (
        *("b", "worker:2,ps:0", "0", "5m12s", "1.00s"),
        "no complete answer to it within 1 s",
    )
    never = TargetStatus("c", None, BROKEN)
    assert reading_row(never, NOW, NOW) == ("c", "", "", "", "", "nobody listens")


def test_a_reading_is_a_document() -> None:
    document = reading_document(TargetStatus("b", STATE, LATE, 1.0000004, NOW))
    assert list(document) == [
        *("name", "tasks", "jobs", "version", "observed_at", "absent", "unready", "latency", "stale_since"),
        "error",
    ]
    assert (document["tasks"], document["version"], document["latency"]) == (
        {"worker": 2, "ps": 0},
        "41",
        1.0,
    )
    assert document["stale_since"] == document["observed_at"] == "2026-01-02T03:04:05Z"
    assert document["error"] == {
        "type": "DeadlineExceededError",
        "message": "no complete answer to it within 1 s. Raise --timeout.",
        "retryable": True,
    }


def test_rows_are_headed_once_and_as_wide_as_the_longest_name() -> None:
    rows = ReadingRows(["a", "a-long-name"])
    first = rows.text(TargetStatus("a", STATE), NOW).splitlines()
    assert first[0].index("TASKS") == first[1].index("worker:2") == len("a-long-name") + 3
    assert len(rows.text(TargetStatus("a-long-name", STATE), NOW).splitlines()) == 1


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ((None, None), 0),
        ((None, LATE), 3),
        ((LATE, LATE), 3),
        ((LATE, BROKEN), 1),
        ((None, BROKEN), 1),
        ((), 0),
    ],
)
def test_the_code_of_a_round_is_that_of_the_worst(errors: tuple[Any, ...], code: int) -> None:
    assert round_code([TargetStatus("a", STATE, error) for error in errors]) == code


def test_an_invalid_shard_names_the_option() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("JOB_COMPLETION_INDEX", raising=False)
        with pytest.raises(ConfigurationError, match="shard=`: ") as raised:
            Fleet(shard=4)
    said = error_message(raised.value)
    assert said.startswith("--shards: the index of this shard of 4 is unknown")
    assert "Pass the index as well, or" in said


class BrokenResolver(ClusterResolver):
    """Nobody answers."""

    async def fetch_state(self, progress: Progress) -> ClusterState:
        raise BROKEN


async def test_a_picture_has_no_more_lines_than_the_terminal_and_those_that_fail_first() -> None:
    well = {f"t-{number}": SimpleClusterResolver(STATE.spec) for number in range(40)}
    fleet = Fleet({**well, "broken": BrokenResolver()})
    await fleet.resolve()
    picture = PollPicture(fleet, is_watched=False)
    for lines in range(5, 60):
        drawn = picture.drawn(80, lines)
        assert isinstance(drawn, Group)
        shown = [line.plain for line in drawn.renderables if isinstance(line, Text)]
        assert len(shown) == len(drawn.renderables) <= lines
        assert any(line.startswith("broken") for line in shown)
        assert shown[-1] == "40 of 41 targets answer, 80 tasks; 1 do not"
        assert shown[1].startswith("broken" if lines < 44 else "t-0")
