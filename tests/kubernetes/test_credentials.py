"""Connections: the headers, the TLS context, and how credentials are renewed."""

import asyncio
import json
import logging
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from aioresolve._core.http import Response
from aioresolve.errors import ConfigurationError, CredentialsError, TLSError
from aioresolve.kubernetes.auth import Connection
from aioresolve.kubernetes.auth.credentials import Identity
from aioresolve.testing import pod

from .kubeconfigs import (
    SERVER,
    bearer_of,
    client_pair,
    connect,
    context_of,
    headers_of,
    id_token,
    isolate,
    kubeconfig,
    renew,
    write_file,
)
from .loopback import TOKEN, TRAIN, run_loopback


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test that logs a secret; all secrets in this file contain this word."""
    caplog.set_level(logging.DEBUG)
    yield
    assert "hunter22" not in caplog.text


async def connect_as(user: dict[str, Any], folder: Path, **cluster: Any) -> Connection:
    return await connect(write_file(folder / "config", kubeconfig(user, **cluster)))


# Headers


def provider(name: str, **config: str) -> dict[str, Any]:
    values = {key.replace("_", "-"): value for key, value in config.items()}
    return {"auth-provider": {"name": name, "config": values}}


async def test_token_of_a_provider_is_used_and_its_successor_after_a_rejection(tmp_path: Path) -> None:
    token, renewed = id_token(exp=4102444800), id_token(sub="ada")
    connection = await connect_as(provider("oidc", id_token=token), tmp_path)
    assert await bearer_of(connection) == token
    assert (await connection.identity()).expires == 4102444800
    write_file(tmp_path / "config", kubeconfig(provider("oidc", id_token=renewed)))
    assert await renew(connection)
    assert await bearer_of(connection) == renewed
    assert (await connection.identity()).expires is None


async def test_provider_without_a_valid_token_is_reported_and_the_token_not_shown(tmp_path: Path) -> None:
    for user, expected in (
        (provider("oidc", id_token=id_token(exp=1)), "its token has expired. Run any kubectl command"),
        (provider("oidc", refresh_token="hunter22"), "its token is missing"),
        (provider("azure"), "is not supported, and not by kubectl since 1.26"),
    ):
        with pytest.raises((ConfigurationError, CredentialsError)) as caught:
            await connect_as(user, tmp_path)
        assert expected in str(caught.value)
        assert "hunter22" not in "".join(traceback.format_exception(caught.value))


async def test_token_in_the_kubeconfig_is_used_while_the_token_file_has_none(tmp_path: Path) -> None:
    file = tmp_path / "token"
    connection = await connect_as({"token": "inline", "tokenFile": "token"}, tmp_path)
    assert await bearer_of(connection) == "inline"
    for content, token in ((" \n", "inline"), ("from-file\n", "from-file"), ("a\nb", "from-file")):
        file.write_text(content)
        await renew(connection)
        assert await bearer_of(connection) == token
    file.write_text("hunter22\nhunter22")
    with pytest.raises(ConfigurationError, match=r"tokenFile .*/token contains a line break") as caught:
        await connect_as({"tokenFile": "token"}, tmp_path)
    assert "hunter22" not in str(caught.value)


async def test_no_credentials_are_sent_over_plain_http(tmp_path: Path) -> None:
    connection = await connect_as({"token": "hunter22"}, tmp_path, server="http://10.0.0.1:8080/")
    assert connection.server == "http://10.0.0.1:8080"
    assert await headers_of(connection) == {}
    assert (await connection.credentials()).ssl_context is None
    assert "no credentials are sent over plain http" in connection.source


# Proxies


async def test_proxy_of_the_cluster_comes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://plain:3128")
    monkeypatch.setenv("HTTPS_PROXY", "env:3128")
    assert (await connect_as({}, tmp_path, server="https://api.example")).proxy == "http://env:3128"
    assert (await connect_as({}, tmp_path, server="http://api.example")).proxy == "http://plain:3128"
    for server, exempt in (
        ("https://10.0.0.1:6443", "10.0.0.0/8"),
        ("https://[fd00::1]:6443", "x, fd00::/8"),
        ("https://api.example:6443", "example"),
        ("https://api.example:6443", "api.example:6443"),
        ("https://localhost:6443", ""),
    ):
        for no_proxy in (exempt, "11.0.0.0/8,ample,api.example:443"):
            monkeypatch.setenv("NO_PROXY", no_proxy)
            proxy = (await connect_as({}, tmp_path, server=server)).proxy
            assert (proxy is None) == (no_proxy == exempt or "localhost" in server)
    connection = await connect_as({}, tmp_path, **{"proxy-url": "http://me:hunter22@own:1"})
    assert connection.proxy == "http://me:hunter22@own:1"
    assert repr(connection) == (
        f"<Connection to {SERVER} through http://own:1 from kubeconfig {tmp_path}/config, context 'dev'>"
    )
    monkeypatch.setenv("HTTPS_PROXY", "socks5://me:hunter22@p:1")
    with pytest.raises(ConfigurationError, match="HTTPS_PROXY is not the URL of an HTTP proxy"):
        await connect_as({}, tmp_path, server="https://api.example:444")


# TLS


async def test_replaced_client_certificate_makes_a_new_context(tmp_path: Path) -> None:
    authority = trustme.CA()

    def write() -> None:
        chain, key = client_pair(authority)
        write_file(tmp_path / "client.pem", chain)
        write_file(tmp_path / "client.key", key)

    write()
    connection = await connect_as({"client-certificate": "client.pem", "client-key": "client.key"}, tmp_path)
    before, other = await asyncio.gather(context_of(connection), context_of(connection))
    assert other is before
    assert await headers_of(connection) == {}
    for name in ("none", "client.key", "client.pem"):
        write_file(tmp_path / name, "")  # a file that is being replaced may be empty for a moment
        assert not await renew(connection)
    assert await context_of(connection) is before
    write()
    assert await renew(connection)
    assert await context_of(connection) is not before


async def test_resolver_recovers_when_the_authority_of_the_server_is_replaced(tmp_path: Path) -> None:
    pods = [pod("train-0", namespace="ml", labels=TRAIN)]
    with ExitStack() as first:
        old = first.enter_context(run_loopback(tmp_path, *pods))
        file = write_file(tmp_path / "ca.pem", old.server.ca_pem)
        document = json.loads(old.kubeconfig.read_text())
        cluster = document["clusters"][0]["cluster"]
        del cluster["certificate-authority-data"]
        cluster["certificate-authority"] = "ca.pem"
        config = write_file(tmp_path / "config", kubeconfig({"token": TOKEN}, **cluster))
        async with old.resolver(kubeconfig=config) as resolver:
            spec = await resolver.cluster_spec()
            first.close()
            with run_loopback(tmp_path, *pods, port=old.server.port) as new:
                with pytest.raises(TLSError, match="was not accepted"):
                    await resolver.cluster_spec()
                write_file(file, "half of a cert")
                with pytest.raises(TLSError, match="was not accepted"):
                    await resolver.cluster_spec()
                write_file(file, new.server.ca_pem)
                assert await resolver.cluster_spec() == spec
                async for state in resolver.watch():
                    assert state.spec == spec
                    break


# After a 401


async def test_replaced_token_in_the_kubeconfig_is_read_once_after_a_rejection(tmp_path: Path) -> None:
    connection = await connect_as({"token": "old"}, tmp_path)
    rejected = await connection.credentials()
    assert not await renew(connection)
    write_file(tmp_path / "config", kubeconfig({"token": "new"}))
    assert await renew(connection)
    write_file(tmp_path / "config", kubeconfig({"token": "newer"}))
    await connection.renew(rejected, Response(401, b""))  # of a request that was sent before
    assert await bearer_of(connection) == "new"


async def test_server_and_context_do_not_change_after_the_start(tmp_path: Path) -> None:
    connection = await connect_as({"token": "old"}, tmp_path)
    write_file(tmp_path / "config", kubeconfig({"token": "other"}, server="https://10.9.9.9"))
    assert not await renew(connection)
    assert await bearer_of(connection) == "old"
    config = kubeconfig({"token": "new"})
    config["contexts"].append({"name": "other", "context": {"cluster": "dev"}})
    write_file(tmp_path / "config", {**config, "current-context": "other"})
    assert await renew(connection)
    assert await bearer_of(connection) == "new"


def test_identity_is_used_until_shortly_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.auth.credentials.time", lambda: 2_000.0)
    for expires, is_used in ((2_010.5, True), (2_010.0, False)):
        identity = Identity(expires=expires)
        assert (identity.is_fresh, identity.is_valid) == (is_used, is_used)
