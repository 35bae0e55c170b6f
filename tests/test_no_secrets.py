"""No secret in an error, a log record or a span, whatever a server echoes and whichever file is broken.

Each test uses one marked secret as a credential. The error is searched for it in every text that a report of
it may contain: messages, reprs, attributes, causes and contexts, and tracebacks with the local variables of
their frames. The frames of the tests themselves are left out.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import ssl
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

import anyio
import google.oauth2.credentials
import psutil
import pytest
import trustme
from google.auth import iam

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
from tests.kubernetes.peers import peer, read_head, read_request, responder

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Iterator

pytestmark = pytest.mark.slow

SECRET = "hunter22+Zebra/7-Quux"
SECRET_FIELDS = {"assertion", "refresh_token", "subject_token"}
"""The fields of a token request that contain credentials."""

REFUSED = "127.0.0.1:9"
"""An address where nothing listens."""

TESTS = str(Path(__file__).parent)


def forms(secret: str) -> set[str]:
    """Return the secret as it is, URL-encoded, and the parts of base64 that only depend on it."""
    shifted = set()
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + secret.encode()).decode().rstrip("=")
        shifted.add(text[(0, 2, 3)[shift] : (shift + len(secret)) * 8 // 6])
    return {form.lower() for form in {secret, quote(secret, safe=""), *shifted}}


def all_text(error: BaseException) -> str:
    """Return every text that a report of the error may contain."""
    texts = []
    for link in error_chain(error):
        texts += attributes_of(link)
        report = traceback.TracebackException.from_exception(link, capture_locals=True)
        for frame in report.stack:
            if not frame.filename.startswith(TESTS):
                texts += [f"{frame.filename}:{frame.lineno} {frame.name}: {frame.locals}"]
    return "\n".join(texts)


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
    texts |= {f"error {number}": all_text(error) for number, error in enumerate(errors)}
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


# Servers that echo what they received


def respond(status: str, body: Any = b"", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def status(code: int, message: str, **fields: Any) -> bytes:
    return respond(
        f"{code} X", {"kind": "Status", "code": code, "message": message, "reason": message, **fields}
    )


def version(text: str) -> bytes:
    return respond("200 OK", {"gitVersion": text})


def table(**fields: Any) -> bytes:
    return respond("200 OK", {"kind": "Table", "metadata": {"resourceVersion": "1"}, "rows": [], **fields})


COLUMNS = ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node"]


def table_of(cells: list[Any]) -> bytes:
    """Return a Table with one row."""
    columns = [{"name": name, "type": "string"} for name in COLUMNS]
    return table(columnDefinitions=columns, rows=[{"cells": cells, "object": None}])


def decoded(credential: str) -> str:
    """Return the password of basic credentials, and other credentials unchanged."""
    try:
        return base64.b64decode(credential, validate=True).decode().partition(":")[2] or credential
    except ValueError:
        return credential


ECHOES: dict[str, Callable[[str], bytes]] = {
    "reason phrase": lambda secret: respond(f"500 {secret}"),
    "message of 400": lambda secret: status(400, f"bad {secret}"),
    "message of 401": lambda secret: status(401, f"bad {decoded(secret)}"),
    "message of 403": lambda secret: status(403, f'User "{secret}" cannot list resource "pods"'),
    "message of 404": lambda secret: status(404, f"no {quote(secret, safe='')}"),
    "message of 410": lambda secret: status(410, f"gone {secret}"),
    "message of 503": lambda secret: status(503, base64_of(f"a {secret}".encode())),
    "reason and details": lambda secret: status(
        422, "x", details={"name": secret, "causes": [{"reason": secret, "message": secret}]}
    ),
    "challenge": lambda secret: respond(
        "401 X", secret.encode(), WWW_Authenticate=f'Bearer realm="{secret}", error_description="{secret}"'
    ),
    "text of 500": lambda secret: respond("500 X", secret.encode()),
    # Clients of users follow redirects.
    "Location": lambda secret: respond(
        "302 Found", Location=f"https://{secret.replace('/', '.')}.invalid/{secret}"
    ),
    "Location with a user": lambda secret: respond(
        "302 Found", Location=f"https://{quote(secret, safe='')}@h.invalid/{secret}"
    ),
    "invalid Location": lambda secret: respond("302 Found", Location=f"https://[{secret}/"),
    "Retry-After": lambda secret: respond("429 X", Retry_After=secret, Warning=f'299 - "{secret}"'),
    "kind": lambda secret: respond("200 OK", {"kind": secret}),
    "apiVersion": lambda secret: respond("200 OK", {"kind": "Table", "apiVersion": secret}),
    "columns": lambda secret: table(columnDefinitions=[{"name": secret, "type": secret}]),
    "rows": lambda secret: table(columnDefinitions=[], rows=[secret]),
    "cells": lambda secret: table_of([secret] * len(COLUMNS)),
    "name": lambda secret: table_of([secret, "1/1", "Running", 0, "1m", "10.0.0.1", "node"]),
    "state": lambda secret: table_of(["w-0", "0/1", secret, 0, "1m", "10.0.0.1", "node"]),
    "address": lambda secret: table_of(["w-0", "1/1", "Running", 0, "1m", secret, "node"]),
    "continue token": lambda secret: table(metadata={"continue": secret}),
    "body": lambda secret: respond("200 OK", f"<html>{secret}".encode()),
    "incomplete body": lambda secret: respond("200 OK", secret.encode()).replace(b"Length: ", b"Length: 9"),
    "no HTTP": lambda secret: f"{secret}\r\n\r\n".encode(),
    "broken header": lambda secret: f"HTTP/1.1 200 OK\r\n{secret}\r\n{secret}: {secret}\r\n\r\n".encode(),
    "long header": lambda secret: f"HTTP/1.1 200 OK\r\nA: {secret * 2000}\r\n\r\n".encode(),
    "chunk size": lambda secret: (
        f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{secret}\r\n".encode()
    ),
    "encoding": lambda secret: respond("200 OK", secret.encode(), Content_Encoding="gzip"),
}


@contextmanager
def echoing(
    response: Callable[[str], bytes], context: ssl.SSLContext | None = None, path: bytes = b""
) -> Iterator[int]:
    """Run a server that responds to each request with its credentials, and yield its port.

    They are the secret in an `Authorization` header, or else in the body. Requests for another `path` get
    the secret as an access token. It is an error if the server received no credentials.
    """
    echoed = list[str]()

    def handle(connection: socket.socket) -> None:
        head, body = read_request(connection)
        if path not in head:
            connection.sendall(respond("200 OK", {"access_token": SECRET, "expires_in": 3600}))
            return
        headers = [line.partition(":") for line in head.decode("latin-1").split("\r\n")]
        sent = [value.split()[-1] for name, _, value in headers if name.lower().endswith("authorization")]
        sent += [value for name, value in parse_qsl(body.decode()) if name in SECRET_FIELDS]
        for credential in filter(is_secret, sent):
            echoed.append(credential)
            connection.sendall(response(credential))
            return

    with peer(handle, context) as port:
        yield port
        assert echoed, "the server received no credentials"


def is_secret(text: str) -> bool:
    return any(form in text.lower() for form in forms(SECRET))


def users(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a user of each kind of credential that is sent to the API server."""
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
    }


def client_certificates(folder: Path) -> dict[str, dict[str, Any]]:
    """Return users with a client certificate, whose key ends with the secret."""
    certificate, key = client_pair(trustme.CA())
    key += SECRET.encode()
    credential = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
    return {
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


@pytest.mark.parametrize("place", ECHOES)
@pytest.mark.parametrize("kind", ["token", "token file", "basic", "plugin", "oidc"])
async def test_response_that_echoes_the_credentials(
    tmp_path: Path, reported: list[BaseException], kind: str, place: str
) -> None:
    authority = CertificateAuthority()
    with echoing(ECHOES[place], authority.server_context()) as port:
        cluster = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority-data": base64_of(authority.pem.encode()),
        }
        await fail(reported, resolver(tmp_path, users(tmp_path)[kind], **cluster).cluster_spec())


@pytest.mark.parametrize("column", COLUMNS)
async def test_row_that_echoes_the_credentials(
    tmp_path: Path, reported: list[BaseException], column: str
) -> None:
    """A row that is not conclusive is followed by a request for its pod, which fails."""

    def respond_to(connection: socket.socket) -> None:
        head = read_head(connection)
        pods = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
        if b"metadata.name" in head:
            connection.sendall(status(400, "bad"))
        elif b"as=Table" in head:
            cells: dict[str, Any] = dict.fromkeys(COLUMNS, "x") | {column: SECRET}
            connection.sendall(table_of(list(cells.values())))
        else:
            connection.sendall(respond("200 OK", pods))

    authority = CertificateAuthority()
    with peer(respond_to, authority.server_context()) as port:
        cluster = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority-data": base64_of(authority.pem.encode()),
        }
        await fail(reported, resolver(tmp_path, {"token": SECRET}, **cluster).cluster_spec())


EVENTS: dict[str, Callable[[str], Any]] = {
    "type": lambda secret: {"type": secret, "object": {}},
    "kind": lambda secret: {"type": "ADDED", "object": {"kind": secret}},
    "message": lambda secret: {
        "type": "ERROR",
        "object": {"code": 403, "message": f'User "{secret}" cannot x'},
    },
    "reason and details": lambda secret: {
        "type": "ERROR",
        "object": {
            "kind": "Status",
            "code": 403,
            "reason": secret,
            "message": secret,
            "details": {"name": secret, "causes": [{"reason": secret, "message": secret}]},
        },
    },
    "expired": lambda secret: {
        "type": "ERROR",
        "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": secret},
    },
    "code": lambda secret: {"type": "ERROR", "object": {"kind": "Status", "code": secret}},
    "pod": lambda secret: {"type": "ADDED", "object": {"kind": "Pod", "metadata": secret}},
    "version": lambda secret: {
        "type": "BOOKMARK",
        "object": {"kind": "Pod", "metadata": {"resourceVersion": [secret]}},
    },
    "text": lambda secret: secret,
}


@pytest.mark.parametrize("place", EVENTS)
async def test_watch_event_that_echoes_the_credentials(
    tmp_path: Path, reported: list[BaseException], place: str
) -> None:
    def respond_to(connection: socket.socket) -> None:
        head = read_head(connection)
        pods = {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}
        event = json.dumps(EVENTS[place](SECRET)).encode() + b"\n"
        connection.sendall(respond("200 OK", event if b"watch=true" in head else pods))

    async def observe() -> None:
        with anyio.move_on_after(20):
            async for observation in resolver(tmp_path, {"token": SECRET}, **cluster).observations():
                if observation.error is not None:
                    reported.append(observation.error)
                    raise observation.error

    authority = CertificateAuthority()
    with peer(respond_to, authority.server_context()) as port:
        cluster = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority-data": base64_of(authority.pem.encode()),
        }
        await fail(reported, observe())


# Connections that fail


@pytest.mark.parametrize("kind", ["token", "token file", "basic", "plugin", "oidc"])
@pytest.mark.parametrize("failure", ["refused", "untrusted", "closed", "not TLS"])
async def test_connection_that_fails(
    tmp_path: Path, reported: list[BaseException], kind: str, failure: str
) -> None:
    await fail_to_connect(tmp_path, reported, users(tmp_path)[kind], failure)


@pytest.mark.parametrize("kind", ["client key", "client key file", "client key of a plugin"])
@pytest.mark.parametrize("failure", ["refused", "untrusted", "closed", "not TLS", "rejected", "403"])
async def test_connection_with_a_client_certificate_that_fails(
    tmp_path: Path, reported: list[BaseException], kind: str, failure: str
) -> None:
    await fail_to_connect(tmp_path, reported, client_certificates(tmp_path)[kind], failure)


async def fail_to_connect(
    folder: Path, reported: list[BaseException], user: dict[str, Any], failure: str
) -> None:
    context = None if failure == "not TLS" else CertificateAuthority().server_context()
    if failure == "rejected":
        assert context is not None
        context.verify_mode = ssl.CERT_REQUIRED
    with peer(responder(status(403, "x") if failure == "403" else b""), context) as port:
        cluster: dict[str, Any] = {"server": f"https://127.0.0.1:{9 if failure == 'refused' else port}"}
        if failure in ("closed", "rejected", "403"):
            cluster["insecure-skip-tls-verify"] = True
        await fail(reported, resolver(folder, user, **cluster).cluster_spec())


PROXIES: dict[str, Callable[[str], bytes]] = {
    "status": lambda secret: respond(f"407 {secret}", secret.encode(), Proxy_Authenticate=secret),
    "no HTTP": lambda secret: f"{secret}\r\n\r\n".encode(),
    "closed": lambda secret: b"",
}


@pytest.mark.parametrize("source", ["kubeconfig", "environment"])
@pytest.mark.parametrize("place", PROXIES)
async def test_proxy_that_echoes_its_password(
    tmp_path: Path,
    reported: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    place: str,
) -> None:
    with echoing(PROXIES[place]) as port:
        await fail_through_proxy(tmp_path, reported, monkeypatch, source, f"127.0.0.1:{port}")


@pytest.mark.parametrize("source", ["kubeconfig", "environment"])
@pytest.mark.parametrize("address", [REFUSED, "a b:x"], ids=["refused", "invalid"])
async def test_proxy_that_cannot_be_used(
    tmp_path: Path,
    reported: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    address: str,
) -> None:
    await fail_through_proxy(tmp_path, reported, monkeypatch, source, address)


async def fail_through_proxy(
    folder: Path,
    reported: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    address: str,
) -> None:
    proxy = f"http://ada:{quote(SECRET, safe='')}@{address}"
    cluster = {"proxy-url": proxy} if source == "kubeconfig" else {}
    if source == "environment":
        monkeypatch.setenv("HTTPS_PROXY", proxy)
    await fail(reported, resolver(folder, {"token": SECRET}, **cluster).cluster_spec())


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
    "client key of another certificate": {
        "client-certificate-data": base64_of(client_pair(trustme.CA())[0]),
        "client-key-data": base64_of(client_pair(trustme.CA())[1] + SECRET.encode()),
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


@pytest.mark.parametrize("user", [f"ada:{SECRET}@", f"ada:{quote(SECRET, safe='')}@"])
@pytest.mark.parametrize(
    "url", ["https://{}127.0.0.1:9", "{}127.0.0.1:9", "https://{}a b", "ftp://{}h", "socks5://{}h"]
)
@pytest.mark.parametrize("field", ["server", "proxy-url"])
async def test_url_with_a_password_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], field: str, url: str, user: str
) -> None:
    await fail(reported, resolver(tmp_path, {"token": SECRET}, **{field: url.format(user)}).cluster_spec())


@pytest.mark.parametrize(
    "text", ["users: [{name: a, token: %s", "a: %s: b", "%s", "token: \x00%s", '{"a": "%s']
)
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
        f'credential({{"token": {SECRET + " x"!r}}})',
        f'credential({{"token": {SECRET!r}, "expirationTimestamp": {SECRET!r}}})',
        f'credential({{"token": [{SECRET!r}]}})',
        f'credential({{"clientCertificateData": "x", "clientKeyData": {SECRET!r}}})',
        f'credential({{"clientKeyData": {SECRET!r}}})',
        f'credential({{"token": {SECRET!r}}}, kind={SECRET!r})',
        f"print({SECRET!r})",
        f"print({'a: ' + SECRET + ': b'!r})",
        f"print({SECRET!r} * 100_000)",
    ],
)
async def test_plugin_that_fails(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    user = exec_user(write_plugin(tmp_path, code), args=[SECRET], env=[{"name": "A", "value": SECRET}])
    await fail(reported, resolver(tmp_path, user, server=f"https://{REFUSED}").cluster_spec())


# Credentials of Google

AUTHORIZED_USER = {
    "type": "authorized_user",
    "client_id": "x",
    "client_secret": SECRET,
    "refresh_token": SECRET,
}


def google_users(
    port: int, monkeypatch: pytest.MonkeyPatch, token_path: str = "token"
) -> dict[str, dict[str, Any]]:
    """Return the content of each kind of credentials file with the refresh token of a user.

    Their token servers, and the service for impersonation, are on the port.
    """
    server = f"http://127.0.0.1:{port}"
    # google-auth uses these servers for every user and account, and ignores the URLs in the file.
    monkeypatch.setattr(google.oauth2.credentials, "_GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{server}/{token_path}")
    monkeypatch.setattr(iam, "_IAM_ENDPOINT", f"{server}/{{}}:generateAccessToken")
    return {
        "authorized user": AUTHORIZED_USER,
        "federated user": {
            **AUTHORIZED_USER,
            "type": "external_account_authorized_user",
            "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/x",
            "token_url": f"{server}/{token_path}",
        },
        "impersonated account": {
            "type": "impersonated_service_account",
            "service_account_impersonation_url": f"{server}/robot@example.com:generateAccessToken",
            "source_credentials": AUTHORIZED_USER,
        },
    }


GOOGLE_USERS = ["authorized user", "federated user", "impersonated account"]

BROKEN_GOOGLE_FILES: dict[str, Any] = {
    "key of a service account": {
        **service_account_key("robot@example.com", "p", f"http://{REFUSED}/token"),
        "private_key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
    },
    "service account without a token server": {"type": "service_account", "private_key": SECRET},
    "authorized user without a client": {"type": "authorized_user", "refresh_token": SECRET},
    "federated user without a token server": {
        "type": "external_account_authorized_user",
        "refresh_token": SECRET,
    },
    "impersonated account of an unknown user": {
        "type": "impersonated_service_account",
        "source_credentials": {"type": "x", "refresh_token": SECRET},
    },
    "unknown type": {"type": "x", "refresh_token": SECRET},
    "text": SECRET,
}


def oauth(secret: str) -> bytes:
    return respond("400 X", {"error": "invalid_grant", "error_description": secret})


async def fail_with_google_file(
    folder: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    """Send a request with the credentials of a file, and report its error."""
    path = write_file(folder / "credentials.json", json.dumps(content))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    async with GoogleSession(policy=NO_RETRIES) as session:
        await fail(reported, get_my_tpu(session))


@pytest.mark.parametrize("place", [*ECHOES, "oauth"])
@pytest.mark.parametrize("kind", GOOGLE_USERS)
async def test_refresh_token_that_a_token_server_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    with echoing(ECHOES.get(place, oauth)) as port:
        content = google_users(port, monkeypatch)[kind]
        await fail_with_google_file(tmp_path, reported, monkeypatch, content)


@pytest.mark.parametrize("kind", BROKEN_GOOGLE_FILES)
async def test_credentials_of_google_that_are_broken(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await fail_with_google_file(tmp_path, reported, monkeypatch, BROKEN_GOOGLE_FILES[kind])


@pytest.mark.parametrize("place", ECHOES)
async def test_assertion_of_a_service_account_that_a_token_server_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The name of the key is part of the assertion, which is signed and sent to the token server."""
    with echoing(ECHOES[place]) as port:
        account = {
            **service_account_key("robot@example.com", "p", f"http://127.0.0.1:{port}/token"),
            "private_key_id": SECRET,
        }
        await fail_with_google_file(tmp_path, reported, monkeypatch, account)
    assert account["private_key"].splitlines()[1] not in all_text(reported[0])


@pytest.mark.parametrize("place", ECHOES)
async def test_token_of_a_user_that_the_impersonation_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with echoing(ECHOES[place], path=b":generateAccessToken") as port:
        content = google_users(port, monkeypatch)["impersonated account"]
        await fail_with_google_file(tmp_path, reported, monkeypatch, content)


@pytest.mark.parametrize("place", ECHOES)
async def test_metadata_token_that_an_api_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    authority = CertificateAuthority()
    with (
        peer(metadata({"access_token": SECRET, "expires_in": 3600})) as metadata_port,
        echoing(ECHOES[place], authority.server_context()) as port,
    ):
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{metadata_port}")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        context = ssl.create_default_context(cadata=authority.pem)
        async with GoogleSession(
            endpoints={"tpu": f"https://127.0.0.1:{port}"}, ssl_context=context, policy=NO_RETRIES
        ) as session:
            await fail(reported, get_my_tpu(session))


@pytest.mark.parametrize(
    "token", [{"access_token": [SECRET]}, {"access_token": SECRET, "expires_in": SECRET}, SECRET]
)
async def test_metadata_token_that_is_broken(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, token: Any
) -> None:
    with peer(metadata(token)) as port:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{port}")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        async with GoogleSession(policy=NO_RETRIES) as session:
            await fail(reported, get_my_tpu(session))


def metadata(token: Any) -> Callable[[socket.socket], None]:
    """Return a handler that is a metadata server with this token."""

    def handle(connection: socket.socket) -> None:
        head = read_head(connection)
        body = token if b"/token" in head else b"robot@example.com"
        connection.sendall(respond("200 OK", body, Metadata_Flavor="Google"))

    return handle


# The checks of `aioresolve.doctor`


async def report_checks(reported: list[BaseException], resolver: aioresolve.ClusterResolver | None) -> None:
    """Run the checks, and add their texts to those that are searched."""
    with anyio.fail_after(60):
        checks = await aioresolve.doctor(resolver, check_timeout=3.0)
    document = json.dumps(checks_document(checks))
    reported.append(ResolveError("\n".join([*map(repr, checks), *map(str, checks), document])))


@pytest.mark.parametrize("place", [*ECHOES, "version"])
@pytest.mark.parametrize("kind", ["token", "basic", "plugin"])
async def test_check_of_a_server_that_echoes_the_credentials(
    tmp_path: Path, reported: list[BaseException], kind: str, place: str
) -> None:
    authority = CertificateAuthority()
    with echoing(ECHOES.get(place, version), authority.server_context()) as port:
        cluster = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority-data": base64_of(authority.pem.encode()),
        }
        await report_checks(reported, resolver(tmp_path, users(tmp_path)[kind], **cluster))


@pytest.mark.parametrize("kind", BROKEN)
async def test_check_of_a_credential_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], kind: str
) -> None:
    await report_checks(reported, resolver(tmp_path, BROKEN[kind], server=f"https://{REFUSED}"))


@pytest.mark.parametrize("place", PROXIES)
async def test_check_of_a_proxy_with_a_password(
    tmp_path: Path, reported: list[BaseException], place: str
) -> None:
    with echoing(PROXIES[place]) as port:
        proxy = f"http://ada:{quote(SECRET, safe='')}@127.0.0.1:{port}"
        await report_checks(reported, resolver(tmp_path, {"token": SECRET}, **{"proxy-url": proxy}))


async def test_check_of_this_machine(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    path = write_file(tmp_path / "config", kubeconfig({"token": SECRET}))
    monkeypatch.setenv("KUBECONFIG", str(path))
    await report_checks(reported, None)


async def test_check_of_a_resolver_that_raises_its_password(reported: list[BaseException]) -> None:
    class Broken(aioresolve.ClusterResolver):
        async def fetch_state(self, progress: aioresolve.Progress) -> aioresolve.ClusterState:
            raise LookupError(SECRET)

    await report_checks(reported, Broken())


@pytest.mark.parametrize("kind", GOOGLE_USERS)
async def test_check_of_a_refresh_token_that_a_token_server_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with echoing(oauth) as port:
        content = google_users(port, monkeypatch)[kind]
        await report_checks_with_google_file(tmp_path, reported, monkeypatch, content)


@pytest.mark.parametrize("kind", BROKEN_GOOGLE_FILES)
async def test_check_of_credentials_of_google_that_are_broken(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await report_checks_with_google_file(tmp_path, reported, monkeypatch, BROKEN_GOOGLE_FILES[kind])


async def report_checks_with_google_file(
    folder: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    path = write_file(folder / "credentials.json", json.dumps(content))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HTTPS_PROXY", f"http://ada:{quote(SECRET, safe='')}@{REFUSED}")
    await report_checks(reported, aioresolve.TPUClusterResolver("my-tpu", "us-central2-b", "my-project"))


# Workload identity federation


def executable(folder: Path, line: str) -> dict[str, Any]:
    """Return a credential source that runs a program, with the secret as its argument."""
    program = write_file(folder / "executable", f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return {"executable": {"command": f"{program} {SECRET}", "timeout_millis": 30_000}}


def subject_token(**fields: Any) -> str:
    return json.dumps(
        {"version": 1, "success": True, "token_type": ID_TOKEN, "expiration_time": 1 << 33, **fields}
    )


ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
AS_JSON = {"type": "json", "subject_token_field_name": "token"}

SUBJECTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "file": lambda folder: {"file": str(write_file(folder / "subject", SECRET))},
    "JSON file": lambda folder: {
        "file": str(write_file(folder / "subject", json.dumps({"token": SECRET}))),
        "format": AS_JSON,
    },
    "executable": lambda folder: executable(folder, f"echo '{subject_token(id_token=SECRET)}'"),
}
BROKEN_SUBJECTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "no JSON": lambda folder: {"file": str(write_file(folder / "subject", SECRET)), "format": AS_JSON},
    "JSON without the field": lambda folder: {
        "file": str(write_file(folder / "subject", json.dumps({"Token": SECRET}))),
        "format": AS_JSON,
    },
    "executable that fails": lambda folder: executable(folder, 'echo "$@"; echo "$@" >&2; exit 1'),
    "executable that reports a failure": lambda folder: executable(
        folder, f"echo '{json.dumps({'version': 1, 'success': False, 'code': SECRET, 'message': SECRET})}'"
    ),
    "executable of another version": lambda folder: executable(
        folder, f"echo '{subject_token(id_token=SECRET, version=SECRET)}'"
    ),
    "executable without a type": lambda folder: executable(
        folder, f"echo '{json.dumps({'version': 1, 'success': True, 'id_token': SECRET})}'"
    ),
    "executable without JSON": lambda folder: executable(folder, 'echo "$@"'),
    "executable with an old token": lambda folder: executable(
        folder, f"echo '{subject_token(id_token=SECRET, expiration_time=1)}'"
    ),
    "executable with another token": lambda folder: executable(
        folder, f"echo '{subject_token(id_token=SECRET, token_type=SECRET)}'"
    ),
}


def external_account(subject: dict[str, Any], port: int, **fields: Any) -> dict[str, Any]:
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": ID_TOKEN if "executable" in subject else "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"http://127.0.0.1:{port}/v1/token",
        "credential_source": subject,
        **fields,
    }


@pytest.fixture
def _executables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "1")


@pytest.mark.usefixtures("_executables")
@pytest.mark.parametrize("place", ECHOES)
@pytest.mark.parametrize("kind", SUBJECTS)
async def test_subject_token_that_a_token_server_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    with echoing(ECHOES[place]) as port:
        # The secret of the client is sent as basic authentication.
        client = {"client_id": "x", "client_secret": SECRET} if kind == "JSON file" else {}
        account = external_account(SUBJECTS[kind](tmp_path), port, **client)
        await fail_with_google_file(tmp_path, reported, monkeypatch, account)


@pytest.mark.parametrize("place", ECHOES)
async def test_federated_token_that_the_impersonation_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with echoing(ECHOES[place], path=b":generateAccessToken") as port:
        url = f"http://127.0.0.1:{port}/v1/projects/-/serviceAccounts/a@b.example:generateAccessToken"
        account = external_account(SUBJECTS["file"](tmp_path), port, service_account_impersonation_url=url)
        await fail_with_google_file(tmp_path, reported, monkeypatch, account)


@pytest.mark.usefixtures("_executables")
@pytest.mark.parametrize("kind", BROKEN_SUBJECTS)
async def test_subject_token_that_is_broken(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    account = external_account(BROKEN_SUBJECTS[kind](tmp_path), 9)
    await fail_with_google_file(tmp_path, reported, monkeypatch, account)


# Clients of Kubernetes


@pytest.fixture(scope="module")
def clients() -> dict[str, Any]:
    """The modules of the clients, imported before an event loop runs: that takes seconds."""
    return {name: importlib.import_module(f"{name}.client") for name in ("kubernetes", "kubernetes_asyncio")}


# Python's ssl module does not close a socket that the server resets before the handshake.
@pytest.mark.filterwarnings(r"ignore:unclosed <ssl\.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("place", ECHOES)
@pytest.mark.parametrize("kind", ["token", "basic"])
@pytest.mark.parametrize("package", ["kubernetes", "kubernetes_asyncio"])
async def test_credentials_of_a_client_that_a_server_echoes(
    tmp_path: Path,
    reported: list[BaseException],
    clients: dict[str, Any],
    package: str,
    kind: str,
    place: str,
) -> None:
    authority = CertificateAuthority()
    with echoing(ECHOES[place], authority.server_context()) as port:
        client = client_of_user(clients[package], kind, f"127.0.0.1:{port}", authority, tmp_path)
        await fail_with_client(reported, client)


@pytest.mark.filterwarnings(r"ignore:unclosed <ssl\.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("failure", ["refused", "untrusted"])
@pytest.mark.parametrize("kind", ["token", "basic"])
@pytest.mark.parametrize("package", ["kubernetes", "kubernetes_asyncio"])
async def test_connection_of_a_client_that_fails(
    tmp_path: Path,
    reported: list[BaseException],
    clients: dict[str, Any],
    package: str,
    kind: str,
    failure: str,
) -> None:
    with peer(responder(b""), CertificateAuthority().server_context()) as port:
        address = REFUSED if failure == "refused" else f"127.0.0.1:{port}"
        client = client_of_user(clients[package], kind, address, CertificateAuthority(), tmp_path)
        await fail_with_client(reported, client)


def client_of_user(package: Any, kind: str, address: str, trusted: CertificateAuthority, folder: Path) -> Any:
    configuration = package.Configuration()
    configuration.retries = False
    configuration.host = f"https://{address}"
    configuration.ssl_ca_cert = str(write_file(folder / "ca.crt", trusted.pem))
    if kind == "token":
        configuration.api_key = dict.fromkeys(("BearerToken", "authorization"), SECRET)
        configuration.api_key_prefix = dict.fromkeys(configuration.api_key, "Bearer")
    else:
        # Both clients send it only as a header of every request.
        configuration.username, configuration.password = "ada", SECRET
    client = package.ApiClient(configuration)
    if kind == "basic":
        client.set_default_header("Authorization", configuration.get_basic_auth_token())
    return client


@pytest.mark.parametrize("place", PROXIES)
@pytest.mark.parametrize("package", ["kubernetes", "kubernetes_asyncio"])
async def test_proxy_of_a_client_that_echoes_its_password(
    tmp_path: Path, reported: list[BaseException], clients: dict[str, Any], package: str, place: str
) -> None:
    with echoing(PROXIES[place]) as port:
        await fail_with_client(reported, client_with_proxy(clients[package], f"127.0.0.1:{port}"))


@pytest.mark.parametrize("package", ["kubernetes", "kubernetes_asyncio"])
async def test_proxy_of_a_client_that_refuses_connections(
    tmp_path: Path, reported: list[BaseException], clients: dict[str, Any], package: str
) -> None:
    await fail_with_client(reported, client_with_proxy(clients[package], REFUSED))


def client_with_proxy(package: Any, address: str) -> Any:
    configuration = package.Configuration()
    configuration.retries = False
    configuration.host = "https://10.0.0.1:6443"
    configuration.proxy = f"http://ada:{quote(SECRET, safe='')}@{address}"
    credentials = base64_of(f"ada:{SECRET}".encode())
    configuration.proxy_headers = {"Proxy-Authorization": f"Basic {credentials}"}
    return package.ApiClient(configuration)


async def fail_with_client(reported: list[BaseException], client: Any) -> None:
    logging.getLogger("kubernetes").setLevel(logging.INFO)  # at DEBUG it logs the body of each response
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # it warns with headers that it cannot parse
    # One request at a time: uvloop may log the error of one that is cancelled during its TLS handshake.
    resolver = KubernetesClusterResolver(
        {"worker": ["app=x"]}, override_client=client, timeout=2, max_concurrency=1
    )
    await fail(reported, resolver.cluster_spec())
    closed = client.close()
    if closed is not None:
        await closed
