"""Kubeconfigs, exec plugins and certificates for tests."""

import base64
import json
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from aioresolve._core.http import Response
from aioresolve.kubernetes.auth import Connection, CredentialCache, find_connection, search_for

EXEC_V1 = "client.authentication.k8s.io/v1"
SERVER = "https://10.0.0.1:6443"


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


def kubeconfig(user: Any = None, *, name: Any = "dev", **cluster: Any) -> dict[str, Any]:
    """Return a kubeconfig with one context, whose cluster and user have the same name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": SERVER, **cluster}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": "ml"}}],
        "users": [{"name": name, "user": user or {}}],
    }


def write_file(path: Path, content: dict[str, Any] | str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        content = yaml.safe_dump(content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_plugin(folder: Path, code: str, name: str = "plugin") -> Path:
    """Write a plugin that runs `code`, which may call `credential(status)` and read the counter `runs`."""
    path = folder / name
    path.write_text(
        f"""#!{sys.executable} -S
import json, os, sys, time
def credential(status, api_version="{EXEC_V1}", kind="ExecCredential"):
    print(json.dumps({{"apiVersion": api_version, "kind": kind, "status": status}}))
with open({str(folder / (name + ".runs"))!r}, "a") as file:
    file.write("x")
runs = os.path.getsize({str(folder / (name + ".runs"))!r})
{code}
"""
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def runs_of(path: Path) -> int:
    """Return how often the plugin has run."""
    runs = path.with_name(path.name + ".runs")
    return runs.stat().st_size if runs.exists() else 0


def exec_user(path: Path | str, **fields: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": EXEC_V1, "command": str(path), "interactiveMode": "Never", **fields}}


def id_token(**claims: Any) -> str:
    """Return a JSON Web Token with these claims and an invalid signature."""

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode("ascii").rstrip("=")

    return f"{part({'alg': 'none'})}.{part(claims)}.c2lnbmF0dXJl"


def client_pair(authority: trustme.CA, name: str = "client@example.org") -> tuple[bytes, bytes]:
    """Return a client certificate chain and its key, as PEM."""
    issued = authority.issue_cert(name)
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems), issued.private_key_pem.bytes()


def isolate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty home folder. The service account, if a test writes one, is in another folder."""
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(folder / "serviceaccount"))
    return folder / "home"


async def connect(
    path: Any = None,
    context: str | None = None,
    location: str | None = None,
    *,
    cache: CredentialCache | None = None,
    **overrides: Any,
) -> Connection:
    search = search_for(kubeconfig=path, context=context, executable_location=location, **overrides)
    return await find_connection(search, cache)


async def headers_of(connection: Connection) -> dict[str, str]:
    """Return the headers that authenticate a request."""
    return (await connection.identity()).headers


async def bearer_of(connection: Connection) -> str | None:
    """Return the token that a connection sends."""
    authorization = (await headers_of(connection)).get("Authorization")
    return None if authorization is None else authorization.removeprefix("Bearer ")


async def context_of(connection: Connection) -> ssl.SSLContext:
    """Return the TLS context of the next request."""
    context = (await connection.credentials()).ssl_context
    assert context is not None
    return context


async def renew(connection: Connection) -> bool:
    """Renew the credentials after a 401, and return whether they have changed."""
    rejected = await connection.credentials()
    return await connection.renew(rejected, Response(401, b"")) != rejected
