"""aioresolve and kubectl send the same requests with the same kubeconfig, or both refuse it."""

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
import yaml

from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.api.transport import AiohttpTransport, Request

from .kubeconfigs import base64_of, client_pair, connect, exec_user, isolate, kubeconfig
from .peers import peer, read_head

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes()
CHAIN, KEY = client_pair(AUTHORITY)
CERTIFICATE = {"client-certificate-data": base64_of(CHAIN), "client-key-data": base64_of(KEY)}
CREDENTIAL = (
    '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"plugin"}}'
)
PLUGIN = exec_user("echo", args=[CREDENTIAL])
BROKEN = CA.replace(b"MII", b"%II", 1)


class Sent(NamedTuple):
    """What authenticates a request."""

    authorization: str | None
    impersonation: list[tuple[str, str]]
    has_certificate: bool


@dataclass
class Server:
    """A server at a port, and what clients have sent to it."""

    port: int = 0
    sent: list[Sent] = field(default_factory=list)

    def respond(self, connection: socket.socket) -> None:
        assert isinstance(connection, ssl.SSLSocket)
        request, *lines = read_head(connection).decode("latin-1").split("\r\n")
        if not request.startswith("GET /probe"):
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return  # kubectl may request the version of the server first
        headers = sorted((name.lower(), value) for name, _, value in (line.partition(": ") for line in lines))
        impersonation = [header for header in headers if header[0].startswith("impersonate")]
        has_certificate = bool(connection.getpeercert(binary_form=True))
        self.sent.append(Sent(dict(headers).get("authorization"), impersonation, has_certificate))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    AUTHORITY.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = Server()
    with peer(server.respond, context) as server.port:
        yield server


def sent_by_kubectl(server: Server, path: Path) -> Sent | None:
    """Return what kubectl sent; None if it sent nothing."""
    server.sent.clear()
    assert KUBECTL is not None
    subprocess.run(
        [KUBECTL, "--kubeconfig", path, "get", "--raw", "/probe", "--request-timeout=30s"],
        env={"PATH": os.environ["PATH"], "HOME": str(path.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return server.sent[-1] if server.sent else None


async def sent_by_us(receiver: Server, path: Path) -> Sent | None:
    receiver.sent.clear()
    try:
        transport = AiohttpTransport(await connect(path))
        try:
            await transport.send(Request("GET", "/probe"))
        finally:
            await transport.aclose()
    except (ConfigurationError, CredentialsError):
        return None
    return receiver.sent[-1]


USERS: list[dict[str, Any]] = [
    {"token": "t"},
    {"token": "t", "tokenFile": "token"},
    {"token": "t", "tokenFile": "empty"},
    {"tokenFile": "ln/../token"},
    {"tokenFile": "missing"},
    {"token": "t", "username": "u"},
    {"tokenFile": "token", "password": "p"},
    {"username": "u", "password": "p", **CERTIFICATE},
    {"password": "p"},
    {"password": "p", **PLUGIN},
    {**CERTIFICATE, **PLUGIN},
    {**CERTIFICATE, "client-key": "token"},
    {"token": "t", "client-certificate-data": base64_of(CHAIN)},
    {"client-certificate": "empty", "client-key": "empty"},
    {"token": "t", **exec_user("echo", interactiveMode="Always")},
    {"token": "t", "auth-provider": {"name": "oidc"}, **PLUGIN},
    {"Token": "t"},
    {
        "token": "t",
        "as": "u",
        "as-groups": ["a", "b"],
        "as-uid": "7",
        "as-user-extra": {"acme.com/ü %": ["b", "c"]},
    },
    {"token": "t", "as-user-extra": {}, "as-groups": []},
    {"token": "t", "as": "x\n"},
]


CLUSTERS: list[dict[str, Any]] = [
    {"server": "HTTPS://127.0.0.1:{port}/?query#fragment"},
    {"certificate-authority": "ca.pem"},
    {"insecure-skip-tls-verify": True},
    {"certificate-authority-data": base64_of(BROKEN + CA)},
    {"certificate-authority-data": base64_of(BROKEN)},
    {"tls-server-name": "[127.0.0.1]"},
]
TOKENS = [
    *("2024-99-99", "1:30", "=", "08", "1e3", "'y'", "5\n    token: t", "t\n---\nb: ["),
    *("t\n    <<: {token-data: b1}", "t\n- user: {}"),
]


@pytest.mark.parametrize(
    ("user", "cluster", "token"),
    [
        *((user, {}, "") for user in USERS),
        *(({"token": "t"}, cluster, "") for cluster in CLUSTERS),
        *(({"token": "TOKEN"}, {}, token) for token in TOKENS),
    ],
)
def test_kubeconfig_means_the_same_for_kubectl(
    server: Server,
    user: dict[str, Any],
    cluster: dict[str, Any],
    token: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isolate(tmp_path, monkeypatch)
    (tmp_path / "elsewhere/sub").mkdir(parents=True)
    (tmp_path / "ln").symlink_to(tmp_path / "elsewhere/sub")
    for name, content in (("token", b"file\n"), ("empty", b""), ("elsewhere/token", b"no"), ("ca.pem", CA)):
        (tmp_path / name).write_bytes(content)
    text = yaml.safe_dump(for_server(server, user, cluster), width=100_000)
    (tmp_path / "config").write_text(text.replace("TOKEN", token))
    expected = sent_by_kubectl(server, tmp_path / "config")
    assert asyncio.run(sent_by_us(server, tmp_path / "config")) == expected


def for_server(server: Server, user: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    defaults = {"server": "https://127.0.0.1:{port}", "certificate-authority-data": base64_of(CA)}
    cluster = defaults | cluster
    if "certificate-authority" in cluster or "insecure-skip-tls-verify" in cluster:
        del cluster["certificate-authority-data"]
    cluster["server"] = cluster["server"].replace("{port}", str(server.port))
    return kubeconfig(user, **cluster)
