"""GCEClusterResolver: the instances of an instance group of Compute Engine as the tasks of a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Progress
from aioresolve._core.natural_order import natural_keys
from aioresolve._core.validation import validate_choice, validate_port, validate_text
from aioresolve.errors import APIError, ConfigurationError, InstanceNotRunningError, ResolveError
from aioresolve.gcp.client import COMPUTE, MAX_CONCURRENCY, GoogleSession
from aioresolve.gcp.compute_api import ComputeAPI, InstanceName, batches
from aioresolve.gcp.credentials import GoogleCredentials
from aioresolve.gcp.resource_names import InstanceGroupName, instance_group_name
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import (
    ClusterState,
    Endpoint,
    ExpectedTasks,
    Missing,
    Observation,
    ReadOnlyMapping,
    host_port,
)
from aioresolve.spec.display import existing_names
from aioresolve.tpu.finder import shared_metadata_server

from .base import counted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AsyncExitStack

    from aioresolve._core.connections import Connections
    from aioresolve.gcp.compute_api import Instance, ManagedInstance
    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.probe.workers import Declared
    from aioresolve.spec.observation import Want

T = TypeVar("T")

DEFAULT_PORT = 8470
"""The port of a TensorFlow server, the default in TensorFlow's documentation of this resolver."""

MAX_SHOWN = 20
"""How many instances a message names; `InstanceNotRunningError.instances` has all of them."""

RUNNING = "RUNNING"

STOPPED = frozenset(
    {"DEPROVISIONING", "PENDING_STOP", "STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "TERMINATED"}
)
"""The states of an instance that last until its user or its group acts.

Life cycle: https://cloud.google.com/compute/docs/instances/instance-lifecycle."""

LEAVING = frozenset({"ABANDONING", "DELETING"})
"""The actions of the manager of a group after which an instance is not part of the group any longer."""

ENDING = LEAVING | {"RECREATING", "RESTARTING", "STOPPING", "SUSPENDING"}
"""The actions of the manager of a group that end an instance which still runs.

Actions: https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers/listManagedInstances."""

NOT_FOUND = "does not exist (yet)"
"""The reason for a group that the API does not know."""

GPU_PREFIX = "nvidia-"
"""The beginning of the types of accelerators that are GPUs, such as `nvidia-h100-80gb`."""

CREATED_BY = "created-by"
"""The attribute of an instance of a managed group that contains the full name of its manager."""


class GCEClusterResolver(ClusterResolver):
    """Resolves an instance group of Compute Engine to the addresses of its instances: one job.

    >>> resolver = GCEClusterResolver("my-project", "us-central1-a", "workers", 8470)
    >>> resolver.task_id
    0

    The group is managed or unmanaged, zonal or regional. Its instances are the tasks in the order of their
    names, with numbers compared as numbers. One request lists the group, and one more for about 40 instances,
    all at once, returns their addresses and accelerators. A group without instances is a job without tasks.

    `watch` and `wait` poll the API. For an instance of a managed group, `wait` also reports what the group
    does with it, and why that fails. Without a number, it waits for all instances that the group will have.
    An instance that runs, but that its group is deleting or restarting, is not ready.

    `task_id` is 0 by default, as in TensorFlow, but `this_task()` determines the task of this process by its
    host name or address, unless `task_id` is given.

    Args:
        project: the id or number of the project.
        zone: the zone of the group.
        instance_group: the name of the group, or its full name or URL, which contains project and zone or
            region, as it has to for a regional group. If None, the managed group that this VM belongs to.
        port: the port of each task.
        task_type: the job of the tasks; `"worker"` if None.
        task_id: the task index of this process, if known.
        rpc_layer: the protocol of the tasks, which `master` puts before the address.
        credentials: google-auth credentials; `"default"` and None mean application default credentials.
        not_running: what to do with instances that are not `RUNNING`. `"raise"`: calls raise
            InstanceNotRunningError, which lists all of them, except those that their group deletes.
            `"skip"`: they are left out, as in TensorFlow.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid.
    """

    def __init__(
        self,
        project: str | None = None,
        zone: str | None = None,
        instance_group: str | None = None,
        port: int = DEFAULT_PORT,
        task_type: str | None = "worker",
        task_id: int | None = None,
        rpc_layer: str | None = "grpc",
        credentials: AnyCredentials = "default",
        *,
        not_running: Literal["raise", "skip"] = "raise",
        timeout: float = 30.0,
    ) -> None:
        super().__init__(
            task_type="worker" if task_type is None else task_type,
            task_id=task_id,
            rpc_layer=rpc_layer,
            timeout=timeout,
        )
        project, zone = validate_text("project", project), validate_text("zone", zone)
        name = validate_text("instance_group", instance_group)
        if name is None and (project or zone):
            raise ConfigurationError(
                "no group is given",
                argument="instance_group",
                hint="Pass its name, or leave out {project} and {zone} too: then it is the group of this VM.",
            )
        self._group = None if name is None else instance_group_name(name, project, zone)
        self._port = validate_port("port", port)
        self._not_running = validate_choice("not_running", not_running, ("raise", "skip"))
        self._credentials = GoogleCredentials(credentials)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._group or 'the group of this VM'}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The job of the instances."""
        return [self._job]

    def _default(self, name: str) -> Any:
        return 0 if name == "task_id" else None

    async def _claim(self, progress: Progress) -> TaskClaim:
        # The default of `task_id`, 0, is TensorFlow's, and says nothing about this process.
        return TaskClaim(self._job, self._task_id)

    @property
    def _job(self) -> str:
        return self.task_type or ""

    # Resolving

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Request the instances of the group: those that run and the missing ones.

        Raises:
            InstanceNotRunningError: with `not_running="raise"`, the call needs all instances, and some do not
                run, and their group does not delete them.
        """
        async with self._connected() as connections:
            group, api = await self._group_and_api(connections, progress)
            if not want.complete:
                return await self._observe_all(api, group, progress)
            members = await api.group_members(group, progress)
            running, absent = await self._find_instances(api, group, members, progress)
            if absent and self._not_running == "raise":
                managed = await _managed_instances(api, group, progress) or {}
                leaving = {name for name, one in managed.items() if one.current_action in LEAVING}
                if lacking := [one for name, one in absent.items() if name not in leaving]:
                    raise _not_running_error(group, lacking)
            return Observation(self._state(running))

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        unknown = [one for one in observation.absent if NOT_FOUND in one.reason]
        if not unknown:
            return ()
        async with self._connected() as connections:
            group, api = await self._group_and_api(connections, Progress())
            names = await api.groups(group, Progress())
        there = f"groups in {group.location}: {existing_names(names, group.name) or 'none'}"
        return tuple(replace(one, reason=f"{one.reason}; {there}") for one in unknown)

    async def _observe_all(
        self, api: ComputeAPI, group: InstanceGroupName, progress: Progress
    ) -> Observation:
        calls: list[Callable[[], Awaitable[Any]]] = [
            partial(api.group_members, group, progress),
            partial(_managed_instances, api, group, progress),
        ]
        try:
            members, managed = await gather(calls, limit=len(calls))
        except APIError as error:
            if error.status != 404:
                raise
            # As for a TPU, it may be created (again) under that name.
            reason = f"{group} {NOT_FOUND}"
            return Observation(self._state({}), (Missing(self._job, group.name, reason, tasks=None),))
        running, absent = await self._find_instances(api, group, members, progress)
        if managed is None:
            return Observation(self._state(running), tuple(absent.values()))
        # The group may start those that are stopped.
        missing = {name: replace(one, is_final=False) for name, one in absent.items()}
        ending: dict[InstanceName, Missing] = {}
        number = 0
        for name, instance in managed.items():
            if name in running and instance.current_action in ENDING:
                ending[name] = Missing(self._job, name.name, _managed_reason(RUNNING, instance))
            if instance.current_action in LEAVING:
                missing.pop(name, None)
                continue
            number += 1
            if name not in running:
                known = missing[name].reason if name in missing else instance.instance_status or "not created"
                missing[name] = Missing(self._job, name.name, _managed_reason(known, instance))
        # A group that is scaled to zero is not complete: it is waited for.
        expected = {self._job: ExpectedTasks(number, f"the instances of {group}")} if number else {}
        return Observation(
            self._state(running),
            tuple(_in_order(missing).values()),
            tuple(_in_order(ending).values()),
            expected=expected,
        )

    async def _find_instances(
        self,
        api: ComputeAPI,
        group: InstanceGroupName,
        members: Mapping[InstanceName, str],
        progress: Progress,
    ) -> tuple[dict[InstanceName, Instance], dict[InstanceName, Missing]]:
        """Return the members of a group that run and all others, after requesting those that run."""
        absent = {name: status for name, status in members.items() if status != RUNNING}
        zones: dict[str, list[str]] = {}
        for name in members:
            if name not in absent:
                zones.setdefault(name.zone, []).append(name.name)

        async def request(zone: str, names: Sequence[str]) -> dict[InstanceName, Instance | None]:
            found = {one.name: one for one in await api.instances(group.project, zone, names, progress)}
            return {InstanceName(zone, name): found.get(name) for name in names}

        calls = [partial(request, zone, batch) for zone, names in zones.items() for batch in batches(names)]
        running: dict[InstanceName, Instance] = {}
        for found in await gather(calls, limit=MAX_CONCURRENCY):
            for name, instance in found.items():
                if instance is None:
                    absent[name] = "listed by its group, but not found: it was just deleted"
                elif instance.status != RUNNING:
                    absent[name] = instance.status or "status unknown"
                elif not instance.internal_ip:
                    absent[name] = "RUNNING, but it has no internal address yet"
                else:
                    running[name] = instance
        return _in_order(running), {
            name: Missing(self._job, name.name, reason, is_final=reason in STOPPED)
            for name, reason in _in_order(absent).items()
        }

    def _state(self, running: Mapping[InstanceName, Instance]) -> ClusterState:
        endpoints = [
            Endpoint(
                host_port(instance.internal_ip, self._port),
                name=name.name,
                uid=str(instance.id) or None,
                node=name.zone,
                status=instance.status or None,
                accelerators=ReadOnlyMapping(counts) if (counts := instance.accelerators) else None,
            )
            for name, instance in running.items()
        ]
        return ClusterState.of({self._job: endpoints}, observed_at=datetime.now(UTC))

    async def _group_and_api(
        self, connections: Connections, progress: Progress
    ) -> tuple[InstanceGroupName, ComputeAPI]:
        """Return the group, by default that of this VM, which its metadata server knows; and the API."""
        group = self._group
        if group is None:
            metadata = await shared_metadata_server(self, connections)
            try:
                created_by = await metadata.attribute(CREATED_BY, progress)
                if created_by is None:
                    raise ConfigurationError(f"its metadata server has no attribute {CREATED_BY}")
                group = instance_group_name(created_by)
            except ResolveError as error:
                if error.retryable:
                    raise
                raise ConfigurationError(
                    "no instance group was given, and this machine is not known to belong to a managed one:"
                    f" {error.summary}",
                    hint="Pass {instance_group}.",
                ) from error
        return group, await connections.get(self, ("compute", self._credentials.key), self._new_api)

    async def _declared_accelerators(
        self, task_type: str | None, task_id: int | None, timeout: float
    ) -> Declared:
        from aioresolve.probe.workers import declared_by_all

        def gpus(accelerators: Mapping[str, int]) -> dict[str, int] | None:
            is_known = all(kind.startswith(GPU_PREFIX) for kind in accelerators)
            return {"GPU": sum(accelerators.values())} if is_known else None

        state = await self.cluster_state(timeout=timeout)
        return declared_by_all(state, task_type, task_id, gpus)

    async def _new_api(self, stack: AsyncExitStack) -> ComputeAPI:
        return ComputeAPI(await stack.enter_async_context(GoogleSession(COMPUTE, self._credentials)))


def _not_running_error(group: InstanceGroupName, absent: Sequence[Missing]) -> InstanceNotRunningError:
    shown = [f"{one.name}: {one.reason}" for one in absent[:MAX_SHOWN]]
    if len(absent) > len(shown):
        shown.append(f"and {len(absent) - len(shown)} more")
    return InstanceNotRunningError(
        f"{counted(len(absent), 'instance')} of {group} not running: {'; '.join(shown)}",
        hint="Wait until they run, or pass {not_running=skip} to leave them out.",
        instances={one.name: one.reason for one in absent},
        retryable=not any(one.is_final for one in absent),
    )


def _managed_reason(status: str, instance: ManagedInstance) -> str:
    """Return why an instance does not run, given its status, and what its group does about it."""
    action = instance.current_action if instance.current_action != "NONE" else ""
    errors = instance.last_attempt.errors.errors[:3]
    causes = "; ".join(f"{error.code}: {error.message[:300]}".strip(": ") for error in errors)
    reason = f"{status}, {action} by its group" if action else status
    return f"{reason} ({causes})" if causes else reason


def _in_order(found: Mapping[InstanceName, T]) -> dict[InstanceName, T]:
    """Return it in the order of tasks: by name, with numbers compared as numbers, and then by zone."""
    keys = natural_keys([name.name for name in found])
    return {name: found[name] for _, name in sorted(zip(keys, found, strict=True))}


async def _managed_instances(
    api: ComputeAPI, group: InstanceGroupName, progress: Progress
) -> dict[InstanceName, ManagedInstance] | None:
    """Return what the manager of a group reports; None if it has no manager."""
    try:
        return await api.managed_instances(group, progress)
    except APIError as error:
        # Without permission, only the instances that exist are known.
        if error.status not in (403, 404) or error.retryable:
            raise
        return None if error.status == 404 else {}
