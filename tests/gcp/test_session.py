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
    ConnectionFailedError,
    CredentialsError,
    DeadlineExceededError,
    ForbiddenError,
    ProtocolError,
    TLSError,
    UnauthorizedError,
)
from aioresolve.gcp.api_request import APIRequest
from aioresolve.gcp.client import GoogleSession
from aioresolve.testing import Answer, Cut, Delay, GoogleServer, Hang, Redirect, Reset, instance, tpu_node

from .loopback import (
    MY_TPU,
    NO_RETRIES,
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


async def test_a_token_of_another_cloud_is_sent_to_the_endpoint_of_that_cloud() -> None:
    async with secure() as server:
        assert (await request_my_tpu(server, user(universe_domain="example-cloud.test"))).state == "READY"


SCOPE = f"TPU node {MY_TPU.path}"


# Hosts and content


async def test_requests_over_plain_http_are_anonymous() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        # There are no default credentials here: a search for them would be an error.
        assert (await request_my_tpu(server)).state == "READY"
        assert (await request_my_tpu(server, user())).state == "READY"
        assert [request.scheme for request in server.requests] == ["", ""]


async def test_a_bearer_token_goes_to_the_api_over_tls() -> None:
    async with secure() as server:
        assert (await request_my_tpu(server, user())).state == "READY"
        [request] = server.requests
        assert (request.scheme, request.user) == ("Bearer", "user:alice@example.com")
        assert request.user_agent.startswith("aioresolve/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://tpu.example", "to which requests would be sent unencrypted"),
        ("http://10.0.0.1:8080", "to which requests would be sent unencrypted"),
        ("ftp://tpu.example", "is not a URL. Write it as https://HOST"),
        ("tpu.example", "is not a URL"),
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


def test_an_endpoint_of_an_unknown_api_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"'storage' is not an API\. Use tpu or compute"):
        GoogleSession(endpoints={"storage": "https://storage.example"})


def test_the_endpoint_comes_from_the_argument_then_gcloud_then_google(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert GoogleSession().host("tpu") == "https://tpu.googleapis.com"
    assert GoogleSession().host("compute") == "https://compute.googleapis.com"
    monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "https://private.example/")
    assert GoogleSession().host("tpu") == "https://private.example"
    assert GoogleSession(endpoints={"tpu": "https://given.example"}).host("tpu") == "https://given.example"


async def test_a_session_uses_the_environment_variables_of_a_loopback_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GoogleServer([instance("vm-0")]) as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        request = APIRequest(
            service="compute",
            path="/compute/v1/projects/demo-project/zones/us-central2-b/instances/vm-0",
            scope="instance vm-0",
        )
        async with GoogleSession() as opened:
            assert b'"name": "vm-0"' in (await opened.send(request, Progress())).body


async def test_an_endpoint_may_have_a_path() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        error = await error_from(request_my_tpu(server, endpoints={"tpu": f"{server.url}/gateway/"}))
        assert server.requests[0].path == f"/gateway/v2/{MY_TPU.path}"
    assert isinstance(error, ProtocolError)


async def test_a_post_request_has_its_body() -> None:
    async with GoogleServer([instance("vm-0")]) as server:
        server.instance_groups["workers"] = ["vm-0"]
        request = APIRequest(
            service="compute",
            path="/compute/v1/projects/demo-project/zones/us-central2-b/instanceGroups/workers/listInstances",
            scope="instances of workers",
            method="POST",
            body=b'{"instanceState": "RUNNING"}',
        )
        async with session(server) as opened:
            assert b"/instances/vm-0" in (await opened.send(request, Progress())).body


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


async def test_a_server_without_tls_is_a_tls_error() -> None:
    async with GoogleServer() as server:
        url = server.url.replace("http:", "https:")
        async with GoogleSession(user(), endpoints={"tpu": url}) as opened:
            error = await error_from(get_my_tpu(opened))
    assert isinstance(error, TLSError)


# Failures


@pytest.mark.parametrize(
    "fault",
    [Answer(429), Answer(500), Answer(502), Answer(503), Answer(504), Reset(), Reset(after=5), Cut(after=5)],
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


async def test_an_exhausted_quota_respects_retry_after() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        server.inject(Answer(429, headers={"Retry-After": "0"}))
        assert (await request_my_tpu(server)).state == "READY"
        server.inject(Answer(429, headers={"Retry-After": "3600"}))
        async with session(server) as opened:
            with within(20):
                error = await error_from(
                    within_deadline(5.0, SCOPE, lambda progress: get_my_tpu(opened, progress))
                )
        assert isinstance(error, APIError)
        assert (error.status, error.reason, error.retry_after) == (429, "RATE_LIMIT_EXCEEDED", 3600.0)
        assert "tpu.googleapis.com/read_requests is exhausted" in str(error)


def a_missing_permission(server: GoogleServer) -> None:
    server.denied.add("tpu.nodes.get")


def a_disabled_api(server: GoogleServer) -> None:
    server.disabled_services.add("tpu.googleapis.com")


def a_missing_node(server: GoogleServer) -> None:
    server.delete("my-tpu")


def an_expired_token(server: GoogleServer) -> None:
    server.tokens = {}


@pytest.mark.parametrize(
    ("prepare", "kind", "reason", "message"),
    [
        (a_missing_permission, ForbiddenError, "IAM_PERMISSION_DENIED", "--role=roles/tpu.viewer"),
        (a_disabled_api, ForbiddenError, "SERVICE_DISABLED", "services enable tpu.googleapis.com"),
        (a_missing_node, APIError, "RESOURCE_NOT_FOUND", "it does not exist in that project and zone"),
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


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>", b"[]", b'{"state": "READY"}'])
async def test_a_response_that_is_not_a_node_is_a_protocol_error(body: bytes) -> None:
    async with GoogleServer() as server:
        server.inject(Answer(200, body))
        error = await error_from(request_my_tpu(server))
        assert isinstance(error, ProtocolError)
        assert (
            f"{server.url} returned an invalid response for {SCOPE}, different from the Cloud TPU API v2"
            in str(error)
        )


async def test_a_failure_that_echoes_the_token_does_not_show_it() -> None:
    async with secure() as server:
        for status in (400, 403, 404, 418, 500):
            body = f'{{"error": {{"message": "no Bearer {TOKEN} or {TOKEN}"}}}}'.encode()
            server.inject(Answer(status, body))
            error = await error_from(request_my_tpu(server, user(), policy=NO_RETRIES))
            assert "no Bearer (secret) or (secret)" in str(error)
            assert TOKEN not in all_text(error)


async def test_an_unreachable_api_is_named_in_the_error() -> None:
    async with GoogleSession(endpoints={"tpu": "http://127.0.0.1:9"}, policy=NO_RETRIES) as opened:
        error = await error_from(get_my_tpu(opened))
    assert isinstance(error, ConnectionFailedError)
    assert error.retryable
    assert error.host == "http://127.0.0.1:9"
    assert "cannot connect to http://127.0.0.1:9: connection refused" in str(error)


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
                assert (await get_my_tpu(opened)).state == "READY"
                with pytest.raises(ConfigurationError, match="already entered"):
                    await opened.__aenter__()
        await unopened.aclose()


async def test_a_call_fails_if_its_session_is_closed() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        server.inject(Hang(), times=None)
        opened = session(server, policy=NO_RETRIES)
        async with opened:
            task = asyncio.create_task(get_my_tpu(opened))
            await server.until(lambda: len(server.requests) == 1)
        error = await error_from(task)
    assert isinstance(error, ConnectionFailedError)


async def test_connections_are_shared_by_the_calls_of_a_session() -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server, session(server) as opened:
        for _ in range(3):
            await get_my_tpu(opened)
        assert server.connections == 1


async def test_the_log_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with secure() as server:
        await request_my_tpu(server, user())
        lines = [record.getMessage() for record in caplog.records if record.name == "aioresolve.gcp"]
        assert len(lines) == 1
        assert lines[0].startswith(f"GET {server.url}/v2/{MY_TPU.path}: 200, ")
    assert TOKEN not in caplog.text


async def test_credentials_are_not_searched_before_the_first_request() -> None:
    async with secure() as server, session(server) as opened:
        assert server.requests == ()
        assert isinstance(await error_from(get_my_tpu(opened)), CredentialsError)
