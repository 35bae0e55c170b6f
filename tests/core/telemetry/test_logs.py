"""Log records: the keys of `extra`, and that no record, span or measurement contains a secret."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import ResolveError
from aioresolve.probe import ProbeChannels, probe_workers
from aioresolve.testing import Answer, Reset, TPUWorker
from tests.gcp.loopback import TOKEN as GOOGLE_TOKEN
from tests.gcp.loopback import request_my_tpu, secure
from tests.gcp.samples import refreshable
from tests.kubernetes.loopback import TOKEN

if TYPE_CHECKING:
    from tests.kubernetes.loopback import Loopback

    from .recording import Recording

SCOPE = "selector 'app=train' in namespace 'ml'"
STANDARD_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aioresolve")


def package_records(caplog: pytest.LogCaptureFixture, logger: str = "aioresolve") -> list[logging.LogRecord]:
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{logger}.")]


def extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in STANDARD_KEYS}


def extra_without_duration(record: logging.LogRecord) -> dict[str, Any]:
    """Return the extra of a record without `seconds`, after checking that it is a plausible duration."""
    found = extra(record)
    assert 0 <= found.pop("seconds") < 10
    return found


async def test_request_is_logged_with_its_parts(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    await loopback.resolver(not_running="skip", namespace="ml").cluster_spec()
    (record,) = package_records(caplog, "aioresolve.kubernetes")
    size = extra_without_duration(record)["size"]
    host = f"https://127.0.0.1:{loopback.server.port}"
    assert extra_without_duration(record) == {
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


async def test_failed_request_and_its_retry_are_logged(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Reset(after=10))
    await loopback.resolver(not_running="skip").cluster_spec()
    failed, retry, succeeded = package_records(caplog)
    assert extra_without_duration(failed)["error_type"] == "aioresolve.errors.ConnectionFailedError"
    assert failed.getMessage().endswith(extra(failed)["error"])
    assert (retry.name, retry.levelno) == ("aioresolve.retry", logging.DEBUG)
    assert extra(retry)["wait"] >= 0
    assert [extra(record)["attempt"] for record in (failed, retry, succeeded)] == [1, 1, 2]
    assert extra(retry)["server"] == extra(succeeded)["server"]


async def test_each_probe_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with TPUWorker() as worker, TPUWorker(services=[]) as other:
        await probe_workers([worker.address, other.address], libtpu_ports=[], max_concurrency=1)
        succeeded, failed = package_records(caplog, "aioresolve.probe")
    assert extra_without_duration(succeeded) == {"server": worker.address, "source": "tensorflow"}
    assert extra_without_duration(failed)["error_type"] == "UNIMPLEMENTED"


# Secrets


async def test_no_record_span_or_measurement_contains_a_secret(
    recording: Recording, loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Answer(401, body=f"unknown token {TOKEN}".encode()), times=None)
    with pytest.raises(ResolveError):
        await loopback.resolver(not_running="skip", timeout=1.0).cluster_spec()
    async with secure() as server:
        credentials = refreshable(server, "ya29.an-outdated-token", seconds=3600)
        server.inject(Answer(503, body=GOOGLE_TOKEN.encode()))
        await request_my_tpu(credentials)
        tokens = server._tokens
        secrets = [tokens.refresh_token, tokens.client_secret, credentials.token]
    secret_metadata = [("authorization", "Bearer a-workers-token")]
    async with TPUWorker() as worker:
        await probe_workers([worker.address], channels=ProbeChannels(metadata=secret_metadata))
    output = "\n".join([recording.text(), *(repr(vars(record)) for record in package_records(caplog))])
    assert str(loopback.server.port) in output
    assert worker.address.rpartition(":")[2] in output
    for secret in [TOKEN, GOOGLE_TOKEN, "ya29.", "a-workers-token", "Bearer", *filter(None, secrets)]:
        assert secret not in output
