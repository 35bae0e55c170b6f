"""The faults that a loopback server can inject between itself and a client, as values.

`server.inject(Delay(0.5), Answer(429, headers={"Retry-After": "1"}), times=2)` delays the next two requests
by half a second and then rejects them. Faults passed together apply to the same request: first the delays,
then the response (the server's own, or the one that a fault puts in its place), then how its bytes flow and
end. `server.disturb(Cut(after=20))` applies a fault to watches that are already connected.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

RequestT = TypeVar("RequestT")


@dataclass(frozen=True, slots=True)
class Fault:
    """The base class of all faults."""


@dataclass(frozen=True, slots=True)
class Delay(Fault):
    """The server waits this many seconds before it continues."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hang(Fault):
    """The server reads the request and never responds, until the client disconnects or the server stops."""


@dataclass(frozen=True, slots=True)
class Answer(Fault):
    """This response replaces the server's own.

    Attributes:
        status: the HTTP status.
        body: the body; None for the body that the server itself sends with that status.
        headers: further headers, such as `Retry-After`, or `Location` of a redirect; they override the
            server's own.
    """

    status: int = 200
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Endless(Fault):
    """A body without an end: `head` once, then `chunk` for as long as the client reads."""

    head: bytes = b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":['
    chunk: bytes = field(default=b" " * 65536, repr=False)


@dataclass(frozen=True, slots=True)
class Reset(Fault):
    """The connection is reset (TCP RST): before the response, or after this many bytes of the body.

    Many clients retry once by themselves if a connection that they had kept open is reset before the
    response.
    """

    after: int | None = None


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """The connection is closed cleanly after this many bytes of a body whose headers promised more."""

    after: int


@dataclass(frozen=True, slots=True)
class Stall(Fault):
    """After this many bytes of the body no more arrive, and the connection remains open.

    To a client, a machine that lost power looks like this, and a connection that a firewall has dropped.
    With `after=0` only the headers arrive. It lasts until the client disconnects or the server drops its
    connections.
    """

    after: int = 0


@dataclass(frozen=True, slots=True)
class End(Fault):
    """The body ends after this many bytes, as if it were complete."""

    after: int = 0


StreamFault = Cut | Delay | End | Reset | Stall
"""The faults that can occur in the middle of a body."""


@dataclass(frozen=True, slots=True)
class WatchError(Fault):
    """A watch of Kubernetes ends with an ERROR event, after its HTTP status was 200.

    Attributes:
        code: the code of the Status, such as 410, 429 or 500.
        reason: the reason of the Status, such as `Expired`; None for the usual one of that code.
        retry_after: seconds, sent in the Status as `details.retryAfterSeconds`.
    """

    code: int
    reason: str | None = None
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class Trickle(Fault):
    """The body arrives in pieces of `size` bytes, with a pause of `seconds` after each."""

    size: int
    seconds: float


@dataclass(slots=True)
class Injection(Generic[RequestT]):
    """Faults for the next `left` requests that `match` accepts; None means no limit."""

    faults: tuple[Fault, ...]
    match: Callable[[RequestT], bool] | None
    left: int | None

    def take(self, request: RequestT) -> bool:
        """Return whether the faults are for `request`, which then is one of the `left` requests."""
        if self.left == 0 or (self.match is not None and not self.match(request)):
            return False
        if self.left is not None:
            self.left -= 1
        return True


def reset_connection(transport: asyncio.BaseTransport) -> None:
    """Close a connection so that the client receives a TCP RST."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        # uvloop's socket object has no setsockopt; a duplicate of the descriptor is the same connection.
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as duplicate:
            duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast("asyncio.Transport", transport).abort()  # uvloop's transports have no base class
