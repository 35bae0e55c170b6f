"""Spans: one for each request and each probe, named by the semantic conventions of OpenTelemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from aioresolve import sync
from aioresolve.errors import (
    DeadlineExceededError,
)
from aioresolve.probe import probe_workers
from aioresolve.testing import Answer, Hang, TPUWorker
from tests.gcp.loopback import request_my_tpu, secure
from tests.gcp.samples import refreshable
from tests.kubernetes.loopback import JOBS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from tests.kubernetes.loopback import Loopback

    from .recording import Recording

PODS = "/api/v1/namespaces/ml/pods"
SCOPE = "selector 'app=train' in namespace 'ml'"


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
    port = loopback.server.port
    assert attributes(span) == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "server.address": "127.0.0.1",
        "server.port": port,
        "url.full": f"https://127.0.0.1:{port}{PODS}",
        "url.path": PODS,
        "url.scheme": "https",
        "url.template": "/api/v1/namespaces/{namespace}/pods",
        "aioresolve.scope": SCOPE,
    }


async def test_spans_of_a_blocking_call_are_children_of_the_span_of_the_caller(
    recording: Recording, loopback: Loopback
) -> None:
    def call() -> int:
        with sync.KubernetesClusterResolver(
            JOBS, kubeconfig=loopback.kubeconfig, not_running="skip"
        ) as resolver:
            with recording.tracer.start_as_current_span("mine") as mine:
                resolver.cluster_spec()
            return mine.get_span_context().span_id

    mine = await anyio.to_thread.run_sync(call)
    (span,) = recording.spans
    assert span.parent is not None
    assert span.parent.span_id == mine


async def test_each_attempt_is_a_span_with_its_number(recording: Recording, loopback: Loopback) -> None:
    loopback.server.inject(Answer(503), times=2)
    await loopback.resolver(not_running="skip").cluster_spec()
    assert error_types(recording) == ["503", "503", None]
    sent = [attributes(span) for span in recording.spans]
    assert [each.get("http.request.resend_count") for each in sent] == [None, 1, 2]
    assert [each["http.response.status_code"] for each in sent] == [503, 503, 200]
    # The conventions forbid a description if the status code explains the error.
    assert recording.spans[0].status.description is None


@pytest.mark.slow
async def test_request_cancelled_by_the_deadline_is_an_error(
    recording: Recording, loopback: Loopback
) -> None:
    loopback.server.inject(Hang(), times=None)
    with pytest.raises(DeadlineExceededError):
        await loopback.resolver(not_running="skip", timeout=2.0).cluster_spec()
    assert error_types(recording) == ["cancelled"]


async def test_span_of_a_watch_ends_when_the_watch_is_established(
    recording: Recording, loopback: Loopback
) -> None:
    async with loopback.resolver(namespace="ml") as resolver:
        states = resolver.watch()
        with anyio.fail_after(60):
            await anext(states)
            loopback.train("train-3")
            await anext(states)
        (watching,) = recording.spans
        await states.aclose()
    assert attributes(watching)["aioresolve.scope"] == f"watch of {SCOPE}"
    assert attributes(watching)["http.response.status_code"] == 200
    assert error_types(recording) == [None]


async def test_requests_to_google_and_its_token_server_are_spans(recording: Recording) -> None:
    async with secure() as server:
        await request_my_tpu(refreshable(server, "an-outdated-token", seconds=3600))
    assert [span.name for span in recording.spans] == [
        "GET /v2/projects/{project}/locations/{location}/nodes/{node}",
        "POST /token",
        "GET /v2/projects/{project}/locations/{location}/nodes/{node}",
    ]
    assert error_types(recording) == ["401", None, None]
    assert attributes(recording.spans[2])["http.request.resend_count"] == 1


async def test_probe_is_a_span_with_the_name_of_its_rpc(recording: Recording) -> None:
    async with TPUWorker() as tensorflow, TPUWorker(services=["libtpu"]) as libtpu:
        port = int(libtpu.address.rpartition(":")[2])
        await probe_workers([tensorflow.address], libtpu_ports=[])
        await probe_workers([libtpu.address], libtpu_ports=[port])
    assert error_types(recording) == [None, None]
    assert [(span.name, span.kind) for span in recording.spans] == [
        ("tensorflow.WorkerService/GetStatus", SpanKind.CLIENT),
        ("tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric", SpanKind.CLIENT),
    ]
    assert attributes(recording.spans[1]) == {
        "rpc.system": "grpc",
        "rpc.system.name": "grpc",
        "rpc.method": "tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric",
        "rpc.response.status_code": "OK",
        "server.address": "127.0.0.1",
        "server.port": port,
    }


async def test_failed_probe_has_the_grpc_status_and_the_code_of_the_error(recording: Recording) -> None:
    async with TPUWorker(services=[]) as other:
        await probe_workers([other.address, "127.0.0.1:9"], libtpu_ports=[], max_concurrency=1)
    sent = [attributes(span) for span in recording.spans]
    assert [each["rpc.response.status_code"] for each in sent] == ["UNIMPLEMENTED", "UNAVAILABLE"]
    assert [each["aioresolve.code"] for each in sent] == ["unimplemented", "refused"]
    assert error_types(recording) == ["UNIMPLEMENTED", "UNAVAILABLE"]
