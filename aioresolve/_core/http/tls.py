"""TLS contexts."""

from __future__ import annotations

import functools
import os
import ssl
from contextlib import suppress

from aioresolve._core.threads import run_in_thread


class _OneSidedClose(ssl.SSLObject):
    """TLS that is closed without waiting for the close message of the peer: RFC 8446 section 6.1 permits it.

    asyncio would wait for half a minute, so that a cancelled request to a hanging server would leave a socket
    open.
    """

    def unwrap(self) -> None:
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


def close_one_sidedly(context: ssl.SSLContext) -> ssl.SSLContext:
    """Set `context` to close connections without waiting for the peer, and return it."""
    context.sslobject_class = _OneSidedClose
    return context


async def system_ssl_context() -> ssl.SSLContext:
    files = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    # In a thread, because it parses a hundred certificates.
    return await run_in_thread("load the certificates of the system", _ssl_context_of, *files)


@functools.lru_cache(maxsize=4)
def _ssl_context_of(file: str | None, folder: str | None) -> ssl.SSLContext:
    # OpenSSL reads both variables itself; here they are the key of the cache.
    return close_one_sidedly(ssl.create_default_context())
