"""The checks of the way to an API server: each step of a request on its own, so that a failure has a name."""

from __future__ import annotations

import json
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.tls import TLSAttribute, TLSStream
from yarl import URL

from aioresolve._core.network import connect, origin
from aioresolve.errors import ConnectionFailedError, Hint, ProtocolError, TLSError, UnauthorizedError
from aioresolve.resolver.checks import SHARE, Finding, PlannedCheck, time_left
from aioresolve.resolver.wait import find_unreachable
from aioresolve.spec import host_port

from .api.client import ObjectAPI
from .api.errors import LIST_VERBS, WATCH_VERBS, error_from_response
from .api.objects import status_from_json
from .api.transport import HINTS, AiohttpTransport, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import Response

    from .api.queries import Query
    from .auth import Connection

SMALL_REQUESTS: Mapping[str, dict[str, str]] = {
    "list": {"limit": "1"},
    "watch": {"fieldSelector": "metadata.name=none", "watch": "true", "timeoutSeconds": "1"},
}
"""The verbs that a resolver needs, to the query of a small request with each."""

MAX_SKEW = 60.0
"""Seconds by which clocks may differ: the API server allows that much for the times in a token."""

SOON = timedelta(days=7)
"""A certificate that expires earlier causes a warning."""

OUT_OF_TIME = (9, 10)
"""OpenSSL's codes for a certificate that is not valid yet, or has expired."""

AUTHENTICATION = "authentication"
"""The last check: those that send requests come after it."""


@dataclass
class ServerChecks:
    """The checks, and what they have found for one another.

    Attributes:
        find_connection: returns the API server and the credentials.
        connection: what it returned.
        api: sends requests to the API server.
        objects: its objects.
        version: the response to a GET of /version.
        received_at: when that response arrived.
    """

    find_connection: Callable[[], Awaitable[Connection]]
    connection: Connection = field(init=False)
    api: AiohttpTransport = field(init=False)
    objects: ObjectAPI = field(init=False)
    version: Response = field(init=False)
    received_at: datetime = field(init=False)

    def plan(self) -> list[PlannedCheck]:
        """Return the checks in the order of a request."""
        server = ("configuration",)
        return [
            PlannedCheck("configuration", self._check_configuration),
            PlannedCheck("credentials", self._check_credentials, server),
            PlannedCheck("TCP", self._check_tcp, server),
            PlannedCheck("TLS", self._check_tls, ("TCP",)),
            PlannedCheck("API server", self._check_server, ("TLS", "credentials")),
            PlannedCheck("clock", self._check_clock, ("API server",)),
            PlannedCheck(AUTHENTICATION, self._check_authentication, ("API server",)),
        ]

    async def aclose(self) -> None:
        """Close the connections."""
        if hasattr(self, "api"):
            await self.api.aclose()

    async def _check_configuration(self, _: Progress) -> Finding:
        self.connection = connection = await self.find_connection()
        self.api = AiohttpTransport(connection)
        self.objects = ObjectAPI(self.api, max_concurrency=4)
        proxy = f" through the proxy {origin(connection.proxy)}" if connection.proxy else ""
        namespace = connection.namespace or "default"
        return Finding(f"{connection.server}{proxy} from {connection.source}, namespace {namespace!r}")

    async def _check_credentials(self, _: Progress) -> Finding:
        if not self.connection.server.startswith("https:"):
            return Finding("none are sent over plain http")
        identity, user = await self.connection.identity(), self.connection.user
        if identity.authorization is None and identity.certificate is None:
            hint = Hint("Add credentials to the user in the kubeconfig.")
            return Finding(f"{user}: requests are anonymous", "warning", hint)
        if identity.end is None:
            return Finding(user)
        until = f"{datetime.fromtimestamp(identity.end, UTC):%Y-%m-%dT%H:%M:%SZ}"
        if identity.end > time.time():
            return Finding(f"{user}, valid until {until}")
        return Finding(f"{user}, expired at {until}", "failed", Hint("Log in again, or renew them there."))

    @property
    def _first_hop(self) -> tuple[str, int]:
        url = URL(self.connection.proxy or self.connection.server)
        return url.host or "", url.port or 0

    async def _check_tcp(self, _: Progress) -> Finding:
        address, what = (
            host_port(*self._first_hop),
            "the proxy" if self.connection.proxy else "the API server",
        )
        started = time.monotonic()
        reasons = await find_unreachable([address], "tcp", timeout=SHARE * time_left())
        if reasons:
            hint = HINTS.proxy if self.connection.proxy else HINTS.reach
            raise ConnectionFailedError(reasons[address], hint=hint)
        milliseconds = (time.monotonic() - started) * 1000
        return Finding(f"connected to {what} at {address} in {milliseconds:.1f} ms")

    async def _check_tls(self, _: Progress) -> Finding:
        if self.connection.proxy is not None:
            return Finding("the certificate is checked by the next request, through the proxy", "skipped")
        context = await self.connection.server_verification()
        if context is None:
            return Finding("not used by http", "warning", Hint("Use https, unless this is a test."))
        where, host = origin(self.connection.server), self._first_hop[0]
        stream = await connect(*self._first_hop)
        try:
            tls = await TLSStream.wrap(
                stream,
                hostname=self.connection.tls_server_name or host,
                ssl_context=context,
                standard_compatible=False,
            )
            certificate = tls.extra(TLSAttribute.peer_certificate, None)  # noqa: S610 - not Django
        except ssl.SSLCertVerificationError as error:
            expired = "Renew the certificate of the server, and check the clocks of both machines."
            raise TLSError(
                f"the certificate of {where} was not accepted: {error.verify_message or error}",
                hint=expired if error.verify_code in OUT_OF_TIME else HINTS.certificate,
            ) from None
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
            text = getattr(error, "reason", None) or getattr(error, "strerror", None) or "connection closed"
            # OpenSSL names a reason in capitals, such as WRONG_VERSION_NUMBER.
            text = text.replace("_", " ").lower()
            raise TLSError(f"TLS with {where} failed: {text}", hint=HINTS.tls) from None
        finally:
            await anyio.aclose_forcefully(stream)
        if not certificate:
            hint = Hint("Replace insecure-skip-tls-verify by certificate-authority in the kubeconfig.")
            return Finding("the certificate is not verified", "warning", hint)
        return _describe_certificate(certificate)

    async def _check_server(self, _: Progress) -> Finding:
        self.version = await self.api.send(Request("GET", "/version"))
        self.received_at = datetime.now(UTC)
        status, where = self.version.status, self.api.host
        if status in (401, 403):
            return Finding(f"{where} responded; its version is unknown (status {status})")
        if status == 200:
            with suppress(ValueError, TypeError, KeyError):
                return Finding(f"Kubernetes {json.loads(self.version.body)['gitVersion']:.60}")
        if status >= 500:
            reason = status_from_json(self.version.body).message or "no reason given"
            hint = Hint("Try again later, or check the log of the API server.")
            return Finding(f"{where} returned status {status} ({reason[:300]!r})", "failed", hint)
        raise ProtocolError(
            f"{where} is not a Kubernetes API server: it returned status {status} to GET /version",
            hint="Correct the server in the kubeconfig: it may be a login page or another program.",
        )

    async def _check_clock(self, _: Progress) -> Finding:
        try:
            date = parsedate_to_datetime(self.version.headers.get("Date", ""))
        except ValueError:
            return Finding("the server does not report its time", "skipped")
        skew = (self.received_at - date.replace(tzinfo=date.tzinfo or UTC)).total_seconds()
        if abs(skew) <= MAX_SKEW:
            return Finding(f"differs from that of the server by {max(abs(skew) - 1, 0):.0f} s")
        direction = "ahead of" if skew > 0 else "behind"
        return Finding(
            f"the clock of this machine is {abs(skew):.0f} s {direction} that of the server",
            "failed",
            Hint("Synchronize both clocks (NTP): tokens and certificates are valid for a limited time only."),
        )

    async def _check_authentication(self, _: Progress) -> Finding:
        if self.version.status == 401:
            raise UnauthorizedError(
                f"{self.api.host} rejects the credentials ({self.connection.user}; from"
                f" {self.connection.source})",
                hint="Log in again, or renew the token there.",
                status=401,
            )
        return Finding("the server accepts the credentials")

    async def check_permission(self, verb: str, query: Query[Any]) -> Finding:
        """Return whether the user may use `verb` for what `query` requests.

        Raises:
            ForbiddenError: the user may not; it has the manifest that would allow it.
        """
        # A small request shows more than an access review: whether the API exists, and the name of the user.
        async with self.api.stream(query.path, SMALL_REQUESTS[verb]) as stream:
            response = stream.response
        if response.status == 200:
            return Finding(f"allowed in {query.where}")
        verbs = WATCH_VERBS if verb == "watch" else LIST_VERBS
        host, source = self.api.host, self.api.source
        raise error_from_response(response, query, host=host, source=source, verbs=verbs)


def _describe_certificate(certificate: Mapping[str, Any]) -> Finding:
    names = [name for _, name in certificate.get("subjectAltName", ())]
    end = datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)
    found = f"certificate for {', '.join(names)}, valid until {end:%Y-%m-%d}"
    if end - datetime.now(UTC) < SOON:
        return Finding(found, "warning", Hint("Renew the certificate of the server."))
    return Finding(found)
