"""The clients a user may hand in as `override_client`, as transports.

Their credentials, TLS, proxies and retries are their owner's, who also closes them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aioresolve.errors import ConfigurationError, ConnectionFailedError, TLSError
from aioresolve.retry import retry_after

from .transport import FAILURES, Answer, Transport, answer_of, connection_error, origin

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["client_transport"]

AUTH = ["BearerToken"]


def client_transport(client: Any, *, max_concurrency: int) -> Transport:
    """Return a transport that asks through `client`.

    Args:
        client: a `kubernetes_asyncio` or a synchronous `kubernetes` ApiClient or CoreV1Api.
        max_concurrency: how many worker threads a synchronous client is called in at most.

    Raises:
        ConfigurationError: it is none of these.
    """
    api_client = getattr(client, "api_client", client)
    if _is_api_client_of("kubernetes_asyncio", api_client):
        return AsyncClientTransport(api_client)
    if _is_api_client_of("kubernetes", api_client):
        return ThreadedClientTransport(api_client, max_concurrency=max_concurrency)
    raise ConfigurationError(
        f"override_client is a {type(client).__module__}.{type(client).__qualname__};"
        " give a kubernetes_asyncio ApiClient or CoreV1Api, or a synchronous kubernetes CoreV1Api"
    )


def _is_api_client_of(package: str, client: Any) -> bool:
    # Whoever hands in a client has imported its package; nobody else should pay two seconds for it.
    module = sys.modules.get(f"{package}.client")
    return module is not None and isinstance(client, module.ApiClient)


class AsyncClientTransport:
    """Asks through a kubernetes_asyncio ApiClient."""

    source = "override_client"

    def __init__(self, api_client: Any) -> None:
        self._api_client = api_client

    @property
    def host(self) -> str:
        return origin(self._api_client.configuration.host)

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        scope = f"GET {path}"
        try:
            response = await self._api_client.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                header_params={"Accept": accept},
                auth_settings=AUTH,
                _preload_content=False,
            )
            async with response:
                return await answer_of(response, self.host, scope)
        except FAILURES as error:
            raise connection_error(error, f"{self.host} (from {self.source})", self.host, scope) from error
        except RuntimeError as error:
            raise ConnectionFailedError(
                f"{scope} was not sent: {error}; give an override_client that is open",
                host=self.host,
                scope=scope,
                retryable=False,
            ) from error

    async def aclose(self) -> None:
        """Do nothing: the client is its owner's to close."""


class ThreadedClientTransport:
    """Asks through a synchronous kubernetes ApiClient, in worker threads."""

    source = "override_client"

    def __init__(self, api_client: Any, *, max_concurrency: int) -> None:
        self._api_client = api_client
        self._limiter = anyio.CapacityLimiter(max_concurrency)

    @property
    def host(self) -> str:
        return origin(self._api_client.configuration.host)

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Answer:
        # A thread cannot be cancelled: it is left alone, and ends by its own timeout at the call's deadline.
        timeout = min(max(0.001, anyio.current_effective_deadline() - anyio.current_time()), 3600.0)
        return await anyio.to_thread.run_sync(
            self._get, path, query, accept, timeout, abandon_on_cancel=True, limiter=self._limiter
        )

    async def aclose(self) -> None:
        """Do nothing: the client is its owner's to close."""

    def _get(self, path: str, query: Mapping[str, str], accept: str, timeout: float) -> Answer:
        import urllib3.exceptions
        from kubernetes.client.exceptions import ApiException

        scope = f"GET {path}"
        try:
            return self._request(path, query, accept, timeout)
        except ApiException as error:
            if not error.status:
                raise TLSError(
                    f"TLS with {self.host} (from {self.source}) failed: {error.reason};"
                    " see to the CA and certificate in the client's configuration",
                    host=self.host,
                    scope=scope,
                ) from error
            body = error.body or b""
            return Answer(
                error.status,
                body.encode() if isinstance(body, str) else body,
                retry_after((error.headers or {}).get("Retry-After")),
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            kind = TLSError if isinstance(reason, urllib3.exceptions.SSLError) else ConnectionFailedError
            raise kind(
                f"{self.host} (from {self.source}) was not reached: {reason};"
                " see that the address in the client's configuration is right and that the server runs",
                host=self.host,
                scope=scope,
            ) from error

    def _request(self, path: str, query: Mapping[str, str], accept: str, timeout: float) -> Answer:
        client = self._api_client
        headers = {"Accept": accept}
        if hasattr(client, "param_serialize"):
            request = client.param_serialize(
                "GET", path, query_params=list(query.items()), header_params=headers, auth_settings=AUTH
            )
            response = client.call_api(*request, _request_timeout=timeout)
            response.read()
        else:  # kubernetes before 36
            response = client.call_api(
                path,
                "GET",
                query_params=list(query.items()),
                header_params=headers,
                auth_settings=AUTH,
                _preload_content=False,
                _request_timeout=timeout,
            )
        return Answer(
            response.status, response.data, retry_after((response.headers or {}).get("Retry-After"))
        )
