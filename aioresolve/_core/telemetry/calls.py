"""A call to a server as a log record, an OpenTelemetry span and a measurement.

Attributes and metric names follow OpenTelemetry's semantic conventions.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

from aioresolve._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from types import TracebackType

    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Observation
    from opentelemetry.trace import Span, Tracer

Attributes: TypeAlias = dict[str, str | int]


@dataclass(slots=True, eq=False)
class _Call(ABC):
    """A call to a server, used as a context manager: it has a duration, and a response or an error.

    While OpenTelemetry is in use it has a span of kind CLIENT, which is the current span inside the block.
    """

    logger: logging.Logger
    _context: AbstractContextManager[Span] | None = field(default=None, init=False)
    _span: Span | None = field(default=None, init=False)
    _started: float = field(default=0.0, init=False)

    def __enter__(self) -> Self:
        # A process that uses OpenTelemetry has imported it; no other process should pay for the import.
        if sys.modules.get("opentelemetry.trace") is not None:
            from opentelemetry.trace import SpanKind

            self._context = _tracer().start_as_current_span(
                self._name(),
                kind=SpanKind.CLIENT,
                attributes=self._request_attributes(),
                record_exception=False,  # the status has the message; the stack of each retry helps no one
                set_status_on_exception=False,
            )
            self._span = self._context.__enter__()
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds, metrics = time.perf_counter() - self._started, instruments()
        if self.logger.isEnabledFor(logging.INFO):
            self._log(seconds, error)
        if metrics is not None:  # while the span is current, because an exporter may link the two
            self._measure(metrics, seconds, self._outcome_attributes(error))
        if self._span is not None and self._context is not None:
            from opentelemetry.trace import StatusCode

            outcome = self._outcome_attributes(error)
            self._span.set_attributes(outcome)
            if "error.type" in outcome:
                self._span.set_status(StatusCode.ERROR, None if error is None else error_text(error))
            self._context.__exit__(None, None, None)

    @abstractmethod
    def _name(self) -> str:
        """Return the name of the span, one of a small set."""

    @abstractmethod
    def _request_attributes(self) -> Attributes:
        """Return the attributes of the span that are known before the call."""

    @abstractmethod
    def _outcome_attributes(self, error: BaseException | None) -> Attributes:
        """Return the attributes of the span and of measurements that are known after the call."""

    @abstractmethod
    def _log(self, seconds: float, error: BaseException | None) -> None: ...

    @abstractmethod
    def _measure(self, metrics: _Instruments, seconds: float, outcome: Attributes) -> None: ...


@dataclass(slots=True, eq=False)
class HTTPCall(_Call):
    """One HTTP request.

    ```
    with HTTPCall(logger, "GET", "https://10.0.0.1:6443", "/api/v1/pods", scope="all pods") as call:
        response = await client.send(...)
        call.set_response(response.status, len(response.body))
    ```

    Args:
        logger: where the record goes.
        method: such as `GET`.
        server: `scheme://host:port`, without credentials.
        path: from `/`, without the query.
        scope: the requested resource, as text.
        attempt: the number of the attempt, from 1.
        query: the part of the URL's query that the log record shows.
        expected: statuses that are not failures here, although they are elsewhere.
    """

    method: str
    server: str
    path: str
    scope: str
    attempt: int = 1
    query: Mapping[str, str] | None = None
    expected: Collection[int] = ()
    _status: int | None = field(default=None, init=False)
    _size: int | None = field(default=None, init=False)

    def set_response(self, status: int, size: int | None = None) -> None:
        """Set the HTTP status of the response, and its size in bytes if the body is complete."""
        self._status, self._size = status, size

    def _name(self) -> str:
        return f"{self.method} {path_template(self.path)}"

    def _request_attributes(self) -> Attributes:
        attributes: Attributes = {
            "http.request.method": self.method,
            **server_attributes(self.server),
            "url.full": self.server + self.path,
            "url.path": self.path,
            "url.scheme": urlsplit(self.server).scheme,
            "url.template": path_template(self.path),
            "aioresolve.scope": self.scope,
        }
        if self.attempt > 1:
            attributes["http.request.resend_count"] = self.attempt - 1
        return attributes

    def _outcome_attributes(self, error: BaseException | None) -> Attributes:
        outcome: Attributes = {} if self._status is None else {"http.response.status_code": self._status}
        if error is not None:
            outcome["error.type"] = error_type(error)
        elif self._status is not None and self._status >= 400 and self._status not in self.expected:
            outcome["error.type"] = str(self._status)
        return outcome

    def _log(self, seconds: float, error: BaseException | None) -> None:
        extra: dict[str, Any] = {
            "server": self.server,
            "scope": self.scope,
            "method": self.method,
            "path": self.path,
            "attempt": self.attempt,
            "seconds": seconds,
        }
        if self._status is not None:
            extra["status"] = self._status
        if self._size is not None:
            extra["size"] = self._size
        request = f"{self.method} {self.server}{self.path}{'' if self.query is None else f' {self.query}'}"
        if error is not None:
            extra |= error_extra(error)
            self.logger.info("%s failed after %.3f s: %s", request, seconds, error_text(error), extra=extra)
        else:
            size = "" if self._size is None else f", {self._size} bytes"
            self.logger.info("%s: %s%s in %.3f s", request, self._status, size, seconds, extra=extra)

    def _measure(self, metrics: _Instruments, seconds: float, outcome: Attributes) -> None:
        attributes = {**server_attributes(self.server), **outcome}
        metrics.requests.add(1, attributes)
        request = {"http.request.method": self.method, "url.scheme": urlsplit(self.server).scheme}
        metrics.request_seconds.record(seconds, {**attributes, **request})


@dataclass(slots=True, eq=False)
class ProbeCall(_Call):
    """The probe of one worker over gRPC.

    `address` is `host:port`; `method` is the first gRPC method called, `/package.Service/Method`.
    """

    address: str
    method: str
    _source: str | None = field(default=None, init=False)

    def set_response(self, source: str, method: str) -> None:
        """Set which service reported the devices, `tensorflow` or `libtpu`, and its gRPC method."""
        self._source = source
        self.method = method
        if self._span is not None:
            self._span.update_name(self._name())

    def _name(self) -> str:
        return self.method.lstrip("/")

    def _request_attributes(self) -> Attributes:
        return {
            "rpc.system": "grpc",  # the name until 1.38 of the conventions, which many dashboards still use
            "rpc.system.name": "grpc",
            **server_attributes(f"//{self.address}"),
        }

    def _outcome_attributes(self, error: BaseException | None) -> Attributes:
        outcome: Attributes = {"rpc.method": self._name()}
        if error is not None:
            outcome["error.type"] = error_type(error)
            for attribute, name in (("rpc.response.status_code", "status"), ("aioresolve.code", "code")):
                if isinstance(value := getattr(error, name, None), str):
                    outcome[attribute] = value
        elif self._source is not None:
            outcome["rpc.response.status_code"] = "OK"
        return outcome

    def _log(self, seconds: float, error: BaseException | None) -> None:
        extra: dict[str, Any] = {"server": self.address, "seconds": seconds}
        if error is not None:
            extra |= error_extra(error)
            self.logger.info(
                "probe of %s failed after %.3f s: %s", self.address, seconds, extra["error"], extra=extra
            )
        else:
            extra["source"] = self._source
            self.logger.info(
                "probe of %s: reported by %s in %.3f s", self.address, self._source, seconds, extra=extra
            )

    def _measure(self, metrics: _Instruments, seconds: float, outcome: Attributes) -> None:
        # Without the worker: a thousand workers would make a thousand histograms.
        metrics.probe_seconds.record(seconds, {"rpc.system.name": "grpc", **outcome})


# Attributes

_NAMES_IN_PATHS = re.compile(
    r"(?<=/)(namespace|project|location|zone|node|queuedResource|instanceGroup|serviceAccount)s/[^/:]+"
)

_DEFAULT_PORTS = {"http": 80, "https": 443}


def server_attributes(url: str) -> Attributes:
    """Return the address and port of a server, given as `scheme://host:port` or `//host:port`."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:  # an invalid URL; the request to it raises the error
        return {"server.address": ""}
    address: Attributes = {"server.address": parts.hostname or ""}
    return address if port is None else {**address, "server.port": port}


def path_template(path: str) -> str:
    """Return a path with placeholders such as `{namespace}` for names, so that few templates exist."""
    return _NAMES_IN_PATHS.sub(r"\1s/{\1}", path)


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

_INSTRUMENTATION = "aioresolve"

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Bucket boundaries of histograms in seconds, as in the conventions."""

# What gauges show. An exporter reads it at any time, in its own thread.
task_counts: dict[str | None, dict[str, int]] = {}
"""Target to the number of tasks of each job; the target is None for a cluster outside of a fleet."""

stale_since: dict[str | None, datetime | None] = {}
"""Target to the time since which its state is stale; None if the latest request succeeded."""


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

    return trace.get_tracer(_INSTRUMENTATION, __version__)


@cache
def _instruments() -> _Instruments:
    # Proxies as well. A process has one provider, and its instruments are created once.
    from opentelemetry import metrics

    meter = metrics.get_meter(_INSTRUMENTATION, __version__)
    meter.create_observable_gauge(
        "aioresolve.members", [_callback(_observed_tasks)], "{task}", "Tasks that are members of a cluster."
    )
    meter.create_observable_gauge(
        "aioresolve.target.staleness",
        [_callback(_observed_staleness)],
        "s",
        "Time since the state of a target was last up to date; 0 if the latest request succeeded.",
    )
    return _Instruments(
        requests=meter.create_counter("aioresolve.requests", "{request}", "HTTP requests."),
        request_seconds=meter.create_histogram(
            "http.client.request.duration",
            "s",
            "Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        ),
        probe_seconds=meter.create_histogram(
            "rpc.client.call.duration",
            "s",
            "Duration of probes of workers.",
            explicit_bucket_boundaries_advisory=_BUCKETS,
        ),
        retries=meter.create_counter("aioresolve.retries", "{retry}", "Requests repeated after a failure."),
        restarts=meter.create_counter("aioresolve.watch.restarts", "{restart}", "Restarts of watches."),
    )


def _observed_tasks() -> Iterator[tuple[int, Attributes]]:
    for target, jobs in task_counts.copy().items():
        attributes: Attributes = {} if target is None else {"aioresolve.target": target}
        for job, tasks in jobs.items():
            yield tasks, {"aioresolve.job": job, **attributes}


def _observed_staleness() -> Iterator[tuple[float, Attributes]]:
    now = datetime.now(UTC)
    for target, since in stale_since.copy().items():
        seconds = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        yield seconds, {} if target is None else {"aioresolve.target": target}


def _callback(
    values: Callable[[], Iterator[tuple[float, Attributes]]],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    return lambda _: [Observation(value, attributes) for value, attributes in values()]
