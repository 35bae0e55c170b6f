"""The clients a user may hand in: their answers are ours, their errors typed, their owner keeps them."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    PodNotRunningError,
    ProtocolError,
    ResolveError,
    TLSError,
    UnauthorizedError,
)
from aioresolve.testing import Answer, Cut, Delay, Endless, Hang, Redirect, Reset, Trickle

from .loopback import TOKEN, Loopback, addresses, all_text, kind_of, outcome, running
from .peer_clients import async_client, sync_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator
    from pathlib import Path

    from aioresolve.testing import Fault

pytestmark = pytest.mark.usefixtures("quick_retries")

NAMES = ["train-0", "train-1", "train-2", "train-10"]
KINDS = ["async ApiClient", "async CoreV1Api", "sync ApiClient", "sync CoreV1Api"]
each_client = pytest.mark.parametrize("kind", KINDS)
both_clients = pytest.mark.parametrize("kind", ["async ApiClient", "sync CoreV1Api"])


@asynccontextmanager
async def client_of(kind: str, loopback: Loopback, **fields: Any) -> AsyncIterator[Any]:
    """Yield a client as its owner would make it, and close it as its owner would."""
    if kind.startswith("async"):
        from kubernetes_asyncio.client import CoreV1Api

        async with async_client(loopback, **fields) as api_client:
            yield CoreV1Api(api_client) if "Core" in kind else api_client
        return
    from kubernetes.client import CoreV1Api as SyncCoreV1Api

    with sync_client(loopback, **fields) as api_client:
        yield SyncCoreV1Api(api_client) if "Core" in kind else api_client


@pytest.fixture(scope="module", autouse=True)
def _clients_are_imported() -> None:
    """Import them outside of any loop, lazy parts included: it takes seconds."""
    importlib.import_module("kubernetes.client.api.core_v1_api")
    importlib.import_module("kubernetes_asyncio.client.api.core_v1_api")


def resolver_of(client: Any, loopback: Loopback, jobs: Any = None, **arguments: Any) -> Any:
    return loopback.resolver(
        jobs, **{"override_client": client, "kubeconfig": None, "timeout": 10.0, **arguments}
    )


@pytest.fixture(autouse=True)
def _collected(loopback: Loopback) -> Iterator[None]:
    """urllib3 closes the connections of a closed client when nobody holds it any more, and not before."""
    yield
    deadline = time.monotonic() + 2.0
    while loopback.server.connections and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)


async def failure_of(call: Awaitable[Any]) -> tuple[type[Exception], str, str]:
    """Return the type of the error that `call` ends in, its message, and everything it can show.

    The error itself would keep the response it came from, and with it the client's connections, alive.
    """
    error = await outcome(call, within=10)
    assert isinstance(error, ResolveError)
    return type(error), str(error), all_text(error)


@each_client
async def test_the_answers_are_those_of_our_own_way(loopback: Loopback, kind: str) -> None:
    loopback.train(*NAMES)
    loopback.train("train-1", waiting="CrashLoopBackOff")
    loopback.train("leaving", deleting=True)
    own = loopback.resolver()
    spec, state = await own.cluster_spec(), await own.cluster_state()
    asked = Counter(kind_of(request) for request in loopback.requests)
    loopback.server.forget_requests()
    async with client_of(kind, loopback) as client:
        resolver = resolver_of(client, loopback)
        assert await resolver.cluster_spec() == spec
        assert await resolver.cluster_state() == state
        assert addresses(spec) == [loopback.address(name) for name in NAMES]
        assert await resolver.master("worker", 3) == f"grpc://{loopback.address('train-10')}"
        async with resolver:
            assert await resolver.cluster_spec() == spec
    again = asked + asked - Counter({"first page": asked["first page"]})
    assert Counter(kind_of(request) for request in loopback.requests) == again + Counter(rows=1, named=2)
    assert {request.user for request in loopback.requests} == {"alice"}


@each_client
async def test_pages_are_read_through_a_client_too(
    loopback: Loopback, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.client.PAGE", 2)
    loopback.train(*NAMES)
    async with client_of(kind, loopback) as client:
        state = await resolver_of(client, loopback).cluster_state()
    assert addresses(state.spec) == [loopback.address(name) for name in NAMES]
    assert [kind_of(request) for request in loopback.requests] == ["first page", "next page"]


@both_clients
async def test_pods_that_are_not_running_are_told_through_a_client_too(loopback: Loopback, kind: str) -> None:
    loopback.train("train-0", phase="Pending")
    async with client_of(kind, loopback) as client:
        with pytest.raises(PodNotRunningError, match="ml/train-0"):
            await resolver_of(client, loopback).cluster_spec()


@each_client
async def test_the_client_stays_open_and_its_owners(loopback: Loopback, kind: str) -> None:
    loopback.train(*NAMES)
    async with client_of(kind, loopback) as client:
        async with resolver_of(client, loopback) as resolver:
            await resolver.cluster_spec()
        await resolver.cluster_spec()
        # The owner still works with it.
        core = client if "Core" in kind else _core(kind, client)
        found = core.list_namespaced_pod("ml")
        found = await found if kind.startswith("async") else await asyncio.to_thread(lambda: found)
        assert len(found.items) == len(NAMES)


def _core(kind: str, client: Any) -> Any:
    if kind.startswith("async"):
        from kubernetes_asyncio.client import CoreV1Api

        return CoreV1Api(client)
    from kubernetes.client import CoreV1Api as SyncCoreV1Api

    return SyncCoreV1Api(client)


TRANSIENT: list[tuple[Fault, ...]] = [
    (Reset(after=10),),
    (Cut(after=10),),
    (Answer(429, headers={"Retry-After": "0"}),),
    (Answer(500),),
    (Answer(503),),
    (Delay(0.01), Answer(504)),
]


@both_clients
@pytest.mark.parametrize("faults", TRANSIENT, ids=str)
async def test_a_fault_that_passes_is_tried_again(
    loopback: Loopback, kind: str, faults: tuple[Fault, ...]
) -> None:
    loopback.train(*NAMES)
    loopback.server.inject(*faults, times=2)
    async with client_of(kind, loopback) as client:
        for method in ("cluster_spec", "cluster_state"):
            result = await outcome(getattr(resolver_of(client, loopback), method)(), within=10)
            assert not isinstance(result, ResolveError), result


AT_ONCE = Trickle(1 << 16, 0.0)
LASTING: dict[str, tuple[tuple[Fault, ...], type[ResolveError], str]] = {
    "401": ((Answer(401),), UnauthorizedError, "override_client"),
    "403": ((Answer(403),), ForbiddenError, "403"),
    "404": ((Answer(404),), APIError, "404"),
    "429": ((Answer(429, headers={"Retry-After": "3600"}),), APIError, "429"),
    "503": ((Answer(503),), APIError, "503"),
    "resets": ((Reset(),), ConnectionFailedError, "override_client"),
    "cuts": ((Cut(after=5),), ConnectionFailedError, "override_client"),
    "not JSON": ((Answer(200, b"<html>"),), ProtocolError, "is no list of pods"),
    "no gzip": (
        (Answer(200, b"text", {"Content-Encoding": "gzip"}),), ConnectionFailedError, "override_client"
    ),
    "bytes that are no text": ((Answer(500, b"\xff\xfe"),), APIError, "500"),
    "an endless body": ((Endless(), AT_ONCE), ProtocolError, "longer than 1 MiB"),
}  # fmt: skip


@both_clients
@pytest.mark.parametrize("fault", LASTING)
async def test_a_fault_that_lasts_is_one_typed_error_without_a_secret(
    loopback: Loopback, kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve._core.http.client.MAX_BODY", 1 << 20)
    faults, error_type, words = LASTING[fault]
    loopback.server.inject(*faults, times=None)
    async with client_of(kind, loopback) as client:
        for method in ("cluster_spec", "cluster_state"):
            error, message, everything = await failure_of(getattr(resolver_of(client, loopback), method)())
            assert error is error_type
            assert loopback.server.url in message
            assert words in message
            assert TOKEN not in everything


@both_clients
async def test_a_user_without_rights_is_told_the_manifest(loopback: Loopback, kind: str) -> None:
    loopback.server.allow = {"alice": {"ml"}}
    async with client_of(kind, loopback) as client:
        with pytest.raises(ForbiddenError) as caught:
            await resolver_of(client, loopback).cluster_spec()
        assert "ClusterRole" in caught.value.manifest
        await resolver_of(client, loopback, namespace="ml").cluster_spec()


@both_clients
async def test_a_token_that_is_not_accepted_names_the_client(loopback: Loopback, kind: str) -> None:
    async with client_of(kind, loopback, token="another") as client:
        with pytest.raises(UnauthorizedError, match="credentials from override_client"):
            await resolver_of(client, loopback).cluster_spec()


@both_clients
async def test_a_token_that_the_server_echoes_is_not_shown(loopback: Loopback, kind: str) -> None:
    said = json.dumps({"kind": "Status", "message": f"Bearer {TOKEN}"}).encode()
    loopback.server.inject(Answer(418, said), times=None)
    async with client_of(kind, loopback) as client:
        error = await outcome(resolver_of(client, loopback).cluster_spec(), within=10)
    assert type(error) is APIError
    assert TOKEN not in all_text(error)


@both_clients
async def test_a_server_that_is_down_is_named(loopback: Loopback, kind: str) -> None:
    async with client_of(kind, loopback) as client:
        with loopback.server.down():
            error = await outcome(resolver_of(client, loopback).cluster_spec(), within=10)
    assert type(error) is ConnectionFailedError
    assert f"{loopback.server.url} (from override_client)" in str(error)
    assert TOKEN not in all_text(error)


@both_clients
async def test_a_certificate_that_the_client_does_not_accept_is_a_tls_error(
    loopback: Loopback, kind: str
) -> None:
    async with client_of(kind, loopback, ssl_ca_cert=None) as client:
        error = await outcome(resolver_of(client, loopback).cluster_spec(), within=10)
    assert type(error) is TLSError
    assert not error.retryable
    assert loopback.server.url in str(error)


@both_clients
async def test_a_redirect_shows_the_token_to_nobody(loopback: Loopback, kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with running(folder) as elsewhere:
        loopback.server.inject(Redirect(f"{elsewhere.server.url}/api/v1/pods"), times=None)
        async with client_of(kind, loopback) as client:
            error = await outcome(resolver_of(client, loopback).cluster_spec(), within=10)
        assert isinstance(error, ResolveError)
        assert all(request.scheme == "" for request in elsewhere.requests)
    assert TOKEN not in all_text(error)


@both_clients
@pytest.mark.parametrize("fault", [Hang(), Delay(60.0), Trickle(1, 0.02)], ids=str)
async def test_the_deadline_holds_and_no_thread_outlives_it(
    loopback: Loopback, kind: str, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.override_client.THREAD_GRACE", 0.2)
    loopback.server.inject(fault, times=None)
    threads = set(threading.enumerate())
    async with client_of(kind, loopback) as client:
        error = await outcome(resolver_of(client, loopback, timeout=0.2).cluster_spec(), within=3)
        assert type(error) is DeadlineExceededError
        # A thread cannot be cancelled; it has the same deadline and ends by itself.
        busy = [thread for thread in set(threading.enumerate()) - threads if "AnyIO" in thread.name]
        await asyncio.to_thread(_until_idle, busy)


def _until_idle(threads: list[threading.Thread]) -> None:
    deadline = time.monotonic() + 3.0
    while any(map(_is_busy, threads)):
        assert time.monotonic() < deadline, "a worker thread is still in a request after its deadline"
        time.sleep(0.005)


def _is_busy(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if "kubernetes" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


@both_clients
@pytest.mark.parametrize("limit", [1, 3])
async def test_no_more_than_the_bound_are_asked_at_a_time(loopback: Loopback, kind: str, limit: int) -> None:
    for job in range(6):
        loopback.train(f"{job}-a", f"{job}-b", labels={"job": str(job)}, waiting="CrashLoopBackOff")
    under_way: list[int] = []
    started = ended = 0

    async with client_of(kind, loopback) as client:
        call = client.call_api if kind.startswith("async") else client.api_client.call_api
        lock = threading.Lock()

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal started, ended
            started += 1
            under_way.append(started - ended)
            try:
                return await call(*args, **options)
            finally:
                ended += 1

        def counted_in_thread(*args: Any, **options: Any) -> Any:
            nonlocal started, ended
            with lock:
                started += 1
                under_way.append(started - ended)
            try:
                return call(*args, **options)
            finally:
                with lock:
                    ended += 1

        if kind.startswith("async"):
            client.call_api = counted
        else:
            client.api_client.call_api = counted_in_thread
        loopback.server.inject(Delay(0.01), times=None)
        jobs = {f"job{job}": f"job={job}" for job in range(6)}
        spec = await resolver_of(client, loopback, jobs, max_concurrency=limit).cluster_spec()
    assert [spec.num_tasks(job) for job in jobs] == [2] * 6
    assert len(under_way) == 18
    assert max(under_way) == limit


async def test_a_client_that_was_closed_is_told(loopback: Loopback) -> None:
    async with client_of("async ApiClient", loopback) as client:
        resolver = resolver_of(client, loopback)
    error = await outcome(resolver.cluster_spec(), within=10)
    assert type(error) is ConnectionFailedError
    assert not error.retryable
    assert "give an override_client that is open" in str(error)


@both_clients
async def test_an_error_of_the_clients_own_hook_is_one_of_ours(loopback: Loopback, kind: str) -> None:
    class RefreshError(Exception):
        pass

    def refresh(configuration: Any) -> None:
        raise RefreshError("the vault is closed")

    async with client_of(kind, loopback, refresh_api_key_hook=refresh) as client:
        error = await outcome(resolver_of(client, loopback).cluster_spec(), within=10)
    assert isinstance(error, ResolveError)
    assert not error.retryable
    assert "the vault is closed" in str(error)
    assert isinstance(error.__cause__, RefreshError)


@both_clients
async def test_a_token_that_no_header_may_hold_is_not_shown(loopback: Loopback, kind: str) -> None:
    async with client_of(kind, loopback, token=f"{TOKEN}\n") as client:
        error, message, everything = await failure_of(resolver_of(client, loopback).cluster_spec())
    assert issubclass(error, ConnectionFailedError | ProtocolError)
    assert loopback.server.url in message
    assert TOKEN not in everything


@pytest.mark.parametrize(
    "client", [object(), "client", 7, type("ApiClient", (), {})()], ids=["object", "str", "int", "same name"]
)
def test_what_is_no_client_is_refused_by_the_constructor(loopback: Loopback, client: Any) -> None:
    with pytest.raises(ConfigurationError, match="give a kubernetes_asyncio ApiClient or CoreV1Api"):
        resolver_of(client, loopback)
