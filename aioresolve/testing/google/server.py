"""`GoogleServer`: Google Cloud's APIs, token servers and metadata server on loopback ports.

`GoogleServer` for code without an event loop: it runs in a thread of its own.
"""

from __future__ import annotations

import contextlib
import time
import urllib.parse
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from aiohttp import web
from multidict import CIMultiDict

from aioresolve.errors import ConfigurationError
from aioresolve.testing.certificates import CertificateAuthority
from aioresolve.testing.faults import Answer, Endless, Redirect
from aioresolve.testing.lifecycle import ThreadedServer, drop_connections, stop_listening
from aioresolve.testing.replies import Reply, endless, hold_up, send

from .apis import compute_reply, tpu_reply
from .cloud import Cloud
from .controls import GoogleControls, Listeners
from .metadata import awaited_metadata_reply, default_metadata
from .requests import GoogleRequest, service_of
from .statuses import Failure, conditional, failure_of_status, no_such_page
from .tokens import Tokens

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from aioresolve.testing.faults import Fault

__all__ = ["GoogleServer", "ThreadedGoogleServer"]


class GoogleServer(GoogleControls):
    """One project of Google Cloud on loopback ports, for tests of whatever talks to it.

    ```python
    async with GoogleServer([tpu_node("my-tpu", workers=4)]) as server:
        async with GoogleSession(endpoints=server.endpoints) as session: ...
        server.script("my-tpu", "CREATING", "READY")
    ```

    It answers as the Cloud TPU API (v1 and v2: nodes, queued resources), Compute Engine (instances, instance
    groups), the OAuth and STS token servers, `generateAccessToken` and the GCE metadata server do. What it
    holds survives the `async with`.

    Args:
        nodes: TPU nodes that `tpu_node()` made; queued resources and instances may be among them.
        project: the project's id.
        zone: the zone of whatever is not said to be elsewhere.
        metadata: what the metadata server says besides the usual, by path; `tpu_vm()` makes a TPU VM of it.
        tls: let the APIs and token servers speak TLS, with a certificate of an authority of their own (needs
            the extra `testing`). The metadata server speaks plain http, at a port of its own.
        tokens: access token to IAM member (`serviceAccount:a@b`); those that the token servers issue are good
            too. With None the APIs are open to everybody.
        page_size: items of a page at most.
        etags: whether the APIs answer a GET with an `ETag`, and 304 where `If-None-Match` names it (AIP-154);
            the pages of the Cloud TPU API promise neither.
        host: the loopback address to listen at.
        port: the port of the APIs; 0 takes a free one, which is kept.

    Raises:
        ConfigurationError: `page_size` is less than one, or a resource is none.
    """

    def __init__(
        self,
        nodes: Iterable[Mapping[str, Any]] = (),
        *,
        project: str = "demo-project",
        zone: str = "us-central2-b",
        metadata: Mapping[str, str] | None = None,
        tls: bool = False,
        tokens: Mapping[str, str] | None = None,
        page_size: int = 500,
        etags: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        if page_size < 1:
            raise ConfigurationError(f"page_size is {page_size}: a page holds at least one item")
        email = f"robot@{project}.iam.gserviceaccount.com"
        known = None if tokens is None else dict(tokens)
        cloud = Cloud(project, zone, Tokens(known, email), page_size, etags)
        cloud.metadata = {**default_metadata(project, zone, email), **(metadata or {})}
        super().__init__(cloud, Listeners(host, port), tls=tls)
        self._context: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self.add(*nodes)

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is taken.
            MissingDependencyError: TLS needs trustme, which is not installed.
            RuntimeError: it is running already.
        """
        if self._runner is not None:
            raise RuntimeError("this GoogleServer is running already")
        if self._tls and self._context is None:
            self._context = await anyio.to_thread.run_sync(self._make_context)
        application = web.Application(client_max_size=1 << 20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        application.on_response_prepare.append(_with_own_server_header)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            self._runner = runner
            self._listeners.port = await self._listen(runner, self.port, self._context)
            if self._tls:
                self._listeners.metadata_port = await self._listen(
                    runner, self._listeners.metadata_port, None
                )
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: len(server.requests) == 2`.

        Raises:
            TimeoutError: it does not within `timeout` seconds.
        """
        with anyio.fail_after(timeout):
            while not condition():  # noqa: ASYNC110 - a condition on anything has no event of its own
                await anyio.sleep(0.002)

    def in_thread(self) -> ThreadedGoogleServer:
        """The same server for code without a loop: `with server.in_thread() as server:`."""
        return ThreadedGoogleServer(self._cloud, self._listeners, self, self.until, tls=self._tls)

    def _make_context(self) -> ssl.SSLContext:
        authority = self._listeners.authority or CertificateAuthority()
        self._listeners.authority = authority
        return authority.server_context()

    async def _listen(self, runner: web.AppRunner, port: int, context: ssl.SSLContext | None) -> int:
        """Listen at one port more, and return it."""
        site = web.TCPSite(runner, self.host, port, ssl_context=context, reuse_address=True, backlog=1024)
        await site.start()
        return int(runner.addresses[-1][1])

    async def _stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        with anyio.CancelScope(shield=True):
            for site in tuple(runner.sites):
                await stop_listening(site)
            drop_connections(runner)
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        record = GoogleRequest(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            service=service_of(request.path),
            scheme=scheme,
            user=self._cloud.tokens.member(token),
            certificate=_common_name(request),
            quota_project=request.headers.get("X-Goog-User-Project", ""),
            user_agent=request.headers.get("User-Agent", ""),
            time=time.monotonic(),
        )
        self._cloud.records.append(record)
        faults = self._cloud.faults.take(record)
        await hold_up(request, faults)
        reply = _scripted(faults)
        if reply is None:
            body = await request.read()
            try:
                reply = await self._reply(request, record, body)
            except Failure as failure:
                reply = failure.reply
        return await send(request, reply, faults)

    async def _reply(self, request: web.Request, record: GoogleRequest, body: bytes) -> Reply:
        cloud, tokens = self._cloud, self._cloud.tokens
        if self._tls and request.secure == (record.service == "metadata"):
            raise no_such_page()
        form = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace")))
        match record.service:
            case "metadata":
                return await awaited_metadata_reply(cloud, record.path, record.query, request.headers)
            case "oauth2":
                return tokens.granted(form, f"{self.url}/token")
            case "sts":
                return tokens.exchanged(form)
            case "iamcredentials":
                email = record.path.rpartition("/")[2].partition(":")[0]
                return tokens.impersonated(email, record.user)
            case "tpu":
                ask = tpu_reply
            case "compute":
                ask = compute_reply
            case _:
                raise no_such_page()
        authorization = request.headers.get("Authorization", "")
        reply = ask(cloud, record.method, record.path, record.query, authorization, record.user)
        is_conditional = cloud.etags and record.method == "GET"
        return conditional(reply, request.headers.get("If-None-Match", "")) if is_conditional else reply


def _common_name(request: web.Request) -> str:
    """The common name of the client certificate that came with a request."""
    shown = None if request.transport is None else request.transport.get_extra_info("peercert")
    pairs = [pair for name in (shown or {}).get("subject", ()) for pair in name]
    return next((value for key, value in pairs if key == "commonName"), "")


def _scripted(faults: Sequence[Fault]) -> Reply | None:
    """The answer that a fault puts in the place of the server's own."""
    for fault in faults:
        match fault:
            case Answer(status, body, headers):
                usual = failure_of_status(status).body if status >= 400 else b""
                every = CIMultiDict({"Content-Type": "application/json"}, **headers)
                return Reply(status, usual if body is None else body, every)
            case Redirect(location, status):
                return Reply(status, b"", {"Location": location})
            case Endless(head, chunk):
                return Reply(200, endless(head, chunk), {"Content-Type": "application/json"})
            case _:
                pass
    return None


async def _with_own_server_header(request: web.Request, response: web.StreamResponse) -> None:
    """Let a Server header stand that the reply brought, and none that aiohttp adds."""
    if "aiohttp" in response.headers.get("Server", ""):
        with contextlib.suppress(KeyError):
            del response.headers["Server"]


class ThreadedGoogleServer(ThreadedServer[AbstractAsyncContextManager[object]], GoogleControls):
    """What `GoogleServer.in_thread()` gives: `with` instead of `async with`, everything else the same."""

    def __init__(
        self,
        cloud: Cloud,
        listeners: Listeners,
        server: AbstractAsyncContextManager[object],
        until: Callable[[Callable[[], bool], float], Awaitable[None]],
        *,
        tls: bool,
    ) -> None:
        super().__init__(cloud, listeners, tls=tls)
        self._server = server
        self._until = until

    def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: len(server.requests) == 2`.

        Raises:
            TimeoutError: it does not within `timeout` seconds.
            RuntimeError: it is not running.
        """
        self._running.call(self._until, condition, timeout)

    def _not_running(self) -> RuntimeError:
        return RuntimeError("this GoogleServer is not running")
