"""Log records with structured `extra`, and OpenTelemetry spans and metrics if the process uses it.

Nothing has to be enabled. Log records go to loggers of the standard library. Spans and metrics go to the
global providers of OpenTelemetry after the process has imported `opentelemetry.trace` or
`opentelemetry.metrics`, as any setup of its SDK does; in any other process they cost one look-up in
`sys.modules`. docs/observability.md has the loggers, the keys of `extra`, and the metrics. Names and
attributes follow OpenTelemetry's semantic conventions (https://opentelemetry.io/docs/specs/semconv/).

Records, spans and metrics contain no headers and no bodies. From the query of a URL they contain only the
selectors of Kubernetes, in the scope and in the text of log records.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import Counter as Totals
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

from aioresolve._version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sized
    from types import TracebackType

    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
    from opentelemetry.trace import Span, Tracer

Attributes: TypeAlias = dict[str, str | int]

watch_logger = logging.getLogger("aioresolve.watch")
retry_logger = logging.getLogger("aioresolve.retry")


# Calls to servers


class _Call:
    """A call to a server, used as a context manager: it has a duration, and a response or an error.

    It is a log record, a measurement, and while OpenTelemetry is in use a span of kind CLIENT. `name` is that
    of the span, one of a small set; `what` is the request as text.
    """

    def __init__(
        self, logger: logging.Logger, name: str, what: str, extra: dict[str, Any], attributes: Attributes
    ) -> None:
        self._logger = logger
        self._name, self._what, self._extra, self._attributes = name, what, extra, attributes
        self._result = ""
        self._outcome: Attributes = {}  # attributes of the span and of measurements
        self._span: Span | None = None
        self._started = 0.0

    def __enter__(self) -> Self:
        # A process that uses OpenTelemetry has imported it; no other process should pay for the import.
        if sys.modules.get("opentelemetry.trace") is not None:
            from opentelemetry.trace import SpanKind

            self._span = _tracer().start_span(self._name, kind=SpanKind.CLIENT, attributes=self._attributes)
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds, metrics = time.perf_counter() - self._started, instruments()
        if error is not None:
            self._outcome |= {**self._outcome_of(error), "error.type": error_type(error)}
        if self._logger.isEnabledFor(logging.INFO):
            extra = {**self._extra, "seconds": seconds}
            if error is None:
                self._logger.info("%s: %s in %.3f s", self._what, self._result, seconds, extra=extra)
            else:
                extra |= error_extra(error)
                text = extra["error"]
                self._logger.info("%s failed after %.3f s: %s", self._what, seconds, text, extra=extra)
        if metrics is not None:
            self._measure(metrics, seconds)
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attributes(self._outcome)
            if "error.type" in self._outcome:
                self._span.set_status(StatusCode.ERROR, None if error is None else error_text(error))
            self._span.end()

    def _outcome_of(self, error: BaseException) -> Attributes:
        return {}

    def _measure(self, metrics: _Instruments, seconds: float) -> None:
        raise NotImplementedError


class HTTPCall(_Call):
    """One HTTP request.

    ```
    with HTTPCall(logger, "GET", "https://10.0.0.1:6443", "/api/v1/pods", scope="all pods") as call:
        response = await client.send(...)
        call.set_response(response.status, len(response.body))
    ```

    `server` is `scheme://host:port` without credentials, `path` has no query, and attempts count from 1. The
    log record shows `query`. Statuses in `expected` are not failures here, although they are elsewhere.
    """

    def __init__(
        self,
        logger: logging.Logger,
        method: str,
        server: str,
        path: str,
        *,
        scope: str,
        attempt: int = 1,
        query: Mapping[str, str] | None = None,
        expected: Collection[int] = (),
    ) -> None:
        template = _NAMES_IN_PATHS.sub(r"\1s/{\1}", path)
        self._server = server_attributes(server)
        self._request = {"http.request.method": method, "url.scheme": urlsplit(server).scheme}
        self._expected = expected
        attributes: Attributes = {
            **self._server,
            **self._request,
            "url.full": server + path,
            "url.path": path,
            "url.template": template,
            "aioresolve.scope": scope,
        }
        if attempt > 1:
            attributes["http.request.resend_count"] = attempt - 1
        extra = {"server": server, "scope": scope, "method": method, "path": path, "attempt": attempt}
        what = f"{method} {server}{path}{'' if query is None else f' {query}'}"
        super().__init__(logger, f"{method} {template}", what, extra, attributes)

    def set_response(self, status: int, size: int | None = None) -> None:
        """Set the HTTP status of the response, and its size in bytes if the body is complete."""
        self._result = f"{status}{'' if size is None else f', {size} bytes'}"
        self._extra |= {"status": status} if size is None else {"status": status, "size": size}
        self._outcome["http.response.status_code"] = status
        if status >= 400 and status not in self._expected:
            self._outcome["error.type"] = str(status)

    def _measure(self, metrics: _Instruments, seconds: float) -> None:
        attributes = {**self._server, **self._outcome}
        metrics.requests.add(1, attributes)
        metrics.request_seconds.record(seconds, {**attributes, **self._request})


class ProbeCall(_Call):
    """The probe of one worker over gRPC.

    `address` is `host:port`; `method` is the first gRPC method called, `/package.Service/Method`.
    """

    def __init__(self, logger: logging.Logger, address: str, method: str) -> None:
        name = method.lstrip("/")
        attributes = {"rpc.system.name": "grpc", **server_attributes(f"//{address}")}
        super().__init__(logger, name, f"probe of {address}", {"server": address}, attributes)
        self._outcome["rpc.method"] = name

    def set_response(self, source: str, method: str) -> None:
        """Set which service reported the devices, `tensorflow` or `libtpu`, and its gRPC method."""
        self._result = f"reported by {source}"
        self._extra["source"] = source
        self._outcome |= {"rpc.method": method.lstrip("/"), "rpc.response.status_code": "OK"}
        if self._span is not None:
            self._span.update_name(method.lstrip("/"))

    def _outcome_of(self, error: BaseException) -> Attributes:
        names = {"rpc.response.status_code": "status", "aioresolve.code": "code"}
        values = {attribute: getattr(error, name, None) for attribute, name in names.items()}
        return {attribute: value for attribute, value in values.items() if isinstance(value, str)}

    def _measure(self, metrics: _Instruments, seconds: float) -> None:
        # Without the worker: a thousand workers would make a thousand histograms.
        metrics.probe_seconds.record(seconds, {"rpc.system.name": "grpc", **self._outcome})


# Events between calls


class Outage:
    """Logs when a source becomes unavailable and when it is available again, but not each retry between."""

    __slots__ = ("_extra", "_logger", "_source", "_started")

    def __init__(self, logger: logging.Logger, source: str, **extra: str) -> None:
        self._logger = logger
        self._source = source
        self._extra = extra
        self._started: float | None = None

    def update(self, error: Exception | None) -> None:
        """Note the outcome of a request to the source: its error, or None if it succeeded."""
        if error is not None and self._started is None:
            self._started = time.monotonic()
            extra = {**self._extra, **error_extra(error)}
            self._logger.warning("%s is unavailable: %s", self._source, extra["error"], extra=extra)
        elif error is None and self._started is not None:
            seconds = time.monotonic() - self._started
            self._started = None
            outage = {**self._extra, "seconds": seconds}
            self._logger.info("%s is available again after %.1f s", self._source, seconds, extra=outage)


def record_retry(error: Exception, *, attempt: int, wait: float) -> None:
    """Log and count a retry, `wait` seconds after the attempt with this number (from 1) and error."""
    server: str | None = getattr(error, "host", None)
    extra: dict[str, Any] = {**error_extra(error), "attempt": attempt, "wait": wait}
    if server is not None:
        extra["server"] = server
    retry_logger.debug(
        "attempt %d failed, retrying in %.3f s: %s", attempt, wait, extra["error"], extra=extra
    )
    if (metrics := instruments()) is not None:
        attributes = {} if server is None else server_attributes(server)
        metrics.retries.add(1, {**attributes, "error.type": error_type(error)})


def record_watch_restart(server: str, scope: str, reason: str, *, seconds: float) -> None:
    """Log and count the restart of a watch whose last connection lived for `seconds`.

    `reason` is one of a small set: `ended`, `broken`, `silent`, `expired`, ...
    """
    extra = {"server": server, "scope": scope, "reason": reason, "seconds": seconds}
    text = "watch of %s at %s restarts after %.1f s: %s"
    watch_logger.info(text, scope, server, seconds, reason, extra=extra)
    if (metrics := instruments()) is not None:
        metrics.restarts.add(1, {**server_attributes(server), "aioresolve.watch.reason": reason})


# Attributes

_NAMES_IN_PATHS = re.compile(
    r"(?<=/)(namespace|project|location|zone|node|queuedResource|instanceGroup|serviceAccount)s/[^/:]+"
)
"""What a template of a path has placeholders such as `{namespace}` for, so that few templates exist."""


def server_attributes(url: str) -> Attributes:
    """Return the address and port of a server, given as `scheme://host:port` or `//host:port`."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:  # an invalid URL; the request to it raises the error
        return {"server.address": ""}
    address: Attributes = {"server.address": parts.hostname or ""}
    return address if port is None else {**address, "server.port": port}


def error_type(error: BaseException) -> str:
    """Return the `error.type` of an exception: a status of HTTP or gRPC, a class, or `cancelled`.

    For a probe that failed although the gRPC status is OK, it is the code of the error.
    """
    if not isinstance(error, Exception):
        return "cancelled"
    code = getattr(error, "status", None) or getattr(error, "code", None)
    kind = type(error)
    return str(code) if isinstance(code, str | int) else f"{kind.__module__}.{kind.__qualname__}"


def error_text(error: BaseException) -> str:
    """Return the message of an exception, or its type if it has none."""
    if not isinstance(error, Exception):
        return "cancelled"
    return str(error) or type(error).__name__


def error_extra(error: BaseException) -> dict[str, str]:
    """Return the keys of log records that describe an error."""
    return {"error": error_text(error), "error_type": error_type(error)}


# OpenTelemetry

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket boundaries of histograms in seconds, as in the conventions."""

_polled: set[TargetGauges] = set()
"""What the gauges show. An exporter reads it at any time, in its own thread."""


class TargetGauges:
    """The gauges of one target of a fleet, from the first `update` until `close`.

    Targets of several fleets may have one name, and so the same attributes, of which OpenTelemetry keeps one
    value: the sum of their tasks, and the longest time for which one of them is stale.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.tasks: Mapping[str, Sized] = {}
        self.stale_since: datetime | None = None

    def update(self, stale_since: datetime | None) -> None:
        """Show `tasks` from now on, and since when they are stale, if they are."""
        self.stale_since = stale_since
        _polled.add(self)
        instruments()  # creates the gauges, if metrics are in use

    def close(self) -> None:
        """Remove the target from the gauges."""
        _polled.discard(self)


class _Instruments(NamedTuple):
    requests: Counter
    request_seconds: Histogram
    probe_seconds: Histogram
    retries: Counter
    restarts: Counter


def instruments() -> _Instruments | None:
    """Return the metric instruments; None in a process that does not use OpenTelemetry's metrics."""
    return None if sys.modules.get("opentelemetry.metrics") is None else _instruments()


@cache
def _tracer() -> Tracer:
    # Before a provider is set this is a proxy, which uses the provider as soon as there is one.
    from opentelemetry import trace

    return trace.get_tracer("aioresolve", __version__)


@cache
def _instruments() -> _Instruments:
    # Proxies as well. A process has one provider, and its instruments are created once.
    from opentelemetry import metrics

    meter = metrics.get_meter("aioresolve", __version__)

    def histogram(name: str, description: str) -> Histogram:
        return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=_BUCKETS)

    meter.create_observable_gauge(
        "aioresolve.members", [_observe_tasks], "{task}", "Tasks that are members of a cluster."
    )
    meter.create_observable_gauge(
        "aioresolve.target.staleness",
        [_observe_staleness],
        "s",
        "Time since the state of a target was last up to date; 0 if the latest request succeeded.",
    )
    return _Instruments(
        requests=meter.create_counter("aioresolve.requests", "{request}", "HTTP requests."),
        request_seconds=histogram("http.client.request.duration", "Duration of HTTP client requests."),
        probe_seconds=histogram("rpc.client.call.duration", "Duration of probes of workers."),
        retries=meter.create_counter("aioresolve.retries", "{retry}", "Requests repeated after a failure."),
        restarts=meter.create_counter("aioresolve.watch.restarts", "{restart}", "Restarts of watches."),
    )


def _observe_tasks(_: CallbackOptions) -> list[Observation]:
    from opentelemetry.metrics import Observation

    totals = Totals[tuple[str, str]]()
    for each in tuple(_polled):
        for job, tasks in each.tasks.items():
            totals[each.target, job] += len(tasks)
    return [
        Observation(total, {"aioresolve.target": target, "aioresolve.job": job})
        for (target, job), total in totals.items()
    ]


def _observe_staleness(_: CallbackOptions) -> list[Observation]:
    from opentelemetry.metrics import Observation

    now, longest = datetime.now(UTC), dict[str, float]()
    for each in tuple(_polled):
        seconds = 0.0 if each.stale_since is None else (now - each.stale_since).total_seconds()
        longest[each.target] = max(seconds, longest.get(each.target, 0.0))
    return [Observation(seconds, {"aioresolve.target": target}) for target, seconds in longest.items()]
