"""libtpu as the source of devices if no TensorFlow server listens."""

import socket

import pytest

from aioresolve.errors import ProbeError
from aioresolve.probe import probe_worker, probe_workers
from aioresolve.testing import Answer, Hang, TPUWorker

from .samples import runtime_status

pytestmark = pytest.mark.usefixtures("no_leak")

GENEROUS = 60.0
STATUS = "/tpu.monitoring.runtime.RuntimeMetricService/GetTpuRuntimeStatus"
METRIC = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"


def libtpu(devices: int = 4, cores: int | None = 8, chips: int | None = 4) -> TPUWorker:
    return TPUWorker(devices, cores=cores, chips=chips, services=["libtpu"])


async def test_libtpu_is_used_if_nothing_listens_at_the_port(closed_address: str) -> None:
    async with libtpu() as worker:
        probe = await probe_worker(closed_address, libtpu_ports=[worker.port], timeout=GENEROUS)
    assert (probe.address, probe.source) == (closed_address, "libtpu")
    assert (len(probe.devices), probe.cores, probe.chips) == (4, 8, 4)
    assert probe.accelerators == {"TPU": 4}
    assert probe.devices[0].name == f"libtpu:{worker.port}/device:TPU:0"
    assert worker.calls == [STATUS, METRIC]


async def test_cores_are_used_if_libtpu_reports_no_devices(closed_address: str) -> None:
    body = runtime_status(*[(chip, 1) for chip in (0, 0, 1, 1)])
    # The same body, parsed as metrics, contains no device.
    idle, old = TPUWorker(chips=2, services=["libtpu"], faults=[Answer(body=body)]), libtpu(4, 4, 2)
    del old._methods[METRIC]
    for worker in (idle, old):
        async with worker:
            probe = await probe_worker(closed_address, libtpu_ports=[worker.port], timeout=GENEROUS)
        assert (probe.devices, probe.cores, probe.chips, probe.accelerators) == ((), 4, 2, {"TPU": 4})


async def test_each_of_several_processes_reports_only_its_own_devices(closed_address: str) -> None:
    async with (
        TPUWorker(1, cores=2, chips=1, host_devices=2, services=["libtpu"]) as first,
        TPUWorker(1, cores=2, chips=1, host_devices=2, services=["libtpu"]) as second,
    ):
        found = []
        for ports in ([first.port, second.port], [first.port], [first.port] * 2):
            probe = await probe_worker(closed_address, libtpu_ports=ports, timeout=GENEROUS)
            found.append((probe.accelerators["TPU"], probe.cores, probe.chips))
    # A single process reports the devices of the whole host.
    assert found == [(2, 4, 2), (2, 2, 1), (2, 2, 1)]


async def test_libtpu_is_not_used_for_a_worker_that_is_not_in_the_mapping(closed_address: str) -> None:
    async with libtpu() as worker:
        ports = {f"grpc://{closed_address}": [worker.port]}
        addresses = [f"grpc://{closed_address}", "127.0.0.9:1"]
        found, other = await probe_workers(addresses, libtpu_ports=ports, worker_timeout=GENEROUS)
    assert found.accelerators == {"TPU": 4}
    assert other.error is not None
    assert str(other.error) == "nothing listens at 127.0.0.9:1: connection refused"


async def test_ports_that_refuse_are_left_out_if_another_responds(closed_address: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        closed = int(closed_address.rpartition(":")[2]), bound.getsockname()[1]
        async with libtpu() as worker:
            ports = [closed[0], worker.port, closed[1]]
            probe = await probe_worker(closed_address, libtpu_ports=ports, timeout=GENEROUS)
    assert (probe.accelerators, probe.cores, probe.chips) == ({"TPU": 4}, 8, 4)


@pytest.mark.slow
async def test_process_that_accepts_and_does_not_respond_is_an_error(closed_address: str) -> None:
    async with libtpu() as worker, TPUWorker(services=["libtpu"], chips=1, faults=[Hang()]) as hanging:
        ports = [worker.port, hanging.port]
        (probe,) = await probe_workers([closed_address], libtpu_ports=ports, worker_timeout=2.0)
    assert probe.error is not None
    assert f"127.0.0.1:{hanging.port} accepted the connection but did not respond" in probe.error.summary


async def test_libtpu_is_used_if_the_server_at_the_port_is_not_that_of_tensorflow() -> None:
    async with libtpu() as worker:
        probe = await probe_worker(worker.address, libtpu_ports=[worker.port], timeout=GENEROUS)
    assert (probe.source, probe.accelerators) == ("libtpu", {"TPU": 4})


async def test_port_of_libtpu_is_8431_by_default() -> None:
    with pytest.raises(ProbeError, match=r"libtpu did not .*: nothing listens at 127\.0\.0\.9:8431"):
        await probe_worker("127.0.0.9:1", timeout=GENEROUS)


async def test_cores_are_unknown_if_one_of_the_processes_does_not_report_them(closed_address: str) -> None:
    async with libtpu(1, 2, 1) as first, libtpu(1, chips=None) as second:
        ports = [first.port, second.port]
        probe = await probe_worker(closed_address, libtpu_ports=ports, timeout=GENEROUS)
    assert (probe.accelerators, probe.cores, probe.chips) == ({"TPU": 2}, None, None)


async def test_libtpu_that_does_not_respond_in_time_may_do_so_later(closed_address: str) -> None:
    async with TPUWorker(services=["libtpu"], chips=1, faults=[Hang()]) as hanging:
        with pytest.raises(ProbeError) as caught:
            await probe_worker(closed_address, libtpu_ports=[hanging.port], timeout=0.2)
    assert (caught.value.code, caught.value.retryable) == ("deadline", True)


async def test_refused_connection_does_not_mean_that_the_worker_is_dead(closed_address: str) -> None:
    async with TPUWorker(services=[]) as other:
        with pytest.raises(ProbeError, match="The worker may still be running") as caught:
            await probe_worker(closed_address, libtpu_ports=[other.port], timeout=GENEROUS)
    assert (caught.value.code, caught.value.retryable) == ("refused", True)
    assert isinstance(caught.value.__cause__, ProbeError)
    assert caught.value.__cause__.code == "unimplemented"
    assert caught.value.__cause__.__traceback__ is None  # its frames have the channel and the response


async def test_malformed_status_is_an_error_although_devices_are_reported(closed_address: str) -> None:
    worker = libtpu()
    worker._methods[STATUS] = lambda *_: b"\xff"
    async with worker:
        with pytest.raises(ProbeError, match="1 bytes that are not a RuntimeStatus"):
            await probe_worker(closed_address, libtpu_ports=[worker.port], timeout=GENEROUS)


async def test_libtpu_is_not_used_after_any_other_failure() -> None:
    async with TPUWorker(faults=[Answer(body=b"\xff")]) as worker:
        with pytest.raises(ProbeError) as caught:
            await probe_worker(worker.address, libtpu_ports=[worker.port], timeout=GENEROUS)
    assert caught.value.code == "malformed"
    assert len(worker.calls) == 1
