"""Requests to a loopback API server, as plain as they can be."""

from __future__ import annotations

import base64
import json
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp

from aioresolve.testing import KubernetesServer, pod

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping


NAMESPACE = "/api/v1/namespaces/ml/pods"
CREATED = "2026-11-20T15:39:21Z"
NOW = datetime(2026, 11, 20, 15, 39, 52, tzinfo=UTC)
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


def trainers() -> list[dict[str, Any]]:
    return [
        pod(f"train-{n}", "ml", labels={"job-name": "train"}, ip=f"10.8.0.{n + 10}", created=CREATED)
        for n in (0, 1, 2, 10)
    ]


def in_ml() -> KubernetesServer:
    return KubernetesServer([*trainers(), pod("other", "web")], clock=lambda: NOW)


@dataclass(frozen=True, slots=True)
class Got:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def names(self) -> list[str]:
        """The names of the pods in a PodList."""
        return [item["metadata"]["name"] for item in self.json["items"]]

    @property
    def message(self) -> str:
        return str(self.json["message"])


def failure(code: int, reason: str, message: str, **more: object) -> bytes:
    """The body with which an API server refuses, byte for byte; `more` is its metadata and details."""
    details = {"details": more["details"]} if "details" in more else {}
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": more.get("metadata", {}),
        "status": "Failure",
        "message": message,
        "reason": reason,
        **details,
        "code": code,
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


@asynccontextmanager
async def opened(server: KubernetesServer, **headers: str) -> AsyncIterator[aiohttp.ClientSession]:
    """A session whose paths are those of `server` and whose connections are its own."""
    context: ssl.SSLContext | bool = True
    if server.url.startswith("https"):
        context = ssl.create_default_context(cadata=server.ca_pem)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(server.url, connector=connector, headers=headers) as session:
        yield session


async def ask(
    server: KubernetesServer,
    path: str = "/api/v1/pods",
    method: str = "GET",
    *,
    headers: Mapping[str, str] | None = None,
    body: object = None,
    query: Mapping[str, str] | None = None,
    **more: str,
) -> Got:
    """The whole answer to one request, on a connection of its own; `more` is query as well."""
    plain = {"User-Agent": "tests", "Accept-Encoding": "identity"}
    async with (
        opened(server, **plain) as session,
        session.request(
            method, path, params={**(query or {}), **more}, headers=headers, json=body, allow_redirects=False
        ) as response,
    ):
        return Got(response.status, response.headers, await response.read())


class Watch:
    """A watch under way."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def line(self) -> bytes:
        return await self.response.content.readline()

    async def event(self) -> tuple[str, Any]:
        """Type and object of the next event."""
        event = json.loads(await self.line())
        return event["type"], event["object"]

    async def told(self, count: int) -> list[tuple[str, str, str]]:
        """Type, name and version of the next so many events."""
        events = [await self.event() for _ in range(count)]
        return [
            (kind, shown["metadata"].get("name", ""), shown["metadata"]["resourceVersion"])
            for kind, shown in events
        ]


@asynccontextmanager
async def watching(
    server: KubernetesServer,
    query: Mapping[str, str] | None = None,
    *,
    accept: str = "application/json",
    **more: str,
) -> AsyncIterator[Watch]:
    """A watch of the pods of `server` that is connected."""
    before = server.watches
    params = {"watch": "true", **(query or {}), **more}
    async with (
        opened(server, Accept=accept) as session,
        session.get("/api/v1/pods", params=params, read_bufsize=4096) as response,
    ):
        assert response.status == 200
        await server.until(lambda: server.watches == before + 1)
        yield Watch(response)
