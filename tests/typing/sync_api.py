"""The types of the blocking facade. This file is not run: mypy and pyright check it."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncGenerator, Iterator
from typing import assert_type

import aioresolve
from aioresolve import (
    ClusterSpec,
    ClusterState,
    Detection,
    TPUSlice,
    TPUSystemMetadata,
)
from aioresolve.sync import (
    BlockingIterator,
    ClusterResolver,
    KubernetesClusterResolver,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    blocking,
    blocking_iterator,
    detect,
)


def methods_return_the_types_of_the_async_ones(resolver: KubernetesClusterResolver) -> None:
    assert_type(resolver.cluster_spec(), ClusterSpec)
    assert_type(resolver.cluster_spec(timeout=1.0), ClusterSpec)
    assert_type(resolver.cluster_state(timeout=1.0), ClusterState)
    assert_type(resolver.master(), str)
    assert_type(resolver.master("worker", 0, "grpc", timeout=1.0), str)
    assert_type(resolver.close(), None)


def wait_returns_a_state_and_watch_an_iterator(resolver: ClusterResolver) -> Iterator[object]:
    assert_type(resolver.wait(), ClusterState)
    assert_type(resolver.wait(jobs={"worker": 2}, reachable="tcp", timeout=1.0), ClusterState)
    assert_type(resolver.watch(), BlockingIterator[ClusterState])
    assert_type(resolver.watch(interval=1.0).close(), None)
    assert_type(next(resolver.watch()), ClusterState)
    resolver.wait("2")  # type: ignore[arg-type]
    resolver.watch(1.0)  # type: ignore[call-arg]
    resolver.observations()  # type: ignore[attr-defined]
    return resolver.watch()


def methods_take_the_arguments_of_the_async_ones(resolver: ClusterResolver) -> None:
    # Each of these is an error; otherwise both checkers report an unused `ignore`.
    resolver.cluster_spec(1.0)  # type: ignore[call-arg]
    resolver.cluster_spec(timeout="1")  # type: ignore[arg-type]
    resolver.master(task_id="0")  # type: ignore[arg-type]
    resolver.observe()  # type: ignore[attr-defined]


def tpu_methods_return_the_types_of_the_async_ones(resolver: TPUClusterResolver) -> None:
    assert_type(resolver.num_accelerators(), dict[str, int])
    assert_type(resolver.get_tpu_system_metadata(timeout=1.0), TPUSystemMetadata)
    assert_type(resolver.slices(), tuple[TPUSlice, ...])
    assert_type(resolver.get_master(), str)
    assert_type(resolver.get_job_name(), str)
    assert_type(TPUClusterResolver.connect("my-tpu"), TPUClusterResolver)
    resolver.slices(1.0)  # type: ignore[call-arg]


def detection_returns_a_facade() -> None:
    found = detect(timeout=1.0)
    assert_type(found, Detection[ClusterResolver])
    assert_type(found.resolver.cluster_spec(), ClusterSpec)
    detect(1)  # type: ignore[call-arg]


class Elector(aioresolve.SimpleClusterResolver):
    async def leader(self, job: str, *, patience: float = 1.0) -> int:
        return 0

    async def leaders(self, job: str) -> AsyncGenerator[int, None]:
        yield 0


class SyncElector(ClusterResolver):
    leader = blocking(Elector.leader)
    leaders = blocking_iterator(Elector.leaders)


def resolvers_of_users_have_facades(elector: Elector) -> None:
    assert_type(ClusterResolver(elector).cluster_state(), ClusterState)
    assert_type(SyncElector(elector).leader("worker", patience=2.0), int)
    assert_type(SyncElector(elector).leaders("worker"), BlockingIterator[int])
    SyncElector(elector).leader()  # type: ignore[call-arg]


def constructors_take_the_arguments_of_the_async_classes() -> None:
    KubernetesClusterResolver({"worker": "app=x"}, 8470, namespace="a", order_by="index", timeout=1.0)
    KubernetesClusterResolver(namespcae="a")  # type: ignore[call-arg]
    KubernetesClusterResolver(not_running="skp")  # type: ignore[arg-type]
    SlurmClusterResolver({"worker": 2}, port_base="1")  # type: ignore[arg-type]
    TPUClusterResolver("a", not_healthy="skip")  # type: ignore[arg-type]
    TFConfigClusterResolver(task_id=[])  # type: ignore[arg-type]
    SageMakerClusterResolver(port="2223")  # type: ignore[arg-type]
    SimpleClusterResolver({"worker": ["a:1"]})  # type: ignore[arg-type]
    assert_type(SlurmClusterResolver().get_task_info(), tuple[str | None, int | None])
