"""A token is fetched once for all callers, renewed before it expires, and renewed once after a 401."""

import time
from collections.abc import Iterator
from typing import Any

import anyio
import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError

from aioresolve import Fleet
from aioresolve.errors import APIError, CredentialsError, UnauthorizedError
from aioresolve.testing import Answer, Delay, Hang

from .loopback import (
    TOKEN,
    BlockingCredentials,
    all_text,
    error_from,
    new_resolver,
    refreshable_credentials,
    request_my_tpu,
    sent_to,
    services,
    tls_server,
    user_credentials,
)

pytestmark = pytest.mark.usefixtures("no_leak")


async def test_sessions_that_share_credentials_share_the_refresh() -> None:
    async with tls_server() as server:
        resolver = new_resolver(refreshable_credentials(server))
        server.inject(Delay(0.05), match=sent_to("oauth2"))
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(resolver.nodes)
        assert services(server).count("oauth2") == 1


async def test_targets_of_a_fleet_have_their_own_credentials() -> None:
    async with tls_server():
        targets = {"a": new_resolver(user_credentials()), "b": new_resolver(AnonymousCredentials())}
        async with Fleet(targets) as fleet:
            readings = await fleet.resolve()
    assert [reading.error is None for reading in readings.values()] == [True, False]


@pytest.mark.parametrize("fault", [Hang(), Answer(503)])
async def test_a_renewal_that_hangs_or_fails_leaves_the_valid_token_in_use(
    fault: Hang | Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.gcp.credentials.RENEWAL_TIMEOUT", 0.1)
    async with tls_server() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        server.inject(Delay(0.2), match=sent_to("metadata"), times=None)
        async with new_resolver() as opened:
            await opened.nodes()  # nothing limits the request for the first token
            server.clear_faults()
            number = services(server).count("metadata")
            monkeypatch.setattr("aioresolve.gcp.credentials.RENEW_BEFORE_EXPIRY", 1e9)
            server.inject(fault, match=sent_to("metadata"), times=None)
            with anyio.fail_after(60):
                # On a busy machine, an attempt may end before its request has arrived.
                while services(server).count("metadata") == number:
                    assert await opened.nodes()
            monkeypatch.setattr("aioresolve.gcp.credentials.EXPIRY_MARGIN", 1e9)
            server.clear_faults()
            server.inject(Hang(), match=sent_to("metadata"), times=None)
            error = await error_from(opened.nodes(timeout=0.3))
            assert "no access token yet, from the metadata server's default service account" in str(error)


@pytest.fixture
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another time zone than UTC, in which google-auth reports when a token expires."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC+8")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("local_time")
async def test_a_token_is_renewed_before_it_expires() -> None:
    async with tls_server() as server:
        async with new_resolver(refreshable_credentials(server, TOKEN, expires_in=220)) as opened:
            for _ in range(3):
                await opened.nodes()
        assert services(server) == ["oauth2", "tpu", "tpu", "tpu"]
        server.forget_requests()
        await request_my_tpu(refreshable_credentials(server, TOKEN, expires_in=285))
        assert services(server) == ["tpu"]


async def test_an_expiring_token_is_not_sent() -> None:
    async with tls_server() as server:
        server.inject(Answer(503, headers={"Retry-After": "3600"}), match=sent_to("oauth2"), times=None)
        expiring = refreshable_credentials(server, TOKEN, expires_in=5)
        error = await error_from(request_my_tpu(expiring))
        assert isinstance(error, APIError)
        assert (error.status, error.retryable) == (503, True)
        assert services(server) == ["oauth2"]


async def test_a_rejected_token_is_renewed_once() -> None:
    async with tls_server() as server:
        async with new_resolver(refreshable_credentials(server)) as opened:
            await opened.nodes()
            server.revoke_tokens()
            server.inject(Delay(0.2), match=sent_to("tpu"))
            async with anyio.create_task_group() as group:
                for _ in range(2):
                    group.start_soon(opened.nodes)
        assert services(server).count("oauth2") == 2


async def test_a_renewal_that_fails_for_a_while_is_retried() -> None:
    failures = [RefreshError("busy", retryable=True)]

    class Busy(BlockingCredentials):
        def refresh(self, request: Any) -> None:
            if failures:
                raise failures.pop()
            self.token = TOKEN

    async with tls_server():
        given = Busy()
        given.token = "revoked"
        assert (await request_my_tpu(given)).state == "READY"
    assert not failures


async def test_a_rejected_new_token_is_an_error() -> None:
    async with tls_server() as server:
        server.inject(Answer(401), match=sent_to("tpu"), times=None)
        error = await error_from(request_my_tpu(refreshable_credentials(server)))
        assert isinstance(error, UnauthorizedError)
        assert services(server) == ["oauth2", "tpu", "oauth2", "tpu"]


async def test_a_rejected_token_that_cannot_be_renewed_is_an_error_with_the_cause() -> None:
    async with tls_server():
        error = await error_from(request_my_tpu(user_credentials("MARKER")))
    assert isinstance(error, UnauthorizedError)
    assert isinstance(error.__cause__, CredentialsError)
    assert "MARKER" not in all_text(error)
