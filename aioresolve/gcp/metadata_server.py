"""The GCE metadata server: the project, zone and identity of this machine. Nothing is cached.

Protocol: https://cloud.google.com/compute/docs/metadata/querying-metadata. Off Google
Cloud it does not exist: an address that drops packets, or another server that responds, costs at most two
seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Self

import anyio
from yarl import URL

from aioresolve._core.deadline import Progress
from aioresolve._core.http.client import HTTPClient, send_with_retries
from aioresolve._core.retry import RETRYABLE_STATUSES, RetryPolicy
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, ProtocolError

from .api_request import connection_hints
from .resource_names import validate_project, validate_zone
from .tpu_env import TPUEnvironment, parse_tpu_env, parse_worker_hosts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from aioresolve._core.http.client import Response

DEFAULT_HOST = "metadata.google.internal"

LINK_LOCAL = frozenset({DEFAULT_HOST, "169.254.169.254", "fd20:ce::254", "fd00:ec2::254"})
"""The metadata servers of Google, Azure and AWS, which speak plain http, and only to this machine."""

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def metadata_host(environ: Mapping[str, str], given: str | None = None) -> str:
    """Return the metadata server, `host` or `host:port`, with the precedence of google-auth.

    It is `given`, else $GCE_METADATA_HOST, else $GCE_METADATA_IP, else `metadata.google.internal`.

    Raises:
        ConfigurationError: it is invalid, or NO_GCE_CHECK=true forbids requests to it.
    """
    if given is None and environ.get("NO_GCE_CHECK", "").lower() == "true":
        raise ConfigurationError(
            "the metadata server is not used, because NO_GCE_CHECK=true states that this machine is not on"
            " Google Cloud",
            hint="Unset it, or pass {project}, {zone} and {credentials}.",
        )
    for where, host in (
        ("host", given),
        ("the environment variable GCE_METADATA_HOST", environ.get("GCE_METADATA_HOST")),
        ("the environment variable GCE_METADATA_IP", environ.get("GCE_METADATA_IP")),
    ):
        if host and _HOST.fullmatch(host) is None:
            raise ConfigurationError(
                f"{where} is {host!r}, which is not a host", hint="Write it as HOST or HOST:PORT."
            )
        if host:
            return host
    return DEFAULT_HOST


def is_metadata_host(url: URL) -> bool:
    """Whether `url` is that of a metadata server: requests to it do not leave the physical machine."""
    environment = {os.environ.get("GCE_METADATA_HOST"), os.environ.get("GCE_METADATA_IP")}
    return url.host in LINK_LOCAL or url.authority in environment


logger = logging.getLogger("aioresolve.gcp")

CONNECT_TIMEOUT = 1.0
"""Seconds to resolve the name and connect: on Google Cloud the server is on the same machine."""

RESPONSE_TIMEOUT = 1.5
"""Seconds for the complete response, including the connection."""

POLICY = RetryPolicy(first_wait=0.1, longest_wait=2.0)
"""Retries while the server reports that it is not ready: that of GKE takes seconds to start."""

FLAVOR = {"Metadata-Flavor": "Google"}

NOT_GOOGLE_CLOUD = (
    "This machine does not seem to be on Google Cloud: pass {project}, {zone} and {credentials}, or set"
    " GCE_METADATA_HOST."
)


class MetadataServer:
    """The metadata server of this machine.

    Inside `async with` the connection is kept; outside of it each call opens its own. One object can be used
    in several event loops.

    Without a metadata server every method raises within two seconds: a ConnectionFailedError if nothing
    responds, a ProtocolError if another server does, a ConfigurationError if NO_GCE_CHECK=true. An APIError
    is a failure that the server reports.

    Args:
        host: `host` or `host:port`; None for $GCE_METADATA_HOST, $GCE_METADATA_IP or
            `metadata.google.internal`, evaluated at each call.
    """

    def __init__(self, host: str | None = None) -> None:
        self._host = host
        self._client: HTTPClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<MetadataServer {self._host or 'of this machine'}>"

    async def value(
        self, path: str, progress: Progress | None = None, *, query: Mapping[str, str] | None = None
    ) -> str | None:
        """Return the value at `path`, such as `instance/zone`; None without one."""
        response = await self._get(path, progress, query or {}, RESPONSE_TIMEOUT)
        return None if response.status == 404 else response.body.decode("utf-8", "replace").strip()

    async def attributes_tag(
        self, other_than: str = "", within: int = 0, progress: Progress | None = None
    ) -> str:
        """Return the entity tag of the attributes of the instance; it changes with each attribute.

        With a known tag `other_than`, the server responds when there is another, or after `within` seconds.
        The tag is empty if the server sends none, as emulators do.
        """
        query = {"recursive": "true"}
        if other_than:
            query |= {"wait_for_change": "true", "last_etag": other_than, "timeout_sec": str(within)}
        response = await self._get("instance/attributes/", progress, query, within + RESPONSE_TIMEOUT)
        return response.headers.get("ETag", "")

    async def attribute(self, name: str, progress: Progress | None = None) -> str | None:
        """Return an attribute of the instance; None if it does not exist."""
        return await self.value(f"instance/attributes/{name}", progress)

    async def project_id(self, progress: Progress | None = None) -> str:
        """Return the project ID of this machine."""
        return validate_project(await self._required("project/project-id", progress))

    async def zone(self, progress: Progress | None = None) -> str:
        """Return the zone of this machine, such as `us-central2-b`."""
        # projects/NUMBER/zones/ZONE
        return validate_zone((await self._required("instance/zone", progress)).rpartition("/")[2])

    async def internal_ip(self, progress: Progress | None = None) -> str:
        """Return the IP address of the first network interface of this machine."""
        return await self._required("instance/network-interfaces/0/ip", progress)

    async def tpu_env(self, progress: Progress | None = None) -> TPUEnvironment | None:
        """Return the attribute `tpu-env`, parsed; None if this is not a TPU VM."""
        text = await self.attribute("tpu-env", progress)
        return None if text is None else parse_tpu_env(text)

    async def accelerator_type(self, progress: Progress | None = None) -> str | None:
        """Return the accelerator type of the slice, such as `v4-16`; None if this is not a TPU VM."""
        return await self.attribute("accelerator-type", progress)

    async def worker_network_endpoints(self, progress: Progress | None = None) -> tuple[str, ...] | None:
        """Return the host of each worker of the slice, by index; None if this is not a TPU VM.

        IPv6 addresses have no brackets.
        """
        text = await self.attribute("worker-network-endpoints", progress)
        return None if text is None else parse_worker_hosts(text)

    async def aclose(self) -> None:
        """Close the connection of `async with`. Closing twice has no effect."""
        client, self._client, self._loop = self._client, None, None
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> Self:
        if self._client is not None:
            raise ConfigurationError(
                f"{self!r} is already entered", hint="Use that object, or create another one."
            )
        self._client, self._loop = _new_client(), asyncio.get_running_loop()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _get(
        self, path: str, progress: Progress | None, query: Mapping[str, str], timeout: float
    ) -> Response:
        """Return a response with status 200 or 404; each attempt may take `timeout` seconds."""
        progress = progress or Progress()
        host = f"http://{metadata_host(os.environ, self._host)}"
        url = URL(f"{host}/computeMetadata/v1/{path}").with_query(query)
        scope = f"metadata {path}"
        async with self._acquire_client() as client:
            response = await send_with_retries(
                lambda attempts: _send(client, url, host, scope, attempts, timeout),
                scope=scope,
                host=host.removeprefix("http://"),
                progress=progress,
                policy=POLICY,
            )
        progress.done(scope, "received")
        return response

    async def _required(self, path: str, progress: Progress | None) -> str:
        value = await self.value(path, progress)
        if not value:
            raise APIError(
                f"the metadata server has no value for {path}",
                hint="Pass that value.",
                host=f"http://{metadata_host(os.environ, self._host)}",
                scope=f"metadata {path}",
                status=404,
            )
        return value

    @asynccontextmanager
    async def _acquire_client(self) -> AsyncIterator[HTTPClient]:
        # Sockets belong to the loop that opened them: a call from another loop uses a client of its own.
        if self._client is not None and self._loop is asyncio.get_running_loop():
            yield self._client
            return
        client = _new_client()
        try:
            yield client
        finally:
            await client.aclose()


def _new_client() -> HTTPClient:
    return HTTPClient(
        hints=connection_hints(NOT_GOOGLE_CLOUD), connect_timeout=CONNECT_TIMEOUT, logger=logger
    )


async def _send(
    client: HTTPClient, url: URL, host: str, scope: str, attempts: Iterator[int], timeout: float
) -> Response:
    """Return a response with status 200 or 404, after checking that it is from a metadata server."""
    response = None
    with anyio.move_on_after(timeout):
        try:
            response = await client.send(
                "GET", url, scope=scope, headers=FLAVOR, attempts=attempts, expected=(404,)
            )
        except ConnectionFailedError as error:
            # On Google Cloud the server responds at once; elsewhere a retry would only waste time.
            error.retryable = False
            raise
    if response is None:
        raise ConnectionFailedError(
            f"{host} did not respond to {scope} within {timeout:g} s",
            hint=NOT_GOOGLE_CLOUD,
            host=host,
            scope=scope,
            retryable=False,
        )
    if response.headers.get("metadata-flavor") != "Google":
        raise ProtocolError(
            f"{host} is not a metadata server: it returned status {response.status} for {scope} without the"
            " header Metadata-Flavor: Google",
            hint=NOT_GOOGLE_CLOUD,
            host=host,
            scope=scope,
            retryable=False,
        )
    if response.status not in (200, 404):
        raise APIError(
            f"{host} returned status {response.status} for {scope}:"
            f" {response.body[:200].decode('utf-8', 'replace')!r}",
            hint="Check that this machine has access to it.",
            host=host,
            scope=scope,
            status=response.status,
            retry_after=response.retry_after,
            retryable=response.status in RETRYABLE_STATUSES,
        )
    return response
