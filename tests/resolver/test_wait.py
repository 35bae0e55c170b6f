"""Waiting for a cluster: when it is complete, what it lacks otherwise, and whether it is reachable."""

import asyncio
import gc
import socket
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioresolve import ClusterResolver, Progress, SimpleClusterResolver, UnionClusterResolver, Want
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    FailedClusterError,
    IncompleteClusterError,
)
from aioresolve.resolver import wait as waiting
from aioresolve.resolver.completeness import MAX_REASONS, Completeness, WaitCondition, validate_condition
from aioresolve.spec import (
    ClusterSpec,
    ClusterState,
    ControllerStatus,
    DoneTask,
    ExpectedTasks,
    Missing,
    Observation,
)
from tests.resolver.shown import PATIENCE, Shown
from tests.virtual_time import in_virtual_time

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DOWN = ConnectionFailedError("no response from https://10.0.0.1:6443")


def cluster(**sizes: int) -> ClusterState:
    spec = {job: [f"{job}-{number}:1" for number in range(size)] for job, size in sizes.items()}
    return ClusterState.from_spec(ClusterSpec(spec))


def observe(*missing: Missing, unready: tuple[Missing, ...] = (), **sizes: int) -> Observation:
    return Observation(cluster(**sizes), missing, unready)


def pending(name: str, job: str = "worker") -> Missing:
    return Missing(job, name, "Pending (Unschedulable)")


def lost(name: str, job: str = "worker") -> Missing:
    return Missing(job, name, "Failed (Evicted)", is_final=True)


def wanted(count: Any = None, jobs: Any = None, ready: bool = True) -> WaitCondition:
    return validate_condition(count, jobs, ready, False, 0.0)


# Conditions


async def test_invalid_argument_is_named_before_the_wait() -> None:
    spec = cluster(worker=1, ps=1).spec
    arguments: dict[str, Any]
    for resolver in (SimpleClusterResolver(spec), UnionClusterResolver(SimpleClusterResolver(spec))):
        for arguments, text in (
            ({"count": 0}, "`count=`: 0"),
            ({"count": True}, "`count=`: True"),
            ({"count": 2, "jobs": {"worker": 2}}, "count and jobs cannot be combined"),
            ({"count": (4, 8, 9)}, "`count=`: (4, 8, 9) is not a range"),
            ({"count": (8, 4)}, "`count=`: the range (8, 4) ends before it begins"),
            ({"count": (0, 4)}, "`count=`: 0"),
            ({"jobs": {}}, "`jobs=`: {} is not a mapping"),
            ({"jobs": {"": 1}}, "`jobs=`: {'': 1} is not a mapping of job names"),
            ({"jobs": ["worker"]}, "`jobs=`: ['worker'] is not a mapping"),
            ({"jobs": {"worker": 0}}, "`jobs['worker']=`: 0"),
            ({"jobs": {"worker": 1, "wrker": 4}}, "no job is named 'wrker'. The jobs are 'worker', 'ps'."),
            ({"reachable": "grpc"}, "`reachable=`: 'grpc'"),
            ({"reachable": 1.5}, "`reachable=`: 1.5"),
            ({"stable_for": -1}, "`stable_for=`: -1"),
            ({"stable_for": 5, "timeout": 5}, "5 s is not shorter than the timeout of 5 s"),
            ({"stable_for": 601}, "601 s is not shorter than the timeout of 600 s"),
        ):
            with pytest.raises(ConfigurationError) as caught:
                await resolver.wait(**arguments)
            assert text in str(caught.value)


# Completeness


def expecting(observation: Observation, number: int) -> Observation:
    """Return the observation of a source that expects so many workers."""
    return replace(observation, expected={"worker": ExpectedTasks(number, "a label")})


ANY = WaitCondition()
OF_THREE = {"ps": ExpectedTasks(1, "a Job"), "worker": ExpectedTasks(3, "a Job", 1)}
VANISHED = replace(observe(worker=2, ps=1), expected=OF_THREE)


@pytest.mark.parametrize(
    ("observation", "condition"),
    [
        (observe(worker=2, ps=1), ANY),
        (observe(worker=3), wanted(count=(2, 3))),
        (observe(worker=3), wanted(count=(3, 3))),
        (observe(worker=3), wanted(count=(2, None))),
        (observe(worker=1, ps=1), wanted(count=2)),
        (observe(lost("a"), worker=2), wanted(count=2)),
        (observe(worker=2, ps=0), wanted(jobs={"worker": 2})),
        (observe(pending("p", "ps"), worker=2), wanted(jobs={"worker": 2})),
        (observe(unready=(pending("p", "ps"),), worker=2, ps=1), wanted(jobs={"worker": 2})),
        (observe(unready=(pending("worker-0"),), worker=2), WaitCondition(ready=False)),
        (expecting(observe(pending("a"), worker=2), 2), ANY),
        (expecting(observe(worker=2), 3), wanted(count=2)),
        (expecting(observe(worker=2), 3), wanted(jobs={"worker": 2})),
        (VANISHED, wanted(jobs={"ps": 1})),
    ],
)
def test_cluster_is_complete(observation: Observation, condition: WaitCondition) -> None:
    found = Completeness(observation, condition)
    assert (found.is_complete, found.missing) == (True, [])


STOPPED = observe(lost("a"), worker=2).stale(DOWN, NOON)
ENDING = Observation(replace(cluster(worker=2), done=(DoneTask("worker", 2, "ml/a", None),)))
ALL = WaitCondition((3, 3), needs_all=True)
ONE_PS = {"worker": 0, "ps": 1}
ENDED = {"worker": (ControllerStatus("failed", "Job ml/train"),)}
CREATING = [Missing("worker", "b", "CREATING", tasks=tasks) for tasks in (None, 4)]


@pytest.mark.parametrize(
    ("observation", "condition", "found", "missing", "is_final"),
    [
        (Observation(None), ANY, {}, "", False),
        (observe(), ANY, {}, "", False),
        (observe(worker=2, ps=0), ANY, {"worker": 2, "ps": 0}, "", False),
        (observe(pending("a"), worker=2), ANY, {"worker": 2}, "a", False),
        (observe(lost("a"), pending("b"), worker=2), ANY, {"worker": 2}, "a, b", True),
        (observe(unready=(pending("b"),), worker=2), ANY, {"worker": 1}, "b", False),
        (observe(unready=(pending("b"),), worker=3), wanted(count=2), {"worker": 2}, "b, the tasks", False),
        (observe(worker=3), wanted(count=2), {"worker": 3}, "the tasks", True),
        (observe(a=1, ps=2), wanted(jobs={"a": 1, "ps": 1}), {"a": 1, "ps": 2}, "the tasks", True),
        (observe(lost("a"), worker=2), wanted(count=3), {"worker": 2}, "a", True),
        (observe(lost("a"), pending("b"), worker=2), wanted(count=3), {"worker": 2}, "a, b", False),
        (observe(lost("a"), pending("b"), worker=2), wanted(count=4), {"worker": 2}, "a, b", True),
        (observe(lost("a"), CREATING[0], worker=2), wanted(count=4), {"worker": 2}, "a, b", False),
        (observe(lost("a"), CREATING[1], worker=2), wanted(count=6), {"worker": 2}, "a, b", False),
        (observe(worker=2), wanted(jobs={"worker": 2, "ps": 1}), {"worker": 2, "ps": 0}, "", False),
        (observe(lost("p", "ps"), worker=1), wanted(jobs={"worker": 2}), {"worker": 1}, "", False),
        (observe(lost("p", "ps"), worker=2), wanted(jobs={"ps": 1}), {"ps": 0}, "p", True),
        (Observation(None, (lost("a"),)), wanted(count=1), {}, "a", False),
        (expecting(observe(), 2), ANY, {}, "", False),
        (expecting(observe(ps=1), 1), ANY, {"ps": 1}, "", False),
        (expecting(observe(worker=2, ps=0), 2), ANY, {"worker": 2, "ps": 0}, "", False),
        (expecting(observe(lost("a"), worker=1), 2), ANY, {"worker": 1}, "a", True),
        (STOPPED, ANY, {"worker": 2}, "the source, a", False),
        (ENDING, ALL, {"worker": 2}, "ml/a", True),
        (VANISHED, ANY, {"worker": 3, "ps": 1}, "tasks of job 'worker'", True),
        (VANISHED, wanted(jobs={"worker": 3}), {"worker": 3}, "tasks of job 'worker'", True),
        (Observation(None, expected=OF_THREE), ANY, {}, "", False),
        (replace(observe(worker=0), controllers=ENDED), wanted(count=2), {"worker": 0}, "Job ml/train", True),
        # Another job whose tasks are counted too may still have enough.
        (replace(observe(worker=0, ps=1), controllers=ENDED), wanted(count=2), ONE_PS, "Job ml/train", False),
        # A member whose end the watch has not reported yet.
        (replace(observe(worker=3), expected=OF_THREE), ANY, {"worker": 4}, "the tasks", False),
    ],
)
def test_cluster_is_not_complete(
    observation: Observation, condition: WaitCondition, found: dict[str, int], missing: str, is_final: bool
) -> None:
    lacking = Completeness(observation, condition)
    assert not lacking.is_complete
    assert (lacking.found, ", ".join(lacking.reasons), lacking.is_final) == (found, missing, is_final)


def test_completeness_is_formatted_as_one_line() -> None:
    pods = [pending(f"pod-{number}") for number in range(MAX_REASONS + 1)]
    for observation, condition, text in (
        (Observation(None), ANY, "no job was found"),
        (observe(pending("ml/a"), worker=1), ANY, "job 'worker': 1 task; ml/a: Pending (Unschedulable)"),
        (
            observe(worker=1),
            wanted(jobs={"worker": 1, "ps": 2}),
            "job 'worker': 1 of 1 tasks, job 'ps': 0 of 2 tasks",
        ),
        (
            observe(worker=2, ps=1),
            wanted(count=4),
            "job 'worker': 2 tasks, job 'ps': 1 task, 3 of 4 tasks in total",
        ),
        (
            expecting(
                Observation(replace(cluster(worker=1), done=(DoneTask("worker", 1, "ml/a", None),))), 4
            ),
            ANY,
            "job 'worker': 2 of 4 tasks, 1 of them done (a label)",
        ),
        (
            replace(
                observe(worker=0), controllers={"worker": (ControllerStatus("suspended", "Job ml/train"),)}
            ),
            ANY,
            "Job ml/train: suspended",
        ),
        (ENDING, wanted(count=(4, None)), "1 of them done, 3 of 4 or more tasks in total, 1 of them done"),
        (ENDING, wanted(count=2), "the tasks: there are 3 instead of 2: worker-0:1, worker-1:1, ml/a (done)"),
        (observe(worker=2).stale(DOWN, NOON), ANY, f"job 'worker': 2 tasks; the source: {DOWN}"),
        (observe(worker=MAX_REASONS), wanted(count=1), f", worker-{MAX_REASONS - 1}:1"),
        (observe(*pods[:-1]), ANY, f"; pod-{MAX_REASONS - 1}: Pending (Unschedulable)"),
        (observe(*pods), ANY, f"; pod-{MAX_REASONS - 1}: Pending (Unschedulable); and 1 more"),
    ):
        assert str(Completeness(observation, condition)).endswith(text)


# Waiting


async def show_each(source: Shown, *observations: Observation) -> None:
    """Show each of these after the previous one was processed."""
    await source.seen(1)
    for number, observation in enumerate(observations, start=2):
        source.show(observation)
        await source.seen(number)


@in_virtual_time
async def test_cluster_is_returned_as_soon_as_it_is_complete_and_the_watch_ends() -> None:
    source = Shown(observe(pending("a"), worker=1))
    before = asyncio.all_tasks()
    async with anyio.create_task_group() as group:
        group.start_soon(
            show_each,
            source,
            observe(unready=(pending("a"),), worker=2),
            observe(worker=2),
            observe(pending("b"), worker=2),
        )
        assert await source.wait(timeout=PATIENCE) == cluster(worker=2)
        group.cancel_scope.cancel()
    assert source.taken == 3
    assert source.is_closed
    assert asyncio.all_tasks() == before


async def show_after(source: Shown, seconds: float, *observations: Observation) -> None:
    for observation in observations:
        await anyio.sleep(seconds)
        source.show(observation)


@in_virtual_time
async def test_change_of_the_members_or_their_readiness_restarts_the_stable_time() -> None:
    ready, unready, more = observe(worker=2), observe(unready=(pending("a"),), worker=2), observe(worker=3)
    for changes, seconds in (([more], 0.35), ([unready, ready], 0.5)):
        source = Shown(ready)
        async with anyio.create_task_group() as group:
            group.start_soon(show_after, source, 0.15, *changes)
            before = anyio.current_time()
            assert await source.wait((2, 3), stable_for=0.2, timeout=PATIENCE) == source.last.state
            assert anyio.current_time() - before == pytest.approx(seconds)


RESPONSE_TIME = 0.125


class Polled(ClusterResolver):
    """Has two workers until a time of the event loop."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self._until = until
        self.polled_at: list[float] = []

    async def observe(self, want: Want, progress: Progress) -> Observation:
        self.polled_at.append(anyio.current_time())
        await anyio.sleep(RESPONSE_TIME)
        return Observation(cluster(worker=2 if anyio.current_time() < self._until else 0))


@pytest.mark.parametrize("stable_for", [3.0, 4.4, 7.0])
@in_virtual_time
async def test_members_that_a_polled_source_lost_in_the_stable_time_are_not_returned(
    stable_for: float,
) -> None:
    with pytest.raises(IncompleteClusterError, match="0 of 2 tasks"):
        await Polled(until=1.0).wait(2, stable_for=stable_for, timeout=PATIENCE)


@pytest.mark.parametrize(("stable_for", "polls"), [(0.0, 1), (3.0, 2), (5.6, 3)])
@in_virtual_time
async def test_polled_source_is_polled_once_after_the_stable_time(stable_for: float, polls: int) -> None:
    source = Polled(until=PATIENCE)
    await source.wait(2, stable_for=stable_for, timeout=PATIENCE)
    assert len(source.polled_at) == polls
    assert anyio.current_time() == source.polled_at[-1] + RESPONSE_TIME


@in_virtual_time
async def test_other_changes_do_not_restart_the_stable_time() -> None:
    source = Shown(observe(worker=2, ps=1))
    others = [Observation(replace(cluster(worker=2, ps=number % 3), version="2")) for number in range(20)]
    async with anyio.create_task_group() as group:
        group.start_soon(show_after, source, 0.05, *others)
        before = anyio.current_time()
        state = await source.wait(jobs={"worker": 2}, stable_for=0.2, timeout=PATIENCE)
        assert anyio.current_time() - before == pytest.approx(0.2)
        assert state.version == "2"
        group.cancel_scope.cancel()


async def test_error_of_the_source_is_raised_unchanged() -> None:
    source, error = Shown(observe(worker=1)), APIError("gone")
    source.fail(error)
    with pytest.raises(APIError) as caught:
        await source.wait(2, timeout=PATIENCE)
    assert caught.value is error


async def test_pods_that_are_gone_are_not_kept_during_a_long_wait() -> None:
    source = Shown()
    async with anyio.create_task_group() as group:
        group.start_soon(partial(source.wait, 3, timeout=PATIENCE))
        for number in range(100):
            failed = [replace(pending(f"pod-{number}-{each}"), is_final=False) for each in range(10)]
            source.show(replace(observe(*failed, worker=1), failed=tuple(failed)))
            await source.seen(number + 1)
        assert sum(isinstance(each, Missing) for each in gc.get_objects()) <= 50
        group.cancel_scope.cancel()


@in_virtual_time
async def test_deadline_error_lists_missing_members_with_reasons_and_a_hint() -> None:
    source = Shown(observe(pending("ml/a"), unready=(pending("ml/b"),), worker=2))
    with pytest.raises(IncompleteClusterError) as caught:
        await source.wait(jobs={"worker": 3, "ps": 1}, timeout=1.5)
    error = caught.value
    assert str(error) == (
        "the cluster of <Shown> was not complete within 1.5 s: job 'worker': 1 of 3 tasks, job 'ps': 0 of"
        " 1 tasks; ml/b: Pending (Unschedulable); ml/a: Pending (Unschedulable). Check the missing"
        " tasks, raise `timeout=`, or wait for fewer tasks."
    )
    assert (error.timeout, error.found) == (1.5, {"worker": 1, "ps": 0})
    assert error.wanted == {"worker": 3, "ps": 1}
    assert list(error.missing) == ["ml/b", "ml/a"]
    assert isinstance(error, DeadlineExceededError)
    assert source.is_closed


@in_virtual_time
async def test_final_shortfall_ends_the_wait_at_once() -> None:
    source = Shown(observe(pending("a"), worker=1))
    async with anyio.create_task_group() as group:
        group.start_soon(show_each, source, observe(lost("a"), worker=1))
        with pytest.raises(FailedClusterError) as caught:
            await source.wait(timeout=600.0)
        assert caught.value.missing == {"a": "Failed (Evicted)"}
        assert caught.value.found == {"worker": 1}
        assert "cannot become complete" in str(caught.value)
    assert source.is_closed


@in_virtual_time
async def test_wait_continues_during_an_outage() -> None:
    source = Shown(observe(pending("a"), worker=2))
    stale = observe(lost("a"), worker=2).stale(DOWN, NOON)
    async with anyio.create_task_group() as group:
        group.start_soon(show_each, source, stale, observe(worker=2))
        assert await source.wait(timeout=PATIENCE) == cluster(worker=2)
    with pytest.raises(IncompleteClusterError, match="no response from"):
        await Shown(observe(worker=2).stale(DOWN, NOON)).wait(timeout=1.0)


@in_virtual_time
async def test_failed_tasks_are_named_after_absent_ones_as_many_as_are_missing() -> None:
    failed = tuple(Missing("worker", name, "Failed (OOMKilled)", tasks=0) for name in "xyz")
    cases: list[tuple[list[Missing], dict[str, Any], list[str]]] = [
        ([], {"jobs": {"worker": 3}}, ["y", "z"]),
        ([pending("a")], {"count": 3}, ["a", "z"]),
        ([pending("a"), pending("b")], {"jobs": {"worker": 3}}, ["a", "b"]),
    ]
    for absent, condition, names in cases:
        source = Shown(replace(observe(*absent, worker=1), failed=failed))
        with pytest.raises(IncompleteClusterError) as caught:
            await source.wait(timeout=1.0, **condition)
        assert list(caught.value.missing) == names


async def test_job_of_a_source_that_does_not_know_its_jobs_is_waited_for() -> None:
    resolver = UnionClusterResolver(SimpleClusterResolver(cluster(ps=1).spec), Shown(observe(worker=1)))
    assert resolver.known_jobs is None
    assert await resolver.wait(jobs={"worker": 1}, timeout=PATIENCE) == cluster(ps=1, worker=1)


@in_virtual_time
async def test_wait_without_a_number_waits_for_the_tasks_that_the_source_expects() -> None:
    first = expecting(observe(worker=1), 2)
    source = Shown(first)
    async with anyio.create_task_group() as group:
        group.start_soon(show_each, source, expecting(observe(worker=2), 2))
        assert await source.wait(timeout=PATIENCE) == cluster(worker=2)
    with pytest.raises(IncompleteClusterError) as caught:
        await Shown(first).wait(timeout=1.0)
    assert (caught.value.found, caught.value.wanted) == ({"worker": 1}, {"worker": 2})


class Searched(Shown):
    """Explains missing tasks with a selector that matches nothing."""

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        return (Missing("worker", "app=x", "no pod matches"),)


@in_virtual_time
async def test_selector_without_a_match_is_named_until_its_job_has_more_tasks() -> None:
    for later, missing in (
        (observe(pending("b"), worker=1), {"b": "Pending (Unschedulable)", "app=x": "no pod matches"}),
        (observe(worker=3), {}),
        (observe(pending("app=x"), worker=2), {"app=x": "no pod matches"}),
    ):
        source = Searched(observe(pending("a"), worker=1))
        async with anyio.create_task_group() as group:
            group.start_soon(show_each, source, later)
            with pytest.raises(IncompleteClusterError) as caught:
                await source.wait(4, timeout=1.0)
            assert caught.value.missing == missing


# Reachability


async def test_tasks_that_accept_tcp_are_reachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        spec = ClusterSpec({"worker": [f"127.0.0.1:{server.getsockname()[1]}"]})
        assert (await SimpleClusterResolver(spec).wait(reachable=True, timeout=PATIENCE)).spec == spec


@in_virtual_time
async def test_task_that_becomes_unreachable_restarts_the_stable_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused, times = {"worker-0:1": "refused"}, list[float]()

    async def check(addresses: list[str], reach: str) -> dict[str, str]:
        times.append(anyio.current_time() - before)
        return refused if 0.09 < times[-1] < 0.24 else {}

    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 0.05)
    monkeypatch.setattr(waiting, "find_unreachable", check)
    for timeout, number, missing in (
        (0.22, 0, refused),
        (0.44, 1, {"the tasks": "not stable for 0.2 s yet"}),
    ):
        before = anyio.current_time()
        with pytest.raises(IncompleteClusterError) as caught:
            await Shown(observe(worker=1)).wait(reachable="tcp", stable_for=0.2, timeout=timeout)
        assert (caught.value.found, caught.value.missing) == ({"worker": number}, missing)
    before = anyio.current_time()
    times.clear()
    await Shown(observe(worker=1)).wait(reachable="tcp", stable_for=0.2, timeout=PATIENCE)
    # The task is reachable again at 0.25 s.
    assert [*times[:9], times[-1]] == pytest.approx([0.05 * number for number in range(10)])


@in_virtual_time
async def test_change_while_tasks_do_not_respond_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    is_checking = anyio.Event()

    async def hang(addresses: list[str], reach: str) -> dict[str, str]:
        is_checking.set()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(waiting, "find_unreachable", hang)
    with pytest.raises(IncompleteClusterError, match="not known to be reachable yet") as caught:
        await Shown(observe(worker=2)).wait(reachable="tcp", timeout=1.0)
    assert caught.value.found == {"worker": 2}
    source, is_checking = Shown(observe(worker=2)), anyio.Event()
    async with anyio.create_task_group() as group:

        async def lose() -> None:
            await is_checking.wait()
            source.show(observe(lost("a"), worker=1))

        group.start_soon(lose)
        with pytest.raises(FailedClusterError):
            await source.wait(reachable="tcp", stable_for=1.0, timeout=600.0)


# Watching


async def test_watch_yields_each_change_once() -> None:
    source = Shown()
    states_seen: list[ClusterState] = []

    async def watch() -> None:
        async with aclosing(source.watch()) as states:
            async for state in states:
                states_seen.append(state)  # noqa: PERF401 - the list is compared after a cancellation

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        source.show(observe(worker=1))
        await show_each(
            source,
            observe(pending("a"), worker=1),
            observe(worker=2),
            observe(worker=2).stale(DOWN, NOON),
            observe(unready=(pending("a"),), worker=2),
            observe(worker=1),
        )
        group.cancel_scope.cancel()
    assert states_seen == [cluster(worker=1), cluster(worker=2), cluster(worker=1)]
    assert source.is_closed


@in_virtual_time
async def test_watch_without_a_first_state_raises_the_deadline_error_with_the_reason() -> None:
    for first, reason in (
        (Observation(None, error=DOWN, stale_since=NOON), f"last attempt: {DOWN}"),
        (Observation(None), "the source has not returned a complete state"),
    ):
        source = Shown(first)
        source._timeout = 0.05
        with pytest.raises(DeadlineExceededError) as caught:
            await anext(source.watch())
        assert caught.value.missing == {"the first state": reason}
        assert caught.value.__cause__ is first.error
