"""Watches of servers that lie, lose their data or cannot be found: nothing is missed, nobody is flooded."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    ResolveError,
)
from aioresolve._core.http.errors import Exchange, connection_error
from aioresolve._core.retry import RetryPolicy
from aioresolve._core.telemetry import Outage
from aioresolve.kubernetes.client import MENDS
from aioresolve.kubernetes.reflector import Feed, WatchPolicy
from aioresolve.testing import Answer

from .loopback import JOBS, TOKEN, all_text, trusted_peer
from .watched_cluster import EVAL, TRAIN, new_cache, state, versioned

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aioresolve import ClusterState, KubernetesClusterResolver
    from aioresolve.spec import Observation
    from aioresolve.testing import RequestRecord

    from .loopback import Loopback

WAITS = RetryPolicy(first_wait=0.01, longest_wait=0.05)
BROKEN = ConnectionFailedError("the connection broke")


def is_watch(request: RequestRecord) -> bool:
    return request.verb == "watch"


def lists(loopback: Loopback) -> int:
    """Return how many lists were asked for."""
    return sum(request.verb == "list" for request in loopback.requests)


def resolver_of(loopback: Loopback, **arguments: Any) -> KubernetesClusterResolver:
    resolver = loopback.resolver(JOBS, **arguments)
    resolver.watch_policy = WatchPolicy(waits=WAITS)
    return resolver


def names(found: ClusterState | None) -> list[str | None]:
    return [] if found is None else [endpoint.name for endpoint in found.endpoints["worker"]]


def bookmark(version: int) -> bytes:
    metadata = {"resourceVersion": str(version)}
    mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}}
    return json.dumps(mark).encode() + b"\n"


def expired() -> bytes:
    return json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).encode() + b"\n"


async def error_of(observations: AsyncGenerator[Observation, None]) -> ResolveError:
    """Return the next error that an observation tells."""
    with anyio.fail_after(10):
        async for observation in observations:
            if observation.error is not None:
                return observation.error
    raise AssertionError("observations end never")


async def following(observations: AsyncGenerator[Observation, None], *members: str) -> None:
    """Return once these pods are the members."""
    with anyio.fail_after(10):
        async for observation in observations:
            if names(observation.state) == list(members):
                return


def feed() -> Feed:
    """Return the feed of a query that was listed."""
    listed = Feed(TRAIN, RetryPolicy(first_wait=1.0), Outage(logging.getLogger("test"), "the server"))
    listed.listed()
    return listed


@pytest.mark.parametrize("and_then", [b"", expired()], ids=["ends", "expires"])
async def test_a_watch_that_is_over_as_soon_as_it_told_something_is_an_outage_and_no_hot_loop(
    loopback: Loopback, and_then: bytes
) -> None:
    loopback.train("train-0")
    body = bookmark(loopback.server.resource_version) + and_then
    loopback.server.inject(Answer(200, body=body), match=is_watch, times=None)
    async with aclosing(resolver_of(loopback).observations()) as observations:
        error = await error_of(observations)
        loopback.server.clear_faults()
        assert "expire" in str(error) or "within 0.5 s" in str(error) or "listed anew" in str(error)
        loopback.train("train-1")
        await following(observations, "train-0", "train-1")


@pytest.mark.parametrize(
    ("lived", "has_told", "is_well"),
    [(0.2, True, False), (2.0, True, True), (2.0, False, False), (9.0, False, True)],
)
def test_waits_begin_anew_only_after_a_watch_that_was_well(
    lived: float, has_told: bool, is_well: bool
) -> None:
    one = feed()
    for _ in range(5):
        one.wait_after(BROKEN)
    one.begins(100.0)
    if has_told:
        one.tells()
    one.ends(100.0 + lived)
    assert one.failures == (0 if is_well else 5)


async def test_an_address_that_a_callable_cannot_tell_ends_the_watch(loopback: Loopback) -> None:
    def address(pod: Any) -> str:
        return str({"train-0": "10.0.0.1"}[pod.metadata.name])

    loopback.train("train-0")
    async with aclosing(resolver_of(loopback, address=address).watch()) as states:
        assert names(await anext(states)) == ["train-0"]
        loopback.train("train-1")
        with anyio.fail_after(10), pytest.raises(ConfigurationError, match="ml/train-1 cannot be addressed"):
            await anext(states)


async def test_versions_that_go_back_are_followed_by_a_list(loopback: Loopback) -> None:
    loopback.train("train-0")
    ahead = loopback.server.resource_version + 1000
    loopback.server.inject(Answer(200, body=bookmark(ahead) + bookmark(1)), match=is_watch)
    async with aclosing(resolver_of(loopback).observations()) as observations:
        await following(observations, "train-0")
        loopback.train("train-1")
        await following(observations, "train-0", "train-1")
    assert lists(loopback) == 2


async def test_a_version_that_the_server_cannot_read_is_given_up_for_a_list(loopback: Loopback) -> None:
    loopback.train("train-0")
    said = json.dumps({"kind": "Status", "code": 400, "message": "invalid resource version"}).encode()
    loopback.server.inject(Answer(400, body=said), match=is_watch)
    async with aclosing(resolver_of(loopback).observations()) as observations:
        await following(observations, "train-0")
        loopback.train("train-1")
        await following(observations, "train-0", "train-1")
    assert lists(loopback) == 2


def test_a_list_of_a_server_restored_from_a_backup_wins_over_what_was_told_before() -> None:
    kept = new_cache({"worker": [[TRAIN]], "ps": [[EVAL]]})
    both = partial(versioned, "both", ip="10.0.0.1")
    kept.replace(TRAIN, [both(90)], "100")
    kept.replace(EVAL, [both(90)], "100")
    assert state(kept).spec.task_address("worker", 0) == "10.0.0.1:8470"
    before = versioned("both", 40, ip="10.9.9.9")
    kept.replace(TRAIN, [before], "50")
    kept.replace(EVAL, [before], "51")
    assert state(kept).spec.task_address("worker", 0) == "10.9.9.9:8470"
    assert state(kept).spec.task_address("ps", 0) == "10.9.9.9:8470"


def test_a_name_that_was_found_before_is_looked_up_again_however_often_it_takes() -> None:
    one = feed()
    nameless = ConnectionFailedError("the name was not found", retryable=False)
    nameless.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    for _ in range(50):
        one.wait_after(nameless)
    assert one.error is nameless


def test_a_name_that_was_never_found_is_an_error_at_once() -> None:
    one = Feed(TRAIN, WAITS, Outage(logging.getLogger("test"), "the server"))
    nameless = ConnectionFailedError("the name was not found", retryable=False)
    nameless.__cause__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    with pytest.raises(ConnectionFailedError, match="was not found"):
        one.wait_after(nameless)


def test_a_version_that_expired_in_an_outage_is_listed_anew_at_once_and_one_just_listed_is_not() -> None:
    gone = APIError("gone", status=410)
    one = Feed(TRAIN, RetryPolicy(first_wait=1e6, longest_wait=1e6), Outage(logging.getLogger("test"), "it"))
    one.listed()
    one.begins(0.0)
    one.ends(100.0)
    waits = [one.wait_after(error) for error in (BROKEN, BROKEN, gone)]
    assert min(waits[:2]) > 0.0
    assert waits[2] == 0.0
    one.listed()
    assert one.wait_after(gone) > 0.0


async def test_a_token_that_an_error_event_echoes_is_shown_to_nobody(loopback: Loopback) -> None:
    def answer(connection: socket.socket) -> None:
        while b"\r\n\r\n" not in (request := connection.recv(65536)):
            pass
        body = b'{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[]}'
        if b"watch=true" in request:
            status = {"code": 500, "message": f"who is {TOKEN}?"}
            body = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with trusted_peer(loopback, answer):
        async with aclosing(resolver_of(loopback).observations()) as observations:
            with anyio.fail_after(10):
                error = await first_error(observations)
    assert "who is (secret)?" in str(error)
    assert TOKEN not in all_text(error)


async def first_error(observations: AsyncGenerator[Observation, None]) -> ResolveError:
    """Return why the source could not be asked, as soon as it could not be."""
    async for observation in observations:
        if observation.error is not None:
            return observation.error
    raise AssertionError


async def test_a_look_up_that_hangs_holds_none_of_the_loops_threads(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    def hanging(*_: Any, **__: Any) -> list[Any]:
        may_end.wait()
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    loopback.edit_kubeconfig(server=f"https://dead.example:{loopback.server.port}")
    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        try:
            with pytest.raises(DeadlineExceededError):
                await loopback.resolver(timeout=0.2).cluster_spec()
            with anyio.fail_after(5):
                assert await asyncio.to_thread(str, 1) == "1"
        finally:
            may_end.set()


def test_a_watch_left_open_at_the_end_of_its_loop_is_closed_without_complaint(loopback: Loopback) -> None:
    left = []

    async def leave() -> None:
        states = loopback.resolver().watch()
        left.append(states)
        await anext(states)

    loopback.train("train-0")
    asyncio.run(leave())
    assert left


def test_too_many_open_files_are_told_as_such() -> None:
    exchange = Exchange("GET /pods", "https://10.0.0.1", "https://10.0.0.1", MENDS, is_over=lambda: False)
    error = connection_error(OSError(errno.EMFILE, "Too many open files"), exchange)
    assert error.retryable
    assert "ulimit -n" in str(error)
    assert "see that the address is right" not in str(error)
