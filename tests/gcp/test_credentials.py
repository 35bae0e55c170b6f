"""Who we are to Google: credentials handed in, kept while good, and shown to nobody."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import google.auth.aio.credentials
import google.auth.credentials
import google.auth.exceptions
import google.oauth2.service_account
import pytest

from aioresolve._core.retry import RetryPolicy, within_deadline
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    CredentialsError,
    DeadlineExceededError,
    UnauthorizedError,
)
from aioresolve.gcp.credentials import GoogleCredentials
from aioresolve.testing import Answer, Hang, Reset

from .loopback import ROBOT, TOKEN, all_text, asked, my_tpu, refusal, secure, services, session, to, within
from .samples import Awaiting, Blocking, refreshable, user

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leak")


async def test_a_token_that_is_good_is_used_as_it_is() -> None:
    async with secure() as server:
        assert (await asked(server, user(seconds=3600))).state == "READY"
        assert (await asked(server, user())).state == "READY"
        assert services(server) == ["tpu", "tpu"]


async def test_a_service_account_handed_in_gets_the_scopes_it_lacks(tmp_path: Path) -> None:
    async with secure() as server:
        file = server.write_service_account_key(tmp_path / "key.json")
        given = google.oauth2.service_account.Credentials.from_service_account_file(str(file))
        # The loopback token server refuses an assertion without a scope.
        assert (await asked(server, given)).state == "READY"


async def test_anonymous_credentials_send_nothing() -> None:
    async with secure() as server:
        for nobody in (
            google.auth.credentials.AnonymousCredentials(),
            google.auth.aio.credentials.AnonymousCredentials(),
        ):
            error = await refusal(asked(server, nobody))
            assert isinstance(error, UnauthorizedError)
            assert error.reason == "CREDENTIALS_MISSING"
        assert [request.scheme for request in server.requests] == ["", ""]


async def test_asyncio_credentials_are_awaited() -> None:
    async with secure() as server:
        given = google.auth.aio.credentials.StaticCredentials(TOKEN)
        assert (await asked(server, given, quota_project="paying")).state == "READY"
        assert server.requests[0].quota_project == "paying"


async def test_asyncio_credentials_refresh_themselves_through_our_client() -> None:
    async with secure() as server:
        given = Awaiting(server)
        async with session(server, given) as opened:
            assert (await my_tpu(opened)).state == "READY"
            server.revoke_tokens()
            assert (await my_tpu(opened)).state == "READY"
        assert given.refreshes == 2
        assert services(server) == ["sts", "tpu", "tpu", "sts", "tpu"]


async def test_asyncio_credentials_that_know_their_end_are_kept_until_then() -> None:
    async with secure() as server:
        given = Awaiting(server)
        given.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)
        async with session(server, given) as opened:
            await my_tpu(opened)
            given.token = "never looked at"
            assert (await my_tpu(opened)).state == "READY"


async def test_asyncio_credentials_that_cannot_refresh_are_told() -> None:
    given: Any = google.auth.aio.credentials.Credentials()
    given.token = "MARKER"
    async with secure() as server:
        error = await refusal(asked(server, given))
    assert isinstance(error, UnauthorizedError)
    assert "they do not implement refresh()" in str(error.__cause__)
    assert "MARKER" not in all_text(error)


async def test_asyncio_credentials_that_are_refused_are_told_without_their_secret() -> None:
    async with secure() as server:
        given = Awaiting(server)
        given._subject = "MARKER-of-a-secret"
        server.inject(Answer(400, b"bad: MARKER-of-a-secret"), match=to("sts"))
        error = await refusal(asked(server, given))
    assert isinstance(error, CredentialsError)
    assert "bad: (secret)" in str(error)
    assert "MARKER" not in all_text(error)


def test_credentials_of_another_library_are_refused() -> None:
    for given in ("somebody", object(), 5, TOKEN):
        with pytest.raises(
            ConfigurationError, match="give 'default', or credentials of google-auth"
        ) as caught:
            GoogleCredentials(given)  # type: ignore[arg-type]
        assert TOKEN not in str(caught.value)


async def test_a_slow_refresh_does_not_hold_up_the_loop() -> None:
    async with secure() as server:
        given = Blocking()
        ticks = 0
        async with session(server, given) as opened, anyio.create_task_group() as group:
            group.start_soon(my_tpu, opened)
            await given.began.wait()
            for _ in range(20):
                await asyncio.sleep(0.001)
                ticks += 1
            assert services(server) == []
            given.let_go.set()
        assert ticks == 20
        assert services(server) == ["tpu"]


async def test_the_deadline_holds_though_a_thread_does_not_end() -> None:
    async with secure() as server:
        given = Blocking()
        async with session(server, given) as opened:
            with within(1.0):
                error = await refusal(
                    within_deadline(0.1, "my-tpu", lambda progress: my_tpu(opened, progress))
                )
        assert isinstance(error, DeadlineExceededError)
        assert "no access token yet, from credentials=" in str(error)
        given.let_go.set()
        assert given.ended.wait(5.0)


async def test_a_cancelled_refresh_ends_its_thread_and_the_next_asks_anew() -> None:
    async with secure() as server:
        server.inject(Hang(), match=to("oauth2"))
        given = refreshable(server)
        ended = threading.Event()
        refresh = given.refresh

        def watched(request: Any) -> None:
            try:
                refresh(request)
            finally:
                ended.set()

        given.refresh = watched
        async with session(server, given) as opened:
            first = asyncio.create_task(my_tpu(opened))
            await server.until(lambda: services(server) == ["oauth2"])
            second = asyncio.create_task(my_tpu(opened))
            await asyncio.sleep(0.01)
            first.cancel()
            assert (await second).state == "READY"
            assert await asyncio.to_thread(ended.wait, 5.0)
            assert first.cancelled()
        assert services(server) == ["oauth2", "oauth2", "tpu"]


async def test_credentials_that_give_no_token_are_told() -> None:
    class Empty(Blocking):
        def refresh(self, request: Any) -> None:
            self.token = ""

    async with secure() as server:
        error = await refusal(asked(server, Empty()))
    assert isinstance(error, CredentialsError)
    assert "credentials= gave no access token" in str(error)


async def test_a_thread_that_was_left_alone_asks_nothing_more() -> None:
    class Late(Blocking):
        def refresh(self, request: Any) -> None:
            self._loop.call_soon_threadsafe(self.began.set)
            self.let_go.wait(5.0)
            try:
                request(url=f"{server.url}/token", method="POST")
            except ConnectionFailedError as error:
                self.error = error
            self.ended.set()

    async with secure() as server:
        given = Late()
        async with session(server, given) as opened:
            task = asyncio.create_task(my_tpu(opened))
            await given.began.wait()
            task.cancel()
            await asyncio.wait([task])
            given.let_go.set()
            assert await asyncio.to_thread(given.ended.wait, 5.0)
        assert "is not asked any more: the call was given up" in str(given.error)
        assert server.requests == ()


async def test_a_token_server_that_hangs_is_given_up_at_the_deadline() -> None:
    async with secure() as server:
        server.inject(Hang(), match=to("oauth2"))
        async with session(server, refreshable(server)) as opened:
            with within(1.0):
                error = await refusal(
                    within_deadline(0.1, "my-tpu", lambda progress: my_tpu(opened, progress))
                )
    assert isinstance(error, DeadlineExceededError)


@pytest.mark.parametrize("fault", [Answer(503), Answer(429), Answer(500), Reset()])
async def test_a_token_server_that_stumbles_is_asked_again(fault: Answer | Reset) -> None:
    async with secure() as server:
        server.inject(fault, match=to("oauth2"))
        with within(0.9):  # google-auth itself would sleep a second
            assert (await asked(server, refreshable(server))).state == "READY"
        assert services(server) == ["oauth2", "oauth2", "tpu"]


async def test_a_token_server_s_retry_after_is_obeyed() -> None:
    async with secure() as server:
        server.inject(Answer(429, headers={"Retry-After": "3600"}), match=to("oauth2"))
        async with session(server, refreshable(server)) as opened:
            error = await refusal(within_deadline(5.0, "my-tpu", lambda progress: my_tpu(opened, progress)))
    assert isinstance(error, APIError)
    assert error.retry_after == 3600.0


async def test_a_token_server_that_echoes_secrets_echoes_them_to_nobody() -> None:
    async with secure() as server:
        given = refreshable(server)
        secret = given.refresh_token
        body = json.dumps({"error": "invalid_grant", "error_description": f"bad token {secret}"}).encode()
        server.inject(Answer(400, body), match=to("oauth2"))
        error = await refusal(asked(server, given))
    assert "bad token (secret)" in str(error)
    assert secret not in all_text(error)


async def test_a_token_in_an_answer_that_is_malformed_is_shown_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secure() as server:
        file = server.write_external_account(tmp_path / "pool.json", impersonate=ROBOT)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
        body = b'{"accessToken": "ya29.MARKER", "expireTime": "never"}'
        server.inject(Answer(200, body), match=to("iamcredentials"))
        error = await refusal(asked(server))
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
async def test_every_exception_of_google_auth_is_one_of_ours(
    raised: Exception, kind: type[Exception], retryable: bool
) -> None:
    async with secure() as server:
        given = Blocking()
        given.let_go.set()
        given.error = raised
        error = await refusal(asked(server, given, policy=RetryPolicy(attempts=1)))
    assert type(error) is kind
    assert error.retryable is retryable
    assert error.__cause__ is not None
    assert "MARKER" not in all_text(error)


async def test_a_client_certificate_is_shown_where_the_credentials_ask_for_it(
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

        class Showing(Blocking):
            def refresh(self, request: Any) -> None:
                certificate = (str(tmp_path / "chain"), str(tmp_path / "key"))
                request(url=f"{server.url}/token", method="POST", body="grant_type=x", cert=certificate)
                self.token = TOKEN

        assert (await asked(server, Showing())).state == "READY"
        assert [request.certificate for request in server.requests] == ["workload", ""]


async def test_no_repr_shows_a_token() -> None:
    async with secure() as server:
        credentials = GoogleCredentials(user())
        async with session(server, credentials) as opened:
            await my_tpu(opened)
            for thing in (credentials, opened, credentials._grant, credentials.asker, server):
                assert TOKEN not in repr(thing)
