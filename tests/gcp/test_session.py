"""One authorized session: the hosts of its requests, their content, and the error for each failure."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve._core.deadline import Progress, within_deadline
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    DeadlineExceededError,
    ForbiddenError,
    ProtocolError,
    TLSError,
    UnauthorizedError,
)
from aioresolve.gcp.client import GoogleSession
from aioresolve.testing import Answer, Cut, Delay, GoogleServer, Hang, Redirect, Reset, tpu_node

from .loopback import (
    MY_TPU,
    TOKEN,
    all_text,
    error_from,
    get_my_tpu,
    request_my_tpu,
    secure,
    session,
    within,
)
from .samples import user

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("no_leak")


async def test_a_token_of_another_cloud_is_not_sent_to_google(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "example-cloud.test"
    monkeypatch.delenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", raising=False)
    async with GoogleServer() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        server.metadata["universe/universe-domain"] = other
        for credentials in (user(universe_domain=other), "default"):
            async with GoogleSession(credentials) as opened:
                error = await error_from(get_my_tpu(opened))
            assert isinstance(error, ConfigurationError)
            assert f"are of the cloud {other}" in str(error)
            assert f"CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU=https://tpu.{other}" in str(error)


SCOPE = f"TPU node {MY_TPU.path}"


# Hosts and content


async def test_a_bearer_token_goes_to_the_api_over_tls_only() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        # There are no default credentials here: a search for them would be an error.
        assert (await request_my_tpu(server)).state == "READY"
        assert (await request_my_tpu(server, user())).state == "READY"
        assert [request.scheme for request in server.requests] == ["", ""]
    async with secure() as server:
        # The endpoint is given, so that a token of another cloud may be meant for it.
        for credentials in (user(), user(universe_domain="example-cloud.test")):
            assert (await request_my_tpu(server, credentials)).state == "READY"
        assert {(one.scheme, one.user) for one in server.requests} == {("Bearer", "user:alice@example.com")}
        assert server.requests[0].user_agent.startswith("aioresolve/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://10.0.0.1:8080", "to which requests would be sent unencrypted"),
        ("ftp://tpu.example", "is not a URL. Write it as https://HOST"),
        ("https://", "is not a URL"),
        ("", "is not a URL"),
        ("https://user:MARKER@tpu.example", "has a user, a query or a fragment"),
        ("https://tpu.example?key=MARKER", "has a user, a query or a fragment"),
    ],
)
def test_an_invalid_endpoint_is_rejected(url: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"^endpoints\['tpu'\]") as caught:
        GoogleSession(endpoints={"tpu": url})
    assert message in str(caught.value)
    assert "MARKER" not in all_text(caught.value)
    if url:
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", url)
        with pytest.raises(ConfigurationError, match="variable CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"):
            GoogleSession()


def test_the_endpoint_comes_from_the_argument_then_gcloud_then_google(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert GoogleSession().host("tpu") == "https://tpu.googleapis.com"
    assert GoogleSession().host("compute") == "https://compute.googleapis.com"
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://private.example/")
    assert GoogleSession().host("tpu") == "https://private.example"
    assert GoogleSession(endpoints={"tpu": "https://given.example"}).host("tpu") == "https://given.example"


async def test_no_redirect_is_followed() -> None:
    async with secure() as server, GoogleServer() as elsewhere:
        server.inject(Redirect(f"{elsewhere.url}/v2/{MY_TPU.path}?secret"))
        error = await error_from(request_my_tpu(server, user()))
        assert isinstance(error, ProtocolError)
        assert f"redirects {SCOPE} to {elsewhere.url}; redirects are not followed" in str(error)
        assert elsewhere.requests == ()


async def test_an_unknown_certificate_authority_is_a_tls_error() -> None:
    with GoogleServer(tls=True).in_thread() as server:
        async with GoogleSession(user(), endpoints=server.endpoints) as opened:
            error = await error_from(get_my_tpu(opened))
        assert isinstance(error, TLSError)
        assert not error.retryable
        assert "`ssl_context=` or SSL_CERT_FILE" in str(error)
        assert server.requests == ()


# Failures


@pytest.mark.parametrize(
    "fault",
    [Answer(503), Reset(), Cut(after=5)],
    ids=str,
)
async def test_a_temporary_failure_is_retried(fault: Answer | Reset | Cut) -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        server.inject(fault, times=2)
        progress = Progress()
        async with session(server) as opened:
            assert (await get_my_tpu(opened, progress)).state == "READY"
        assert progress.reached == {SCOPE: "received"}
        assert progress.missing == {}


async def test_a_lasting_failure_is_an_error_as_soon_as_the_wait_exceeds_the_deadline() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        server.inject(Answer(503), times=20)
        server.inject(Answer(503, headers={"Retry-After": "60"}), times=None)
        error = await error_from(request_my_tpu(server))
        assert isinstance(error, APIError)
        assert (error.status, error.retryable, error.retry_after) == (503, True, 60.0)
        assert len(server.requests) == 21


def a_missing_permission(server: GoogleServer) -> None:
    server.denied.add("tpu.nodes.get")


def a_disabled_api(server: GoogleServer) -> None:
    server.disabled_services.add("tpu.googleapis.com")


def an_expired_token(server: GoogleServer) -> None:
    server.tokens = {}


@pytest.mark.parametrize(
    ("prepare", "kind", "reason", "message"),
    [
        (a_missing_permission, ForbiddenError, "IAM_PERMISSION_DENIED", "--role=roles/tpu.viewer"),
        (a_disabled_api, ForbiddenError, "SERVICE_DISABLED", "services enable tpu.googleapis.com"),
        (an_expired_token, UnauthorizedError, "ACCESS_TOKEN_EXPIRED", "credentials="),
    ],
)
async def test_each_denied_request_has_a_hint_and_is_not_retried(
    prepare: Callable[[GoogleServer], None], kind: type[APIError], reason: str, message: str
) -> None:
    async with secure() as server:
        prepare(server)
        error = await error_from(request_my_tpu(server, user()))
        assert type(error) is kind
        assert isinstance(error, APIError)
        assert (error.reason, error.scope, error.host) == (reason, SCOPE, server.url)
        assert message in str(error)
        assert len(server.requests) == 1
        assert TOKEN not in all_text(error)


@pytest.mark.parametrize("body", [b"<html>log in</html>", b'{"state": "READY"}'])
async def test_a_response_that_is_not_a_node_is_a_protocol_error(body: bytes) -> None:
    async with GoogleServer() as server:
        server.inject(Answer(200, body))
        error = await error_from(request_my_tpu(server))
        assert isinstance(error, ProtocolError)
        assert (
            f"{server.url} returned an invalid response for {SCOPE}, different from the Cloud TPU API v2"
            in str(error)
        )


async def test_a_deadline_error_names_the_missing_response() -> None:
    async with secure() as server:
        server.inject(Hang())
        async with session(server, user()) as opened:
            with within(20):
                error = await error_from(
                    within_deadline(0.1, SCOPE, lambda progress: get_my_tpu(opened, progress))
                )
        assert isinstance(error, DeadlineExceededError)
        assert error.missing == {SCOPE: f"{server.url} has not responded"}


async def test_cancellation_leaves_nothing_behind() -> None:
    with GoogleServer([tpu_node("my-tpu")], tls=True, tokens={TOKEN: "user:a"}).in_thread() as server:
        server.inject(Hang())
        async with session(server, user()) as opened:
            tasks = asyncio.all_tasks()
            task = asyncio.create_task(get_my_tpu(opened))
            await asyncio.to_thread(server.until, lambda: len(server.requests) == 1)
            task.cancel()
            await asyncio.wait([task])
            assert asyncio.all_tasks() == tasks
            assert (await get_my_tpu(opened)).state == "READY"


async def test_the_number_of_concurrent_requests_is_limited() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        server.inject(Delay(0.02), times=None)
        async with session(server, max_concurrency=2) as opened, anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(get_my_tpu, opened)
        times = [request.time for request in server.requests]
        assert len(times) == 4
        # The third was not sent before one of the first two was complete.
        assert times[2] >= times[0] + 0.02


async def test_a_session_is_usable_only_inside_its_async_with() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        unopened = session(server)
        with pytest.raises(ConfigurationError, match="Use it inside its `async with`"):
            await get_my_tpu(unopened)
        for _ in range(2):
            async with unopened as opened:
                for _ in range(3):
                    assert (await get_my_tpu(opened)).state == "READY"
                assert server.connections == 1
                with pytest.raises(ConfigurationError, match="already entered"):
                    await opened.__aenter__()
        await unopened.aclose()


async def test_the_log_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secure() as server:
        await request_my_tpu(server, user())
        lines = [record.getMessage() for record in caplog.records if record.name == "aioresolve.gcp"]
        assert len(lines) == 1
        assert lines[0].startswith(f"GET {server.url}/v2/{MY_TPU.path}: 200, ")
    assert TOKEN not in caplog.text
