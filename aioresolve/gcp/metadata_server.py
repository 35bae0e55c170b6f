"""The GCE metadata server: the project, zone and identity of this machine. Nothing is cached.

Protocol: https://cloud.google.com/compute/docs/metadata/querying-metadata. It may be slow or refuse
connections for a while: that of GKE does when a pod starts. So requests are repeated until the deadline of
the call. Off Google Cloud it does not exist: an unknown name, or another server that responds, is an error at
once, and an address that drops packets costs three attempts of three seconds.

The variables are those of google-auth (`google.auth.environment_vars`): the host from GCE_METADATA_HOST, or
GCE_METADATA_IP; the seconds of an attempt from GCE_METADATA_TIMEOUT; NO_GCE_CHECK.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from typing import TYPE_CHECKING, Any, Self

import anyio
from yarl import URL

from aioresolve._core.deadline import RETRYABLE_STATUSES, Progress, RetryPolicy, send_with_retries
from aioresolve._core.http import ConnectionHints, HTTPClient
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    ProtocolError,
    ResolveError,
)

from .resource_names import validate_project, validate_zone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aioresolve._core.http import Response

logger = logging.getLogger("aioresolve.gcp")

DEFAULT_HOST = "metadata.google.internal"

HOST_VARIABLES = ("GCE_METADATA_HOST", "GCE_METADATA_IP")
"""The variables that name the metadata server, the most important one first."""

RESPONSE_TIMEOUT = 3
"""Seconds for the complete response, including the connection, without GCE_METADATA_TIMEOUT."""

DETECTION_ATTEMPTS = 3
"""How often a server that may not exist is requested."""

POLICY = RetryPolicy(first_wait=0.1, longest_wait=2.0)
"""The waits between attempts."""

NOT_GOOGLE_CLOUD = "This machine does not seem to be on Google Cloud; if it is, set GCE_METADATA_HOST."
UNAVAILABLE = "Check the metadata server of this machine, and GCE_METADATA_HOST if it is set."

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?")

_responded: set[URL] = set()
"""The metadata servers that have responded to this process: one that then fails will respond again."""


def metadata_host(environ: Mapping[str, str]) -> str:
    """Return the metadata server, `host` or `host:port`, with the precedence of google-auth.

    It is that of the first of HOST_VARIABLES that is set, else `metadata.google.internal`. If it is invalid,
    or NO_GCE_CHECK=true forbids requests to it, it raises a ConfigurationError.
    """
    if environ.get("NO_GCE_CHECK", "").lower() == "true":
        raise ConfigurationError(
            "the metadata server is not used, because NO_GCE_CHECK=true states that this machine is not on"
            " Google Cloud",
            hint="Unset it if this machine is on Google Cloud.",
        )
    for name in HOST_VARIABLES:
        host = environ.get(name)
        match = _HOST.fullmatch(host or DEFAULT_HOST)
        if match is None or not 0 < int(match["port"] or 80) < 65536:
            raise ConfigurationError(
                f"the environment variable {name} is {host!r}, which is not a host",
                hint="Write it as HOST or HOST:PORT.",
            )
        if host:
            return host
    return DEFAULT_HOST


class MetadataServer:
    """The metadata server of this machine, inside `async with`.

    Requests are repeated until the deadline of the caller if the server is known to exist: it is configured,
    has responded to this process before, or refuses connections, as that of GKE does while a pod starts.
    Otherwise every method raises after a few attempts, and its error is not retryable: a
    ConnectionFailedError if nothing responds, a ProtocolError if another server does, a ConfigurationError if
    NO_GCE_CHECK=true. An APIError is a failure that the server reports.
    """

    async def value(
        self, path: str, progress: Progress | None = None, *, query: Mapping[str, str] | None = None
    ) -> str | None:
        """Return the value at `path`, such as `instance/zone`; None without one."""
        name, scope, failures = metadata_host(os.environ), f"metadata {path}", 0
        url = URL(f"http://{name}/computeMetadata/v1/{path}").with_query(query or {})

        async def send(attempts: Iterator[int]) -> Response:
            nonlocal failures
            is_known = name != DEFAULT_HOST or url.origin() in _responded
            try:
                return await self._attempt(
                    url, scope, attempts, UNAVAILABLE if is_known else NOT_GOOGLE_CLOUD
                )
            except ResolveError as error:
                # The name exists on Google Cloud only, so the server that refuses is about to start.
                if getattr(error.__cause__, "errno", None) != errno.ECONNREFUSED:
                    failures += 1
                error.retryable = error.retryable and (is_known or failures < DETECTION_ATTEMPTS)
                raise

        progress = progress or Progress()
        response = await send_with_retries(send, scope=scope, host=name, progress=progress, policy=POLICY)
        progress.done(scope, "received")
        return None if response.status == 404 else response.body.decode("utf-8", "replace").strip()

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

    async def __aenter__(self) -> Self:
        self._client = HTTPClient(hints=connection_hints(NOT_GOOGLE_CLOUD), logger=logger)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def _required(self, path: str, progress: Progress | None) -> str:
        value = await self.value(path, progress)
        if not value:
            raise APIError(
                f"the metadata server has no value for {path}",
                hint="Pass that value.",
                host=f"http://{metadata_host(os.environ)}",
                scope=f"metadata {path}",
                status=404,
            )
        return value

    async def _attempt(self, url: URL, scope: str, attempts: Iterator[int], hint: str) -> Response:
        """Return a response with status 200 or 404."""
        server, timeout = url.origin(), response_timeout()
        context: dict[str, Any] = {"hint": hint, "host": str(server), "scope": scope}
        response = None
        with anyio.move_on_after(timeout):
            response = await self._client.send(
                "GET",
                url,
                scope=scope,
                headers={"Metadata-Flavor": "Google"},
                attempts=attempts,
                expected=(404,),
                hints=connection_hints(hint),
            )
        if response is None:
            raise ConnectionFailedError(
                f"{server} did not respond to {scope} within {timeout:g} s", **context
            )
        status = response.status
        if response.headers.get("metadata-flavor") == "Google":
            _responded.add(server)
        # A server that has responded may leave the header out of errors.
        elif status not in RETRYABLE_STATUSES and (status == 200 or server not in _responded):
            raise ProtocolError(
                f"{server} is not a metadata server: it returned status {status} for {scope} without the"
                " header Metadata-Flavor: Google",
                retryable=False,
                **context,
            )
        if status in (200, 404):
            return response
        raise APIError(
            f"{server} returned status {status} for {scope}:"
            f" {response.body[:200].decode('utf-8', 'replace')!r}",
            status=status,
            retry_after=response.retry_after,
            retryable=status in RETRYABLE_STATUSES,
            **context,
        )


def response_timeout() -> float:
    """Return the seconds that an attempt may take."""
    text = os.environ.get("GCE_METADATA_TIMEOUT", "").strip()
    # As google-auth, a positive whole number, or else the default.
    return (int(text) if re.fullmatch("[0-9]{1,9}", text) else 0) or RESPONSE_TIMEOUT


def connection_hints(reach: str) -> ConnectionHints:
    """Return the hints for a server of Google; `reach` if it cannot be reached, or is a different server."""
    return ConnectionHints(
        certificate="Name its authority with {ssl_context} or SSL_CERT_FILE, or correct the endpoint.",
        tls="Check that the port speaks https.",
        name=reach,
        proxy="Correct HTTPS_PROXY and NO_PROXY.",
        url="It must start with https://HOST.",
        protocol=reach,
        reach=reach,
        length="Check whether this is the right server.",
        owner="session",
    )
