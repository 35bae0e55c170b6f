"""The devices of a TPU's workers, probed over gRPC on loopback."""

from __future__ import annotations

import pickle
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from aioresolve import (
    ClusterSpec,
    Observation,
    SimpleClusterResolver,
    TPUClusterResolver,
    UnionClusterResolver,
    Want,
)
from aioresolve.errors import (
    ConfigurationError,
    DeadlineExceededError,
    ProbeDeadlineError,
    ProbeError,
    TPUNotReadyError,
)
from aioresolve.probe import Device, WorkerProbe
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterState
from aioresolve.testing import Hang, tpu_node
from aioresolve.testing.tpu_worker import TPUWorker
from aioresolve.tpu.probing import cores_per_host, local_system
from aioresolve.tpu.slices import libtpu_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.testing import GoogleServer

UNUSED_ADDRESS = "127.0.0.1:1"


class CustomResolver(ClusterResolver):
    """A user's resolver, which inherits `num_accelerators`."""

    def __init__(self, cluster: dict[str, list[str]], timeout: float = 30.0) -> None:
        super().__init__(timeout=timeout)
        self._spec = ClusterSpec(cluster)

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return Observation(ClusterState.from_spec(self._spec))


async def _start(stack: AsyncExitStack, *workers: TPUWorker) -> list[str]:
    return [(await stack.enter_async_context(worker)).address for worker in workers]


def resolver_of(addresses: Sequence[str], timeout: float = 10.0) -> TPUClusterResolver:
    return TPUClusterResolver([f"grpc://{address}" for address in addresses], timeout=timeout)


async def test_all_hosts_are_probed_for_the_cores_per_host() -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(4, task=0), TPUWorker(4, task=1)]
        resolver = resolver_of(await _start(stack, *workers))
        assert await resolver.num_accelerators() == {"TPU": 4}
        # TensorFlow ignores these arguments too.
        assert await resolver.num_accelerators("worker", 0) == {"TPU": 4}
        assert [len(worker.calls) for worker in workers] == [2, 2]


async def test_workers_without_a_tpu_have_zero_cores() -> None:
    async with TPUWorker(0) as worker:
        resolver = resolver_of([worker.address])
        assert await resolver.num_accelerators() == {"TPU": 0}
        metadata = await resolver.get_tpu_system_metadata()
        assert (metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host) == (0, 0, 0)


def probe_of(address: str, **devices: int) -> WorkerProbe:
    """Return the probe of a worker with this number of devices of each type."""
    found = [Device(f"/device:{kind}:{n}", kind) for kind, number in devices.items() for n in range(number)]
    return WorkerProbe(address, "tensorflow", tuple(found))


@pytest.mark.parametrize(("cores", "other"), [(4, {"TPU": 4, "GPU": 1}), (0, {"GPU": 1})])
def test_only_the_tpu_cores_of_the_hosts_have_to_be_equal(cores: int, other: dict[str, int]) -> None:
    probes = {"a": probe_of("a", CPU=1, TPU=cores), "b": probe_of("b", **other)}
    assert cores_per_host(probes, 1.0) == cores
    with pytest.raises(ProbeError) as raised:
        cores_per_host({**probes, "c": probe_of("c", TPU=2)}, 1.0)
    assert (raised.value.code, isinstance(raised.value, RuntimeError)) == ("uneven", True)
    assert raised.value.failures == {"a": str(cores), "b": str(cores), "c": "2"}
    assert f"a has {cores}, b has {cores}, c has 2" in str(raised.value)


@pytest.mark.parametrize("cores", [0, 4])
def test_the_system_of_this_host_has_the_devices_that_tensorflow_lists(cores: int) -> None:
    devices = [("/device:CPU:0", "CPU"), *((f"/device:TPU:{number}", "TPU") for number in range(cores))]
    system = local_system(devices)
    assert (system.num_cores, system.num_of_cores_per_host) == (cores, cores)
    assert system.num_hosts == (1 if cores else 0)
    assert [(device.name, device.type) for device in system.devices] == devices
    assert (system.topology, system.hosts) == (None, ())


async def test_unreachable_hosts_are_listed_by_slice_and_index_with_their_reasons(
    google: GoogleServer,
) -> None:
    async with TPUWorker(4) as worker:
        google.add(tpu_node("my-tpu", workers=2))
        endpoints = [{"ipAddress": "127.0.0.1", "port": port} for port in (worker.port, 1)]
        google.patch("my-tpu", networkEndpoints=endpoints)
        with pytest.raises(ProbeError, match="connection refused") as raised:
            await TPUClusterResolver("my-tpu").num_accelerators()
    assert list(raised.value.failures) == ["my-tpu/worker-1 at 127.0.0.1:1"]
    assert isinstance(raised.value, RuntimeError)


async def test_a_hanging_host_is_listed_at_its_deadline() -> None:
    async with TPUWorker(4, faults=[Hang()]) as worker:
        # TensorFlow promises a RuntimeError for unreachable workers.
        with pytest.raises(RuntimeError) as raised:
            await resolver_of([worker.address], timeout=0.3).num_accelerators()
    error = raised.value
    assert isinstance(error, ProbeDeadlineError)
    assert (error.code, error.address, error.retryable) == ("deadline", worker.address, True)
    assert list(error.missing) == list(error.failures) == [worker.address]
    assert issubclass(ProbeDeadlineError, DeadlineExceededError)
    assert issubclass(ProbeDeadlineError, ProbeError)


async def test_the_operation_timeout_of_a_config_proto_limits_the_call() -> None:
    async with TPUWorker(4, faults=[Hang()]) as worker:
        config = SimpleNamespace(operation_timeout_in_ms=200)
        with pytest.raises(DeadlineExceededError):
            await resolver_of([worker.address]).num_accelerators(config_proto=config)


async def test_a_tpu_that_is_not_ready_is_not_probed(google: GoogleServer) -> None:
    async with TPUWorker(4) as worker:
        google.add(tpu_node("my-tpu", ips=["127.0.0.1"], port=worker.port, state="REPAIRING"))
        with pytest.raises(TPUNotReadyError):
            await TPUClusterResolver("my-tpu").num_accelerators()
        assert worker.calls == []


async def test_system_metadata_is_the_tuple_of_tensorflow_plus_hosts(google: GoogleServer) -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(4, task=task) for task in range(2)]
        await _start(stack, *workers)
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


async def test_system_metadata_names_devices_by_their_task_in_the_cluster() -> None:
    async with AsyncExitStack() as stack:
        addresses = await _start(stack, *(TPUWorker(2, job="local", task=0) for _ in range(2)))
        metadata = await TPUClusterResolver(
            [f"grpc://{address}" for address in addresses], job_name="tpu_worker"
        ).get_tpu_system_metadata()
    assert [(device.name, device.device_type) for device in metadata.devices] == [
        (f"/job:tpu_worker/replica:0/task:{task}/device:{kind}:{number}", kind)
        for task in range(2)
        for kind, number in [("CPU", 0), ("TPU", 0), ("TPU", 1)]
    ]
    assert {device.name for host in metadata.hosts for device in host.devices} == {
        f"/job:local/replica:0/task:0/device:{name}" for name in ["CPU:0", "TPU:0", "TPU:1"]
    }


async def test_system_metadata_numbers_the_devices_of_libtpu_by_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(1, services=["libtpu"]) for _ in range(2)]
        await _start(stack, *workers)
        monkeypatch.setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", f"grpc://{UNUSED_ADDRESS}")
        monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", ",".join(str(worker.port) for worker in workers))
        metadata = await TPUClusterResolver().get_tpu_system_metadata()
    assert [device.name for device in metadata.devices] == [
        f"/job:worker/replica:0/task:0/device:TPU:{number}" for number in range(2)
    ]


async def test_a_contradictory_topology_does_not_hide_the_cores(google: GoogleServer) -> None:
    async with TPUWorker(4) as worker:
        google.add(
            tpu_node(
                "my-tpu", ips=["127.0.0.1"], port=worker.port, accelerator_type="v4-16", topology="4x4x4"
            )
        )
        metadata = await TPUClusterResolver("my-tpu").get_tpu_system_metadata()
    assert (metadata.num_cores, metadata.topology) == (4, None)


# Inherited from the base class


async def test_every_resolver_counts_the_accelerators_of_its_workers() -> None:
    async with TPUWorker(4, device_type="GPU") as worker, TPUWorker(0) as ps:
        resolver = CustomResolver({"worker": [worker.address], "ps": [ps.address]})
        assert await resolver.num_accelerators() == {"GPU": 4}
        assert await resolver.num_accelerators("ps") == {}


async def test_task_type_and_task_id_select_workers() -> None:
    async with AsyncExitStack() as stack:
        addresses = await _start(stack, TPUWorker(4), TPUWorker(8))
        resolver = CustomResolver({"worker": addresses})
        assert await resolver.num_accelerators("worker", 1) == {"TPU": 8}
        assert await resolver.num_accelerators(task_id=0) == {"TPU": 4}
        with pytest.raises(ProbeError, match="different accelerators"):
            await resolver.num_accelerators()


async def test_one_deadline_limits_resolving_and_probing() -> None:
    async with TPUWorker(4, faults=[Hang()]) as worker:
        resolver = CustomResolver({"worker": [worker.address]})
        with pytest.raises(DeadlineExceededError):
            await resolver.num_accelerators(timeout=0.2)


@pytest.mark.parametrize(
    "config",
    [
        SimpleNamespace(operation_timeout_in_ms=-1),
    ],
)
async def test_an_invalid_config_proto_is_rejected(config: object) -> None:
    with pytest.raises(ConfigurationError, match="config_proto"):
        await CustomResolver({"worker": [UNUSED_ADDRESS]}).num_accelerators(config_proto=config)


async def test_a_union_returns_what_its_first_resolver_returns() -> None:
    async with TPUWorker(4) as worker:
        spec = ClusterSpec({"worker": [worker.address]})
        simple = SimpleClusterResolver(spec, num_accelerators={"GPU": 1})
        assert await UnionClusterResolver(simple, CustomResolver({})).num_accelerators() == {"GPU": 1}
        first = CustomResolver({"worker": [worker.address]})
        assert await UnionClusterResolver(first, simple).num_accelerators("worker", 0) == {"TPU": 4}


async def test_each_process_of_a_host_has_its_own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        TPUWorker(2, host_devices=4, services=["libtpu"], host="127.0.0.9") as first,
        TPUWorker(2, host_devices=4, services=["libtpu"], host="127.0.0.9") as second,
    ):
        monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "127.0.0.9:8476,127.0.0.9:8477")
        monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", f"{first.port},{second.port}")
        resolver = TPUClusterResolver()
        assert [probe.accelerators for probe in await resolver.probe()] == [{"TPU": 2}] * 2
        assert await resolver.num_accelerators() == {"TPU": 2}
        assert first.calls == second.calls


@pytest.mark.parametrize(
    ("reported", "ports"),
    [
        ((8431, 8432), [(8431,), (8432,), (8431,), (8432,)]),
        ((1, 2, 3, 4), [(1, 2), (3, 4), (1, 2), (3, 4)]),
        ((), [(8431,), (8432,), (8431,), (8432,)]),
        ((9000,), [(9000,), (9001,), (9000,), (9001,)]),
    ],
)
async def test_processes_of_a_host_share_its_ports(
    reported: tuple[int, ...], ports: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "a:8476,a:8477,b:8476,b:8477")
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", ",".join(map(str, reported)))
    found = libtpu_ports(await TPUClusterResolver().slices())
    assert found == dict(zip(["a:8470", "a:8471", "b:8470", "b:8471"], ports, strict=True))
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "a:8476,b:8476")
    assert libtpu_ports(await TPUClusterResolver().slices()) == reported
