"""aioresolve and kubectl send the same requests with the same kubeconfig, or both refuse it."""

from __future__ import annotations

import asyncio
import http.server
import os
import shutil
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import trustme
import yaml

from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.api.transport import AiohttpTransport

from .kubeconfigs import base64_of, client_pair, connect, exec_user, isolate, kubeconfig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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


class Server(http.server.ThreadingHTTPServer):
    sent: list[Sent]

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients end connections that they do not trust."""


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.connection, ssl.SSLSocket)
        assert isinstance(self.server, Server)
        if not self.path.startswith("/probe"):
            self.send_error(404)  # kubectl may request the version of the server first
            return
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        self.server.sent.append(
            Sent(
                self.headers["Authorization"],
                sorted(header for header in headers if header[0].startswith("impersonate")),
                bool(self.connection.getpeercert(binary_form=True)),
            )
        )
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.sent = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
        AUTHORITY.configure_trust(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sent_by_kubectl(server: Server, path: Path, *options: str) -> Sent | None:
    """Return what kubectl sent; None if it sent nothing."""
    server.sent.clear()
    assert KUBECTL is not None
    subprocess.run(
        [KUBECTL, "--kubeconfig", path, "get", "--raw", "/probe", "--request-timeout=30s", *options],
        env={"PATH": os.environ["PATH"], "HOME": str(path.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    return server.sent[-1] if server.sent else None


async def sent_by_us(receiver: Server, path: Path, **overrides: Any) -> Sent | None:
    receiver.sent.clear()
    try:
        transport = AiohttpTransport(await connect(path, **overrides))
        try:
            await transport.send("GET", "/probe", {})
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
    exec_user("echo", args=[CREDENTIAL], interactiveMode=None),
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


@pytest.mark.parametrize("user", USERS, ids=",".join)
def test_user_is_the_same_for_kubectl(
    server: Server, user: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(server, yaml.safe_dump(for_server(server, user, {})), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "cluster",
    [
        {"server": "HTTPS://127.0.0.1:{port}/?query#fragment"},
        {"certificate-authority": "ca.pem"},
        {"insecure-skip-tls-verify": True},
        {"certificate-authority-data": base64_of(BROKEN + CA)},
        {"certificate-authority-data": base64_of(BROKEN)},
        {"tls-server-name": "[127.0.0.1]"},
    ],
    ids=",".join,
)
def test_cluster_is_the_same_for_kubectl(
    server: Server, cluster: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(server, yaml.safe_dump(for_server(server, {"token": "t"}, cluster)), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "token",
    [
        *["2024-99-99", "1:30", "=", "08", "1e3", "'y'", "5\n    token: t", "t\n---\nb: ["],
        *["t\n    <<: {token-data: b1}", "t\n- user: {}"],
    ],
    ids=repr,
)
def test_yaml_is_the_same_for_kubectl(
    server: Server, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = yaml.safe_dump(for_server(server, {"token": "TOKEN"}, {}), width=100_000)
    check(server, text.replace("TOKEN", token), tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("user", "cluster", "options"),
    [
        ({"token": "t"}, {"server": "https://127.0.0.1:1"}, ["server"]),
        ({"token": "t"}, {"tls-server-name": "old.example"}, ["server"]),
        (PLUGIN, {}, ["token"]),
        ({"token": "t", "as": "bob", "as-uid": "7", "as-groups": ["a", "b"]}, {}, ["as"]),
        ({"token": "t", "as": "bob", "as-groups": ["a", "b"]}, {}, ["as", "as-group"]),
        ({"token": "t"}, {}, ["as", "as-group"]),
        ({"token": "t"}, {}, ["as-group"]),
    ],
)
def test_overrides_are_the_same_for_kubectl(
    server: Server,
    user: dict[str, Any],
    cluster: dict[str, Any],
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isolate(tmp_path, monkeypatch)
    (tmp_path / "given").write_text("given")
    (tmp_path / "config").write_text(yaml.safe_dump(for_server(server, user, cluster)))
    url = f"https://127.0.0.1:{server.server_address[1]}"
    spelled: dict[str, tuple[list[str], dict[str, Any]]] = {
        "server": ([f"--server={url}"], {"server": url}),
        "token": (["--token=given"], {"token_file": tmp_path / "given"}),
        "as": (["--as=ada"], {"impersonate": "ada"}),
        "as-group": (["--as-group=c", "--as-group=d"], {"impersonate_groups": ["c", "d"]}),
    }
    theirs = [option for name in options for option in spelled[name][0]]
    ours = {key: value for name in options for key, value in spelled[name][1].items()}
    expected = sent_by_kubectl(server, tmp_path / "config", *theirs)
    assert asyncio.run(sent_by_us(server, tmp_path / "config", **ours)) == expected


def for_server(server: Server, user: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    defaults = {"server": "https://127.0.0.1:{port}", "certificate-authority-data": base64_of(CA)}
    cluster = defaults | cluster
    if "certificate-authority" in cluster or "insecure-skip-tls-verify" in cluster:
        del cluster["certificate-authority-data"]
    cluster["server"] = cluster["server"].replace("{port}", str(server.server_address[1]))
    return kubeconfig(user, **cluster)


def check(server: Server, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(folder, monkeypatch)
    (folder / "elsewhere/sub").mkdir(parents=True)
    (folder / "ln").symlink_to(folder / "elsewhere/sub")
    for name, content in {
        "token": b"file\n",
        "empty": b"",
        "elsewhere/token": b"no",
    }.items():
        (folder / name).write_bytes(content)
    (folder / "ca.pem").write_bytes(CA)
    path = folder / "config"
    path.write_text(text)
    expected = sent_by_kubectl(server, path)
    assert asyncio.run(sent_by_us(server, path)) == expected
