"""Each fault on each kind of request ends in time: in the right result, or in one error without a secret."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    ProtocolError,
    ResolveError,
    TLSError,
)
from aioresolve.testing import (
    Answer,
    Cut,
    Endless,
    EndlessPages,
    Hang,
    Redirect,
    RequestRecord,
    Reset,
    Trickle,
)

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
from .peers import connect_proxy, never_read, never_respond, peer, read_head, responder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aioresolve.spec import ClusterSpec
    from aioresolve.testing import Fault

pytestmark = pytest.mark.usefixtures("quick_retries")

NAMES = ["train-0", "train-1", "train-2"]
SLACK = 20.0
"""Seconds that a call may take beyond its deadline. On an idle machine, a few milliseconds are enough."""


@pytest.fixture
def kind(request: pytest.FixtureRequest, loopback: Loopback) -> str:
    """The kind of request that fails, in a cluster of three pods in which such requests are sent."""
    loopback.train(*NAMES)
    kind: str = request.param
    if "page" in kind:
        request.getfixturevalue("small_pages")
    return kind


async def resolve(loopback: Loopback, kind: str, **arguments: Any) -> ClusterSpec:
    """Return the spec by a call that sends requests of this kind."""
    resolver = loopback.resolver(**{"timeout": 10.0, **arguments})
    if kind == "rows":
        return await resolver.cluster_spec()
    return (await resolver.cluster_state()).spec


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


def assert_no_secret(error: BaseException, caplog: pytest.LogCaptureFixture, *secrets: str) -> None:
    for secret in (TOKEN, *secrets):
        assert secret not in all_text(error)
        assert secret not in caplog.text


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)


def http_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def status(code: int, message: str = "", **details: Any) -> bytes:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    return json.dumps({**body, "message": message, "details": details}).encode()


TRANSIENT: dict[str, tuple[Fault, ...]] = {
    "reset before the response": (Reset(),),
    "reset in the body": (Reset(after=10),),
    "cut in the body": (Cut(after=10),),
    "a body that is not gzip": (Answer(200, b"not gzip", {"Content-Encoding": "gzip"}),),
    "401": (Answer(401),),
    "429 with Retry-After in the Status": (Answer(429, status(429, retryAfterSeconds=0)),),
    "429 with a Retry-After in the past": (Answer(429, headers={"Retry-After": http_date(-5)}),),
    "429 with an invalid Retry-After": (Answer(429, headers={"Retry-After": "+9999 soon"}),),
    **{str(code): (Answer(code),) for code in (408, 429, 500, 502, 503, 504)},
}  # fmt: skip


@pytest.mark.parametrize("kind", ["rows", "whole list"], indirect=True)
async def test_transient_faults_are_retried_until_success(loopback: Loopback, kind: str) -> None:
    for name, faults in TRANSIENT.items():
        loopback.server.forget_requests()
        loopback.server.inject(*faults, match=is_kind(kind), times=1 if name == "401" else 2)
        assert_resolved(loopback, await outcome(resolve(loopback, kind), within=25 + SLACK))
        assert loopback.server.faults == (), name
        assert num_attempts(loopback, kind) >= 2, name


@dataclass(frozen=True)
class Case:
    """A fault that does not end, and the expected error.

    Attributes:
        words: text in the message of the error, in addition to the server and the scope.
        kinds: the kinds of requests that are tested.
        timeout: the deadline of the call in seconds.
        limit: the maximum number of requests. (A request over a connection that was kept is sent once more
            if that connection breaks.)
    """

    faults: tuple[Fault, ...]
    error: type[ResolveError]
    words: tuple[str, ...]
    kinds: tuple[str, ...] = ("rows",)
    timeout: float = 10.0
    limit: int = 2


def json_body(value: Any) -> tuple[Fault, ...]:
    return (Answer(200, json.dumps(value).encode()),)


OF_PODS = ("whole list",)
DECODERS = ("rows", *OF_PODS)
"""The kinds of which bodies are read differently: rows, and pods (as a stream, and then in pages)."""


def not_a_list(*faults: Fault, words: str = "", kinds: tuple[str, ...] = DECODERS) -> Case:
    return Case(faults, ProtocolError, ("returned an invalid pod list for", words, "to a login page"), kinds)


BROKE = ("broke during GET /api/v1/pods", "Try again")
LATE = ("no complete response", "raise `timeout=`")
AT_ONCE = Trickle(1 << 16, 0.0)
POD_LIST = {"kind": "PodList", "metadata": {}}

PERMANENT = {
    "resets before any response": Case((Reset(),), ConnectionFailedError, BROKE),
    "resets in the body": Case((Reset(after=10),), ConnectionFailedError, BROKE, DECODERS),
    "cuts in the body": Case((Cut(after=10),), ConnectionFailedError, BROKE, DECODERS),
    "not JSON": not_a_list(Answer(200, b"<html>log in</html>"), words="malformed"),
    "no body": not_a_list(Answer(200, b"")),
    "bytes that are not text": not_a_list(Answer(200, b'{"kind":"\xff\xfe"}')),
    "half of a body": not_a_list(Answer(200, b'{"kind":"PodList","items":[{"meta'), words="truncated"),
    "a JSON list": not_a_list(*json_body([]), words="object"),
    "another kind": not_a_list(*json_body({"kind": "List"}), words="'List', not PodList", kinds=OF_PODS),
    "a pod without name": not_a_list(
        *json_body({**POD_LIST, "items": [{"metadata": {}}]}), words="name", kinds=OF_PODS
    ),
    "JSON nested without end": not_a_list(Answer(200, b'{"kind":"PodList","items":' + b"[" * 100_000)),
    "an endless body": Case(
        (Endless(), AT_ONCE), ProtocolError, ("exceeds the limit of 1 MiB", "Narrow the selector"),
        DECODERS, limit=3
    ),
    "a small body that is too large after decompression": Case(
        (Answer(200, gzip.compress(bytes(8 << 20)), {"Content-Encoding": "gzip"}),),
        ProtocolError, ("exceeds the limit of 1 MiB",), DECODERS, limit=3
    ),
    "pages without end": Case(
        (EndlessPages(2),), ProtocolError, ("more than 5 pages (10 pods)", "Narrow the selector"),
        ("first page",), limit=5
    ),
    "no response": Case((Hang(),), DeadlineExceededError, (*LATE, "has not responded"), timeout=0.15),
    "a slow trickle": Case((Trickle(1, 0.01),), DeadlineExceededError, LATE, DECODERS, timeout=0.3),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, name) for name, case in PERMANENT.items() for kind in case.kinds],
    indirect=["kind"],
)
@pytest.mark.usefixtures("no_retries")
async def test_permanent_fault_is_one_error_with_cause_place_and_hint(
    loopback: Loopback,
    kind: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("aioresolve._core.http.response.MAX_BODY", 1 << 20)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.MAX_PAGES", 5)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.PAGE", 2)
    case = PERMANENT[fault]
    match = is_kind(kind) if case.faults != (EndlessPages(2),) else None
    loopback.server.inject(*case.faults, match=match, times=None)
    timeout = case.timeout
    error = await outcome(resolve(loopback, kind, timeout=timeout), within=min(timeout, 3.0) + SLACK)
    while not num_attempts(loopback, kind) and timeout < 10.0:  # a busy machine has not sent it in time
        timeout *= 10
        error = await outcome(resolve(loopback, kind, timeout=timeout), within=timeout + SLACK)
    assert isinstance(error, case.error)
    for word in (
        loopback.server.url,
        "app=train" if "GET" not in str(error) else "/api/v1/pods",
        *case.words,
    ):
        assert word in str(error)
    assert num_attempts(loopback, kind) <= case.limit
    assert_no_secret(error, caplog)


async def test_403_after_an_outage_is_retried_because_the_server_may_be_starting(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    for code in (503, 403):
        loopback.server.inject(Answer(code, headers={"Retry-After": "0"}))
    result = await outcome(loopback.resolver(not_running="skip").cluster_spec(), within=25)
    assert_resolved(loopback, result)
    assert len(loopback.requests) == 3


@pytest.mark.parametrize("kind", ["rows", "whole list", "next page"], indirect=True)
async def test_400_means_an_invalid_selector_unless_it_is_for_a_later_page(
    loopback: Loopback, kind: str
) -> None:
    loopback.server.inject(Answer(400), match=is_kind(kind), times=None)
    error = await outcome(resolve(loopback, kind), within=25)
    if kind == "next page":
        assert (type(error), error.status) == (APIError, 400)
        assert num_attempts(loopback, kind) == 4
    else:
        assert type(error) is ConfigurationError
        assert "Correct the selector 'app=train'." in str(error)


@pytest.mark.parametrize("kind", ["rows", "whole list"], indirect=True)
async def test_406_for_rows_falls_back_to_pods_and_is_an_error_otherwise(
    loopback: Loopback, kind: str
) -> None:
    loopback.server.inject(Answer(406), match=is_kind(kind), times=None)
    result = await outcome(resolve(loopback, kind), within=25)
    if kind == "rows":
        assert_resolved(loopback, result)
    else:
        assert (type(result), result.status) == (APIError, 406)


@pytest.mark.parametrize("kind", ["rows", "next page"], indirect=True)
async def test_permanent_410_is_an_error_after_a_few_restarts(loopback: Loopback, kind: str) -> None:
    loopback.server.inject(Answer(410), match=is_kind(kind), times=None)
    error = await outcome(resolve(loopback, kind), within=25)
    assert (type(error), error.status) == (APIError, 410)
    assert "Try again" in str(error)
    assert num_attempts(loopback, kind) <= 4


async def test_no_request_is_sent_to_the_location_of_a_redirect(loopback: Loopback, tmp_path: Path) -> None:
    elsewhere_folder = tmp_path / "elsewhere"
    elsewhere_folder.mkdir()
    resolver = loopback.resolver(not_running="skip")  # which sends one request at a time
    with run_loopback(elsewhere_folder) as elsewhere:
        for location in (f"{elsewhere.server.url}/api/v1/pods", f"//127.0.0.1:{elsewhere.server.port}/"):
            loopback.server.inject(Redirect(location, 307))
            error = await outcome(resolver.cluster_spec(), within=25)
            assert type(error) is ProtocolError
            assert elsewhere.server.url in str(error)
        assert elsewhere.requests == []


# Before a request


async def error_of_both_calls(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, **arguments: Any
) -> ResolveError:
    """Return the error of one attempt of both calls, after checking that it has no secret."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        disable_retries(monkeypatch)
        resolver = loopback.resolver(**{"timeout": 10.0, **arguments})
        first = await outcome(resolver.cluster_spec(), within=min(resolver.timeout, 5.0) + SLACK)
        second = await outcome(resolver.cluster_state(), within=min(resolver.timeout, 5.0) + SLACK)
    assert isinstance(first, ResolveError)
    assert type(first) is type(second)
    assert_no_secret(first, caplog, "proxy-password")
    return first


async def test_server_that_refuses_connections_is_named_with_a_hint(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    with loopback.server.down():
        error = await error_of_both_calls(loopback, caplog)
    assert type(error) is ConnectionFailedError
    assert error.retryable
    assert f"{loopback.server.url} (from kubeconfig {loopback.kubeconfig}" in str(error)
    assert "cannot connect to" in str(error)
    assert "Check that the address is correct, that the server runs" in str(error)
    assert error.host == loopback.server.url
    assert error.scope == "GET /api/v1/pods"


async def test_resolver_reconnects_to_a_server_that_restarted(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    async with loopback.resolver() as resolver:
        await resolver.cluster_spec()
        await asyncio.to_thread(loopback.server.restart)
        assert_resolved(loopback, await outcome(resolver.cluster_spec(), within=25))
        with loopback.server.down():
            error = await outcome(resolver.cluster_spec(timeout=0.5), within=25)
            assert isinstance(error, ConnectionFailedError | DeadlineExceededError)
        assert_resolved(loopback, await outcome(resolver.cluster_spec(), within=25))


async def test_https_to_an_http_port_is_a_tls_error(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    with run_loopback(folder, tls=False) as plain:
        loopback.edit_kubeconfig(server=plain.server.url.replace("http:", "https:"))
        error = await error_of_both_calls(loopback, caplog)
    assert type(error) is TLSError
    assert not error.retryable
    assert f"https://127.0.0.1:{plain.server.port}" in str(error)
    assert "Check that the port speaks https" in str(error)


@pytest.mark.parametrize(
    ("response", "error_type", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ProtocolError, "Check that the port is that of the API server"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ResolveError, ""),
        (b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n", ResolveError, "999"),
        (b"", ConnectionFailedError, "the server closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", ConnectionFailedError, "was incomplete"),
    ],
)
async def test_invalid_http_response_is_one_error_without_the_token(
    loopback: Loopback,
    caplog: pytest.LogCaptureFixture,
    response: bytes,
    error_type: type[ResolveError],
    words: str,
) -> None:
    seen: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        seen.append(read_head(connection))
        connection.sendall(response)

    with trusted_peer(loopback, handle) as port:
        error = await error_of_both_calls(loopback, caplog)
    assert TOKEN.encode() in seen[0]
    assert isinstance(error, error_type)
    assert f"https://127.0.0.1:{port}" in str(error)
    assert words in str(error)


@pytest.mark.parametrize("handle", [never_respond, never_read])
async def test_connection_that_hangs_after_the_handshake_is_closed_at_the_deadline(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, handle: Callable[[socket.socket], None]
) -> None:
    with trusted_peer(loopback, handle):
        error = await error_of_both_calls(loopback, caplog, timeout=0.15)
        assert type(error) is DeadlineExceededError
        # The client does not wait for the reply to its TLS close: the socket is closed when the call ends.
        assert client_sockets(loopback) == 0


async def test_connect_timeout_is_an_error_before_the_deadline(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.api.transport.CONNECT_TIMEOUT", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loopback.edit_kubeconfig(server=f"https://127.0.0.1:{listener.getsockname()[1]}")
        error = await error_of_both_calls(loopback, caplog, timeout=30)
    assert type(error) is ConnectionFailedError
    assert "cannot connect to" in str(error)


# Through a proxy

PROXY_USER = "http://someone:proxy-password@127.0.0.1"


async def test_proxy_is_used_but_never_receives_the_token(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    seen: list[bytes] = []
    with peer(connect_proxy(seen)) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        resolver = loopback.resolver()
        assert_resolved(loopback, await outcome(resolver.cluster_spec(), within=25))
        state = await outcome(resolver.cluster_state(), within=25)
        assert_resolved(loopback, state.spec)
    assert seen
    for request in seen:
        assert request.startswith(f"CONNECT 127.0.0.1:{loopback.server.port} ".encode())
        assert TOKEN.encode() not in request
        assert b"Proxy-Authorization: Basic " in request


@pytest.mark.parametrize(
    ("response", "words", "retryable"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407", False),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "502", True),
        (b"", "broke", True),
    ],
)
async def test_error_names_the_proxy_that_failed(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, response: bytes, words: str, retryable: bool
) -> None:
    with peer(responder(response)) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        error = await error_of_both_calls(loopback, caplog)
    assert f"{loopback.server.url} through the proxy http://127.0.0.1:{port}" in str(error)
    assert words in str(error)
    assert error.retryable is retryable
