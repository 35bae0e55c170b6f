"""Channels: kept connections, TLS, metadata and limits."""

import socket
from contextlib import nullcontext
from typing import Any

import grpc
import pytest

from aioresolve.errors import ConfigurationError, ProbeError
from aioresolve.probe import ProbeChannels, WorkerProbe, probe_worker, probe_workers
from aioresolve.testing import Delay, TPUWorker

pytestmark = pytest.mark.usefixtures("no_leak")

GENEROUS = 60.0


async def test_connection_is_kept_inside_the_block() -> None:
    async with TPUWorker() as worker:
        async with ProbeChannels() as channels:
            for _ in range(3):
                await probe_worker(worker.address, channels=channels, timeout=GENEROUS)
            assert len(set(worker.peers)) == 1
            with pytest.raises(ConfigurationError, match="<ProbeChannels without TLS> are already entered"):
                await channels.__aenter__()
        await channels.aclose()
        for _ in range(2):  # outside of the block, each probe opens a connection
            await probe_worker(worker.address, channels=channels, timeout=GENEROUS)
        assert len(set(worker.peers)) == 3


class Failing(TPUWorker):
    """Fails calls 1 and 3 as if the connection broke, rejects the second, and is too late for the fifth."""

    async def _call(self, path: str, method: Any, request: bytes, context: Any) -> bytes:
        body = await super()._call(path, method, request, context)
        code = grpc.StatusCode
        broken, denied, late = code.UNAVAILABLE, code.PERMISSION_DENIED, code.DEADLINE_EXCEEDED
        context.set_code({1: broken, 2: denied, 3: broken, 5: late}.get(len(self.calls), code.OK))
        return body


async def test_connection_is_kept_after_a_rejected_call_and_replaced_after_it_broke_or_was_late() -> None:
    async with Failing() as worker, ProbeChannels() as channels:
        # A call over a new connection is not repeated.
        for failure in ("failed or broke", "PERMISSION_DENIED", None, "did not respond to GetStatus", None):
            with pytest.raises(ProbeError, match=failure) if failure else nullcontext():
                await probe_worker(worker.address, channels=channels, libtpu_ports=[], timeout=GENEROUS)
        first, second, third, fourth, fifth, sixth = worker.peers
    assert first != second == third != fourth == fifth != sixth


async def test_concurrent_probes_of_a_worker_do_not_share_a_channel() -> None:
    async with TPUWorker(faults=[Delay(0.05)]) as worker, ProbeChannels() as channels:
        probes = await probe_workers([worker.address] * 2, channels=channels, worker_timeout=GENEROUS)
        assert [probe.error for probe in probes] == [None, None]
        assert len(set(worker.peers)) == 2


async def test_least_recently_used_channel_is_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.probe.channels.MAX_CHANNELS", 2)
    async with TPUWorker(ports=3) as worker, ProbeChannels() as channels:
        first, second, third = worker.addresses
        for address in (first, second, first, third, first, second):
            await probe_worker(address, channels=channels, timeout=GENEROUS)
        peers = worker.peers
    assert peers[0] == peers[2] == peers[4]
    assert peers[1] != peers[5]


@pytest.mark.parametrize("host", ["unix", "dns", "xds"])
async def test_a_host_whose_name_is_a_scheme_of_grpc_is_looked_up(host: str) -> None:
    channels = ProbeChannels.over_tls()  # or Python would look the name up too, to find out about TLS
    with pytest.raises(ProbeError, match=f"resolving {host}:8470|no gRPC connection to {host}:8470"):
        await probe_worker(f"{host}:8470", channels=channels, libtpu_ports=[], timeout=GENEROUS)


async def test_connection_to_a_silent_worker_is_closed_after_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ProbeError, match=f"no gRPC connection to {address} within 0[.]"):
            await probe_worker(address, libtpu_ports=[], timeout=0.1)
        connection, _ = silent.accept()
    with connection:
        connection.settimeout(15.0)  # gRPC alone would keep it for 20 s
        while connection.recv(4096):
            pass


async def test_an_ipv6_address_may_have_a_zone() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ProbeError) as error:
        await probe_worker(f"[::1%{socket.if_indextoname(1)}]:{port}", libtpu_ports=[], timeout=GENEROUS)
    assert error.value.code == "refused"


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with TPUWorker() as worker:
        assert (await probe_worker(worker.address, timeout=GENEROUS)).accelerators == {"TPU": 8}


async def test_restarted_worker_is_probed_over_a_new_connection() -> None:
    worker = TPUWorker()
    async with ProbeChannels() as channels:
        async with worker:
            before = await probe_worker(worker.address, channels=channels, timeout=GENEROUS)
        with pytest.raises(ProbeError, match="refused"):
            await probe_worker(worker.address, channels=channels, libtpu_ports=[], timeout=GENEROUS)
        async with worker:
            after = await probe_worker(worker.address, channels=channels, timeout=GENEROUS)
    assert before.accelerators == after.accelerators == {"TPU": 8}
    assert incarnations(before).isdisjoint(incarnations(after))


def incarnations(probe: WorkerProbe) -> set[int | None]:
    return {device.incarnation for device in probe.devices}


def test_credentials_of_another_kind_are_rejected() -> None:
    credentials: Any = "token"
    with pytest.raises(ConfigurationError, match=r"Create them with grpc\.ssl_channel_credentials"):
        ProbeChannels(credentials=credentials)
