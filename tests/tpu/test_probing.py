"""The devices of a TPU's workers, probed over gRPC on loopback."""

import pickle
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import DeadlineExceededError, ProbeDeadlineError, ProbeError
from aioresolve.testing import GoogleServer, Hang, TPUWorker, tpu_node


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
            await resolver_of([worker.address], timeout=0.1).num_accelerators()
    error = raised.value
    assert isinstance(error, ProbeDeadlineError)
    assert (error.code, error.address, error.retryable) == ("deadline", worker.address, True)
    assert list(error.missing) == list(error.failures) == [worker.address]
    assert issubclass(ProbeDeadlineError, DeadlineExceededError)
    assert issubclass(ProbeDeadlineError, ProbeError)


async def test_the_operation_timeout_of_a_config_limits_the_call() -> None:
    config = SimpleNamespace(operation_timeout_in_ms=100)
    async with TPUWorker(4, faults=[Hang()]) as worker:
        with pytest.raises(ProbeDeadlineError) as raised:
            await resolver_of([worker.address]).num_accelerators(config_proto=config)
    assert raised.value.timeout is not None
    assert raised.value.timeout <= 0.1


async def test_connections_to_workers_are_kept_inside_the_block() -> None:
    async with TPUWorker(4) as worker, resolver_of([worker.address]) as resolver:
        for _ in range(2):
            await resolver.num_accelerators()
        assert len(set(worker.peers)) == 1


async def test_an_error_lists_the_first_eight_workers() -> None:
    addresses = [f"127.0.0.9:{number}" for number in range(1, 11)]
    with pytest.raises(ProbeError, match=r"127\.0\.0\.9:8: .*; and 2 more\. ") as raised:
        await resolver_of(addresses).num_accelerators()
    assert list(raised.value.failures) == addresses
    with pytest.raises(ProbeError, match=r"127\.0\.0\.9:8438: connection refused\. "):
        await resolver_of(addresses[:8]).num_accelerators()


async def test_system_metadata_is_the_tuple_of_tensorflow(google: GoogleServer) -> None:
    async with AsyncExitStack() as stack:
        workers = [TPUWorker(4, job="local", task=0) for _ in range(2)]
        await _start(stack, *workers)
        endpoints = [{"ipAddress": "127.0.0.1", "port": worker.port} for worker in workers]
        google.add(tpu_node("my-tpu") | {"networkEndpoints": endpoints})
        async with TPUClusterResolver("my-tpu", job_name="tpus") as resolver:
            metadata = await resolver.get_tpu_system_metadata()
    num_cores, num_hosts, num_of_cores_per_host, topology, devices = metadata
    assert (num_cores, num_hosts, num_of_cores_per_host, topology) == (8, 2, 4, None)
    names = ["CPU:0", *(f"TPU:{number}" for number in range(4))]
    assert [device.name for device in devices] == [
        f"/job:tpus/replica:0/task:{task}/device:{name}" for task in range(2) for name in names
    ]
    assert [device.device_type for device in devices[:2]] == ["CPU", "TPU"]
    assert pickle.loads(pickle.dumps(metadata)) == metadata


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
        with pytest.raises(ProbeError, match="connection refused"):  # TensorFlow needs servers of its own
            await TPUClusterResolver.connect()


@pytest.mark.parametrize(
    ("reported", "first_ports"),
    [("", (8431, 8432)), ("8435,8436,8437,8438,8439", (8435, 8436)), ("8435,8436,8437,8438", (8435, 8437))],
)
async def test_processes_of_a_host_have_a_share_of_its_metrics_ports_by_default_from_8431_on(
    reported: str, first_ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_PROCESS_ADDRESSES", "127.0.0.9:8476,127.0.0.9:8477")
    monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", reported)
    for port, probe in zip(first_ports, await TPUClusterResolver().probe(), strict=True):
        assert probe.error is not None
        assert f"libtpu did not report devices either: nothing listens at 127.0.0.9:{port}" in str(
            probe.error
        )
