"""Processes without OpenTelemetry, with its API only, or with providers set after the first call."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

RESOLVE_SCRIPT = """
import asyncio, sys
from aioresolve import KubernetesClusterResolver
from aioresolve.probe import probe_workers
from aioresolve.testing import KubernetesServer, TPUWorker, pod

async def resolve():
    async with KubernetesServer([pod("a", labels={"app": "a"})]) as server, TPUWorker() as worker:
        resolver = KubernetesClusterResolver(
            {"worker": ["app=a"]},
            kubeconfig=server.write_kubeconfig(sys.argv[1]),
            not_running="skip",
        )
        assert (await resolver.cluster_spec()).num_tasks("worker") == 1
        (probe,) = await probe_workers([worker.address])
        assert probe.error is None
"""


def output_of(script: str, folder: object) -> str:
    """Return the output of a new interpreter that runs RESOLVE_SCRIPT and then `script`."""
    run = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            RESOLVE_SCRIPT + textwrap.dedent(script),
            f"{folder}/kubeconfig",
        ],
        capture_output=True,
        text=True,
        check=False,
        # Whether gRPC reports that the worker closed the connection depends on which of them is faster.
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout.strip()


def test_opentelemetry_is_not_loaded_by_a_process_that_does_not_use_it(tmp_path: object) -> None:
    script = """
        asyncio.run(resolve())
        print(*[name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
    """
    assert output_of(script, tmp_path) == ""


def test_providers_that_are_set_late_receive_everything_from_then_on(tmp_path: object) -> None:
    script = """
        from opentelemetry import metrics, trace
        asyncio.run(resolve())

        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
        exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([reader]))
        asyncio.run(resolve())

        print(*[span.name for span in exporter.get_finished_spans()])
        (resource,) = reader.get_metrics_data().resource_metrics
        for metric in resource.scope_metrics[0].metrics:
            print(metric.name, *[getattr(p, "value", None) or p.count for p in metric.data.data_points])
    """
    spans, *metrics = output_of(script, tmp_path).splitlines()
    assert spans == "GET /api/v1/pods tensorflow.WorkerService/GetStatus"
    assert sorted(metrics) == [
        "aioresolve.requests 1",
        "http.client.request.duration 1",
        "rpc.client.call.duration 1",
    ]
