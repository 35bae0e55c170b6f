"""Name resolution in threads that can be abandoned."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from aiohttp.abc import AbstractResolver, ResolveResult


class AbandonableResolver(AbstractResolver):
    """Resolves names in daemon threads.

    `getaddrinfo` cannot be cancelled, and takes minutes if no DNS server responds. asyncio and anyio wait for
    their threads at the end of the loop or of the process; they need not wait for these.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        resolved: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def run() -> None:
            try:
                result: list[ResolveResult] | OSError = _addresses(host, port, family)
            except OSError as error:
                result = error
            except UnicodeError as error:
                result = OSError(None, str(error))
            with suppress(RuntimeError):  # the loop was closed during the look-up
                loop.call_soon_threadsafe(settle, result)

        def settle(result: list[ResolveResult] | OSError) -> None:
            if resolved.cancelled():
                return
            if isinstance(result, OSError):
                resolved.set_exception(result)
            else:
                resolved.set_result(result)

        threading.Thread(target=run, name=f"look-up of {host}", daemon=True).start()
        return await resolved

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
