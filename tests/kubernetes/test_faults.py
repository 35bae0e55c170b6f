"""Each fault on each kind of request ends in time: in the right result, or in one error without a secret."""

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve.errors import (
    APIError,
    ConnectionFailedError,
    DeadlineExceededError,
    ProtocolError,
    ResolveError,
    TLSError,
)
from aioresolve.testing import Answer, Cut, Delay, Endless, Fault, Hang, RequestRecord, Reset, Trickle, pod

from .loopback import (
    TOKEN,
    Loopback,
    all_text,
    client_sockets,
    disable_retries,
    outcome,
    request_kind,
    run_loopback,
    trusted_peer,
)
from .peers import connect_proxy, never_read, never_respond, peer, responder

pytestmark = pytest.mark.usefixtures("quick_retries")

NAMES = ["train-0", "train-1", "train-2"]
SLACK = 20.0
"""Seconds that a call may take beyond its deadline. On an idle machine, a few milliseconds are enough."""

OF_PODS = ("whole list",)
DECODERS = ("rows", *OF_PODS)
"""The kinds of which bodies are read differently: rows, and pods (as a stream, and then in pages)."""


@pytest.fixture(autouse=True)
def _no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    assert TOKEN not in caplog.text
    assert "proxy-password" not in caplog.text


@pytest.fixture
def kind(request: pytest.FixtureRequest, loopback: Loopback) -> str:
    """The kind of request that fails, in a cluster of three pods in which such requests are sent."""
    loopback.add_trainers(*NAMES)
    kind: str = request.param
    if "page" in kind:
        request.getfixturevalue("small_pages")
    return kind


async def resolve(loopback: Loopback, kind: str, *, timeout: float = 10.0, slack: float = SLACK) -> Any:
    """Return the spec by a call that sends requests of this kind, or its error."""
    resolver = loopback.resolver(timeout=timeout)
    call = resolver.cluster_spec() if kind == "rows" else resolver.cluster_state()
    result = await outcome(call, within=timeout + slack)
    return getattr(result, "spec", result)


def is_kind(kind: str) -> Callable[[RequestRecord], bool]:
    # If the whole list fails, its pages are requested.
    kinds = {kind, "first page", "next page"} if kind == "whole list" else {kind}
    return lambda request: request_kind(request) in kinds


def num_attempts(loopback: Loopback, kind: str) -> int:
    return sum(map(is_kind(kind), loopback.requests))


def assert_resolved(loopback: Loopback, result: Any) -> None:
    if isinstance(result, ResolveError):
        raise result
    assert result.job_tasks("worker") == [loopback.address(name) for name in NAMES]


# Transient faults

TRANSIENT = [
    *(Reset(), Reset(after=10), Cut(after=10)),
    Answer(200, b"not gzip", {"Content-Encoding": "gzip"}),
    Answer(429, b'{"kind": "Status", "details": {"retryAfterSeconds": 0}}'),
    Answer(429, headers={"Retry-After": "+9999 soon"}),
    *map(Answer, (408, 429, 500, 502, 503, 504)),
]


@pytest.mark.parametrize("kind", DECODERS, indirect=True)
async def test_transient_faults_are_retried_until_success(loopback: Loopback, kind: str) -> None:
    for fault, times in [*((fault, 2) for fault in TRANSIENT), (Answer(401), 1)]:
        loopback.server.forget_requests()
        loopback.server.inject(fault, match=is_kind(kind), times=times)
        assert_resolved(loopback, await resolve(loopback, kind))
        assert loopback.server.faults == (), fault
        assert num_attempts(loopback, kind) >= 2, fault


async def test_403_after_an_outage_is_retried_because_the_server_may_be_starting(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    for code in (503, 403):
        loopback.server.inject(Answer(code, headers={"Retry-After": "0"}))
    result = await outcome(loopback.resolver(not_running="skip").cluster_spec(), within=25)
    assert_resolved(loopback, result)
    assert len(loopback.requests) == 3


TRANSIENT_OR_SLOW: st.SearchStrategy[Fault] = st.one_of(
    st.builds(Reset, after=st.integers(0, 400)),
    st.builds(Cut, after=st.integers(0, 400)),
    st.builds(Answer, st.sampled_from([408, 429, 500, 502, 503, 504])),
    st.builds(Delay, st.floats(0.0, 0.004)),
    st.builds(Trickle, st.integers(500, 5000), st.just(0.0005)),
)
SCHEDULES = st.lists(
    st.tuples(TRANSIENT_OR_SLOW, st.sampled_from([*DECODERS, "named", "first page", "next page"])), max_size=6
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCHEDULES, st.sampled_from(DECODERS))
def test_any_schedule_of_transient_faults_ends_in_the_right_result(
    loopback: Loopback, schedule: list[tuple[Fault, str]], kind: str
) -> None:
    loopback.replace_pods([])
    loopback.add_trainers(*NAMES[:2])
    loopback.add_trainers(NAMES[2], waiting="CrashLoopBackOff")  # its row does not prove that it is a member
    loopback.server.clear_faults()
    for fault, failing in schedule:
        loopback.server.inject(fault, match=is_kind(failing))
    assert_resolved(loopback, asyncio.run(resolve(loopback, kind)))
    loopback.server.until(lambda: loopback.server.connections == 0)


# Faults that do not end


class Case(NamedTuple):
    """A fault that does not end, and the expected error.

    Attributes:
        fault: the fault.
        error: the class of the error.
        words: text in the message of the error, in addition to the server and the scope.
        kinds: the kinds of requests that are tested.
        timeout: the deadline of the call in seconds.
        limit: the maximum number of requests. (A request over a connection that was kept is sent once more
            if that connection breaks.)
    """

    fault: Fault
    error: type[ResolveError]
    words: tuple[str, ...]
    kinds: tuple[str, ...] = DECODERS
    timeout: float = 10.0
    limit: int = 2


def not_a_list(body: bytes, words: str = "", kinds: tuple[str, ...] = DECODERS) -> Case:
    words_ = ("returned an invalid pod list for", words, "to a login page")
    return Case(Answer(200, body), ProtocolError, words_, kinds)


BROKE = ("broke during GET /api/v1/pods", "Try again")
LATE = ("no complete response", "raise `timeout=`")
TOO_LONG = ("exceeds the limit of 1 MiB", "Narrow the selector")
MANY_PAGES = ("more than 5 pages (10 pods)", "Narrow the selector")
BOMB = Answer(200, gzip.compress(bytes(8 << 20)), {"Content-Encoding": "gzip"})
NAMELESS = {"kind": "PodList", "metadata": {}, "items": [{"metadata": {}}]}
ENDLESS = {"kind": "PodList", "metadata": {"continue": "more"}, "items": [pod("a"), pod("b")]}
CASES = {
    "resets before any response": Case(Reset(), ConnectionFailedError, BROKE, ("rows",)),
    "resets in the body": Case(Reset(after=10), ConnectionFailedError, BROKE),
    "cuts in the body": Case(Cut(after=10), ConnectionFailedError, BROKE),
    "not JSON": not_a_list(b"<html>log in</html>", "malformed"),
    "no body": not_a_list(b""),
    "bytes that are not text": not_a_list(b'{"kind":"\xff\xfe"}'),
    "half of a body": not_a_list(b'{"kind":"PodList","items":[{"meta', "truncated"),
    "a JSON list": not_a_list(b"[]", "object"),
    "another kind": not_a_list(b'{"kind": "List"}', "'List', not PodList", OF_PODS),
    "a pod without name": not_a_list(json.dumps(NAMELESS).encode(), "name", OF_PODS),
    "JSON nested without end": not_a_list(b'{"kind":"PodList","items":' + b"[" * 100_000),
    "an endless body": Case(Endless(), ProtocolError, TOO_LONG, limit=3),
    "a body that is too large after decompression": Case(BOMB, ProtocolError, TOO_LONG, limit=3),
    "pages without end": Case(
        Answer(200, json.dumps(ENDLESS).encode()), ProtocolError, MANY_PAGES, ("first page",), limit=5
    ),
    "no response": Case(Hang(), DeadlineExceededError, (*LATE, "has not responded"), ("rows",), timeout=0.15),
    "a slow trickle": Case(Trickle(1, 0.01), DeadlineExceededError, LATE, timeout=0.3),
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for name, case in CASES.items() for kind in case.kinds],
    indirect=["kind"],
)
@pytest.mark.usefixtures("no_retries")
async def test_permanent_fault_is_one_error_with_cause_place_and_hint(
    loopback: Loopback, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve._core.http.MAX_BODY", 1 << 20)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.MAX_PAGES", 5)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.PAGE", 2)
    case = CASES[name]
    together = [Trickle(1 << 16, 0.0)] if name == "an endless body" else []
    match = is_kind(kind) if name != "pages without end" else None
    loopback.server.inject(case.fault, *together, match=match, times=None)
    error, timeout = await resolve(loopback, kind, timeout=case.timeout), case.timeout
    while not num_attempts(loopback, kind) and timeout < 10.0:  # a busy machine has not sent it in time
        timeout *= 10
        error = await resolve(loopback, kind, timeout=timeout)
    assert isinstance(error, case.error)
    place = "app=train" if "GET" not in str(error) else "/api/v1/pods"
    for word in (loopback.server.url, place, *case.words):
        assert word in str(error)
    assert num_attempts(loopback, kind) <= case.limit
    assert TOKEN not in all_text(error)


@pytest.mark.parametrize("kind", ["next page"], indirect=True)
async def test_list_whose_pages_expire_is_restarted_a_few_times(loopback: Loopback, kind: str) -> None:
    for code in (410, 400):  # 400 from a server that cannot read the token of another one
        loopback.server.forget_requests()
        loopback.server.clear_faults()
        loopback.server.inject(Answer(code), match=is_kind(kind), times=None)
        error = await resolve(loopback, kind)
        assert (type(error), error.status) == (APIError, code)
        assert num_attempts(loopback, kind) == 4


async def test_no_request_is_sent_to_the_location_of_a_redirect(loopback: Loopback, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with run_loopback(tmp_path / "elsewhere") as elsewhere:
        url = elsewhere.server.url
        for status, location in ((300, f"{url}/api/v1/pods"), (307, url.removeprefix("https:"))):
            loopback.server.clear_faults()
            loopback.server.inject(Answer(status, headers={"Location": location}), times=None)
            error = await resolve(loopback, "whole list")
            assert type(error) is ProtocolError
            assert url in str(error)
        assert elsewhere.requests == []


# Before a request


async def error_of_both_calls(loopback: Loopback, timeout: float = 10.0) -> ResolveError:
    """Return the error of one attempt of both calls, after checking that it has no secret."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        disable_retries(monkeypatch)
        first, second = [await resolve(loopback, kind, timeout=timeout, slack=SLACK - 5) for kind in DECODERS]
    assert isinstance(first, ResolveError)
    assert type(first) is type(second)
    assert TOKEN not in all_text(first)
    assert "proxy-password" not in all_text(first)
    return first


async def test_server_that_refuses_connections_is_named_with_a_hint(loopback: Loopback) -> None:
    with loopback.server.down():
        error = await error_of_both_calls(loopback)
    assert (type(error), error.retryable) == (ConnectionFailedError, True)
    assert f"cannot connect to {loopback.server.url} (from kubeconfig {loopback.kubeconfig}" in str(error)
    assert "Check that the address is correct, that the server runs" in str(error)


async def test_resolver_reconnects_to_a_server_that_restarted(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    async with loopback.resolver() as resolver:
        await resolver.cluster_spec()
        await asyncio.to_thread(loopback.server.restart)
        assert_resolved(loopback, await outcome(resolver.cluster_spec(), within=25))
        with loopback.server.down():
            error = await outcome(resolver.cluster_spec(timeout=0.5), within=25)
            assert isinstance(error, ConnectionFailedError | DeadlineExceededError)
        assert_resolved(loopback, await outcome(resolver.cluster_spec(), within=25))


async def test_https_to_an_http_port_is_a_tls_error(loopback: Loopback) -> None:
    def respond(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with peer(respond) as port:
        loopback.edit_kubeconfig(server=f"https://127.0.0.1:{port}")
        error = await error_of_both_calls(loopback)
    assert (type(error), error.retryable) == (TLSError, False)
    for words in (f"https://127.0.0.1:{port}", "failed: wrong version", "Check that the port speaks https"):
        assert words in str(error)


async def test_invalid_http_response_is_one_error_without_the_token(loopback: Loopback) -> None:
    for response, error_type, words in (
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ProtocolError, "Check that the port is that of the API server"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ResolveError, ""),
        (b"", ConnectionFailedError, "the server closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", ConnectionFailedError, "was incomplete"),
    ):
        with trusted_peer(loopback, responder(response)) as port:
            error = await error_of_both_calls(loopback)
        assert isinstance(error, error_type)
        assert f"https://127.0.0.1:{port}" in str(error)
        assert words in str(error)


@pytest.mark.parametrize("handle", [never_respond, never_read])
async def test_connection_that_hangs_after_the_handshake_is_closed_at_the_deadline(
    loopback: Loopback, handle: Callable[[socket.socket], None]
) -> None:
    with trusted_peer(loopback, handle):
        error = await error_of_both_calls(loopback, timeout=0.15)
        assert type(error) is DeadlineExceededError
        # The client does not wait for the reply to its TLS close: the socket is closed when the call ends.
        assert client_sockets(loopback) == 0


# Through a proxy

PROXY_USER = "http://someone:proxy-password@127.0.0.1"


async def test_proxy_is_used_but_never_receives_the_token(loopback: Loopback) -> None:
    loopback.add_trainers(*NAMES)
    seen: list[bytes] = []
    with peer(connect_proxy(seen)) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        for kind in DECODERS:
            assert_resolved(loopback, await resolve(loopback, kind))
    assert seen
    for request in seen:
        assert request.startswith(f"CONNECT 127.0.0.1:{loopback.server.port} ".encode())
        assert TOKEN.encode() not in request
        assert b"Proxy-Authorization: Basic " in request


async def test_error_names_the_proxy_that_failed(loopback: Loopback) -> None:
    with peer(responder(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad")) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        error = await error_of_both_calls(loopback)
    assert f"{loopback.server.url} through the proxy http://127.0.0.1:{port}" in str(error)
    assert "502" in str(error)
