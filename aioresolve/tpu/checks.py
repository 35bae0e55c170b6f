"""The checks of a `TPUClusterResolver` for `aioresolve.doctor`, from the metadata server to the devices."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError, Hint, ResolveError
from aioresolve.gcp.tpu_api import TPUAPI
from aioresolve.resolver.checks import Finding, FoundTasks, PlannedCheck, failed, task_checks

from .discovery import GivenWorkers, LocalTPU, NamedTPUs, WorkersFile, read_workers
from .readiness import REMEDIES
from .slices import cluster_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.checks import Result
    from aioresolve.spec import ClusterState, Task

    from .discovery import Source
    from .finder import SliceFinder, TPUClients
    from .readiness import Unready
    from .slices import TPUSlice

UNREACHABLE = Hint(
    "Check that this machine is in the VPC network of the TPU and that its firewall permits the port; from"
    " outside, pass {address=external_ip}. Nothing listens on 8470 unless a program starts a server there."
)


@asynccontextmanager
async def open_checks(
    find_source: Callable[[], Source],
    finder: SliceFinder,
    clients: AbstractAsyncContextManager[TPUClients],
    job: str,
    this_task: Callable[[ClusterState], Awaitable[Task]],
) -> AsyncIterator[list[PlannedCheck]]:
    """Yield the checks of a resolver with this finder and these clients, which are open inside the block.

    `find_source` returns where the workers of `job` are named, and `this_task` which task this process is.
    """
    async with clients as opened:
        try:
            source = find_source()
        except ConfigurationError as error:
            invalid = failed(error)

            async def report(_: Progress) -> Finding:
                return invalid

            yield [PlannedCheck("source", report)]
            return
        checks = _TPUChecks(source, finder, opened, job)
        others = task_checks(checks.tasks, this_task, after=("tasks",), remedy=UNREACHABLE)
        yield [*checks.plan(), *others]


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
        names, way = self.source.names, ("project and zone", "credentials")
        return [
            source,
            PlannedCheck("project and zone", partial(self._check_location, self.source)),
            PlannedCheck("credentials", self._check_credentials),
            *(
                PlannedCheck(f"TPU {name}", partial(self._check_tpu, self.source, name), way)
                for name in names
            ),
            PlannedCheck("tasks", self._check_tasks, tuple(f"TPU {name}" for name in names)),
        ]

    async def _check_source(self, progress: Progress) -> Finding:
        if isinstance(self.source, WorkersFile):
            self.source = await read_workers(self.source, progress)
        match self.source:
            case LocalTPU():
                found = "the TPU of this host"
            case GivenWorkers(addresses=addresses):
                found = f"{len(addresses)} address{'' if len(addresses) == 1 else 'es'}"
            case NamedTPUs(names=names):
                found = ", ".join(names)
            case _:
                return Finding("the TPU of this VM, because no other is named")
        origin = self.source.origin
        return Finding(f"{found}, from {'the argument' if origin == 'tpu' else origin}")

    async def _check_location(self, source: NamedTPUs, progress: Progress) -> Finding:
        project, zone = await self.finder.find_location(source, self.clients, progress)
        if project is None or zone is None:
            return Finding("those of the full names")
        return Finding(f"project {project}, zone {zone}")

    async def _check_credentials(self, progress: Progress) -> Finding:
        api = await self.clients.api()
        if not isinstance(api, TPUAPI):
            return Finding("those of the client that was passed as service=")
        token = await api.session.identify("tpu", progress)
        member = f" ({token.member})" if token.member else ""
        until = ""
        if token.expires is not None:
            moment = datetime.fromtimestamp(token.expires, UTC).isoformat(timespec="seconds")
            until = f", valid until {moment.replace('+00:00', 'Z')}"
        return Finding(f"{token.source}{member}{until}, for {api.session.host('tpu')}")

    async def _check_tpu(self, source: NamedTPUs, name: str, progress: Progress) -> Finding:
        source = replace(source, names=(name,))
        try:
            found = await self.finder.find(source, self.clients, progress)
            missing = [tpu for tpu in found.unready if tpu.not_found]
            await self.finder.raise_if_unready(missing, source, self.clients, progress)
        except ResolveError as error:
            return failed(error)  # the other TPUs may be found all the same
        self.slices[name] = found.slices
        described = "; ".join(map(_describe, found.slices))
        if not found.unready:
            return Finding(described)
        if absent := [tpu for tpu in found.unready if not tpu.is_running]:
            return Finding("; ".join(tpu.reason for tpu in absent), "failed", _remedy(absent[0]))
        first = found.unready[0]
        result: Result = "failed" if first.is_member else "warning"
        return Finding(f"{described or 'left out'}: {first.reason}", result, _remedy(first))

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


def _remedy(tpu: Unready) -> Hint:
    text = REMEDIES.get(tpu.state) or REMEDIES.get(tpu.health)
    if text is None:
        return Hint("Wait until it is ready (`aioresolve wait tpu`).")
    text = f"{text[0].upper()}{text[1:]}."
    if tpu.is_running:
        text += " Or pass {not_healthy=allow} to use it all the same."
    return Hint(text)
