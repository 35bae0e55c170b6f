"""TLS that is closed without waiting for the peer, and whose idle connections are small."""

from __future__ import annotations

import asyncio.sslproto
import ssl
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

__all__ = ["READ_BUFFER", "closing_one_sidedly", "restore_read_buffer", "shrink_buffers"]

READ_BUFFER = 1024
"""Bytes that a quiet connection reads at a time: a bookmark is shorter."""


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


def shrink_buffers(transport: asyncio.BaseTransport | None) -> None:
    """Let a quiet TLS connection keep no buffer to write from, and a small one to read into.

    OpenSSL makes a buffer of 16 KiB to write from when the session tickets come that follow a handshake, and
    keeps it until something has been written; for a watch that is never. A write of nothing is enough, and
    sends nothing (SSL_write_ex(3)).

    asyncio keeps a buffer of 256 KiB to read into: 120 MB for 500 watches. It documents no way to say how
    large that is to be. Where its insides are others than those of Python 3.11 to 3.14, and on uvloop, it
    stays.
    """
    protocol = _tls_protocol(transport)
    tls = None if transport is None or transport.is_closing() else transport.get_extra_info("ssl_object")
    if tls is not None:
        with suppress(ssl.SSLError):  # the connection was closed by the peer meanwhile
            tls.write(b"")
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
