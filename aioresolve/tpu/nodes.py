"""The names of TPUs and queued resources -> their nodes, all asked for at once.

A source -> its slices. What is not known, Google is asked for, all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from aioresolve._core.concurrency import gather
from aioresolve.errors import APIError, ConfigurationError, ForbiddenError, ResolveError, TPUNotFoundError
from aioresolve.gcp.api_request import KnownAnswers
from aioresolve.gcp.resource_names import is_full_name, node_name, queued_resource_name

from .discovery import GivenWorkers, Local, NamedTPUs, OwnVM
from .metadata_source import own_vm_slice
from .readiness import NotThere, Unready, not_ready_error, unready_node, unready_queued_resource
from .slices import given_slice, node_slice, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve._core.retry import Progress
    from aioresolve.gcp.messages import Node, QueuedResource
    from aioresolve.gcp.resource_names import NodeName, QueuedResourceName

    from .connections import Connections
    from .discovery import Source
    from .slices import TPUSlice

__all__ = ["Finder", "FoundNode", "FoundTPUs", "NodeAPI", "found_nodes", "not_found_error"]

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
    hint = "Correct {tpu}, {project} or {zone}."
    if version != "v2":
        hint = f"Version v1 of the API does not list TPU VMs: pass {{api_version=v2}}. {hint}"
    return TPUNotFoundError(
        f"there is no TPU{'' if len(names) == 1 else ' of these names'} {', '.join(names)}: "
        f"{missing[0].error.summary}",
        hint=hint,
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


ABSENT = (Unready, NotThere)


@dataclass(frozen=True, slots=True)
class FoundTPUs:
    """What a source shows.

    Attributes:
        slices: those that are ready, numbered; none where the TPU is this host's own.
        absent: the TPUs and queued resources that are not ready, and the names that nothing has.
    """

    slices: tuple[TPUSlice, ...]
    absent: tuple[Unready | NotThere, ...] = ()


class Finder:
    """Finds what a source names.

    Args:
        project: the project of TPUs that are named without one; that of this VM where None.
        zone: the zone of TPUs that are named without one; that of this VM where None.
        version: the API's.
        known: what the API answered before, which is not to be sent again; None where that is no matter.
    """

    def __init__(
        self, project: str | None, zone: str | None, version: str, known: KnownAnswers | None = None
    ) -> None:
        self._project = project
        self._zone = zone
        self._version = version
        self._known = known
        self._place_found: tuple[str, str] | None = None

    def for_watch(self) -> Finder:
        """Return a finder for one watch: it asks once for the place, and remembers what the API answered."""
        return Finder(self._project, self._zone, self._version, KnownAnswers())

    async def found(self, source: Source, connections: Connections, progress: Progress) -> FoundTPUs:
        """Return the slices that are ready, and the TPUs that are not.

        Raises:
            TPUNotFoundError: no TPU was named, and this VM has none.
            ResolveError: the source could not be asked.
        """
        match source:
            case Local():
                return FoundTPUs(())
            case GivenWorkers():
                return FoundTPUs(numbered([given_slice(source)]))
            case OwnVM():
                return FoundTPUs(
                    numbered([await own_vm_slice(source, await connections.metadata(), progress)])
                )
            case NamedTPUs():
                return found_tpus(await self._asked(source, connections, progress))

    async def slices(
        self, source: Source, connections: Connections, progress: Progress
    ) -> tuple[TPUSlice, ...]:
        """Return the slices, all ready; none where the TPU is this host's own.

        Raises:
            TPUNotReadyError: a TPU is not ready; it lists every such one.
            TPUNotFoundError: there is none of a name, or no name was found.
            ResolveError: the source could not be asked.
        """
        found = await self.found(source, connections, progress)
        self._check(found.absent)
        return found.slices

    async def nodes(self, source: NamedTPUs, connections: Connections, progress: Progress) -> list[Node]:
        """Return the nodes that the API is asked for, in whatever state.

        Raises:
            TPUNotFoundError: there is none of a name.
            TPUNotReadyError: a queued resource has none yet.
            ResolveError: the API could not be asked.
        """
        found = await self._asked(source, connections, progress)
        self._check([one for one in found if isinstance(one, ABSENT)])
        return [one for one in found if not isinstance(one, ABSENT)]

    async def _asked(
        self, source: NamedTPUs, connections: Connections, progress: Progress
    ) -> list[FoundNode]:
        """Return what the API has of these names."""
        project, zone = await self._place(source, connections, progress)
        api = await connections.api()
        if self._known is not None:
            api = api.remembering(self._known)
        return await found_nodes(api, source.names, project, zone, progress, version=self._version)

    def _check(self, absent: Sequence[Unready | NotThere]) -> None:
        """Raise the error for TPUs that are not there, or not ready, if there are any."""
        missing = [one for one in absent if isinstance(one, NotThere)]
        if missing:
            raise not_found_error(missing, self._version) from missing[0].error
        unready = [one for one in absent if isinstance(one, Unready)]
        if unready:
            raise not_ready_error(unready)

    async def _place(
        self, source: NamedTPUs, connections: Connections, progress: Progress
    ) -> tuple[str | None, str | None]:
        """Return project and zone: those given, else those of this VM."""
        if self._place_found is not None:
            return self._place_found
        project, zone = self._project or source.project, self._zone or source.zone
        if all(map(is_full_name, source.names)):
            return self._project, self._zone
        if project is not None and zone is not None:
            return project, zone
        metadata = await connections.metadata()
        calls = [partial(metadata.project_id, progress)] if project is None else []
        calls += [partial(metadata.zone, progress)] if zone is None else []
        try:
            found = await gather(calls, limit=len(calls))
        except ResolveError as error:
            if error.retryable:
                raise
            unknown = [name for name, value in (("project", project), ("zone", zone)) if value is None]
            raise ConfigurationError(
                f"{' and '.join(unknown)} of TPU {', '.join(source.names)} (from {source.origin}) are not"
                f" known, and this VM's metadata server did not return them: {error.summary}",
                hint=f"Pass {' and '.join(f'{{{name}}}' for name in unknown)}, or the full name"
                " projects/P/locations/Z/nodes/N.",
            ) from error
        place = project or found[0], zone or found[-1]
        if self._known is not None:
            self._place_found = place
        return place


def found_tpus(found: Sequence[FoundNode]) -> FoundTPUs:
    """Return the slices of the nodes that are ready, in their order, and all that is not."""
    slices: list[TPUSlice] = []
    absent: list[Unready | NotThere] = []
    for one in found:
        if isinstance(one, ABSENT):
            absent.append(one)
        elif (unready := unready_node(one)) is not None:
            absent.append(unready)
        else:
            slices.append(node_slice(one))
    return FoundTPUs(numbered(slices), tuple(absent))
