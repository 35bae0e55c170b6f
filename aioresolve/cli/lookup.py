"""From a request to the cluster that was found: what `aioresolve kubernetes` does while it waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.credentials import CredentialCache, find_connection
from aioresolve.retry import within_deadline

from .progress import shown
from .request import WITH_IDENTITIES
from .running import run

if TYPE_CHECKING:
    from aioresolve.retry import Progress
    from aioresolve.spec import ClusterSpec, ClusterState

    from .request import PodRequest

__all__ = ["Found", "found_cluster", "kubernetes_resolver"]


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, and in which namespaces it was looked for: all of them where None."""

    spec: ClusterSpec
    state: ClusterState | None
    namespaces: tuple[str, ...] | None


def found_cluster(request: PodRequest) -> Found:
    """Return the cluster that was asked for.

    Raises:
        ResolveError: it was not found, or not before the deadline.
    """
    return run(lambda _: _found(request))


async def kubernetes_resolver(request: PodRequest, progress: Progress) -> KubernetesClusterResolver:
    """Return the resolver of what was asked for.

    Raises:
        ResolveError: the kubeconfig, which names the namespace to look in, cannot be read.
    """
    return _resolver(request, await _namespaces(request, progress))


async def _found(request: PodRequest) -> Found:
    async def operation(progress: Progress) -> Found:
        with shown(progress, quiet=request.quiet):
            namespaces = await _namespaces(request, progress)
            resolver = _resolver(request, namespaces)
            if request.output in WITH_IDENTITIES:
                state = await resolver.fetch_state(progress)
                return Found(state.spec, state, namespaces)
            return Found(await resolver.fetch_spec(progress), None, namespaces)

    return await within_deadline(request.timeout, request.asked, operation)


async def _namespaces(request: PodRequest, progress: Progress) -> tuple[str, ...] | None:
    """Return the namespaces to look in, as kubectl chooses them: the context's own where none is given."""
    if request.all_namespaces:
        return None
    if request.namespaces:
        return request.namespaces
    scope = "the context's namespace"
    progress.waiting(scope, "the kubeconfig has not been read")
    connection = await find_connection(
        kubeconfig=request.kubeconfigs or None, context=request.context, cache=CredentialCache()
    )
    progress.ready(scope)
    return (connection.namespace or "default",)


def _resolver(request: PodRequest, namespaces: tuple[str, ...] | None) -> KubernetesClusterResolver:
    return KubernetesClusterResolver(
        request.jobs,
        request.port,
        namespace=namespaces,
        context=request.context,
        kubeconfig=request.kubeconfigs or None,
        address=request.address,
        order_by=request.order_by,
        not_running=request.not_running,
        timeout=request.timeout,
        max_concurrency=request.max_concurrency,
    )
