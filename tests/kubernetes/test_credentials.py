"""Connections: the headers, the TLS context, and how credentials are renewed."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
import traceback
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from aioresolve.errors import ConfigurationError, CredentialsError, DeadlineExceededError, TLSError
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.api.client import AiohttpTransport
from aioresolve.kubernetes.auth import Connection, CredentialCache
from aioresolve.testing import pod

from .kubeconfigs import (
    SERVER,
    base64_of,
    bearer_of,
    client_pair,
    connect,
    exec_user,
    id_token,
    isolate,
    kubeconfig,
    runs_of,
    write_file,
    write_plugin,
)
from .loopback import TOKEN, TRAIN, run_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({}, None),
        ({"token": " t\n"}, "Bearer t"),
        ({"tokenFile": "token"}, "Bearer from-file"),
        ({"tokenFile": "none", "token": "t"}, "Bearer t"),
        ({"username": "ada", "password": "pä:ss"}, "Basic " + base64_of("ada:pä:ss".encode())),
        ({"username": "ada"}, "Basic " + base64_of(b"ada:")),
    ],
)
async def test_credentials_of_a_user_become_a_header(
    tmp_path: Path, user: dict[str, Any], authorization: str | None
) -> None:
    write_file(tmp_path / "token", "from-file\n")
    headers = await (await connect_as(user, tmp_path)).headers()
    assert headers == ({} if authorization is None else {"Authorization": authorization})


def provider(name: str, **config: str) -> dict[str, Any]:
    values = {key.replace("_", "-"): value for key, value in config.items()}
    return {"auth-provider": {"name": name, "config": values}}


async def test_token_of_a_provider_is_used_and_its_successor_after_a_rejection(tmp_path: Path) -> None:
    token, renewed = id_token(exp=4102444800), id_token(sub="ada")
    connection = await connect_as(provider("oidc", id_token=token), tmp_path)
    assert await bearer_of(connection) == token
    assert (await connection.identity()).expires == 4102444800
    write_file(tmp_path / "config", kubeconfig(provider("oidc", id_token=renewed)))
    assert await connection.renew(await connection.headers())
    assert await bearer_of(connection) == renewed
    assert (await connection.identity()).expires is None
    google = await connect_as(provider("gcp", access_token="t", expiry="2100-01-01T00:00:00Z"), tmp_path)
    assert (await bearer_of(google), (await google.identity()).expires) == ("t", 4102444800)


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        (provider("oidc", id_token=id_token(exp=1)), "its token has expired. Run any kubectl command"),
        (provider("oidc", refresh_token="hunter22"), "its token is missing"),
        (provider("oidc", id_token="hunter22"), "its id-token is not a JSON Web Token"),
        (provider("oidc", id_token="a.hunter22.b"), "its id-token is not a JSON Web Token"),
        (provider("azure"), "is not supported, and not by kubectl since 1.26"),
        (
            provider("gcp", access_token="hunter22", expiry="2000-01-01T00:00:00Z"),
            "has expired. Use the exec plugin gke-gcloud-auth-plugin",
        ),
        (provider("gcp", access_token="hunter22", expiry="soon"), "its expiry is not an RFC 3339 time"),
    ],
)
async def test_provider_without_a_valid_token_is_reported_and_the_token_not_shown(
    tmp_path: Path, user: dict[str, Any], expected: str
) -> None:
    with pytest.raises((ConfigurationError, CredentialsError)) as caught:
        await connect_as(user, tmp_path)
    assert expected in str(caught.value)
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))


async def test_google_command_prints_the_token_at_the_keys_of_the_kubeconfig(tmp_path: Path) -> None:
    nested = {"access_token": "t", "token_expiry": "2100-01-01T00:00:00Z"}
    path = write_plugin(tmp_path, f"print({json.dumps({'credential': nested, 'access_token': 'own'})!r})")
    keys = {"token_key": "{.credential.access_token}", "expiry_key": "{.credential.token_expiry}"}
    connection = await connect_as(provider("gcp", cmd_path=str(path), **keys), tmp_path)
    assert await bearer_of(connection) == "t"
    assert (await connection.identity()).expires == 4102444800
    assert await bearer_of(await connect_as(provider("gcp", cmd_path=str(path)), tmp_path)) == "own"
    connection = await connect_as(provider("gcp", cmd_path=str(path), token_key="{.missing}"), tmp_path)
    with pytest.raises(CredentialsError, match=r"'plugin' .* printed no token at"):
        await connection.headers()


async def test_impersonation_and_compression_become_headers_of_each_request(tmp_path: Path) -> None:
    requests: list[list[bytes]] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    user = {"as": "ada", "as-groups": ["math", "logic"], "as-user-extra": {"acme.com/dept": ["u", "v"]}}
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    transport = AiohttpTransport(
        await connect_as(user, tmp_path, server=url, **{"disable-compression": True})
    )
    await transport.get("/version", {}, "application/json")
    await transport.aclose()
    server.close()
    [request] = requests
    assert [line for line in request if line.startswith((b"Impersonate", b"Accept-Encoding"))] == [
        b"Impersonate-User: ada",
        b"Impersonate-Group: math",
        b"Impersonate-Group: logic",
        b"Impersonate-Extra-acme.com%2Fdept: u",
        b"Impersonate-Extra-acme.com%2Fdept: v",
        b"Accept-Encoding: identity",
    ]


async def test_token_in_the_kubeconfig_is_used_until_the_token_file_had_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    user = {"token": "inline", "tokenFile": "token"}
    connection = await connect_as(user, tmp_path)

    async def renewed() -> str | None:
        await connection.renew(await connection.headers())
        return await bearer_of(connection)

    assert await bearer_of(connection) == "inline"
    for content, token in (
        (" \n", "inline"),
        ("from-file\n", "from-file"),
        ("", "from-file"),
        ("a\nb", "from-file"),
        ("renewed", "renewed"),
    ):
        file.write_text(content)
        assert await renewed() == token
    file.unlink()
    assert await renewed() == "renewed"
    file.write_text("hunter22\nhunter22")
    with pytest.raises(ConfigurationError, match=r"tokenFile .*/token contains a line break") as caught:
        await connect_as(user, tmp_path)
    assert "hunter22" not in str(caught.value)


async def test_no_credentials_are_sent_over_plain_http(tmp_path: Path) -> None:
    connection = await connect_as({"token": "hunter22"}, tmp_path, server="http://10.0.0.1:8080/")
    assert connection.server == "http://10.0.0.1:8080"
    assert await connection.headers() == {}
    assert await connection.ssl_context() is None
    assert "no credentials are sent over plain http" in connection.source


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({"tokenFile": "none"}, "user 'dev': tokenFile {}/none cannot be read: No such file"),
        ({"tokenFile": "empty"}, "user 'dev': tokenFile {}/empty is empty"),
        ({"token": "hunter22\nX: y"}, "user 'dev': token contains a line break"),
        (
            {"client-certificate": "none", "client-key": "none"},
            "client-certificate {}/none cannot be read: No such",
        ),
    ],
)
async def test_error_for_an_invalid_credential_names_its_place(
    tmp_path: Path, user: dict[str, Any], expected: str
) -> None:
    write_file(tmp_path / "empty", "\n")
    with pytest.raises(ConfigurationError) as caught:
        await connect_as(user, tmp_path)
    assert str(caught.value).startswith(f"kubeconfig {tmp_path}/config, user 'dev'")
    assert expected.format(tmp_path) in str(caught.value)
    assert "hunter22" not in str(caught.value)


# Proxies


async def test_proxy_of_the_cluster_comes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://env:3128")
    assert (await connect_as({}, tmp_path)).proxy == "http://env:3128"
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")
    assert (await connect_as({}, tmp_path)).proxy is None
    connection = await connect_as({}, tmp_path, **{"proxy-url": "http://me:hunter22@own:1"})
    assert connection.proxy == "http://me:hunter22@own:1"
    assert repr(connection) == (
        f"<Connection to {SERVER} through http://own:1 from kubeconfig {tmp_path}/config, context 'dev'>"
    )


# TLS


async def test_verification_follows_the_cluster_entry(tmp_path: Path) -> None:
    insecure = await (await connect_as({}, tmp_path, **{"insecure-skip-tls-verify": True})).ssl_context()
    assert insecure is not None
    assert (insecure.verify_mode, insecure.check_hostname) == (ssl.CERT_NONE, False)
    connection = await connect_as({}, tmp_path, **{"tls-server-name": "api.example"})
    secure = await connection.ssl_context()
    assert secure is not None
    assert (secure.verify_mode, secure.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert connection.tls_server_name == "api.example"


async def test_replaced_client_certificate_makes_a_new_context(tmp_path: Path) -> None:
    authority = trustme.CA()

    def write() -> None:
        chain, key = client_pair(authority)
        write_file(tmp_path / "client.pem", chain)
        write_file(tmp_path / "client.key", key)

    write()
    connection = await connect_as({"client-certificate": "client.pem", "client-key": "client.key"}, tmp_path)
    before = await connection.ssl_context()
    assert await connection.headers() == {}
    assert not await connection.renew({})
    assert await connection.ssl_context() is before
    write()
    assert await connection.renew({})
    assert await connection.ssl_context() is not before


async def test_resolver_recovers_when_the_authority_of_the_server_is_replaced(tmp_path: Path) -> None:
    pods = [pod("train-0", namespace="ml", labels=TRAIN)]
    with ExitStack() as first:
        old = first.enter_context(run_loopback(tmp_path, *pods))
        file = write_file(tmp_path / "ca.pem", old.server.ca_pem)
        document = json.loads(old.kubeconfig.read_text())
        cluster = document["clusters"][0]["cluster"]
        del cluster["certificate-authority-data"]
        config = write_file(
            tmp_path / "config", kubeconfig({"token": TOKEN}, **cluster | {"certificate-authority": "ca.pem"})
        )
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


async def test_file_of_the_authority_is_read_again_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_file(tmp_path / "ca.pem", trustme.CA().cert_pem.bytes())
    connection = await connect_as({"token": "t"}, tmp_path, **{"certificate-authority": "ca.pem"})
    before = await connection.ssl_context()
    write_file(file, trustme.CA().cert_pem.bytes())
    assert await connection.ssl_context() is before
    later = time.monotonic() + 60.0
    monkeypatch.setattr("aioresolve._core.token_cache.monotonic", lambda: later)
    assert await connection.ssl_context() is not before


# After a 401


async def test_replaced_token_in_the_kubeconfig_is_read_once_after_a_rejection(tmp_path: Path) -> None:
    connection = await connect_as({"token": "old"}, tmp_path)
    rejected = await connection.headers()
    assert not await connection.renew(rejected)
    write_file(tmp_path / "config", kubeconfig({"token": "new"}))
    assert await connection.renew(rejected)
    write_file(tmp_path / "config", kubeconfig({"token": "newer"}))
    assert await connection.renew(rejected)
    assert await bearer_of(connection) == "new"


async def test_server_and_context_do_not_change_after_the_start(tmp_path: Path) -> None:
    connection = await connect_as({"token": "old"}, tmp_path)
    write_file(tmp_path / "config", kubeconfig({"token": "other"}, server="https://10.9.9.9"))
    assert not await connection.renew(await connection.headers())
    assert await bearer_of(connection) == "old"
    config = kubeconfig({"token": "new"})
    config["contexts"].append({"name": "other", "context": {"cluster": "dev"}})
    write_file(tmp_path / "config", {**config, "current-context": "other"})
    assert await connection.renew(await connection.headers())
    assert await bearer_of(connection) == "new"


# Plugins


async def test_plugin_runs_once_and_only_when_its_credentials_are_needed(tmp_path: Path) -> None:
    path = write_plugin(tmp_path, 'credential({"token": "t"})')
    connection = await connect_as(exec_user(path), tmp_path)
    assert runs_of(path) == 0
    assert [await bearer_of(connection) for _ in range(3)] == ["t"] * 3
    assert runs_of(path) == 1
    assert not await connection.renew(await connection.headers())
    assert runs_of(path) == 2


async def test_cache_keeps_the_credentials_of_a_plugin_for_the_next_connection(tmp_path: Path) -> None:
    path = write_plugin(tmp_path, 'credential({"token": f"t{runs}"})')
    config = write_file(tmp_path / "config", kubeconfig(exec_user(path)))
    cache = CredentialCache()
    for _ in range(2):
        assert await bearer_of(await connect(config, cache=cache)) == "t1"
    write_file(config, kubeconfig(exec_user(path, args=["other"])))
    assert await bearer_of(await connect(config, cache=cache)) == "t2"
    assert await bearer_of(await connect(config, cache=CredentialCache())) == "t3"


async def test_plugin_runs_again_when_its_credentials_expire(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_plugin(
        tmp_path,
        """credential({"token": f"t{runs}", "expirationTimestamp": f"{1950 + runs * 50}-01-01T00:00:00Z"})""",
    )
    connection = await connect_as(exec_user(path), tmp_path)
    assert await bearer_of(connection) == "t1"
    later = time.monotonic() + 10.0
    monkeypatch.setattr("aioresolve._core.token_cache.monotonic", lambda: later)
    assert [await bearer_of(connection) for _ in range(2)] == ["t2", "t2"]


async def test_call_runs_a_plugin_once_even_if_its_credentials_have_expired(tmp_path: Path) -> None:
    path = write_plugin(
        tmp_path, f'credential({{"token": "{TOKEN}", "expirationTimestamp": "2000-01-01T00:00:00Z"}})'
    )
    pods = [pod(f"train-{number}", namespace="ml", labels=TRAIN) for number in range(3)]
    with run_loopback(tmp_path, *pods) as loopback:
        document = json.loads(loopback.kubeconfig.read_text())
        document["users"][0]["user"] = exec_user(path)
        loopback.kubeconfig.write_text(json.dumps(document))
        selectors = [f"app=train,number notin ({number})" for number in range(4)]
        spec = await loopback.resolver({"worker": selectors}).cluster_spec()
        assert spec.num_tasks("worker") == 12
        assert len(loopback.requests) >= 4
    assert runs_of(path) == 1


async def test_certificate_of_a_plugin_is_used_and_renewed(tmp_path: Path) -> None:
    authority = trustme.CA()
    for number in (1, 2):
        chain, key = client_pair(authority)
        write_file(tmp_path / f"chain{number}", chain)
        write_file(tmp_path / f"key{number}", key)
    path = write_plugin(
        tmp_path,
        f"""
def read(name):
    return open({str(tmp_path)!r} + "/" + name + str(runs)).read()
credential({{"clientCertificateData": read("chain"), "clientKeyData": read("key")}})
""",
    )
    connection = await connect_as(exec_user(path), tmp_path)
    assert await connection.headers() == {}
    before = await connection.ssl_context()
    assert before is await connection.ssl_context()
    assert await connection.renew({})
    assert await connection.ssl_context() is not before
    assert runs_of(path) == 2
    write_file(tmp_path / "chain3", "hunter22")
    write_file(tmp_path / "key3", "hunter22")
    assert await connection.renew({})
    with pytest.raises(ConfigurationError, match="the client certificate of the plugin 'plugin'") as caught:
        await connection.ssl_context()
    assert "hunter22" not in str(caught.value)


async def test_error_at_the_deadline_names_the_credentials_that_are_waited_for(tmp_path: Path) -> None:
    path = write_file(tmp_path / "config", kubeconfig(exec_user(write_plugin(tmp_path, "time.sleep(600)"))))
    resolver = KubernetesClusterResolver({"worker": ["app=t"]}, kubeconfig=path)
    with pytest.raises(DeadlineExceededError) as caught:
        await resolver.cluster_spec(timeout=0.5)
    assert "the credentials of kubeconfig" in caught.value.missing["selector 'app=t' in all namespaces"]
    assert caught.value.reached == {}
