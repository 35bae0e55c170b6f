"""What can go wrong between a client and a server, as values: a script of faults for the loopback servers.

`server.inject(Delay(0.5), Answer(429, headers={"Retry-After": "1"}), times=2)` makes the next two requests
wait half a second and then be turned away. Faults given together act together on one request: first the
delays, then the answer (the server's own, or the one a fault puts in its place), then how its bytes flow and
end. `server.disturb(Cut(after=20))` befalls watches that have been answered long ago.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "Answer",
    "Cut",
    "Delay",
    "End",
    "Endless",
    "Fault",
    "FaultScript",
    "Hang",
    "Interruption",
    "Redirect",
    "Reset",
    "Stall",
    "Trickle",
]

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True)
class Fault:
    """The base of every fault."""


@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """Nothing is answered for so many seconds; then the rest happens."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """The request is read and never answered; it ends when the client goes, or the server does."""


@dataclass(frozen=True, slots=True)
class Answer(Fault):
    """This is answered instead of what was asked for.

    Attributes:
        status: the HTTP status.
        body: the body; None is the body the server itself sends with that status.
        headers: further headers, such as `Retry-After`; they win over the server's own.
    """

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Redirect(Fault):
    """The client is sent to another URL."""

    location: str
    status: int = 307


@dataclass(frozen=True, slots=True)
class Endless(Fault):
    """A body without an end: `head` once, then `chunk` for as long as the client reads."""

    head: bytes = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":['
    chunk: bytes = field(default=b" " * 65536, repr=False)


@dataclass(frozen=True, slots=True)
class Reset(Fault):
    """The connection is reset (TCP RST): before any answer, or after so many bytes of the body.

    Many clients try once more by themselves when a connection they had kept open is reset before any answer.
    """

    after: int | None = None


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """The connection is closed cleanly after so many bytes of a body whose headers promised more."""

    after: int


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """After so many bytes of the body nothing more comes, and the connection stays open.

    That is how a machine looks that has lost its power, or a connection that something between has forgotten.
    With `after=0` the headers come and nothing else. It lasts until the client goes or the server drops its
    connections.
    """

    after: int = 0


@dataclass(frozen=True, slots=True)
class End(Fault):
    """The body ends after so many bytes, as if these were all of it."""

    after: int = 0


Interruption = Cut | Delay | End | Reset | Stall
"""What can befall an answer whose body flows already."""


@dataclass(frozen=True, slots=True)
class Trickle(Fault):
    """The body flows in pieces of `size` bytes, with `seconds` between two of them.

    Raises:
        ConfigurationError: pieces of less than one byte never end.
    """

    size: int
    seconds: float

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigurationError(f"Trickle in pieces of {self.size} bytes: a piece has at least one")


@dataclass(slots=True)
class _Injection(Generic[RequestT]):
    faults: tuple[Fault, ...]
    match: Callable[[RequestT], bool] | None
    left: int | None


class FaultScript(Generic[RequestT]):
    """The faults still to come, first in first out; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._injections: list[_Injection[RequestT]] = []

    def inject(
        self, faults: tuple[Fault, ...], match: Callable[[RequestT], bool] | None, times: int | None
    ) -> None:
        """Let `faults` befall the next `times` requests that `match` accepts; None is without end."""
        with self._lock:
            self._injections.append(_Injection(faults, match, times))

    def clear(self) -> None:
        """Forget every fault still to come."""
        with self._lock:
            self._injections.clear()

    @property
    def pending(self) -> tuple[tuple[Fault, ...], ...]:
        """The faults still to come, one entry an injection."""
        with self._lock:
            return tuple(injection.faults for injection in self._injections)

    def take(self, request: RequestT) -> tuple[Fault, ...]:
        """The faults that befall this request: those of the first injection that matches, used up once."""
        with self._lock:
            for injection in self._injections:
                if injection.match is not None and not injection.match(request):
                    continue
                if injection.left is not None:
                    injection.left -= 1
                    if injection.left <= 0:
                        self._injections.remove(injection)
                return injection.faults
            return ()
