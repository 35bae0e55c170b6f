"""The health of a target: what an observation and the expected numbers of tasks make of it."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aioresolve import ClusterState, Endpoint, Fleet, Observation
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError
from aioresolve.fleet import Health, TargetStatus, fleet_of
from aioresolve.spec import ControllerStatus, DoneTask, ExpectedTasks, Missing
from tests.resolver.shown import Shown

from .fleets import Scripted, fail, respond_with


def state(done: int = 0, **jobs: int) -> ClusterState:
    """Return a state with these numbers of tasks; of each job, `done` more have ended with success."""
    endpoints = {
        job: {index: Endpoint(f"10.0.0.{index}:1") for index in range(done, done + number)}
        for job, number in jobs.items()
    }
    made = ClusterState.of(endpoints)
    ended = tuple(DoneTask(job, index) for job in jobs for index in range(done))
    return ClusterState(made.endpoints, made.spec, done=ended)


def controller(number: int, done: int = 0) -> dict[str, ExpectedTasks]:
    return {"worker": ExpectedTasks(number, "spec.replicas of StatefulSet ml/x", done)}


PENDING = Missing("worker", "ml/x-7", "Pending")
FAILED = Missing("worker", "ml/x-3", "Failed")
UNREADY = Missing("worker", "ml/x-0", "not ready")


async def status_of(observation: Observation, expected: Any = "controller") -> TargetStatus:
    fleet = Fleet({"a": Shown(observation)}, expected={"a": expected})
    return (await fleet.resolve())["a"]


@pytest.mark.parametrize(
    ("observation", "expected", "summary", "reason"),
    [
        # without a number
        (Observation(state(worker=2)), "controller", "Ready 2/2", ""),
        (Observation(state(worker=2), (PENDING,)), "controller", "Degraded 2/3", "ml/x-7: Pending"),
        (Observation(state(worker=2), (), (UNREADY,)), "controller", "Degraded 1/2", "ml/x-0: not ready"),
        (
            Observation(state(worker=2), (PENDING,), (UNREADY,)),
            "controller",
            "Degraded 1/3",
            "ml/x-7: Pending, and 1 more",
        ),
        (
            Observation(state(), tuple(Missing("ps", f"tpu-{n}", "CREATING", tasks=n) for n in (4, None))),
            "controller",
            "Degraded 0/5",
            "tpu-4: CREATING, and 1 more",
        ),
        (Observation(state(worker=0)), "controller", "Empty", "nothing was found"),
        (Observation(state()), "controller", "Empty", "nothing was found"),
        (Observation(state(worker=2, ps=0)), "controller", "Degraded 2/2", "job 'ps': 0 tasks"),
        # with the number of the controller
        (Observation(state(worker=2), expected=controller(2)), "controller", "Ready 2/2", ""),
        (
            Observation(state(worker=2), expected=controller(5)),
            "controller",
            "Degraded 2/5",
            "job 'worker': 2 of 5 tasks (spec.replicas of StatefulSet ml/x)",
        ),
        (
            Observation(
                state(worker=2), failed=(Missing("worker", "ml/x-3", "Failed"),), expected=controller(3)
            ),
            "controller",
            "Degraded 2/3",
            "ml/x-3: Failed",
        ),
        (Observation(state(1, worker=2), expected=controller(3, done=1)), "controller", "Ready 3/3", ""),
        (Observation(state(1, worker=2), expected=controller(4, done=1)), "controller", "Degraded 3/4", None),
        (
            Observation(
                state(worker=0),
                controllers={"worker": (ControllerStatus("failed", "Job ml/x", "BackoffLimitExceeded"),)},
            ),
            "controller",
            "Empty",
            "Job ml/x: failed (BackoffLimitExceeded)",
        ),
        # with the number of the user
        (Observation(state(worker=2, ps=1)), 3, "Ready 3/3", ""),
        (Observation(state(worker=2, ps=1)), 4, "Degraded 3/4", "3 of 4 tasks in total"),
        (Observation(state(worker=2, ps=1)), {"worker": 2}, "Ready 2/2", ""),
        (Observation(state(worker=2, ps=1)), {"ps": 2}, "Degraded 1/2", "job 'ps': 1 of 2 tasks"),
        (
            Observation(state(chief=1, worker=2, ps=1)),
            {"chief": 1, "worker": 3, "ps": 2},
            "Degraded 4/6",
            "job 'worker': 2 of 3 tasks, job 'ps': 1 of 2 tasks",
        ),
        (Observation(state(worker=2), (PENDING,)), 2, "Ready 2/2", ""),
        (Observation(state(worker=0)), 2, "Empty 0/2", "nothing was found"),
        (
            Observation(state(worker=3)),
            2,
            "Degraded 3/2",
            "the tasks: there are 3 instead of 2: 10.0.0.0:1, 10.0.0.1:1, 10.0.0.2:1",
        ),
    ],
)
async def test_health_follows_from_the_observation(
    observation: Observation, expected: Any, summary: str, reason: str | None
) -> None:
    status = await status_of(observation, expected)
    assert status.summary == summary
    assert reason is None or status.reason == reason
    assert status.health == summary.partition(" ")[0].lower()


async def test_numbers_of_each_job() -> None:
    status = await status_of(Observation(state(worker=3, ps=1), (), (UNREADY,), expected=controller(4)))
    assert (status.found, status.wanted) == ({"worker": 2, "ps": 1}, {"worker": 4})
    assert (status.num_found, status.num_wanted, status.num_tasks) == (3, 5, 4)
    assert status.tasks_by_job == {"worker": 3, "ps": 1}


async def test_number_of_the_user_needs_no_request_for_controllers() -> None:
    class Noting(Shown):
        wants: list[bool]

        async def observe(self, want: Any, progress: Any) -> Observation:
            wants.append(want.sizes)
            return self.last

    wants: list[bool] = []
    fleet = Fleet({name: Noting(Observation(state(worker=1))) for name in "ab"}, expected={"a": 1})
    await fleet.resolve()
    assert wants == [False, True]


async def test_error_and_stale() -> None:
    source = Scripted(fail)
    fleet = Fleet({"a": source}, expected={"a": 2})
    error = (await fleet.resolve())["a"]
    assert (error.health, error.summary, error.reason) == ("error", "Error", "connection refused")
    assert error.age(datetime.now(UTC)) is None
    source.respond = respond_with(1)
    degraded = (await fleet.resolve())["a"]
    assert degraded.confirmed_at is not None
    for seconds, age in ((7, 7.0), (0.5, 0.5), (-1, 0.0)):  # the last one by the clock of another machine
        assert degraded.age(degraded.confirmed_at + timedelta(seconds=seconds)) == age
    source.respond = fail
    stale = (await fleet.resolve())["a"]
    assert (stale.health, stale.summary) == ("stale", "Stale 1/2")
    assert stale.stale_since == (await fleet.resolve())["a"].stale_since == degraded.confirmed_at
    assert stale.since > degraded.since
    source.respond = respond_with(2)
    ready = (await fleet.resolve())["a"]
    assert (ready.health, ready.error, ready.stale_since) == ("ready", None, None)


async def test_time_of_a_health_is_that_of_its_first_status() -> None:
    source = Scripted(respond_with(1))
    fleet = Fleet({"a": source})
    first = (await fleet.resolve())["a"]
    second = (await fleet.resolve())["a"]
    assert first.since == second.since
    assert not second.differs_from(first)
    assert replace(first, absent=(PENDING,)).differs_from(first)
    source.respond = fail
    third = (await fleet.resolve())["a"]
    assert third.since > first.since
    assert third.differs_from(second)
    assert not (await fleet.resolve())["a"].differs_from(third)
    for error in (ConnectionFailedError("no route"), APIError("connection refused")):
        assert replace(third, error=error).differs_from(third)
    assert first.differs_from(None)


def test_severity_orders_the_worst_first() -> None:
    worst_first = ["error", "stale", "empty", "degraded", "ready"]
    assert sorted(Health, key=lambda health: health.severity) == worst_first


class TestExpected:
    @pytest.mark.parametrize(
        "expected", [0, -1, True, "16", 1.5, None, [], {}, {"worker": 0}, {"worker": "2"}]
    )
    def test_other_values_are_rejected(self, expected: Any) -> None:
        with pytest.raises(ConfigurationError, match="`expected"):
            Fleet({"a": Scripted()}, expected={"a": expected})

    def test_unknown_targets_are_rejected(self) -> None:
        with pytest.raises(ConfigurationError, match="`expected=`: there is no target 'b'"):
            Fleet({"a": Scripted()}, expected={"b": 2})

    async def test_target_that_is_added_later(self) -> None:
        fleet = Fleet()
        fleet.add("a", Scripted(respond_with(1)), expected=2)
        assert (await fleet.resolve())["a"].summary == "Degraded 1/2"

    @pytest.mark.parametrize(
        ("written", "expected"),
        [("16", 16), ("1", 1), ("{worker: 14}", {"worker": 14}), ("controller", "controller"), ("${N}", 3)],
    )
    def test_fleet_file(self, written: str, expected: Any) -> None:
        text = f'targets: {{a: {{expected: "{written}", tf_config: {{}}}}, b: {{tf_config: {{}}}}}}'
        text = text.replace(f'"{written}"', written if written != "${N}" else f'"{written}"')
        assert fleet_of(text, environ={"N": "3"}).expected == {"a": expected}


class TestOnChange:
    async def test_it_is_called_when_the_health_changes(self) -> None:
        changes: list[tuple[str, str, str | None]] = []

        def note(status: TargetStatus, previous: TargetStatus | None) -> None:
            changes.append((status.name, status.health, None if previous is None else previous.health))

        source = Scripted(respond_with(1))
        fleet = Fleet({"a": source}, on_change=note)
        for respond in (respond_with(1), respond_with(2), fail, fail, respond_with(2)):
            source.respond = respond
            await fleet.resolve()
        assert changes == [("a", "ready", None), ("a", "stale", "ready"), ("a", "ready", "stale")]

    async def test_its_exception_is_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken(status: TargetStatus, previous: TargetStatus | None) -> None:
            raise ConnectionFailedError("no webhook")

        readings: Mapping[str, TargetStatus] = await Fleet({"a": Scripted()}, on_change=broken).resolve()
        assert readings["a"].health == "ready"
        [record] = caplog.records
        assert (record.levelname, vars(record)["target"]) == ("ERROR", "a")
        assert "no webhook" in caplog.text
