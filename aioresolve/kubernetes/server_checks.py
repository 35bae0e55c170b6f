"""The checks of the way to an API server: each step of a request on its own, so that a failure has a name.

Access reviews:
https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access
"""

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

from aioresolve._core.network import connect, look_up, origin
from aioresolve.errors import (
    ConnectionFailedError,
    ForbiddenError,
    Hint,
    ProtocolError,
    TLSError,
    UnauthorizedError,
)
from aioresolve.resolver.checks import SHARE, Finding, PlannedCheck, time_left
from aioresolve.resolver.wait import find_unreachable
from aioresolve.spec import host_port

from .api.client import HINTS, AiohttpTransport
from .api.errors import error_from_response
from .api.objects import status_from_json
from .auth.tls import read_certificate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import Response

    from .api.objects import Query
    from .auth import Connection

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

NOTHING = {"fieldSelector": "metadata.name=none"}
VERBS: Mapping[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "list": ({"limit": "1"}, ("list",)),
    "watch": ({**NOTHING, "watch": "true", "timeoutSeconds": "1"}, ("list", "watch")),
}
"""What a resolver needs: verb to the query of a small request with it, and the verbs to grant for it."""

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
        version: the response to a GET of /version.
        received_at: when that response arrived.
    """

    find_connection: Callable[[], Awaitable[Connection]]
    connection: Connection = field(init=False)
    version: Response = field(init=False)
    received_at: datetime = field(init=False)
    _transport: AiohttpTransport | None = None

    @property
    def api(self) -> AiohttpTransport:
        """The client of the API server."""
        assert self._transport is not None, "the check of the configuration comes first"
        return self._transport

    @property
    def namespace(self) -> str:
        """The namespace that kubectl would use; raises a ConfigurationError if it is not valid."""
        return self.connection.default_namespace()

    def plan(self) -> list[PlannedCheck]:
        """Return the checks in the order of a request."""
        server = ("configuration",)
        return [
            PlannedCheck("configuration", self._check_configuration),
            PlannedCheck("credentials", self._check_credentials, server),
            PlannedCheck("server name", self._check_name, server),
            PlannedCheck("TCP", self._check_tcp, ("server name",)),
            PlannedCheck("TLS", self._check_tls, ("TCP",)),
            PlannedCheck("API server", self._check_server, ("TLS", "credentials")),
            PlannedCheck("clock", self._check_clock, ("API server",)),
            PlannedCheck(AUTHENTICATION, self._check_authentication, ("API server",)),
        ]

    async def aclose(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.aclose()

    async def _check_configuration(self, _: Progress) -> Finding:
        self.connection = await self.find_connection()
        self._transport = AiohttpTransport(self.connection)
        proxy = f" through the proxy {origin(self.connection.proxy)}" if self.connection.proxy else ""
        namespace = self.connection.namespace or "default"
        return Finding(
            f"{self.connection.server}{proxy} from {self.connection.source}, namespace {namespace!r}"
        )

    async def _check_credentials(self, _: Progress) -> Finding:
        if not self.connection.server.startswith("https:"):
            return Finding("none are sent over plain http")
        identity = await self.connection.identity()
        user = self.connection.user
        if identity.authorization is None and identity.certificate is None:
            return Finding(
                f"{user}: requests are anonymous",
                "warning",
                Hint("Add credentials to the user in the kubeconfig."),
            )
        expires = identity.end
        if expires is None:
            return Finding(user)
        until = datetime.fromtimestamp(expires, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        if expires > time.time():
            return Finding(f"{user}, valid until {until}")
        return Finding(f"{user}, expired at {until}", "failed", Hint("Log in again, or renew them there."))

    @property
    def _first_hop(self) -> URL:
        return URL(self.connection.proxy or self.connection.server)

    async def _check_name(self, _: Progress) -> Finding:
        host, port = self._first_hop.host or "", self._first_hop.port or 0
        what = "the proxy" if self.connection.proxy else "the API server"
        try:
            addresses = await look_up(host, port)
        except OSError as error:
            raise ConnectionFailedError(
                f"the name {host!r} of {what} was not found: {error.strerror or error}",
                hint=HINTS.proxy if self.connection.proxy else HINTS.name,
            ) from None
        found = ", ".join(dict.fromkeys(address.host for address in addresses))
        return Finding(f"{what} is at {found}" if found == host else f"{host!r} of {what} is {found}")

    async def _check_tcp(self, _: Progress) -> Finding:
        address = host_port(self._first_hop.host or "", self._first_hop.port or 0)
        started = time.monotonic()
        reasons = await find_unreachable([address], "tcp", timeout=SHARE * time_left())
        if reasons:
            hint = HINTS.proxy if self.connection.proxy else HINTS.reach
            raise ConnectionFailedError(reasons[address], hint=hint)
        return Finding(f"connected to {address} in {(time.monotonic() - started) * 1000:.1f} ms")

    async def _check_tls(self, _: Progress) -> Finding:
        server = URL(self.connection.server)
        if server.scheme != "https":
            return Finding("not used by http", "warning", Hint("Use https, unless this is a test."))
        if self.connection.proxy is not None:
            return Finding("the certificate is checked by the next request, through the proxy", "skipped")
        context = await self.connection.server_verification()
        assert context is not None
        where = origin(self.connection.server)
        try:
            certificate = await self._handshake(server, context)
        except ssl.SSLCertVerificationError as error:
            reason, code = error.verify_message or str(error), error.verify_code
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError) as error:
            text = getattr(error, "reason", None) or getattr(error, "strerror", None) or "connection closed"
            # OpenSSL names a reason in capitals, such as WRONG_VERSION_NUMBER.
            text = text.replace("_", " ").lower()
            raise TLSError(f"TLS with {where} failed: {text}", hint=HINTS.tls) from None
        else:
            return _describe_certificate(certificate, is_verified=context.verify_mode is not ssl.CERT_NONE)
        shown = await self._show_certificate(server)
        expired = "Renew the certificate of the server, and check the clocks of both machines."
        raise TLSError(
            f"the certificate of {where} was not accepted: {reason}{shown}",
            hint=expired if code in OUT_OF_TIME else HINTS.certificate,
        )

    async def _handshake(self, server: URL, context: ssl.SSLContext) -> bytes:
        """Return the certificate of the server, in DER. Nothing else is sent."""
        host = server.host or ""
        stream = await connect(host, server.port or 443)
        try:
            tls = await TLSStream.wrap(
                stream,
                hostname=self.connection.tls_server_name or host,
                ssl_context=context,
                standard_compatible=False,
            )
            return tls.extra(TLSAttribute.peer_certificate_binary) or b""  # noqa: S610 - not Django
        finally:
            await anyio.aclose_forcefully(stream)

    async def _show_certificate(self, server: URL) -> str:
        """Return what the certificate says that was not accepted."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with suppress(OSError, ValueError, anyio.EndOfStream, anyio.BrokenResourceError):
            return f" (it is {read_certificate(await self._handshake(server, context))})"
        return ""

    async def _check_server(self, _: Progress) -> Finding:
        self.version = await self.api.send("GET", "/version", {})
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
            skew = (self.received_at - date.replace(tzinfo=date.tzinfo or UTC)).total_seconds()
        except ValueError:
            return Finding("the server does not report its time", "skipped")
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
                f" {self.connection.source}), also after they were renewed",
                hint="Log in again, or renew the token there.",
                status=401,
            )
        return Finding("the server accepts the credentials")

    async def check_permission(self, verb: str, query: Query[Any]) -> Finding:
        """Return whether the user may use `verb` for what `query` requests.

        Raises:
            ForbiddenError: the user may not; it has the manifest that would allow it.
        """
        resource = query.resource
        attributes = {"namespace": query.namespace or "", "verb": verb, "resource": resource.name}
        if resource.group:
            attributes["group"] = resource.group
        review = {
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": attributes},
        }
        response = await self.api.send("POST", REVIEWS, {}, body=json.dumps(review).encode())
        allowed = None
        with suppress(ValueError, TypeError, KeyError):  # a server may have no reviews, or deny them
            allowed = bool(json.loads(response.body)["status"]["allowed"])
        if allowed:
            return Finding(f"allowed in {query.where}")
        parameters, verbs = VERBS[verb]
        # The response to a request has more than the review: the name of the user, which a binding needs.
        denied = await self.api.send("GET", query.path, parameters)
        if denied.status != 200:
            raise error_from_response(denied, query, host=self.api.host, source=self.api.source, verbs=verbs)
        if allowed is None:
            return Finding(f"allowed in {query.where}, but the server reviews no access", "ok")
        raise ForbiddenError(
            f"the server reports that this user may not {verb} {resource.name} in {query.where}",
            hint="Have a cluster administrator grant that permission.",
        )


def _describe_certificate(der: bytes, *, is_verified: bool) -> Finding:
    try:
        certificate = read_certificate(der)
    except ValueError as error:
        return Finding(f"established; the certificate cannot be described ({error})")
    if not is_verified:
        hint = Hint("Replace insecure-skip-tls-verify by certificate-authority in the kubeconfig.")
        return Finding(f"the certificate is not verified; it is {certificate}", "warning", hint)
    if certificate.not_after - datetime.now(UTC) < SOON:
        return Finding(f"certificate {certificate}", "warning", Hint("Renew the certificate of the server."))
    return Finding(f"certificate {certificate}")
