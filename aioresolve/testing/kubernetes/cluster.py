"""The cluster behind a server: its objects, its users, its connected watches, and cached responses."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from .endpoint_slices import EndpointSliceController, EndpointSliceWriter
from .kinds import ENDPOINT_SLICE, POD
from .writes import PodWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .access import Access
    from .faults import WatchFault
    from .kinds import Kind
    from .store import Store
    from .writes import Writer

_MAX_CACHED_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """A request that the server received, without its token or certificate.

    Attributes:
        method: `GET`, ...
        path: the path without the query.
        query: parameter name to (last) value.
        verb: list, watch, get, create, update, patch, delete; empty for kinds that cannot be listed.
        resource: such as `pods` or `endpointslices`; empty for kinds that cannot be listed.
        namespace: the requested namespace, None for all.
        name: the requested object, None for a collection.
        user_agent: the `User-Agent` header.
        accept: the `Accept` header.
        scheme: how the client authenticated: `Bearer`, `Certificate`, another scheme, or empty.
        user: the authenticated user; None if the credentials were rejected.
        impersonated_user: the user of `Impersonate-User`, whose permissions then apply; every user may
            impersonate.
        impersonated_groups: the groups of `Impersonate-Group`.
        time: when it arrived, in seconds of `time.monotonic()`.
    """

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    verb: str = ""
    resource: str = ""
    namespace: str | None = None
    name: str | None = None
    user_agent: str = ""
    accept: str = ""
    scheme: str = ""
    user: str | None = None
    impersonated_user: str | None = None
    impersonated_groups: tuple[str, ...] = ()
    time: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class RunningWatch:
    """A connected watch and its pending faults, oldest first."""

    request: RequestRecord
    faults: deque[WatchFault] = field(default_factory=deque)


class Notifier:
    """Wakes the watches in the server's event loop.

    `notify` and `request_bookmark` may be called from any thread, and while the server is stopped.
    """

    def __init__(self) -> None:
        self.bookmarks_requested = 0
        """How often a bookmark was requested; a watch sends one whenever the number has grown."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._change: anyio.Event | None = None

    def start(self) -> None:
        """Use the running loop until `stop`."""
        self._loop = asyncio.get_running_loop()
        self._change = anyio.Event()

    def stop(self) -> None:
        self._loop = self._change = None

    def next_change(self) -> anyio.Event:
        """Return the event that is set at the next write or bookmark request."""
        assert self._change is not None, "a watch runs only while the server does"
        return self._change

    def request_bookmark(self) -> None:
        self.bookmarks_requested += 1
        self.notify()

    def notify(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # The server's thread closed the loop after the check above: nothing waits for this change.
            if not loop.is_closed():
                raise

    def _wake(self) -> None:
        if self._change is not None:
            self._change.set()
            # An event cannot be reset, so the next change gets a new one.
            self._change = anyio.Event()


class ResponseCache:
    """Whole response bodies by request, until the next write; limited by their size in bytes."""

    def __init__(self) -> None:
        self._version = -1
        self._size = 0
        self._bodies: dict[tuple[object, ...], bytes] = {}

    def get(self, version: int, key: tuple[object, ...]) -> bytes | None:
        return self._bodies.get(key) if version == self._version else None

    def clear(self) -> None:
        """Remove every body, because a version number may be used again for other content."""
        self._bodies.clear()
        self._version, self._size = -1, 0

    def put(self, version: int, key: tuple[object, ...], body: bytes) -> None:
        if version != self._version or self._size + len(body) > _MAX_CACHED_BYTES:
            self._bodies.clear()
            self._version, self._size = version, 0
        self._bodies[key] = body
        self._size += len(body)


@dataclass(slots=True)
class Cluster:
    """Everything that survives a restart of the server.

    `writers` apply the writes of clients, and `services` derives EndpointSlices from pods. `watches` are
    those that are connected; each sends a bookmark every `bookmark_interval` seconds, and with `watch_list`
    they may begin with the existing objects. `controllers` are Jobs and other objects that can only be read,
    by the path of their URL.
    """

    store: Store
    access: Access
    bookmark_interval: float
    notifier: Notifier = field(default_factory=Notifier)
    responses: ResponseCache = field(default_factory=ResponseCache)
    writers: Mapping[Kind, Writer] = field(init=False)
    services: EndpointSliceController = field(init=False)
    watches: list[RunningWatch] = field(default_factory=list)
    controllers: dict[str, dict[str, Any]] = field(default_factory=dict)
    watch_list: bool = True

    def __post_init__(self) -> None:
        self.writers = {POD: PodWriter(self.store), ENDPOINT_SLICE: EndpointSliceWriter(self.store)}
        self.services = EndpointSliceController(self.store)
        self.store.listen(self.services.sync)
        self.store.listen(self.notifier.notify)
