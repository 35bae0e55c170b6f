"""What gauges show: said when it changes, read by an exporter whenever it likes, in a thread of its own.

The room of OpenTelemetry, which a process uses or does not: our spans and our instruments.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from aioresolve._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
    from opentelemetry.trace import Tracer

    from .calls import Attributes

__all__ = [
    "ClientSpan",
    "Instruments",
    "client_span",
    "instruments",
    "member_counts",
    "seconds_of_staleness",
    "stale_since",
    "task_counts",
]

task_counts: dict[str | None, dict[str, int]] = {}
"""By target, the tasks of each job; None is a cluster that is in no fleet."""

stale_since: dict[str | None, datetime | None] = {}
"""By target, since when what is known of it is stale; None where it is not."""


def member_counts() -> Iterator[tuple[int, Attributes]]:
    """Yield how many tasks each job of each target has, and whose that is."""
    for target, jobs in task_counts.copy().items():
        named: Attributes = {} if target is None else {"aioresolve.target": target}
        for job, tasks in jobs.items():
            yield tasks, {"aioresolve.job": job, **named}


def seconds_of_staleness() -> Iterator[tuple[float, Attributes]]:
    """Yield how stale each target is by now, and which it is."""
    now = datetime.now(UTC)
    for target, since in stale_since.copy().items():
        seconds = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        yield seconds, {} if target is None else {"aioresolve.target": target}


INSTRUMENTED = "aioresolve"

BOUNDARIES = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds between the buckets of a histogram, as the conventions have them."""


class ClientSpan:
    """A span of kind CLIENT, the current one until `end`."""

    def __init__(self, tracer: Tracer, name: str, attributes: Attributes) -> None:
        from opentelemetry.trace import SpanKind

        self._current = tracer.start_as_current_span(
            name,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            record_exception=False,  # the status tells its message; nobody needs the stack of each retry
            set_status_on_exception=False,
        )
        self._span = self._current.__enter__()

    def rename(self, name: str) -> None:
        """Give the span another name."""
        self._span.update_name(name)

    def end(self, attributes: Attributes, failure: str | None) -> None:
        """End the span with what is known by now.

        Args:
            attributes: to be added; with `error.type`, it is the span of a failure.
            failure: what was raised, in words; None where a status says it all.
        """
        from opentelemetry.trace import StatusCode

        self._span.set_attributes(attributes)
        if "error.type" in attributes:
            self._span.set_status(StatusCode.ERROR, failure)
        self._current.__exit__(None, None, None)


class Instruments(NamedTuple):
    """What measurements are told to, once they are made."""

    requests: Counter
    request_seconds: Histogram
    probe_seconds: Histogram
    retries: Counter
    restarts: Counter


def client_span(name: Callable[[], str], attributes: Callable[[], Attributes]) -> ClientSpan | None:
    """Return a span that has begun; None in a process that does not use OpenTelemetry's."""
    # Whoever uses it has imported it; nobody else should pay for that.
    if sys.modules.get("opentelemetry.trace") is None:
        return None
    return ClientSpan(_tracer(), name(), attributes())


def instruments() -> Instruments | None:
    """Return our instruments; None in a process that does not use OpenTelemetry's metrics."""
    return None if sys.modules.get("opentelemetry.metrics") is None else _instruments()


@cache
def _tracer() -> Tracer:
    # Before there is a provider this is a proxy, which finds the provider when there is one.
    from opentelemetry import trace

    return trace.get_tracer(INSTRUMENTED, __version__)


@cache
def _instruments() -> Instruments:
    # These are proxies too: a process has one provider, and its instruments are made once.
    from opentelemetry import metrics

    meter = metrics.get_meter(INSTRUMENTED, __version__)
    meter.create_observable_gauge(
        "aioresolve.members", [_observing(member_counts)], "{task}", "Tasks that are members of a cluster."
    )
    meter.create_observable_gauge(
        "aioresolve.target.staleness",
        [_observing(seconds_of_staleness)],
        "s",
        "Time since what is known of a target was last known to be right; 0 while it answers.",
    )
    return Instruments(
        requests=meter.create_counter("aioresolve.requests", "{request}", "HTTP requests made."),
        request_seconds=meter.create_histogram(
            "http.client.request.duration",
            "s",
            "Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        ),
        probe_seconds=meter.create_histogram(
            "rpc.client.call.duration",
            "s",
            "Duration of probes of workers.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        ),
        retries=meter.create_counter("aioresolve.retries", "{retry}", "Requests made again after a failure."),
        restarts=meter.create_counter("aioresolve.watch.restarts", "{restart}", "Watches begun again."),
    )


def _observing(
    values: Callable[[], Iterator[tuple[float, Attributes]]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """Return `values` as an observable gauge asks for them."""
    from opentelemetry.metrics import Observation

    return lambda _: [Observation(value, attributes) for value, attributes in values()]
