"""aioresolve, kubernetes_asyncio and kubernetes read the same kubeconfigs.

Omitted are the cases in which those clients differ from client-go and aioresolve does not: they prefer a
plugin to the user's own token, and `token` to `tokenFile`; the current-context of the last file wins; they
send credentials over plain http, and ignore impersonation.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve.kubernetes.auth.discovery import Search

from .kubeconfigs import (
    base64_of,
    client_pair,
    connect,
    exec_user,
    headers_of,
    kubeconfig,
    write_file,
    write_plugin,
)

asynchronous = pytest.importorskip("kubernetes_asyncio")
synchronous = pytest.importorskip("kubernetes")

AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes()
CHAIN, KEY = client_pair(AUTHORITY)
TOKENS = st.text("abcXYZ019-_.", min_size=1, max_size=20)
HOSTS = st.sampled_from(["10.0.0.1", "api.example", "[fd00::1]"])


@st.composite
def users(draw: st.DrawFn) -> dict[str, Any]:
    credentials = draw(
        st.one_of(
            st.just({}),
            st.fixed_dictionaries({"token": TOKENS}),
            st.just({"tokenFile": "token"}),
            st.fixed_dictionaries({"username": TOKENS, "password": TOKENS}),
        )
    )
    certificate = draw(
        st.sampled_from(
            [
                {},
                {"client-certificate": "client.pem", "client-key": "client.key"},
                {"client-certificate-data": base64_of(CHAIN), "client-key-data": base64_of(KEY)},
            ]
        )
    )
    return {**credentials, **certificate}


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, Any]:
    port, path = draw(st.integers(1, 65535)), draw(st.sampled_from(["", "/", "/k8s/clusters/c-1"]))
    cluster: dict[str, Any] = {"server": f"https://{draw(HOSTS)}:{port}{path}"}
    cluster |= draw(
        st.sampled_from(
            [
                {},
                {"certificate-authority": "ca.pem"},
                {"certificate-authority-data": base64_of(CA)},
                {"insecure-skip-tls-verify": True},
                {"insecure-skip-tls-verify": False},
            ]
        )
    )
    return cluster | draw(st.sampled_from([{}, {"proxy-url": "http://proxy:3128"}, {"tls-server-name": "x"}]))


def content(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def seen_by_us(server: Any) -> dict[str, Any]:
    assert server.trust is not None
    certificate = server.identity.certificate
    return {
        "host": server.server,
        "authorization": server.identity.authorization,
        "authority": server.trust.authorities,
        "verify": server.trust.verify,
        "certificate": certificate and certificate.chain,
        "key": certificate and certificate.key,
        "server name": server.tls_server_name,
        "proxy": server.proxy,
    }


def seen_by(configuration: Any) -> dict[str, Any]:
    return {
        "host": configuration.host,
        "authorization": configuration.api_key.get("BearerToken")
        or configuration.api_key.get("authorization"),
        "authority": content(configuration.ssl_ca_cert),
        "verify": configuration.verify_ssl,
        "certificate": content(configuration.cert_file),
        "key": content(configuration.key_file),
        "server name": configuration.tls_server_name,
        "proxy": configuration.proxy,
    }


def read_asynchronously(path: Path) -> Any:
    configuration = asynchronous.client.Configuration()
    asyncio.run(
        asynchronous.config.load_kube_config(
            str(path), client_configuration=configuration, persist_config=False
        )
    )
    return configuration


def read_synchronously(path: Path) -> Any:
    configuration = synchronous.client.Configuration()
    synchronous.config.load_kube_config(str(path), client_configuration=configuration, persist_config=False)
    return configuration


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}:
            monkeypatch.delenv(name)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(users(), clusters())
def test_all_three_clients_read_a_kubeconfig_alike(user: dict[str, Any], cluster: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in (("token", b"tok"), ("ca.pem", CA), ("client.pem", CHAIN), ("client.key", KEY)):
            write_file(folder / file, text)
        # JSON, because PyYAML writes strings without quotes that are numbers or booleans for kubectl, as `Y`.
        path = write_file(folder / "config", json.dumps(kubeconfig(user, **cluster)))
        ours = seen_by_us(Search({}).find([str(path)]))
        assert ours == seen_by(read_asynchronously(path))
        assert ours == seen_by(read_synchronously(path))


async def test_all_three_clients_get_the_same_token_from_a_plugin(tmp_path: Path) -> None:
    script = write_plugin(tmp_path, 'credential({"token": "t"})')
    path = write_file(tmp_path / "config", kubeconfig(exec_user(script)))
    connection = await connect(path)
    ours = (await headers_of(connection))["Authorization"]
    for read in (read_asynchronously, read_synchronously):
        assert seen_by(await asyncio.to_thread(read, path))["authorization"] == ours
