"""Start, stop, restart, TLS, credentials and threads of the loopback servers, without leaks."""

import asyncio
import json
import socket
import stat
import sys
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from aioresolve.errors import ConfigurationError, MissingDependencyError
from aioresolve.testing import Answer, Hang, KubernetesServer, ThreadedKubernetesServer, pod

from .client import fetch, open_watch, trusting

pytestmark = pytest.mark.usefixtures("no_leak")


async def test_stop_with_connected_clients_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    session = aiohttp.ClientSession()
    async with KubernetesServer([pod("a")]) as server:
        server.inject(Hang(), match=lambda request: request.verb == "list")
        watch = await session.get(f"{server.url}/api/v1/pods?watch=1")
        hanging = asyncio.create_task(session.get(f"{server.url}/api/v1/pods"))
        await server.until(lambda: len(server.requests) == 2 and server.watches == 1)
    assert server.watches == 0
    assert server.connections == 0
    with pytest.raises(aiohttp.ClientError):
        await hanging
    with pytest.raises(aiohttp.ClientError):
        await watch.read()
    watch.release()
    await session.close()
    assert asyncio.all_tasks() == before


async def test_server_keeps_its_port_data_and_certificate_authority() -> None:
    server = KubernetesServer([pod("a")], tls=True)
    assert (server.port, server.connections, server.watches, server.requests) == (0, 0, 0, ())
    async with server:
        url, pem = server.url, server.ca_pem
        with pytest.raises(ConfigurationError, match="already running"):
            await server.__aenter__()
        with pytest.raises(ConfigurationError, match="port=0 takes a free port"):
            await KubernetesServer(port=server.port).__aenter__()
    with pytest.raises(ConfigurationError, match="not running"):
        await server.restart()
    async with server:
        assert (server.url, server.ca_pem) == (url, pem)
        async with open_watch(server, resourceVersion="2") as watch:
            await server.restart()
            with pytest.raises(aiohttp.ClientError):
                await watch.line()
        assert (server.url, server.ca_pem, server.watches) == (url, pem, 0)
        assert (await fetch(server)).names == ["a"]


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_port_of_a_server_that_is_down_refuses_connections_and_is_not_assigned(tls: bool) -> None:
    async with KubernetesServer([pod("a")], tls=tls) as server:
        async with server.down():
            with pytest.raises(aiohttp.ClientConnectorError):
                await fetch(server)
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((server.host, server.port))
            server.delete("a")
        assert (await fetch(server)).names == []
        down = server.down()
        await down.__aenter__()
    with socket.socket() as other:
        other.bind((server.host, server.port))
    await down.__aexit__(None, None, None)
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(server)


async def test_server_listens_on_ipv6() -> None:
    async with KubernetesServer(host="::1", tls=True) as server:
        assert server.url == f"https://[::1]:{server.port}"
        assert (await fetch(server)).status == 200


# TLS


async def test_client_certificate_authenticates_a_user(tmp_path: Path) -> None:
    async with KubernetesServer(tls=True, tokens={}) as server:
        chain, key = server.client_certificate("carol")
        (tmp_path / "chain.pem").write_text(chain)
        (tmp_path / "key.pem").write_text(key)
        context = trusting(server)
        context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server.url}/api/v1/pods", ssl=context) as response,
        ):
            assert response.status == 200
        assert (await fetch(server)).status == 401
        assert [(r.scheme, r.user) for r in server.requests] == [("Certificate", "carol"), ("", None)]


async def test_missing_trustme_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'aioresolve\[testing\]'"):
        await KubernetesServer(tls=True).__aenter__()
    async with KubernetesServer() as server:
        assert (await fetch(server)).status == 200


def test_kubeconfig_is_readable_only_by_its_owner(tmp_path: Path) -> None:
    path = KubernetesServer(tokens={"secret": "alice"}).write_kubeconfig(tmp_path / "config")
    assert (stat.S_IMODE(path.stat().st_mode), "secret" in path.read_text()) == (0o600, True)


# Threads


def read_names(server: ThreadedKubernetesServer) -> list[str]:
    with urllib.request.urlopen(f"{server.url}/api/v1/pods", timeout=60) as response:
        return [each["metadata"]["name"] for each in json.load(response)["items"]]


def test_server_runs_in_a_thread() -> None:
    in_thread = KubernetesServer([pod("a")])
    with in_thread.in_thread() as server:
        assert read_names(server) == ["a"]
        server.add(pod("b"))
        server.restart()
        with server.down(), pytest.raises(urllib.error.URLError):
            read_names(server)
        server.inject(Answer(503))
        with pytest.raises(urllib.error.HTTPError) as caught:
            read_names(server)
        caught.value.close()
        server.until(lambda: server.connections == 0)
        with pytest.raises(ConfigurationError, match="port=0 takes a free port"):
            KubernetesServer(port=server.port).in_thread().__enter__()
    with pytest.raises(ConfigurationError, match="not running"):
        server.restart()
    with in_thread.in_thread() as server:
        assert read_names(server) == ["a", "b"]
