"""Each fault on each kind of request: the right answer, or one typed error in time that tells no secret."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
import ssl
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    ForbiddenError,
    ProtocolError,
    ResolveError,
    TLSError,
    UnauthorizedError,
)
from aioresolve.testing import (
    Answer,
    Cut,
    Delay,
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
    kind_of,
    outcome,
    rewrite_authority,
    running,
    trusted_peer,
)
from .peers import answering, deaf, head, peer, relaying, silent
from .samples import table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aioresolve.spec import ClusterSpec
    from aioresolve.testing import Fault

pytestmark = pytest.mark.usefixtures("quick_retries")

KINDS = ["rows", "named", "first page", "next page"]
NAMES = ["train-0", "train-1", "train-2"]
SCOPE = "selector 'app=train' in all namespaces"
SLACK = 3.0
"""Seconds a call may take beyond its deadline; on an idle machine it is a few milliseconds."""


@pytest.fixture
def kind(request: pytest.FixtureRequest, loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of request that goes wrong, in a cluster of three pods where there is such a request."""
    monkeypatch.setattr("aioresolve.kubernetes.client.PAGE", 2)
    loopback.train(*NAMES)
    kind: str = request.param
    if kind == "named":
        loopback.train("train-1", waiting="CrashLoopBackOff")
    return kind


each_kind = pytest.mark.parametrize("kind", KINDS, indirect=True)


async def resolved(loopback: Loopback, kind: str, **arguments: Any) -> ClusterSpec:
    """Return the spec, by the path that makes requests of that kind."""
    resolver = loopback.resolver(**{"timeout": 10.0, **arguments})
    if kind in ("rows", "named"):
        return await resolver.cluster_spec()
    return (await resolver.cluster_state()).spec


def befalls(kind: str) -> Callable[[RequestRecord], bool]:
    return lambda request: kind_of(request) == kind


def attempts(loopback: Loopback, kind: str) -> int:
    return sum(kind_of(request) == kind for request in loopback.requests)


def assert_right(loopback: Loopback, result: Any) -> None:
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


def a_date(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


def status(code: int, message: str = "", **details: Any) -> bytes:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code}
    return json.dumps({**body, "message": message, "details": details}).encode()


TRANSIENT: dict[str, tuple[Fault, ...]] = {
    "reset before the answer": (Reset(),),
    "reset in the body": (Reset(after=10),),
    "cut in the body": (Cut(after=10),),
    "cut before the body": (Cut(after=0),),
    "401, then fine": (Answer(401),),
    "408": (Answer(408),),
    "429 without Retry-After": (Answer(429),),
    "429 with Retry-After in seconds": (Answer(429, headers={"Retry-After": "0"}),),
    "429 with Retry-After as a date": (Answer(429, headers={"Retry-After": a_date(-5)}),),
    "429 with Retry-After in the Status": (Answer(429, status(429, retryAfterSeconds=0)),),
    "429 with a Retry-After that cannot be read": (Answer(429, headers={"Retry-After": "+9999 soon"}),),
    "429 with a Retry-After beyond any calendar": (
        Answer(429, headers={"Retry-After": "Mon, 01 Jan 2024 00:00:00 +99999999999999"}),
    ),
    "500": (Answer(500),),
    "502 of a proxy": (Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"}),),
    "503": (Answer(503),),
    "504": (Answer(504),),
    "a body that is no gzip": (Answer(200, b"not gzip", {"Content-Encoding": "gzip"}),),
    "a delay, then a reset": (Delay(0.01), Reset(after=1)),
}  # fmt: skip


@each_kind
@pytest.mark.parametrize("fault", TRANSIENT)
async def test_a_fault_that_passes_costs_a_second_attempt_and_nothing_else(
    loopback: Loopback, kind: str, fault: str
) -> None:
    loopback.server.inject(
        *TRANSIENT[fault], match=befalls(kind), times=2 if fault != "401, then fine" else 1
    )
    assert_right(loopback, await outcome(resolved(loopback, kind), within=10 + SLACK))
    assert loopback.server.faults == ()
    assert attempts(loopback, kind) >= 2


@each_kind
@pytest.mark.parametrize("fault", [Delay(0.02), Trickle(400, 0.001)])
async def test_an_answer_that_is_only_slow_is_waited_for(loopback: Loopback, kind: str, fault: Fault) -> None:
    loopback.server.inject(fault, match=befalls(kind), times=None)
    assert_right(loopback, await outcome(resolved(loopback, kind), within=10))
    assert attempts(loopback, kind) == 1


@dataclass(frozen=True)
class Lasting:
    """A fault that does not pass, and what becomes of it.

    Attributes:
        words: what the error's message says, besides the server and what was asked of it.
        timeout: the call's deadline in seconds.
        most: how many attempts are made at most.
        attributes: of the error.
    """

    faults: tuple[Fault, ...]
    error: type[ResolveError]
    words: tuple[str, ...]
    timeout: float = 10.0
    most: int = 1
    attributes: dict[str, Any] = field(default_factory=dict)


def json_body(value: Any) -> tuple[Fault, ...]:
    return (Answer(200, json.dumps(value).encode()),)


def garbage(*faults: Fault, words: str = "") -> Lasting:
    return Lasting(faults, ProtocolError, ("is no list of pods", words, "no login page"))


BROKE = ("broke during GET /api/v1/pods", "try again")
ILL = ("overloaded or unhealthy", "Try again later.")
LATE = ("no complete response", "raise `timeout=`")
AT_ONCE = Trickle(1 << 16, 0.0)
NO_POD_LIST = {"kind": "PodList", "metadata": {}}

LASTING = {
    "resets before any answer": Lasting((Reset(),), ConnectionFailedError, BROKE, most=20),
    "resets in the body": Lasting((Reset(after=10),), ConnectionFailedError, BROKE, most=10),
    "cuts in the body": Lasting((Cut(after=10),), ConnectionFailedError, BROKE, most=10),
    "401": Lasting(
        (Answer(401),), UnauthorizedError, ("rejects the credentials from kubeconfig", "Log in again"),
        most=2, attributes={"status": 401},
    ),
    "403": Lasting((Answer(403),), ForbiddenError, ("403", "Check that the kubeconfig has a user")),
    "404": Lasting((Answer(404),), APIError, ("404", "no pods API", "Correct the server in the kubeconfig.")),
    "418": Lasting((Answer(418, b"tea"),), APIError, ("418", "no reason given", "Check that this is a")),
    "204": Lasting((Answer(204, b""),), APIError, ("204", "Check that this is a Kubernetes API server")),
    "429": Lasting((Answer(429),), APIError, ILL, most=10, attributes={"status": 429, "retryable": True}),
    "429 longer than the deadline": Lasting(
        (Answer(429, headers={"Retry-After": "3600"}),), APIError, ILL, attributes={"retry_after": 3600.0}
    ),
    "429 until a date after the deadline": Lasting(
        (Answer(429, headers={"Retry-After": a_date(3600)}),), APIError, ILL
    ),
    "503 until the end of the world": Lasting(
        (Answer(503, headers={"Retry-After": "9" * 400}),), APIError, ILL, attributes={"status": 503}
    ),
    "500": Lasting((Answer(500),), APIError, ("500", *ILL), most=10, attributes={"status": 500}),
    "502": Lasting((Answer(502, b"<html>"),), APIError, ("502", *ILL), most=10),
    "503": Lasting((Answer(503),), APIError, ("503", *ILL), most=10),
    "504": Lasting((Answer(504),), APIError, ("504", *ILL), most=10),
    "a redirect": Lasting(
        (Redirect("https://elsewhere.example/login?token=x"),), ProtocolError,
        ("redirects", "to https://elsewhere.example;", "to the API server itself"),
    ),
    "a redirect to nowhere": Lasting((Redirect("http://["),), ProtocolError, ("redirects", "cannot be read")),
    "a redirect without a place": Lasting((Answer(301, b""),), ProtocolError, ("redirects", "to nowhere")),
    "not JSON": garbage(Answer(200, b"<html>log in</html>"), words="malformed"),
    "no body": garbage(Answer(200, b"")),
    "bytes that are no text": garbage(Answer(200, b'{"kind":"\xff\xfe"}')),
    "half of an answer": garbage(Answer(200, b'{"kind":"PodList","items":[{"meta'), words="truncated"),
    "JSON of another kind": garbage(*json_body({"kind": "Status"}), words="'Status'"),
    "JSON without a kind": garbage(*json_body({"items": []}), words="kind"),
    "a JSON list": garbage(*json_body([]), words="object"),
    "a JSON null": garbage(*json_body(None), words="object"),
    "items that are no list": garbage(*json_body({**NO_POD_LIST, "items": {}}), words="$.items"),
    "a pod without a name": garbage(*json_body({**NO_POD_LIST, "items": [{"metadata": {}}]}), words="name"),
    "a pod that is a number": garbage(*json_body({**NO_POD_LIST, "items": [7]}), words="$.items[0]"),
    "JSON nested without end": garbage(Answer(200, b'{"kind":"PodList","items":' + b"[" * 100_000)),
    "an endless body": Lasting(
        (Endless(), AT_ONCE), ProtocolError, ("longer than 1 MiB", "narrow the selector")
    ),
    "an endless body that is no JSON": Lasting(
        (Endless(head=b""), AT_ONCE), ProtocolError, ("longer than 1 MiB",)
    ),
    "a small body that grows without end": Lasting(
        (Answer(200, gzip.compress(bytes(8 << 20)), {"Content-Encoding": "gzip"}),),
        ProtocolError, ("longer than 1 MiB",),
    ),
    "a million pods that do not exist": Lasting(
        (EndlessPages(2),), ProtocolError, ("goes on after 5 pages (10 pods)", "narrow the selector"), most=5
    ),
    "no answer": Lasting((Hang(),), DeadlineExceededError, (*LATE, "has not answered"), timeout=0.15),
    "an answer too late": Lasting((Delay(60),), DeadlineExceededError, LATE, timeout=0.15),
    "a slow trickle": Lasting((Trickle(1, 0.01),), DeadlineExceededError, LATE, timeout=0.3),
}  # fmt: skip


@each_kind
@pytest.mark.parametrize("fault", LASTING)
async def test_a_fault_that_lasts_is_one_error_that_says_what_where_and_the_mend(
    loopback: Loopback,
    kind: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("aioresolve._core.http.client.MAX_BODY", 1 << 20)
    monkeypatch.setattr("aioresolve.kubernetes.client.MAX_PAGES", 5)
    case = LASTING[fault]
    match = befalls(kind) if case.faults != (EndlessPages(2),) else None
    loopback.server.inject(*case.faults, match=match, times=None)
    error = await outcome(
        resolved(loopback, kind, timeout=case.timeout), within=min(case.timeout, 3.0) + SLACK
    )
    assert type(error) is case.error
    for word in (
        loopback.server.url,
        "app=train" if "GET" not in str(error) else "/api/v1/pods",
        *case.words,
    ):
        assert word in str(error)
    for name, value in case.attributes.items():
        assert getattr(error, name) == value
    assert attempts(loopback, kind) <= case.most
    assert_no_secret(error, caplog)


@each_kind
async def test_a_400_is_about_the_selector_unless_it_is_about_a_page(loopback: Loopback, kind: str) -> None:
    loopback.server.inject(Answer(400), match=befalls(kind), times=None)
    error = await outcome(resolved(loopback, kind), within=10)
    if kind == "next page":
        assert (type(error), error.status) == (APIError, 400)
        assert attempts(loopback, kind) == 4
    else:
        assert type(error) is ConfigurationError
        assert "Correct the selector 'app=train'." in str(error)


@each_kind
async def test_a_406_sends_rows_to_the_pods_and_is_an_error_elsewhere(loopback: Loopback, kind: str) -> None:
    loopback.server.inject(Answer(406), match=befalls(kind), times=None)
    result = await outcome(resolved(loopback, kind), within=10)
    if kind == "rows":
        assert_right(loopback, result)
    else:
        assert (type(result), result.status) == (APIError, 406)


@each_kind
async def test_a_410_that_lasts_is_an_error_after_a_few_rounds(loopback: Loopback, kind: str) -> None:
    loopback.server.inject(Answer(410), match=befalls(kind), times=None)
    error = await outcome(resolved(loopback, kind), within=10)
    assert (type(error), error.status) == (APIError, 410)
    assert "Try again" in str(error)
    assert attempts(loopback, kind) <= 4


@pytest.mark.parametrize("kind", ["first page", "next page", "named"], indirect=True)
async def test_rows_where_pods_were_asked_for_are_not_understood(loopback: Loopback, kind: str) -> None:
    loopback.server.inject(Answer(200, table([])), match=befalls(kind))
    error = await outcome(resolved(loopback, kind), within=10)
    assert type(error) is ProtocolError
    assert "it is a Table where a PodList was asked for" in str(error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (table([["a", "b"]], ["Name", "Ready"]), "no column Name, Status or IP"),
        (table([["a"]]), "does not have one cell for each of the 9 columns"),
        (table([["a", "1/1", None, "0", "1s", "10.0.0.7", "n", "", ""]]), "not all strings"),  # type: ignore[list-item]
        (b'{"kind":"Table","columnDefinitions":null,"rows":[{"cells":["a"]}]}', "no column Name"),
        (b'{"kind":"Table","columnDefinitions":[],"rows":{}}', "$.rows"),
        (b'{"kind":"Table","columnDefinitions":[{}],"rows":[]}', "name"),
    ],
)
async def test_rows_of_another_shape_are_not_understood(loopback: Loopback, body: bytes, words: str) -> None:
    loopback.server.inject(Answer(200, body))
    error = await outcome(loopback.resolver().cluster_spec(), within=10)
    assert type(error) is ProtocolError
    assert words in str(error)
    assert SCOPE in str(error)


@pytest.mark.parametrize("header", [lambda: "1", lambda: a_date(1.9)], ids=["seconds", "date"])
async def test_retry_after_is_waited_for(loopback: Loopback, header: Callable[[], str]) -> None:
    loopback.train(*NAMES)
    loopback.server.inject(Answer(429, headers={"Retry-After": header()}))
    assert_right(loopback, await outcome(loopback.resolver().cluster_spec(), within=10))
    first, second = loopback.requests
    # A date has whole seconds, so that this one is 0.9 to 1.9 seconds ahead.
    assert second.time - first.time > 0.85


async def test_nobody_but_the_api_server_is_ever_asked(loopback: Loopback, tmp_path: Path) -> None:
    elsewhere_folder = tmp_path / "elsewhere"
    elsewhere_folder.mkdir()
    with running(elsewhere_folder) as elsewhere:
        for location in (f"{elsewhere.server.url}/api/v1/pods", f"//127.0.0.1:{elsewhere.server.port}/"):
            loopback.server.inject(Redirect(location, 307))
            error = await outcome(loopback.resolver().cluster_spec(), within=10)
            assert type(error) is ProtocolError
            assert elsewhere.server.url in str(error)
        assert elsewhere.requests == []


async def test_a_token_that_the_server_echoes_is_not_shown(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    for code in (400, 401, 403, 404, 418, 429):
        said = f'bad header "Authorization: Bearer {TOKEN}"'
        loopback.server.inject(Answer(code, status(code, said), {"Retry-After": "999"}), times=None)
        error = await outcome(loopback.resolver().cluster_spec(), within=10)
        assert isinstance(error, ResolveError)
        assert_no_secret(error, caplog)
        loopback.server.clear_faults()


async def test_a_new_token_is_taken_up_after_a_401(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    async with loopback.resolver() as resolver:
        await resolver.cluster_spec()
        loopback.server.tokens = {"a-newer-token": "alice"}
        loopback.server.write_kubeconfig(loopback.kubeconfig, token="a-newer-token")
        assert_right(loopback, await outcome(resolver.cluster_spec(), within=10))


# Before a request


async def failed(loopback: Loopback, caplog: pytest.LogCaptureFixture, **arguments: Any) -> ResolveError:
    """Return the error that both paths end in, having looked for secrets in it."""
    resolver = loopback.resolver(**{"timeout": 10.0, **arguments})
    first = await outcome(resolver.cluster_spec(), within=min(resolver.timeout, 5.0) + SLACK)
    second = await outcome(resolver.cluster_state(), within=min(resolver.timeout, 5.0) + SLACK)
    assert isinstance(first, ResolveError)
    assert type(first) is type(second)
    assert_no_secret(first, caplog, "proxy-password")
    return first


async def test_a_server_that_refuses_is_named_with_what_to_look_at(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    with loopback.server.down():
        error = await failed(loopback, caplog)
    assert type(error) is ConnectionFailedError
    assert error.retryable
    assert f"{loopback.server.url} (from kubeconfig {loopback.kubeconfig}" in str(error)
    assert "was not reached" in str(error)
    assert "see that the address is right, that the server runs" in str(error)
    assert error.host == loopback.server.url
    assert error.scope == "GET /api/v1/pods"


async def test_a_server_that_comes_back_is_asked_again(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    async with loopback.resolver() as resolver:
        await resolver.cluster_spec()
        await asyncio.to_thread(loopback.server.restart)
        assert_right(loopback, await outcome(resolver.cluster_spec(), within=10))
        with loopback.server.down():
            assert isinstance(await outcome(resolver.cluster_spec(), within=10), ConnectionFailedError)
        assert_right(loopback, await outcome(resolver.cluster_spec(), within=10))


async def test_http_at_a_port_of_https_is_told(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    loopback.edit_kubeconfig(server=loopback.server.url.replace("https:", "http:"))
    error = await failed(loopback, caplog)
    assert type(error) is ConnectionFailedError
    assert f"http://127.0.0.1:{loopback.server.port}" in str(error)
    assert loopback.requests == []


async def test_the_400_of_a_real_server_to_http_at_its_port_of_https_is_no_matter_of_the_selector(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    words = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    with peer(answering(words)) as port:
        loopback.edit_kubeconfig(server=f"http://127.0.0.1:{port}")
        error = await failed(loopback, caplog)
    assert "selector 'app=train'" in str(error)
    assert "Correct the selector" not in str(error)
    assert "https" in str(error)


async def test_https_at_a_port_of_http_is_told(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    with running(folder, tls=False) as plain:
        loopback.edit_kubeconfig(server=plain.server.url.replace("http:", "https:"))
        error = await failed(loopback, caplog)
    assert type(error) is TLSError
    assert not error.retryable
    assert f"https://127.0.0.1:{plain.server.port}" in str(error)
    assert "see that the port speaks https" in str(error)


async def test_a_certificate_of_another_authority_is_not_accepted(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    with running(folder) as other:
        document = json.loads(other.kubeconfig.read_text())["clusters"][0]["cluster"]
        data = document["certificate-authority-data"]
        loopback.edit_kubeconfig(certificate_authority_data=data)
        error = await failed(loopback, caplog)
    assert type(error) is TLSError
    assert f"the certificate of {loopback.server.url}" in str(error)
    assert "self-signed certificate in certificate chain" in str(error)
    assert "correct certificate-authority or tls-server-name" in str(error)
    assert loopback.requests == []


async def test_a_certificate_for_another_name_is_not_accepted(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.edit_kubeconfig(tls_server_name="elsewhere.example")
    error = await failed(loopback, caplog)
    assert type(error) is TLSError
    assert "elsewhere.example" in str(error)
    assert "correct certificate-authority or tls-server-name" in str(error)


async def test_a_certificate_that_has_expired_is_not_accepted(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    past = datetime.now(UTC) - timedelta(days=2)
    certificate = authority.issue_cert("127.0.0.1", not_before=past, not_after=past + timedelta(days=1))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    with peer(silent, context) as port:
        rewrite_authority(loopback, authority.cert_pem.bytes(), port)
        error = await failed(loopback, caplog)
    assert type(error) is TLSError
    assert "certificate has expired" in str(error)


@pytest.mark.parametrize(
    ("answer", "error_type", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ProtocolError, "see that the port is the API server's"),
        (b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n", ProtocolError, "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", ProtocolError, "is no HTTP"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ResolveError, ""),
        (b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n", ResolveError, "999"),
        (b"", ConnectionFailedError, "the server hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", ConnectionFailedError, "the server hung up"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", ConnectionFailedError, "the answer was not whole"),
        (None, ProtocolError, "is no HTTP"),
    ],
)
async def test_an_answer_that_is_no_http_is_one_error_that_shows_no_token(
    loopback: Loopback,
    caplog: pytest.LogCaptureFixture,
    answer: bytes | None,
    error_type: type[ResolveError],
    words: str,
) -> None:
    seen: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        seen.append(head(connection))
        # None is a port that echoes: what it sends back has the token in it.
        connection.sendall(seen[-1] if answer is None else answer)

    with trusted_peer(loopback, handle) as port:
        error = await failed(loopback, caplog)
    assert TOKEN.encode() in seen[0]
    assert isinstance(error, error_type)
    assert f"https://127.0.0.1:{port}" in str(error)
    assert words in str(error)


@pytest.mark.parametrize("handle", [silent, deaf])
async def test_a_server_that_goes_deaf_after_the_handshake_is_given_up_with_its_socket(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, handle: Callable[[socket.socket], None]
) -> None:
    with trusted_peer(loopback, handle):
        error = await failed(loopback, caplog, timeout=0.15)
        assert type(error) is DeadlineExceededError
        # Goodbye is said over TLS, and not waited for: the socket is closed when the call ends.
        assert client_sockets(loopback) == 0


async def test_a_server_that_accepts_and_never_shakes_hands_is_given_up_at_the_deadline(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loopback.edit_kubeconfig(server=f"https://127.0.0.1:{listener.getsockname()[1]}")
        error = await failed(loopback, caplog, timeout=0.15)
        assert type(error) is DeadlineExceededError
        assert client_sockets(loopback) == 0


async def test_a_server_that_is_slow_to_connect_is_an_error_before_the_deadline(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.client.CONNECT_TIMEOUT", 0.02)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        loopback.edit_kubeconfig(server=f"https://127.0.0.1:{listener.getsockname()[1]}")
        error = await failed(loopback, caplog, timeout=30)
    assert type(error) is ConnectionFailedError
    assert "was not reached" in str(error)


@pytest.mark.parametrize(
    ("number", "retryable"), [(socket.EAI_NONAME, False), (socket.EAI_AGAIN, True)], ids=["no name", "no DNS"]
)
async def test_a_name_that_is_not_found_is_told(
    loopback: Loopback,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    retryable: bool,
) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(number, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    loopback.edit_kubeconfig(server="https://no-such-cluster.example:6443")
    error = await failed(loopback, caplog)
    assert type(error) is ConnectionFailedError
    assert error.retryable is retryable
    assert "the name of https://no-such-cluster.example:6443" in str(error)
    assert "was not found: Name or service not known; correct the server in the kubeconfig" in str(error)


# Through a proxy

PROXY_USER = "http://someone:proxy-password@127.0.0.1"


async def test_a_proxy_is_gone_through_and_sees_no_token(loopback: Loopback) -> None:
    loopback.train(*NAMES)
    seen: list[bytes] = []
    with peer(relaying(seen)) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        resolver = loopback.resolver()
        assert_right(loopback, await outcome(resolver.cluster_spec(), within=10))
        state = await outcome(resolver.cluster_state(), within=10)
        assert_right(loopback, state.spec)
    assert seen
    for request in seen:
        assert request.startswith(f"CONNECT 127.0.0.1:{loopback.server.port} ".encode())
        assert TOKEN.encode() not in request
        assert b"Proxy-Authorization: Basic " in request


@pytest.mark.parametrize(
    ("answer", "words", "retryable"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407", False),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403", False),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "502", True),
        (b"HTTP/1.1 200 OK\r\n\r\n", "127.0.0.1", True),
        (b"", "broke", True),
        (b"nonsense\r\n\r\n", "", False),
    ],
)
async def test_a_proxy_that_does_not_let_us_through_is_named(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, answer: bytes, words: str, retryable: bool
) -> None:
    with peer(answering(answer)) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        error = await failed(loopback, caplog)
    assert f"{loopback.server.url} through the proxy http://127.0.0.1:{port}" in str(error)
    assert words in str(error)
    assert error.retryable is retryable


async def test_a_proxy_that_refuses_is_named(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(peer(silent))
        stack.close()
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        error = await failed(loopback, caplog)
    assert type(error) is ConnectionFailedError
    assert f"through the proxy http://127.0.0.1:{port}" in str(error)


async def test_a_proxy_that_never_answers_is_given_up_at_the_deadline(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    with peer(silent) as port:
        loopback.edit_kubeconfig(proxy_url=f"{PROXY_USER}:{port}")
        error = await failed(loopback, caplog, timeout=0.15)
    assert type(error) is DeadlineExceededError
