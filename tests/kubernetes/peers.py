"""Servers on loopback ports that are not API servers: a function handles each connection in a thread."""

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def peer(handle: Callable[[socket.socket], None], context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Call `handle` with each connection to a port, and yield the port. If `context` is given, use TLS."""
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


def read_head(connection: socket.socket) -> bytes:
    """Read one request up to the empty line after its headers, or to the end of the connection."""
    received = b""
    while b"\r\n\r\n" not in received and (some := connection.recv(65536)):
        received += some
    return received


def responder(response: bytes) -> Callable[[socket.socket], None]:
    """Return a handler that reads the head of one request, sends `response` and closes the connection."""

    def handle(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(response)

    return handle


def never_respond(connection: socket.socket) -> None:
    """Read until the client disconnects, and never respond."""
    while connection.recv(65536):
        pass


def never_read(connection: socket.socket) -> None:
    """Neither read nor respond, and ignore a TLS close; return when the connection is broken."""
    poll = select.poll()
    poll.register(connection, 0)
    poll.poll()


def connect_proxy(seen: list[bytes]) -> Callable[[socket.socket], None]:
    """Return a handler that is an HTTP proxy for CONNECT, and appends the head of each request to `seen`."""

    def handle(connection: socket.socket) -> None:
        request = read_head(connection)
        if not request:
            return
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
