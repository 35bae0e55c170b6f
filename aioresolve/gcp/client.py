"""What is asked of one of Google's APIs.

Asking only for what has changed: the entity tag of the last answer goes with the next question.

A GET with `If-None-Match` is answered 304, without a body, while what is asked for still has that tag
(RFC 9110, section 13.1.2). An API that gives no tags is asked as ever.

One authorized session for Google's JSON APIs: prepare, send, handle.
"""

from __future__ import annotations

import asyncio
import logging
import os
from itertools import count
from typing import TYPE_CHECKING, Self

import anyio
from yarl import URL

from aioresolve._core.retry import RetryPolicy, call_with_retries
from aioresolve._core.telemetry import HTTPCall
from aioresolve.errors import ConfigurationError, CredentialsError

from .access_token import ANONYMOUS, Grant
from .api_request import NOT_MODIFIED, APIRequest
from .credentials import CLOUD_PLATFORM, GoogleCredentials
from .google_errors import Principal, failure
from .transport import HTTPClient, is_loopback, origin

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from aioresolve._core.deadline import Progress

    from .credentials import AnyCredentials
    from .transport import Answer

__all__ = ["CLOUD_PLATFORM", "GoogleSession"]


logger = logging.getLogger("aioresolve.gcp")

ENDPOINTS = {"tpu": "https://tpu.googleapis.com", "compute": "https://compute.googleapis.com"}
"""Where each API is, if nobody says otherwise."""

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
"""What gcloud's own variables begin with that say otherwise; `TPU` or `COMPUTE` follows."""

SECRET_HEADERS = frozenset({"authorization", "x-goog-api-key"})

NOBODY = Principal("nobody (a plain http endpoint is shown no credentials)")


class GoogleSession:
    """An HTTP session for Google's JSON APIs, used inside `async with`, by the tasks of one event loop.

    Credentials go to the endpoints of the APIs and to nobody else, and never over plain http: an http
    endpoint has to be on this machine, and is asked anonymously.

    Args:
        credentials: who we are; whatever `GoogleCredentials` takes, or one to share with other sessions.
        scopes: the OAuth scopes to ask for, where `credentials` is no GoogleCredentials.
        quota_project: the project that requests are charged to, likewise.
        endpoints: base URL by API (`tpu`, `compute`), for private endpoints and tests; where it names none,
            $CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU (or `_COMPUTE`), else Google's own.
        ssl_context: TLS for the APIs and the token servers; with the system's authorities where None.
        max_concurrency: how many requests are made at a time; others wait their turn.
        policy: how often a request is made again.

    Raises:
        ConfigurationError: an endpoint is none, or the credentials are of another library.
    """

    def __init__(
        self,
        credentials: GoogleCredentials | AnyCredentials = "default",
        *,
        scopes: Sequence[str] = (CLOUD_PLATFORM,),
        quota_project: str | None = None,
        endpoints: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        max_concurrency: int = 16,
        policy: RetryPolicy | None = None,
    ) -> None:
        self._credentials = (
            credentials
            if isinstance(credentials, GoogleCredentials)
            else GoogleCredentials(credentials, scopes=scopes, quota_project=quota_project)
        )
        self._endpoints = _endpoints(endpoints or {}, os.environ)
        self._ssl_context = ssl_context
        self._max_concurrency = max_concurrency
        self._policy = policy or RetryPolicy()
        self._open: _Open | None = None

    def __repr__(self) -> str:
        return f"<GoogleSession of {self._credentials!r}>"

    def host(self, service: str) -> str:
        """Return where an API is asked, `scheme://host:port`."""
        return origin(self._endpoints[service])

    async def ask(self, question: APIRequest, progress: Progress) -> bytes:
        """Return the body of the answer to `question`, asked again while that can help.

        Raises:
            ResolveError: no usable answer; see `failures.failure` for which status is which error.
        """
        return (await self.answer(question, progress)).body

    async def answer(self, question: APIRequest, progress: Progress) -> Answer:
        """Return the answer to `question`, as `ask` does; 304, without a body, where the tag known stands.

        Raises:
            ResolveError: as `ask`.
        """
        opened = self._opened()
        attempts = count(1)

        async def attempt() -> Answer:
            async with opened.turns:
                return await self._answer(opened.client, question, attempts, progress)

        scope = question.scope
        answer = await call_with_retries(
            attempt, policy=self._policy, on_failure=lambda error, wait: progress.failed(scope, error)
        )
        progress.done(scope, "answered")
        return answer

    async def aclose(self) -> None:
        """Close every connection. Closing twice does nothing."""
        opened, self._open = self._open, None
        if opened is not None:
            await opened.client.aclose()

    async def __aenter__(self) -> Self:
        if self._open is not None:
            raise ConfigurationError(f"{self!r} is entered already; use the one session, or make another")
        self._open = _Open(HTTPClient(ssl_context=self._ssl_context), self._max_concurrency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _opened(self) -> _Open:
        opened = self._open
        if opened is None or opened.loop is not asyncio.get_running_loop():
            raise ConfigurationError(
                f"{self!r} is not open in this event loop; ask it inside its `async with`"
            )
        return opened

    async def _answer(
        self, client: HTTPClient, question: APIRequest, attempts: Iterator[int], progress: Progress
    ) -> Answer:
        """Return the answer, which is no failure; the credentials are renewed once where they are refused."""
        host = self.host(question.service)
        if host.startswith("http:"):
            progress.waiting(question.scope, f"{host} has not answered")
            answer, asker = await self._sent(client, question, next(attempts), ANONYMOUS), NOBODY
        else:
            progress.waiting(question.scope, f"no access token yet, from {self._credentials.asker.source}")
            grant = await self._credentials.grant(client)
            progress.waiting(question.scope, f"{host} has not answered")
            answer = await self._sent(client, question, next(attempts), grant)
            asker = self._credentials.asker
            if answer.status == 401 and grant.headers:
                try:
                    grant = await self._credentials.renewed(client, grant)
                except CredentialsError as error:
                    if error.retryable:
                        raise
                    raise failure(answer, question, host=host, principal=asker) from error
                answer = await self._sent(client, question, next(attempts), grant)
                asker = self._credentials.asker
        is_known = bool(question.known_tag) and answer.status == NOT_MODIFIED
        if answer.status != 200 and not is_known:
            raise failure(answer, question, host=host, principal=asker)
        return answer

    async def _sent(self, client: HTTPClient, question: APIRequest, attempt: int, grant: Grant) -> Answer:
        content = {"Content-Type": "application/json"} if question.body is not None else {}
        condition = {"If-None-Match": question.known_tag} if question.known_tag else {}
        values = [value for name, value in grant.headers.items() if name.lower() in SECRET_HEADERS]
        url, host = URL(self._endpoints[question.service] + question.path), self.host(question.service)
        with HTTPCall(
            logger, question.method, host, url.raw_path, scope=question.scope, attempt=attempt
        ) as request:
            answer = await client.send(
                question.method,
                str(url.with_query(question.query)),
                scope=question.scope,
                mend="see that the endpoint is right and that the network lets it through",
                headers={"Accept": "application/json", **content, **condition, **grant.headers},
                body=question.body,
                secrets={secret for value in values for secret in (value, value.partition(" ")[2])},
            )
            request.set_response(answer.status, len(answer.body))
        return answer


class _Open:
    """What a session holds inside its `async with`."""

    def __init__(self, client: HTTPClient, max_concurrency: int) -> None:
        self.client = client
        self.loop = asyncio.get_running_loop()
        self.turns = anyio.CapacityLimiter(max_concurrency)


def _endpoints(given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the base URL of each API, without a slash at its end."""
    if unknown := sorted(set(given) - set(ENDPOINTS)):
        raise ConfigurationError(
            f"endpoints= names {unknown[0]!r}; the APIs asked are {', '.join(ENDPOINTS)}"
        )
    found = {}
    for service, usual in ENDPOINTS.items():
        variable = OVERRIDE + service.upper()
        if service in given:
            found[service] = _endpoint(given[service], f"endpoints[{service!r}]")
        elif environ.get(variable):
            # gcloud's overrides end in a slash, and that of Compute Engine in its version.
            url = _endpoint(environ[variable], f"the environment variable {variable}")
            found[service] = url.removesuffix("/compute/v1")
        else:
            found[service] = usual
    return found


def _endpoint(text: str, where: str) -> str:
    """Return a base URL without a slash at its end.

    Raises:
        ConfigurationError: it is none, or one to which no credentials may go.
    """
    try:
        url = URL(text)
    except (ValueError, TypeError):
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(f"{where} is no URL; write it as https://HOST")
    if url.user or url.password or url.query_string or url.fragment:
        raise ConfigurationError(f"{where} holds a user, a query or a fragment; write it as https://HOST")
    if url.scheme == "http" and not is_loopback(url.host or ""):
        raise ConfigurationError(
            f"{where} is {origin(text)}, where what is sent could be read on the way; write it as https://HOST"
            " (plain http is for this machine alone)"
        )
    return str(url).rstrip("/")
