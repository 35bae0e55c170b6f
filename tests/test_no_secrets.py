"""Our messages, log records, spans and reprs contain no credential, however a call with it fails.

Each test uses one marked secret as a credential. It is searched for in the error of the call, its causes and
contexts, their attributes and reprs, the log, the spans and the command line.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import psutil
import pytest
import trustme

import aioresolve
from aioresolve.cli.output.check_tables import checks_document
from aioresolve.errors import ResolveError
from aioresolve.gcp.client import GoogleSession
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing.certificates import CertificateAuthority
from aioresolve.testing.google.tokens import service_account_key
from tests.core.telemetry.recording import record_telemetry
from tests.gcp.loopback import NO_RETRIES, get_my_tpu
from tests.kubernetes.kubeconfigs import (
    base64_of,
    client_pair,
    exec_user,
    id_token,
    isolate,
    kubeconfig,
    write_file,
    write_plugin,
)
from tests.kubernetes.loopback import attributes_of, error_chain
from tests.kubernetes.peers import peer, read_head, responder

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SECRET = "hunter22+Zebra/7-Quux"

REFUSED = "127.0.0.1:9"
"""An address where nothing listens."""


def forms(secret: str) -> set[str]:
    """Return the secret as it is, URL-encoded, and the parts of base64 that only depend on it."""
    shifted = set()
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + secret.encode()).decode().rstrip("=")
        shifted.add(text[(0, 2, 3)[shift] : (shift + len(secret)) * 8 // 6])
    return {form.lower() for form in {secret, quote(secret, safe=""), *shifted}}


@pytest.fixture(autouse=True)
def reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[list[BaseException]]:
    """Search the errors that a test adds, the log, the spans and the command line for the secret."""
    isolate(tmp_path, monkeypatch)
    caplog.set_level(logging.DEBUG)
    errors: list[BaseException] = []
    with record_telemetry() as recording:
        yield errors
        texts = {"span": recording.text()}
    assert errors
    for number, error in enumerate(errors):
        texts[f"error {number}"] = "\n".join(
            text for link in error_chain(error) for text in attributes_of(link)
        )
    texts["log"] = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    texts["command line"] = " ".join(psutil.Process().cmdline())
    for place, text in texts.items():
        for line in text.lower().splitlines():
            for form in forms(SECRET):
                assert form not in line, f"{place}: {form} in {line}"


async def fail(reported: list[BaseException], call: Awaitable[Any]) -> None:
    with anyio.fail_after(60), pytest.raises(ResolveError) as caught:
        await call
    reported.append(caught.value)


def resolver(folder: Path, user: dict[str, Any], **cluster: Any) -> KubernetesClusterResolver:
    path = write_file(folder / "config", kubeconfig(user, **cluster))
    return KubernetesClusterResolver({"worker": ["app=x"]}, kubeconfig=path, timeout=2)


def respond(status: str, body: Any = b"", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


FORBIDDEN = respond("403 Forbidden", {"kind": "Status", "code": 403, "message": "no", "reason": "no"})


# Credentials that are sent


def users(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a user with each kind of credential. The key of a certificate ends with the secret."""
    certificate, key = client_pair(trustme.CA())
    key += SECRET.encode()
    credential = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
    plugin = write_plugin(folder, f'credential({{"token": {SECRET!r}}})')
    return {
        "token": {"token": SECRET},
        "token file": {"tokenFile": str(write_file(folder / "token", SECRET))},
        "basic": {"username": "ada", "password": SECRET},
        "plugin": exec_user(plugin, args=[SECRET], env=[{"name": "A", "value": SECRET}]),
        "oidc": {
            "auth-provider": {
                "name": "oidc",
                "config": {"id-token": id_token(exp=1 << 33, sub=SECRET), "refresh-token": SECRET},
            }
        },
        "client key": {
            "client-certificate-data": base64_of(certificate),
            "client-key-data": base64_of(key),
        },
        "client key file": {
            "client-certificate": str(write_file(folder / "tls.crt", certificate)),
            "client-key": str(write_file(folder / "tls.key", key)),
        },
        "client key of a plugin": exec_user(write_plugin(folder, f"credential({credential!r})", "certified")),
    }


USERS = ["token", "token file", "basic", "plugin", "oidc", "client key", "client key file"]


@pytest.mark.parametrize("kind", [*USERS, "client key of a plugin"])
async def test_credential_that_is_rejected(tmp_path: Path, reported: list[BaseException], kind: str) -> None:
    with peer(responder(FORBIDDEN), CertificateAuthority().server_context()) as port:
        cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        await fail(reported, resolver(tmp_path, users(tmp_path)[kind], **cluster).cluster_spec())


@pytest.mark.parametrize("failure", ["refused", "untrusted", "closed", "not TLS"])
async def test_connection_that_fails(tmp_path: Path, reported: list[BaseException], failure: str) -> None:
    context = None if failure == "not TLS" else CertificateAuthority().server_context()
    with peer(responder(b""), context) as port:
        cluster: dict[str, Any] = {"server": f"https://127.0.0.1:{9 if failure == 'refused' else port}"}
        if failure == "closed":
            cluster["insecure-skip-tls-verify"] = True
        await fail(reported, resolver(tmp_path, {"token": SECRET}, **cluster).cluster_spec())


@pytest.mark.parametrize("source", ["kubeconfig", "environment"])
@pytest.mark.parametrize("failure", ["refused", "invalid", "407"])
async def test_proxy_with_a_password_that_fails(
    tmp_path: Path,
    reported: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    failure: str,
) -> None:
    with peer(responder(respond("407 Proxy Authentication Required"))) as port:
        address = {"refused": REFUSED, "invalid": "a b:x"}.get(failure, f"127.0.0.1:{port}")
        proxy = f"http://ada:{quote(SECRET, safe='')}@{address}"
        if source == "environment":
            monkeypatch.setenv("HTTPS_PROXY", proxy)
        cluster = {"proxy-url": proxy} if source == "kubeconfig" else {}
        await fail(reported, resolver(tmp_path, {"token": SECRET}, **cluster).cluster_spec())


@pytest.fixture(scope="module", params=["kubernetes", "kubernetes_asyncio"])
def package(request: pytest.FixtureRequest) -> Any:
    """The module of a client, imported before an event loop runs: that takes seconds."""
    return importlib.import_module(f"{request.param}.client")


@pytest.mark.parametrize("has_proxy", [False, True])
async def test_client_of_kubernetes_that_fails(
    package: Any, reported: list[BaseException], has_proxy: bool
) -> None:
    logging.getLogger("kubernetes").setLevel(logging.INFO)  # at DEBUG it logs the body of each response
    configuration = package.Configuration()
    configuration.retries = False
    configuration.host = f"https://{REFUSED}"
    configuration.api_key = dict.fromkeys(("BearerToken", "authorization"), SECRET)
    configuration.api_key_prefix = dict.fromkeys(configuration.api_key, "Bearer")
    if has_proxy:
        configuration.proxy = f"http://ada:{quote(SECRET, safe='')}@{REFUSED}"
        credentials = base64_of(f"ada:{SECRET}".encode())
        configuration.proxy_headers = {"Proxy-Authorization": f"Basic {credentials}"}
    client = package.ApiClient(configuration)
    resolver = KubernetesClusterResolver({"worker": ["app=x"]}, override_client=client, timeout=2)
    await fail(reported, resolver.cluster_spec())
    closed = client.close()
    if closed is not None:
        await closed


# Files and plugins that are broken

BROKEN: dict[str, dict[str, Any]] = {
    "token": {"token": f"{SECRET} x"},
    "token of another type": {"token": [SECRET]},
    "password without a user": {"password": SECRET},
    "unknown field": {"Token": SECRET},
    "client key": {
        "client-certificate-data": base64_of(b"x"),
        "client-key-data": base64_of(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n".encode()),
    },
    "client key without base64": {"client-certificate-data": "eA==", "client-key-data": SECRET},
    "id-token": {"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}},
    "expired id-token": {
        "auth-provider": {
            "name": "oidc",
            "config": {"id-token": id_token(exp=1, sub=SECRET), "refresh-token": SECRET},
        }
    },
    "exec": exec_user("/no/such/plugin", args=[SECRET], env=[{"name": "A", "value": SECRET}]),
}


@pytest.mark.parametrize("kind", BROKEN)
async def test_credential_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], kind: str
) -> None:
    await fail(reported, resolver(tmp_path, BROKEN[kind], server=f"https://{REFUSED}").cluster_spec())


@pytest.mark.parametrize("url", ["https://{}127.0.0.1:9", "{}127.0.0.1:9", "https://{}a b", "ftp://{}h"])
@pytest.mark.parametrize("field", ["server", "proxy-url"])
async def test_url_with_a_password_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], field: str, url: str
) -> None:
    cluster = {field: url.format(f"ada:{quote(SECRET, safe='')}@")}
    await fail(reported, resolver(tmp_path, {"token": SECRET}, **cluster).cluster_spec())


@pytest.mark.parametrize("text", ["users: [{name: a, token: %s", "token: \x00%s", "%s"])
async def test_kubeconfig_that_is_not_yaml(tmp_path: Path, reported: list[BaseException], text: str) -> None:
    path = write_file(tmp_path / "config", text % SECRET)
    await fail(reported, KubernetesClusterResolver({"w": ["a=b"]}, kubeconfig=path).cluster_spec())


async def test_token_file_that_is_broken(tmp_path: Path, reported: list[BaseException]) -> None:
    path = write_file(tmp_path / "token", f"{SECRET}\n\n{SECRET}")
    await fail(reported, resolver(tmp_path, {"tokenFile": str(path)}).cluster_spec())


@pytest.mark.parametrize(
    "code",
    [
        'sys.exit("failed: " + " ".join(sys.argv) + os.environ["A"] + os.environ["MY_TOKEN"])',
        f'credential({{"token": {SECRET!r}}}); sys.exit({quote(SECRET, safe="")!r})',
        f'credential({{"token": {SECRET!r}, "expirationTimestamp": {SECRET!r}}})',
        f'credential({{"clientKeyData": {SECRET!r}}})',
        f"print({'a: ' + SECRET + ': b'!r})",
    ],
)
async def test_plugin_that_fails(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    user = exec_user(write_plugin(tmp_path, code), args=[SECRET], env=[{"name": "A", "value": SECRET}])
    await fail(reported, resolver(tmp_path, user, server=f"https://{REFUSED}").cluster_spec())


# Credentials of Google


def executable(folder: Path, line: str) -> dict[str, Any]:
    """Return a credential source that runs a program, with the secret as its argument."""
    program = write_file(folder / "executable", f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return {"executable": {"command": f"{program} {SECRET}", "timeout_millis": 30_000}}


def external_account(subject: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "token_url": f"http://{REFUSED}/v1/token",
        "credential_source": subject,
    }


AS_JSON = {"type": "json", "subject_token_field_name": "token"}
FAILURE = json.dumps({"version": 1, "success": False, "code": SECRET, "message": SECRET})

GOOGLE_FILES: dict[str, Callable[[Path], Any]] = {
    "key of a service account": lambda _: {
        **service_account_key("robot@example.com", "p", f"http://{REFUSED}/token"),
        "private_key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
    },
    "service account without a token server": lambda _: {"type": "service_account", "private_key": SECRET},
    "authorized user without a client": lambda _: {"type": "authorized_user", "refresh_token": SECRET},
    "impersonated account of an unknown user": lambda _: {
        "type": "impersonated_service_account",
        "source_credentials": {"type": "x", "refresh_token": SECRET},
    },
    "text": lambda _: SECRET,
    "unreachable token server": lambda folder: external_account(
        {"file": str(write_file(folder / "subject", SECRET))}
    ),
    "subject token that is not JSON": lambda folder: external_account(
        {"file": str(write_file(folder / "subject", SECRET)), "format": AS_JSON}
    ),
    "executable that fails": lambda folder: external_account(
        executable(folder, 'echo "$@"; echo "$@" >&2; exit 1')
    ),
    "executable that reports a failure": lambda folder: external_account(
        executable(folder, f"echo '{FAILURE}'")
    ),
}


@pytest.mark.parametrize("kind", GOOGLE_FILES)
async def test_credentials_of_google_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = write_file(tmp_path / "credentials.json", json.dumps(GOOGLE_FILES[kind](tmp_path)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "1")
    async with GoogleSession(policy=NO_RETRIES) as session:
        await fail(reported, get_my_tpu(session))


@pytest.mark.parametrize("token", [{"access_token": SECRET, "expires_in": SECRET}, SECRET])
async def test_metadata_token_that_is_broken(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, token: Any
) -> None:
    def handle(connection: socket.socket) -> None:
        body = token if b"/token" in read_head(connection) else b"robot@example.com"
        connection.sendall(respond("200 OK", body, Metadata_Flavor="Google"))

    with peer(handle) as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        async with GoogleSession(policy=NO_RETRIES) as session:
            await fail(reported, get_my_tpu(session))


# The checks of `aioresolve.doctor`


async def report_checks(reported: list[BaseException], resolver: aioresolve.ClusterResolver | None) -> None:
    """Run the checks, and add their texts to those that are searched."""
    with anyio.fail_after(60):
        checks = await aioresolve.doctor(resolver, check_timeout=3.0)
    document = json.dumps(checks_document(checks))
    reported.append(ResolveError("\n".join([*map(repr, checks), *map(str, checks), document])))


@pytest.mark.parametrize("kind", ["token", "exec", "client key"])
async def test_check_of_a_credential_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], kind: str
) -> None:
    await report_checks(reported, resolver(tmp_path, BROKEN[kind], server=f"https://{REFUSED}"))


async def test_check_of_a_proxy_with_a_password(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = f"http://ada:{quote(SECRET, safe='')}@{REFUSED}"
    await report_checks(reported, resolver(tmp_path, {"token": SECRET}, **{"proxy-url": proxy}))
    path = write_file(tmp_path / "credentials.json", json.dumps(SECRET))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    await report_checks(reported, aioresolve.TPUClusterResolver("my-tpu", "us-central2-b", "my-project"))


async def test_check_of_this_machine(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    path = write_file(tmp_path / "config", kubeconfig({"token": SECRET}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    await report_checks(reported, None)
