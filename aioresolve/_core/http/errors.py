"""What can go wrong with a request: an error of aiohttp, TLS or a socket -> one of ours. Pure."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiohttp
import aiohttp.http

from aioresolve.errors import ConfigurationError, ConnectionFailedError, ProtocolError, ResolveError, TLSError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAILURES", "Exchange", "Mends", "connection_error", "harmless_cause"]

FAILURES = (aiohttp.ClientError, aiohttp.http.HttpProcessingError, aiohttp.EofStream, OSError, ValueError)
"""What aiohttp raises where no whole answer comes back; `connection_error` tells them apart."""


@dataclass(frozen=True, slots=True)
class Mends:
    """What to do about each failure, in words that end its message.

    Attributes:
        certificate: the server's certificate is not accepted.
        tls: TLS fails otherwise.
        name: the host's name is not found.
        proxy: the proxy does not let us through.
        url: the URL is none.
        protocol: what answers speaks no HTTP.
        reach: the server is not reached.
        length: the answer is too long to be one.
        owner: whose end closes the connections, in a word: a `session`.
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


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer, as messages tell of them.

    Attributes:
        scope: what is asked.
        host: the server, `scheme://host:port`.
        where: the server and the way to it.
        mends: what to do where it fails.
        is_over: whether whoever asked has closed the connection meanwhile.
    """

    scope: str
    host: str
    where: str
    mends: Mends
    is_over: Callable[[], bool]

    def closed_meanwhile(self) -> ConnectionFailedError:
        """Return the error of a request that whoever made it did not wait for."""
        return ConnectionFailedError(
            f"{self.scope} was not answered by {self.host}: the {self.mends.owner} was closed meanwhile;"
            " let its calls end inside its `async with`",
            host=self.host,
            scope=self.scope,
            retryable=False,
        )

    def too_long(self, limit: int) -> ProtocolError:
        """Return the error of an answer of more than `limit` bytes."""
        return ProtocolError(
            f"the answer of {self.host} to {self.scope} is longer than {limit >> 20} MiB and was not read on;"
            f" {self.mends.length}",
            host=self.host,
            scope=self.scope,
        )


def connection_error(error: Exception, exchange: Exchange) -> ResolveError:
    """Return our error for one of `FAILURES`."""
    kind: type[ConnectionFailedError | ProtocolError] = ConnectionFailedError
    where, scope, mends = exchange.where, exchange.scope, exchange.mends
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            kind, mend = TLSError, mends.certificate
            said = f"the certificate of {where} was not accepted: {_certificate_reason(error)}"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            kind, mend = TLSError, mends.tls
            said = f"TLS with {where} failed: {_words(error)}"
        case aiohttp.ClientConnectorDNSError():
            mend = mends.name
            said = f"the name of {where} was not found: {error.os_error.strerror or error}"
        case aiohttp.ClientHttpProxyError():
            mend = mends.proxy
            said = f"{where} was not reached: the proxy answered {error.status}"
        case aiohttp.InvalidURL():
            return ConfigurationError(f"the URL of {scope} is none: {mends.url}")
        case aiohttp.ClientResponseError() | aiohttp.http.HttpProcessingError() | ValueError():
            kind, mend = ProtocolError, mends.protocol
            said = f"{where} answered {scope} with what is no HTTP ({type(error).__name__})"
        case OSError(errno=errno.EMFILE | errno.ENFILE):
            mend = "raise its limit (`ulimit -n`), or let it hold fewer open at a time"
            said = f"{where} was not reached: this process has too many files and sockets open"
        case _ if _is_broken(error):
            mend = "try again"
            said = f"the connection to {where} broke during {scope}: {_words(error)}"
        case _:
            mend = mends.reach
            said = f"{where} was not reached: {_words(error)}"
    return kind(f"{said}; {mend}", host=exchange.host, scope=scope, retryable=_passes(error))


def harmless_cause(error: Exception) -> Exception | None:
    """Return what `error` came from, as far as that may be shown.

    aiohttp's own errors hold the headers that were sent, the proxy's URL with its password, and what the
    server sent back; every traceback and error report would show them.
    """
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


def _is_broken(error: Exception) -> bool:
    """Whether there was a connection, and it broke."""
    broken = (
        aiohttp.ClientPayloadError,
        aiohttp.ServerDisconnectedError,
        aiohttp.EofStream,
        aiohttp.ClientOSError,
        ConnectionError,
    )
    return isinstance(error, broken) and not isinstance(error, aiohttp.ClientConnectorError)


def _passes(error: Exception) -> bool | None:
    """Whether asking again can help; None where that is as with every error of the kind."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            return getattr(error.os_error, "errno", None) == socket.EAI_AGAIN
        case aiohttp.ClientHttpProxyError():
            return error.status >= 500
    return None


def _words(error: Exception) -> str:
    match error:
        case aiohttp.ClientPayloadError():
            return "the answer was not whole"
        case aiohttp.ServerDisconnectedError() | aiohttp.EofStream():
            return "the server hung up"
    return str(error) or type(error).__name__


def _certificate_reason(error: Exception) -> str:
    cause = getattr(error, "certificate_error", error)
    return getattr(cause, "verify_message", "") or str(cause)
