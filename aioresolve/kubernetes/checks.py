"""The checks of a `KubernetesClusterResolver` for `aioresolve.doctor`, from the kubeconfig to the tasks."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aioresolve._core.network import origin
from aioresolve.errors import Hint, ProtocolError, UnauthorizedError
from aioresolve.resolver.checks import Finding, PlannedCheck

from .api.errors import LIST_VERBS, WATCH_VERBS, error_from_response
from .api.objects import status_from_json
from .api.queries import CONTEXT_NAMESPACE
from .api.transport import AiohttpTransport, Request
from .tasks.ordering import ALL_NODES, NODE_LABEL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from aioresolve._core.deadline import Progress

    from .api.queries import Query
    from .auth import Connection
    from .cluster_cache import Selection

SMALL_REQUESTS: Mapping[str, dict[str, str]] = {
    "list": {"limit": "1"},
    "watch": {"fieldSelector": "metadata.name=none", "watch": "true", "timeoutSeconds": "1"},
}
"""The verbs that a resolver needs, to the query of a small request with each."""

SERVER = "API server"
"""The last check of the way to the server: those that send requests come after it."""

UNREACHABLE = Hint(
    "Check that the program in each pod runs and listens on that port, or pass {tf_server_port}. Pods can"
    " usually be reached only from inside the cluster: run this in a pod there. Check its NetworkPolicies."
)


@asynccontextmanager
async def open_checks(
    pods: Selection,
    find_connection: Callable[[], Awaitable[Connection]],
    check_cluster: Callable[..., list[PlannedCheck]],
) -> AsyncIterator[list[PlannedCheck]]:
    """Yield the checks, of which those of the server share one client inside the block.

    Args:
        pods: the pods of the resolver.
        find_connection: returns the API server and the credentials.
        check_cluster: `cluster_checks` for the resolver.
    """
    server = ServerChecks(find_connection)
    plan, noun = server.plan(), "endpointslices" if pods.reads_slices else "pods"

    async def check_permission(verb: str, _: Progress) -> Finding:
        # The namespace of the context may be invalid if it is not used.
        default = server.connection.default_namespace() if pods.namespace == CONTEXT_NAMESPACE else ""
        query = next(iter(pods.queries(default).values()))
        return await server.check_permission(verb, replace(query, selector=""))

    plan += [
        PlannedCheck(f"{verb} {noun}", partial(check_permission, verb), (SERVER,)) for verb in SMALL_REQUESTS
    ]
    if any(key.startswith(NODE_LABEL) for key in pods.order_by):
        may_list = partial(server.check_permission, "list", ALL_NODES)
        plan.append(PlannedCheck("list nodes", lambda _: may_list(), (SERVER,)))
    try:
        yield [*plan, *check_cluster(after=(f"list {noun}",), remedy=UNREACHABLE)]
    finally:
        await server.aclose()


@dataclass
class ServerChecks:
    """The checks of the way to an API server, and what they have found for one another.

    Attributes:
        find_connection: returns the API server and the credentials.
        connection: what it returned.
        api: sends requests to the API server.
    """

    find_connection: Callable[[], Awaitable[Connection]]
    connection: Connection = field(init=False)
    api: AiohttpTransport = field(init=False)

    def plan(self) -> list[PlannedCheck]:
        """Return the checks in the order of a request."""
        return [
            PlannedCheck("configuration", self._check_configuration),
            PlannedCheck("credentials", self._check_credentials, ("configuration",)),
            PlannedCheck(SERVER, self._check_server, ("credentials",)),
        ]

    async def aclose(self) -> None:
        """Close the connections."""
        if hasattr(self, "api"):
            await self.api.aclose()

    async def _check_configuration(self, _: Progress) -> Finding:
        self.connection = connection = await self.find_connection()
        self.api = AiohttpTransport(connection)
        proxy = f" through the proxy {origin(connection.proxy)}" if connection.proxy else ""
        namespace = connection.namespace or "default"
        return Finding(f"{connection.server}{proxy} from {connection.source}, namespace {namespace!r}")

    async def _check_credentials(self, _: Progress) -> Finding:
        if not self.connection.server.startswith("https:"):
            return Finding(
                "none are sent over plain http", "warning", Hint("Use https, unless this is a test.")
            )
        identity, user = await self.connection.identity(), self.connection.user
        if identity.authorization is None and identity.certificate is None:
            hint = Hint("Add credentials to the user in the kubeconfig.")
            return Finding(f"{user}: requests are anonymous", "warning", hint)
        return Finding(user)

    async def _check_server(self, progress: Progress) -> Finding:
        where = self.api.host
        progress.waiting(where, "it has not responded")
        version = await self.api.send(Request("GET", "/version"))
        if version.status == 401:
            raise UnauthorizedError(
                f"{where} rejects the credentials ({self.connection.user}; from {self.connection.source})",
                hint="Log in again, or renew the token there.",
            )
        if version.status == 403:
            return Finding(f"{where} responded; its version is unknown (status 403)")
        if version.status == 200:
            with suppress(ValueError, TypeError, KeyError):
                return Finding(f"Kubernetes {json.loads(version.body)['gitVersion']:.60} at {where}")
        if version.status == 429 or version.status >= 500:
            reason = status_from_json(version.body).message or "no reason given"
            hint = Hint("Try again later, or check the log of the API server.")
            return Finding(f"{where} returned status {version.status} ({reason[:300]!r})", "failed", hint)
        raise ProtocolError(
            f"{where} is not a Kubernetes API server: it returned status {version.status} to GET /version",
            hint="Correct the server in the kubeconfig: it may be a login page or another program.",
        )

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
