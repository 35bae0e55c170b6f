"""`KubernetesServer`: the Kubernetes pod API on a loopback port.

`KubernetesServer` for code without an event loop: it runs in a thread of its own.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread
from aiohttp import web
from multidict import CIMultiDict

from aioresolve.errors import ConfigurationError, DeadlineExceededError
from aioresolve.testing.certificates import CertificateAuthority
from aioresolve.testing.faults import Answer, Endless, Redirect
from aioresolve.testing.lifecycle import ThreadedServer, drop_connections, stop_listening
from aioresolve.testing.replies import Reply, endless, hold_up, send

from .access import Access
from .api import Call, reply_to
from .cluster import Cluster
from .controls import Controls, Listener, no_connections, not_running
from .disturbances import WatchError
from .endless_pages import EndlessPages
from .requests import RequestRecord, target_of
from .statuses import failure_of_status
from .store import Store
from .watches import error_line

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from aioresolve.testing.faults import Fault

    from .access import Caller
    from .requests import Target

__all__ = ["KubernetesServer", "ThreadedKubernetesServer"]

_LARGEST_BODY = 3 * 1024 * 1024
_FLOW = {
    "X-Kubernetes-Pf-Flowschema-Uid": "2c05a679-f264-40a1-bda5-c9b8f7198d2e",
    "X-Kubernetes-Pf-Prioritylevel-Uid": "08d4e4e1-d121-4e2e-8f10-9a3c4d436ac1",
}


def _utc_now() -> datetime:
    return datetime.now(UTC)


class KubernetesServer(Controls):
    """A Kubernetes API server that knows pods, on a loopback port, for tests of what talks to one.

    ```
    async with KubernetesServer([pod("train-0", labels={"app": "trainer"})]) as server:
        server.write_kubeconfig(path)
        ...
        server.inject(Answer(503))  # the next request
        server.disturb(Reset())  # the watches under way
        await server.restart()
    ```

    It answers list, watch, get, create, update, patch and delete of pods as a Kubernetes 1.36 server does,
    down to the bodies of its errors. What it holds survives a restart, and the `async with` too. Ages in
    Tables are as of the moment a pod was written, so that equal questions have equal answers.

    Args:
        pods: what the cluster holds at first; `pod()` builds them.
        tls: speak TLS, with a certificate of an authority of its own (needs the extra `testing`).
        hostnames: names and addresses its certificate is valid for, besides localhost, 127.0.0.1 and ::1.
        tokens: bearer token to user name; with None and no `passwords` the server is open to everybody.
        passwords: user name to password, for basic authentication.
        allow: user name to the namespaces it may use, None for all; other users may do nothing. Without it
            every user may do everything.
        anonymous: answer 403 instead of 401 where credentials are missing, as a default server does.
        host: the loopback address to listen at.
        port: the port; 0 takes a free one, which is kept over restarts.
        history: how many writes are remembered for continue tokens and watches.
        bookmark_interval: seconds between two bookmarks of a watch.
        clock: what time it is, with a time zone.

    Raises:
        ConfigurationError: `history` is less than one.
    """

    def __init__(
        self,
        pods: Iterable[Mapping[str, Any]] = (),
        *,
        tls: bool = False,
        hostnames: Sequence[str] = (),
        tokens: Mapping[str, str] | None = None,
        passwords: Mapping[str, str] | None = None,
        allow: Mapping[str, Collection[str] | None] | None = None,
        anonymous: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        history: int = 4096,
        bookmark_interval: float = 60.0,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        if history < 1:
            raise ConfigurationError(f"history is {history}: a server remembers at least its last write")
        access = Access(tokens, passwords, allow, anonymous)
        cluster = Cluster(Store(clock=clock, history=history), access, bookmark_interval)
        super().__init__(cluster, Listener(host, port), tls=tls)
        self._hostnames = tuple(hostnames)
        self._context: ssl.SSLContext | None = None
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None
        for each in pods:
            self.add(each)

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigurationError: it cannot listen there, or is running already.
            MissingDependencyError: TLS needs trustme, which is not installed.
        """
        if self._runner is not None:
            raise ConfigurationError("this KubernetesServer is running already: make another one")
        if self._tls and self._context is None:
            self._context = await anyio.to_thread.run_sync(self._make_context)
        application = web.Application(client_max_size=_LARGEST_BODY)
        application.router.add_route("*", "/{path:.*}", self._handle)
        application.on_response_prepare.append(_without_server_header)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            self._runner = runner
            self._cluster.pulse.start()
            self._listener.connections = self._open_connections
            await self._listen()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def restart(self) -> None:
        """Drop every connection and listen again, at the same port and with the same data.

        Raises:
            ConfigurationError: it is not running, or the port has been taken meanwhile.
        """
        async with self.down():
            pass

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Refuse connections inside the block: the port is closed, every connection is dropped.

        Raises:
            ConfigurationError: it is not running, or the port has been taken meanwhile.
        """
        if self._site is None or self._runner is None:
            raise not_running()
        site, self._site = self._site, None
        await stop_listening(site)
        drop_connections(self._runner)
        try:
            yield
        finally:
            if self._runner is not None:
                await self._listen()

    async def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: server.watches == 1`.

        Raises:
            DeadlineExceededError: it does not within `timeout` seconds.
        """
        with anyio.move_on_after(timeout) as scope:
            while not condition():  # noqa: ASYNC110 - a condition on anything has no event of its own
                await anyio.sleep(0.002)
        if scope.cancelled_caught:
            raise DeadlineExceededError(f"the condition did not hold within {timeout} s", timeout=timeout)

    def in_thread(self) -> ThreadedKubernetesServer:
        """The same server for code without a loop: `with server.in_thread() as server:`."""
        return ThreadedKubernetesServer(self, self._cluster, self._listener, tls=self._tls)

    def _make_context(self) -> ssl.SSLContext:
        authority = self._listener.authority or CertificateAuthority(self._hostnames)
        self._listener.authority = authority
        return authority.server_context()

    async def _listen(self) -> None:
        assert self._runner is not None
        site = web.TCPSite(
            self._runner, self.host, self.port, ssl_context=self._context, reuse_address=True, backlog=1024
        )
        try:
            await site.start()
        except OSError as error:
            place = f"{self.host} port {self.port}"
            raise ConfigurationError(
                f"cannot listen at {place}: {error.strerror}; port=0 takes a free one"
            ) from error
        self._site = site
        self._listener.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        runner, self._runner, self._site = self._runner, None, None
        self._listener.connections = no_connections
        with anyio.CancelScope(shield=True):
            if runner is not None:
                for site in tuple(runner.sites):
                    await stop_listening(site)
                drop_connections(runner)
                await runner.cleanup()
        self._cluster.pulse.stop()

    def _open_connections(self) -> int:
        runner = self._runner
        return 0 if runner is None or runner.server is None else len(runner.server.connections)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        target = target_of(request.method, request.path, query)
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        caller = self._cluster.access.caller(request.headers.get("Authorization", ""), certificate)
        record = _record(request, query, target, caller)
        self._cluster.records.append(record)
        faults = self._cluster.faults.take(record)
        await hold_up(request, faults)
        reply = _scripted(faults)
        if reply is None:
            body = await request.read()
            call = Call(record, request.method, request.path, query, request.headers, body, caller, target)
            lie = next((fault for fault in faults if isinstance(fault, EndlessPages)), None)
            reply = await reply_to(self._cluster, call, lie)
        headers = CIMultiDict({"Audit-Id": str(uuid.uuid4()), "Cache-Control": "no-cache, private"})
        if reply.status != 401:
            headers.update(_FLOW)
        headers.update(reply.headers)
        return await send(request, Reply(reply.status, reply.body, headers), faults)


def _record(
    request: web.Request, query: Mapping[str, str], target: Target | None, caller: Caller
) -> RequestRecord:
    return RequestRecord(
        method=request.method,
        path=request.path,
        query=query,
        verb="" if target is None else target.verb,
        namespace=None if target is None else target.namespace,
        name=None if target is None else target.name,
        user_agent=request.headers.get("User-Agent", ""),
        accept=request.headers.get("Accept", ""),
        scheme=caller.scheme,
        user=caller.user,
        time=time.monotonic(),
    )


def _scripted(faults: Sequence[Fault]) -> Reply | None:
    """The answer that a fault puts in the place of the server's own."""
    for fault in faults:
        match fault:
            case Answer(status, body, headers):
                if body is None:
                    body = failure_of_status(status).body if status >= 400 else b""
                replaced = CIMultiDict({"Content-Type": "application/json"})
                replaced.update(headers)
                return Reply(status, body, replaced)
            case Redirect(location, status):
                return Reply(status, b"", {"Location": location})
            case Endless(head, chunk):
                return Reply(200, endless(head, chunk), {"Content-Type": "application/json"})
            case WatchError():
                return Reply(200, error_line(fault.failure), {"Content-Type": "application/json"})
            case _:
                pass
    return None


async def _without_server_header(request: web.Request, response: web.StreamResponse) -> None:
    with contextlib.suppress(KeyError):
        del response.headers["Server"]


class _Server(Protocol):
    """The part of `KubernetesServer` that needs a loop."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    async def restart(self) -> None: ...

    def down(self) -> AbstractAsyncContextManager[None]: ...

    async def until(self, condition: Callable[[], bool], timeout: float) -> None: ...


class ThreadedKubernetesServer(ThreadedServer[_Server], Controls):
    """What `KubernetesServer.in_thread()` gives: `with` instead of `async with`, everything else the same."""

    def __init__(self, server: _Server, cluster: Cluster, listener: Listener, *, tls: bool) -> None:
        super().__init__(cluster, listener, tls=tls)
        self._server = server

    def restart(self) -> None:
        """Drop every connection and listen again, at the same port and with the same data.

        Raises:
            ConfigurationError: it is not running, or the port has been taken meanwhile.
        """
        self._running.call(self._server.restart)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Refuse connections inside the block: the port is closed, every connection is dropped.

        Raises:
            ConfigurationError: it is not running, or the port has been taken meanwhile.
        """
        with self._running.wrap_async_context_manager(self._server.down()):
            yield

    def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Return as soon as `condition` holds, such as `lambda: server.watches == 1`.

        Raises:
            DeadlineExceededError: it does not within `timeout` seconds.
            ConfigurationError: it is not running.
        """
        self._running.call(self._server.until, condition, timeout)

    def _not_running(self) -> ConfigurationError:
        return not_running()
