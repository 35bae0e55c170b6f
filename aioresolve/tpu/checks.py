"""The checks of a `TPUClusterResolver` for `aioresolve.doctor`, from the metadata server to the devices."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import anyio
from yarl import URL

from aioresolve.errors import ConnectionFailedError, Hint, ResolveError
from aioresolve.gcp.resource_names import is_full_name
from aioresolve.gcp.tpu_api import TPUAPI
from aioresolve.resolver.checks import (
    SHARE,
    Finding,
    FoundTasks,
    PlannedCheck,
    failed,
    task_checks,
    time_left,
)
from aioresolve.resolver.wait import find_unreachable
from aioresolve.spec import host_port

from .discovery import GivenWorkers, LocalTPU, MetadataSource, NamedTPUs, WorkersFile, read_workers
from .readiness import REMEDIES, NodeNotFound, Unready, not_found_error
from .slices import cluster_of, libtpu_ports

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.checks import Result
    from aioresolve.spec import ClusterState, Task

    from .connections import TPUClients
    from .discovery import Source
    from .slices import FoundSlices, SliceFinder, TPUSlice

NOT_ON_GOOGLE_CLOUD = Hint("Pass {project} and {zone}, or run this on a machine of Google Cloud.")

UNREACHABLE = Hint(
    "Check that this machine is in the VPC network of the TPU and that its firewall permits the port; from"
    " outside, pass {address=external_ip}. Nothing listens on 8470 unless a program starts a server there."
)


@asynccontextmanager
async def open_checks(
    find_source: Callable[[], Source],
    finder: SliceFinder,
    connections: AbstractAsyncContextManager[TPUClients],
    job: str,
    this_task: Callable[[ClusterState], Awaitable[Task]],
) -> AsyncIterator[list[PlannedCheck]]:
    """Yield the checks, which share connections inside the block.

    Args:
        find_source: returns where the workers are named.
        finder: finds the slices.
        connections: the connections of the resolver, opened when they are needed.
        job: the job of the workers.
        this_task: returns which task this process is.
    """
    async with connections as opened:
        plan: list[PlannedCheck] = []
        try:
            plan = _TPUChecks(find_source(), finder, opened, job).plan(this_task)
        except ResolveError as error:
            plan.append(PlannedCheck("source", partial(_raise, error)))
        yield plan


async def _raise(error: ResolveError, _: Progress) -> Finding:
    raise error


@dataclass
class _TPUChecks:
    """The checks, and what they have found so far for one another."""

    source: Source
    finder: SliceFinder
    connections: TPUClients
    job: str
    tasks: FoundTasks = field(default_factory=lambda: FoundTasks(may_refuse=True))
    slices: dict[str, tuple[TPUSlice, ...]] = field(default_factory=dict)

    def plan(self, this_task: Callable[[ClusterState], Awaitable[Task]]) -> list[PlannedCheck]:
        """Return the checks in the order in which a user reads them."""
        plan = [PlannedCheck("source", self._check_source)]
        match self.source:
            case NamedTPUs(names=names):
                way = ("project and zone", "credentials", "Cloud TPU API")
                plan += [
                    PlannedCheck("metadata server", self._check_metadata_server),
                    PlannedCheck("project and zone", self._check_location, ("metadata server",)),
                    PlannedCheck("credentials", self._check_credentials),
                    PlannedCheck("Cloud TPU API", self._check_api),
                    *(PlannedCheck(f"TPU {name}", partial(self._check_tpu, name), way) for name in names),
                ]
                after = tuple(f"TPU {name}" for name in names)
                plan.append(PlannedCheck("tasks", self._check_tasks, after))
            case MetadataSource():
                plan.append(PlannedCheck("metadata server", self._check_metadata_server))
                plan.append(PlannedCheck("tasks", self._check_workers, ("metadata server",)))
            case WorkersFile():
                plan.append(PlannedCheck("tasks", self._check_workers, ("source",)))
            case GivenWorkers() | LocalTPU():
                plan.append(PlannedCheck("tasks", self._check_workers))
        return [*plan, *task_checks(self.tasks, this_task, after=("tasks",), remedy=UNREACHABLE)]

    async def _check_source(self, progress: Progress) -> Finding:
        if isinstance(self.source, WorkersFile):
            self.source = await read_workers(self.source, progress)
        match self.source:
            case LocalTPU(origin=origin):
                return Finding(f"the TPU of this host, from {_origin(origin)}")
            case GivenWorkers(origin=origin, addresses=addresses):
                return Finding(f"{_number(len(addresses), 'address')}, from {_origin(origin)}")
            case NamedTPUs(origin=origin, names=names):
                return Finding(f"{', '.join(names)}, from {_origin(origin)}")
        return Finding("the TPU of this VM, because no other is named")

    # This machine

    @property
    def _needs_metadata_server(self) -> bool:
        if not isinstance(self.source, NamedTPUs):
            return True
        project = self.finder.project or self.source.project
        zone = self.finder.zone or self.source.zone
        return not (all(map(is_full_name, self.source.names)) or (project and zone))

    async def _check_metadata_server(self, progress: Progress) -> Finding:
        metadata = await self.connections.metadata()
        is_needed = self._needs_metadata_server
        project, reason = None, "no response"
        with anyio.move_on_after(SHARE * time_left()):
            try:
                project = await metadata.project_id(progress)
            except ResolveError as error:
                reason = error.summary
        if project is not None:
            return Finding(f"responds, for the project {project}")
        if not is_needed:
            return Finding(f"not found, and not needed: {reason}")
        is_named = isinstance(self.source, NamedTPUs)
        raise ConnectionFailedError(
            f"the metadata server of this machine was not found: {reason}",
            hint=NOT_ON_GOOGLE_CLOUD
            if is_named
            else Hint("Pass the name of a TPU as {tpu}, or run this on a TPU VM."),
        )

    async def _check_location(self, progress: Progress) -> Finding:
        assert isinstance(self.source, NamedTPUs)
        project, zone = await self.finder.find_location(self.source, self.connections, progress)
        if project is None or zone is None:
            return Finding("those of the full names")
        return Finding(f"project {project}, zone {zone}")

    # The API

    async def _check_credentials(self, progress: Progress) -> Finding:
        api = await self.connections.api()
        if not isinstance(api, TPUAPI):
            return Finding("those of the client that was passed as service=")
        principal, token = await api.identify(progress)
        until = ""
        if token.expires is not None:
            moment = datetime.fromtimestamp(token.expires, UTC).isoformat(timespec="seconds")
            until = f", valid until {moment.replace('+00:00', 'Z')}"
        member = f" ({principal.member})" if principal.member else ""
        return Finding(f"{principal.source}{member}{until}")

    async def _check_api(self, _: Progress) -> Finding:
        from aioresolve._core.http import environment_proxy, origin

        api = await self.connections.api()
        if not isinstance(api, TPUAPI):
            return Finding("requests are sent by the client that was passed as service=")
        proxy = environment_proxy(URL(api.host))
        first = URL(proxy or api.host)
        address = host_port(first.host or "", first.port or 443)
        reasons = await find_unreachable([address], "tcp", timeout=SHARE * time_left())
        through = f" through the proxy {origin(proxy)}" if proxy else ""
        if reasons:
            raise ConnectionFailedError(
                f"{api.host}{through}: {reasons[address]}",
                hint="Check the network, HTTPS_PROXY and NO_PROXY; without internet access, enable Private"
                " Google Access.",
            )
        return Finding(f"{api.host} accepts connections{through}")

    # The TPUs

    async def _check_tpu(self, name: str, progress: Progress) -> Finding:
        assert isinstance(self.source, NamedTPUs)
        source = replace(self.source, names=(name,))
        try:
            found = await self.finder.find(source, self.connections, progress)
        except ResolveError as error:
            return failed(error)  # the other TPUs may be found all the same
        self.slices[name] = found.slices
        if found.absent:
            return self._describe_absent(found)
        unhealthy = (*found.unhealthy, *found.skipped)
        described = "; ".join(map(_describe, found.slices)) or "left out"
        if not unhealthy:
            return Finding(described)
        result: Result = "failed" if self.finder.not_healthy == "raise" else "warning"
        return Finding(f"{described}: {unhealthy[0].reason}", result, _remedy(unhealthy[0]))

    def _describe_absent(self, found: FoundSlices) -> Finding:
        assert isinstance(self.source, NamedTPUs)
        missing = [tpu for tpu in found.absent if isinstance(tpu, NodeNotFound)]
        if missing:
            return failed(not_found_error(missing, self.finder.version, self.source.origin))
        unready = [tpu for tpu in found.absent if isinstance(tpu, Unready)]
        return Finding("; ".join(tpu.reason for tpu in unready), "failed", _remedy(unready[0]))

    async def _check_tasks(self, _: Progress) -> Finding:
        slices = [one for found in self.slices.values() for one in found]
        if not slices:
            return Finding("no TPU is ready", "skipped")
        return self._set_tasks(slices)

    async def _check_workers(self, progress: Progress) -> Finding:
        found = await self.finder.find(self.source, self.connections, progress)
        if not found.slices:
            return Finding("the TPU of this host has no workers that could be connected to")
        return self._set_tasks(list(found.slices))

    def _set_tasks(self, slices: list[TPUSlice]) -> Finding:
        self.tasks.state = cluster_of(slices, self.job, {}, datetime.now(UTC))
        self.tasks.libtpu_ports = libtpu_ports(slices)
        return Finding(self.tasks.counts)


def _origin(origin: str) -> str:
    return "the argument" if origin == "tpu" else origin


def _number(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{'' if number == 1 else plural}"


def _describe(one: TPUSlice) -> str:
    state = "" if one.node is None else f"{one.node.state} {one.node.health}".strip()
    parts = [one.accelerator_type, state, _number(len(one.endpoints), "worker")]
    return ", ".join(part for part in parts if part)


def _remedy(tpu: Unready) -> Hint:
    text = REMEDIES.get(tpu.state) or REMEDIES.get(tpu.health)
    if text is None:
        return Hint("Wait until it is ready (`aioresolve wait tpu`).")
    text = f"{text[0].upper()}{text[1:]}."
    if tpu.is_running:
        text += " Or pass {not_healthy=allow} to use it all the same."
    return Hint(text)
