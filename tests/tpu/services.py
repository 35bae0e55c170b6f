"""What `googleapiclient.discovery.build("tpu", ...)` returns, as far as it is used."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from aioresolve.testing import tpu_node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FakeHttpError", "FakeService"]


class FakeHttpError(Exception):
    """As googleapiclient's HttpError: it has the answer's status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"<HttpError {status}>")
        self.resp = type("Response", (), {"status": status})()


class FakeService:
    """Answers each question with a node of these addresses, or does what it is told."""

    def __init__(self, ips: Sequence[str] = (), answer: Callable[[], Any] | None = None) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()
        self.at_once = 0
        self._running = 0
        self._answer = answer or (lambda: tpu_node("projects/p/locations/z/nodes/my-tpu", ips=ips))

    def projects(self) -> FakeService:
        return self

    def locations(self) -> FakeService:
        return self

    def nodes(self) -> FakeService:
        return self

    def get(self, *, name: str) -> FakeService:
        self.asked.append(name)
        return self

    def execute(self) -> Any:
        self.threads.add(threading.get_ident())
        self._running += 1
        self.at_once = max(self.at_once, self._running)
        try:
            return self._answer()
        finally:
            self._running -= 1
