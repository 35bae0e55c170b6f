"""What every resolver promises, tested for all of them: results, deadlines, cancellation, errors, watches."""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import anyio
import anyio.to_thread
import cloudpickle
import pytest

import aioresolve
from aioresolve import (
    ClusterResolver,
    ClusterSpec,
    ClusterState,
    ConfigurationError,
    DeadlineExceededError,
    IncompleteClusterError,
    ResolveError,
    SimpleClusterResolver,
    TaskIdentityError,
    UnknownTaskError,
)
from aioresolve.testing import Hang
from tests.kubernetes.loopback import attributes_of, error_chain

from .sources import SOURCES, Source

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

SPEC = ClusterSpec({"worker": ["n0:1", "n1:1"]})


async def first_state(resolver: ClusterResolver) -> ClusterState:
    async with aclosing(resolver.watch(interval=POLL)) as states:
        return await anext(states)


def attributes(resolver: Any) -> list[Any]:
    names = ("task_type", "task_id", "rpc_layer", "environment", "timeout")
    return [getattr(resolver, name) for name in names]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def cloudpickled(value: Any) -> Any:
    return pickle.loads(cloudpickle.dumps(value))


def test_every_resolver_is_covered() -> None:
    classes = {name: getattr(aioresolve, name) for name in aioresolve.__all__ if name.endswith("Resolver")}
    concrete = {name for name, cls in classes.items() if not inspect.isabstract(cls)}
    covered = {name.partition("(")[0] for name in SOURCES}
    assert concrete == covered
    assert covered <= set(aioresolve.sync.__all__)


class TestResults:
    async def test_every_call_returns_the_same_cluster(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        spec, state = await resolver.cluster_spec(), await resolver.cluster_state()
        assert spec.job_tasks("worker") == source.addresses
        assert (spec, spec.jobs) == (state.spec, state.spec.jobs)
        assert [each.address for each in state.endpoints["worker"]] == source.addresses
        assert state.observed_at is not None
        assert resolver.known_jobs is None or set(spec.jobs) <= set(resolver.known_jobs)
        assert await first_state(resolver) == state
        assert await resolver.wait(2, timeout=PATIENCE, interval=POLL) == state

    async def test_master_is_the_address_of_the_task(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        assert await resolver.master("worker", 1, "http") == f"http://{source.addresses[1]}"
        resolver.rpc_layer = "grpcs"
        assert await resolver.master("worker", 0) == f"grpcs://{source.addresses[0]}"
        for unknown in (("worker", 7), ("other", 0)):
            with pytest.raises(UnknownTaskError):
                await resolver.master(*unknown)

    async def test_calls_share_an_entered_resolver_and_it_can_be_entered_again(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        expected = await resolver.cluster_spec()
        for _ in range(2):
            async with resolver as entered:
                assert entered is resolver
                with pytest.raises(ConfigurationError, match="is already entered"):
                    await resolver.__aenter__()
                specs = await asyncio.gather(*(resolver.cluster_spec() for _ in range(5)))
                assert specs == [expected] * 5
        assert await resolver.cluster_spec() == expected

    def test_repr_names_the_class_and_no_secret(self, source: Source) -> None:
        resolver, facade = source.resolver(), source.facade()
        name = type(resolver).__name__
        assert repr(resolver).startswith(f"<{name} ")
        assert repr(facade).startswith(f"<sync {type(facade).__name__} of <{name} ")
        assert source.secret is None or source.secret not in repr(facade)
        assert len(repr(resolver)) < 500
        assert source.secret is None or source.secret not in repr(resolver)

    def test_results_of_the_blocking_resolver_are_those_of_the_async_one(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        with source.facade(timeout=PATIENCE) as facade:
            assert facade.cluster_spec() == asyncio.run(resolver.cluster_spec())
            assert facade.cluster_state() == asyncio.run(resolver.cluster_state())
            assert facade.this_task() == asyncio.run(resolver.this_task())
            assert facade.master("worker", 1) == asyncio.run(resolver.master("worker", 1))
            assert facade.wait(2, timeout=PATIENCE, interval=POLL) == facade.cluster_state()
            assert attributes(facade) == attributes(resolver)

    async def test_copy_of_a_resolver_is_unopened_and_equal(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        resolver.rpc_layer = "http"
        async with resolver:
            spec = await resolver.cluster_spec()
            for make_copy in (copy.copy, copy.deepcopy, pickled, cloudpickled):
                # An entered resolver could not be entered again.
                async with make_copy(resolver) as copied:
                    assert (type(copied), repr(copied)) == (type(resolver), repr(resolver))
                    assert attributes(copied) == attributes(resolver)
                    assert await copied.cluster_spec() == spec


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
        resolver.task_id = 7
        with pytest.raises(UnknownTaskError, match="no task 7 in job 'worker'"):
            await resolver.this_task()


class TestDeadlines:
    async def test_invalid_timeout_or_interval_is_rejected(self) -> None:
        resolver = SimpleClusterResolver(SPEC)
        for call in CALLS.values():
            with pytest.raises(ConfigurationError, match="timeout"):
                await call(resolver, 0)
        with pytest.raises(ConfigurationError, match="interval"):
            await resolver.wait(2, interval=0)
        for module in (aioresolve, aioresolve.sync):
            with pytest.raises(ConfigurationError, match="timeout"):
                module.SimpleClusterResolver(SPEC, timeout=0)

    @pytest.mark.parametrize("name", CALLS)
    async def test_call_ends_at_its_deadline(self, name: str, one_remote: Source) -> None:
        one_remote.server.inject(Hang(), times=None)
        with anyio.fail_after(PATIENCE), pytest.raises(DeadlineExceededError) as error:
            await CALLS[name](one_remote.resolver(timeout=PATIENCE), 0.3)
        assert error.value.timeout == 0.3
        assert isinstance(error.value, TimeoutError)
        assert error.value.retryable

    async def test_call_and_watch_end_at_the_default_deadline(self, remote: Source) -> None:
        remote.server.inject(Hang(), times=None)
        for call in (ClusterResolver.cluster_spec, first_state):
            with anyio.fail_after(PATIENCE), pytest.raises(DeadlineExceededError) as error:
                await call(remote.resolver(timeout=0.3))
            assert error.value.timeout == 0.3

    async def test_job_that_is_known_not_to_exist_is_rejected_at_once(self, source: Source) -> None:
        resolver = source.resolver(timeout=PATIENCE)
        expected = IncompleteClusterError if resolver.known_jobs is None else ConfigurationError
        with pytest.raises(expected, match="evaluators"):
            await resolver.wait(jobs={"evaluators": 1}, timeout=0.5, interval=POLL)


class TestCancellation:
    @pytest.mark.usefixtures("no_leak")
    @pytest.mark.parametrize("call", [ClusterResolver.cluster_spec, first_state])
    async def test_cancelled_call_leaves_nothing_behind(self, call: Any, remote: Source) -> None:
        remote.server.inject(Hang(), times=None)
        resolver = remote.resolver(timeout=PATIENCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, resolver)
            await anyio.to_thread.run_sync(remote.server.until, lambda: bool(remote.server.requests))
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(remote.server.until, lambda: remote.server.connections == 0)

    @pytest.mark.usefixtures("no_leak")
    async def test_cancelled_watch_of_a_quiet_cluster_leaves_nothing_behind(self, remote: Source) -> None:
        seen = anyio.Event()

        async def follow() -> None:
            async with aclosing(remote.resolver(timeout=PATIENCE).watch(interval=POLL)) as states:
                async for _ in states:
                    seen.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await seen.wait()
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(remote.server.until, lambda: remote.server.connections == 0)


class TestErrors:
    async def test_error_for_good_is_raised_at_once(self, changing: Source) -> None:
        text = repr(changing.resolver())
        changing.break_down()
        resolver = changing.resolver(timeout=PATIENCE)
        assert repr(resolver) == text
        for call in (ClusterResolver.cluster_spec, first_state):
            with anyio.fail_after(PATIENCE), pytest.raises(ResolveError) as raised:
                await call(resolver)
            error = raised.value
            assert not isinstance(error, DeadlineExceededError)
            assert not error.retryable
            assert error.hint is not None
            assert isinstance(error, RuntimeError)
            for link in error_chain(error):
                assert changing.secret is None or changing.secret not in "\n".join(attributes_of(link))
            copied = pickle.loads(pickle.dumps(error))
            assert (type(copied), str(copied)) == (type(error), str(error))

    async def test_unreachable_source_is_a_retryable_error(self, remote: Source) -> None:
        with remote.server.down(), pytest.raises(ResolveError) as error:
            await remote.resolver(timeout=0.3).cluster_spec()
        assert error.value.retryable


async def test_two_watches_of_one_resolver_yield_a_change_once(changing: Source) -> None:
    resolver = changing.resolver(timeout=PATIENCE)
    with anyio.fail_after(PATIENCE):
        async with (
            resolver,
            aclosing(resolver.watch(interval=POLL)) as one,
            aclosing(resolver.watch(interval=POLL)) as other,
        ):
            before = await anext(one)
            assert before == await anext(other)
            address = changing.grow()
            after = await anext(one)
            assert after == await anext(other)
    assert before.spec.job_tasks("worker") == changing.addresses
    assert after.spec.job_tasks("worker") == [*changing.addresses, address]
    assert [member.endpoint.address for member in after.diff(before).joined] == [address]
