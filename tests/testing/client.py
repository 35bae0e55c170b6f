"""A minimal HTTP client for the loopback API server."""

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from aioresolve._core.network import close_one_sidedly
from aioresolve.testing import GoogleServer, KubernetesServer

MERGE = {"Content-Type": "application/merge-patch+json"}
NAMESPACE = "/api/v1/namespaces/ml/pods"
NOW = datetime(2026, 11, 20, 15, 39, 52, tzinfo=UTC)
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Response:
    """A complete HTTP response."""

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
        """The message of a Kubernetes Status."""
        return str(self.json["message"])

    @property
    def error(self) -> Any:
        """The error of a Google API."""
        return self.json["error"]


def recorded(name: str) -> Response:
    """Return a response that a real server sent."""
    head, _, body = (Path(__file__).parent / "recorded" / f"{name}.http").read_bytes().partition(b"\n\n")
    status, *lines = head.decode().splitlines()
    headers = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return Response(int(status.split()[1]), headers, body)


def recorded_pods() -> list[dict[str, Any]]:
    """Return twelve pods in nine states, in the order in which they were written."""
    items: list[dict[str, Any]] = recorded("list-json-all-states").json["items"]
    return sorted(items, key=lambda item: int(item["metadata"]["resourceVersion"]))


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def trusting(server: KubernetesServer | GoogleServer) -> ssl.SSLContext:
    """Return the TLS settings of a client that trusts the certificate authority of a server."""
    return close_one_sidedly(ssl.create_default_context(cadata=server.ca_pem))


@asynccontextmanager
async def open_session(
    server: KubernetesServer | GoogleServer, base: str = "", **headers: str
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with the base URL of `server`, or another one, and its own connections."""
    context: ssl.SSLContext | bool = trusting(server) if server.url.startswith("https") else True
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(base or server.url, connector=connector, headers=headers) as session:
        yield session


async def fetch(
    server: KubernetesServer | GoogleServer,
    path: str = "/api/v1/pods",
    method: str = "GET",
    *,
    base: str = "",
    headers: Mapping[str, str] | None = None,
    body: object = None,
    query: Mapping[str, str] | None = None,
    **more: str,
) -> Response:
    """Send one request on a new connection and return the response; `more` is added to the query."""
    plain = {"User-Agent": "tests", "Accept-Encoding": "identity"}
    async with (
        open_session(server, base, **plain) as session,
        session.request(
            method, path, params={**(query or {}), **more}, headers=headers, json=body, allow_redirects=False
        ) as response,
    ):
        return Response(response.status, response.headers, await response.read())


class Watch:
    """A connected watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def line(self) -> bytes:
        return await self.response.content.readline()

    async def event(self) -> tuple[str, Any]:
        """Return the type and object of the next event."""
        event = json.loads(await self.line())
        return event["type"], event["object"]

    async def events(self, count: int) -> list[tuple[str, str, str]]:
        """Return the type, name and version of the next `count` events."""
        events = [await self.event() for _ in range(count)]
        return [
            (kind, shown["metadata"].get("name", ""), shown["metadata"]["resourceVersion"])
            for kind, shown in events
        ]


@asynccontextmanager
async def open_watch(
    server: KubernetesServer,
    query: Mapping[str, str] | None = None,
    *,
    accept: str = "application/json",
    path: str = "/api/v1/pods",
    **more: str,
) -> AsyncIterator[Watch]:
    """Open a watch of the pods of `server`, or of another path, and wait until it is connected."""
    before = server.watches
    params = {"watch": "true", **(query or {}), **more}
    async with (
        open_session(server, Accept=accept) as session,
        session.get(path, params=params, read_bufsize=4096) as response,
    ):
        assert response.status == 200
        await server.until(lambda: server.watches == before + 1)
        yield Watch(response)
