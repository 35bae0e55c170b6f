"""Requests to Google's JSON APIs, with retries, and their failures.

Formats of failures: `google/rpc/error_details.proto`. Reasons: `google/api/error_reason.proto`, and those of
Compute Engine's legacy errors.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, TypeVar

import anyio
import msgspec
from yarl import URL

from aioresolve._core.deadline import RETRYABLE_STATUSES, RetryPolicy, send_with_retries
from aioresolve._core.http import CONNECT_TIMEOUT, Auth, Credentials, HTTPClient
from aioresolve._core.network import environment_proxy, is_loopback, origin
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    CredentialsError,
    ForbiddenError,
    Hint,
    ProtocolError,
    ResolveError,
    UnauthorizedError,
)

from .credentials import ANONYMOUS, GOOGLE, AccessToken, GoogleCredentials, decode
from .metadata_server import connection_hints

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import Response

logger = logging.getLogger("aioresolve.gcp")

T = TypeVar("T")

MAX_PAGES = 1000
"""Maximum number of pages of a list: half a million items."""

MAX_CONCURRENCY = 16
"""Maximum number of requests of a session at a time."""

POLICY = RetryPolicy()
"""The waits between attempts."""

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
"""The prefix of gcloud's variables for other base URLs, followed by `TPU` or `COMPUTE`."""

NO_TOKEN = AccessToken("anonymous (no credentials are sent to a plain http endpoint)")

RATE_LIMITED = frozenset({"RATE_LIMIT_EXCEEDED", "rateLimitExceeded", "userRateLimitExceeded"})
"""Reasons for a 403 or 429 that end within a minute."""


class Service(NamedTuple):
    """An API: its names, its base URL, the smallest role that may read it, and the command that lists it."""

    short_name: str
    name: str
    url: str
    role: str
    list_command: str


TPU = Service(
    "tpu",
    "Cloud TPU API",
    "https://tpu.googleapis.com",
    "roles/tpu.viewer",
    "tpus tpu-vm list --project={project_id} --zone=-",
)
COMPUTE = Service(
    "compute",
    "Compute Engine API",
    "https://compute.googleapis.com",
    "roles/compute.viewer",
    "instance-groups list --project={project_id}",
)


@dataclass(frozen=True, slots=True)
class APIRequest:
    """A request to an API; it may be repeated, because it changes nothing.

    Attributes:
        path: the path of the URL, starting with `/`, made of validated names.
        scope: the requested resource, as text for messages.
        permission: the IAM permission it requires, such as `tpu.nodes.get`.
        project: the project of the resource.
        query: the parameters of the URL.
        body: the body of a POST, as for some lists of Compute Engine; None for a GET.
    """

    path: str
    scope: str
    permission: str
    project: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


class Page(msgspec.Struct, Generic[T], frozen=True, rename="camel"):
    """One page of a list. Each API has its own field for the items.

    `next_page_token` is empty in the last page.
    """

    items: tuple[T, ...] = ()
    nodes: tuple[T, ...] = ()
    managed_instances: tuple[T, ...] = ()
    next_page_token: str = ""


class GoogleSession:
    """Sends requests to one of Google's JSON APIs, inside `async with`, for the tasks of one event loop.

    Credentials are sent only to the endpoint of the API, and never over plain http: an http endpoint must be
    on this machine, and gets anonymous requests.

    Args:
        service: the API.
        credentials: credentials, which other sessions may share.
        base_url: the base URL of the API; the default is $CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU (or
            `_COMPUTE`), else Google's own.
    """

    def __init__(self, service: Service, credentials: GoogleCredentials, base_url: str | None = None) -> None:
        self.service = service
        self._credentials = credentials
        self._base_url = _endpoint(service, base_url)
        self.host = origin(self._base_url)

    async def get(self, request: APIRequest, kind: type[T], progress: Progress) -> T:
        """Return a resource, decoded as `kind`."""
        return await self._fetch(request, request.query, kind, progress)

    async def get_pages(self, request: APIRequest, kind: type[Page[T]], progress: Progress) -> list[Page[T]]:
        """Return all pages of a list."""
        pages: list[Page[T]] = []
        query = request.query
        while len(pages) < MAX_PAGES:
            pages.append(await self._fetch(request, query, kind, progress))
            if not (token := pages[-1].next_page_token):
                return pages
            query = {**request.query, "pageToken": token}
        raise self._invalid_response(request, "its pages do not end")

    async def identify(self, progress: Progress) -> AccessToken:
        """Return the access token for requests to the API, which itself gets no request."""
        if self.host.startswith("http:"):
            return NO_TOKEN
        return await self._credentials.token(self._client, progress)

    async def __aenter__(self) -> Self:
        self._client = HTTPClient(
            hints=connection_hints(
                "Check that the endpoint is correct, and that the network allows the connection."
            ),
            connect_timeout=CONNECT_TIMEOUT,
            proxy=environment_proxy,
            logger=logger,
        )
        self._limiter = anyio.CapacityLimiter(MAX_CONCURRENCY)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.aclose()

    async def _fetch(
        self, request: APIRequest, query: Mapping[str, str], kind: type[T], progress: Progress
    ) -> T:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}

        async def send(attempts: Iterator[int]) -> Response:
            auth = _RequestAuth(self, request, progress)
            response = await self._client.send(
                "GET" if request.body is None else "POST",
                URL(self._base_url + request.path).with_query(query),
                scope=request.scope,
                headers=headers,
                body=request.body,
                auth=auth,
                attempts=attempts,
            )
            if response.status == 200:
                return response
            raise error_from_response(response, request, self, auth.token)

        response = await send_with_retries(
            send, scope=request.scope, host=self.host, progress=progress, policy=POLICY, limiter=self._limiter
        )
        progress.done(request.scope, "received")
        try:
            return decode(response.body, kind)
        except ValueError as error:
            raise self._invalid_response(request, str(error)) from error

    def _invalid_response(self, request: APIRequest, reason: str) -> ProtocolError:
        return ProtocolError(
            f"{self.host} returned an invalid response for {request.scope}, different from the"
            f" {self.service.name}: {reason}",
            hint="Check that the endpoint is that API, without a login page in between.",
            host=self.host,
            scope=request.scope,
        )


@dataclass(eq=False, repr=False)
class _RequestAuth(Auth):
    """The access token of one request."""

    session: GoogleSession
    request: APIRequest
    progress: Progress
    token: AccessToken = ANONYMOUS

    async def credentials(self) -> Credentials:
        scope, name = self.request.scope, self.session.service.short_name
        self.progress.waiting(scope, f"no access token yet, from {self.session._credentials.source}")
        self.token = await self.session.identify(self.progress)
        host, cloud = self.session.host, self.token.cloud
        self.progress.waiting(scope, f"{host} has not responded")
        if cloud != GOOGLE and host.endswith(f".{GOOGLE}"):
            raise ConfigurationError(
                f"the credentials of {self.token.source} are of the cloud {cloud}, but {scope} would be"
                f" requested from {host}",
                hint=f"Set {OVERRIDE}{name.upper()}=https://{name}.{cloud}, or use other credentials.",
            )
        return Credentials(self.token.headers)

    async def renew(self, rejected: Credentials, response: Response) -> Credentials | None:
        if not rejected.headers:
            return None
        session = self.session
        try:
            self.token = await session._credentials.renew(session._client, self.token, self.progress)
        except CredentialsError as error:
            if error.retryable:
                raise
            # The rejection is the error to report, and the failed renewal is its cause.
            raise error_from_response(response, self.request, session, self.token) from error
        return Credentials(self.token.headers)


def _endpoint(service: Service, text: str | None) -> str:
    """Return the base URL of an API, without a trailing slash, if credentials may be sent there."""
    where = "the URL of the API"
    if text is None:
        variable = OVERRIDE + service.short_name.upper()
        # The overrides of gcloud end in a slash, and that of Compute Engine in its version.
        text, where = os.environ.get(variable, "").rstrip("/"), f"the environment variable {variable}"
        text = text.removesuffix("/compute/v1")
    if not text:
        return service.url
    problem = ""
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        problem = "is not a URL"
    elif url.user or url.password or url.query_string or url.fragment:
        problem = "has a user, a query or a fragment"
    elif url.scheme == "http" and not is_loopback(url.host):
        problem = f"is {origin(text)}, to which requests would be sent unencrypted"
    if problem:
        raise ConfigurationError(
            f"{where} {problem}",
            hint="Write it as https://HOST. Plain http is possible on this machine only.",
        )
    return str(url).rstrip("/")


# Failures


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    reason: str = ""
    metadata: dict[str, str] = {}


class Failure(msgspec.Struct, frozen=True):
    """Why an API denied a request; fields that it does not report are empty.

    `status` is the name of the gRPC code (`PERMISSION_DENIED`); the reasons are more specific
    (`SERVICE_DISABLED`).
    """

    message: str = ""
    status: str = ""
    details: tuple[_Detail, ...] = ()
    errors: tuple[_Detail, ...] = ()  # of Compute Engine's legacy format

    @property
    def explanation(self) -> _Detail:
        """The first detail with a reason, and its metadata."""
        return next((each for each in (*self.details, *self.errors) if each.reason), _Detail())


class _FailureBody(msgspec.Struct, frozen=True):
    error: Failure


def error_from_response(
    response: Response, request: APIRequest, session: GoogleSession, token: AccessToken
) -> ResolveError:
    """Return the error for a response whose status is not 200."""
    status, service, host = response.status, session.service, session.host
    try:
        failure = decode(response.body, _FailureBody).error
    except ValueError:  # from a proxy, for example: a page, or JSON such as {"error": "Not Found"}
        if status in (400, 403, 404):
            return ProtocolError(
                f"{host} returned status {status} for {request.scope}, but not in the format of Google's"
                " APIs",
                hint="Check that the endpoint is the API itself, and any proxy in front of it.",
                host=host,
                scope=request.scope,
            )
        failure = Failure()
    reason, metadata = failure.explanation.reason, failure.explanation.metadata
    message = f"{failure.message[:500]!r}" if failure.message else "no reason given"
    summary = f"{host} returned status {status} for {request.scope} ({message})"
    # Other gRPC codes with status 400, such as FAILED_PRECONDITION, do not mean a wrong argument.
    if status == 400 and failure.status in ("", "INVALID_ARGUMENT", "OUT_OF_RANGE"):
        return ConfigurationError(summary, hint="Correct the name, {project} or {zone}.")
    is_rate_limited = status == 429 or (status == 403 and reason in RATE_LIMITED)
    kind: type[APIError] = APIError
    if status == 401:
        kind = UnauthorizedError
        cause = f"it rejects the credentials of {token.source}"
        hint = "Log in again with `gcloud auth application-default login`; for a service account, check that"
        hint += " it and its key still exist."
    elif is_rate_limited:
        quota = metadata.get("quota_metric") or metadata.get("quota_limit")
        cause = f"the quota {quota or 'of requests'} is exhausted"
        hint = "Send fewer requests, or request a higher quota."
    elif status == 403 and reason not in ("", "IAM_PERMISSION_DENIED", "forbidden"):
        # The message of the API says which API, scope, policy or account is the reason.
        kind = ForbiddenError
        cause, hint = f"the reason is {reason}", "Correct what the message names."
    elif status == 403:
        kind = ForbiddenError
        # Without details, assume that the permission is missing which the request requires.
        permission = metadata.get("permission") or request.permission
        cause = f"{token.source} lacks the permission {permission} (part of {service.role}), or the project"
        cause += " or zone does not exist"
        hint = "Run `gcloud projects add-iam-policy-binding {project_id} --member=user:ADDRESS --role={role}`"
        hint += ", for a service account with --member=serviceAccount:ADDRESS."
    elif status == 404:
        cause = "it does not exist in that project and zone"
        hint = f"List the existing ones with `gcloud compute {service.list_command}`."
    elif status in RETRYABLE_STATUSES:
        cause, hint = "the server is overloaded or unavailable", "Try again later."
    else:
        # For example a redirect, which is not followed: it would send the credentials elsewhere.
        cause, hint = "unexpected status", "Check that the endpoint is the API itself."
    return kind(
        f"{summary}: {cause}",
        hint=Hint(hint, values={"project_id": request.project, "role": service.role}),
        host=host,
        scope=request.scope,
        status=status,
        reason=reason or failure.status or None,
        retry_after=response.retry_after,
        retryable=status in RETRYABLE_STATUSES or is_rate_limited,
    )
