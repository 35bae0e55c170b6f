"""Peers on loopback ports that are no API server: each connection is handled by a function, in threads."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator


@contextmanager
def peer(handle: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Yield the port at which `handle` is called with each connection, over TLS where a context is given."""
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if context is None:
                handle(connection)
                return
            with context.wrap_socket(connection, server_side=True) as secured:
                connections.append(secured)
                handle(secured)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections.append(connection)
                thread = threading.Thread(target=serve, args=(connection,))
                threads.append(thread)
                thread.start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            for open_socket in (listener, *connections):
                with suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for thread in threads:
                thread.join()


def head(connection: socket.socket) -> bytes:
    """Return the head of the request that arrives, as far as it does."""
    received = b""
    while b"\r\n\r\n" not in received and (some := connection.recv(65536)):
        received += some
    return received


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Return a handler that reads one request's head, sends `answer` and hangs up."""

    def handle(connection: socket.socket) -> None:
        head(connection)
        connection.sendall(answer)

    return handle


def silent(connection: socket.socket) -> None:
    """Never answer, and read on until the client is gone."""
    while connection.recv(65536):
        pass


def deaf(connection: socket.socket) -> None:
    """Neither answer nor read, nor notice that the client says goodbye; end when the connection is broken."""
    poll = select.poll()
    poll.register(connection, 0)
    poll.poll()


def relaying(seen: list[bytes]) -> Callable[[socket.socket], None]:
    """Return a handler that is an HTTP proxy for CONNECT; the heads it is sent go to `seen`."""

    def handle(connection: socket.socket) -> None:
        request = head(connection)
        seen.append(request)
        host, port = request.split()[1].decode().split(":")
        with socket.create_connection((host, int(port))) as server:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            ends = {connection: server, server: connection}
            while True:
                for end in select.select(list(ends), [], [])[0]:
                    some = end.recv(65536)
                    if not some:
                        return
                    ends[end].sendall(some)

    return handle
