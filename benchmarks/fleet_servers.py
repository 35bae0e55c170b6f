"""The API servers that `fleet.py` asks, each at a port of its own or one for all, in processes of their own.

They speak HTTP over TLS and want a bearer token. All that they send is prepared: what a KubernetesServer
answers of the pods of one selector, with the addresses of each target put in, compressed as a real API server
does. They can be told to answer late, to fail, or not to answer at all.
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

from benchmarks.watch_dialogue import answer_questions, running
from benchmarks.watch_server import allow_many_sockets

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from benchmarks.watch_dialogue import Child

__all__ = ["NAMESPACE", "PODS", "Place", "Servers", "Target", "Traffic", "addresses_of", "running_servers"]

NAMESPACE = "training"
PODS = 100
POD_SIZE = 8192
"""Bytes of a pod's JSON: what a training pod with a dozen variables and its managedFields comes to."""

PROCESSES = 2
"""Among which the ports of many servers are divided."""

COMPRESSED_FROM = 128 * 1024
"""Bytes from which an API server compresses what it sends."""

JITTER = 0.25
"""How much later or sooner than another, of the delay, a target answers; each always by the same."""

NAME, ADDRESS = "cluster-mark", "10.254.254."
"""What stands in the recorded answers for a target's name, and for what its pods' addresses begin with."""

FORBIDDEN = (
    f'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "{NAMESPACE}"'
)

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


class Place(StrEnum):
    """Where the targets of a fleet are."""

    OWN = "each an API server"
    CONTEXTS = "each an API server, all in one kubeconfig"
    ONE = "on one API server"


@dataclass(frozen=True, slots=True)
class Target:
    """One target, as a way to ask is told of it.

    Attributes:
        name: its name.
        selector: that of its pods.
        kubeconfig: how to reach its API server.
        context: the context of it there.
    """

    name: str
    selector: str
    kubeconfig: str
    context: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the servers saw since they were asked that the last time.

    Attributes:
        questions: how many each target was asked, by name.
        connections: open now, of those that were opened since.
        most: of these, open at a time, at most.
    """

    questions: dict[str, int]
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


# The driver's end


class Servers:
    """The driver's end of the processes."""

    def __init__(self, children: Sequence[Child], targets: Sequence[Target]) -> None:
        self._children = children
        self.targets = targets

    def behave(
        self, *, delay: float = 0.0, hanging: Sequence[str] = (), failing: Mapping[str, int] | None = None
    ) -> None:
        """Let all answer `delay` seconds late, some not at all, and some with a status."""
        for child in self._children:
            child.asked("behave", delay=delay, hanging=list(hanging), failing=dict(failing or {}))

    def traffic(self) -> Traffic:
        """Return what was seen, and begin anew."""
        seen = [Traffic(**child.asked("traffic")) for child in self._children]
        questions = {name: count for each in seen for name, count in each.questions.items()}
        return Traffic(questions, sum(each.connections for each in seen), sum(each.most for each in seen))


@contextmanager
def running_servers(count: int, place: Place, folder: Path) -> Iterator[Servers]:
    """Run the API servers of so many targets inside the block, and write kubeconfigs into a folder."""
    is_one = place is Place.ONE
    share = count if is_one else -(-count // PROCESSES)
    names = [name_of(number) for number in range(count)]
    with ExitStack() as stack:
        numbers = [(first, min(share, count - first), int(is_one)) for first in range(0, count, share)]
        children = [
            stack.enter_context(running("benchmarks.fleet_servers", *map(str, each))) for each in numbers
        ]
        servers = [server for child in children for server in child.asked("servers")]
        # Of one API server only the first name is a context.
        contexts = [names[0]] * count if is_one else names
        if place is Place.OWN:
            paths = [_written(folder / f"{name}.yaml", {name: servers[at]}) for at, name in enumerate(names)]
        else:
            paths = [_written(folder / "all.yaml", dict(zip(contexts, servers, strict=False)))] * count
        told = zip(names, paths, contexts, strict=True)
        yield Servers(children, [Target(name, f"app={name}", path, context) for name, path, context in told])


def _written(path: Path, servers: Mapping[str, Mapping[str, str]]) -> str:
    """Write a kubeconfig of API servers by their contexts' names; return its path."""
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


# A process


class Answers:
    """What every target of a process answers, and how it behaves."""

    def __init__(self, names: Sequence[str], recorded: bytes, table: bytes, token: str) -> None:
        self._authorization = f"Bearer {token}".encode()
        self._table = table
        self._prepared = {name: _response(HTTPStatus.OK, _of_target(recorded, name)) for name in names}
        self._late = {name: random.Random(name).uniform(1 - JITTER, 1 + JITTER) for name in names}
        self._delay = 0.0
        self._hanging: set[str] = set()
        self._failing: dict[str, int] = {}
        self._questions = dict.fromkeys(names, 0)
        self._new: set[Connection] = set()
        self._most = 0

    def answer(self, head: bytes) -> tuple[float, bytes | None]:
        """Return the seconds to wait and the bytes to send, None for none, on the head of a request."""
        first, *lines = head.split(b"\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if headers.get(b"authorization") != self._authorization:
            return 0.0, _response(HTTPStatus.UNAUTHORIZED)
        name = first.partition(b"app%3D")[2] or first.partition(b"app=")[2]
        target = name.partition(b" ")[0].partition(b"&")[0].decode()
        self._questions[target] += 1
        late = self._delay * self._late[target]
        if target in self._hanging:
            return late, None
        if status := self._failing.get(target):
            return late, _response(HTTPStatus(status))
        if b"as=Table" in headers[b"accept"]:
            return late, _response(HTTPStatus.OK, _of_target(self._table, target))
        return late, self._prepared[target]

    async def behave(self, delay: float, hanging: list[str], failing: dict[str, int]) -> None:
        """Take the driver's word for how to behave from now on."""
        self._delay, self._hanging, self._failing = delay, set(hanging), failing

    async def traffic(self) -> dict[str, Any]:
        """Return a `Traffic`, and begin a new one."""
        seen = Traffic(self._questions, len(self._new), self._most)
        self._questions = dict.fromkeys(self._questions, 0)
        self._new.clear()
        self._most = 0
        return asdict(seen)

    def opened(self, connection: Connection) -> None:
        """Take note of a connection."""
        self._new.add(connection)
        self._most = max(self._most, len(self._new))

    def closed(self, connection: Connection) -> None:
        """Take note of its end."""
        self._new.discard(connection)


class Connection(asyncio.Protocol):
    """One connection: GETs, one after another."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._answers.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._answers.closed(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            late, answer = self._answers.answer(head)
            if answer is not None:
                asyncio.get_running_loop().call_later(late, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)


def _of_target(recorded: bytes, name: str) -> bytes:
    return recorded.replace(NAME.encode(), name.encode()).replace(
        ADDRESS.encode(), _address_of(name).encode()
    )


def _response(status: HTTPStatus, body: bytes | None = None) -> bytes:
    """Return the bytes of an answer; where no body is given, that of a failure."""
    if body is None:
        message = FORBIDDEN if status is HTTPStatus.FORBIDDEN else status.phrase
        failure = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
        body = json.dumps(failure | {"code": status}).encode()
    encoding = b""
    if len(body) > COMPRESSED_FROM:
        body, encoding = gzip.compress(body, compresslevel=1, mtime=0), b"Content-Encoding: gzip\r\n"
    head = b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status, status.phrase.encode(), encoding, len(body)) + body


async def recorded(accept: str) -> bytes:
    """Return what a KubernetesServer answers of the pods of one target."""
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
    from aioresolve.testing.certificates import CertificateAuthority

    authority, token = CertificateAuthority(), secrets.token_urlsafe(32)
    names = list(map(name_of, numbers))
    answers = Answers(names, await recorded("application/json"), await recorded(TABLE), token)
    context = authority.server_context()
    ports = [await listening(answers, context) for _ in names[: 1 if is_one else None]]

    async def servers() -> list[dict[str, str]]:
        trusted = {"token": token, "authority": authority.pem}
        return [{"url": f"https://127.0.0.1:{port}", **trusted} for port in ports]

    gc.freeze()
    await answer_questions({"servers": servers, "behave": answers.behave, "traffic": answers.traffic})


async def listening(answers: Answers, context: ssl.SSLContext) -> int:
    """Listen at a port, until the loop ends; return it."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(Connection, answers), "127.0.0.1", 0, ssl=context, backlog=1024)
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
