"""Runs the API servers of `fleet.py`, one port per target or one for all, in separate processes.

They use TLS and require a bearer token. They send prepared bytes: the recorded response of a KubernetesServer
to the request for the pods of one selector, with the addresses of each target inserted, compressed as a real
API server does. They can delay responses, fail, or not respond at all.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import gzip
import json
import random
import secrets
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from benchmarks.child_process import running, serve_requests
from benchmarks.watch_server import allow_many_sockets

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.child_process import Child

__all__ = ["NAMESPACE", "PODS", "Place", "Servers", "Target", "Traffic", "addresses_of", "running_servers"]

NAMESPACE = "training"
PODS = 100
POD_SIZE = 8192
"""Bytes of the JSON of a pod, typical of a training pod with a dozen variables and managedFields."""

PROCESSES = 2
"""The number of processes among which the ports are divided."""

COMPRESSED_FROM = 128 * 1024
"""The size in bytes from which an API server compresses responses."""

JITTER = 0.25
"""The largest deviation from the delay, as a fraction; that of a target is always the same."""

NAME, ADDRESS = "cluster-mark", "10.254.254."
"""Placeholders in the recorded responses: the name of the target, and the prefix of the addresses."""

FORBIDDEN = (
    f'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "{NAMESPACE}"'
)

JSON = "application/json"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


class Place(StrEnum):
    """How the targets of a fleet are distributed over API servers."""

    OWN = "each an API server"
    CONTEXTS = "each an API server, all in one kubeconfig"
    ONE = "on one API server"


@dataclass(frozen=True, slots=True)
class Target:
    """One target.

    Attributes:
        name: its name.
        selector: the label selector of its pods.
        kubeconfig: the kubeconfig of its API server.
        context: the context in the kubeconfig.
    """

    name: str
    selector: str
    kubeconfig: str
    context: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the servers saw since the last call.

    Attributes:
        requests: the name of each target to its number of requests.
        connections: the number of connections that were opened since and are still open.
        most: the largest number of these that were open at the same time.
    """

    requests: dict[str, int]
    connections: int
    most: int


def name_of(number: int) -> str:
    """Return the name of a target by its number."""
    return f"cluster-{number:04}"


def addresses_of(name: str) -> set[str]:
    """Return the addresses of a target's pods, by its name."""
    begin = _address_of(name)
    return {f"{begin}{pod}" for pod in range(PODS)}


def _address_of(name: str) -> str:
    number = int(name.rpartition("-")[2])
    return f"10.{number >> 8}.{number & 255}."


class Servers:
    """Controls the processes of the servers."""

    def __init__(self, children: Sequence[Child], targets: Sequence[Target]) -> None:
        self._children = children
        self.targets = targets

    def behave(
        self, *, delay: float = 0.0, hanging: Sequence[str] = (), failing: Mapping[str, int] | None = None
    ) -> None:
        """Make all targets respond `delay` seconds late, some never, and some with a failure status."""
        for child in self._children:
            child.request("behave", delay=delay, hanging=list(hanging), failing=dict(failing or {}))

    def traffic(self) -> Traffic:
        """Return what the servers saw, and reset the counters."""
        seen = [Traffic(**child.request("traffic")) for child in self._children]
        requests = {name: count for each in seen for name, count in each.requests.items()}
        return Traffic(requests, sum(each.connections for each in seen), sum(each.most for each in seen))


@contextmanager
def running_servers(count: int, place: Place, folder: Path) -> Iterator[Servers]:
    """Run the API servers of `count` targets inside the block, and write kubeconfigs into `folder`."""
    is_one = place is Place.ONE
    share = count if is_one else -(-count // PROCESSES)
    names = [name_of(number) for number in range(count)]
    with ExitStack() as stack:
        numbers = [(first, min(share, count - first), int(is_one)) for first in range(0, count, share)]
        children = [
            stack.enter_context(running("benchmarks.fleet_servers", *map(str, each))) for each in numbers
        ]
        servers = [server for child in children for server in child.request("servers")]
        # A single API server has one context, with the name of the first target.
        contexts = [names[0]] * count if is_one else names
        if place is Place.OWN:
            paths = [
                _write_kubeconfig(folder / f"{name}.yaml", {name: servers[at]})
                for at, name in enumerate(names)
            ]
        else:
            paths = [
                _write_kubeconfig(folder / "all.yaml", dict(zip(contexts, servers, strict=False)))
            ] * count
        described = zip(names, paths, contexts, strict=True)
        yield Servers(
            children, [Target(name, f"app={name}", path, context) for name, path, context in described]
        )


def _write_kubeconfig(path: Path, servers: Mapping[str, Mapping[str, str]]) -> str:
    """Write a kubeconfig with one context per server; return its path."""
    import yaml

    clusters, users, contexts = [], [], []
    for name, server in servers.items():
        trusted = base64.b64encode(server["authority"].encode()).decode()
        cluster = {"server": server["url"], "certificate-authority-data": trusted}
        clusters.append({"name": name, "cluster": cluster})
        users.append({"name": name, "user": {"token": server["token"]}})
        contexts.append({"name": name, "context": {"cluster": name, "user": name}})
    kubeconfig: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "clusters": clusters}
    kubeconfig |= {"users": users, "contexts": contexts, "current-context": contexts[0]["name"]}
    path.write_text(yaml.safe_dump(kubeconfig))
    return str(path)


class TargetResponses:
    """The responses of all targets of a process, and how the targets behave."""

    def __init__(self, names: Sequence[str], recorded: bytes, table: bytes, token: str) -> None:
        self._authorization = f"Bearer {token}".encode()
        self._table = table
        self._prepared = {name: _response(HTTPStatus.OK, _of_target(recorded, name)) for name in names}
        self._late = {name: random.Random(name).uniform(1 - JITTER, 1 + JITTER) for name in names}
        self._delay = 0.0
        self._hanging: set[str] = set()
        self._failing: dict[str, int] = {}
        self._requests = dict.fromkeys(names, 0)
        self._new: set[Connection] = set()
        self._most = 0

    def respond(self, head: bytes) -> tuple[float, bytes | None]:
        """Return the delay in seconds and the response (None to send nothing) to the head of a request."""
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if headers.get(b"authorization") != self._authorization:
            return 0.0, _response(HTTPStatus.UNAUTHORIZED)
        name = first.partition(b"app%3D")[2] or first.partition(b"app=")[2]
        target = name.partition(b" ")[0].partition(b"&")[0].decode()
        self._requests[target] += 1
        late = self._delay * self._late[target]
        if target in self._hanging:
            return late, None
        if status := self._failing.get(target):
            return late, _response(HTTPStatus(status))
        if b"as=Table" in headers[b"accept"]:
            return late, _response(HTTPStatus.OK, _of_target(self._table, target))
        return late, self._prepared[target]

    async def behave(self, delay: float, hanging: list[str], failing: dict[str, int]) -> None:
        """Set how the targets behave from now on."""
        self._delay, self._hanging, self._failing = delay, set(hanging), failing

    async def traffic(self) -> dict[str, Any]:
        """Return a `Traffic`, and reset the counters."""
        seen = Traffic(self._requests, len(self._new), self._most)
        self._requests = dict.fromkeys(self._requests, 0)
        self._new.clear()
        self._most = 0
        return asdict(seen)

    def connection_opened(self, connection: Connection) -> None:
        self._new.add(connection)
        self._most = max(self._most, len(self._new))

    def connection_closed(self, connection: Connection) -> None:
        self._new.discard(connection)


class Connection(asyncio.Protocol):
    """A connection, on which a client sends GET requests one after another."""

    def __init__(self, responses: TargetResponses) -> None:
        self._responses = responses
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._responses.connection_opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._responses.connection_closed(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            late, response = self._responses.respond(head)
            if response is not None:
                asyncio.get_running_loop().call_later(late, self._send, response)

    def _send(self, response: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(response)


def _of_target(recorded: bytes, name: str) -> bytes:
    return recorded.replace(NAME.encode(), name.encode()).replace(
        ADDRESS.encode(), _address_of(name).encode()
    )


def _response(status: HTTPStatus, body: bytes | None = None) -> bytes:
    """Return the bytes of a response; without a body, that of a failure."""
    if body is None:
        message = FORBIDDEN if status is HTTPStatus.FORBIDDEN else status.phrase
        failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
        body = json.dumps(failure | {"code": status}).encode()
    encoding = b""
    if len(body) > COMPRESSED_FROM:
        body, encoding = gzip.compress(body, compresslevel=1, mtime=0), b"Content-Encoding: gzip\r\n"
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status, status.phrase.encode(), encoding, len(body)) + body


async def record_response(accept: str) -> bytes:
    """Return the response of a KubernetesServer to the request for the pods of one target."""
    import aiohttp

    from aioresolve.testing import KubernetesServer, pod

    made = [
        pod(
            f"{NAME}-{number}",
            NAMESPACE,
            labels={"app": NAME},
            index=number,
            ip=f"{ADDRESS}{number}",
            host_ip=f"192.168.0.{number}",
            node=f"gke-training-pool-3f9c2a71-{number:04x}",
            size=POD_SIZE,
        )
        for number in range(PODS)
    ]
    async with KubernetesServer(made) as server, aiohttp.ClientSession() as session:
        query = {"labelSelector": f"app={NAME}", "includeObject": "None"}
        url = f"{server.url}/api/v1/namespaces/{NAMESPACE}/pods"
        async with session.get(url, params=query, headers={"Accept": accept}) as response:
            response.raise_for_status()
            return await response.read()


async def serve(numbers: range, *, is_one: bool) -> None:
    """Serve until stdin is closed."""
    from aioresolve.testing.lifecycle import CertificateAuthority

    authority, token = CertificateAuthority(), secrets.token_urlsafe(32)
    names = list(map(name_of, numbers))
    recorded, table = await record_response(JSON), await record_response(TABLE)
    responses = TargetResponses(names, recorded, table, token)
    context = authority.server_context()
    ports = [await listening(responses, context) for _ in names[: 1 if is_one else None]]

    async def servers() -> list[dict[str, str]]:
        trusted = {"token": token, "authority": authority.pem}
        return [{"url": f"https://127.0.0.1:{port}", **trusted} for port in ports]

    gc.freeze()
    await serve_requests({"servers": servers, "behave": responses.behave, "traffic": responses.traffic})


async def listening(responses: TargetResponses, context: ssl.SSLContext) -> int:
    """Listen on a free port until the loop ends; return the port."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        partial(Connection, responses), "127.0.0.1", 0, ssl=context, backlog=1024
    )
    port: int = server.sockets[0].getsockname()[1]
    return port


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("is_one", type=int)
    options = parser.parse_args(arguments)
    allow_many_sockets()
    numbers = range(options.first, options.first + options.count)
    asyncio.run(serve(numbers, is_one=bool(options.is_one)))


if __name__ == "__main__":
    main()
