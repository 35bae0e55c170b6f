"""An event loop whose clock jumps to the next timer, and HTTP without sockets: an hour takes no time."""

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from aioresolve._core import threads

P = ParamSpec("P")
T = TypeVar("T")

BURST = 50
"""More requests for the same within a second end a test, whose clock might otherwise stand still."""


class _JumpingSelector(selectors.DefaultSelector):
    """Returns at once, and adds the time that a call would have waited to `now`."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        while True:
            # A thread wakes the loop before it counts as ended, so look for threads first.
            is_waiting_for_threads = bool(threads._threads._running)
            if events := super().select(0.05 if is_waiting_for_threads else 0):
                return events
            if not is_waiting_for_threads:
                break
        if timeout is None:
            raise RuntimeError("the event loop waits for nothing")
        self.now += timeout
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop for code that waits for timers and threads, but for no socket."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` in an event loop with virtual time, which starts at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in an event loop with virtual time."""

    @functools.wraps(test)
    def run_test(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return run_test


@dataclass(frozen=True)
class Reply:
    """A response: a status with a body, or an error before the response (`is_lost`) or in it (`is_cut`).

    With `is_hung` there is no response. `read` returns the next bytes of a body that arrives later.
    """

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_lost: bool = False
    is_cut: bool = False
    is_hung: bool = False
    read: Callable[[], Awaitable[bytes]] | None = None


@dataclass
class Requests:
    """The requests that were sent: the time of each, by path, field selector and whether it is a watch."""

    reply: Callable[[URL], Reply]
    times: dict[tuple[str, str | None, bool], list[float]] = field(default_factory=dict)

    @property
    def most_in_a_second(self) -> int:
        """The largest number of requests for the same within a second."""
        return max(
            sum(1 for each in times if start <= each < start + 1.0)
            for times in self.times.values()
            for start in times
        )


def fake_requests(monkeypatch: pytest.MonkeyPatch, reply: Callable[[URL], Reply]) -> Requests:
    """Let each request of any HTTP client get the reply that `reply` returns for its URL."""
    requests = Requests(reply)

    async def request(session: aiohttp.ClientSession, method: str, url: URL, **options: Any) -> Any:
        # A watch is resumed from another version, and a list continued on another page.
        requested = url.path, url.query.get("fieldSelector"), "watch" in url.query
        times = requests.times.setdefault(requested, [])
        times.append(asyncio.get_running_loop().time())
        assert len(times) <= BURST or times[-1] - times[-BURST] >= 1.0, f"a burst of requests: {url}"
        await asyncio.sleep(0)
        replied = requests.reply(url)
        if replied.is_hung:
            await asyncio.Event().wait()
        if replied.is_lost:
            raise aiohttp.ClientOSError(104, "Connection reset by peer")
        return _response(replied, url)

    monkeypatch.setattr(aiohttp.ClientSession, "request", request)
    return requests


def _response(reply: Reply, url: URL) -> Any:
    """Return what our client uses of an aiohttp response."""
    chunks = [reply.body] if reply.body else []

    async def readany() -> bytes:
        if chunks:
            return chunks.pop()
        if reply.is_cut:
            raise aiohttp.ClientPayloadError("the body was cut")
        return b""

    return SimpleNamespace(
        status=reply.status,
        headers=CIMultiDictProxy(CIMultiDict(reply.headers)),
        url=url,
        connection=None,
        content=SimpleNamespace(readany=reply.read or readany, is_eof=lambda: True),
        close=lambda: None,
    )
