"""Resolvers that users write: their exceptions become errors that name the class and the method."""

from collections.abc import AsyncGenerator

import pytest

from aioresolve import ClusterResolver, Progress, TPUClusterResolver, UnionClusterResolver, Want
from aioresolve.errors import ConnectionFailedError, ProbeError, ResolveError
from aioresolve.spec import ClusterSpec, ClusterState, Observation
from tests.resolver.shown import Shown

COMPLETE = Observation(ClusterState.from_spec(ClusterSpec({"worker": ["a:1"]})))


class Polled(ClusterResolver):
    """A resolver that is polled, and raises `bug`."""

    bug = KeyError("WORKERS")

    async def observe(self, want: Want, progress: Progress) -> Observation:
        raise self.bug


class Watched(ClusterResolver):
    """A resolver that reports one observation, and then raises `bug`, or ends."""

    def __init__(self, bug: Exception | None) -> None:
        super().__init__()
        self.bug = bug

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return COMPLETE

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        yield COMPLETE
        if self.bug is not None:
            raise self.bug


async def test_exception_of_observe_is_the_cause_of_a_resolve_error() -> None:
    polled, union = Polled(), UnionClusterResolver(Polled())
    for call in (polled.cluster_spec(), polled.wait(1), union.cluster_state(), anext(union.watch())):
        with pytest.raises(ResolveError) as caught:
            await call
        assert str(caught.value).startswith("Polled.observe() raised KeyError: 'WORKERS'. ")
        assert caught.value.__cause__ is Polled.bug


async def test_changes_that_raise_or_end_before_the_wait_name_the_class() -> None:
    for bug, problem in (
        (ValueError("a bug"), r"Watched\.changes\(\) raised ValueError: a bug"),
        (None, r"Watched\.changes\(\) has ended"),
    ):
        with pytest.raises(ResolveError, match=problem):
            await Watched(bug).wait(2)


async def test_observation_without_a_state_is_its_error_or_that_of_the_resolver() -> None:
    with pytest.raises(ResolveError, match=r"^observe\(\) of <Shown> returned no state"):
        await Shown().cluster_spec()
    with pytest.raises(ConnectionFailedError, match="no route"):
        await Shown(Observation(None, error=ConnectionFailedError("no route"))).cluster_state()


async def test_master_is_the_given_task_or_that_of_the_resolver_or_empty() -> None:
    spec = ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"]})
    resolver = Shown(Observation(ClusterState.from_spec(spec)))
    resolver.task_type = "worker"
    assert (await resolver.master(), await resolver.master(task_id=0)) == ("", "a:1")
    resolver.task_id = 1
    assert (await resolver.master(), await resolver.master("ps", 0)) == ("b:1", "c:1")
    resolver.task_type = None
    assert await resolver.master() == ""


async def test_workers_of_a_resolver_that_declares_no_accelerators_are_probed(closed_address: str) -> None:
    workers = ClusterState.from_spec(ClusterSpec({"worker": [closed_address]}))
    with pytest.raises(ProbeError, match=f"worker/task:0: nothing listens at {closed_address}"):
        await Shown(Observation(workers)).num_accelerators()


def test_completion_shows_no_hooks_of_writers() -> None:
    assert {"wait", "watch", "cluster_spec", "known_jobs"} < set(dir(Polled()))
    assert not {"observe", "changes", "_parts", "_timeout"} & set(dir(Polled()))
    assert not {"fetch_slices", "_fetch_nodes"} & set(dir(TPUClusterResolver("grpc://a:1")))
