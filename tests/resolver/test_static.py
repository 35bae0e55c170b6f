"""`SimpleClusterResolver` and `UnionClusterResolver`."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from aioresolve import ClusterResolver, Progress, SimpleClusterResolver, UnionClusterResolver, Want
from aioresolve.errors import (
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidClusterError,
    ResolveError,
    TaskConflictError,
)
from aioresolve.spec import (
    ClusterSpec,
    ClusterState,
    ControllerStatus,
    Endpoint,
    ExpectedTasks,
    Missing,
    Observation,
)
from tests.resolver.shown import PATIENCE, Shown
from tests.virtual_time import in_virtual_time

WORKERS = ClusterSpec({"worker": ["a:1", "b:2"]})
TRAINING = ClusterSpec({"worker": ["a:1", "b:2"], "ps": {3: "c:4"}})
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def simple(cluster: dict[str, Any], **options: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(cluster), **options)


class Scripted(ClusterResolver):
    """Awaits `before` and returns a state; counts how often it is entered and closed."""

    def __init__(
        self, state: ClusterState | None = None, before: Callable[[Progress], Awaitable[object]] | None = None
    ) -> None:
        super().__init__()
        self._state = state or ClusterState.of({})
        self._before = before
        self.entered = self.closed = 0

    async def observe(self, want: Want, progress: Progress) -> Observation:
        if self._before is not None:
            await self._before(progress)
        return Observation(self._state)

    async def __aenter__(self) -> Self:
        self.entered += 1
        return self

    async def aclose(self) -> None:
        self.closed += 1


class TestSimpleClusterResolver:
    def test_other_arguments_than_a_spec_or_resolvers_are_rejected(self) -> None:
        invalid: Any
        for invalid in (None, {"worker": ["a:1"]}, "a:1", TRAINING.as_cluster_def()):
            kind = type(invalid).__name__
            with pytest.raises(InvalidClusterError, match=f"cluster_spec must be a ClusterSpec; got {kind}"):
                SimpleClusterResolver(invalid)
        for invalid in (None, 8470):
            with pytest.raises(InvalidClusterError, match=f"master must be a str, .*; got {invalid}"):
                SimpleClusterResolver(WORKERS, invalid)
        for invalid in (None, WORKERS, SimpleClusterResolver):
            with pytest.raises(InvalidClusterError, match="takes resolvers of aioresolve;"):
                UnionClusterResolver(SimpleClusterResolver(WORKERS), invalid)
        with pytest.raises(ConfigurationError, match="at least one resolver"):
            UnionClusterResolver()

    async def test_accelerators_are_the_given_ones(self) -> None:
        resolver = SimpleClusterResolver(TRAINING, num_accelerators={"GPU": 8})
        assert await resolver.num_accelerators() == {"GPU": 8}
        assert await resolver.num_accelerators("worker", 0, object()) == {"GPU": 8}
        bare = SimpleClusterResolver(TRAINING)
        assert await bare.num_accelerators() == {}
        assert await UnionClusterResolver(resolver, bare).num_accelerators() == {"GPU": 8}

    async def test_master_is_the_given_task_or_the_given_master(self) -> None:
        resolver = SimpleClusterResolver(TRAINING, master="m:9", task_type="worker", task_id=0)
        assert await resolver.master() == "m:9"
        assert await resolver.master("ps", 3) == "c:4"
        assert await resolver.master("ps") == "m:9"
        assert await resolver.master("worker", 1, "grpc") == "grpc://b:2"
        resolver.rpc_layer = "grpc"
        assert await resolver.master() == "grpc://m:9"


class TestUnionClusterResolver:
    async def test_jobs_are_merged_in_the_order_of_first_occurrence(self) -> None:
        union = UnionClusterResolver(
            simple({"worker": ["a:1"]}), simple({"worker": []}), simple({"ps": ["b:2"], "worker": ["c:3"]})
        )
        spec = await union.cluster_spec()
        assert spec.as_dict() == {"worker": ["a:1", "c:3"], "ps": ["b:2"]}
        assert spec.jobs == ["worker", "ps"]
        union = UnionClusterResolver(simple({"worker": {5: "f:6"}}), simple({"worker": ["a:1", "b:2"]}))
        assert (await union.cluster_spec()).as_dict() == {"worker": {0: "a:1", 1: "b:2", 5: "f:6"}}

    def test_attributes_are_those_of_the_first_resolver_unless_they_are_set(self) -> None:
        first = SimpleClusterResolver(WORKERS, "", "worker", 1, "google", rpc_layer="grpc")
        union = UnionClusterResolver(
            first, SimpleClusterResolver(WORKERS, "", "ps", 2), task_type="ps", task_id=0, rpc_layer=""
        )
        assert (union.task_type, union.task_id, union.rpc_layer) == ("ps", 0, "")
        for name in ("task_type", "task_id", "rpc_layer"):
            setattr(union, name, None)
        assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 1, "grpc")
        assert union.environment == "google"

    async def test_duplicate_index_of_a_sparse_job_raises_an_error(self) -> None:
        union = UnionClusterResolver(
            simple({"worker": {0: "a:1", 5: "f:6"}}), simple({"worker": ["a:1", "b:2"]})
        )
        for resolve in (union.cluster_spec, union.cluster_state, union.watch().__anext__):
            with pytest.raises(TaskConflictError) as conflict:
                await resolve()
            assert str(conflict.value).startswith(
                "job 'worker': more than one resolver of the union returned task 0;"
            )
            assert isinstance(conflict.value, KeyError)
            assert isinstance(conflict.value, ResolveError)

    async def test_state_keeps_identities_and_the_oldest_time(self) -> None:
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

    async def test_master_is_the_given_task_or_the_master_of_the_first_resolver(self) -> None:
        first = SimpleClusterResolver(WORKERS, master="m:9", rpc_layer="grpc")
        union = UnionClusterResolver(first, simple({"ps": ["c:3"]}, master="n:8"))
        assert await union.master("ps") == "grpc://m:9"
        assert await union.master(rpc_layer="grpcs") == "grpcs://m:9"
        assert await union.master("ps", 0) == "c:3"
        union.rpc_layer = "grpcs"
        assert await union.master("ps", 0) == "grpcs://c:3"


class TestUnionCalls:
    async def test_resolvers_run_concurrently(self) -> None:
        meeting = asyncio.Barrier(3)

        async def meet(progress: Progress) -> None:
            await meeting.wait()

        union = UnionClusterResolver(*(Scripted(before=meet) for _ in range(3)), timeout=5)
        assert await union.cluster_spec() == ClusterSpec({})

    @in_virtual_time
    async def test_deadline_error_lists_the_resolvers_that_responded_and_the_others(self) -> None:
        async def respond(progress: Progress) -> None:
            progress.done("first", "2 pods")

        async def hang(progress: Progress) -> None:
            progress.waiting("second", "connecting")
            await anyio.sleep_forever()

        union = UnionClusterResolver(Scripted(before=respond), Scripted(before=hang), timeout=0.5)
        for resolve in (union.cluster_spec, union.cluster_state):
            with pytest.raises(DeadlineExceededError) as late:
                await resolve()
            assert late.value.reached == {"first": "2 pods"}
            assert late.value.missing == {"second": "connecting"}

    async def test_entering_the_union_enters_each_resolver_once(self) -> None:
        one, other = Scripted(), Scripted()
        async with UnionClusterResolver(one, other, one) as union:
            assert (one.entered, other.entered, one.closed, other.closed) == (1, 1, 0, 0)
            with pytest.raises(ConfigurationError, match="is already entered"):
                await union.__aenter__()
        await union.aclose()
        assert (one.closed, other.closed) == (1, 1)

    async def test_failure_to_enter_a_resolver_closes_those_before_it(self) -> None:
        class Broken(Scripted):
            async def __aenter__(self) -> Self:
                raise ConfigurationError("broken")

        one = Scripted()
        union = UnionClusterResolver(one, Broken())
        with pytest.raises(ConfigurationError, match="broken"):
            await union.__aenter__()
        assert (one.entered, one.closed) == (1, 1)


def observe(**tasks: Any) -> Observation:
    return Observation(ClusterState.from_spec(ClusterSpec(tasks)))


class TestWatchingUnionClusterResolver:
    async def test_states_are_merged_once_each_resolver_has_one_and_after_each_change(self) -> None:
        one, other = Shown(), Shown()
        with anyio.fail_after(PATIENCE):
            async with aclosing(UnionClusterResolver(one, other).watch(interval=7.0)) as states:
                one.show(observe(worker=["a:1"]))
                other.show(observe(worker=["b:2"], ps=["c:3"]))
                assert (await anext(states)).spec == ClusterSpec({"worker": ["a:1", "b:2"], "ps": ["c:3"]})
                other.show(observe(worker=[], ps=["c:3"]))
                assert (await anext(states)).spec == ClusterSpec({"worker": ["a:1"], "ps": ["c:3"]})
                one.show(observe(worker=["a:1", "d:4"]))
                assert (await anext(states)).spec == ClusterSpec({"worker": ["a:1", "d:4"], "ps": ["c:3"]})
            assert one.is_closed
            assert other.is_closed
        assert one.intervals == other.intervals == [7.0]

    async def test_there_is_no_state_until_each_resolver_has_one(self) -> None:
        one, other = Shown(), Shown()
        failure = ConnectionFailedError("unreachable")
        async with aclosing(UnionClusterResolver(one, other).observations()) as observations:
            one.show(observe(worker=["a:1"]))
            first = await anext(observations)
            other.show(Observation(None, error=failure, stale_since=NOON))
            second = await anext(observations)
        assert (first.state, second.state) == (None, None)
        assert (first.error, second.error, second.stale_since) == (None, failure, NOON)

    async def test_all_parts_of_observations_are_merged_unless_a_resolver_has_other_tasks(self) -> None:
        a, b = Missing("worker", "a", "Pending"), Missing("ps", "b", "Pending")
        two, ended = ExpectedTasks(2, "a label", 1), (ControllerStatus("failed", "Job ml/train"),)
        first, second = ConnectionFailedError("first"), ConnectionFailedError("second")
        both, jobs = {"worker": two, "ps": two}, {"worker": ended, "chief": ended}
        before = NOON - timedelta(minutes=1)
        observations = [
            Observation(None, (a,), (a,), first, NOON, both, jobs, polled_at=9.0),
            Observation(None, (), (b,), second, before, {"worker": two}, {"worker": ended}, failed=(a,)),
            replace(observe(chief=["a:1"]), absent=(b,), polled_at=7.0),
        ]
        merged = await UnionClusterResolver(*map(Shown, observations)).observe(Want(), Progress())
        four, controllers = {"worker": ExpectedTasks(4, "a label", 2)}, {"worker": ended * 2}
        assert merged == Observation(None, (a, b), (a, b), first, before, four, controllers)
        assert (merged.failed, merged.polled_at) == ((a,), 7.0)

    async def test_union_is_stale_while_one_resolver_is(self) -> None:
        one, other = Shown(), Shown()
        failure = ConnectionFailedError("gone")
        one.show(observe(worker=["a:1"]))
        other.show(observe(worker=["b:2"]))
        async with aclosing(UnionClusterResolver(one, other).observations()) as observations:
            while (before := await anext(observations)).state is None:
                pass
            other.show(other.last.stale(failure, NOON))
            stale = await anext(observations)
            one.show(observe(worker=["c:3"]))
            changed = await anext(observations)
            other.show(observe(worker=["b:2"]))
            recovered = await anext(observations)
        assert stale == replace(before, error=failure, stale_since=NOON)
        assert changed.state is not None
        assert changed.state.spec == ClusterSpec({"worker": ["c:3", "b:2"]})
        assert (changed.error, recovered.error, recovered.stale_since) == (failure, None, None)

    async def test_later_conflict_is_yielded_with_the_previous_state(self) -> None:
        one, other = Shown(), Shown()
        one.show(observe(worker={0: "a:1", 5: "b:2"}))
        other.show(observe(worker={6: "c:3"}))
        async with aclosing(UnionClusterResolver(one, other).observations()) as observations:
            while (before := await anext(observations)).state is None:
                pass
            other.show(observe(worker={5: "b:2", 6: "c:3"}))
            conflict = await anext(observations)
            one.show(observe(worker={0: "a:1"}))
            after = await anext(observations)
        assert isinstance(conflict.error, TaskConflictError)
        assert conflict.state == before.state == after.state
        assert conflict.stale_since is not None
        assert (after.error, after.stale_since) == (None, None)
