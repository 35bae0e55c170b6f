"""Names and TCP connections. Names are looked up in threads that can be abandoned.

`getaddrinfo` takes minutes if no DNS server responds. asyncio and anyio call it in threads of the event loop,
whose end waits for them.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, NamedTuple

import anyio

from .threads import run_in_thread

if TYPE_CHECKING:
    from anyio.abc import SocketStream

NEXT_ATTEMPT = 0.25
"""Seconds after which the next address of a name is tried too, as RFC 8305 section 5 recommends."""


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


async def connect(host: str, port: int) -> SocketStream:
    """Return a connection to the first address of `host` that accepts one. The caller sets the time limit.

    Raises:
        OSError: the name has no address, or none accepts a connection; the error is that of the last one.
    """
    if _is_numeric(host):
        return await anyio.connect_tcp(host, port)
    connected: list[SocketStream] = []
    errors: list[OSError] = []

    async def attempt(address: str, ended: anyio.Event) -> None:
        try:
            connected.append(await anyio.connect_tcp(address, port))
            group.cancel_scope.cancel()
        except OSError as error:
            errors.append(error)
        ended.set()

    try:
        addresses = await look_up(host, port)
        async with anyio.create_task_group() as group:
            for address in addresses:
                ended = anyio.Event()
                group.start_soon(attempt, address.host, ended)
                with anyio.move_on_after(NEXT_ATTEMPT):
                    await ended.wait()
        if not connected:
            raise errors[-1]
        return connected.pop(0)
    finally:
        errors.clear()  # an error refers to this frame, which would keep it alive
        for unused in connected:
            await anyio.aclose_forcefully(unused)


def _is_numeric(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[Address]:
    return [
        Address(
            socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0],
            resolved_family,
            protocol,
        )
        for resolved_family, _, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
    ]
