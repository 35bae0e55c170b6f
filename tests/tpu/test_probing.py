"""What the workers of a TPU say when they are asked: over gRPC, on loopback."""

from __future__ import annotations

import pickle
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from aioresolve import ClusterSpec, SimpleClusterResolver, TPUClusterResolver, UnionClusterResolver
from aioresolve.errors import (
    ConfigurationError,
    DeadlineExceededError,
    ProbeError,
    TPUNotReadyError,
    UnknownTaskError,
)
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterState
from aioresolve.testing import Hang, tpu_node
from aioresolve.testing.tpu_worker import TPUWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve._core.retry import Progress
    from aioresolve.testing import GoogleServer

NOBODY = "127.0.0.1:1"


class Fixed(ClusterResolver):
    """A resolver of one's own, which has `num_accelerators` from the base class."""

    def __init__(self, cluster: dict[str, list[str]], timeout: float = 30.0) -> None:
        super().__init__(timeout=timeout)
        self._spec = ClusterSpec(cluster)

    async def fetch_state(self, progress: Progress) -> ClusterState:
        return ClusterState.from_spec(self._spec)


async def _started(stack: AsyncExitStack, *workers: TPUWorker) -> list[str]:
    return [(await stack.enter_async_context(worker)).address for worker in workers]


def resolver_of(addresses: Sequence[str], timeout: float = 10.0) -> TPUClusterResolver:
    return TPUClusterResolver([f"grpc://{address}" for address in addresses], timeout=timeout)


async def test_cores_per_host_are_counted_by_all_hosts() -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(4, task=0), TPUWorker(4, task=1)]
        addresses = await _started(stack, *workers)
        assert await resolver_of(addresses).num_accelerators() == {"TPU": 4}
        assert all(worker.calls for worker in workers)


async def test_task_type_and_task_id_play_no_part() -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(4, task=0), TPUWorker(4, task=1)]
        resolver = resolver_of(await _started(stack, *workers))
        assert await resolver.num_accelerators("worker", 0) == {"TPU": 4}
        assert all(worker.calls for worker in workers)


async def test_workers_without_a_tpu_have_none() -> None:
    async with TPUWorker(0) as worker:
        resolver = resolver_of([worker.address])
        assert await resolver.num_accelerators() == {"TPU": 0}
        metadata = await resolver.get_tpu_system_metadata()
        assert (metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host) == (0, 0, 0)


async def test_hosts_that_differ_raise_with_each_count() -> None:
    async with AsyncExitStack() as stack:
        addresses = await _started(stack, TPUWorker(4), TPUWorker(8))
        with pytest.raises(ProbeError, match="different numbers of TPU cores") as raised:
            await resolver_of(addresses).num_accelerators()
    assert raised.value.code == "uneven"
    assert raised.value.failures == dict(zip(addresses, ["4", "8"], strict=True))
    assert isinstance(raised.value, RuntimeError)


async def test_hosts_that_did_not_answer_are_named_with_their_reasons() -> None:
    async with TPUWorker(4) as worker:
        with pytest.raises(ProbeError, match="connection refused") as raised:
            await resolver_of([worker.address, NOBODY]).num_accelerators()
    assert list(raised.value.failures) == [NOBODY]
    assert isinstance(raised.value, RuntimeError)


async def test_workers_of_a_named_tpu_are_named_by_slice(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["127.0.0.1"], port=1))
    with pytest.raises(ProbeError) as raised:
        await TPUClusterResolver("my-tpu").num_accelerators()
    assert list(raised.value.failures) == ["my-tpu/worker-0 at 127.0.0.1:1"]


async def test_a_hanging_host_costs_its_deadline_and_is_named() -> None:
    async with TPUWorker(4, faults=[Hang()]) as worker:
        with pytest.raises(DeadlineExceededError) as raised:
            await resolver_of([worker.address], timeout=0.3).num_accelerators()
    assert list(raised.value.missing) == [worker.address]


async def test_the_operation_timeout_of_a_config_proto_bounds_the_call() -> None:
    async with TPUWorker(4, faults=[Hang()]) as worker:
        config = SimpleNamespace(operation_timeout_in_ms=200)
        with pytest.raises(DeadlineExceededError):
            await resolver_of([worker.address]).num_accelerators(config_proto=config)


async def test_probing_hides_no_answer_behind_a_dead_worker() -> None:
    async with TPUWorker(4) as worker:
        good, bad = await resolver_of([worker.address, NOBODY]).probe()
    assert good.accelerators == {"TPU": 4}
    assert bad.error is not None
    assert bad.error.code == "refused"


async def test_a_tpu_that_is_not_ready_is_not_probed(google: GoogleServer) -> None:
    async with TPUWorker(4) as worker:
        google.add(tpu_node("my-tpu", ips=["127.0.0.1"], port=worker.port, state="REPAIRING"))
        with pytest.raises(TPUNotReadyError):
            await TPUClusterResolver("my-tpu").num_accelerators()
        assert worker.calls == []


async def test_system_metadata_is_tensorflows_tuple_with_hosts_behind_it(google: GoogleServer) -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(4, task=task) for task in range(2)]
        await _started(stack, *workers)
        google.add(tpu_node("my-tpu", accelerator_type="v4-16", topology="2x2x2"))
        google.patch(
            "my-tpu",
            networkEndpoints=[{"ipAddress": "127.0.0.1", "port": worker.port} for worker in workers],
        )
        async with TPUClusterResolver("my-tpu") as resolver:
            metadata = await resolver.get_tpu_system_metadata()
    num_cores, num_hosts, num_of_cores_per_host, topology, devices = metadata
    assert (num_cores, num_hosts, num_of_cores_per_host) == (8, 2, 4)
    assert topology.chips == 8
    assert [device.name for device in devices if device.type == "TPU"] == [
        f"/job:worker/replica:0/task:{task}/device:TPU:{number}" for task in range(2) for number in range(4)
    ]
    assert [host.address for host in metadata.hosts] == [worker.address for worker in workers]
    copy = pickle.loads(pickle.dumps(metadata))
    assert (copy, copy.hosts) == (metadata, metadata.hosts)


async def test_a_contradictory_topology_does_not_hide_the_cores(google: GoogleServer) -> None:
    async with TPUWorker(4) as worker:
        google.add(
            tpu_node(
                "my-tpu", ips=["127.0.0.1"], port=worker.port, accelerator_type="v4-16", topology="4x4x4"
            )
        )
        metadata = await TPUClusterResolver("my-tpu").get_tpu_system_metadata()
    assert (metadata.num_cores, metadata.topology) == (4, None)


async def test_calls_inside_async_with_share_channels() -> None:
    async with TPUWorker(4) as worker, resolver_of([worker.address]) as resolver:
        for _ in range(3):
            assert await resolver.num_accelerators() == {"TPU": 4}


# What every resolver has from the base class


async def test_every_resolver_counts_the_accelerators_of_its_workers() -> None:
    async with TPUWorker(4, device_type="GPU") as worker, TPUWorker(0) as ps:
        resolver = Fixed({"worker": [worker.address], "ps": [ps.address]})
        assert await resolver.num_accelerators() == {"GPU": 4}
        assert await resolver.num_accelerators("ps") == {}


async def test_task_type_and_task_id_narrow_the_question() -> None:
    async with AsyncExitStack() as stack:
        addresses = await _started(stack, TPUWorker(4), TPUWorker(8))
        resolver = Fixed({"worker": addresses})
        assert await resolver.num_accelerators("worker", 1) == {"TPU": 8}
        assert await resolver.num_accelerators(task_id=0) == {"TPU": 4}
        with pytest.raises(ProbeError, match="different accelerators"):
            await resolver.num_accelerators()


async def test_an_unknown_task_is_an_error_before_anybody_is_asked() -> None:
    with pytest.raises(UnknownTaskError):
        await Fixed({"worker": [NOBODY]}).num_accelerators("worker", 1)
    with pytest.raises(UnknownTaskError):
        await Fixed({}).num_accelerators()


async def test_the_deadline_of_the_base_class_bounds_resolving_and_probing() -> None:
    async with TPUWorker(4, faults=[Hang()]) as worker:
        resolver = Fixed({"worker": [worker.address]})
        with pytest.raises(DeadlineExceededError):
            await resolver.num_accelerators(timeout=0.2)
        with pytest.raises(DeadlineExceededError):
            await resolver.num_accelerators(config_proto=SimpleNamespace(operation_timeout_in_ms=200))


@pytest.mark.parametrize("config", [7, SimpleNamespace(operation_timeout_in_ms=-1)])
async def test_what_is_no_config_proto_is_told(config: object) -> None:
    with pytest.raises(ConfigurationError, match="config_proto"):
        await Fixed({"worker": [NOBODY]}).num_accelerators(config_proto=config)


async def test_a_union_says_what_its_first_resolver_says() -> None:
    async with TPUWorker(4) as worker:
        spec = ClusterSpec({"worker": [worker.address]})
        told = SimpleClusterResolver(spec, num_accelerators={"GPU": 1})
        assert await UnionClusterResolver(told, Fixed({})).num_accelerators() == {"GPU": 1}
        first = Fixed({"worker": [worker.address]})
        assert await UnionClusterResolver(first, told).num_accelerators("worker", 0) == {"TPU": 4}
