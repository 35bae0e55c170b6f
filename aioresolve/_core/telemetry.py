"""Log records with structured `extra`, and spans of OpenTelemetry if the process uses it.

Nothing has to be enabled. Log records go to loggers of the standard library. Spans go to the global provider
of OpenTelemetry after the process has imported `opentelemetry.trace`, as any setup of its SDK does; in any
other process they cost one look-up in `sys.modules`. docs/observability.md has the loggers and the keys of
`extra`. Names and attributes of spans follow OpenTelemetry's semantic conventions
(https://opentelemetry.io/docs/specs/semconv/).

Records and spans contain no headers and no bodies. From the query of a URL they contain only the selectors of
Kubernetes, in the scope and in the text of log records.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

from aioresolve._version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import TracebackType

    from opentelemetry.trace import Span, Tracer

Attributes: TypeAlias = dict[str, str | int]

watch_logger = logging.getLogger("aioresolve.watch")
retry_logger = logging.getLogger("aioresolve.retry")


# Calls to servers


class _Call:
    """A call to a server, used as a context manager: it has a duration, and a response or an error.

    It is a log record, and while OpenTelemetry is in use a span of kind CLIENT. `name` is that of the span,
    one of a small set; `what` is the request as text.
    """

    def __init__(
        self, logger: logging.Logger, name: str, what: str, extra: dict[str, Any], attributes: Attributes
    ) -> None:
        self._logger = logger
        self._name, self._what, self._extra, self._attributes = name, what, extra, attributes
        self._result = ""
        self._outcome: Attributes = {}  # attributes of the span
        self._span: Span | None = None

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
        seconds = time.perf_counter() - self._started
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
        if self._span is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attributes(self._outcome)
            if "error.type" in self._outcome:
                self._span.set_status(StatusCode.ERROR, None if error is None else error_text(error))
            self._span.end()

    def _outcome_of(self, error: BaseException) -> Attributes:
        return {}


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
        self._expected = expected
        attributes: Attributes = {
            **server_attributes(server),
            "http.request.method": method,
            "url.scheme": urlsplit(server).scheme,
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


def log_retry(error: Exception, *, attempt: int, wait: float) -> None:
    """Log a retry, `wait` seconds after the attempt with this number (from 1) and error."""
    extra: dict[str, Any] = {**error_extra(error), "attempt": attempt, "wait": wait}
    if (server := getattr(error, "host", None)) is not None:
        extra["server"] = server
    text = "attempt %d failed, retrying in %.3f s: %s"
    retry_logger.debug(text, attempt, wait, extra["error"], extra=extra)


def log_watch_restart(server: str, scope: str, reason: str, *, seconds: float) -> None:
    """Log the restart of a watch whose last connection lived for `seconds`."""
    extra = {"server": server, "scope": scope, "reason": reason, "seconds": seconds}
    text = "watch of %s at %s restarts after %.1f s: %s"
    watch_logger.info(text, scope, server, seconds, reason, extra=extra)


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


@cache
def _tracer() -> Tracer:
    # Before a provider is set this is a proxy, which uses the provider as soon as there is one.
    from opentelemetry import trace

    return trace.get_tracer("aioresolve", __version__)
