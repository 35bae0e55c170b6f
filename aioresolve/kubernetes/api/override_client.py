"""Clients that a user passes as `override_client`, as transports.

Their credentials, TLS, proxies and retries are those that the user configured. The user closes them.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Iterable
from contextlib import asynccontextmanager, closing
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import anyio
from yarl import URL

from aioresolve._core.http import (
    FAILURES,
    OpenResponses,
    RequestContext,
    Response,
    StreamingResponse,
    check_length,
    origin,
    timeout_to_connect_only,
    translate_errors,
)
from aioresolve._core.redaction import redact
from aioresolve._core.retry import parse_retry_after
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, ConnectionFailedError, ResolveError, TLSError

from .client import HINTS, Transport

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

AUTH = ["BearerToken"]

CHUNK = 64 * 1024
"""The bytes that a worker thread reads before it checks its timeout."""

LIST_ALL, LIST_ONE = "list_pod_for_all_namespaces", "list_namespaced_pod"
"""The methods of a CoreV1Api that list pods: of all namespaces, and of the one in the first argument."""

POD_FIELDS: dict[str, Any] = {
    "metadata": {
        "name": "name",
        "namespace": "namespace",
        "uid": "uid",
        "labels": "labels",
        "annotations": "annotations",
        "deletion_timestamp": "deletionTimestamp",
    },
    "spec": {"node_name": "nodeName", "hostname": "hostname", "subdomain": "subdomain"},
    "status": {
        "phase": "phase",
        "reason": "reason",
        "message": "message",
        "pod_ip": "podIP",
        "host_ip": "hostIP",
    },
}
"""The fields of a pod object that are read: attribute to the name in JSON."""

THREAD_GRACE = 1.0
"""Seconds after the deadline of the call at which a worker thread stops: the deadline must come first."""


def client_transport(client: Any) -> Transport:
    """Return a transport over a `kubernetes_asyncio` or synchronous `kubernetes` ApiClient or CoreV1Api."""
    api_client = getattr(client, "api_client", client)
    if _is_api_client_of("kubernetes_asyncio", api_client):
        return AsyncClientTransport(api_client)
    if _is_api_client_of("kubernetes", api_client):
        return ThreadedClientTransport(api_client)
    if callable(getattr(client, LIST_ALL, None)) or callable(getattr(client, LIST_ONE, None)):
        return ListingClientTransport(client)
    raise ConfigurationError(
        f"a {type(client).__module__}.{type(client).__qualname__} is not a Kubernetes client",
        argument="override_client",
        hint="Pass a kubernetes_asyncio ApiClient or CoreV1Api, a synchronous kubernetes CoreV1Api, or an"
        f" object with the methods {LIST_ALL} and {LIST_ONE}.",
    )


def _userinfo(url: str | None) -> set[str]:
    """Return the user and the password in a URL."""
    try:
        parts = URL(url or "")
    except ValueError:
        return set()
    return {part for part in (parts.user, parts.password) if part}


def _is_api_client_of(package: str, client: Any) -> bool:
    # A user with such a client has imported its package, which takes two seconds; we need not import it.
    module = sys.modules.get(f"{package}.client")
    return module is not None and isinstance(client, module.ApiClient)


class ClientTransport(Transport):
    """A transport over either kind of client."""

    def __init__(self, api_client: Any) -> None:
        self._api_client = api_client

    @property
    def host(self) -> str:
        return origin(self._api_client.configuration.host)

    @property
    def source(self) -> str:
        return "override_client"

    def _context(self, path: str) -> RequestContext:
        where = f"{self.host} (from {self.source})"
        return RequestContext(f"GET {path}", self.host, where, HINTS, is_closed=lambda: False)

    @property
    def _secrets(self) -> set[str]:
        """The secrets that the client is configured with, without a scheme such as `Bearer`."""
        configuration = self._api_client.configuration
        values = [*(configuration.api_key or {}).values(), configuration.password]
        secrets = {value.split()[-1] for value in values if isinstance(value, str) and value.strip()}
        for headers in (self._api_client.default_headers, configuration.proxy_headers or {}):
            secrets |= {
                value.split()[-1] for name, value in headers.items() if "auth" in name.lower() and value
            }
        return secrets | _userinfo(configuration.proxy)

    def _not_sent(self, error: Exception, scope: str) -> ConnectionFailedError:
        """Return our error for one of the client: it is closed, a setting is invalid, or a hook failed."""
        # http.client quotes an invalid header, such as a token that ends with a newline.
        text = redact(f"{type(error).__name__}: {error}", self._secrets)
        return ConnectionFailedError(
            f"{scope} was not sent to {self.host}: override_client raised {text}",
            hint="Check that {override_client} is open, and that its settings and hooks work.",
            host=self.host,
            scope=scope,
            retryable=False,
        )

    def _cause(self, error: Exception) -> Exception | None:
        """Return `error`; None if its text has a secret, which the traceback of our error would show."""
        return error if redact(str(error), self._secrets) == str(error) else None


class AsyncClientTransport(ClientTransport):
    """Sends requests with a kubernetes_asyncio ApiClient."""

    def __init__(self, api_client: Any) -> None:
        super().__init__(api_client)
        self._open = OpenResponses()

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Response:
        async with self._open.reading(self._request(path, query, {"Accept": accept})) as opened:
            return await opened.aread()

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], accept: str
    ) -> AsyncIterator[StreamingResponse]:
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        timeout = timeout_to_connect_only()
        opening = self._request(path, query, headers, _request_timeout=timeout)
        async with self._open.reading(opening) as opened:
            await opened.read_failure()
            yield opened

    async def aclose(self) -> None:
        """Close the streams that are being read; the user closes the client."""
        self._open.close()

    async def _request(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], **options: Any
    ) -> StreamingResponse:
        context = self._context(path)
        response = await translate_errors(self._call(path, query, headers, options), context)
        return StreamingResponse(response, context)

    async def _call(
        self, path: str, query: Mapping[str, str], headers: Mapping[str, str], options: Mapping[str, Any]
    ) -> Any:
        """Return the aiohttp response, before its body is read."""
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
        except Exception as error:  # the hooks of the user may raise anything
            raise self._not_sent(error, f"GET {path}") from self._cause(error)


class ThreadedClientTransport(ClientTransport):
    """Sends requests with a synchronous kubernetes ApiClient, in worker threads."""

    can_stream = False  # each stream would occupy a thread, which cannot be cancelled

    async def aclose(self) -> None:
        """Do nothing: the user closes the client."""

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Response:
        # A thread cannot be cancelled: it is abandoned, and ends by its own timeout.
        timeout = min(max(0.0, anyio.current_effective_deadline() - anyio.current_time()), 3600.0)
        purpose = f"request {path} {sorted(query.items())} from {self.host}"
        return await run_in_thread(purpose, self._get, path, query, accept, timeout + THREAD_GRACE)

    def _get(self, path: str, query: Mapping[str, str], accept: str, timeout: float) -> Response:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        scope = f"GET {path}"
        deadline = time.monotonic() + timeout
        expected = (ApiException, HTTPError, OSError)
        try:
            # A response that was read completely has released its connection; any other closes it.
            with closing(self._call(path, query, accept, timeout, expected)) as response:
                return self._read(response, deadline, self._context(path))
        except ResolveError:
            raise
        except ApiException as error:
            if error.status:
                # kubernetes before 36 raises a failure status, later versions return it.
                return self._response_of(error)
            raise self._not_reached(error, scope) from self._cause(error)
        except (HTTPError, OSError) as error:
            raise self._not_reached(error, scope) from self._cause(error)

    def _call(
        self,
        path: str,
        query: Mapping[str, str],
        accept: str,
        timeout: float,
        expected: tuple[type[Exception], ...],
    ) -> Any:
        """Return the urllib3 response, before its body is read. Only `expected` errors are not translated."""
        client = self._api_client
        options: dict[str, Any] = {
            "query_params": list(query.items()),
            "header_params": {"Accept": accept},  # the client adds its own headers to it
            "auth_settings": AUTH,
        }
        try:
            # To connect, and for each chunk; kubernetes before 36 ignores a single float.
            timeouts = timeout, timeout
            if hasattr(client, "param_serialize"):
                return client.call_api(
                    *client.param_serialize("GET", path, **options), _request_timeout=timeouts
                ).response
            # kubernetes before 36
            options |= {"_preload_content": False, "_return_http_data_only": True}
            return client.call_api(path, "GET", **options, _request_timeout=timeouts)
        except expected:
            raise
        except Exception as error:  # the hooks of the user may raise anything
            raise self._not_sent(error, f"GET {path}") from self._cause(error)

    def _read(self, response: Any, deadline: float, context: RequestContext) -> Response:
        body = bytearray()
        for chunk in _chunks(response):
            body += chunk
            check_length(len(body), context)
            if time.monotonic() > deadline:
                # The timeout of urllib3 is for each read, and a slow server may cause any number of them.
                raise TimeoutError("the response was not complete in time")
        headers = response.headers
        retry_after = parse_retry_after(headers.get("Retry-After"))
        return Response(response.status, bytes(body), headers, retry_after)

    def _response_of(self, error: Any) -> Response:
        body, headers = error.body or b"", error.headers or {}
        content = body.encode() if isinstance(body, str) else body
        retry_after = parse_retry_after(headers.get("Retry-After"))
        return Response(error.status, content, headers, retry_after)

    def _not_reached(self, error: Exception, scope: str) -> ConnectionFailedError:
        reason = getattr(error, "reason", None) or error
        # An error of urllib3, or its text from kubernetes, which starts with the type.
        text = redact(str(reason), self._secrets)
        is_tls = "SSLError" in (type(reason).__name__, text.split("\n")[0])
        kind = TLSError if is_tls else ConnectionFailedError
        return kind(
            f"{self.host} (from {self.source}) was not reached, or its response was incomplete: {text}",
            hint="Check that the server runs, and that the client is configured with its address and CA.",
            host=self.host,
            scope=scope,
        )


class ListingClientTransport(Transport):
    """Lists pods with the two list methods of any other client, blocking or async: a wrapper, or a mock.

    The pods are V1Pod objects of either client library, or objects with those of their attributes that are
    in `POD_FIELDS`, as far as the client sets them.
    """

    can_stream = False
    has_tables = False
    reads_any_path = False

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def host(self) -> str:
        return f"override_client, a {type(self._client).__qualname__},"

    @property
    def source(self) -> str:
        return "override_client"

    async def aclose(self) -> None:
        """Do nothing: the user closes the client."""

    async def get(self, path: str, query: Mapping[str, str], accept: str) -> Response:
        _, in_namespace, rest = path.partition("/namespaces/")
        name = LIST_ONE if in_namespace else LIST_ALL
        method = getattr(self._client, name, None)
        if method is None:
            raise ConfigurationError(
                f"{self.host} has no method {name}",
                argument="override_client",
                hint="Add the method, or change {namespace}.",
            )
        namespace = [unquote(rest.partition("/")[0])] if in_namespace else []
        try:
            if inspect.iscoroutinefunction(method):
                listed = await method(*namespace, label_selector=query["labelSelector"])
            else:
                call = partial(method, *namespace, label_selector=query["labelSelector"])
                listed = await run_in_thread(f"call {name} of override_client", call)
                if inspect.isawaitable(listed):  # from a wrapper of an async method
                    listed = await listed
        except Exception as error:  # the client of the user may raise anything
            raise ConnectionFailedError(
                f"{self.host} failed in {name}: {type(error).__name__}: {error}",
                hint="Check that the client is open, and that its settings work.",
                host=self.host,
                scope=f"GET {path}",
                retryable=False,
            ) from error
        pods = getattr(listed, "items", None)
        if not isinstance(pods, Iterable):
            raise ConfigurationError(
                f"{self.host} returned a {type(listed).__qualname__} from {name}, not a list of pods",
                argument="override_client",
                hint="Return an object with the attribute `items`, such as a V1PodList.",
            )
        metadata = _as_json(getattr(listed, "metadata", None), {"resource_version": "resourceVersion"})
        items = [_as_json(pod, POD_FIELDS) for pod in pods]
        content = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata or {}, "items": items}
        return Response(200, json.dumps(content).encode(), {"Content-Type": "application/json"})


def _chunks(response: Any) -> Iterator[bytes]:
    """Yield the body of a urllib3 response as it arrives."""
    if not hasattr(response, "read1"):  # urllib3 before 2.2, where a slow server can delay each chunk
        yield from response.stream(CHUNK)
        return
    while chunk := response.read1(CHUNK):
        yield chunk


def _as_json(value: Any, fields: Mapping[str, Any]) -> Any:
    """Return an object of a client as JSON: a model of a client library whole, else the given attributes."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (list, tuple)):
        return [_as_json(item, {}) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item, {}) for key, item in value.items()}
    if value is None or isinstance(value, (str, int)):
        return value
    model = getattr(value, "attribute_map", None)
    if isinstance(model, dict):
        parts = ((name, getattr(value, attribute)) for attribute, name in model.items())
        return {name: _as_json(part, {}) for name, part in parts if part is not None}
    found = {}
    for attribute, inner in fields.items():
        part = getattr(value, attribute, None)
        if isinstance(inner, dict):
            found[attribute] = _as_json(part, inner) or {}
        elif isinstance(part, (str, dict, datetime)):  # the other attributes of a mock are mocks too
            found[inner] = _as_json(part, {})
    return found
