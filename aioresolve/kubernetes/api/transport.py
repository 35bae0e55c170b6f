"""How requests reach an API server: by our own HTTP client, or by a client that a user passes.

The credentials, TLS, proxies and retries of an `override_client` are those that the user configured, and the
user closes it.
"""

from __future__ import annotations

import abc
import json
import sys
from collections.abc import Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import anyio
from yarl import URL

from aioresolve._core.deadline import parse_retry_after
from aioresolve._core.http import (
    CONNECT_TIMEOUT,
    FAILURES,
    ConnectionHints,
    HTTPClient,
    OpenResponses,
    RequestContext,
    Response,
    StreamingResponse,
    timeout_to_connect_only,
    translate_errors,
)
from aioresolve._core.network import origin
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import ConfigurationError, ConnectionFailedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from aioresolve.kubernetes.auth import Connection

HINTS = ConnectionHints(
    certificate="Correct certificate-authority or tls-server-name in the kubeconfig.",
    tls="Check that the port speaks https, and that the server accepts the client certificate.",
    name="Correct the server in the kubeconfig, or check the DNS.",
    proxy="Correct proxy-url in the kubeconfig, or HTTPS_PROXY and NO_PROXY.",
    url="Correct the server in the kubeconfig.",
    protocol="Check that the port is that of the API server, and whether it expects https.",
    reach="Check that the address is correct, that the server runs, and that no firewall blocks it.",
    length="Narrow the selector or the namespace, or check whether this is the API server.",
    owner="resolver",
)

ACCEPT_JSON = {"Accept": "application/json"}
"""For whole pods too: in protobuf they arrive no sooner, and Python takes longer to decode them."""

LIST_ALL, LIST_ONE = "list_pod_for_all_namespaces", "list_namespaced_pod"
"""The methods of a CoreV1Api that list pods: of all namespaces, and of the one in the first argument."""

POD_FIELDS = {
    "metadata": ("name", "namespace", "uid", "labels", "annotations", "deletion_timestamp"),
    "spec": ("node_name", "hostname", "subdomain"),
    "status": ("phase", "reason", "message", "pod_ip", "host_ip"),
}
"""The attributes of a pod object that are read."""


class Request(NamedTuple):
    """A request, of which the server and the credentials are those of the transport."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = ACCEPT_JSON
    body: bytes | None = None

    @property
    def scope(self) -> str:
        """The request as text for messages."""
        return f"{self.method} {self.path}"


class Transport(abc.ABC):
    """Sends requests to one API server.

    Attributes:
        only_lists_pods: whether it only lists whole pods: the resolver then polls instead of watching, and
            reads no other objects.
    """

    only_lists_pods = False

    @property
    @abc.abstractmethod
    def host(self) -> str:
        """The server, `scheme://host:port`."""

    @property
    def source(self) -> str:
        """Where the credentials come from, as text."""
        return "override_client"

    async def prepare(self) -> None:  # noqa: B027 - a client that the user passes has its credentials
        """Wait until the credentials are available, for which a plugin may have to run."""

    @abc.abstractmethod
    async def send(self, request: Request) -> Response:
        """Send a request and return the response, whatever its status."""

    def stream(
        self, path: str, query: Mapping[str, str], *, is_watch: bool = True
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        """Return a context manager that yields the response to a GET, to be read as it arrives.

        The body of a failure is complete. The connection is closed after the block, even if more would
        arrive. Only a deadline of the caller ends it. Not called if `only_lists_pods` is true.
        """
        raise NotImplementedError

    async def close_idle(self) -> None:  # noqa: B027 - a client that the user passes keeps its connections
        """Close the connections that are kept for the next request, unless one is in use."""

    async def aclose(self) -> None:  # noqa: B027 - the user closes a client that they pass
        """Close what the transport opened itself, including streams that are being read."""


class AiohttpTransport(Transport):
    """Sends requests with our own HTTP client and the credentials of a `Connection`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = self._new_client()
        # Watches have connections of their own: one that carried a long list keeps the memory it took.
        self._watches = self._new_client()

    @property
    def host(self) -> str:
        return origin(self._connection.server)

    @property
    def source(self) -> str:
        return self._connection.source

    async def prepare(self) -> None:
        await self._connection.credentials()

    async def send(self, request: Request) -> Response:
        url = self._url(request.path, request.query)
        return await self._client.send(
            request.method,
            url,
            scope=request.scope,
            headers=request.headers,
            body=request.body,
            auth=self._connection,
        )

    def stream(
        self, path: str, query: Mapping[str, str], *, is_watch: bool = True
    ) -> AbstractAsyncContextManager[StreamingResponse]:
        client, headers = self._client, ACCEPT_JSON
        if is_watch:
            # Compression would save little on small events, and a decoder for each stream takes memory.
            client, headers = self._watches, {**headers, "Accept-Encoding": "identity"}
        url = self._url(path, query)
        return client.stream("GET", url, scope=f"GET {path}", headers=headers, auth=self._connection)

    async def close_idle(self) -> None:
        await self._client.close_idle()

    async def aclose(self) -> None:
        try:
            await self._client.aclose()
        finally:
            await self._watches.aclose()

    def _url(self, path: str, query: Mapping[str, str]) -> URL:
        return URL(self._connection.server + path).with_query(query)

    def _new_client(self) -> HTTPClient:
        proxy = self._connection.proxy
        return HTTPClient(
            hints=HINTS,
            source=self._connection.source,
            headers=self._connection.fixed_headers,
            socket_timeout=CONNECT_TIMEOUT,
            server_hostname=self._connection.tls_server_name,
            proxy=lambda _: proxy,
        )


def client_transport(client: Any) -> Transport:
    """Return a transport over a `kubernetes_asyncio` client, or any object with a method that lists pods."""
    api_client = getattr(client, "api_client", client)
    # A user with such a client has imported its package, which takes two seconds; we need not import it.
    asynchronous = sys.modules.get("kubernetes_asyncio.client")
    if asynchronous is not None and isinstance(api_client, asynchronous.ApiClient):
        return AsyncClientTransport(api_client)
    synchronous = sys.modules.get("kubernetes.client")
    if synchronous is not None and isinstance(api_client, synchronous.ApiClient):
        return ListingTransport(synchronous.CoreV1Api(api_client), returns_json=True)
    if callable(getattr(client, LIST_ALL, None)) or callable(getattr(client, LIST_ONE, None)):
        return ListingTransport(client)
    raise ConfigurationError(
        f"a {type(client).__module__}.{type(client).__qualname__} is not a Kubernetes client",
        argument="override_client",
        hint="Pass a kubernetes_asyncio ApiClient or CoreV1Api, a synchronous kubernetes CoreV1Api, or an"
        f" object with the methods {LIST_ALL} and {LIST_ONE}.",
    )


class AsyncClientTransport(Transport):
    """Sends requests with a kubernetes_asyncio ApiClient; only those that read, which have no body."""

    def __init__(self, api_client: Any) -> None:
        self._api_client = api_client
        self._open = OpenResponses()

    @property
    def host(self) -> str:
        return origin(self._api_client.configuration.host)

    async def send(self, request: Request) -> Response:
        async with self._open.reading(self._request(request)) as opened:
            return await opened.complete()

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, is_watch: bool = True
    ) -> AsyncIterator[StreamingResponse]:
        request = Request("GET", path, query, {**ACCEPT_JSON, "Accept-Encoding": "identity"})
        opening = self._request(request, _request_timeout=timeout_to_connect_only())
        async with self._open.reading(opening) as opened:
            if opened.response.status != 200:
                await opened.complete()
            yield opened

    async def aclose(self) -> None:
        """Close the streams that are being read."""
        self._open.close()

    async def _request(self, request: Request, **options: Any) -> StreamingResponse:
        where = f"{self.host} (from {self.source})"
        context = RequestContext(request.scope, self.host, where, HINTS, is_closed=lambda: False)

        async def call() -> Any:
            try:
                return await self._api_client.call_api(
                    request.path,
                    request.method,
                    query_params=list(request.query.items()),
                    header_params=dict(request.headers),
                    auth_settings=["BearerToken"],
                    _preload_content=False,
                    **options,
                )
            except FAILURES:
                raise
            except Exception as error:  # the hooks of the user may raise anything
                failed = _client_error(error, self.host, request.scope)
            raise failed

        return StreamingResponse(await translate_errors(call(), context), context)


class ListingTransport(Transport):
    """Lists pods with the two blocking list methods of a CoreV1Api, or of another object, such as a mock.

    Args:
        client: has one of the methods, or both.
        returns_json: whether they can return the response as it is, as those of the package `kubernetes`.
            Others return models of that package, or objects of which the attributes in `POD_FIELDS` are read.
    """

    only_lists_pods = True

    def __init__(self, client: Any, *, returns_json: bool = False) -> None:
        self._client = client
        self._returns_json = returns_json

    @property
    def host(self) -> str:
        return f"override_client ({type(self._client).__qualname__})"

    async def send(self, request: Request) -> Response:
        _, in_namespace, rest = request.path.partition("/namespaces/")
        name = LIST_ONE if in_namespace else LIST_ALL
        function = getattr(self._client, name, None)
        if function is None:
            raise ConfigurationError(
                f"{self.host} has no method {name}",
                argument="override_client",
                hint="Add the method, or change {namespace}.",
            )
        arguments = [unquote(rest.partition("/")[0])] if in_namespace else []
        options: dict[str, Any] = {"label_selector": request.query["labelSelector"]}
        if fields := request.query.get("fieldSelector"):
            options["field_selector"] = fields
        if self._returns_json:
            # A thread cannot be cancelled: it is abandoned, and ends by its own timeout.
            left = min(max(0.1, anyio.current_effective_deadline() - anyio.current_time()), 3600.0)
            options |= {"_request_timeout": (left, left), "_preload_content": False}

        def call() -> Any:
            listed = function(*arguments, **options)
            return listed.data if self._returns_json else listed

        try:
            listed = await run_in_thread(f"call {name} of override_client", call)
        except Exception as error:  # the client of the user may raise anything
            status: Any = getattr(error, "status", None)
            if isinstance(status, int) and status >= 300:  # an ApiException
                received: Any = getattr(error, "headers", None) or {}
                content: Any = getattr(error, "body", None) or b""
                content = content.encode() if isinstance(content, str) else content
                return Response(status, content, received, parse_retry_after(received.get("Retry-After")))
            failed = _client_error(error, self.host, f"{name}()")
        else:
            return Response(200, listed if self._returns_json else self._pod_list(listed, name))
        raise failed

    def _pod_list(self, listed: Any, method: str) -> bytes:
        """Return what a list method returned as the JSON of a PodList."""
        pods = getattr(listed, "items", None)
        if not isinstance(pods, Iterable):
            raise ConfigurationError(
                f"{self.host} returned a {type(listed).__qualname__} from {method}, not a list of pods",
                argument="override_client",
                hint="Return an object with the attribute `items`, such as a V1PodList.",
            )
        metadata = _attributes(getattr(listed, "metadata", None), ("resource_version",))
        items = [
            pod
            if isinstance(getattr(pod, "attribute_map", None), dict)
            else {part: _attributes(getattr(pod, part, None), names) for part, names in POD_FIELDS.items()}
            for pod in pods
        ]
        document = {"kind": "PodList", "metadata": metadata, "items": items}
        return json.dumps(document, default=_json_of).encode()


def _client_error(error: Exception, host: str, scope: str) -> ConnectionFailedError:
    """Return our error for one of the client: it is closed, a setting is invalid, or a hook failed.

    It has no cause, and shows no text of the client, which may be a secret: http.client quotes an invalid
    header, such as a token that ends with a newline.
    """
    return ConnectionFailedError(
        f"{scope} got no response from {host}: it raised {type(error).__name__}",
        hint="Check that {override_client} is open, and that its settings and hooks work: call it without"
        " aioresolve.",
        host=host,
        scope=scope,
        retryable=False,
    )


def _json_of(value: Any) -> Any:
    """Return a time, or a model of the package `kubernetes`, for JSON."""
    if isinstance(value, datetime):
        return value.isoformat()
    parts = {name: getattr(value, attribute) for attribute, name in value.attribute_map.items()}
    return {name: part for name, part in parts.items() if part is not None}


def _attributes(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return those attributes of an object that it has, by their names in JSON."""
    found: dict[str, Any] = {}
    for name in names:
        part = getattr(value, name, None)
        if isinstance(part, (str, dict, datetime)):  # the other attributes of a mock are mocks too
            first, *others = name.split("_")
            key = first + "".join("IP" if each == "ip" else each.title() for each in others)
            found[key] = part
    return found
