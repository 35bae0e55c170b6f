"""Servers and how to reach them: URLs, proxies, names, TCP and TLS.

Names are looked up in threads that can be abandoned: `getaddrinfo` takes minutes if no DNS server responds.
asyncio and anyio call it in threads of the event loop, whose end waits for them.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import ssl
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
from yarl import URL

from aioresolve.errors import ConfigurationError

from .threads import run_in_thread

if TYPE_CHECKING:
    from anyio.abc import SocketStream

NEXT_ATTEMPT = 1.0
"""Seconds after which the next address of a name is tried instead."""


def origin(url: str) -> str:
    """Return `scheme://host:port` of a URL, without user, password and path."""
    try:
        return f"{URL(url).origin()}"
    except ValueError as error:
        raise ConfigurationError("invalid URL of a server", hint="Write it as https://HOST/PATH.") from error


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine: `localhost`, `127.0.0.1`, `::1`."""
    with suppress(ValueError):
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    return False


def environment_proxy(url: URL) -> str | None:
    """Return the URL of the proxy that the environment configures for `url`; None for this machine.

    The variables and their precedence are those of urllib, and so of requests, which also knows blocks of
    addresses in NO_PROXY.
    """
    host, proxies = url.host or "", urllib.request.getproxies()
    proxy = proxies.get(url.scheme)
    if not proxy or is_loopback(host) or urllib.request.proxy_bypass(f"{host}:{url.port}"):
        return None
    for entry in proxies.get("no", "").split(","):
        with suppress(ValueError):
            if ipaddress.ip_address(host) in ipaddress.ip_network(entry.strip(), strict=False):
                return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigurationError(
            f"the environment variable {url.scheme.upper()}_PROXY is not the URL of an HTTP proxy",
            hint="Set an http:// or https:// proxy, or exempt the host in NO_PROXY.",
        )
    return proxy


class Address(NamedTuple):
    """An address of a name; `host` is numeric."""

    host: str
    family: socket.AddressFamily
    protocol: int


async def look_up(host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[Address]:
    """Return the addresses of `host`, in the order in which to try them.

    Raises:
        OSError: the name has no address, or is invalid.
    """
    try:
        return await run_in_thread(f"look up {host}", _addresses, host, port, family)
    except UnicodeError as error:
        raise OSError(None, str(error)) from error


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG)
    numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    return [
        Address(socket.getnameinfo(address, numeric)[0], resolved_family, protocol)
        for resolved_family, _, protocol, _, address in found
    ]


async def connect(host: str, port: int) -> SocketStream:
    """Return a connection to the first address of `host` that accepts one. The caller sets the time limit.

    Raises:
        OSError: the name has no address, or none accepts a connection; the error is that of the last one.
    """
    with suppress(ValueError):
        return await anyio.connect_tcp(ipaddress.ip_address(host), port)
    *others, last = await look_up(host, port)
    for address in others:
        with suppress(OSError), anyio.move_on_after(NEXT_ATTEMPT):
            return await anyio.connect_tcp(address.host, port)
    return await anyio.connect_tcp(last.host, port)


def system_message(error: Exception) -> str:
    """Return the operating system's message; asyncio, uvloop and anyio each phrase errors differently."""
    # anyio raises an error of its own, with the system's as the cause.
    cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
    if isinstance(cause, OSError) and not isinstance(cause, socket.gaierror) and cause.errno:
        return os.strerror(cause.errno)
    return getattr(cause, "strerror", None) or str(cause)


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
    """Return a TLS context that trusts the certificate authorities of the operating system."""
    files = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    # In a thread, because it parses a hundred certificates.
    return await run_in_thread("load the certificates of the system", _ssl_context_of, *files)


@functools.lru_cache(maxsize=4)
def _ssl_context_of(file: str | None, folder: str | None) -> ssl.SSLContext:
    # OpenSSL reads both variables itself; here they are the key of the cache.
    return close_one_sidedly(ssl.create_default_context())
