"""Credentials passed by the user: refreshed when necessary, kept while valid, never shown."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import google.auth.aio.credentials
import google.auth.credentials
import google.auth.exceptions
import google.oauth2.service_account
import pytest
from google.auth.exceptions import RefreshError

from aioresolve._core.deadline import within_deadline
from aioresolve._core.http.client import HTTPClient
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    CredentialsError,
    DeadlineExceededError,
    UnauthorizedError,
)
from aioresolve.gcp.credentials import GoogleCredentials
from aioresolve.gcp.google_auth import HINTS, ThreadRequest, credentials_error, validate_token_host
from aioresolve.testing import Answer, Hang, Reset

from .loopback import (
    NO_RETRIES,
    ROBOT,
    TOKEN,
    all_text,
    error_from,
    get_my_tpu,
    request_my_tpu,
    secure,
    services,
    session,
    to,
    within,
)
from .samples import AsyncCredentials, BlockingCredentials, refreshable, user

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leak")


async def test_a_valid_token_is_used_without_a_refresh() -> None:
    async with secure() as server:
        assert (await request_my_tpu(server, user(seconds=3600))).state == "READY"
        assert (await request_my_tpu(server, user())).state == "READY"
        assert services(server) == ["tpu", "tpu"]


async def test_a_service_account_gets_the_missing_scopes(tmp_path: Path) -> None:
    async with secure() as server:
        file = server.write_service_account_key(tmp_path / "key.json")
        given = google.oauth2.service_account.Credentials.from_service_account_file(str(file))
        # The loopback token server rejects an assertion without a scope.
        assert (await request_my_tpu(server, given)).state == "READY"


async def test_anonymous_credentials_send_nothing() -> None:
    async with secure() as server:
        for anonymous in (
            google.auth.credentials.AnonymousCredentials(),
            google.auth.aio.credentials.AnonymousCredentials(),
        ):
            error = await error_from(request_my_tpu(server, anonymous, quota_project="paying"))
            assert isinstance(error, UnauthorizedError)
            assert error.reason == "CREDENTIALS_MISSING"
        assert [(request.scheme, request.quota_project) for request in server.requests] == [("", "")] * 2


async def test_asyncio_credentials_are_awaited() -> None:
    async with secure() as server:
        given = google.auth.aio.credentials.StaticCredentials(TOKEN)
        assert (await request_my_tpu(server, given, quota_project="paying")).state == "READY"
        assert server.requests[0].quota_project == "paying"


async def test_asyncio_credentials_refresh_themselves_through_our_client() -> None:
    async with secure() as server:
        given = AsyncCredentials(server)
        async with session(server, given) as opened:
            assert (await get_my_tpu(opened)).state == "READY"
            server.revoke_tokens()
            assert (await get_my_tpu(opened)).state == "READY"
        assert given.refreshes == 2
        assert services(server) == ["sts", "tpu", "tpu", "sts", "tpu"]
        assert server.requests[0].user_agent == "credentials/1"


async def test_asyncio_credentials_with_an_expiry_are_kept_until_then() -> None:
    async with secure() as server:
        given = AsyncCredentials(server)
        given.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)
        async with session(server, given) as opened:
            await get_my_tpu(opened)
            given.token = "not used"
            assert (await get_my_tpu(opened)).state == "READY"


async def test_asyncio_credentials_without_refresh_are_an_error() -> None:
    given: Any = google.auth.aio.credentials.Credentials()
    given.token = "MARKER"
    async with secure() as server:
        error = await error_from(request_my_tpu(server, given))
    assert isinstance(error, UnauthorizedError)
    assert "they do not implement refresh()" in str(error.__cause__)
    assert "MARKER" not in all_text(error)


async def test_rejected_asyncio_credentials_are_reported_without_their_secret() -> None:
    async with secure() as server:
        given = AsyncCredentials(server)
        given._subject = "MARKER-of-a-secret"
        server.inject(Answer(400, b"bad: MARKER-of-a-secret"), match=to("sts"))
        error = await error_from(request_my_tpu(server, given))
    assert isinstance(error, CredentialsError)
    assert "bad: (secret)" in str(error)
    assert "MARKER" not in all_text(error)


def test_credentials_of_another_library_are_rejected() -> None:
    for given in ("unknown", object(), 5, TOKEN):
        with pytest.raises(ConfigurationError, match="Pass 'default', or an instance of google") as caught:
            GoogleCredentials(given)  # type: ignore[arg-type]
        assert TOKEN not in str(caught.value)


async def test_a_slow_refresh_does_not_block_the_event_loop() -> None:
    async with secure() as server:
        given = BlockingCredentials()
        ticks = 0
        async with session(server, given) as opened, anyio.create_task_group() as group:
            group.start_soon(get_my_tpu, opened)
            await given.started.wait()
            for _ in range(20):
                await asyncio.sleep(0.001)
                ticks += 1
            assert services(server) == []
            given.released.set()
        assert ticks == 20
        assert services(server) == ["tpu"]


async def test_the_deadline_applies_even_if_a_thread_does_not_end() -> None:
    async with secure() as server:
        given = BlockingCredentials()
        async with session(server, given) as opened:
            with within(20):
                error = await error_from(
                    within_deadline(0.1, "my-tpu", lambda progress: get_my_tpu(opened, progress))
                )
        assert isinstance(error, DeadlineExceededError)
        assert "no access token yet, from credentials=" in str(error)
        given.released.set()
        assert given.finished.wait(60)


async def test_a_cancelled_refresh_ends_its_thread_and_the_next_call_starts_another() -> None:
    async with secure() as server:
        server.inject(Hang(), match=to("oauth2"))
        given = refreshable(server)
        ended = threading.Event()
        refresh = given.refresh

        def recorded(request: Any) -> None:
            try:
                refresh(request)
            finally:
                ended.set()

        given.refresh = recorded
        async with session(server, given) as opened:
            first = asyncio.create_task(get_my_tpu(opened))
            await server.until(lambda: services(server) == ["oauth2"])
            second = asyncio.create_task(get_my_tpu(opened))
            await asyncio.sleep(0.01)
            first.cancel()
            assert (await second).state == "READY"
            assert await asyncio.to_thread(ended.wait, 60)
            assert first.cancelled()
        assert services(server) == ["oauth2", "oauth2", "tpu"]


async def test_credentials_without_a_token_are_an_error() -> None:
    class Empty(BlockingCredentials):
        def refresh(self, request: Any) -> None:
            self.token = ""

    async with secure() as server:
        error = await error_from(request_my_tpu(server, Empty()))
    assert isinstance(error, CredentialsError)
    assert "credentials= returned no access token" in str(error)


async def test_an_abandoned_thread_sends_no_more_requests() -> None:
    class Late(BlockingCredentials):
        def refresh(self, request: Any) -> None:
            self._loop.call_soon_threadsafe(self.started.set)
            self.released.wait(60)
            try:
                request(url=f"{server.url}/token", method="POST")
            except ConnectionFailedError as error:
                self.error = error
            self.finished.set()

    async with secure() as server:
        given = Late()
        async with session(server, given) as opened:
            task = asyncio.create_task(get_my_tpu(opened))
            await given.started.wait()
            task.cancel()
            await asyncio.wait([task])
            given.released.set()
            assert await asyncio.to_thread(given.finished.wait, 60)
        assert "the call was cancelled" in str(given.error)
        assert server.requests == ()


class StoppingBody(str):
    """The body of a request that is stopped after its check in the thread, before it starts in the loop."""

    request: ThreadRequest
    __slots__ = ("request",)

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.request.stop()
        return super().encode(encoding, errors)


async def test_a_request_that_is_stopped_before_it_starts_is_not_sent() -> None:
    async with secure() as server, aclosing(HTTPClient(hints=HINTS)) as client:
        body = StoppingBody("grant_type=none")
        body.request = request = ThreadRequest(client)
        with pytest.raises(ConnectionFailedError, match="the call was cancelled"):
            await asyncio.to_thread(request, f"{server.url}/token", "POST", body)
        assert server.requests == ()


def test_a_stopped_request_does_not_use_the_event_loop_which_may_be_closed() -> None:
    async def stopped_request() -> ThreadRequest:
        async with aclosing(HTTPClient(hints=HINTS)) as client:
            request = ThreadRequest(client)
        request.stop()
        return request

    request = asyncio.run(stopped_request())
    with pytest.raises(ConnectionFailedError, match="the call was cancelled") as raised:
        request("https://oauth2.googleapis.com/token?MARKER")
    assert not raised.value.retryable
    assert "MARKER" not in str(raised.value)


async def test_a_token_server_that_hangs_is_given_up_at_the_deadline() -> None:
    async with secure() as server:
        server.inject(Hang(), match=to("oauth2"))
        async with session(server, refreshable(server)) as opened:
            with within(20):
                error = await error_from(
                    within_deadline(0.1, "my-tpu", lambda progress: get_my_tpu(opened, progress))
                )
    assert isinstance(error, DeadlineExceededError)


@pytest.mark.parametrize("fault", [Answer(503), Answer(429), Answer(500), Reset()])
async def test_a_temporary_failure_of_the_token_server_is_retried(
    fault: Answer | Reset, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []
    async with secure() as server:
        server.inject(fault, match=to("oauth2"))
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", sleeps.append)
            assert (await request_my_tpu(server, refreshable(server))).state == "READY"
        assert services(server) == ["oauth2", "oauth2", "tpu"]
    assert sleeps == []  # google-auth's own retries would sleep


async def test_retry_after_of_the_token_server_is_respected() -> None:
    async with secure() as server:
        server.inject(Answer(429, headers={"Retry-After": "3600"}), match=to("oauth2"))
        async with session(server, refreshable(server)) as opened:
            error = await error_from(
                within_deadline(5.0, "my-tpu", lambda progress: get_my_tpu(opened, progress))
            )
    assert isinstance(error, APIError)
    assert (error.status, error.retryable, error.retry_after) == (429, True, 3600.0)
    assert (error.host, error.scope) == (server.url, "POST /token")


async def test_secrets_that_a_token_server_echoes_are_not_shown() -> None:
    async with secure() as server:
        given = refreshable(server)
        secret = given.refresh_token
        body = json.dumps({"error": "invalid_grant", "error_description": f"bad token {secret}"}).encode()
        server.inject(Answer(400, body), match=to("oauth2"))
        error = await error_from(request_my_tpu(server, given))
    assert "bad token (secret)" in str(error)
    assert secret not in all_text(error)


async def test_a_token_in_a_malformed_response_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure() as server:
        file = server.write_external_account(tmp_path / "pool.json", impersonate=ROBOT)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        body = b'{"accessToken": "ya29.MARKER", "expireTime": "never"}'
        server.inject(Answer(200, body), match=to("iamcredentials"))
        error = await error_from(request_my_tpu(server))
    assert isinstance(error, CredentialsError)
    assert "MARKER" not in all_text(error)


@pytest.mark.parametrize(
    ("raised", "kind", "retryable"),
    [
        (google.auth.exceptions.RefreshError("no", {"token": "MARKER"}), CredentialsError, False),
        (google.auth.exceptions.RefreshError("no", retryable=True), CredentialsError, True),
        (google.auth.exceptions.TransportError("no"), ConnectionFailedError, True),
        (google.auth.exceptions.MutualTLSChannelError("no"), CredentialsError, False),
        (google.auth.exceptions.DefaultCredentialsError("no"), CredentialsError, False),
        (OSError("no"), CredentialsError, False),
        (KeyError("expires_in"), CredentialsError, False),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
async def test_every_exception_of_google_auth_is_translated(
    raised: Exception, kind: type[Exception], retryable: bool
) -> None:
    async with secure() as server:
        given = BlockingCredentials()
        given.released.set()
        given.error = raised
        error = await error_from(request_my_tpu(server, given, policy=NO_RETRIES))
    assert type(error) is kind
    assert error.retryable is retryable
    assert error.__cause__ is not None
    assert "MARKER" not in all_text(error)


LOGIN = "Log in again with `gcloud auth application-default login`; for a service account, check that it and"


@pytest.mark.parametrize(
    ("raised", "summary", "hint"),
    [
        (RefreshError("no. "), "key.json got no access token: no", LOGIN),
        (RefreshError("no\n{'token': 1}"), "key.json got no access token: no", LOGIN),
        (RefreshError(""), "key.json got no access token: RefreshError", LOGIN),
        (RefreshError("~" * 1000), f"key.json got no access token: {'~' * 500}", LOGIN),
        (
            google.auth.exceptions.TransportError("no route"),
            "the token server of key.json was not reached: no route",
            "Check that the network allows the connection.",
        ),
        (
            google.auth.exceptions.TimeoutError("late"),
            "the token server of key.json was not reached: late",
            "Check that the network allows the connection.",
        ),
        (
            google.auth.exceptions.MalformedError("no key"),
            "key.json cannot be used: no key",
            "Create the file again, or pass other `credentials=`.",
        ),
        (OSError("disk"), "key.json cannot be used: disk", "Create the file again, or pass other"),
        (
            KeyError("expires_in"),
            "key.json cannot be used: a field is missing or has the wrong type (KeyError: 'expires_in')",
            "Create the file again, or pass other `credentials=`.",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_the_error_of_google_auth_is_shortened_and_has_a_hint(
    raised: Exception, summary: str, hint: str
) -> None:
    error = credentials_error(raised, "key.json")
    assert error.summary == summary
    assert error.hint is not None
    assert error.hint.render().startswith(hint)
    if isinstance(error, CredentialsError):
        assert error.tried == (summary.replace(" got no access token", "").replace(" cannot be used", ""),)


@pytest.mark.parametrize(
    "text",
    [
        "Executable exited with non-zero return code 1. Error: MARKER\nMARKER",
        "Executable returned unsuccessful response: MARKER",
    ],
)
def test_the_output_of_an_executable_is_removed_from_errors(text: str) -> None:
    cause = RefreshError(text, {"token": "MARKER"})
    error = RefreshError("no")
    error.__cause__ = cause
    for raised in (cause, error):
        assert "MARKER" not in str(credentials_error(raised, "key.json"))
    assert "MARKER" not in all_text(error)
    assert str(cause).startswith("Executable ")


@pytest.mark.parametrize(
    ("url", "is_permitted"),
    [
        ("https://oauth2.example/token", True),
        ("http://127.0.0.1:8080/token", True),
        ("http://169.254.169.254/latest/api/token", True),
        ("http://oauth2.example/token", False),
        ("ftp://127.0.0.2.example/token", False),
    ],
)
def test_token_servers_require_tls_except_those_of_this_machine(url: str, is_permitted: bool) -> None:
    if is_permitted:
        assert url.startswith(validate_token_host(url))
    else:
        with pytest.raises(ConfigurationError, match="to which no secret may be sent without TLS"):
            validate_token_host(url)


async def test_a_client_certificate_is_used_if_the_credentials_require_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure() as server:
        authority = server._state.authority
        assert authority is not None
        chain, key = authority.client_certificate("workload")
        files = {"chain": chain, "key": key, "authority": server.ca_pem}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority"))

        class WithCertificate(BlockingCredentials):
            def refresh(self, request: Any) -> None:
                certificate = (str(tmp_path / "chain"), str(tmp_path / "key"))
                request(url=f"{server.url}/token", method="POST", body="grant_type=x", cert=certificate)
                self.token = TOKEN

        assert (await request_my_tpu(server, WithCertificate())).state == "READY"
        assert [request.certificate for request in server.requests] == ["workload", ""]


async def test_no_repr_contains_a_token() -> None:
    async with secure() as server:
        credentials = GoogleCredentials(user())
        async with session(server, credentials) as opened:
            await get_my_tpu(opened)
            for value in (credentials, opened, credentials._cache.token, credentials.principal, server):
                assert TOKEN not in repr(value)
