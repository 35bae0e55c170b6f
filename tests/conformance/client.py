"""A minimal client for one user of an API server, so that tests see exactly what the server sends."""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import anyio

from aioresolve._core.network import close_one_sidedly

JSON = "application/json"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"

# The number of concurrent requests when a client writes many pods.
CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class Response:
    """The status and decoded JSON body of a response."""

    status: int
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


class Client:
    """Sends requests with a bearer token."""

    def __init__(self, url: str, ca_pem: str, token: str) -> None:
        self.url = url
        self._tls = close_one_sidedly(ssl.create_default_context(cadata=ca_pem))
        self._headers = {"Authorization": f"Bearer {token}"}

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
        params: Mapping[str, str] | None = None,
    ) -> Response:
        """Send a request and return the response, whatever its status."""
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else JSON
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, path, data=data, headers=headers, params=params or {}
        ) as response:
            return Response(response.status, json.loads(await response.read()))

    async def write(self, method: str, path: str, body: Any) -> Response:
        """Send a request that must succeed, and return the response."""
        response = await self.request(method, path, body=body)
        assert response.status in (200, 201, 202), f"{method} {path}: {response}"
        return response

    async def create_pod(
        self, manifest: Mapping[str, Any], status: Mapping[str, Any] | None = None
    ) -> Response:
        """Create a pod, and write its status as a kubelet would."""
        metadata = manifest["metadata"]
        created = await self.write("POST", pods_path(metadata["namespace"]), manifest)
        if not status:
            return created
        return await self.write("PATCH", f"{pod_path(metadata)}/status", {"status": status})

    async def create_pods(self, pods: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> None:
        """Create many pods, several at a time."""
        pending = iter(pods)

        async def create_some() -> None:
            for manifest, status in pending:
                await self.create_pod(manifest, status)

        async with anyio.create_task_group() as tasks:
            for _ in range(CONCURRENCY):
                tasks.start_soon(create_some)

    async def relabel_pod(self, pod: Mapping[str, Any], labels: Mapping[str, str | None]) -> Response:
        return await self.write("PATCH", pod_path(pod), {"metadata": {"labels": labels}})

    async def delete_pod(self, pod: Mapping[str, Any], *, grace: int) -> Response:
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace}
        return await self.write("DELETE", pod_path(pod), options)

    async def list_pods(self, namespace: str | None, *, accept: str = JSON, **params: str) -> Response:
        """List the pods of a namespace, or of all if it is None."""
        return await self.request("GET", pods_path(namespace), accept=accept, params=params)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, **params: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Open a watch and yield its events, until the server ends it."""
        async with self._session.get(
            path, headers={"Accept": JSON}, params={"watch": "1", **params}, read_bufsize=1 << 20
        ) as response:
            assert response.status == 200, await response.text()
            connection = response.connection
            try:
                yield (json.loads(line) async for line in response.content)
            finally:
                # aiohttp ends an unfinished TLS stream with a TLS shutdown that outlives the session.
                if connection is not None and connection.transport is not None:
                    connection.transport.abort()


def pods_path(namespace: str | None) -> str:
    return "/api/v1/pods" if namespace is None else f"/api/v1/namespaces/{namespace}/pods"


def pod_path(metadata: Mapping[str, Any]) -> str:
    return f"{pods_path(metadata['namespace'])}/{metadata['name']}"


def slices_path(namespace: str) -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
