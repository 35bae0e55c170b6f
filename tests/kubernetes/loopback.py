"""A loopback API server with TLS and a bearer token, and resolvers of its pods."""

import asyncio
import base64
import json
import logging
import socket
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from aioresolve._core.deadline import RetryPolicy
from aioresolve.errors import ResolveError
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.spec import ClusterSpec
from aioresolve.testing import KubernetesServer, RequestRecord, ThreadedKubernetesServer, pod
from aioresolve.testing.lifecycle import CertificateAuthority

from .peers import peer

TOKEN = "a-confidential-bearer-token"
TRAIN = {"app": "train"}
JOBS = {"worker": ["app=train"]}


@dataclass(frozen=True)
class Loopback:
    """A running server, and the kubeconfig of its only user."""

    server: ThreadedKubernetesServer
    kubeconfig: Path

    def resolver(self, jobs: Any = None, **arguments: Any) -> KubernetesClusterResolver:
        """Return a resolver of the pods of the server, by default of those with the label `app=train`."""
        return KubernetesClusterResolver(
            JOBS if jobs is None else jobs, **{"kubeconfig": self.kubeconfig, **arguments}
        )

    def add_trainers(self, *names: str, **more: Any) -> None:
        """Add pods with the label `app=train` to the namespace `ml`."""
        for name in names:
            self.server.add(pod(name, **{"namespace": "ml", "labels": TRAIN, **more}))

    def replace_pods(self, pods: Iterable[Mapping[str, Any]]) -> None:
        """Replace all pods of the cluster, and clear the recorded requests."""
        for old in self.server.pods:
            name, namespace = old["metadata"]["name"], old["metadata"]["namespace"]
            self.server.delete(name, namespace)
        self.server.add(*pods)
        self.server.forget_requests()

    def address(self, name: str, namespace: str = "ml") -> str:
        """Return `podIP:8470` of a pod."""
        return f"{self.server.pod(name, namespace)['status']['podIP']}:8470"

    def edit_kubeconfig(self, **cluster: str) -> None:
        """Change fields of the cluster in the kubeconfig; `_` in a name stands for `-`."""
        document = json.loads(self.kubeconfig.read_text())
        document["clusters"][0]["cluster"] |= {key.replace("_", "-"): value for key, value in cluster.items()}
        self.kubeconfig.write_text(json.dumps(document))

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests so far."""
        return list(self.server.requests)


@contextmanager
def run_loopback(folder: Path, *pods: Mapping[str, Any], **arguments: Any) -> Iterator[Loopback]:
    """Run a server with TLS that accepts one token, in its own thread."""
    arguments = {"tls": True, "tokens": {TOKEN: "alice"}, **arguments}
    logger = logging.getLogger("asyncio")
    logger.addFilter(_is_not_from_the_server)
    try:
        with KubernetesServer(pods, **arguments).in_thread() as server:
            yield Loopback(server, server.write_kubeconfig(folder / "kubeconfig", token=TOKEN))
    finally:
        logger.removeFilter(_is_not_from_the_server)


def _is_not_from_the_server(record: logging.LogRecord) -> bool:
    # If a client disconnects while the server sends an endless body, asyncio sometimes closes the socket of
    # the server twice and logs a warning. These tests check only the event loop of the client.
    return record.threadName != "KubernetesServer"


def disable_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the waits between attempts exceed every deadline, so that a call ends after one attempt."""
    endless = partial(RetryPolicy, first_wait=3600.0, longest_wait=3600.0)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.RetryPolicy", endless)


def point_kubeconfig_to(loopback: Loopback, pem: bytes, port: int) -> None:
    """Point the kubeconfig to another port, and to the certificate authority of the server at that port."""
    loopback.edit_kubeconfig(
        server=f"https://127.0.0.1:{port}", certificate_authority_data=base64.b64encode(pem).decode()
    )


@contextmanager
def trusted_peer(loopback: Loopback, handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a TLS peer that the kubeconfig points to and trusts, so that the client sends the token to it."""
    authority = CertificateAuthority()
    with peer(handle, authority.server_context()) as port:
        point_kubeconfig_to(loopback, authority.pem.encode(), port)
        yield port


def request_kind(request: RequestRecord) -> str:
    """Return what a request of a resolver is for: `rows`, `named`, `others`, `whole list` or its pages."""
    fields = request.query.get("fieldSelector", "")
    if "as=Table" in request.accept:
        return "rows"
    if "metadata.name=" in fields:
        return "named"
    if "status.phase!=Running" in fields:
        return "others"
    if "limit" not in request.query:
        return "whole list"
    return "next page" if "continue" in request.query else "first page"


def is_list(request: RequestRecord) -> bool:
    """Whether a request is for all pods: a list, or a watch that begins with them."""
    return request.verb == "list" or "sendInitialEvents" in request.query


def is_controller_read(request: RequestRecord) -> bool:
    """Whether a request is for a controller such as a Job. The server has no verbs for them."""
    return not request.verb


def addresses(spec: ClusterSpec) -> list[str | None]:
    """Return the addresses of the job `worker`."""
    return spec.job_tasks("worker")


def client_sockets(loopback: Loopback) -> int:
    """Return the number of sockets of this process that are connected to the server of the kubeconfig."""
    url = json.loads(loopback.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    port = int(url.rpartition(":")[2])
    return sum(
        bool(connection.raddr) and connection.raddr.port == port
        for connection in psutil.Process().net_connections("tcp")
    )


async def outcome(call: Awaitable[Any], *, within: float) -> Any:
    """Return the result of `call`, or the ResolveError that it raises.

    Args:
        call: a call of a resolver. It must leave no task behind.
        within: the seconds that the call may take.
    """
    tasks = asyncio.all_tasks()
    started = time.monotonic()
    try:
        result: Any = await call
    except ResolveError as error:
        result = error
    assert time.monotonic() - started < within
    assert asyncio.all_tasks() == tasks
    return result


def all_text(error: BaseException) -> str:
    """Return all text of an error and its causes: tracebacks, reprs and attributes."""
    texts = ["".join(traceback.format_exception(error))]
    for link in error_chain(error):
        texts += attributes_of(link)
    return "\n".join(texts)


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the members of groups among them, each once."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        chain += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            chain += link.exceptions


def attributes_of(error: BaseException) -> list[str]:
    """Return the texts of one error, without its traceback."""
    return [repr(error), str(error), repr(vars(error)), repr(error.args)]
