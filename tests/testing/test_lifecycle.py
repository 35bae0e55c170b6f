"""Start, stop, restart, TLS, credentials and threads of the loopback servers, without leaks."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

import aiohttp
import pytest

import aioresolve.testing
from aioresolve._core.http.client import close_one_sidedly
from aioresolve.errors import ConfigurationError, DeadlineExceededError, MissingDependencyError
from aioresolve.testing import Answer, Hang, KubernetesServer, pod

from .client import fetch, open_session, open_watch

if TYPE_CHECKING:
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer


def read(server: ThreadedKubernetesServer, path: str = "/api/v1/pods") -> dict[str, object]:
    with urllib.request.urlopen(f"{server.url}{path}", timeout=5) as response:
        document: dict[str, object] = json.load(response)
        return document


@pytest.mark.usefixtures("no_leak")
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


@pytest.mark.usefixtures("no_leak")
async def test_failed_start_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    async with KubernetesServer() as server:
        with pytest.raises(ConfigurationError, match="port=0 takes a free port"):
            await KubernetesServer(port=server.port).__aenter__()
    assert asyncio.all_tasks() == before


async def test_server_cannot_be_started_twice() -> None:
    async with KubernetesServer() as server:
        with pytest.raises(ConfigurationError, match="already running"):
            await server.__aenter__()


async def test_server_can_be_started_again() -> None:
    server = KubernetesServer([pod("a")])
    async with server:
        port = server.port
    async with server:
        assert server.port == port
        assert (await fetch(server)).names == ["a"]


async def test_data_survives_a_restart_and_connections_do_not() -> None:
    async with KubernetesServer([pod("a")]) as server, open_session(server) as session:
        server.inject(Answer(503))
        async with session.get("/api/v1/pods?watch=1", headers={"User-Agent": "x"}) as rejected:
            assert rejected.status == 503
        async with session.get("/api/v1/pods?watch=1&resourceVersion=2") as watch:
            url, version = server.url, server.resource_version
            await server.until(lambda: server.watches == 1)
            await server.restart()
            with pytest.raises(aiohttp.ClientError):
                await watch.content.readline()
        assert (server.url, server.resource_version) == (url, version)
        assert (await fetch(server)).names == ["a"]
        assert server.watches == 0


async def test_connections_are_refused_while_the_server_is_down() -> None:
    async with KubernetesServer([pod("a")]) as server:
        async with server.down():
            with pytest.raises(aiohttp.ClientConnectorError):
                await fetch(server)
            server.delete("a")
        assert (await fetch(server)).names == []
    with pytest.raises(ConfigurationError, match="not running"):
        await server.restart()


@pytest.mark.usefixtures("no_leak")
@pytest.mark.parametrize("tls", [False, True])
async def test_port_of_a_server_that_is_down_is_not_assigned_to_others(tls: bool) -> None:
    async with KubernetesServer(tls=tls) as server:
        async with server.down():
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((server.host, server.port))
        assert (await fetch(server)).names == []


@pytest.mark.usefixtures("no_leak")
async def test_client_connecting_while_the_port_closes_is_disconnected() -> None:
    async with KubernetesServer() as server:
        for rounds in range(10):
            connecting = asyncio.create_task(asyncio.open_connection(server.host, server.port))
            for _ in range(rounds):
                await asyncio.sleep(0)
            async with server.down():
                with suppress(ConnectionError):
                    _, writer = await connecting
                    writer.close()


@pytest.mark.usefixtures("no_leak")
async def test_tls_handshake_that_ends_while_the_server_is_down_is_disconnected() -> None:
    loop = asyncio.get_running_loop()
    async with KubernetesServer(tls=True) as server:
        context = ssl.create_default_context(cadata=server.ca_pem)
        with socket.socket() as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, (server.host, server.port))
            async with server.down():
                with suppress(ConnectionError):
                    reader, writer = await asyncio.open_connection(
                        sock=connection, ssl=context, server_hostname=server.host
                    )
                    assert await reader.read() == b""
                    writer.close()
            assert server.connections == 0


async def test_server_can_be_stopped_while_it_is_down() -> None:
    server = KubernetesServer()
    async with server:
        down = server.down()
        await down.__aenter__()
    with socket.socket() as other:
        other.bind((server.host, server.port))
    await down.__aexit__(None, None, None)
    with pytest.raises(aiohttp.ClientConnectorError):
        await fetch(server)


async def test_restore_returns_to_an_older_version() -> None:
    async with KubernetesServer([pod("a")]) as server:
        old = server.resource_version
        server.add(pod("b"))
        server.delete("a")
        newest = str(server.resource_version)
        assert (await fetch(server)).names == ["b"]
        async with server.down():
            server.restore(old)
        assert server.resource_version == old
        assert (await fetch(server)).names == ["a"]
        future = {"resourceVersion": newest, "resourceVersionMatch": "NotOlderThan"}
        assert (await fetch(server, query=future)).status == 504
        async with open_watch(server, resourceVersion=newest) as watch:
            for name in ("c", "d", "e", "f"):
                server.add(pod(name))
                # No response of an undone version is cached.
                assert (await fetch(server)).names[-1] == name
            assert await watch.events(1) == [("ADDED", "f", str(int(newest) + 1))]


async def test_restore_rejects_future_and_expired_versions() -> None:
    async with KubernetesServer([pod("a")]) as server:
        with pytest.raises(ConfigurationError, match="version 99 does not exist yet"):
            server.restore(99)
        server.compact()
        with pytest.raises(ConfigurationError, match="has been compacted"):
            server.restore(2)


async def test_until_has_a_timeout() -> None:
    async with KubernetesServer() as server:
        with pytest.raises(DeadlineExceededError, match=r"within 0\.01 s"):
            await server.until(lambda: False, timeout=0.01)


async def test_server_listens_on_ipv6() -> None:
    async with KubernetesServer(host="::1", tls=True) as server:
        assert server.url == f"https://[::1]:{server.port}"
        assert (await fetch(server)).status == 200


# TLS


async def test_certificate_is_valid_for_loopback_addresses_and_hostnames() -> None:
    # In a thread, because a loop in debug mode logs every handshake that a client aborts.
    with KubernetesServer(tls=True, hostnames=("api.example.com",)).in_thread() as server:
        context = ssl.create_default_context(cadata=server.ca_pem)

        async def connect(name: str) -> None:
            address = (server.host, server.port)
            _, writer = await asyncio.open_connection(*address, ssl=context, server_hostname=name)
            writer.close()
            await writer.wait_closed()

        for name in ("127.0.0.1", "::1", "localhost", "api.example.com"):
            await connect(name)
        with pytest.raises(ssl.SSLCertVerificationError):
            await connect("example.org")


async def test_default_trust_store_rejects_the_certificate() -> None:
    with KubernetesServer(tls=True).in_thread() as server:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.get(server.url)


async def test_client_certificate_authenticates_a_user(tmp_path: Path) -> None:
    async with KubernetesServer(tls=True, tokens={}) as server:
        chain, key = server.client_certificate("carol")
        (tmp_path / "chain.pem").write_text(chain)
        (tmp_path / "key.pem").write_text(key)
        context = close_one_sidedly(ssl.create_default_context(cadata=server.ca_pem))
        context.load_cert_chain(tmp_path / "chain.pem", tmp_path / "key.pem")
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{server.url}/api/v1/pods", ssl=context) as response,
        ):
            assert response.status == 200
        assert (await fetch(server)).status == 401
        assert [(r.scheme, r.user) for r in server.requests] == [("Certificate", "carol"), ("", None)]


async def test_certificate_authority_survives_a_restart() -> None:
    server = KubernetesServer(tls=True)
    async with server:
        pem = server.ca_pem
        await server.restart()
        assert (await fetch(server)).status == 200
    async with server:
        assert server.ca_pem == pem


def test_server_without_tls_has_no_certificate_authority() -> None:
    with pytest.raises(ConfigurationError, match="tls=True"):
        _ = KubernetesServer().ca_pem


async def test_missing_trustme_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'aioresolve\[testing\]'"):
        await KubernetesServer(tls=True).__aenter__()
    async with KubernetesServer() as server:
        assert (await fetch(server)).status == 200


# Credentials


async def test_kubeconfig_has_server_credentials_and_namespace(tmp_path: Path) -> None:
    async with KubernetesServer(tls=True, tokens={"secret": "alice"}, passwords={"bob": "word"}) as server:
        path = server.write_kubeconfig(tmp_path / "config", namespace="ml")
        written = json.loads(path.read_text())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert written == server.kubeconfig(namespace="ml")
        (cluster,), (user,), (context,) = written["clusters"], written["users"], written["contexts"]
        assert cluster["cluster"]["server"] == server.url
        assert user["user"] == {"token": "secret"}
        assert context["context"] == {"cluster": "loopback", "user": "loopback", "namespace": "ml"}
        assert written["current-context"] == "loopback"
        assert server.kubeconfig(token="other")["users"][0]["user"] == {"token": "other"}
        assert server.kubeconfig(password_of="bob")["users"][0]["user"] == {
            "username": "bob",
            "password": "word",
        }
        assert set(server.kubeconfig(certificate_of="carol")["users"][0]["user"]) == {
            "client-certificate-data",
            "client-key-data",
        }


async def test_kubeconfig_of_an_open_server_has_no_credentials() -> None:
    async with KubernetesServer() as server:
        config = server.kubeconfig()
    assert config["users"][0]["user"] == {}
    assert config["clusters"][0]["cluster"] == {"server": server.url}


async def test_kubeconfig_needs_an_existing_user() -> None:
    async with KubernetesServer() as server:
        with pytest.raises(ConfigurationError, match="'bob' has no password"):
            server.kubeconfig(password_of="bob")
        with pytest.raises(ConfigurationError, match="tls=True"):
            server.kubeconfig(certificate_of="carol")


async def test_in_cluster_writes_files_and_returns_variables(tmp_path: Path) -> None:
    async with KubernetesServer(tls=True, tokens={"secret": "alice"}) as server:
        variables = server.in_cluster(tmp_path / "account", namespace="ml")
        assert variables == {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        files = {each.name: each.read_text() for each in (tmp_path / "account").iterdir()}
        assert files == {"token": "secret", "namespace": "ml", "ca.crt": server.ca_pem}
        server.in_cluster(tmp_path / "account", token="next")
        assert (tmp_path / "account" / "token").read_text() == "next"


async def test_in_cluster_needs_tls(tmp_path: Path) -> None:
    async with KubernetesServer() as server:
        with pytest.raises(ConfigurationError, match="tls=True"):
            server.in_cluster(tmp_path)


# Threads


@pytest.mark.usefixtures("no_leak")
def test_server_runs_in_a_thread() -> None:
    with KubernetesServer([pod("a")]).in_thread() as server:
        assert read(server)["kind"] == "PodList"
        server.add(pod("b"))
        server.restart()
        items = read(server)["items"]
        assert isinstance(items, list)
        assert len(items) == 2
        with server.down(), pytest.raises(urllib.error.URLError):
            read(server)
        server.inject(Answer(503))
        with pytest.raises(urllib.error.HTTPError) as caught:
            read(server)
        caught.value.close()
        server.until(lambda: server.connections == 0)
    with pytest.raises(ConfigurationError, match="not running"):
        server.restart()


@pytest.mark.usefixtures("no_leak")
def test_server_can_run_in_a_thread_again() -> None:
    server = KubernetesServer([pod("a")])
    for _ in range(2):
        with server.in_thread() as threaded:
            assert read(threaded)["kind"] == "PodList"


@pytest.mark.usefixtures("no_leak")
def test_failed_start_in_a_thread_leaves_no_thread() -> None:
    with (
        KubernetesServer().in_thread() as server,
        pytest.raises(ConfigurationError, match="port=0 takes a free port"),
    ):
        KubernetesServer(port=server.port).in_thread().__enter__()


@pytest.mark.usefixtures("no_leak")
def test_many_threads_can_write_while_a_watch_reads() -> None:
    with KubernetesServer().in_thread() as server:
        url = f"{server.url}/api/v1/pods?watch=1&allowWatchBookmarks=true"
        with urllib.request.urlopen(url, timeout=10) as watch:
            server.until(lambda: server.watches == 1)

            def write(writer: int) -> None:
                for number in range(50):
                    server.add(pod(f"a-{writer}-{number}"))

            writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            versions: list[int] = []
            while len(versions) < 200:
                event = json.loads(watch.readline())
                if event["type"] == "ADDED":
                    versions.append(int(event["object"]["metadata"]["resourceVersion"]))
    assert versions == list(range(2, 202))


# The package


def test_every_public_name_can_be_loaded() -> None:
    for name in aioresolve.testing.__all__:
        assert getattr(aioresolve.testing, name).__name__ == name
    assert dir(aioresolve.testing) == sorted(aioresolve.testing.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = aioresolve.testing.nothing


def test_package_loads_no_third_party_library() -> None:
    heavy = ("aiohttp", "anyio", "trustme")
    code = f"import sys, aioresolve.testing; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "[]"


def test_server_imports_only_the_errors_of_the_library() -> None:
    code = (
        "import sys, aioresolve; before = set(sys.modules); import aioresolve.testing.kubernetes.server; "
        "loaded = set(sys.modules) - before; "
        "print(sorted(m for m in loaded if m.startswith('aioresolve.') and '.testing' not in m))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.strip() == "['aioresolve.errors']"


def test_constructor_does_no_io() -> None:
    server = KubernetesServer([pod("a")], tls=True)
    assert (server.port, server.connections, server.watches, server.requests) == (0, 0, 0, ())
