"""Errors of aiohttp, TLS and sockets, translated to errors of aioresolve. No I/O."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING

import aiohttp
import aiohttp.http
import msgspec

from aioresolve.errors import (
    ConfigurationError,
    ConnectionFailedError,
    Hint,
    ProtocolError,
    ResolveError,
    TLSError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

FAILURES = (aiohttp.ClientError, aiohttp.http.HttpProcessingError, aiohttp.EofStream, OSError, ValueError)
"""What aiohttp raises if there is no complete response; `connection_error` distinguishes the causes."""

_BROKEN = (
    aiohttp.ClientPayloadError,
    aiohttp.ServerDisconnectedError,
    aiohttp.EofStream,
    aiohttp.ClientOSError,
    ConnectionError,
)
"""The errors of a connection that breaks after it was established."""


class ConnectionHints(msgspec.Struct, frozen=True):
    """The hint of each kind of failure, for one kind of server (see `connection_error`).

    `owner` is the object whose `async with` owns the connections: `session`, `resolver`.
    """

    certificate: str
    tls: str
    name: str
    proxy: str
    url: str
    protocol: str
    reach: str
    length: str
    owner: str


class RequestContext(msgspec.Struct, frozen=True):
    """One request, as error messages describe it.

    `scope` is the requested resource as text, `host` is `scheme://host:port`, `where` adds how the host is
    reached, and `is_closed` returns whether the owner of the connection has closed it.
    """

    scope: str
    host: str
    where: str
    hints: ConnectionHints
    is_closed: Callable[[], bool]

    def closed_error(self) -> ConnectionFailedError:
        """Return the error of a request whose connection was closed by its owner."""
        return ConnectionFailedError(
            f"{self.scope} got no response from {self.host}: the {self.hints.owner} was closed",
            hint="Keep its `async with` open until its calls end.",
            host=self.host,
            scope=self.scope,
            retryable=False,
        )

    def length_error(self, limit: int) -> BodyTooLongError:
        """Return the error of a response of more than `limit` bytes."""
        return BodyTooLongError(
            f"the response of {self.host} to {self.scope} exceeds the limit of {limit >> 20} MiB",
            hint=self.hints.length,
            host=self.host,
            scope=self.scope,
        )


class BodyTooLongError(ProtocolError):
    """The body of a response exceeds the limit. A request for less may succeed."""


def connection_error(error: Exception, context: RequestContext) -> ResolveError:
    """Return our error for one of `FAILURES`."""
    kind: type[ConnectionFailedError | ProtocolError] = ConnectionFailedError
    is_retryable: bool | None = None  # that of the class
    where, scope, hints = context.where, context.scope, context.hints
    # The order matters: most of these classes are OSErrors or ValueErrors too.
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            kind, hint = TLSError, hints.certificate
            cause = getattr(error, "certificate_error", error)
            reason = getattr(cause, "verify_message", "") or cause
            summary = f"the certificate of {where} was not accepted: {reason}"
        case _ if isinstance(error, aiohttp.ClientConnectorSSLError | ssl.SSLError) or _alert(error):
            kind, hint = TLSError, hints.tls
            summary = f"TLS with {where} failed: {_text(error)}"
        # The second one for an address with an invalid zone, which aiohttp does not look up.
        case aiohttp.ClientConnectorDNSError() | aiohttp.ClientConnectorError(os_error=socket.gaierror()):
            hint, is_retryable = hints.name, error.os_error.errno == socket.EAI_AGAIN
            summary = f"the name of {where} was not found: {error.os_error.strerror or error}"
        case aiohttp.ClientHttpProxyError():
            hint, is_retryable = hints.proxy, error.status >= 500
            summary = f"cannot connect to {where}: the proxy returned status {error.status}"
        case aiohttp.InvalidURL():
            return ConfigurationError(f"invalid URL for {scope}", hint=hints.url)
        case aiohttp.ClientResponseError() | aiohttp.http.HttpProcessingError() | ValueError():
            kind, hint = ProtocolError, hints.protocol
            summary = f"{where} returned a non-HTTP response to {scope} ({type(error).__name__})"
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            hint = "Raise its limit (`ulimit -n`), or keep fewer open at a time."
            summary = f"cannot connect to {where}: this process has too many files and sockets open"
        case _ if isinstance(error, _BROKEN) and not isinstance(error, aiohttp.ClientConnectorError):
            hint = "Try again."
            summary = f"the connection to {where} broke during {scope}: {_text(error)}"
        case _:
            hint = hints.reach
            summary = f"cannot connect to {where}: {_text(error)}"
    translated = kind(summary.rstrip("."), hint=Hint(hint), host=context.host, scope=scope)
    if is_retryable is not None:
        translated.retryable = is_retryable
    return translated


def safe_cause(error: Exception) -> Exception | None:
    """Return the cause of `error` to show in tracebacks, without secrets; None without one."""
    # The errors of aiohttp contain the headers that were sent, the URL of the proxy with its password, and
    # the response.
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return error.certificate_error
        case aiohttp.ClientConnectorError():
            return error.os_error
        case aiohttp.ClientOSError():
            return OSError(*error.args)
        case aiohttp.ClientError() | aiohttp.http.HttpProcessingError() | aiohttp.EofStream():
            return None
    return error


def _alert(error: Exception) -> str | None:
    """Return OpenSSL's reason if the server closed the connection with a TLS alert.

    In TLS 1.3 a server can reject the client's certificate only after the handshake, from the client's view.
    """
    if not isinstance(error, aiohttp.ClientOSError) or isinstance(error, aiohttp.ClientConnectorError):
        return None
    reason = getattr(error.__cause__, "reason", None)
    if not isinstance(reason, str):
        # aiohttp drops the cause if nothing waited for the response yet. "[SSL: REASON] text (_ssl.c:1)"
        found = re.match(r"\[\w+: (\w+)\]", error.strerror or "")
        reason = "" if found is None else found[1]
    return reason if "_ALERT_" in reason else None


def _text(error: Exception) -> str:
    match error:
        case aiohttp.ClientPayloadError():
            return "the response was incomplete"
        case aiohttp.ServerDisconnectedError() | aiohttp.EofStream() | aiohttp.ClientOSError(errno=None):
            return "the server closed the connection"
        case TimeoutError():
            return "timed out"
    if (alert := _alert(error)) is not None:
        return alert.replace("_", " ").lower()
    # The texts of aiohttp and asyncio have internals: `ssl:<ssl.SSLContext object at 0x...>`, `(_ssl.c:1)`.
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error.__cause__ or error
    if isinstance(cause, ssl.SSLError):
        # Only those of OpenSSL have a reason.
        return (getattr(cause, "reason", None) or str(cause)).replace("_", " ").lower()
    if isinstance(cause, OSError) and cause.errno:
        text = os.strerror(cause.errno)
        return text[0].lower() + text[1:]
    return str(cause) or type(cause).__name__
