"""Where the metadata server is. Pure but for the environment it is given.

The GCE metadata server: who and where this machine is, asked at every call.

Protocol: https://cloud.google.com/compute/docs/metadata/querying-metadata. Off Google Cloud there is none,
and an address that swallows packets or a stranger that answers must cost nobody more than two seconds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Self

import anyio
from yarl import URL

from aioresolve._core.deadline import Progress
from aioresolve._core.retry import RETRYABLE_STATUSES, RetryPolicy, call_with_retries
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, ProtocolError

from .resource_names import validate_project, validate_zone
from .tpu_env import TPUEnvironment, parse_tpu_env, parse_worker_hosts, parse_worker_number
from .transport import HTTPClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import TracebackType

    from .transport import Answer

__all__ = ["MetadataServer", "is_metadata_host", "metadata_host"]

DEFAULT_HOST = "metadata.google.internal"

LINK_LOCAL = frozenset({DEFAULT_HOST, "169.254.169.254", "fd20:ce::254", "fd00:ec2::254"})
"""Where the metadata servers of Google, Azure and AWS are: they speak plain http, to this machine alone."""

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


def metadata_host(environ: Mapping[str, str], given: str | None = None) -> str:
    """Return the metadata server, `host` or `host:port`, as google-auth finds it.

    It is the one given, else $GCE_METADATA_HOST, else $GCE_METADATA_IP, else `metadata.google.internal`.

    Raises:
        ConfigurationError: the one named is none, or NO_GCE_CHECK=true forbids looking for one.
    """
    if given is None and environ.get("NO_GCE_CHECK", "").lower() == "true":
        raise ConfigurationError(
            "the metadata server is not asked, for NO_GCE_CHECK=true says that this is no machine of Google"
            " Cloud; unset it, or give project, zone and credentials yourself"
        )
    for where, host in (
        ("host", given),
        ("the environment variable GCE_METADATA_HOST", environ.get("GCE_METADATA_HOST")),
        ("the environment variable GCE_METADATA_IP", environ.get("GCE_METADATA_IP")),
    ):
        if host and _HOST.fullmatch(host) is None:
            raise ConfigurationError(f"{where} is {host!r}; write the metadata server as HOST or HOST:PORT")
        if host:
            return host
    return DEFAULT_HOST


def is_metadata_host(url: URL) -> bool:
    """Whether `url` is a metadata server's, to which no request leaves the machine that hosts this one."""
    environment = {os.environ.get("GCE_METADATA_HOST"), os.environ.get("GCE_METADATA_IP")}
    return url.host in LINK_LOCAL or url.authority in environment


logger = logging.getLogger("aioresolve.gcp")

CONNECT_TIMEOUT = 1.0
"""Seconds to find the server's name and reach its socket: on Google Cloud it is on the same machine."""

ANSWER_TIMEOUT = 1.5
"""Seconds for the whole answer, connecting included."""

POLICY = RetryPolicy(attempts=5, first_wait=0.1, longest_wait=2.0)
"""A metadata server that says it is not ready is asked again: GKE's takes seconds to start."""

FLAVOR = {"Metadata-Flavor": "Google"}

MEND = (
    "this does not seem to be a machine of Google Cloud: give project, zone and credentials yourself,"
    " or set GCE_METADATA_HOST"
)


class MetadataServer:
    """The metadata server of this machine.

    Nothing is kept but the connection, inside `async with`; outside it each call opens its own. It may be
    used again from another event loop.

    Where there is none, every method raises within two seconds: a ConnectionFailedError where nothing
    answers, a ProtocolError where something else does, a ConfigurationError where NO_GCE_CHECK=true forbids
    asking. An APIError is the server's own refusal.

    Args:
        host: `host` or `host:port`; where None, $GCE_METADATA_HOST, $GCE_METADATA_IP or
            `metadata.google.internal`, looked up at each call.
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
        """Return the value at `path`, such as `instance/zone`; None where the server has none there."""
        answer = await self._asked(path, progress, query or {}, ANSWER_TIMEOUT)
        return None if answer.status == 404 else answer.body.decode("utf-8", "replace").strip()

    async def attributes_tag(
        self, other_than: str = "", within: int = 0, progress: Progress | None = None
    ) -> str:
        """Return the entity tag of all of the instance's attributes, which every change of one changes.

        Args:
            other_than: a tag that is known: the server holds its answer back until there is another.
            within: seconds after which it answers nevertheless, with the tag that is known.
            progress: what is waited for is noted here.

        Returns:
            The tag; empty where the server gives none, as imitations of it do.
        """
        query = {"recursive": "true"}
        if other_than:
            query |= {"wait_for_change": "true", "last_etag": other_than, "timeout_sec": str(within)}
        answer = await self._asked("instance/attributes/", progress, query, within + ANSWER_TIMEOUT)
        return answer.headers.get("ETag", "")

    async def attribute(self, name: str, progress: Progress | None = None) -> str | None:
        """Return one of the instance's attributes; None where it has none of that name."""
        return await self.value(f"instance/attributes/{name}", progress)

    async def project_id(self, progress: Progress | None = None) -> str:
        """Return the id of this machine's project."""
        return validate_project(await self._known("project/project-id", progress))

    async def zone(self, progress: Progress | None = None) -> str:
        """Return this machine's zone, such as `us-central2-b`."""
        # projects/NUMBER/zones/ZONE
        return validate_zone((await self._known("instance/zone", progress)).rpartition("/")[2])

    async def internal_ip(self, progress: Progress | None = None) -> str:
        """Return the address of this machine's first network interface."""
        return await self._known("instance/network-interfaces/0/ip", progress)

    async def tpu_env(self, progress: Progress | None = None) -> TPUEnvironment | None:
        """Return what `tpu-env` says; None where this is no TPU VM.

        Raises:
            ProtocolError: it cannot be understood.
        """
        text = await self.attribute("tpu-env", progress)
        return None if text is None else parse_tpu_env(text)

    async def accelerator_type(self, progress: Progress | None = None) -> str | None:
        """Return the slice's type, such as `v4-16`; None where this is no TPU VM."""
        return await self.attribute("accelerator-type", progress)

    async def agent_worker_number(self, progress: Progress | None = None) -> int | None:
        """Return this machine's index in its slice, from 0; None where this is no TPU VM.

        Raises:
            ProtocolError: it is no number.
        """
        text = await self.attribute("agent-worker-number", progress)
        return None if text is None else parse_worker_number(text)

    async def worker_network_endpoints(self, progress: Progress | None = None) -> tuple[str, ...] | None:
        """Return the host of each worker of the slice, by index; None where this is no TPU VM.

        An IPv6 address comes without brackets.

        Raises:
            ProtocolError: they cannot be understood.
        """
        text = await self.attribute("worker-network-endpoints", progress)
        return None if text is None else parse_worker_hosts(text)

    async def instance_id(self, progress: Progress | None = None) -> str | None:
        """Return the attribute `instance-id`: the TPU node's id; None where this is no TPU VM."""
        return await self.attribute("instance-id", progress)

    async def aclose(self) -> None:
        """Close the connection that `async with` kept. Closing twice does nothing."""
        client, self._client, self._loop = self._client, None, None
        if client is not None:
            await client.aclose()

    async def __aenter__(self) -> Self:
        if self._client is not None:
            raise ConfigurationError(f"{self!r} is entered already; use the one, or make another")
        self._client, self._loop = _client(), asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _asked(
        self, path: str, progress: Progress | None, query: Mapping[str, str], timeout: float
    ) -> Answer:
        """Return the answer, 200 or 404, each attempt at which may take `timeout` seconds."""
        progress = progress or Progress()
        host = metadata_host(os.environ, self._host)
        url = URL(f"http://{host}/computeMetadata/v1/{path}").with_query(query)
        scope = f"metadata {path}"
        attempts = count(1)

        async with self._opened() as client:

            async def attempt() -> Answer:
                return await _answer(client, url, f"http://{host}", scope, next(attempts), timeout)

            progress.waiting(scope, f"{host} has not answered")
            answer = await call_with_retries(
                attempt, policy=POLICY, on_failure=lambda error, wait: progress.failed(scope, error)
            )
        progress.done(scope, "answered")
        return answer

    async def _known(self, path: str, progress: Progress | None) -> str:
        value = await self.value(path, progress)
        if not value:
            raise APIError(
                f"the metadata server does not know {path}: it answered 404 or nothing; give that value"
                " yourself",
                host=f"http://{metadata_host(os.environ, self._host)}",
                scope=f"metadata {path}",
                status=404,
            )
        return value

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[HTTPClient]:
        # Sockets belong to the loop that opened them: a call from another one brings its own.
        if self._client is not None and self._loop is asyncio.get_running_loop():
            yield self._client
            return
        client = _client()
        try:
            yield client
        finally:
            await client.aclose()


def _client() -> HTTPClient:
    return HTTPClient(connect_timeout=CONNECT_TIMEOUT, use_proxies=False)


async def _answer(
    client: HTTPClient, url: URL, host: str, scope: str, attempt: int, timeout: float
) -> Answer:
    """Return the metadata server's answer, 200 or 404, once it is sure to be the metadata server's."""
    answer = None
    request = HTTPCall(logger, "GET", host, url.raw_path, scope=scope, attempt=attempt, expected=(404,))
    with anyio.move_on_after(timeout):
        try:
            with request:
                answer = await client.send("GET", str(url), scope=scope, mend=MEND, headers=FLAVOR)
                request.set_response(answer.status, len(answer.body))
        except ConnectionFailedError as error:
            # Whoever is on Google Cloud reaches it at once; whoever is not would be kept waiting.
            error.retryable = False
            raise
    if answer is None:
        raise ConnectionFailedError(
            f"{host} did not answer {scope} within {timeout:g} s; {MEND}",
            host=host,
            scope=scope,
            retryable=False,
        )
    if answer.headers.get("metadata-flavor") != "Google":
        raise ProtocolError(
            f"{host} answered {answer.status} for {scope} without the header Metadata-Flavor: Google, so it"
            f" is no metadata server; {MEND}",
            host=host,
            scope=scope,
            retryable=False,
        )
    if answer.status not in (200, 404):
        raise APIError(
            f"{host} answered {answer.status} for {scope}:"
            f" {answer.body[:200].decode('utf-8', 'replace')!r}; see that this machine may ask for it",
            host=host,
            scope=scope,
            status=answer.status,
            retry_after=answer.retry_after,
            retryable=answer.status in RETRYABLE_STATUSES,
        )
    return answer
