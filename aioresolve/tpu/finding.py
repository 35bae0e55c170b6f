"""A source -> its slices. What is not known, Google is asked for, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.concurrency import gather
from aioresolve.errors import ConfigurationError, ResolveError
from aioresolve.gcp.conditional import KnownAnswers
from aioresolve.gcp.names import is_full_name

from .discovery import GivenWorkers, Local, NamedTPUs, OwnVM
from .nodes import NotThere, found_nodes, not_found_error
from .own_vm import own_vm_slice
from .readiness import Unready, not_ready_error, unready_node
from .slices import given_slice, node_slice, numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.gcp.messages import Node
    from aioresolve.retry import Progress

    from .connections import Connections
    from .discovery import Source
    from .nodes import FoundNode
    from .slices import TPUSlice

__all__ = ["Finder", "FoundTPUs"]

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
                f" known: give {' and '.join(f'{name}=' for name in unknown)}, or the full name"
                f" projects/P/locations/Z/nodes/N; this VM's metadata server did not tell: {error}"
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
