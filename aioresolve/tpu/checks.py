"""The checks of a `TPUClusterResolver` for `aioresolve.doctor`, from the credentials to the tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError, Hint, ResolveError
from aioresolve.gcp.tpu_api import TPUAPI
from aioresolve.resolver.checks import Finding, FoundTasks, PlannedCheck, failed, task_checks

from .discovery import MetadataSource, NamedTPUs
from .slices import cluster_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.spec import ClusterState, Task

    from .discovery import Source
    from .finder import SliceFinder, TPUClients
    from .slices import TPUSlice

UNREACHABLE = Hint(
    "Check that this machine is in the VPC network of the TPU and that its firewall permits the port; from"
    " outside, pass {address=external_ip}. Nothing listens on 8470 unless a program starts a server there."
)


def plan_checks(
    find_source: Callable[[], Source],
    finder: SliceFinder,
    clients: TPUClients,
    job: str,
    this_task: Callable[[ClusterState], Awaitable[Task]],
) -> list[PlannedCheck]:
    """Return the checks of a resolver with this finder and these clients.

    `find_source` returns where the workers of `job` are named, and `this_task` which task this process is.
    """
    try:
        checks = _TPUChecks(find_source(), finder, clients, job)
    except ConfigurationError as error:
        invalid = failed(error)

        async def report(_: Progress) -> Finding:
            return invalid

        return [PlannedCheck("source", report)]
    return [*checks.plan(), *task_checks(checks.tasks, this_task, after=("tasks",), remedy=UNREACHABLE)]


@dataclass
class _TPUChecks:
    """The checks, and what they have found so far for one another."""

    source: Source
    finder: SliceFinder
    clients: TPUClients
    job: str
    tasks: FoundTasks = field(default_factory=lambda: FoundTasks(may_refuse=True))
    slices: dict[str, tuple[TPUSlice, ...]] = field(default_factory=dict)

    def plan(self) -> list[PlannedCheck]:
        """Return the checks in the order in which a user reads them."""
        source = PlannedCheck("source", self._check_source)
        if not isinstance(self.source, NamedTPUs):
            return [source, PlannedCheck("tasks", self._check_workers, ("source",))]
        names = {f"TPU {name}": replace(self.source, names=(name,)) for name in self.source.names}
        return [
            source,
            PlannedCheck("credentials", self._check_credentials),
            *(
                PlannedCheck(name, partial(self._check_tpu, name, one), ("credentials",))
                for name, one in names.items()
            ),
            PlannedCheck("tasks", self._check_tasks, tuple(names)),
        ]

    async def _check_source(self, _: Progress) -> Finding:
        if isinstance(self.source, MetadataSource):
            return Finding("the TPU of this VM, because no other is named")
        named = ", ".join(self.source.names) if isinstance(self.source, NamedTPUs) else "the workers"
        origin = self.source.origin
        return Finding(f"{named}, from {'the argument' if origin == 'tpu' else origin}")

    async def _check_credentials(self, progress: Progress) -> Finding:
        api = await self.clients.api()
        if not isinstance(api, TPUAPI):
            return Finding("those of the client that was passed as service=")
        token = await api.session.identify(progress)
        until = ""
        if token.expires is not None:
            moment = datetime.fromtimestamp(token.expires, UTC).isoformat(timespec="seconds")
            until = f", valid until {moment.replace('+00:00', 'Z')}"
        return Finding(f"{token.source}{until}, for {api.session.host}")

    async def _check_tpu(self, name: str, source: NamedTPUs, progress: Progress) -> Finding:
        try:
            found = await self.finder.find(source, self.clients, progress)
            self.slices[name] = found.slices
            await self.finder.raise_if_unready(found.unready, source, self.clients, progress)
        except ResolveError as error:
            return failed(error)  # the other TPUs may be found all the same
        return Finding("; ".join(map(_describe, found.slices)))

    async def _check_tasks(self, _: Progress) -> Finding:
        slices = [one for found in self.slices.values() for one in found]
        return self._set_tasks(slices) if slices else Finding("no TPU is ready", "skipped")

    async def _check_workers(self, progress: Progress) -> Finding:
        found = await self.finder.find(self.source, self.clients, progress)
        if not found.slices:
            return Finding("the TPU of this host has no workers that could be connected to")
        return self._set_tasks(found.slices)

    def _set_tasks(self, slices: Sequence[TPUSlice]) -> Finding:
        self.tasks.state = cluster_of(slices, self.job, {}, datetime.now(UTC))
        return Finding(self.tasks.counts)


def _describe(one: TPUSlice) -> str:
    state = "" if one.node is None else f"{one.node.state} {one.node.health}".strip()
    workers = f"{len(one.endpoints)} worker{'' if len(one.endpoints) == 1 else 's'}"
    return ", ".join(filter(None, [one.accelerator_type, state, workers]))
