"""When a cluster is complete, what is lacking otherwise, and waiting until it is."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve._core.concurrency import Newest
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    FailedClusterError,
    ForbiddenError,
    IncompleteClusterError,
)
from aioresolve.resolver import wait as waiting
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.wait import (
    MAX_REASONS,
    WaitCondition,
    shortfall,
    validate_condition,
    wait_until_complete,
)
from aioresolve.spec import ClusterSpec, ClusterState, Endpoint, Missing, Observation
from aioresolve.testing import TPUWorker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from aioresolve._core.retry import Progress

PATIENCE = 10.0
"""Seconds for what has to happen, on a machine that may be busy."""

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
DOWN = ConnectionFailedError("no answer from https://10.0.0.1:6443")


def cluster(**sizes: int) -> ClusterState:
    spec = {job: [f"{job}-{number}:1" for number in range(size)] for job, size in sizes.items()}
    return ClusterState.from_spec(ClusterSpec(spec))


def seen(*missing: Missing, unready: tuple[Missing, ...] = (), **sizes: int) -> Observation:
    return Observation(cluster(**sizes), missing, unready)


def pending(name: str, job: str = "worker") -> Missing:
    return Missing(job, name, "Pending (Unschedulable)")


def lost(name: str, job: str = "worker") -> Missing:
    return Missing(job, name, "Failed (Evicted)", is_final=True)


# What is wanted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": 0}, "count=0"),
        ({"count": -1}, "count=-1"),
        ({"count": 2.0}, "count=2.0"),
        ({"count": True}, "count=True"),
        ({"count": 2, "jobs": {"worker": 2}}, "count and jobs cannot be combined"),
        ({"jobs": {}}, "`jobs=`: {} is not a mapping"),
        ({"jobs": ["worker"]}, r"`jobs=`: \['worker'\] is not a mapping"),
        ({"jobs": {"worker": 0}}, r"jobs\['worker'\]=0"),
        ({"reachable": "grpc"}, "`reachable=`: 'grpc'"),
        ({"reachable": 1.5}, "`reachable=`: 1.5"),
        ({"stable_for": -1}, "stable_for=-1"),
        ({"stable_for": float("inf")}, "stable_for=inf"),
        ({"stable_for": float("nan")}, "stable_for=nan"),
        ({"stable_for": "10"}, "stable_for='10'"),
        ({"stable_for": True}, "stable_for=True"),
    ],
)
def test_an_argument_that_makes_no_sense_is_named(arguments: dict[str, Any], words: str) -> None:
    usual: dict[str, Any] = {
        "count": None,
        "jobs": None,
        "ready": True,
        "reachable": False,
        "stable_for": 0.0,
    }
    with pytest.raises(ConfigurationError, match=words):
        validate_condition(**(usual | arguments))


def test_the_ways_of_reaching_a_task() -> None:
    for given_, meant in ((False, None), (None, None), (True, "tcp"), ("tcp", "tcp"), ("probe", "probe")):
        assert validate_condition(None, None, True, given_, 0).reachable == meant


def test_the_jobs_wanted_may_change_afterwards() -> None:
    jobs = {"worker": 2}
    wanted = validate_condition(None, jobs, True, False, 0)
    jobs.clear()
    assert wanted.jobs == {"worker": 2}


# What one observation lacks

COMPLETE = [
    (seen(worker=2), WaitCondition()),
    (seen(worker=2, ps=1), WaitCondition()),
    (seen(worker=2), WaitCondition(count=2)),
    (seen(worker=3), WaitCondition(count=2)),
    (seen(worker=1, ps=1), WaitCondition(count=2)),
    (seen(pending("a"), worker=2), WaitCondition(count=2)),
    (seen(lost("a"), worker=2), WaitCondition(count=2)),
    (seen(worker=2), WaitCondition(jobs={"worker": 2})),
    (seen(worker=2, ps=0), WaitCondition(jobs={"worker": 2})),
    (seen(pending("p", "ps"), worker=2), WaitCondition(jobs={"worker": 2})),
    (seen(unready=(pending("p", "ps"),), worker=2, ps=1), WaitCondition(jobs={"worker": 2})),
    (seen(unready=(pending("worker-0"),), worker=2), WaitCondition(ready=False)),
]


@pytest.mark.parametrize(("observation", "wanted"), COMPLETE)
def test_what_is_complete(observation: Observation, wanted: WaitCondition) -> None:
    assert shortfall(observation, wanted) is None


SHORT: list[tuple[Observation, WaitCondition, dict[str, int], list[str], bool]] = [
    # what is seen, what is wanted; what is found, who is missing, whether for good
    (Observation(None), WaitCondition(), {}, [], False),
    (seen(), WaitCondition(), {}, [], False),
    (seen(worker=0), WaitCondition(), {"worker": 0}, [], False),
    (seen(worker=2, ps=0), WaitCondition(), {"worker": 2, "ps": 0}, [], False),
    (seen(pending("a"), worker=2), WaitCondition(), {"worker": 2}, ["a"], False),
    (seen(lost("a"), worker=2), WaitCondition(), {"worker": 2}, ["a"], True),
    (seen(lost("a"), pending("b"), worker=2), WaitCondition(), {"worker": 2}, ["a", "b"], True),
    (seen(unready=(pending("b"),), worker=2), WaitCondition(), {"worker": 1}, ["b"], False),
    (seen(unready=(pending("b"),), worker=2), WaitCondition(count=2), {"worker": 1}, ["b"], False),
    (seen(unready=(pending("b"),), worker=3), WaitCondition(count=2), {"worker": 2}, ["b"], False),
    (seen(worker=2), WaitCondition(count=3), {"worker": 2}, [], False),
    (seen(lost("a"), worker=2), WaitCondition(count=3), {"worker": 2}, ["a"], True),
    (seen(lost("a"), pending("b"), worker=2), WaitCondition(count=3), {"worker": 2}, ["a", "b"], False),
    (seen(lost("a"), pending("b"), worker=2), WaitCondition(count=4), {"worker": 2}, ["a", "b"], True),
    (
        seen(lost("a"), Missing("worker", "b", "CREATING", tasks=None), worker=2),
        WaitCondition(count=4),
        {"worker": 2},
        ["a", "b"],
        False,
    ),
    (
        seen(lost("a"), Missing("worker", "b", "CREATING", tasks=4), worker=2),
        WaitCondition(count=6),
        {"worker": 2},
        ["a", "b"],
        False,
    ),
    (seen(worker=2), WaitCondition(jobs={"worker": 2, "ps": 1}), {"worker": 2, "ps": 0}, [], False),
    (seen(lost("p", "ps"), worker=1), WaitCondition(jobs={"worker": 2}), {"worker": 1}, [], False),
    (seen(lost("p", "ps"), worker=2), WaitCondition(jobs={"ps": 1}), {"ps": 0}, ["p"], True),
    (Observation(None, (lost("a"),)), WaitCondition(count=1), {}, ["a"], False),
    (seen(worker=2).stale(DOWN, NOON), WaitCondition(), {"worker": 2}, ["the source"], False),
    (seen(lost("a"), worker=2).stale(DOWN, NOON), WaitCondition(), {"worker": 2}, ["the source", "a"], False),
]


@pytest.mark.parametrize(("observation", "wanted", "found", "missing", "is_final"), SHORT)
def test_what_is_not_complete(
    observation: Observation, wanted: WaitCondition, found: dict[str, int], missing: list[str], is_final: bool
) -> None:
    lacking = shortfall(observation, wanted)
    assert lacking is not None
    assert (dict(lacking.found), list(lacking.reasons), lacking.is_final) == (found, missing, is_final)


@pytest.mark.parametrize(
    ("observation", "wanted", "words"),
    [
        (Observation(None), WaitCondition(), "no job was found"),
        (
            seen(pending("ml/a"), worker=1),
            WaitCondition(),
            "job 'worker': 1 task; ml/a: Pending (Unschedulable)",
        ),
        (
            seen(worker=1),
            WaitCondition(jobs={"worker": 1, "ps": 2}),
            "job 'worker': 1 of 1 tasks, job 'ps': 0 of 2 tasks",
        ),
        (
            seen(worker=2, ps=1),
            WaitCondition(count=4),
            "job 'worker': 2 tasks, job 'ps': 1 task, 3 of 4 tasks in total",
        ),
        (seen(worker=2).stale(DOWN, NOON), WaitCondition(), f"job 'worker': 2 tasks; the source: {DOWN}"),
    ],
)
def test_what_is_lacking_is_told_in_one_line(
    observation: Observation, wanted: WaitCondition, words: str
) -> None:
    assert str(shortfall(observation, wanted)) == words


def test_not_everybody_of_thousands_is_named() -> None:
    lacking = shortfall(
        seen(*(pending(f"pod-{number}") for number in range(1000)), worker=1), WaitCondition()
    )
    assert lacking is not None
    assert str(lacking).endswith(f"; and {1000 - MAX_REASONS} more")
    assert len(lacking.reasons) == 1000


JOBS = st.sampled_from(["worker", "ps", "chief"])
MISSING = st.builds(
    Missing,
    JOBS,
    st.text("abc", min_size=1, max_size=3),
    st.just("why"),
    is_final=st.booleans(),
    tasks=st.none() | st.integers(0, 3),
)
SIZES = st.dictionaries(JOBS, st.integers(0, 3))
OBSERVATIONS = st.builds(
    Observation,
    st.none() | SIZES.map(lambda sizes: cluster(**sizes)),
    st.lists(MISSING, max_size=4).map(tuple),
    st.lists(MISSING, max_size=2).map(tuple),
    st.none() | st.just(DOWN),
)
WANTED = st.builds(
    WaitCondition,
    st.none() | st.integers(1, 6),
    st.none(),
    st.booleans(),
) | st.builds(WaitCondition, st.none(), st.dictionaries(JOBS, st.integers(1, 3), min_size=1), st.booleans())


@given(OBSERVATIONS, WANTED)
def test_a_complete_cluster_has_what_is_wanted_and_its_source_answers(
    observation: Observation, wanted: WaitCondition
) -> None:
    lacking = shortfall(observation, wanted)
    if lacking is not None:
        assert str(lacking)
        return
    assert observation.state is not None
    assert observation.error is None
    sizes = {job: len(tasks) for job, tasks in observation.state.endpoints.items()}
    looked_at = wanted.jobs if wanted.jobs is not None else sizes
    if wanted.count is not None:
        assert sum(sizes.values()) >= wanted.count
    elif wanted.jobs is not None:
        assert all(sizes.get(job, 0) >= number for job, number in wanted.jobs.items())
    else:
        assert sizes
        assert all(sizes.values())
        assert not observation.absent
    if wanted.ready:
        assert not [one for one in observation.unready if one.job in looked_at or wanted.jobs is None]


@given(OBSERVATIONS, WANTED)
def test_what_is_final_is_not_mended_by_all_who_may_still_come(
    observation: Observation, wanted: WaitCondition
) -> None:
    lacking = shortfall(observation, wanted)
    if lacking is None or not lacking.is_final:
        return
    assert observation.state is not None
    assert any(one.is_final for one in observation.absent)
    if wanted.count is None and wanted.jobs is None:
        return
    sizes = {job: len(tasks) for job, tasks in observation.state.endpoints.items()}
    for one in observation.absent:
        if not one.is_final:
            sizes[one.job] = sizes.get(one.job, 0) + (10 if one.tasks is None else one.tasks)
    assert shortfall(Observation(cluster(**sizes)), wanted) is not None


@given(OBSERVATIONS, WANTED)
def test_a_source_that_cannot_be_asked_proves_nothing(
    observation: Observation, wanted: WaitCondition
) -> None:
    lacking = shortfall(replace(observation, error=DOWN), wanted)
    assert lacking is not None
    assert not lacking.is_final
    assert lacking.reasons["the source"] == str(DOWN)


# Waiting


class Scripted(ClusterResolver):
    """Shows what a test tells it."""

    def __init__(self, *first: Observation) -> None:
        super().__init__()
        self._newest: Newest[Observation] = Newest()
        self.taken = 0
        self.is_closed = False
        for observation in first:
            self.tell(observation)

    def __repr__(self) -> str:
        return "<Scripted>"

    def tell(self, observation: Observation) -> None:
        self._newest.put(observation)

    def fail(self, error: BaseException) -> None:
        self._newest.end(error)

    async def seen(self, number: int) -> None:
        """Return once so many observations have been taken and judged."""
        with anyio.fail_after(PATIENCE):
            while self.taken < number:  # noqa: ASYNC110 - a number tells nobody when it grows
                await anyio.sleep(0.001)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()

    async def fetch_state(self, progress: Progress) -> ClusterState:
        raise AssertionError("it is watched, and not asked")

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        try:
            while True:
                observation = await self._newest.taken()
                self.taken += 1
                yield observation
        finally:
            self.is_closed = True


async def told(source: Scripted, *observations: Observation) -> None:
    """Tell each of these once the one before was judged."""
    await source.seen(1)
    for number, observation in enumerate(observations, start=2):
        source.tell(observation)
        await source.seen(number)


async def test_a_cluster_that_is_complete_is_returned_at_once_and_the_watch_ends() -> None:
    source = Scripted(seen(worker=2))
    before = asyncio.all_tasks()
    assert await source.wait(2, timeout=PATIENCE) == cluster(worker=2)
    assert source.is_closed
    assert asyncio.all_tasks() == before


async def test_a_cluster_is_returned_as_soon_as_it_is_complete() -> None:
    source = Scripted(seen(pending("a"), worker=1))
    async with anyio.create_task_group() as group:
        group.start_soon(
            told,
            source,
            seen(unready=(pending("a"),), worker=2),
            seen(worker=2),
            seen(pending("b"), worker=2),
        )
        assert await source.wait(timeout=PATIENCE) == cluster(worker=2)
        group.cancel_scope.cancel()
    assert source.taken == 3


async def test_a_change_starts_the_time_of_stability_anew() -> None:
    source = Scripted(seen(worker=2))
    async with anyio.create_task_group() as group:
        group.start_soon(_changed_after, source, 0.15, seen(worker=3))
        before = anyio.current_time()
        assert await source.wait(2, stable_for=0.2, timeout=PATIENCE) == cluster(worker=3)
        assert anyio.current_time() - before >= 0.35


async def _changed_after(source: Scripted, seconds: float, *observations: Observation) -> None:
    for observation in observations:
        await anyio.sleep(seconds)
        source.tell(observation)


async def test_a_flap_starts_the_time_of_stability_anew() -> None:
    source = Scripted(seen(worker=2))
    flap = seen(unready=(pending("a"),), worker=2)
    async with anyio.create_task_group() as group:
        group.start_soon(_changed_after, source, 0.1, flap, seen(worker=2))
        before = anyio.current_time()
        await source.wait(stable_for=0.15, timeout=PATIENCE)
        assert anyio.current_time() - before >= 0.35


async def test_what_is_no_change_of_the_members_does_not_start_it_anew() -> None:
    source = Scripted(seen(worker=2))
    newer = Observation(replace(cluster(worker=2), version="2"))
    async with anyio.create_task_group() as group:
        group.start_soon(_changed_after, source, 0.05, *[newer] * 20)
        before = anyio.current_time()
        state = await source.wait(stable_for=0.2, timeout=PATIENCE)
        assert 0.2 <= anyio.current_time() - before < 0.9
        assert state.version == "2"
        group.cancel_scope.cancel()


async def test_other_jobs_may_change_as_they_like() -> None:
    source = Scripted(seen(worker=2, ps=1))
    others = [seen(worker=2, ps=number % 3) for number in range(20)]
    async with anyio.create_task_group() as group:
        group.start_soon(_changed_after, source, 0.05, *others)
        before = anyio.current_time()
        await source.wait(jobs={"worker": 2}, stable_for=0.2, timeout=PATIENCE)
        assert anyio.current_time() - before < 0.9
        group.cancel_scope.cancel()


async def test_the_deadline_names_the_members_that_were_not_the_same_for_long_enough() -> None:
    source = Scripted(seen(pending("a"), worker=1))
    async with anyio.create_task_group() as group:
        group.start_soon(told, source, seen(worker=2))
        with pytest.raises(IncompleteClusterError) as caught:
            await source.wait(stable_for=5.0, timeout=0.3)
        assert caught.value.missing == {"the tasks": "not stable for 5 s yet"}
        assert caught.value.found == {"worker": 2}


async def test_the_deadline_says_who_is_missing_and_why_and_what_to_do() -> None:
    source = Scripted(seen(pending("ml/a"), unready=(pending("ml/b"),), worker=2))
    with pytest.raises(IncompleteClusterError) as caught:
        await source.wait(jobs={"worker": 3, "ps": 1}, timeout=0.05)
    error = caught.value
    assert str(error) == (
        "the cluster of <Scripted> was not complete within 0.05 s: job 'worker': 1 of 3 tasks, job 'ps': 0 of"
        " 1 tasks; ml/b: Pending (Unschedulable); ml/a: Pending (Unschedulable). Check the missing"
        " tasks, raise `timeout=`, or wait for fewer tasks."
    )
    assert (error.timeout, error.found, error.wanted) == (
        0.05,
        {"worker": 1, "ps": 0},
        {"worker": 3, "ps": 1},
    )
    assert list(error.missing) == ["ml/b", "ml/a"]
    assert isinstance(error, DeadlineExceededError)
    assert source.is_closed


async def test_a_source_that_never_answers_is_waited_for_to_the_deadline() -> None:
    with pytest.raises(IncompleteClusterError, match="no job was found"):
        await Scripted().wait(timeout=0.05)


async def test_what_is_lost_for_good_ends_it_at_once() -> None:
    source = Scripted(seen(pending("a"), worker=1))
    async with anyio.create_task_group() as group:
        group.start_soon(told, source, seen(lost("a"), worker=1))
        with pytest.raises(FailedClusterError) as caught:
            await source.wait(timeout=600.0)
        assert caught.value.missing == {"a": "Failed (Evicted)"}
        assert caught.value.found == {"worker": 1}
        assert "cannot become complete" in str(caught.value)
    assert source.is_closed


async def test_an_outage_proves_nothing_and_is_survived() -> None:
    source = Scripted(seen(pending("a"), worker=2))
    stale = seen(lost("a"), worker=2).stale(DOWN, NOON)
    async with anyio.create_task_group() as group:
        group.start_soon(told, source, stale, seen(worker=2))
        assert await source.wait(timeout=PATIENCE) == cluster(worker=2)
    with pytest.raises(IncompleteClusterError, match="no answer from"):
        await Scripted(seen(worker=2).stale(DOWN, NOON)).wait(timeout=0.05)


@pytest.mark.parametrize("error", [ForbiddenError("no", status=403), KeyError("a bug"), APIError("gone")])
async def test_what_ends_the_source_is_raised_as_it_is(error: Exception) -> None:
    source = Scripted(seen(worker=1))
    source.fail(error)
    with pytest.raises(type(error)) as caught:
        await source.wait(2, timeout=PATIENCE)
    assert caught.value is error


async def test_a_source_that_ends_by_itself_is_an_error() -> None:
    async def one() -> AsyncGenerator[Observation, None]:
        yield seen(worker=1)

    with pytest.raises(ConfigurationError, match="the observations of it ended"):
        await wait_until_complete(one(), WaitCondition(count=2), timeout=PATIENCE, source="it")


async def test_a_wait_that_is_cancelled_closes_the_watch() -> None:
    source = Scripted(seen(worker=1))
    task = asyncio.create_task(source.wait(2, timeout=PATIENCE))
    await source.seen(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.is_closed


async def test_a_wrong_argument_is_told_before_anybody_is_asked() -> None:
    source = Scripted(seen(worker=1))
    for wrong in ({"count": 0}, {"timeout": 0.0}, {"interval": 0.0}):
        with pytest.raises(ConfigurationError):
            await source.wait(**{"count": 2, **wrong})  # type: ignore[arg-type]
    assert source.taken == 0


# Reaching the tasks


@contextmanager
def ports(number: int) -> Iterator[list[socket.socket]]:
    """Sockets whose ports are taken, at which nobody listens yet."""
    taken = [socket.socket() for _ in range(number)]
    try:
        for one in taken:
            one.bind(("127.0.0.1", 0))
        yield taken
    finally:
        for one in taken:
            one.close()


def at(*sockets: socket.socket, **others: int) -> Observation:
    endpoints = [
        Endpoint(f"127.0.0.1:{one.getsockname()[1]}", name=f"pod-{number}", namespace="ml")
        for number, one in enumerate(sockets)
    ]
    jobs = {
        "worker": endpoints,
        **{job: list(cluster(x=size).endpoints["x"]) for job, size in others.items()},
    }
    return Observation(ClusterState.of(jobs))


async def test_tasks_that_accept_tcp_are_reachable() -> None:
    with ports(2) as (one, other):
        one.listen()
        other.listen()
        state = await Scripted(at(one, other)).wait(reachable=True, timeout=PATIENCE)
    assert len(state.members) == 2


async def test_a_closed_port_is_told_by_name_and_reason() -> None:
    with ports(2) as (one, closed):
        one.listen()
        port = closed.getsockname()[1]
        with pytest.raises(IncompleteClusterError) as caught:
            await Scripted(at(one, closed)).wait(2, reachable="tcp", timeout=0.5)
    assert caught.value.missing == {"ml/pod-1": f"no TCP connection to 127.0.0.1:{port}: Connection refused"}
    assert caught.value.found == {"worker": 1}
    assert caught.value.wanted == {"": 2}


async def test_a_name_that_is_not_found_is_told() -> None:
    with pytest.raises(IncompleteClusterError, match=r"no TCP connection to no-such-host\.invalid:1: "):
        await Scripted(
            Observation(ClusterState.from_spec(ClusterSpec({"worker": ["no-such-host.invalid:1"]})))
        ).wait(reachable="tcp", timeout=2.0)


async def test_a_task_that_listens_a_little_later_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 0.05)
    with ports(1) as (late,):
        async with anyio.create_task_group() as group:
            group.start_soon(_listening_after, late, 0.2)
            await Scripted(at(late)).wait(reachable="tcp", timeout=PATIENCE)


async def _listening_after(taken: socket.socket, seconds: float) -> None:
    await anyio.sleep(seconds)
    taken.listen()


async def test_only_the_tasks_that_are_wanted_have_to_be_reachable() -> None:
    with ports(1) as (one,):
        one.listen()
        source = Scripted(at(one, ps=1))
        await source.wait(jobs={"worker": 1}, reachable="tcp", timeout=PATIENCE)


async def test_a_member_that_goes_while_it_is_being_reached_is_not_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Scripted(seen(worker=2))

    async def going(addresses: Any, reach: Any) -> dict[str, str]:
        if len(addresses) == 2:
            source.tell(seen(pending("a"), worker=1))
            await source.seen(2)
        return {}

    monkeypatch.setattr(waiting, "find_unreachable", going)
    with pytest.raises(IncompleteClusterError, match="a: Pending"):
        await source.wait(reachable="tcp", timeout=0.2)


async def test_news_that_change_nothing_do_not_have_the_tasks_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, asked = Scripted(seen(worker=2)), []

    async def answered(addresses: Any, reach: Any) -> dict[str, str]:
        asked.append(addresses)
        source.tell(seen(worker=2))
        await source.seen(len(asked) + 1)
        return {}

    monkeypatch.setattr(waiting, "find_unreachable", answered)
    await source.wait(reachable="tcp", timeout=PATIENCE)
    assert len(asked) == 1


async def test_workers_that_answer_the_probe_are_reachable() -> None:
    async with TPUWorker() as worker, TPUWorker(services=[]) as other:
        state = ClusterState.from_spec(ClusterSpec({"worker": [worker.address]}))
        assert await Scripted(Observation(state)).wait(reachable="probe", timeout=PATIENCE) == state
        both = ClusterState.from_spec(ClusterSpec({"worker": [worker.address, other.address]}))
        with pytest.raises(IncompleteClusterError) as caught:
            await Scripted(Observation(both)).wait(reachable="probe", timeout=0.5)
    assert list(caught.value.missing) == [other.address]
    assert "is a gRPC server without GetStatus" in caught.value.missing[other.address]


# Watching, where it stands on the same observations


async def test_a_watch_shows_each_change_once_and_nothing_else() -> None:
    source = Scripted()
    shown: list[ClusterState] = []

    async def watch() -> None:
        async with aclosing(source.watch()) as states:
            async for state in states:
                shown.append(state)  # noqa: PERF401 - what was shown by then counts

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        source.tell(seen(worker=1))
        await told(
            source,
            seen(pending("a"), worker=1),
            seen(worker=2),
            seen(worker=2).stale(DOWN, NOON),
            seen(unready=(pending("a"),), worker=2),
            seen(worker=1),
        )
        group.cancel_scope.cancel()
    assert shown == [cluster(worker=1), cluster(worker=2), cluster(worker=1)]
    assert source.is_closed


async def test_a_watch_without_a_first_state_ends_at_its_deadline_with_the_reason() -> None:
    source = Scripted(Observation(None, error=DOWN, stale_since=NOON))
    source._timeout = 0.05
    with pytest.raises(DeadlineExceededError, match="no answer from") as caught:
        await anext(source.watch())
    assert caught.value.__cause__ is DOWN
