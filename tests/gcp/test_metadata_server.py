"""The metadata server: its values, and how soon its absence is detected."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, ProtocolError
from aioresolve.gcp.metadata_server import MetadataServer, metadata_host
from aioresolve.testing import Answer, Delay, GoogleServer, Hang, Trickle

from .loopback import error_from

pytestmark = pytest.mark.usefixtures("no_leak")

PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[GoogleServer, MetadataServer]]:
    """A server, and its metadata server as that of this machine."""
    async with GoogleServer() as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GCE_METADATA_HOST", server.metadata_host)
            async with MetadataServer() as machine:
                yield server, machine


async def zone() -> str:
    """Request the zone of this machine."""
    async with MetadataServer() as machine:
        return await machine.zone()


async def test_a_denied_request_and_a_malformed_value_are_errors() -> None:
    async with serving() as (server, machine):
        server.metadata["project/project-id"] = "../../evil"
        assert isinstance(await error_from(machine.project_id()), ConfigurationError)
        server.inject(Answer(403, b"not for you" + b"~" * 1000, headers={"Metadata-Flavor": "Google"}))
        error = await error_from(machine.zone())
        assert isinstance(error, APIError)
        assert (error.status, error.retryable) == (403, False)
        assert (error.host, error.scope) == (f"http://{server.metadata_host}", "metadata instance/zone")
        assert "'not for you~" in str(error)
        assert str(error).count("~") == 200 - len("not for you")


async def test_the_environment_is_read_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GoogleServer() as server, MetadataServer() as machine:
        monkeypatch.setenv("GCE_METADATA_HOST", server.metadata_host)
        assert await machine.zone() == "us-central2-b"
        monkeypatch.delenv("GCE_METADATA_HOST")
        monkeypatch.setenv("GCE_METADATA_IP", server.metadata_host)
        assert await machine.zone() == "us-central2-b"
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        error = await error_from(machine.zone())
        assert isinstance(error, ConfigurationError)
        assert "NO_GCE_CHECK=true" in str(error)
        assert len(server.requests) == 2


def test_the_host_is_found_as_by_google_auth() -> None:
    both = {"GCE_METADATA_HOST": "a:1", "GCE_METADATA_IP": "10.0.0.1"}
    assert metadata_host({}) == "metadata.invalid"  # see conftest.py
    assert metadata_host(both) == "a:1"
    assert metadata_host({**both, "GCE_METADATA_HOST": ""}) == "10.0.0.1"
    assert metadata_host({"NO_GCE_CHECK": "false"}) == "metadata.invalid"
    with pytest.raises(
        ConfigurationError, match=r"NO_GCE_CHECK=true.* Unset it if this machine is on Google"
    ):
        metadata_host({**both, "NO_GCE_CHECK": "True"})
    with pytest.raises(ConfigurationError, match=r"^the environment variable GCE_METADATA_IP is 'a/b'"):
        metadata_host({"GCE_METADATA_IP": "a/b"})
    for host in ("http://a", "a/b", "a b", "user@a", "[::1", "a:0", "a:65536"):
        with pytest.raises(ConfigurationError, match="Write it as HOST or HOST:PORT"):
            metadata_host({"GCE_METADATA_HOST": host})


# Outside Google Cloud


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts end after a short time."""
    monkeypatch.setattr("aioresolve.gcp.metadata_server.RESPONSE_TIMEOUT", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["unknown name", "hanging", "slow", "other server", "unavailable"])
async def test_outside_google_cloud_the_search_for_a_metadata_server_ends(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DETECTION_ATTEMPTS", 2)
    async with GoogleServer() as server:
        faults = {"slow": Trickle(1, 0.3), "other server": Answer(200, b"<html>"), "unavailable": Answer(503)}
        server.inject(faults.get(kind, Hang()), times=None)
        host = "metadata.invalid" if kind == "unknown name" else server.metadata_host
        monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", host)
        with anyio.fail_after(PATIENCE):
            error = await error_from(zone())
        attempts = len(server.requests)
    kinds = {"other server": ProtocolError, "unavailable": APIError}
    assert type(error) is kinds.get(kind, ConnectionFailedError)
    assert not error.retryable
    assert "if it is, set GCE_METADATA_HOST" in str(error)
    assert attempts == {"unknown name": 0, "other server": 1}.get(kind, 2)


# A metadata server that fails for a while


async def test_the_environment_says_how_long_an_attempt_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.gcp.metadata_server.RESPONSE_TIMEOUT", 0.05)
    async with serving() as (server, machine):
        monkeypatch.setenv("GCE_METADATA_TIMEOUT", "20")
        server.inject(Delay(0.5))
        assert await machine.zone() == "us-central2-b"
        assert len(server.requests) == 1
        monkeypatch.setenv("GCE_METADATA_TIMEOUT", "2.5")  # as google-auth, whole numbers only
        server.inject(Delay(0.5))
        assert await machine.zone() == "us-central2-b"
        assert len(server.requests) >= 3  # more on a busy machine


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
async def test_requests_to_a_configured_server_are_repeated_until_the_deadline() -> None:
    async with serving() as (server, machine):
        server.inject(Hang(), times=3)
        assert await machine.zone() == "us-central2-b"
        async with server.down():
            with anyio.fail_after(0.5):
                error = await error_from(machine.zone())
    assert error.retryable
    assert "if it is, set GCE_METADATA_HOST" not in str(error)


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_has_responded_once_will_respond_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DETECTION_ATTEMPTS", 1)
    async with GoogleServer() as server:
        monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", server.metadata_host)
        server.inject(Hang())
        assert not (await error_from(zone())).retryable
        with monkeypatch.context() as patient:
            patient.setattr("aioresolve.gcp.metadata_server.RESPONSE_TIMEOUT", PATIENCE)
            assert await zone() == "us-central2-b"
        server.inject(Hang(), times=2)
        assert await zone() == "us-central2-b"


@pytest.mark.parametrize(
    "fault",
    [Answer(200, b"<html>"), Answer(404), Answer(302, headers={"Location": "http://127.0.0.1:1/"})],
)
async def test_another_server_is_recognized_by_the_missing_header(fault: Answer) -> None:
    async with serving() as (server, machine):
        server.inject(fault, times=None)
        error = await error_from(machine.zone())
        assert isinstance(error, ProtocolError)
        assert f"returned status {fault.status} for metadata instance/zone without the header" in str(error)
        assert (error.host, error.scope) == (f"http://{server.metadata_host}", "metadata instance/zone")
        assert not error.retryable
        assert len(server.requests) == 1


async def test_a_metadata_server_that_has_responded_may_leave_the_header_out_of_errors() -> None:
    async with serving() as (server, machine):
        server.inject(Answer(503))
        assert await machine.zone() == "us-central2-b"
        server.inject(Answer(404))
        assert await machine.attribute("accelerator-type") is None
        server.inject(Answer(200, b"<html>"))
        assert isinstance(await error_from(machine.zone()), ProtocolError)
        server.inject(Answer(403))
        error = await error_from(machine.zone())
    assert isinstance(error, APIError)
    assert (error.status, error.retryable) == (403, False)
