"""Log records: what their `extra` holds, and what no record, span or measurement may."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve._core import telemetry
from aioresolve._core.telemetry import Outage, record_watch_restart
from aioresolve.errors import APIError, ConnectionFailedError, DeadlineExceededError, ResolveError
from aioresolve.probe import ProbeChannels, probe_workers
from aioresolve.testing import Answer, Hang, Reset, TPUWorker
from tests.gcp.loopback import TOKEN as GOOGLE_TOKEN
from tests.gcp.loopback import request_my_tpu, secure
from tests.gcp.samples import refreshable
from tests.kubernetes.loopback import TOKEN

if TYPE_CHECKING:
    from tests.kubernetes.loopback import Loopback

    from .recording import Recording

SERVER = "https://10.0.0.1:6443"
SCOPE = "selector 'app=train' in namespace 'ml'"
PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aioresolve")


def ours(caplog: pytest.LogCaptureFixture, logger: str = "aioresolve") -> list[logging.LogRecord]:
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{logger}.")]


def extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in PLAIN}


def timeless(record: logging.LogRecord) -> dict[str, Any]:
    """The record's extra, once its duration is seen to be one."""
    found = extra(record)
    assert 0 <= found.pop("seconds") < 10
    return found


async def test_a_request_is_told_with_its_parts(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    await loopback.resolver(namespace="ml").cluster_spec()
    (record,) = ours(caplog, "aioresolve.kubernetes")
    size = timeless(record)["size"]
    host = f"https://127.0.0.1:{loopback.server.port}"
    assert timeless(record) == {
        "server": host,
        "scope": SCOPE,
        "method": "GET",
        "path": "/api/v1/namespaces/ml/pods",
        "attempt": 1,
        "status": 200,
        "size": size,
    }
    assert record.levelno == logging.INFO
    assert re.fullmatch(
        rf"GET {host}/api/v1/namespaces/ml/pods \{{'labelSelector': 'app=train'.*\}}:"
        rf" 200, {size} bytes in \d\.\d\d\d s",
        record.getMessage(),
    )


async def test_a_failed_request_and_its_retry_are_told(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Reset(after=10))
    await loopback.resolver().cluster_spec()
    failed, again, answered = ours(caplog)
    assert timeless(failed)["error_type"] == "aioresolve.errors.ConnectionFailedError"
    assert failed.getMessage().endswith(extra(failed)["error"])
    assert (again.name, again.levelno) == ("aioresolve.retry", logging.DEBUG)
    assert extra(again)["wait"] >= 0
    assert [extra(record)["attempt"] for record in (failed, again, answered)] == [1, 1, 2]
    assert extra(again)["server"] == extra(answered)["server"]


async def test_a_request_that_was_given_up_is_told(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Hang(), times=None)
    with pytest.raises(DeadlineExceededError):
        await loopback.resolver(timeout=0.3).cluster_spec()
    (record,) = ours(caplog)
    assert timeless(record)["error_type"] == "cancelled"
    assert record.getMessage().endswith(": cancelled")


async def test_each_probe_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async with TPUWorker() as worker, TPUWorker(services=[]) as other:
        await probe_workers([worker.address, other.address], libtpu_ports=[], max_concurrency=1)
        told, failed = ours(caplog, "aioresolve.probe")
    assert timeless(told) == {"server": worker.address, "source": "tensorflow"}
    assert timeless(failed)["error_type"] == "unimplemented"


def test_an_outage_is_told_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("aioresolve.fleet"), "target 'us-east'", target="us-east")
    outage.update(None)
    for _ in range(3):
        outage.update(ConnectionFailedError("no route"))
    outage.update(None)
    outage.update(None)
    began, ended = ours(caplog, "aioresolve.fleet")
    assert (began.levelno, ended.levelno) == (logging.WARNING, logging.INFO)
    assert began.getMessage() == "target 'us-east' is unavailable: no route"
    assert extra(began) == {
        "target": "us-east",
        "error": "no route",
        "error_type": "aioresolve.errors.ConnectionFailedError",
    }
    assert timeless(ended) == {"target": "us-east"}
    outage.update(APIError("busy", status=503))
    assert extra(ours(caplog)[-1])["error_type"] == "503"


def test_a_watch_that_begins_again_is_told(caplog: pytest.LogCaptureFixture) -> None:
    record_watch_restart(SERVER, SCOPE, "ended", seconds=312.4)
    (record,) = ours(caplog, "aioresolve.watch")
    assert record.levelno == logging.INFO
    assert extra(record) == {"server": SERVER, "scope": SCOPE, "reason": "ended", "seconds": 312.4}
    assert record.getMessage() == f"watch of {SCOPE} at {SERVER} restarts after 312.4 s: ended"


async def test_every_key_is_documented_and_none_is_pythons_own(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Answer(503))
    await loopback.resolver().cluster_spec()
    await probe_workers(["127.0.0.1:9"], libtpu_ports=[])
    async with TPUWorker() as worker:
        await probe_workers([worker.address])
    record_watch_restart(SERVER, SCOPE, "ended", seconds=1.0)
    Outage(logging.getLogger("aioresolve.fleet"), "t", target="t").update(ConnectionFailedError("gone"))
    found = {key for record in ours(caplog) for key in extra(record)}
    table = (telemetry.__doc__ or "").partition("| key |")[2].partition("\n\n")[0]
    documented = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert found == {key for keys in documented for key in keys}
    for record in ours(caplog):
        assert all(isinstance(value, str | int | float) for value in extra(record).values())


# Secrets


async def test_no_secret_is_in_a_record_a_span_or_a_measurement(
    recording: Recording, loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Answer(401, body=f"who is {TOKEN}?".encode()), times=None)
    with pytest.raises(ResolveError):
        await loopback.resolver(timeout=1.0).cluster_spec()
    async with secure() as server:
        credentials = refreshable(server, "ya29.an-outdated-token", seconds=3600)
        server.inject(Answer(503, body=GOOGLE_TOKEN.encode()))
        await request_my_tpu(server, credentials)
        tokens = server._cloud.tokens
        secrets = [tokens.refresh_token, tokens.client_secret, credentials.token]
    secret_metadata = [("authorization", "Bearer a-workers-token")]
    async with TPUWorker() as worker:
        await probe_workers([worker.address], channels=ProbeChannels(metadata=secret_metadata))
    told = "\n".join([recording.text(), *(repr(vars(record)) for record in ours(caplog))])
    assert str(loopback.server.port) in told
    assert worker.address.rpartition(":")[2] in told
    for secret in [TOKEN, GOOGLE_TOKEN, "ya29.", "a-workers-token", "Bearer", *filter(None, secrets)]:
        assert secret not in told


async def test_no_query_is_in_a_span(recording: Recording, loopback: Loopback) -> None:
    await loopback.resolver().cluster_state()
    assert "labelSelector" not in recording.text()
    assert "?" not in recording.text()
