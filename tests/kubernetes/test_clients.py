"""Clients of other Kubernetes libraries as `override_client=`: the same results, and typed errors."""

import gc
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aioresolve.errors import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    TLSError,
    UnauthorizedError,
)
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing import Answer, Cut, Endless, Fault, Hang, Reset, Trickle, service

from .loopback import TOKEN, Loopback, addresses, all_text, client_sockets, outcome, request_kind
from .samples import watch_policy

pytestmark = pytest.mark.usefixtures("quick_retries", "imported_clients")

NAMES = ["train-0", "train-1", "train-2", "train-10"]
both_clients = pytest.mark.parametrize("kind", ["async ApiClient", "sync CoreV1Api"])


@asynccontextmanager
async def client_of(kind: str, loopback: Loopback, **fields: Any) -> AsyncIterator[Any]:
    """Yield a client as a user would create and close it; `fields` are set on its Configuration."""
    if kind.startswith("async"):
        from kubernetes_asyncio import client

        async with client.ApiClient(_configure(client.Configuration(), loopback, fields)) as api_client:
            yield api_client
        # aiohttp does not wait for the connections of cancelled requests, and TLS takes a round trip to close
        # each. An event loop that ends before leaves a socket open.
        with anyio.fail_after(30, shield=True):
            while client_sockets(loopback):  # noqa: ASYNC110 - aiohttp reports no event
                await anyio.sleep(0.01)
        return
    from kubernetes import client as blocking

    settings = {"retries": False, **fields}
    with blocking.ApiClient(_configure(blocking.Configuration(), loopback, settings)) as api_client:
        yield blocking.CoreV1Api(api_client)


def _configure(configuration: Any, loopback: Loopback, fields: dict[str, Any]) -> Any:
    authority = loopback.kubeconfig.with_name("ca.crt")
    authority.write_text(loopback.server.ca_pem)
    configuration.host = loopback.server.url
    configuration.ssl_ca_cert = str(authority)
    # kubernetes before 36 calls it "authorization".
    configuration.api_key = dict.fromkeys(("BearerToken", "authorization"), TOKEN)
    configuration.api_key_prefix = dict.fromkeys(configuration.api_key, "Bearer")
    for name, value in fields.items():
        setattr(configuration, name, value)
    return configuration


def resolver_of(client: Any, loopback: Loopback, timeout: float = 10.0) -> Any:
    return loopback.resolver(override_client=client, kubeconfig=None, timeout=timeout)


@pytest.fixture(autouse=True)
def _collect_clients(loopback: Loopback) -> Iterator[None]:
    """Collect closed clients as garbage: urllib3 closes their connections only then."""
    yield
    deadline = time.monotonic() + 2.0
    while loopback.server.connections and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)


@both_clients
async def test_results_are_the_same_as_without_a_client(loopback: Loopback, kind: str) -> None:
    loopback.add_trainers(*NAMES)
    loopback.add_trainers("train-1", waiting="CrashLoopBackOff")
    loopback.add_trainers("leaving", deleting=True)
    own = loopback.resolver()
    spec, state = await own.cluster_spec(), await own.cluster_state()
    expected = Counter(request_kind(request) for request in loopback.requests)
    loopback.server.forget_requests()
    async with client_of(kind, loopback) as client:
        resolver = resolver_of(client, loopback)
        assert await resolver.cluster_spec() == spec
        assert await resolver.cluster_state() == state
        assert addresses(spec) == [loopback.address(name) for name in NAMES]
    if kind.startswith("sync"):  # it only lists whole pods
        expected = Counter({"whole list": 2})
    assert Counter(request_kind(request) for request in loopback.requests) == expected
    assert {request.user for request in loopback.requests} == {"alice"}


async def test_object_around_a_client_may_return_its_models(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    loopback.add_trainers("train-1", waiting="CrashLoopBackOff")
    state = await loopback.resolver().cluster_state()
    async with client_of("sync CoreV1Api", loopback) as client:
        around = SimpleNamespace(list_pod_for_all_namespaces=client.list_pod_for_all_namespaces)
        assert await resolver_of(around, loopback).cluster_state() == state


async def test_services_are_read_with_a_client(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    loopback.server.add(service("trainer", "ml", selector={"app": "train"}))
    async with client_of("async ApiClient", loopback) as client:
        resolver = KubernetesClusterResolver(service="trainer", namespace="ml", override_client=client)
        assert addresses(await resolver.cluster_spec()) == [loopback.address(name) for name in NAMES]
        async with aclosing(resolver.watch()) as states:
            assert (await anext(states)).spec.num_tasks("worker") == len(NAMES)
    assert {request.resource for request in loopback.requests} == {"endpointslices"}


async def test_error_for_a_denied_watch_has_the_message_of_the_server(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    loopback.server.verbs["alice"] = {"list"}
    async with client_of("async ApiClient", loopback) as client:
        resolver = resolver_of(client, loopback)
        resolver.watch_policy = watch_policy()
        with pytest.raises(ForbiddenError, match="user 'alice' may not watch pods"):
            async with aclosing(resolver.watch()) as states:
                _ = [state async for state in states]


async def test_closing_the_resolver_ends_a_watch_over_a_client(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    async with client_of("async ApiClient", loopback) as client:
        async with resolver_of(client, loopback) as resolver:
            states = resolver.watch()
            await anext(states)
            await anyio.to_thread.run_sync(loopback.server.until, lambda: loopback.server.watches == 1)
        with anyio.fail_after(30), pytest.raises(ConnectionFailedError, match="was closed"):
            await anext(states)


@both_clients
async def test_client_is_not_closed_by_the_resolver(loopback: Loopback, kind: str) -> None:
    loopback.add_trainers(*NAMES)
    async with client_of(kind, loopback) as client:
        for _ in range(2):
            async with resolver_of(client, loopback) as resolver:
                assert (await resolver.cluster_spec()).num_tasks("worker") == len(NAMES)


async def test_transient_faults_are_retried(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    async with client_of("async ApiClient", loopback) as client:
        for fault in (Answer(429, headers={"Retry-After": "0"}), Answer(503), Reset(after=10), Cut(after=10)):
            loopback.server.inject(fault, times=2)
            result = await outcome(resolver_of(client, loopback).cluster_state(), within=25)
            assert not isinstance(result, ResolveError), (fault, result)


FAULTS: list[tuple[Fault, type[ResolveError], str]] = [
    (Answer(401), UnauthorizedError, "override_client"),
    (Answer(403), ForbiddenError, "403"),
    (Answer(404), APIError, "404"),
    (Answer(429, headers={"Retry-After": "3600"}), APIError, "429"),
    (Answer(500, b"\xff\xfe"), APIError, "500"),
    (Reset(), ConnectionFailedError, "override_client"),
    (Cut(after=5), ConnectionFailedError, "override_client"),
    (Answer(200, b"<html>"), ProtocolError, "returned an invalid pod list for"),
    (Answer(200, b"text", {"Content-Encoding": "gzip"}), ConnectionFailedError, "override_client"),
    (Endless(), ProtocolError, "exceeds the limit of 1 MiB"),
]


@both_clients
@pytest.mark.usefixtures("no_retries")
async def test_permanent_faults_are_typed_errors_without_a_secret(
    loopback: Loopback, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve._core.http.MAX_BODY", 1 << 20)
    async with client_of(kind, loopback) as client:
        for fault, error_type, words in FAULTS[:5] if kind.startswith("sync") else FAULTS:
            loopback.server.inject(fault, Trickle(1 << 16, 0.0), times=None)
            error = await outcome(resolver_of(client, loopback).cluster_state(), within=25)
            assert isinstance(error, error_type), fault
            assert words in str(error)
            assert "was closed" not in str(error)
            assert TOKEN not in all_text(error)
            del error  # it would keep its response alive, and with it the connections of the client
            loopback.server.clear_faults()


async def test_certificate_that_the_client_rejects_is_a_tls_error(loopback: Loopback) -> None:
    async with client_of("async ApiClient", loopback, ssl_ca_cert=None) as client:
        # With one request: uvloop logs the error of a second one, which is cancelled in its TLS handshake.
        error = await outcome(resolver_of(client, loopback).cluster_state(), within=25)
    assert (type(error), error.retryable) == (TLSError, False)
    assert loopback.server.url in str(error)


@both_clients
async def test_deadline_ends_the_call(loopback: Loopback, kind: str) -> None:
    # A thread cannot be cancelled, but its request ends soon after the deadline, before the server stops.
    loopback.server.inject(Hang(), times=None)
    async with client_of(kind, loopback) as client:
        error = await outcome(resolver_of(client, loopback, 0.2).cluster_spec(), within=25)
    assert type(error) is DeadlineExceededError


async def test_closed_client_is_a_connection_error(loopback: Loopback) -> None:
    async with client_of("async ApiClient", loopback) as client:
        resolver = resolver_of(client, loopback)
    error = await outcome(resolver.cluster_spec(), within=25)
    assert type(error) is ConnectionFailedError
    assert not error.retryable
    assert "Check that `override_client=` is open" in str(error)


@both_clients
async def test_error_of_a_hook_of_the_client_is_reported_without_its_text(
    loopback: Loopback, kind: str
) -> None:
    def refresh(configuration: Any) -> None:
        raise LookupError(f"the vault is closed to {TOKEN}")

    async with client_of(kind, loopback, refresh_api_key_hook=refresh) as client:
        error = await outcome(resolver_of(client, loopback).cluster_spec(), within=25)
    assert type(error) is ConnectionFailedError
    assert not error.retryable
    assert "it raised LookupError. Check that" in str(error)
    assert TOKEN not in "".join(traceback.format_exception(error))
