"""Name resolution in threads that can be abandoned."""

from __future__ import annotations

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from aioresolve._core.concurrency import run_in_thread


class AbandonableResolver(AbstractResolver):
    """Resolves names in daemon threads: `getaddrinfo` takes minutes if no DNS server responds."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            return await run_in_thread(f"look up {host}", _addresses, host, port, family)
        except UnicodeError as error:
            raise OSError(None, str(error)) from error

    async def close(self) -> None: ...


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    return [
        ResolveResult(
            hostname=host,
            host=socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0],
            port=port,
            family=resolved_family,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for resolved_family, _, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
    ]
