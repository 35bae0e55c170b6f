"""The names of TPUs and queued resources -> their nodes, all asked for at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aioresolve.concurrency import gather
from aioresolve.errors import APIError, ForbiddenError, TPUNotFoundError
from aioresolve.gcp.names import NodeName, is_full_name, node_name, queued_resource_name

from .readiness import not_ready_error, unready_queued_resource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.gcp.messages import Node, QueuedResource
    from aioresolve.gcp.names import QueuedResourceName
    from aioresolve.retry import Progress

__all__ = ["NodeAPI", "nodes_named"]

MOST_AT_ONCE = 16


class NodeAPI(Protocol):
    """What is asked of the Cloud TPU API, or of a client of it that was handed in."""

    async def node(self, name: NodeName, progress: Progress) -> Node:
        """Return the node; an APIError of status 404 where there is none."""
        ...

    async def queued_resource(self, name: QueuedResourceName, progress: Progress) -> QueuedResource:
        """Return the queued resource; an APIError of status 404 where there is none."""
        ...


@dataclass(frozen=True, slots=True)
class _Missing:
    """A name that nothing has, and what the API said to it."""

    name: str
    error: APIError


async def nodes_named(
    api: NodeAPI,
    names: Sequence[str],
    project: str | None,
    zone: str | None,
    progress: Progress,
    *,
    version: str,
) -> list[Node]:
    """Return the nodes of these names in their order, those of a queued resource in its own.

    Args:
        api: who is asked.
        names: ids or full names, of nodes or of queued resources.
        project: the project of ids.
        zone: the zone of ids.
        progress: what is waited for is noted here.
        version: the API's; v1 has no queued resources.

    Raises:
        TPUNotFoundError: there is no node and no queued resource of a name; it lists every such name.
        TPUNotReadyError: a queued resource has no nodes yet, or will have none.
        ResolveError: the API could not be asked.
    """
    calls = [partial(_named, api, name, project, zone, progress, version) for name in names]
    found = await gather(calls, limit=MOST_AT_ONCE)
    missing = [one for one in found if isinstance(one, _Missing)]
    if missing:
        raise _not_found(missing, version) from missing[0].error
    return [node for nodes in found if not isinstance(nodes, _Missing) for node in nodes]


async def _named(
    api: NodeAPI, text: str, project: str | None, zone: str | None, progress: Progress, version: str
) -> list[Node] | _Missing:
    if is_full_name(text) and "/queuedResources/" in text:
        return await _queued(api, queued_resource_name(text, project, zone), progress)
    name = node_name(text, project, zone)
    node = await _node(api, name, progress)
    if not isinstance(node, _Missing):
        return [node]
    if is_full_name(text) or version != "v2":
        return node
    # A queued resource has a name of its own, which is the only one its user may know.
    try:
        queued = await _queued(api, queued_resource_name(text, project, zone), progress)
    except ForbiddenError:
        return node  # who may not ask for those has meant a node
    return node if isinstance(queued, _Missing) else queued


async def _node(api: NodeAPI, name: NodeName, progress: Progress) -> Node | _Missing:
    try:
        return await api.node(name, progress)
    except APIError as error:
        if error.status != 404:
            raise
        return _Missing(name.path, error)


async def _queued(api: NodeAPI, name: QueuedResourceName, progress: Progress) -> list[Node] | _Missing:
    """Return the nodes of a queued resource."""
    try:
        resource = await api.queued_resource(name, progress)
    except APIError as error:
        if error.status != 404:
            raise
        return _Missing(name.path, error)
    unready = unready_queued_resource(resource)
    if unready is not None:
        raise not_ready_error([unready])
    found = await gather(
        [partial(_node, api, node, progress) for node in resource.node_names], limit=MOST_AT_ONCE
    )
    missing = [one for one in found if isinstance(one, _Missing)]
    return missing[0] if missing else [node for node in found if not isinstance(node, _Missing)]


def _not_found(missing: Sequence[_Missing], version: str) -> TPUNotFoundError:
    names = [one.name for one in missing]
    advice = "" if version == "v2" else "; API v1 does not know TPU VMs: ask with api_version='v2'"
    return TPUNotFoundError(
        f"there is no TPU{'' if len(names) == 1 else ' of these names'} {', '.join(names)}{advice};"
        f" correct tpu, project or zone. {missing[0].error}",
        names=names,
    )
