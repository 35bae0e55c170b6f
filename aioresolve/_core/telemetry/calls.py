"""What is told of servers, paths and errors, in the words of OpenTelemetry's conventions. Pure.

One call of a server, in a `with` block: a log record, a span and a measurement when the block is left.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from .otel import client_span, instruments

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import TracebackType

    from .otel import ClientSpan, Instruments

__all__ = [
    "Attributes",
    "HTTPRequest",
    "WorkerProbing",
    "error_type",
    "path_template",
    "server_attributes",
    "words",
]

Attributes = dict[str, str | int]

NAMED = re.compile(
    r"(?<=/)(namespace|project|location|zone|node|queuedResource|instanceGroup|serviceAccount)s/[^/:]+"
)
"""What makes a path one of many: the name of something in a collection."""

PORTS = {"http": 80, "https": 443}


def server_attributes(url: str) -> Attributes:
    """Return what names a server, `scheme://host:port` or `//host:port`: its address and its port."""
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme)
    except ValueError:  # no URL, which is for whoever asks there to say
        return {"server.address": ""}
    address: Attributes = {"server.address": parts.hostname or ""}
    return address if port is None else {**address, "server.port": port}


def path_template(path: str) -> str:
    """Return a path with `{namespace}` and the like in the place of names: there are few of these."""
    return NAMED.sub(r"\1s/{\1}", path)


def error_type(error: BaseException) -> str:
    """Return the `error.type` of what was raised: a status, a probe's code, a class, or `cancelled`."""
    if not isinstance(error, Exception):
        return "cancelled"
    told = getattr(error, "status", None) or getattr(error, "code", None)
    kind = type(error)
    return str(told) if isinstance(told, str | int) else f"{kind.__module__}.{kind.__qualname__}"


def words(error: BaseException) -> str:
    """Return what was raised, in words."""
    if not isinstance(error, Exception):
        return "it was given up"
    return str(error) or type(error).__name__


class Call:
    """What calls have in common: they take time and end with an answer or an error."""

    __slots__ = ("_began", "_logger", "_span")

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._span: ClientSpan | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._span = client_span(self._name, self._question)
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = time.perf_counter() - self._began
        span, told_to = self._span, instruments()
        if self._logger.isEnabledFor(logging.INFO):
            self._log(seconds, error)
        if span is None and told_to is None:
            return
        outcome = self._outcome(error)
        if told_to is not None:  # while the span is current: an exporter may link the two
            self._measure(told_to, seconds, outcome)
        if span is not None:
            span.end(outcome, None if error is None else words(error))

    def _name(self) -> str:
        """Return the span's name, one of few."""
        raise NotImplementedError

    def _question(self) -> Attributes:
        """Return the span's attributes that are known beforehand."""
        raise NotImplementedError

    def _outcome(self, error: BaseException | None) -> Attributes:
        """Return the attributes, of the span and of measurements, that tell how it ended."""
        raise NotImplementedError

    def _log(self, seconds: float, error: BaseException | None) -> None:
        raise NotImplementedError

    def _measure(self, told_to: Instruments, seconds: float, outcome: Attributes) -> None:
        raise NotImplementedError


class HTTPRequest(Call):
    """One HTTP request.

    ```
    with HTTPRequest(logger, "GET", "https://10.0.0.1:6443", "/api/v1/pods", scope="all pods") as request:
        answer = await transport.get(...)
        request.answered(answer.status, len(answer.body))
    ```

    Args:
        logger: whose record it becomes.
        method: such as `GET`.
        server: `scheme://host:port`, without credentials.
        path: from `/`, without the query.
        scope: what is asked, in words.
        attempt: which attempt it is, from 1.
        query: what of the URL's query the text of the record shows.
        expected: statuses that are no failure here, whatever they are elsewhere.
    """

    __slots__ = (
        "_attempt",
        "_expected",
        "_method",
        "_path",
        "_query",
        "_scope",
        "_server",
        "_size",
        "_status",
    )

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
        super().__init__(logger)
        self._method = method
        self._server = server
        self._path = path
        self._scope = scope
        self._attempt = attempt
        self._query = query
        self._expected = expected
        self._status: int | None = None
        self._size: int | None = None

    def answered(self, status: int, size: int | None = None) -> None:
        """Note the answer: its HTTP status, and its bytes where it is whole by now."""
        self._status, self._size = status, size

    def _name(self) -> str:
        return f"{self._method} {path_template(self._path)}"

    def _question(self) -> Attributes:
        attributes: Attributes = {
            "http.request.method": self._method,
            **server_attributes(self._server),
            "url.full": self._server + self._path,
            "url.path": self._path,
            "url.scheme": urlsplit(self._server).scheme,
            "url.template": path_template(self._path),
            "aioresolve.scope": self._scope,
        }
        if self._attempt > 1:
            attributes["http.request.resend_count"] = self._attempt - 1
        return attributes

    def _outcome(self, error: BaseException | None) -> Attributes:
        outcome: Attributes = {} if self._status is None else {"http.response.status_code": self._status}
        if error is not None:
            outcome["error.type"] = error_type(error)
        elif self._status is not None and self._status >= 400 and self._status not in self._expected:
            outcome["error.type"] = str(self._status)
        return outcome

    def _log(self, seconds: float, error: BaseException | None) -> None:
        extra: dict[str, Any] = {
            "server": self._server,
            "scope": self._scope,
            "method": self._method,
            "path": self._path,
            "attempt": self._attempt,
            "seconds": seconds,
        }
        if self._status is not None:
            extra["status"] = self._status
        if self._size is not None:
            extra["size"] = self._size
        asked = f"{self._method} {self._server}{self._path}{'' if self._query is None else f' {self._query}'}"
        if error is not None:
            extra |= {"error": words(error), "error_type": error_type(error)}
            self._logger.info("%s failed after %.3f s: %s", asked, seconds, words(error), extra=extra)
        else:
            size = "" if self._size is None else f", {self._size} bytes"
            self._logger.info("%s: %s%s in %.3f s", asked, self._status, size, seconds, extra=extra)

    def _measure(self, told_to: Instruments, seconds: float, outcome: Attributes) -> None:
        attributes = {**server_attributes(self._server), **outcome}
        told_to.requests.add(1, attributes)
        asked = {"http.request.method": self._method, "url.scheme": urlsplit(self._server).scheme}
        told_to.request_seconds.record(seconds, {**attributes, **asked})


class WorkerProbing(Call):
    """The probe of one worker over gRPC.

    Args:
        logger: whose record it becomes.
        address: the worker, `host:port`.
        method: what it is asked first, `/package.Service/Method`.
    """

    __slots__ = ("_address", "_method", "_source")

    def __init__(self, logger: logging.Logger, address: str, method: str) -> None:
        super().__init__(logger)
        self._address = address
        self._method = method.lstrip("/")
        self._source: str | None = None

    def answered(self, source: str, method: str) -> None:
        """Note who told the devices, `tensorflow` or `libtpu`, and what that was asked."""
        self._source = source
        self._method = method.lstrip("/")
        if self._span is not None:
            self._span.rename(self._method)

    def _name(self) -> str:
        return self._method

    def _question(self) -> Attributes:
        system: Attributes = {
            "rpc.system": "grpc",  # its name until 1.38 of the conventions, by which many still look for it
            "rpc.system.name": "grpc",
        }
        return {**system, **server_attributes(f"//{self._address}")}

    def _outcome(self, error: BaseException | None) -> Attributes:
        outcome: Attributes = {"rpc.method": self._method}
        if error is not None:
            outcome["error.type"] = error_type(error)
        elif self._source is not None:
            outcome["rpc.response.status_code"] = "OK"
        return outcome

    def _log(self, seconds: float, error: BaseException | None) -> None:
        extra: dict[str, Any] = {"server": self._address, "seconds": seconds}
        if error is not None:
            extra |= {"error": words(error), "error_type": error_type(error)}
            self._logger.info(
                "probe of %s failed after %.3f s: %s", self._address, seconds, words(error), extra=extra
            )
        else:
            extra["source"] = self._source
            self._logger.info(
                "probe of %s: told by %s in %.3f s", self._address, self._source, seconds, extra=extra
            )

    def _measure(self, told_to: Instruments, seconds: float, outcome: Attributes) -> None:
        # Not by worker: a thousand of them would be a thousand histograms.
        told_to.probe_seconds.record(seconds, {"rpc.system.name": "grpc", **outcome})
