"""Probes of many workers: results, deadlines, concurrency, streams, and misbehaving workers."""

import asyncio
import socket
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.probe import ProbeChannels, probe_worker, probe_workers, stream_workers
from aioresolve.testing import Answer, Delay, Hang, Reset, TPUWorker

pytestmark = pytest.mark.usefixtures("no_leak")

GENEROUS = 60.0
"""A timeout in seconds that does not pass, even on a busy machine."""


class Running:
    """A context manager that runs several workers."""

    def __init__(self, *workers: AbstractAsyncContextManager[Any]) -> None:
        self._workers = workers

    async def __aenter__(self) -> list[str]:
        return [(await worker.__aenter__()).address for worker in self._workers]

    async def __aexit__(self, *failure: object) -> None:
        for worker in self._workers:
            await worker.__aexit__(None, None, None)


async def wait_for_call(worker: TPUWorker) -> None:
    """Wait until the worker has received a request."""
    with anyio.fail_after(GENEROUS):
        while not worker.calls:  # noqa: ASYNC110 - nothing sets an event when it grows
            await anyio.sleep(0.002)


async def wait_for_other_tasks() -> None:
    """Wait until this is the only task: a gRPC server in this loop stops before its responses end."""
    with anyio.fail_after(GENEROUS):
        while asyncio.all_tasks() != {asyncio.current_task()}:  # noqa: ASYNC110 - there is no event
            await anyio.sleep(0.001)


async def test_worker_reports_its_devices() -> None:
    async with TPUWorker(devices=4, job="trainer", task=3) as worker:
        before = time.monotonic()
        probe = await probe_worker(worker.address, timeout=GENEROUS)
        assert 0 < probe.latency <= time.monotonic() - before
    assert probe.address == worker.address
    assert probe.source == "tensorflow"
    assert probe.accelerators == {"TPU": 4}
    assert (probe.cores, probe.chips, probe.error) == (None, None, None)
    assert [device.type for device in probe.devices] == ["CPU", "TPU", "TPU", "TPU", "TPU"]
    assert probe.devices[-1].name == "/job:trainer/replica:0/task:3/device:TPU:3"
    assert worker.calls == ["/tensorflow.WorkerService/GetStatus"]


async def test_results_are_in_the_order_of_the_addresses() -> None:
    slow, quick = TPUWorker(devices=1, faults=[Delay(0.2)]), TPUWorker(devices=2)
    async with Running(slow, quick) as addresses:
        probes = await probe_workers([*addresses, addresses[0]], worker_timeout=GENEROUS)
    assert [probe.accelerators["TPU"] for probe in probes] == [1, 2, 1]
    assert [probe.address for probe in probes] == [slow.address, quick.address, slow.address]


async def test_stream_yields_results_in_the_order_of_the_responses() -> None:
    slow, quick = TPUWorker(devices=1, faults=[Delay(0.3)]), TPUWorker(devices=2)
    async with (
        Running(slow, quick) as addresses,
        stream_workers(addresses, worker_timeout=GENEROUS) as probes,
    ):
        assert [probe.address async for probe in probes] == [quick.address, slow.address]


async def test_leaving_a_stream_cancels_the_other_probes() -> None:
    async with TPUWorker(faults=[Hang()]) as worker:
        with anyio.fail_after(GENEROUS / 2):
            async with stream_workers([worker.address], timeout=2 * GENEROUS, worker_timeout=GENEROUS):
                await wait_for_call(worker)
    await wait_for_other_tasks()


@pytest.mark.parametrize("error", [KeyError("mine"), SystemExit(3)])
async def test_error_in_the_block_of_a_stream_is_raised_unchanged(error: BaseException) -> None:
    worker = TPUWorker(faults=[Hang()])

    async def fail() -> None:
        async with stream_workers([worker.address]):
            await wait_for_call(worker)
            raise error

    async with worker:
        with pytest.raises(type(error)) as caught:
            await fail()
    assert caught.value is error
    await wait_for_other_tasks()


MISBEHAVING: dict[str, dict[str, Any]] = {
    "deadline: connected": {"faults": [Hang()]},
    "malformed: garbage": {"faults": [Answer(body=b"\xff\xff\xff")]},
    "malformed: 100,001 devices": {"devices": 100_001},
    "malformed: nothing": {"faults": [Answer(body=b"")]},
    "too_large": {"devices": 10_000_000},
    "unreachable: reset": {"faults": [Reset()]},
    "unreachable: TLS": {"tls": True},
    "unimplemented: another service": {"services": []},
    "denied": {"metadata": {"authorization": "Bearer other"}},
}


@pytest.mark.slow
async def test_misbehaving_worker_does_not_affect_others(closed_address: str) -> None:
    workers = {what: TPUWorker(**options) for what, options in MISBEHAVING.items()}
    good = [TPUWorker(), TPUWorker()]
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections, and never sends anything
        others = [closed_address, f"127.0.0.1:{silent.getsockname()[1]}"]
        async with Running(good[0], *workers.values(), good[1]) as addresses:
            probes = await probe_workers([*addresses, *others], worker_timeout=3.0, libtpu_ports=[])
    first, *bad, last, refused, unheard = probes
    assert [first.accelerators, last.accelerators] == [{"TPU": 8}] * 2
    for what, probe in zip([*workers, "refused", "deadline: silent"], [*bad, refused, unheard], strict=True):
        assert probe.error is not None, what
        assert probe.error.code == what.partition(":")[0], str(probe.error)
        assert probe.error.address == probe.address
        assert (probe.devices, probe.source) == ((), None)
        assert (probe.latency > 2.9) is what.startswith("deadline")
    assert "If the worker uses TLS" in str(bad[list(workers).index("unreachable: TLS")].error)


async def test_worker_that_was_not_probed_before_the_deadline_may_be_probed_again() -> None:
    async with TPUWorker(faults=[Hang()], ports=2) as worker:
        _, late = await probe_workers(worker.addresses, timeout=0.1, max_concurrency=1)
    assert late.error is not None
    assert "was not probed before the deadline for all workers (0.1 s)" in late.error.summary
    assert (late.error.code, late.error.retryable) == ("deadline", True)


@pytest.mark.slow
async def test_results_after_the_total_deadline_show_which_probes_had_started() -> None:
    worker = TPUWorker(faults=[Hang()], ports=5)
    async with worker:
        before = time.monotonic()
        probes = await probe_workers(
            worker.addresses, timeout=2.0, worker_timeout=GENEROUS, max_concurrency=2
        )
        took = time.monotonic() - before
    assert len(worker.calls) == 2
    messages = [str(probe.error) for probe in probes]
    assert ["did not respond to GetStatus within" in text for text in messages] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert ["was not probed" in text for text in messages] == [False, False, True, True, True]
    assert {probe.error.code for probe in probes if probe.error} == {"deadline"}
    assert [probe.latency > 0 for probe in probes] == [True, True, False, False, False]
    assert took < GENEROUS / 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"libtpu_ports": 8431}, "8431 is not a list of ports"),
        ({"libtpu_ports": {"a:1": "8431"}}, "'8431' is not a list of ports"),
        ({"addresses": "a:1"}, "probe_worker"),
        ({"addresses": ["a"]}, "'a' is not a worker address"),
        ({"addresses": ["a:1", "a:0"]}, "'a:0' is not a worker address"),
        ({"addresses": ["a:65535", "a:65536"]}, "'a:65536' is not a worker address"),
        ({"timeout": 0}, "`timeout=`: 0"),
        ({"worker_timeout": float("inf")}, "`worker_timeout=`: inf"),
        ({"max_concurrency": 0}, "`max_concurrency=`: 0"),
        ({"libtpu_ports": [8431, 65536]}, "`libtpu_ports=`: .*65536"),
    ],
)
async def test_invalid_argument_is_named_before_any_request(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        await probe_workers(**{"addresses": ["a:1"], **arguments})


async def test_certificate_of_the_worker_is_verified() -> None:
    async with TPUWorker(tls=True) as worker, TPUWorker(tls=True) as other:
        channels = ProbeChannels.over_tls(worker.certificate_authority)
        addresses = [worker.address, other.address]
        good, bad = await probe_workers(addresses, channels=channels, worker_timeout=GENEROUS)
    assert good.accelerators == {"TPU": 8}
    assert bad.error is not None
    assert bad.error.code == "tls"
    assert "Check that the worker uses TLS" in str(bad.error)


@pytest.mark.parametrize("fault", [Hang(), Delay(0.01)], ids=str)
async def test_cancelled_probe_leaves_no_task_behind(fault: Hang | Delay) -> None:
    async with TPUWorker(faults=[fault], ports=8) as worker:
        for seconds in (0.0, 0.001, 0.005, 0.01, 0.05):
            with anyio.move_on_after(seconds):
                await probe_workers(worker.addresses, worker_timeout=1.0)
    await wait_for_other_tasks()
