"""No secret in an error, a log record or a span, whatever a server echoes and whichever file is broken.

Each test uses one marked secret as a credential. The error is searched for it in every text that a report of
it may contain: messages, reprs, attributes, causes and contexts, and tracebacks with the local variables of
their frames. The frames of the tests themselves are left out.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import anyio
import psutil
import pytest
import trustme

from aioresolve.errors import ResolveError
from aioresolve.gcp.client import GoogleSession
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing.certificates import CertificateAuthority
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

pytestmark = pytest.mark.slow

SECRET = "hunter22+Zebra/7-Quux"
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


def table(**fields: Any) -> bytes:
    return respond("200 OK", {"kind": "Table", "metadata": {"resourceVersion": "1"}, "rows": [], **fields})


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
    "text of 500": lambda secret: respond("500 X", secret.encode()),
    "Location": lambda secret: respond("302 Found", Location=f"https://{secret}.example/{secret}"),
    "Location with a user": lambda secret: respond("302 Found", Location=f"https://{secret}@h/{secret}"),
    "invalid Location": lambda secret: respond("302 Found", Location=f"https://[{secret}/"),
    "Retry-After": lambda secret: respond("429 X", Retry_After=secret, Warning=f'299 - "{secret}"'),
    "kind": lambda secret: respond("200 OK", {"kind": secret}),
    "apiVersion": lambda secret: respond("200 OK", {"kind": "Table", "apiVersion": secret}),
    "columns": lambda secret: table(columnDefinitions=[{"name": secret, "type": secret}]),
    "rows": lambda secret: table(columnDefinitions=[], rows=[secret]),
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


def echo(response: Callable[[str], bytes]) -> Callable[[socket.socket], None]:
    """Return a handler that responds with the credentials of the request."""

    def handle(connection: socket.socket) -> None:
        head = read_head(connection).decode("latin-1")
        lines = [line for line in head.split("\r\n") if "authorization:" in line.lower()]
        connection.sendall(response(lines[0].split()[-1] if lines else SECRET))

    return handle


def users(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a user of each kind of credential that is sent to the API server."""
    plugin = write_plugin(folder, f'credential({{"token": {SECRET!r}}})')
    return {
        "token": {"token": SECRET},
        "token file": {"tokenFile": str(write_file(folder / "token", SECRET))},
        "basic": {"username": "ada", "password": SECRET},
        "plugin": exec_user(plugin, args=[SECRET], env=[{"name": "A", "value": SECRET}]),
    }


@pytest.mark.parametrize("place", ECHOES)
@pytest.mark.parametrize("kind", ["token", "token file", "basic", "plugin"])
async def test_response_that_echoes_the_credentials(
    tmp_path: Path, reported: list[BaseException], kind: str, place: str
) -> None:
    authority = CertificateAuthority()
    with peer(echo(ECHOES[place]), authority.server_context()) as port:
        cluster = {
            "server": f"https://127.0.0.1:{port}",
            "certificate-authority-data": base64_of(authority.pem.encode()),
        }
        await fail(reported, resolver(tmp_path, users(tmp_path)[kind], **cluster).cluster_spec())


EVENTS: dict[str, Callable[[str], Any]] = {
    "type": lambda secret: {"type": secret, "object": {}},
    "kind": lambda secret: {"type": "ADDED", "object": {"kind": secret}},
    "message": lambda secret: {
        "type": "ERROR",
        "object": {"code": 403, "message": f'User "{secret}" cannot x'},
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


@pytest.mark.parametrize("kind", ["token", "token file", "basic", "plugin"])
@pytest.mark.parametrize("failure", ["refused", "untrusted", "closed", "not TLS"])
async def test_connection_that_fails(
    tmp_path: Path, reported: list[BaseException], kind: str, failure: str
) -> None:
    context = None if failure == "not TLS" else CertificateAuthority().server_context()
    with peer(responder(b""), context) as port:
        cluster = {"server": f"https://127.0.0.1:{9 if failure == 'refused' else port}"}
        if failure == "closed":
            cluster["insecure-skip-tls-verify"] = True  # type: ignore[assignment]
        await fail(reported, resolver(tmp_path, users(tmp_path)[kind], **cluster).cluster_spec())


PROXIES: dict[str, Callable[[str], bytes]] = {
    "status": lambda secret: respond(f"407 {secret}", secret.encode(), Proxy_Authenticate=secret),
    "no HTTP": lambda secret: f"{secret}\r\n\r\n".encode(),
    "closed": lambda secret: b"",
}


@pytest.mark.parametrize("source", ["kubeconfig", "environment"])
@pytest.mark.parametrize("place", [*PROXIES, "refused", "invalid"])
async def test_proxy_that_fails(
    tmp_path: Path,
    reported: list[BaseException],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    place: str,
) -> None:
    with peer(echo(PROXIES.get(place, lambda _: b""))) as port:
        address = {"refused": "127.0.0.1:9", "invalid": "a b:x"}.get(place, f"127.0.0.1:{port}")
        proxy = f"http://ada:{quote(SECRET, safe='')}@{address}"
        cluster = {"proxy-url": proxy} if source == "kubeconfig" else {}
        if source == "environment":
            monkeypatch.setenv("HTTPS_PROXY", proxy)
        await fail(reported, resolver(tmp_path, {"token": SECRET}, **cluster).cluster_spec())


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
    await fail(reported, resolver(tmp_path, BROKEN[kind], server="https://127.0.0.1:9").cluster_spec())


@pytest.mark.parametrize("user", [f"ada:{SECRET}@", f"ada:{quote(SECRET, safe='')}@"])
@pytest.mark.parametrize(
    "url", ["https://{}10.0.0.1", "{}10.0.0.1", "https://{}a b", "ftp://{}h", "socks5://{}h"]
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
    await fail(reported, resolver(tmp_path, user, server="https://127.0.0.1:9").cluster_spec())


# Credentials of Google

GOOGLE_FILES: dict[str, dict[str, Any]] = {
    "service account": {
        "type": "service_account",
        "client_email": "robot@x.iam.gserviceaccount.com",
        "private_key": f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n",
    },
    "authorized user": {
        "type": "authorized_user",
        "client_id": "x",
        "client_secret": SECRET,
        "refresh_token": SECRET,
    },
}


@pytest.mark.parametrize("place", [*ECHOES, "oauth"])
@pytest.mark.parametrize("kind", GOOGLE_FILES)
async def test_credentials_of_google_that_a_token_server_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    def oauth(secret: str) -> bytes:
        return respond("400 X", {"error": "invalid_grant", "error_description": secret})

    with peer(echo(ECHOES.get(place, oauth))) as port:
        uri = {"token_uri": f"http://127.0.0.1:{port}/token"}
        path = write_file(tmp_path / "key.json", json.dumps({**GOOGLE_FILES[kind], **uri}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        async with GoogleSession(policy=NO_RETRIES) as session:
            with anyio.move_on_after(3):
                await fail(reported, get_my_tpu(session))


@pytest.mark.parametrize("place", ECHOES)
async def test_metadata_token_that_an_api_echoes(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    authority = CertificateAuthority()
    with (
        peer(metadata({"access_token": SECRET, "expires_in": 3600})) as metadata_port,
        peer(echo(ECHOES[place]), authority.server_context()) as port,
    ):
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{metadata_port}")
        monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
        context = ssl.create_default_context(cadata=authority.pem)
        async with GoogleSession(
            endpoints={"tpu": f"https://127.0.0.1:{port}"}, ssl_context=context, policy=NO_RETRIES
        ) as session:
            with anyio.move_on_after(10):
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
            with anyio.move_on_after(10):
                await fail(reported, get_my_tpu(session))


def metadata(token: Any) -> Callable[[socket.socket], None]:
    """Return a handler that is a metadata server with this token."""

    def handle(connection: socket.socket) -> None:
        head = read_head(connection)
        body = token if b"/token" in head else b"robot@example.com"
        connection.sendall(respond("200 OK", body, Metadata_Flavor="Google"))

    return handle
