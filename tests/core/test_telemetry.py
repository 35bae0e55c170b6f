"""What an operator sees of calls: log records, and spans of OpenTelemetry."""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from aioresolve import sync
from aioresolve.errors import DeadlineExceededError, ResolveError, UnauthorizedError
from aioresolve.probe import probe_workers
from aioresolve.testing import Answer, Hang, Reset, TPUWorker, pod
from tests.gcp.loopback import TOKEN as GOOGLE_TOKEN
from tests.gcp.loopback import refreshable_credentials, request_my_tpu, tls_server
from tests.kubernetes.loopback import JOBS, TOKEN, Loopback, disable_retries, run_loopback

from .recording import Recording, record_telemetry

PODS = "/api/v1/namespaces/ml/pods"
SCOPE = "selector 'app=train' in namespace 'ml'"
STANDARD_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
BROKEN = "aioresolve.errors.ConnectionFailedError"


@pytest.fixture
def recording() -> Iterator[Recording]:
    with record_telemetry() as recording:
        yield recording


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    pods = [pod(f"train-{n}", "ml", labels={"app": "train"}, ip=f"10.0.0.{n}") for n in (1, 2)]
    with run_loopback(tmp_path, *pods) as loopback:
        yield loopback


@pytest.fixture(autouse=True)
def _log_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "aioresolve")


# Log records


def records(caplog: pytest.LogCaptureFixture, logger: str = "aioresolve") -> list[logging.LogRecord]:
    return [record for record in caplog.records if f"{record.name}.".startswith(f"{logger}.")]


def extra(record: logging.LogRecord) -> dict[str, Any]:
    """Return the extra of a record; `seconds` is only whether it is a plausible duration."""
    found = {key: value for key, value in vars(record).items() if key not in STANDARD_KEYS}
    if "seconds" in found:
        found["seconds"] = 0 <= found["seconds"] < 10
    return found


async def test_request_is_logged_with_its_parts(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    await loopback.resolver(not_running="skip", namespace="ml").cluster_spec()
    (record,) = records(caplog, "aioresolve.kubernetes")
    size, host = extra(record)["size"], loopback.server.url
    assert extra(record) == {
        "server": host,
        "scope": SCOPE,
        "method": "GET",
        "path": PODS,
        "attempt": 1,
        "status": 200,
        "size": size,
        "seconds": True,
    }
    assert record.levelno == logging.INFO
    query = r"\{'labelSelector': 'app=train'.*\}"
    expected = rf"GET {host}{PODS} {query}: 200, {size} bytes in \d\.\d\d\d s"
    assert re.fullmatch(expected, record.getMessage())


async def test_failed_request_and_its_retry_are_logged(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Reset(after=10))
    await loopback.resolver(not_running="skip").cluster_spec()
    failed, retry, succeeded = records(caplog)
    assert (extra(failed)["error_type"], extra(failed)["seconds"]) == (BROKEN, True)
    assert failed.getMessage().endswith(extra(failed)["error"])
    assert (retry.name, retry.levelno) == ("aioresolve.retry", logging.DEBUG)
    assert extra(retry)["wait"] >= 0
    assert [extra(record)["attempt"] for record in (failed, retry, succeeded)] == [1, 1, 2]
    assert extra(retry)["server"] == extra(succeeded)["server"]


# Spans


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def error_types(recording: Recording) -> list[Any]:
    """Return the `error.type` of each span, or None, after checking that the status of the span agrees."""
    types = [attributes(span).get("error.type") for span in recording.spans]
    is_error = [span.status.status_code is StatusCode.ERROR for span in recording.spans]
    assert is_error == [kind is not None for kind in types]
    return types


async def test_request_is_one_span_that_follows_the_conventions(
    recording: Recording, loopback: Loopback
) -> None:
    await loopback.resolver(not_running="skip", namespace="ml").cluster_spec()
    (span,) = recording.spans
    assert (span.name, span.kind) == ("GET /api/v1/namespaces/{namespace}/pods", SpanKind.CLIENT)
    assert (span.status.status_code, span.parent, span.events) == (StatusCode.UNSET, None, ())
    assert attributes(span) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": loopback.server.port,
        "url.full": f"{loopback.server.url}{PODS}",
        "url.path": PODS,
        "url.scheme": "https",
        "url.template": "/api/v1/namespaces/{namespace}/pods",
        "aioresolve.scope": SCOPE,
    }


async def test_spans_of_a_blocking_call_are_children_of_the_span_of_the_caller(
    recording: Recording, loopback: Loopback
) -> None:
    def call() -> int:
        arguments: Any = {"kubeconfig": loopback.kubeconfig, "not_running": "skip"}
        with sync.KubernetesClusterResolver(JOBS, **arguments) as resolver:
            with recording.tracer.start_as_current_span("mine") as mine:
                resolver.cluster_spec()
            return mine.get_span_context().span_id

    mine = await anyio.to_thread.run_sync(call)
    (span,) = recording.spans
    assert span.parent is not None
    assert span.parent.span_id == mine


async def test_each_attempt_is_a_span_with_its_number(recording: Recording, loopback: Loopback) -> None:
    loopback.server.inject(Answer(503), times=2)
    loopback.server.inject(Answer(400))
    with pytest.raises(ResolveError):
        await loopback.resolver(not_running="skip").cluster_spec()
    assert error_types(recording) == ["503", "503", "400"]
    sent = [attributes(span) for span in recording.spans]
    assert [each.get("http.request.resend_count") for each in sent] == [None, 1, 2]
    # The conventions forbid a description if the status code explains the error.
    assert recording.spans[0].status.description is None


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
async def test_span_has_the_default_port_of_the_scheme(
    scheme: str, port: int, recording: Recording, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    disable_retries(monkeypatch)
    with pytest.raises(ResolveError):
        await loopback.resolver(server=f"{scheme}://127.0.0.1").cluster_spec()
    assert attributes(recording.spans[0])["server.port"] == port


async def test_span_of_a_watch_ends_when_the_watch_is_established_and_its_restart_is_logged(
    recording: Recording, loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    async with loopback.resolver(namespace="ml") as resolver, aclosing(resolver.watch()) as states:
        with anyio.fail_after(60):
            await anext(states)
            loopback.add_trainers("train-3")
            await anext(states)
            _, watching = recording.spans
            loopback.server.disturb(Reset())
            loopback.add_trainers("train-4")
            await anext(states)
    assert attributes(watching)["aioresolve.scope"] == f"watch of {SCOPE}"
    assert error_types(recording) == [None, None, None]
    [restart] = records(caplog, "aioresolve.watch")
    host, reason = loopback.server.url, extra(restart)["reason"]
    assert extra(restart) == {"server": host, "scope": SCOPE, "reason": reason, "seconds": True}
    expected = rf"watch of {SCOPE} at {host} restarts after \d+\.\d s: the connection .* broke.*"
    assert re.fullmatch(expected, restart.getMessage())


async def test_requests_to_google_and_its_token_server_are_spans(recording: Recording) -> None:
    async with tls_server() as server:
        await request_my_tpu(refreshable_credentials(server, "an-outdated-token", expires_in=3600))
    node = "GET /v2/projects/{project}/locations/{location}/nodes/{node}"
    assert [span.name for span in recording.spans] == [node, "POST /token", node]
    assert error_types(recording) == ["401", None, None]
    assert attributes(recording.spans[2])["http.request.resend_count"] == 1


async def test_no_record_and_no_span_contains_a_secret(
    recording: Recording, loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.inject(Answer(401, body=f"unknown token {TOKEN}".encode()), times=None)
    with pytest.raises(UnauthorizedError):
        await loopback.resolver(not_running="skip").cluster_spec()
    async with tls_server() as server:
        credentials = refreshable_credentials(server, "ya29.an-outdated-token", expires_in=3600)
        server.inject(Answer(503, body=GOOGLE_TOKEN.encode()))
        await request_my_tpu(credentials)
    output = "\n".join([recording.text(), *(repr(vars(record)) for record in records(caplog))])
    assert str(loopback.server.port) in output
    assert str(server.port) in output
    for secret in (TOKEN, "ya29.", "Bearer"):
        assert secret not in output


async def test_probe_is_a_span_with_the_name_of_its_rpc_and_its_outcome_and_a_record(
    recording: Recording, caplog: pytest.LogCaptureFixture
) -> None:
    async with TPUWorker() as tensorflow, TPUWorker(services=["libtpu"]) as libtpu:
        port = int(libtpu.address.rpartition(":")[2])
        await probe_workers([tensorflow.address], libtpu_ports=[])
        await probe_workers([libtpu.address], libtpu_ports=[port])
    async with TPUWorker(services=[]) as other:
        await probe_workers([other.address, "127.0.0.1:9"], libtpu_ports=[], max_concurrency=1)
    assert error_types(recording) == [None, None, "UNIMPLEMENTED", "UNAVAILABLE"]
    first, second, *failed = recording.spans
    assert (first.name, first.kind) == ("tensorflow.WorkerService/GetStatus", SpanKind.CLIENT)
    assert second.name == "tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric"
    assert attributes(second) == {
        "rpc.system.name": "grpc",
        "rpc.method": second.name,
        "rpc.response.status_code": "OK",
        "server.address": "127.0.0.1",
        "server.port": port,
    }
    assert [attributes(span)["aioresolve.code"] for span in failed] == ["unimplemented", "refused"]
    assert attributes(failed[0])["rpc.response.status_code"] == "UNIMPLEMENTED"
    logged = [extra(record) for record in records(caplog, "aioresolve.probe")]
    assert logged[0] == {"server": tensorflow.address, "source": "tensorflow", "seconds": True}
    assert logged[2]["error_type"] == "UNIMPLEMENTED"


async def test_request_that_the_deadline_ends_is_a_cancelled_span(
    recording: Recording, loopback: Loopback
) -> None:
    loopback.server.inject(Hang(), times=None)
    with pytest.raises(DeadlineExceededError):
        await loopback.resolver(not_running="skip", timeout=0.1).cluster_spec()
    assert error_types(recording) == ["cancelled"]


# Processes without OpenTelemetry, or with a provider set after the first call

SCRIPT = """
import asyncio, sys
from aioresolve import KubernetesClusterResolver
from aioresolve.testing import KubernetesServer, pod

async def resolve():
    async with KubernetesServer([pod("a", labels={"app": "a"})]) as server:
        kubeconfig = server.write_kubeconfig(sys.argv[1])
        await KubernetesClusterResolver({"worker": "app=a"}, kubeconfig=kubeconfig).cluster_state()

asyncio.run(resolve())
assert not [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]

from opentelemetry import trace
asyncio.run(resolve())

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(tracers)
asyncio.run(resolve())

print(*[span.name for span in exporter.get_finished_spans()])
"""


@pytest.mark.slow
def test_opentelemetry_is_loaded_only_by_the_process_and_its_provider_may_be_set_late(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(tmp_path / "kubeconfig")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "GET /api/v1/pods\n", "")
