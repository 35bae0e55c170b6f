"""SimpleClusterResolver and UnionClusterResolver."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.lowlevel
import pytest

from aioresolve._core.concurrency import Newest
from aioresolve._core.retry import within_deadline
from aioresolve.errors import (
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    FailedClusterError,
    IncompleteClusterError,
    InvalidClusterError,
    ResolveError,
    TaskConflictError,
    UnknownTaskError,
)
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.static import SimpleClusterResolver
from aioresolve.resolver.union import UnionClusterResolver
from aioresolve.spec import ClusterSpec, ClusterState, Endpoint, Missing, Observation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve._core.retry import Progress

WORKERS = ClusterSpec({"worker": ["a:1", "b:2"]})
TRAINING = ClusterSpec({"worker": ["a:1", "b:2"], "ps": {3: "c:4"}})
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def simple(cluster: dict[str, Any], **options: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(cluster), **options)


class Scripted(ClusterResolver):
    """Answers with a state, after `before` has passed; counts how often it is entered and closed."""

    def __init__(
        self, state: ClusterState | None = None, before: Callable[[Progress], Awaitable[object]] | None = None
    ) -> None:
        super().__init__()
        self._state = state or ClusterState.of({})
        self._before = before
        self.entered = self.closed = 0

    async def fetch_state(self, progress: Progress) -> ClusterState:
        if self._before is not None:
            await self._before(progress)
        return self._state

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def aclose(self) -> None:
        self.closed += 1


class TestSimple:
    async def test_it_answers_with_the_spec_it_was_given(self) -> None:
        assert await SimpleClusterResolver(TRAINING).cluster_spec() is TRAINING

    async def test_its_state_knows_the_addresses_and_the_moment(self) -> None:
        state = await SimpleClusterResolver(TRAINING).cluster_state()
        assert state == ClusterState.from_spec(TRAINING)
        assert state.observed_at is not None

    async def test_it_keeps_all_it_was_told(self) -> None:
        resolver = SimpleClusterResolver(
            TRAINING, "a:1", "worker", 1, "google", {"GPU": 8}, "grpc", timeout=5
        )
        assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
        assert resolver.environment == "google"
        assert resolver.timeout == 5
        assert await resolver.num_accelerators() == {"GPU": 8}
        assert await resolver.num_accelerators("worker", 0, object()) == {"GPU": 8}

    async def test_untold_accelerators_are_none_at_all(self) -> None:
        assert await SimpleClusterResolver(TRAINING).num_accelerators() == {}

    async def test_what_its_accelerators_were_made_from_may_change_afterwards(self) -> None:
        devices = {"GPU": 8}
        resolver = SimpleClusterResolver(TRAINING, num_accelerators=devices)
        devices.clear()
        (await resolver.num_accelerators()).clear()
        assert await resolver.num_accelerators() == {"GPU": 8}

    async def test_its_master_is_the_task_named_or_the_one_it_was_told(self) -> None:
        resolver = SimpleClusterResolver(TRAINING, master="m:9", task_type="worker", task_id=0)
        assert await resolver.master() == "m:9"
        assert await resolver.master("ps", 3) == "c:4"
        assert await resolver.master("ps") == "m:9"
        assert await resolver.master("worker", 1, "grpc") == "grpc://b:2"
        resolver.rpc_layer = "grpc"
        assert await resolver.master() == "grpc://m:9"

    async def test_the_master_of_an_unknown_task_is_an_error(self) -> None:
        with pytest.raises(UnknownTaskError, match="no task 7 in job 'worker'"):
            await SimpleClusterResolver(TRAINING).master("worker", 7)

    @pytest.mark.parametrize("cluster", [None, {"worker": ["a:1"]}, "a:1", TRAINING.as_cluster_def()])
    def test_what_is_no_spec_is_refused(self, cluster: Any) -> None:
        kind = type(cluster).__name__
        with pytest.raises(InvalidClusterError, match=f"cluster_spec must be a ClusterSpec; got {kind}"):
            SimpleClusterResolver(cluster)

    def test_a_master_that_is_no_text_is_refused(self) -> None:
        master: Any = None
        with pytest.raises(TypeError, match="master must be a str"):
            SimpleClusterResolver(TRAINING, master)


class TestWhatAUnionAnswers:
    async def test_jobs_come_together_in_the_order_they_are_met(self) -> None:
        union = UnionClusterResolver(simple({"worker": ["a:1"]}), simple({"ps": ["b:2"], "worker": ["c:3"]}))
        spec = await union.cluster_spec()
        assert spec.as_dict() == {"worker": ["a:1", "c:3"], "ps": ["b:2"]}
        assert spec.jobs == ["worker", "ps"]

    async def test_sparse_tasks_keep_their_indices_and_so_do_the_dense_beside_them(self) -> None:
        union = UnionClusterResolver(simple({"worker": {5: "f:6"}}), simple({"worker": ["a:1", "b:2"]}))
        assert (await union.cluster_spec()).as_dict() == {"worker": {0: "a:1", 1: "b:2", 5: "f:6"}}

    async def test_a_sparse_task_taken_twice_is_an_error(self) -> None:
        union = UnionClusterResolver(
            simple({"worker": {0: "a:1", 5: "f:6"}}), simple({"worker": ["a:1", "b:2"]})
        )
        for ask in (union.cluster_spec, union.cluster_state):
            with pytest.raises(TaskConflictError) as conflict:
                await ask()
            assert str(conflict.value).startswith(
                "job 'worker': more than one resolver of the union returned task 0;"
            )
            assert (conflict.value.job, conflict.value.indices) == ("worker", (0,))
            assert isinstance(conflict.value, KeyError)
            assert isinstance(conflict.value, ResolveError)

    async def test_a_job_without_tasks_adds_nothing(self) -> None:
        union = UnionClusterResolver(
            simple({"worker": ["a:1"]}), simple({"worker": []}), simple({"worker": ["b:2"]})
        )
        assert (await union.cluster_spec()).as_dict() == {"worker": ["a:1", "b:2"]}

    async def test_its_state_keeps_identities_and_dates_from_the_oldest_answer(self) -> None:
        a, b = Endpoint("a:1", uid="u0", index=7), Endpoint("b:2", uid="u1")
        union = UnionClusterResolver(
            Scripted(ClusterState.of({"worker": [a]}, version="42", observed_at=NOON)),
            Scripted(ClusterState.of({"worker": {3: b}}, observed_at=NOON - timedelta(seconds=2))),
            Scripted(ClusterState.of({"ps": []})),
        )
        state = await union.cluster_state()
        assert state.endpoints == {"worker": (a, b), "ps": ()}
        assert state.spec == ClusterSpec({"worker": {0: "a:1", 3: "b:2"}, "ps": []})
        assert state.observed_at == NOON - timedelta(seconds=2)
        assert state.version is None

    async def test_its_master_is_the_task_named_or_the_first_resolvers(self) -> None:
        first = SimpleClusterResolver(WORKERS, master="m:9", rpc_layer="grpc")
        union = UnionClusterResolver(first, simple({"ps": ["c:3"]}, master="n:8"))
        assert await union.master() == "grpc://m:9"
        assert await union.master(rpc_layer="grpcs") == "grpcs://m:9"
        assert await union.master("ps", 0) == "c:3"
        union.rpc_layer = "grpcs"
        assert await union.master("ps", 0) == "grpcs://c:3"

    def test_what_is_not_overridden_is_the_first_resolvers(self) -> None:
        first = SimpleClusterResolver(WORKERS, "", "worker", 1, "google", rpc_layer="grpc")
        union = UnionClusterResolver(first, SimpleClusterResolver(WORKERS, "", "ps", 2))
        assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 1, "grpc")
        assert union.environment == "google"

    @pytest.mark.parametrize("task_id", [0, 7])
    def test_any_override_but_none_counts(self, task_id: int) -> None:
        first = SimpleClusterResolver(WORKERS, "", "worker", 1, rpc_layer="grpc")
        union = UnionClusterResolver(first, task_type="ps", task_id=task_id, rpc_layer="")
        assert (union.task_type, union.task_id, union.rpc_layer) == ("ps", task_id, "")
        for name in ("task_type", "task_id", "rpc_layer"):
            setattr(union, name, None)
        assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 1, "grpc")

    def test_a_union_of_nothing_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="at least one resolver"):
            UnionClusterResolver()

    @pytest.mark.parametrize("stranger", [None, WORKERS, SimpleClusterResolver])
    def test_a_union_with_a_stranger_is_refused(self, stranger: Any) -> None:
        with pytest.raises(
            InvalidClusterError,
            match=r"takes instances of aioresolve\.ClusterResolver; got",
        ):
            UnionClusterResolver(SimpleClusterResolver(WORKERS), stranger)


class TestHowAUnionAsks:
    async def test_all_resolvers_are_asked_at_the_same_time(self) -> None:
        asked = [anyio.Event() for _ in range(3)]

        def meeting(mine: anyio.Event) -> Callable[[Progress], Awaitable[object]]:
            async def wait_for_the_others(progress: Progress) -> None:
                mine.set()
                for event in asked:
                    await event.wait()

            return wait_for_the_others

        union = UnionClusterResolver(*(Scripted(before=meeting(event)) for event in asked), timeout=5)
        assert await union.cluster_spec() == ClusterSpec({})
        assert await union.cluster_state() == ClusterState.of({})

    async def test_the_first_error_is_raised_as_it_is_and_ends_the_other_calls(self) -> None:
        waiting, cancelled = anyio.Event(), anyio.Event()

        async def wait(progress: Progress) -> None:
            waiting.set()
            try:
                await anyio.sleep_forever()
            finally:
                cancelled.set()

        async def fail(progress: Progress) -> None:
            await waiting.wait()
            raise UnknownTaskError("no such thing")

        with pytest.raises(UnknownTaskError, match="no such thing"):
            await UnionClusterResolver(Scripted(before=wait), Scripted(before=fail)).cluster_spec()
        assert cancelled.is_set()

    async def test_its_deadline_says_which_resolver_answered_and_which_did_not(self) -> None:
        async def answer(progress: Progress) -> None:
            progress.done("first", "2 pods")

        async def hang(progress: Progress) -> None:
            progress.waiting("second", "connecting")
            await anyio.sleep_forever()

        union = UnionClusterResolver(Scripted(before=answer), Scripted(before=hang), timeout=0.05)
        for ask in (union.cluster_spec, union.cluster_state):
            with pytest.raises(DeadlineExceededError) as late:
                await ask()
            assert late.value.reached == {"first": "2 pods"}
            assert late.value.missing == {"second": "connecting"}

    async def test_entering_it_enters_each_resolver_once(self) -> None:
        one, other = Scripted(), Scripted()
        async with UnionClusterResolver(one, other, one) as union:
            assert await union.cluster_spec() == ClusterSpec({})
            assert (one.entered, other.entered, one.closed, other.closed) == (1, 1, 0, 0)
        assert (one.closed, other.closed) == (1, 1)
        await union.aclose()
        assert (one.closed, other.closed) == (1, 1)

    async def test_it_may_be_entered_again_but_not_twice_at_once(self) -> None:
        union = UnionClusterResolver(Scripted())
        async with union:
            with pytest.raises(ConfigurationError, match="is already entered"):
                await union.__aenter__()
        async with union:
            pass

    async def test_if_one_cannot_be_entered_those_before_are_closed(self) -> None:
        class Broken(Scripted):
            async def __aenter__(self) -> Self:
                raise ConfigurationError("is entered already")

        one = Scripted()
        union = UnionClusterResolver(one, Broken())
        with pytest.raises(ConfigurationError, match="is entered already"):
            await union.__aenter__()
        assert (one.entered, one.closed) == (1, 1)


PATIENCE = 5.0


def seen(**tasks: Any) -> Observation:
    return Observation(ClusterState.from_spec(ClusterSpec(tasks)))


class Told(ClusterResolver):
    """Shows what a test tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: Newest[Observation] = Newest()
        self.last = Observation(None)
        self.intervals: list[float] = []
        self.closed = anyio.Event()

    def tell(self, observation: Observation) -> None:
        self.last = observation
        self.newest.put(observation)

    async def fetch_state(self, progress: Progress) -> ClusterState:
        assert self.last.state is not None
        return self.last.state

    async def fetch_observation(self, progress: Progress) -> Observation:
        return self.last

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        self.intervals.append(interval)
        try:
            while True:
                yield await self.newest.taken()
        finally:
            self.closed.set()


class TestWatchingSimple:
    async def test_it_shows_its_cluster_and_then_nothing_for_ever(self) -> None:
        async with aclosing(SimpleClusterResolver(TRAINING).observations(interval=0.001)) as observations:
            first = await anext(observations)
            assert first.state == ClusterState.from_spec(TRAINING)
            with anyio.move_on_after(0.05) as scope:
                await anext(observations)
        assert scope.cancelled_caught

    async def test_it_is_waited_for_as_any_other(self) -> None:
        assert (await SimpleClusterResolver(TRAINING).wait(timeout=PATIENCE)).spec == TRAINING
        with pytest.raises(IncompleteClusterError, match="3 of 4 tasks in total"):
            await SimpleClusterResolver(TRAINING).wait(4, timeout=0.05)


class TestWatchingAUnion:
    async def test_it_shows_all_once_each_has_answered_and_whenever_one_changes(self) -> None:
        one, other = Told(), Told()
        with anyio.fail_after(PATIENCE):
            async with aclosing(UnionClusterResolver(one, other).watch(interval=7.0)) as states:
                one.tell(seen(worker=["a:1"]))
                other.tell(seen(worker=["b:2"], ps=["c:3"]))
                assert (await anext(states)).spec == ClusterSpec({"worker": ["a:1", "b:2"], "ps": ["c:3"]})
                other.tell(seen(worker=[], ps=["c:3"]))
                assert (await anext(states)).spec == ClusterSpec({"worker": ["a:1"], "ps": ["c:3"]})
                one.tell(seen(worker=["a:1", "d:4"]))
                assert (await anext(states)).spec == ClusterSpec({"worker": ["a:1", "d:4"], "ps": ["c:3"]})
            await one.closed.wait()
            await other.closed.wait()
        assert one.intervals == other.intervals == [7.0]

    async def test_before_one_has_answered_there_is_no_state_but_the_others_words(self) -> None:
        one, other = Told(), Told()
        failure = ConnectionFailedError("nobody there")
        async with aclosing(UnionClusterResolver(one, other).observations()) as observations:
            one.tell(replace(seen(worker=["a:1"]), absent=(Missing("worker", "x", "Pending"),)))
            first = await anext(observations)
            other.tell(Observation(None, error=failure, stale_since=NOON))
            second = await anext(observations)
        assert (first.state, second.state) == (None, None)
        assert (first.error, second.error, second.stale_since) == (None, failure, NOON)
        assert [missing.name for missing in first.absent] == ["x"]

    async def test_who_is_missing_and_why_and_since_when_is_carried_along(self) -> None:
        one, other = Told(), Told()
        absent = [Missing("worker", name, "Pending") for name in "ab"]
        unready = [Missing("worker", name, "not ready") for name in "cd"]
        errors = [ConnectionFailedError("first"), ConnectionFailedError("second")]
        for source, index in ((one, 0), (other, 1)):
            source.tell(
                Observation(
                    ClusterState.from_spec(WORKERS),
                    (absent[index],),
                    (unready[index],),
                    errors[index],
                    NOON - timedelta(minutes=index),
                )
            )
        merged = await within_deadline(PATIENCE, "a test", UnionClusterResolver(one, other).fetch_observation)
        assert merged.state == ClusterState.from_spec(ClusterSpec({"worker": ["a:1", "b:2", "a:1", "b:2"]}))
        assert merged.absent == tuple(absent)
        assert merged.unready == tuple(unready)
        assert (merged.error, merged.stale_since) == (errors[0], NOON - timedelta(minutes=1))

    async def test_it_is_stale_while_one_of_them_is(self) -> None:
        one, other = Told(), Told()
        failure = ConnectionFailedError("gone")
        one.tell(seen(worker=["a:1"]))
        other.tell(seen(worker=["b:2"]))
        async with aclosing(UnionClusterResolver(one, other).observations()) as observations:
            while (before := await anext(observations)).state is None:
                pass
            other.tell(other.last.stale(failure, NOON))
            stale = await anext(observations)
            one.tell(seen(worker=["c:3"]))
            news = await anext(observations)
            other.tell(seen(worker=["b:2"]))
            well = await anext(observations)
        assert stale == replace(before, error=failure, stale_since=NOON)
        assert news.state is not None
        assert news.state.spec == ClusterSpec({"worker": ["c:3", "b:2"]})
        assert (news.error, well.error, well.stale_since) == (failure, None, None)

    async def test_an_error_that_does_not_pass_ends_it_and_the_others(self) -> None:
        one, other = Told(), Told()
        states = UnionClusterResolver(one, other).watch()
        one.tell(seen(worker=["a:1"]))
        other.tell(seen(worker=["b:2"]))
        await anext(states)
        other.newest.end(TaskConflictError("for good"))
        with pytest.raises(TaskConflictError, match="for good"):
            await anext(states)
        assert one.closed.is_set()

    async def test_a_task_taken_twice_from_the_first_is_an_error(self) -> None:
        one, other = Told(), Told()
        one.tell(seen(worker={0: "a:1", 5: "b:2"}))
        other.tell(seen(worker={5: "c:3"}))
        with pytest.raises(TaskConflictError, match="returned task 5"):
            await anext(UnionClusterResolver(one, other).watch())

    async def test_a_task_taken_twice_for_a_moment_is_told_and_survived(self) -> None:
        one, other = Told(), Told()
        one.tell(seen(worker={0: "a:1", 5: "b:2"}))
        other.tell(seen(worker={6: "c:3"}))
        async with aclosing(UnionClusterResolver(one, other).observations()) as observations:
            while (before := await anext(observations)).state is None:
                pass
            other.tell(seen(worker={5: "b:2", 6: "c:3"}))
            conflict = await anext(observations)
            one.tell(seen(worker={0: "a:1"}))
            after = await anext(observations)
        assert isinstance(conflict.error, TaskConflictError)
        assert conflict.state == before.state == after.state
        assert conflict.stale_since is not None
        assert (after.error, after.stale_since) == (None, None)

    async def test_a_slow_consumer_sees_the_newest(self) -> None:
        source = Told()
        union = UnionClusterResolver(source, simple({"ps": ["p:1"]}))
        async with aclosing(union.watch()) as states:
            source.tell(seen(worker=["a:1"]))
            await anext(states)
            for number in range(50):
                source.tell(seen(worker=[f"a:{number + 1}"]))
                await anyio.lowlevel.checkpoint()
            skipped = [await anext(states)]
            while skipped[-1].spec.task_address("worker", 0) != "a:50":
                skipped.append(await anext(states))
        assert len(skipped) < 5

    async def test_waiting_for_it_waits_for_each(self) -> None:
        one, other = Told(), Told()
        one.tell(seen(worker=["a:1"]))
        with pytest.raises(IncompleteClusterError):
            await UnionClusterResolver(one, other).wait(timeout=0.05)
        one, other = Told(), Told()
        one.tell(replace(seen(worker=[]), absent=(Missing("worker", "x", "Failed", is_final=True),)))
        with pytest.raises(IncompleteClusterError):  # the other may have enough
            await UnionClusterResolver(one, other).wait(1, timeout=0.05)
        one.tell(one.last)
        other.tell(seen(worker=[]))
        with pytest.raises(FailedClusterError, match="x: Failed"):
            await UnionClusterResolver(one, other).wait(1, timeout=PATIENCE)
