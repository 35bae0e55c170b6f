"""Credentials passed by the user: refreshed when necessary, kept while valid, never shown."""

import asyncio
import concurrent.futures
import threading
import time
from pathlib import Path
from typing import Any

import google.auth.aio.credentials
import google.auth.credentials
import google.auth.exceptions
import google.oauth2.service_account
import pytest
from google.auth.exceptions import RefreshError, TransportError

from aioresolve.errors import ConfigurationError, CredentialsError, DeadlineExceededError, UnauthorizedError
from aioresolve.testing import Answer, GoogleServer, Hang, Reset

from .loopback import (
    TOKEN,
    BlockingCredentials,
    error_from,
    new_resolver,
    refreshable_credentials,
    request_my_tpu,
    sent_to,
    services,
    tls_server,
)

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.mark.parametrize("expires_in", [3600, None])
async def test_a_valid_token_is_used_without_a_refresh(expires_in: float | None) -> None:
    async with tls_server() as server:
        given = refreshable_credentials(server, TOKEN, expires_in=expires_in)
        assert (await request_my_tpu(given)).state == "READY"
        assert services(server) == ["tpu"]


async def test_a_service_account_gets_the_missing_scopes(tmp_path: Path) -> None:
    async with tls_server() as server:
        file = server.write_service_account_key(tmp_path / "key.json")
        given = google.oauth2.service_account.Credentials.from_service_account_file(str(file))
        # The loopback token server rejects an assertion without a scope.
        assert (await request_my_tpu(given)).state == "READY"


async def test_anonymous_credentials_send_nothing() -> None:
    async with tls_server() as server:
        anonymous = google.auth.credentials.AnonymousCredentials()
        error = await error_from(request_my_tpu(anonymous))
        assert isinstance(error, UnauthorizedError)
        assert error.reason == "CREDENTIALS_MISSING"
        assert [request.scheme for request in server.requests] == [""]


def test_credentials_of_another_library_are_rejected() -> None:
    for given in ("unknown", object(), 5, TOKEN):
        with pytest.raises(ConfigurationError, match="Pass 'default', or an instance of google") as caught:
            new_resolver(given)
        assert TOKEN not in str(caught.value)


async def test_the_deadline_applies_even_if_a_thread_does_not_end() -> None:
    async with tls_server():
        given = BlockingCredentials()
        error = await error_from(request_my_tpu(given, timeout=0.1))
        assert isinstance(error, DeadlineExceededError)
        assert "no access token yet, from credentials=" in str(error)
        given.released.set()
        assert given.finished.wait(60)


async def test_a_cancelled_refresh_ends_its_thread_and_the_next_call_starts_another() -> None:
    async with tls_server() as server:
        server.inject(Hang(), match=sent_to("oauth2"))
        given = refreshable_credentials(server)
        ended = threading.Semaphore(0)
        refresh = given.refresh

        def recorded(request: Any) -> None:
            try:
                refresh(request)
            except concurrent.futures.CancelledError:  # credentials may send another request
                refresh(request)
            finally:
                ended.release()

        given.refresh = recorded
        async with new_resolver(given) as opened:
            first = asyncio.create_task(opened.nodes())
            await server.until(lambda: services(server) == ["oauth2"])
            second = asyncio.create_task(opened.nodes())
            await asyncio.sleep(0.01)
            first.cancel()
            assert await second
            for _ in range(2):
                assert await asyncio.to_thread(ended.acquire, timeout=60)
            assert first.cancelled()
        assert services(server) == ["oauth2", "oauth2", "tpu"]


async def test_credentials_without_a_token_are_an_error() -> None:
    class Empty(BlockingCredentials):
        def refresh(self, request: Any) -> None:
            self.token = ""

    async with tls_server():
        error = await error_from(request_my_tpu(Empty()))
    assert isinstance(error, CredentialsError)
    assert "credentials= returned no access token" in str(error)


@pytest.mark.parametrize("fault", [Answer(503), Reset()])
async def test_a_temporary_failure_of_the_token_server_is_retried(
    fault: Answer | Reset, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeps: list[float] = []
    async with tls_server() as server:
        server.inject(fault, match=sent_to("oauth2"))
        with monkeypatch.context() as patch:
            patch.setattr(time, "sleep", sleeps.append)
            assert (await request_my_tpu(refreshable_credentials(server))).state == "READY"
        assert services(server) == ["oauth2", "oauth2", "tpu"]
    assert sleeps == []  # google-auth's own retries would sleep


async def test_secrets_are_not_sent_to_a_token_server_elsewhere_without_tls() -> None:
    async with tls_server() as server:
        given = refreshable_credentials(server)
        given._token_uri = "http://oauth2.example/token"
        error = await error_from(request_my_tpu(given))
        async with GoogleServer() as local:  # on this machine
            given._token_uri = f"{local.url}/token"
            assert isinstance(await error_from(request_my_tpu(given)), UnauthorizedError)
            assert services(local) == ["oauth2", "oauth2"]
    assert isinstance(error, CredentialsError)
    assert "credentials= names the token server http://oauth2.example, to which secrets" in str(error)
    assert not error.retryable


async def test_a_failing_refresh_is_an_error_that_says_why_and_hides_the_response() -> None:
    for raised, text in (
        (RefreshError("gone. \nMARKER", {"id_token": "MARKER"}), "gone"),
        (RefreshError("~" * 501), "~" * 500),
        (KeyError("expires_in"), "KeyError: 'expires_in'"),
    ):
        async with tls_server():
            given = BlockingCredentials()
            given.released.set()
            given.error = raised
            error = await error_from(request_my_tpu(given))
            assert isinstance(error, CredentialsError)
            assert error.summary == f"credentials= got no access token: {text}"
            assert (error.retryable, error.__cause__) == (False, raised)
            given.error = TransportError("no route")
            error = await error_from(request_my_tpu(given, timeout=0.3))
            assert "the token server of credentials= was not reached: no route" in str(error)
            assert error.retryable
