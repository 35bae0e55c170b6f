"""A minimal client for one user of an API server, so that tests see exactly what the server sends."""

from __future__ import annotations

import contextlib
import json
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import anyio
import msgspec

from aioresolve._core.network import close_one_sidedly

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

JSON = "application/json"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
MERGE_PATCH = "application/merge-patch+json"

# The number of concurrent requests when a client writes many pods.
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Response:
    """The status, headers and decoded JSON body of a response."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def __str__(self) -> str:
        return f"{self.status} {json.dumps(self.body)[:600]}"

    @property
    def message(self) -> str:
        return str(self.body["message"])

    @property
    def version(self) -> str:
        """The resourceVersion of the list or object."""
        return str(self.body["metadata"]["resourceVersion"])

    @property
    def names(self) -> list[str]:
        """The names of the pods in a PodList, in the server's order."""
        return [pod["metadata"]["name"] for pod in self.body["items"]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of a Table, each a mapping of column name to cell."""
        columns = [column["name"] for column in self.body["columnDefinitions"]]
        return [dict(zip(columns, row["cells"], strict=True)) for row in self.body["rows"]]


class Client:
    """Sends requests with a bearer token, or without one as `system:anonymous`."""

    def __init__(self, url: str, ca_pem: str, token: str | None) -> None:
        self.url = url
        self._tls = close_one_sidedly(ssl.create_default_context(cadata=ca_pem))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self.url,
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=2 * CONCURRENCY),
            timeout=aiohttp.ClientTimeout(total=30.0),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        accept: str = JSON,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request and return the response, whatever its status."""
        headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, headers=headers, params=params or {}
        ) as response:
            return Response(response.status, response.headers, msgspec.json.decode(await response.read()))

    async def write(self, method: str, path: str, body: Any, *, content_type: str = JSON) -> Response:
        """Send a request that must succeed, and return the response."""
        response = await self.request(method, path, body=body, content_type=content_type)
        assert response.status in (200, 201, 202), f"{method} {path}: {response}"
        return response

    # -- namespaces and pods -------------------------------------------------------------------------

    async def create_namespace(self, name: str) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await self.write("POST", "/api/v1/namespaces", namespace)

    async def create_pod(
        self, manifest: Mapping[str, Any], status: Mapping[str, Any] | None = None
    ) -> Response:
        """Create a pod, and write its status as a kubelet would."""
        created = await self.write("POST", pods_path(manifest["metadata"]["namespace"]), manifest)
        if not status:
            return created
        return await self.patch_pod(manifest["metadata"], {"status": status}, subresource="/status")

    async def create_pods(self, pods: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> None:
        """Create many pods, several at a time."""
        pending = iter(pods)

        async def create_some() -> None:
            for manifest, status in pending:
                await self.create_pod(manifest, status)

        async with anyio.create_task_group() as tasks:
            for _ in range(CONCURRENCY):
                tasks.start_soon(create_some)

    async def patch_pod(
        self, pod: Mapping[str, Any], patch: Mapping[str, Any], *, subresource: str = ""
    ) -> Response:
        path = f"{pods_path(pod['namespace'])}/{pod['name']}{subresource}"
        return await self.write("PATCH", path, patch, content_type=MERGE_PATCH)

    async def relabel_pod(self, pod: Mapping[str, Any], labels: Mapping[str, str | None]) -> Response:
        return await self.patch_pod(pod, {"metadata": {"labels": labels}})

    async def delete_pod(self, pod: Mapping[str, Any], *, grace: int) -> Response:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
        return await self.write("DELETE", f"{pods_path(pod['namespace'])}/{pod['name']}", options)

    async def list_pods(self, namespace: str | None, *, accept: str = JSON, **params: str) -> Response:
        """List the pods of a namespace, or of all if it is None."""
        return await self.request("GET", pods_path(namespace), accept=accept, params=params)

    def watch_pods(
        self, namespace: str | None, **params: str
    ) -> contextlib.AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]:
        """Open a watch of pods and yield its events, until the server ends it."""
        return self.watch(pods_path(namespace), **params)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **params: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Open a watch and yield its events, until the server ends it."""
        async with self._session.get(
            path, headers={"Accept": JSON}, params={"watch": "1", **params}
        ) as response:
            assert response.status == 200, await response.text()
            connection = response.connection
            try:
                yield decode_lines(response.content)
            finally:
                # aiohttp ends an unfinished TLS stream with a TLS shutdown that outlives the session.
                if connection is not None and connection.transport is not None:
                    connection.transport.abort()


def pods_path(namespace: str | None) -> str:
    return "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"


def slices_path(namespace: str | None) -> str:
    namespaced = "" if namespace is None else f"/namespaces/{namespace}"
    return f"/apis/discovery.k8s.io/v1{namespaced}/endpointslices"


async def decode_lines(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield the JSON document of each line."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line)


def failure(code: int, reason: str, message: str, *, details: dict[str, str] | None = None) -> dict[str, Any]:
    """Return the Status object of a failed request."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return status | ({"details": details} if details else {})
