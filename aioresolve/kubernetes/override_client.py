"""The clients a user may hand in as `override_client`, as transports.

Their credentials, TLS, proxies and retries are their owner's, who also closes them.
"""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aioresolve._core.http.client import (
    OpenAnswer,
    OpenAnswers,
    check_length,
    no_deadline,
    origin,
    told,
    without,
)
from aioresolve._core.http.errors import FAILURES, Exchange
from aioresolve._core.retry import parse_retry_after
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ResolveError, TLSError

from .client import MENDS, Answer, Stream, Transport, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

__all__ = ["client_transport"]

AUTH = ["BearerToken"]

CHUNK = 64 * 1024
"""Bytes of a body that a worker thread reads before it looks at the clock."""

THREAD_GRACE = 1.0
"""Seconds after the call's deadline at which a worker thread gives up too: the deadline is to come first."""


def client_transport(client: Any) -> Transport:
    """Return a transport that asks through `client`.

    Args:
        client: a `kubernetes_asyncio` or a synchronous `kubernetes` ApiClient or CoreV1Api.

    Raises:
        ConfigurationError: it is none of these.
    """
    api_client = getattr(client, "api_client", client)
    if _is_api_client_of("kubernetes_asyncio", api_client):
        return AsyncClientTransport(api_client)
    if _is_api_client_of("kubernetes", api_client):
        return ThreadedClientTransport(api_client)
    raise ConfigurationError(
        f"override_client is a {type(client).__module__}.{type(client).__qualname__};"
        " give a kubernetes_asyncio ApiClient or CoreV1Api, or a synchronous kubernetes CoreV1Api"
    )


def _is_api_client_of(package: str, client: Any) -> bool:
    # Whoever hands in a client has imported its package; nobody else should pay two seconds for it.
    module = sys.modules.get(f"{package}.client")
    return module is not None and isinstance(client, module.ApiClient)


class ClientTransport(Transport):
    """What the two kinds of clients have in common."""

    def __init__(self, api_client: Any) -> None:
        self._api_client = api_client

    @property
    def host(self) -> str:
        return origin(self._api_client.configuration.host)

    @property
    def source(self) -> str:
        return "override_client"

    def _exchange(self, path: str) -> Exchange:
        where = f"{self.host} (from {self.source})"
        return Exchange(f"GET {path}", self.host, where, MENDS, is_over=lambda: False)

    @property
    def _secrets(self) -> list[str]:
        """What the client's configuration holds that nobody may see; "Bearer" before it is none."""
        configuration = self._api_client.configuration
        secrets = [*(configuration.api_key or {}).values(), configuration.password]
        return [secret.split()[-1] for secret in secrets if isinstance(secret, str) and secret.strip()]

    def _not_sent(self, error: Exception, scope: str) -> ConnectionFailedError:
        """Return the error for one of the client: it is closed, a setting is wrong, or a hook failed."""
        said = f"{type(error).__name__}: {error}" if self._harmless(error) else type(error).__name__
        return ConnectionFailedError(
            f"{scope} was not sent to {self.host}: override_client raised {said};"
            " give an override_client that is open, and whose settings and hooks work",
            host=self.host,
            scope=scope,
            retryable=False,
        )

    def _harmless(self, error: Exception) -> Exception | None:
        """Return `error`, or None where it tells a secret: http.client quotes a header it does not like."""
        return None if any(secret in f"{error!r} {error}" for secret in self._secrets) else error


class AsyncClientTransport(ClientTransport):
    """Asks through a kubernetes_asyncio ApiClient."""

    def __init__(self, api_client: Any) -> None:
        super().__init__(api_client)
        self._answers = OpenAnswers()

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        async with self._answers.reading(self._opened(path, query, {"Accept": accept})) as opened:
            return await opened.whole()

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], accept: str) -> AsyncIterator[Stream]:
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        opening = self._opened(path, query, headers, _request_timeout=no_deadline())
        async with self._answers.reading(opening) as opened:
            yield await started(opened)

    async def aclose(self) -> None:
        """Close what is being read; the client is its owner's to close."""
        self._answers.close()

    async def _opened(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], **options: Any
    ) -> OpenAnswer:
        exchange = self._exchange(path)
        response = await told(self._response(path, query, headers, options), exchange)
        return OpenAnswer(response, exchange, self._secrets)

    async def _response(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], options: Mapping[str, Any]
    ) -> Any:
        """Return the aiohttp response, its body not read yet."""
        try:
            return await self._api_client.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                header_params=dict(headers),
                auth_settings=AUTH,
                _preload_content=False,
                **options,
            )
        except FAILURES:
            raise
        except Exception as error:  # its hooks are its owner's, and may raise anything
            failure, cause = self._not_sent(error, f"GET {path}"), self._harmless(error)
        raise failure from cause


class ThreadedClientTransport(ClientTransport):
    """Asks through a synchronous kubernetes ApiClient, in worker threads."""

    can_stream = False  # a thread for each stream, which cannot be cancelled, would be too much

    def stream(self, path: str, query: Mapping[str, str], accept: str) -> AbstractAsyncContextManager[Stream]:
        """Refuse.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"GET {path} cannot be read as it comes through a synchronous kubernetes client;"
            " give a kubernetes_asyncio ApiClient, or no override_client"
        )

    async def aclose(self) -> None:
        """Do nothing: the client is its owner's to close."""

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        # A thread cannot be cancelled: it is left alone, and ends by its own timeout.
        timeout = min(max(0.0, anyio.current_effective_deadline() - anyio.current_time()), 3600.0)
        return await anyio.to_thread.run_sync(
            self._get,
            path,
            query,
            accept,
            timeout + THREAD_GRACE,
            abandon_on_cancel=True,
            # One of its own, for that of all threads is not ours to use up.
            limiter=anyio.CapacityLimiter(1),
        )

    def _get(self, path: str, query: Mapping[str, str], accept: str, timeout: float) -> Answer:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        scope = f"GET {path}"
        give_up = time.monotonic() + timeout
        passing = (ApiException, HTTPError, OSError)
        try:
            # A connection whose answer was read to its end is back in its pool by then; any other is closed.
            with closing(self._response(path, query, accept, timeout, passing)) as response:
                return without(self._secrets, self._answer(response, give_up, self._exchange(path)))
        except ResolveError:
            raise
        except ApiException as error:
            if not error.status:
                raise self._not_reached(error.reason, scope) from error
            # kubernetes before 36 raises where later ones return.
            return without(self._secrets, _raised_answer(error))
        except (HTTPError, OSError) as error:
            raise self._not_reached(getattr(error, "reason", None) or error, scope) from error

    def _response(
        self,
        path: str,
        query: Mapping[str, str],
        accept: str,
        timeout: float,
        passing: tuple[type[Exception], ...],
    ) -> Any:
        """Return the urllib3 response, its body not read yet; errors of the types `passing` are passed on."""
        client = self._api_client
        options: dict[str, Any] = {
            "query_params": list(query.items()),
            "header_params": {"Accept": accept},
            "auth_settings": AUTH,
        }
        try:
            # To connect, and for each piece; kubernetes before 36 takes no notice of a single float.
            timeouts = timeout, timeout
            if hasattr(client, "param_serialize"):
                request = client.param_serialize("GET", path, **options)
                return client.call_api(*request, _request_timeout=timeouts).response
            # kubernetes before 36
            options |= {"_preload_content": False, "_return_http_data_only": True}
            return client.call_api(path, "GET", **options, _request_timeout=timeouts)
        except passing:
            raise
        except Exception as error:  # its hooks are its owner's, and may raise anything
            failure, cause = self._not_sent(error, f"GET {path}"), self._harmless(error)
        raise failure from cause

    def _answer(self, response: Any, give_up: float, exchange: Exchange) -> Answer:
        body = bytearray()
        for chunk in response.stream(CHUNK):
            body += chunk
            check_length(len(body), exchange)
            if time.monotonic() > give_up:
                # urllib3's timeout is for each piece, and a slow server may send any number of them.
                raise TimeoutError("the answer was not whole in time")
        headers = response.headers
        return Answer(response.status, bytes(body), headers, parse_retry_after(headers.get("Retry-After")))

    def _not_reached(self, reason: object, scope: str) -> ConnectionFailedError:
        # An error of urllib3, or its text from kubernetes, which starts with the type.
        is_tls = "SSLError" in (type(reason).__name__, str(reason).split("\n")[0])
        kind = TLSError if is_tls else ConnectionFailedError
        return kind(
            f"{self.host} (from {self.source}) was not reached, or its answer broke off: {reason};"
            " see that the server runs, and that the client's configuration names its address and its CA",
            host=self.host,
            scope=scope,
        )


def _raised_answer(error: Any) -> Answer:
    body, headers = error.body or b"", error.headers or {}
    whole = body.encode() if isinstance(body, str) else body
    return Answer(error.status, whole, headers, parse_retry_after(headers.get("Retry-After")))
