"""The part that we use of what `googleapiclient.discovery.build("tpu", ...)` returns."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from aioresolve.testing import tpu_node

__all__ = ["FakeHttpError", "FakeService"]


class FakeHttpError(Exception):
    """Like googleapiclient's HttpError: it has the status of the response."""

    def __init__(self, status: int) -> None:
        super().__init__(f"<HttpError {status}>")
        self.resp = type("Response", (), {"status": status})()


class FakeService:
    """Returns the requested node, with these addresses, or calls `respond`."""

    def __init__(self, ips: Sequence[str] = (), respond: Callable[[], Any] | None = None) -> None:
        self.requested: list[str] = []
        self.threads: set[int] = set()
        self.max_running = 0
        self._running = 0
        self._respond = respond or (lambda: tpu_node(self.requested[-1], ips=ips))

    def projects(self) -> Self:
        return self

    def locations(self) -> Self:
        return self

    def nodes(self) -> Self:
        return self

    def get(self, *, name: str) -> Self:
        self.requested.append(name)
        return self

    def execute(self) -> Any:
        self.threads.add(threading.get_ident())
        self._running += 1
        self.max_running = max(self.max_running, self._running)
        try:
            return self._respond()
        finally:
            self._running -= 1
