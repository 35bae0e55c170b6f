"""What every resolver promises, tested for all of them: results, deadlines, cancellation, errors, watches."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import aioresolve
from aioresolve import (
    ClusterResolver,
    ClusterSpec,
    ClusterState,
    ConfigurationError,
    DeadlineExceededError,
    Fleet,
    IncompleteClusterError,
    Progress,
    ResolveError,
    SimpleClusterResolver,
    TaskIdentityError,
    UnknownTaskError,
)
from aioresolve._core.concurrency import gather
from aioresolve.testing import Hang
from tests.kubernetes.loopback import attributes_of, error_chain

from .sources import SOURCES, Source

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""

POLL = 0.02
"""Seconds between two polls of a source that does not report changes."""

CALLS: dict[str, Callable[..., Awaitable[Any]]] = {
    "cluster_spec": lambda resolver, timeout: resolver.cluster_spec(timeout=timeout),
    "cluster_state": lambda resolver, timeout: resolver.cluster_state(timeout=timeout),
    "master": lambda resolver, timeout: resolver.master("worker", 0, timeout=timeout),
    "this_task": lambda resolver, timeout: resolver.this_task(timeout=timeout),
    "wait": lambda resolver, timeout: resolver.wait(2, timeout=timeout, interval=POLL),
}

each_call = pytest.mark.parametrize("name", CALLS)


async def first_state(resolver: ClusterResolver) -> ClusterState:
    async with aclosing(resolver.watch(interval=POLL)) as states:
        return await anext(states)


async def call(name: str, resolver: ClusterResolver) -> None:
    """Make a call that has time, or start a watch."""
    await (first_state(resolver) if name == "watch" else CALLS[name](resolver, PATIENCE))


def test_every_resolver_is_covered() -> None:
    classes = {name: getattr(aioresolve, name) for name in aioresolve.__all__ if name.endswith("Resolver")}
    concrete = {name for name, cls in classes.items() if not inspect.isabstract(cls)}
    covered = {name.partition("(")[0] for name in SOURCES}
    assert concrete == covered
    assert covered <= set(aioresolve.sync.__all__)


class TestResults:
    async def test_spec_is_that_of_the_state(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        spec, state = await resolver.cluster_spec(), await resolver.cluster_state()
        assert spec.job_tasks("worker") == source.addresses
        assert (spec, spec.jobs) == (state.spec, state.spec.jobs)
        assert [each.address for each in state.endpoints["worker"]] == source.addresses

    async def test_state_has_the_time_of_the_response(self, source: Source) -> None:
        state = await source.resolver(timeout=PATIENCE).cluster_state()
        assert state.observed_at is not None

    async def test_known_jobs_contain_those_of_the_cluster(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        spec = await resolver.cluster_spec()
        assert resolver.known_jobs is None or set(spec.jobs) <= set(resolver.known_jobs)

    async def test_master_is_the_address_of_the_task(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        assert await resolver.master("worker", 1, "http") == f"http://{source.addresses[1]}"
        resolver.rpc_layer = "grpcs"
        assert await resolver.master("worker", 0) == f"grpcs://{source.addresses[0]}"
        with pytest.raises(UnknownTaskError):
            await resolver.master("worker", 7)
        with pytest.raises(UnknownTaskError):
            await resolver.master("other", 0)

    async def test_calls_share_an_entered_resolver_and_it_can_be_entered_again(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        expected = await resolver.cluster_spec()
        for _ in range(2):
            async with resolver as entered:
                assert entered is resolver
                assert await gather([resolver.cluster_spec] * 5, limit=5) == [expected] * 5
        assert await resolver.cluster_spec() == expected

    async def test_results_can_be_pickled_and_copied(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        state = await resolver.cluster_state()
        for value in (
            state,
            state.spec,
            await resolver.this_task(state),
            state.members[0],
            state.diff(ClusterState.of({})),
            await resolver.fetch_observation(Progress()),
        ):
            for copied in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
                assert type(copied) is type(value)
                assert copied == value or str(copied) == str(value)


class TestDeadlines:
    @each_call
    @pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, True, "1"])
    async def test_invalid_timeout_is_rejected(self, name: str, timeout: Any, source: Source) -> None:
        with pytest.raises(ConfigurationError, match="timeout"):
            await CALLS[name](source.resolver(), timeout)

    @pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan, True, "1", None])
    def test_invalid_default_timeout_is_rejected(self, timeout: Any, source: Source) -> None:
        with pytest.raises(ConfigurationError, match="timeout"):
            source.resolver(timeout=timeout)
        with pytest.raises(ConfigurationError, match="timeout"):
            source.facade(timeout=timeout)

    @each_call
    async def test_call_ends_at_its_deadline(self, name: str, remote: Source) -> None:
        remote.server.inject(Hang(), times=None)
        with anyio.fail_after(PATIENCE), pytest.raises(DeadlineExceededError) as error:
            await CALLS[name](remote.resolver(timeout=PATIENCE), 0.3)
        assert error.value.timeout == 0.3
        assert isinstance(error.value, TimeoutError)
        assert error.value.retryable

    async def test_watch_ends_at_the_deadline_of_its_first_state(self, remote: Source) -> None:
        remote.server.inject(Hang(), times=None)
        with anyio.fail_after(PATIENCE), pytest.raises(DeadlineExceededError) as error:
            await first_state(remote.resolver(timeout=0.3))
        assert error.value.timeout == 0.3


class TestCancellation:
    @pytest.mark.usefixtures("no_leak")
    @pytest.mark.parametrize("name", [*CALLS, "watch"])
    async def test_cancelled_call_leaves_nothing_behind(self, name: str, remote: Source) -> None:
        remote.server.inject(Hang(), times=None)
        resolver = remote.resolver(timeout=PATIENCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, name, resolver)
            await anyio.to_thread.run_sync(remote.server.until, lambda: bool(remote.server.requests))
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(remote.server.until, lambda: remote.server.connections == 0)

    @pytest.mark.usefixtures("no_leak")
    async def test_cancelled_watch_of_a_quiet_cluster_leaves_nothing_behind(self, source: Source) -> None:
        seen = anyio.Event()

        async def follow() -> None:
            async with aclosing(source.resolver(timeout=PATIENCE).watch(interval=POLL)) as states:
                async for _ in states:
                    seen.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await seen.wait()
            tasks.cancel_scope.cancel()
        if source.server is not None:
            await anyio.to_thread.run_sync(source.server.until, lambda: source.server.connections == 0)


class TestErrors:
    @pytest.mark.parametrize("name", [*CALLS, "watch"])
    async def test_error_for_good_is_raised_at_once(self, name: str, changing: Source) -> None:
        changing.break_down()
        resolver = changing.resolver(timeout=PATIENCE)
        with anyio.fail_after(PATIENCE), pytest.raises(ResolveError) as error:
            await call(name, resolver)
        assert not isinstance(error.value, DeadlineExceededError)
        assert not error.value.retryable
        assert error.value.hint is not None
        assert isinstance(error.value, RuntimeError)

    async def test_error_has_no_secret_and_can_be_pickled(self, changing: Source) -> None:
        changing.break_down()
        with pytest.raises(ResolveError) as raised:
            await changing.resolver(timeout=PATIENCE).cluster_spec()
        for error in error_chain(raised.value):
            assert changing.secret is None or changing.secret not in "\n".join(attributes_of(error))
        copied = pickle.loads(pickle.dumps(raised.value))
        assert (type(copied), str(copied)) == (type(raised.value), str(raised.value))

    async def test_repr_names_the_class_and_no_secret(self, source: Source) -> None:
        resolver = source.resolver()
        text = repr(resolver)
        assert text.startswith(f"<{type(resolver).__name__} ")
        assert len(text) < 500
        assert source.secret is None or source.secret not in text

    async def test_repr_does_not_fail_with_the_source(self, changing: Source) -> None:
        resolver = changing.resolver()
        text = repr(resolver)
        changing.break_down()
        assert repr(resolver) == text

    async def test_unreachable_source_is_a_retryable_error(self, remote: Source) -> None:
        with remote.server.down(), pytest.raises(ResolveError) as error:
            await remote.resolver(timeout=0.3).cluster_spec()
        assert error.value.retryable


class TestWatch:
    async def test_first_state_is_the_current_one(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        assert await first_state(resolver) == await resolver.cluster_state()

    async def test_change_is_yielded_once(self, changing: Source) -> None:
        resolver = changing.resolver(timeout=PATIENCE)
        with anyio.fail_after(PATIENCE):
            async with aclosing(resolver.watch(interval=POLL)) as states:
                before = await anext(states)
                address = changing.grow()
                after = await anext(states)
        assert before.spec.job_tasks("worker") == changing.addresses
        assert after.spec.job_tasks("worker") == [*changing.addresses, address]
        assert [member.endpoint.address for member in after.diff(before).joined] == [address]

    async def test_two_watches_of_one_resolver_see_the_same(self, changing: Source) -> None:
        resolver = changing.resolver(timeout=PATIENCE)
        with anyio.fail_after(PATIENCE):
            async with (
                resolver,
                aclosing(resolver.watch(interval=POLL)) as one,
                aclosing(resolver.watch(interval=POLL)) as other,
            ):
                assert await anext(one) == await anext(other)
                changing.grow()
                assert await anext(one) == await anext(other)


class TestWait:
    async def test_complete_cluster_is_returned(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        expected = await resolver.cluster_state()
        assert await resolver.wait(2, timeout=PATIENCE, interval=POLL) == expected
        assert await resolver.wait(jobs={"worker": 2}, timeout=PATIENCE, interval=POLL) == expected

    async def test_missing_task_ends_at_the_deadline(self, source: Source) -> None:
        with anyio.fail_after(PATIENCE), pytest.raises(IncompleteClusterError) as error:
            await source.resolver(timeout=PATIENCE).wait(jobs={"worker": 3}, timeout=2.0, interval=POLL)
        assert error.value.wanted == {"worker": 3}
        assert error.value.found == {"worker": 2}

    async def test_task_that_joins_completes_the_cluster(self, changing: Source) -> None:
        resolver = changing.resolver(timeout=PATIENCE)
        found: list[str] = []

        async def wait() -> None:
            state = await resolver.wait(jobs={"worker": 3}, timeout=PATIENCE, interval=POLL)
            found.append(state.spec.task_address("worker", 2))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            found.append(changing.grow())
        assert len(found) == 2
        assert found[0] == found[1]

    async def test_unknown_job_is_rejected_at_once_if_jobs_are_known(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        expected = IncompleteClusterError if resolver.known_jobs is None else ConfigurationError
        with pytest.raises(expected, match="evaluators"):
            await resolver.wait(jobs={"evaluators": 1}, timeout=0.5, interval=POLL)


class TestFleet:
    async def test_target_of_a_fleet_has_the_same_cluster(self, source: Source) -> None:
        expected = await source.resolver(timeout=PATIENCE).cluster_state()
        async with Fleet({"target": source.resolver(timeout=PATIENCE)}) as fleet:
            statuses = await fleet.resolve()
        assert statuses["target"].error is None
        assert statuses["target"].state == expected

    async def test_target_that_fails_has_the_error_and_harms_no_other(self, changing: Source) -> None:
        changing.break_down()
        spec = ClusterSpec({"worker": ["a:1"]})
        targets = {"failing": changing.resolver(timeout=PATIENCE), "other": SimpleClusterResolver(spec)}
        async with Fleet(targets) as fleet:
            statuses = await fleet.resolve()
        assert isinstance(statuses["failing"].error, ResolveError)
        state = statuses["other"].state
        assert state is not None
        assert state.spec == spec


class TestThisTask:
    async def test_own_task_is_found(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        task = await resolver.this_task()
        assert (task.job, task.index, task.address) == ("worker", 1, source.addresses[1])
        assert (task.rank, task.num_tasks) == (1, 2)
        assert await resolver.this_task(await resolver.cluster_state()) == task

    async def test_task_that_is_set_decides_or_is_contradicted(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        resolver.task_type, resolver.task_id = "worker", 0
        if "SLURM_PROCID" in source.environ:
            with pytest.raises(TaskIdentityError, match=r"\$SLURM_PROCID is '1'"):
                await resolver.this_task()
        else:
            assert (await resolver.this_task()).index == 0

    async def test_task_that_does_not_exist_is_an_error(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        resolver.task_type, resolver.task_id = "worker", 7
        with pytest.raises(UnknownTaskError, match="no task 7 in job 'worker'"):
            await resolver.this_task()
