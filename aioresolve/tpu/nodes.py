"""The names of TPUs and queued resources -> their nodes, all asked for at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from aioresolve.concurrency import gather
from aioresolve.errors import APIError, ForbiddenError, TPUNotFoundError
from aioresolve.gcp.names import is_full_name, node_name, queued_resource_name

from .readiness import Unready, unready_queued_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.gcp.conditional import KnownAnswers
    from aioresolve.gcp.messages import Node, QueuedResource
    from aioresolve.gcp.names import NodeName, QueuedResourceName
    from aioresolve.retry import Progress

__all__ = ["FoundNode", "NodeAPI", "NotThere", "found_nodes", "not_found_error"]

MOST_AT_ONCE = 16


class NodeAPI(Protocol):
    """What is asked of the Cloud TPU API, or of a client of it that was handed in."""

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return the node; an APIError of status 404 where there is none."""
        ...

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return the queued resource; an APIError of status 404 where there is none."""
        ...

    def remembering(self, known: KnownAnswers) -> NodeAPI:
        """Return who is asked for what has changed since an answer in `known`, where the API can tell."""
        ...


@dataclass(frozen=True, slots=True)
class NotThere:
    """A name that nothing has.

    Attributes:
        path: the full name.
        error: what the API said to it.
    """

    path: str
    error: APIError


FoundNode: TypeAlias = "Node | Unready | NotThere"
"""A node in whatever state, a queued resource that has none yet, or a name that nothing has."""


async def found_nodes(
    api: NodeAPI,
    names: Sequence[str],
    project: str | None,
    zone: str | None,
    progress: Progress,
    *,
    version: str,
) -> list[FoundNode]:
    """Return what there is of these names in their order, the nodes of a queued resource in its own.

    Args:
        api: who is asked.
        names: ids or full names, of nodes or of queued resources.
        project: the project of ids.
        zone: the zone of ids.
        progress: what is waited for is noted here.
        version: the API's; v1 has no queued resources.

    Raises:
        ResolveError: the API could not be asked.
    """
    calls = [partial(_named, api, name, project, zone, progress, version) for name in names]
    return [one for found in await gather(calls, limit=MOST_AT_ONCE) for one in found]


def not_found_error(missing: Sequence[NotThere], version: str) -> TPUNotFoundError:
    """Return the error that lists every one of these; there is at least one."""
    names = [one.path for one in missing]
    advice = "" if version == "v2" else "; API v1 does not know TPU VMs: ask with api_version='v2'"
    return TPUNotFoundError(
        f"there is no TPU{'' if len(names) == 1 else ' of these names'} {', '.join(names)}{advice};"
        f" correct tpu, project or zone. {missing[0].error}",
        names=names,
    )


async def _named(
    api: NodeAPI, text: str, project: str | None, zone: str | None, progress: Progress, version: str
) -> list[FoundNode]:
    if is_full_name(text) and "/queuedResources/" in text:
        return await _queued(api, queued_resource_name(text, project, zone), progress)
    node = await _node(api, node_name(text, project, zone), progress)
    if not isinstance(node, NotThere) or is_full_name(text) or version != "v2":
        return [node]
    # A queued resource has a name of its own, which is the only one its user may know.
    name = queued_resource_name(text, project, zone)
    try:
        queued = await _queued(api, name, progress)
    except ForbiddenError:
        return [node]  # who may not ask for those has meant a node
    is_neither = any(isinstance(one, NotThere) and one.path == name.path for one in queued)
    return [node] if is_neither else queued


async def _node(api: NodeAPI, name: NodeName, progress: Progress) -> Node | NotThere:
    try:
        return await api.node(name, progress)
    except APIError as error:
        if error.status != 404:
            raise
        return NotThere(name.path, error)


async def _queued(api: NodeAPI, name: QueuedResourceName, progress: Progress) -> list[FoundNode]:
    """Return the nodes of a queued resource, or why it has none."""
    try:
        resource = await api.queued_resource(name, progress)
    except APIError as error:
        if error.status != 404:
            raise
        return [NotThere(name.path, error)]
    unready = unready_queued_resource(resource)
    if unready is not None:
        return [unready]
    calls = [partial(_node, api, node, progress) for node in resource.node_names]
    return list(await gather(calls, limit=MOST_AT_ONCE))
