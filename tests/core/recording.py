"""Records in memory the spans that a test produces, with the SDK of OpenTelemetry."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from aioresolve._core import telemetry

__all__ = ["Recording", "record_telemetry"]


@dataclass(frozen=True)
class Recording:
    """The spans so far.

    Attributes:
        tracer: creates spans that belong to the test itself.
    """

    tracer: Tracer
    exporter: InMemorySpanExporter

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans of aioresolve that have ended, in the order in which they ended."""
        return [span for span in self.exporter.get_finished_spans() if scope_of(span) == "aioresolve"]

    def text(self) -> str:
        """Return all spans in the form that an exporter writes."""
        return "\n".join(span.to_json() for span in self.exporter.get_finished_spans())


def scope_of(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope else ""


@contextmanager
def record_telemetry() -> Iterator[Recording]:
    """Record the spans of the calls inside the block."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        # A process can set its global provider only once, so patch the function that reads it.
        patch.setattr("opentelemetry.trace.get_tracer", tracers.get_tracer)
        telemetry._tracer.cache_clear()
        try:
            yield Recording(tracers.get_tracer("tests"), exporter)
        finally:
            telemetry._tracer.cache_clear()
            tracers.shutdown()
