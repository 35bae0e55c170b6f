"""The client of Google's JSON APIs: authorized requests with retries."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import anyio
from yarl import URL

from aioresolve._core.http import (
    CONNECT_TIMEOUT,
    Auth,
    Credentials,
    HTTPClient,
    environment_proxy,
    is_loopback,
    origin,
)
from aioresolve._core.retry import RetryPolicy, send_with_retries
from aioresolve.errors import ConfigurationError, CredentialsError, ProtocolError

from .api_request import ANONYMOUS, DEFAULT_UNIVERSE, NOT_MODIFIED, connection_hints
from .credentials import GoogleCredentials
from .google_errors import Principal, error_from_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import Response

    from .api_request import AccessToken, APIRequest

logger = logging.getLogger("aioresolve.gcp")


class Page(Protocol):
    """One page of a list."""

    @property
    def next_page_token(self) -> str:
        """The token of the next page; empty after the last one."""
        ...


T = TypeVar("T")
PageT = TypeVar("PageT", bound=Page)

MAX_PAGES = 1000
"""Maximum number of pages of a list: half a million items."""

MAX_CONCURRENCY = 16
"""Maximum number of requests of a session at a time."""

POLICY = RetryPolicy()
"""The waits between attempts."""

ENDPOINTS = {"tpu": "https://tpu.googleapis.com", "compute": "https://compute.googleapis.com"}
"""The default base URL of each API."""

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
"""The prefix of gcloud's variables for other base URLs, followed by `TPU` or `COMPUTE`."""

NO_PRINCIPAL = Principal("anonymous (no credentials are sent to a plain http endpoint)")

HINTS = connection_hints("Check that the endpoint is correct, and that the network allows the connection.")


class GoogleSession:
    """Sends requests to Google's JSON APIs, inside `async with`, for the tasks of one event loop.

    Credentials are sent only to the endpoints of the APIs, and never over plain http: an http endpoint must
    be on this machine, and gets anonymous requests.

    Args:
        credentials: credentials, which other sessions may share; application default credentials if None.
        endpoints: base URL by API (`tpu`, `compute`); the default is
            $CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU (or `_COMPUTE`), else Google's own.
    """

    def __init__(
        self, credentials: GoogleCredentials | None = None, *, endpoints: Mapping[str, str] | None = None
    ) -> None:
        self._credentials = credentials or GoogleCredentials()
        self._endpoints = _endpoints(endpoints or {}, os.environ)

    def __repr__(self) -> str:
        return f"<GoogleSession of {self._credentials!r}>"

    def host(self, service: str) -> str:
        """Return the endpoint of an API, `scheme://host:port`."""
        return origin(self._endpoints[service])

    async def send(self, request: APIRequest, progress: Progress) -> Response:
        """Send a request, with retries, and return the response.

        Its status is 200; or 304, without a body, if `request.known_tag` is still current.
        """
        response = await send_with_retries(
            lambda attempts: self._send(request, attempts, progress),
            scope=request.scope,
            host=self.host(request.service),
            progress=progress,
            policy=POLICY,
            limiter=self._limiter,
        )
        progress.done(request.scope, "received")
        return response

    async def send_pages(
        self, request: APIRequest, decode: Callable[[bytes], PageT], api: str, progress: Progress
    ) -> list[PageT]:
        """Send a request for a list, and those for its further pages, and return the pages.

        Args:
            request: the request for the first page.
            decode: returns the page in the body of a response; raises a ValueError for another format.
            api: the name and version of the API, for messages.
            progress: where the requests are noted.
        """
        pages: list[PageT] = []
        token, seen = "", set[str]()
        while True:
            page = self.decode(decode, await self.send(request.page(token), progress), request, api)
            pages.append(page)
            token = page.next_page_token
            if not token:
                return pages
            # A server that repeats a token would be requested until the deadline.
            if token in seen or len(pages) == MAX_PAGES:
                raise self._invalid_response(request, api, "its pages do not end")
            seen.add(token)

    def decode(self, decode: Callable[[bytes], T], response: Response, request: APIRequest, api: str) -> T:
        """Return the decoded body of a response; a ProtocolError if `decode` raises a ValueError."""
        try:
            return decode(response.body)
        except ValueError as error:
            raise self._invalid_response(request, api, str(error)) from error

    def _invalid_response(self, request: APIRequest, api: str, reason: str) -> ProtocolError:
        host = self.host(request.service)
        return ProtocolError(
            f"{host} returned an invalid response for {request.scope}, different from the {api}: {reason}",
            hint="Check that the endpoint is that API, without a login page in between.",
            host=host,
            scope=request.scope,
        )

    async def identify(self, service: str, progress: Progress) -> tuple[Principal, AccessToken]:
        """Return the identity of requests to an API and their access token. The API gets no request.

        Raises:
            ResolveError: no token is available.
        """
        if self.host(service).startswith("http:"):
            return NO_PRINCIPAL, ANONYMOUS
        token = await self._credentials.token(self._client, progress)
        return self._credentials.principal, token

    async def __aenter__(self) -> Self:
        self._client = HTTPClient(
            hints=HINTS, connect_timeout=CONNECT_TIMEOUT, proxy=environment_proxy, logger=logger
        )
        self._limiter = anyio.CapacityLimiter(MAX_CONCURRENCY)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def _send(self, request: APIRequest, attempts: Iterator[int], progress: Progress) -> Response:
        host = self.host(request.service)
        is_anonymous = host.startswith("http:")
        headers = {"Accept": "application/json"}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        if request.known_tag:
            headers["If-None-Match"] = request.known_tag
        response = await self._client.send(
            request.method,
            URL(self._endpoints[request.service] + request.path).with_query(request.query),
            scope=request.scope,
            headers=headers,
            body=request.body,
            auth=Auth()
            if is_anonymous
            else _RequestAuth(self._credentials, self._client, request, host, progress),
            attempts=attempts,
        )
        if response.status == 200 or (request.known_tag and response.status == NOT_MODIFIED):
            return response
        principal = NO_PRINCIPAL if is_anonymous else self._credentials.principal
        raise error_from_response(response, request, host=host, principal=principal)


@dataclass(eq=False, repr=False)
class _RequestAuth(Auth):
    """The access token of one request."""

    google: GoogleCredentials
    client: HTTPClient
    request: APIRequest
    host: str
    progress: Progress
    token: AccessToken = ANONYMOUS

    async def credentials(self) -> Credentials:
        scope, source = self.request.scope, self.google.principal.source
        self.progress.waiting(scope, f"no access token yet, from {source}")
        self.token = await self.google.token(self.client, self.progress)
        self.progress.waiting(scope, f"{self.host} has not responded")
        return self._for_host(self.token)

    async def renew(self, rejected: Credentials, response: Response) -> Credentials | None:
        if not rejected.headers:
            return None
        try:
            return self._for_host(await self.google.renew(self.client, self.token, self.progress))
        except CredentialsError as error:
            if error.retryable:
                raise
            # The rejection is the error to report, and the failed renewal is its cause.
            principal = self.google.principal
            raise error_from_response(response, self.request, host=self.host, principal=principal) from error

    def _for_host(self, token: AccessToken) -> Credentials:
        """Return the headers; a ConfigurationError if they would be sent to the APIs of another cloud."""
        domain = (URL(self.host).host or "").removesuffix(".")
        if token.universe != DEFAULT_UNIVERSE and f".{domain}".endswith(f".{DEFAULT_UNIVERSE}"):
            service, universe = self.request.service, token.universe
            raise ConfigurationError(
                f"the credentials of {self.google.principal.source} are of the cloud {universe}, but"
                f" {self.request.scope} would be requested from {self.host}",
                hint=f"Set {OVERRIDE}{service.upper()}=https://{service}.{universe},"
                " or use other credentials.",
            )
        return Credentials(token.headers)


def _endpoints(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the base URL of each API, without a trailing slash."""
    endpoints = {}
    for service, default in ENDPOINTS.items():
        variable = OVERRIDE + service.upper()
        if service in given:
            endpoints[service] = _endpoint(given[service], f"endpoints[{service!r}]")
        elif environ.get(variable):
            # The overrides of gcloud end in a slash, and that of Compute Engine in its version.
            url = _endpoint(environ[variable], f"the environment variable {variable}")
            endpoints[service] = url.removesuffix("/compute/v1")
        else:
            endpoints[service] = default
    return endpoints


def _endpoint(text: str, where: str) -> str:
    """Return a base URL without a trailing slash, if it is valid and credentials may be sent there."""
    hint = "Write it as https://HOST."
    try:
        url = URL(text)
    except (ValueError, TypeError):
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"{where} is not a URL", hint=hint)
    if url.user or url.password or url.query_string or url.fragment:
        raise ConfigurationError(f"{where} has a user, a query or a fragment", hint=hint)
    if url.scheme == "http" and not is_loopback(url.host or ""):
        raise ConfigurationError(
            f"{where} is {origin(text)}, to which requests would be sent unencrypted",
            hint=f"{hint} Plain http is possible on this machine only.",
        )
    return str(url).rstrip("/")
