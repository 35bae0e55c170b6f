"""TLS that is closed without waiting for the peer, and whose idle connections are small."""

from __future__ import annotations

import asyncio.sslproto
import ssl
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

__all__ = ["closing_one_sidedly", "restore_read_buffer", "shrink_read_buffer"]

READ_BUFFER = 4 * 1024
"""Bytes that a quiet connection reads at a time."""


class OneSidedClose(ssl.SSLObject):
    """TLS that is closed without waiting for the peer to say so too, as RFC 8446 section 6.1 allows.

    asyncio would wait for half a minute: a call given up because its server hangs would leave a socket open.
    """

    def unwrap(self) -> None:
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


def closing_one_sidedly(context: ssl.SSLContext) -> ssl.SSLContext:
    """Return `context`, whose connections in an event loop are from now on closed without waiting."""
    context.sslobject_class = OneSidedClose
    return context


def shrink_read_buffer(transport: asyncio.BaseTransport | None) -> None:
    """Let a quiet connection of asyncio's own TLS keep 4 KiB to read into, in place of 256 KiB.

    asyncio keeps a buffer for each connection, idle or not: 120 MB of 500 watches. It documents no way to say
    how large it is to be. Where its insides are others than those of Python 3.11 to 3.14, and on uvloop,
    nothing happens.
    """
    protocol = _tls_protocol(transport)
    if all(hasattr(protocol, name) for name in ("max_size", "_ssl_buffer", "_ssl_buffer_view")):
        protocol.max_size = READ_BUFFER
        protocol._ssl_buffer = bytearray(READ_BUFFER)
        protocol._ssl_buffer_view = memoryview(protocol._ssl_buffer)


def restore_read_buffer(transport: asyncio.BaseTransport | None) -> None:
    """Let a connection that was quiet read as much at a time as others: much is coming."""
    vars(_tls_protocol(transport)).pop("max_size", None)


def _tls_protocol(transport: asyncio.BaseTransport | None) -> Any:
    protocol = getattr(transport, "_ssl_protocol", None)
    return protocol if isinstance(protocol, asyncio.sslproto.SSLProtocol) else SimpleNamespace()
