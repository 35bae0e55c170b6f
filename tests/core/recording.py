"""Records in memory the spans and metrics that a test produces, with the SDK of OpenTelemetry."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aioresolve._core import telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.metrics.export import Metric
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Tracer

__all__ = ["Recording", "record_telemetry"]


@dataclass(frozen=True)
class Recording:
    """The spans and metrics so far.

    Attributes:
        tracer: creates spans that belong to the test itself.
    """

    tracer: Tracer
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans of aioresolve that have ended, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if scope_of(span) == "aioresolve"]

    @property
    def metrics(self) -> dict[str, Metric]:
        """The metrics of aioresolve by name, with the measurements so far."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            if scope.scope.name == "aioresolve"
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[tuple[dict[str, Any], float]]:
        """Return the attributes and the value (of a histogram: the count) of each point of a metric."""
        points = []
        for point in self.metrics[name].data.data_points if name in self.metrics else ():
            assert isinstance(point, NumberDataPoint | HistogramDataPoint)
            value = point.value if isinstance(point, NumberDataPoint) else point.count
            points.append((dict(point.attributes or {}), value))
        return points

    def text(self) -> str:
        """Return all recorded data in the form that an exporter writes."""
        data = self.reader.get_metrics_data()
        spans = [span.to_json() for span in self.exporter.get_finished_spans()]
        return "\n".join([*spans, data.to_json() if data else ""])


def scope_of(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


@contextmanager
def record_telemetry() -> Iterator[Recording]:
    """Record the telemetry of the calls inside the block."""
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    with pytest.MonkeyPatch.context() as patch:
        # A process can set its global providers only once, so patch the functions that read them.
        patch.setattr("opentelemetry.trace.get_tracer", tracers.get_tracer)
        patch.setattr("opentelemetry.metrics.get_meter", meters.get_meter)
        _clear_telemetry_state()
        try:
            yield Recording(tracers.get_tracer("tests"), exporter, reader)
        finally:
            _clear_telemetry_state()
            tracers.shutdown()
            meters.shutdown()


def _clear_telemetry_state() -> None:
    telemetry._tracer.cache_clear()
    telemetry._instruments.cache_clear()
    telemetry._polled.clear()
