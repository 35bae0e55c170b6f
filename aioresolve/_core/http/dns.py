"""Names that are looked up in threads which nobody has to wait for."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

from aiohttp.abc import AbstractResolver, ResolveResult

__all__ = ["AbandonableResolver"]


class AbandonableResolver(AbstractResolver):
    """Looks names up in threads that nobody has to wait for.

    getaddrinfo cannot be stopped, and takes minutes where no DNS server answers. asyncio and anyio wait for
    their threads at the end of the loop or of the process; these end on their own.
    """

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[ResolveResult]] = loop.create_future()

        def look_up() -> None:
            try:
                answer: list[ResolveResult] | OSError = _addresses(host, port, family)
            except OSError as error:
                answer = error
            except UnicodeError as error:
                answer = OSError(None, str(error))
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(settle, answer)

        def settle(answer: list[ResolveResult] | OSError) -> None:
            if found.cancelled():
                return
            if isinstance(answer, OSError):
                found.set_exception(answer)
            else:
                found.set_result(answer)

        threading.Thread(target=look_up, name=f"look-up of {host}", daemon=True).start()
        return await found

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _addresses(host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
    return [
        ResolveResult(
            hostname=host,
            host=socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0],
            port=port,
            family=found,
            proto=protocol,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for found, _, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family, flags=socket.AI_ADDRCONFIG
        )
    ]
