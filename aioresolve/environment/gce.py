"""GCEClusterResolver: the instances of an instance group of Compute Engine as the tasks of a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Progress
from aioresolve._core.natural_order import natural_keys
from aioresolve._core.validation import validate_choice, validate_port, validate_text
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    Hint,
    InstanceNotRunningError,
    ProtocolError,
    ResolveError,
)
from aioresolve.gcp.compute_api import (
    RUNNING,
    ComputeAPI,
    InstanceName,
    UserComputeClient,
    batches,
    instance_name,
)
from aioresolve.gcp.resource_names import InstanceGroupName, instance_group_name, is_full_name
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
    from aioresolve.gcp.compute_api import GroupMember, Instance, ManagedInstance
    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.probe.accelerators import Declared
    from aioresolve.spec.observation import Want

    InstanceAPI: TypeAlias = ComputeAPI | UserComputeClient

T = TypeVar("T")

DEFAULT_PORT = 8470
"""The port of a TensorFlow server, the default in TensorFlow's documentation of this resolver."""

MAX_CONCURRENT_REQUESTS = 16

MAX_SHOWN = 20
"""How many instances a message names; `InstanceNotRunningError.instances` has all of them."""

STOPPED = frozenset(
    {"DEPROVISIONING", "PENDING_STOP", "STOPPED", "STOPPING", "SUSPENDED", "SUSPENDING", "TERMINATED"}
)
"""The states of an instance that do not end without user action, or that of its group.

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
        project: the id or number of the project; if None, that of this VM, as its metadata server reports it.
        zone: the zone of the group; if None, that of this VM.
        instance_group: the name of the group, or its full name or URL, which contains project and zone or
            region. If None, the managed group that this VM belongs to.
        port: the port of each task.
        task_type: the job of the tasks; `"worker"` if None.
        task_id: the task index of this process, if known.
        rpc_layer: the protocol of the tasks, which `master` puts before the address.
        credentials: google-auth credentials; `"default"` and None mean application default credentials.
        service: what `googleapiclient.discovery.build("compute", "v1")` returned. It is called in worker
            threads, in place of `credentials`. The caller closes it.
        region: the region of a regional group, in place of `zone`.
        address: which address of an instance to use: `"internal_ip"` or `"external_ip"` of its first network
            interface, or `"hostname"`, its internal DNS name.
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
        service: Any = None,
        *,
        region: str | None = None,
        address: Literal["internal_ip", "external_ip", "hostname"] = "internal_ip",
        not_running: Literal["raise", "skip"] = "raise",
        timeout: float = 30.0,
    ) -> None:
        super().__init__(
            task_type="worker" if task_type is None else task_type,
            task_id=task_id,
            rpc_layer=rpc_layer,
            timeout=timeout,
        )
        self._project = validate_text("project", project)
        self._zone = validate_text("zone", zone)
        self._region = validate_text("region", region)
        self._group = validate_text("instance_group", instance_group)
        if self._group is None and (self._zone or self._region):
            raise ConfigurationError(
                "no group is given",
                argument="instance_group",
                hint="Pass its name, or leave out {zone} and {region} too: then it is the group of this VM.",
            )
        if self._group is not None:
            # Raises for an invalid name now, not in the first call.
            other = None if is_full_name(self._group) else "unknown"
            zone = self._zone if self._is_located else other
            instance_group_name(self._group, self._project or other, zone, self._region)
        self._port = validate_port("port", port)
        self._address = validate_choice("address", address, ("internal_ip", "external_ip", "hostname"))
        self._not_running = validate_choice("not_running", not_running, ("raise", "skip"))
        from aioresolve.gcp.credentials import GoogleCredentials

        self._user_client: InstanceAPI | None = None if service is None else UserComputeClient(service)
        is_default = service is not None or credentials in (None, "default")
        # The user's client has its own credentials: ours are not even validated then, as in TensorFlow.
        self._credentials = GoogleCredentials("default" if is_default else credentials)
        self._credentials_key = "default" if is_default else id(credentials)

    _has_clients = True

    def __repr__(self) -> str:
        location = self._zone or self._region
        where = f" in {location}" if location else ""
        return f"<{type(self).__name__} of {self._group or 'the group of this VM'}{where}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The job of the instances."""
        return [self._job]

    @property
    def task_id(self) -> int | None:
        """The task index of this process, 0 if it was not given. Can be set."""
        return 0 if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    async def _claim(self, progress: Progress) -> TaskClaim:
        # The default of `task_id`, 0, is TensorFlow's, and says nothing about this process.
        return TaskClaim(self._job, self._task_id)

    @property
    def _job(self) -> str:
        return self.task_type or ""

    @property
    def _is_located(self) -> bool:
        """Whether the location of the group is given."""
        return bool(self._zone or self._region or (self._group and is_full_name(self._group)))

    # Resolving

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Request the instances of the group: those that run and the missing ones.

        Raises:
            InstanceNotRunningError: with `not_running="raise"`, the call needs all instances, and some do not
                run, and their group does not delete them.
        """
        async with self._connected() as connections:
            group = await self._find_group(connections, progress)
            api = self._user_client
            if api is None:
                api = await connections.get(self, ("compute", self._credentials_key), self._new_api)
            return await (self._observe_members if want.complete else self._observe_all)(api, group, progress)

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        unknown = [one for one in observation.absent if NOT_FOUND in one.reason]
        if not unknown or self._user_client is not None:
            return ()
        progress = Progress()
        async with self._connected() as connections:
            group = await self._find_group(connections, progress)
            api = await connections.get(self, ("compute", self._credentials_key), self._new_api)
            names = await api.groups(group, progress)
        there = f"groups in {group.location}: {existing_names(names, group.name) or 'none'}"
        return tuple(replace(one, reason=f"{one.reason}; {there}") for one in unknown)

    async def _observe_members(
        self, api: InstanceAPI, group: InstanceGroupName, progress: Progress
    ) -> Observation:
        members = await api.group_members(group, progress)
        running, absent = await self._find_instances(api, group, members, progress)
        if absent and self._not_running == "raise":
            managed = await _managed_instances(api, group, progress) or {}
            leaving = {name for name, one in managed.items() if one.current_action in LEAVING}
            if lacking := [one for name, one in absent.items() if name not in leaving]:
                raise _not_running_error(group, lacking)
        return Observation(self._state(group, running))

    async def _observe_all(
        self, api: InstanceAPI, group: InstanceGroupName, progress: Progress
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
            return Observation(self._state(group, {}), (Missing(self._job, group.name, reason, tasks=None),))
        running, absent = await self._find_instances(api, group, members, progress)
        if managed is None:
            return Observation(self._state(group, running), tuple(absent.values()))
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
            self._state(group, running),
            tuple(_in_order(missing).values()),
            tuple(_in_order(ending).values()),
            expected=expected,
        )

    async def _find_instances(
        self, api: InstanceAPI, group: InstanceGroupName, members: Sequence[GroupMember], progress: Progress
    ) -> tuple[dict[InstanceName, Instance], dict[InstanceName, Missing]]:
        """Return the members of a group that run and all others, after requesting those that run."""
        absent: dict[InstanceName, str] = {}
        zones: dict[str, list[str]] = {}
        for member in members:
            name = _parse_url(member.instance, group)
            # Clients for tests may leave the status out.
            if member.status in ("", RUNNING):
                zones.setdefault(name.zone, []).append(name.name)
            else:
                absent[name] = member.status

        async def request(zone: str, names: Sequence[str]) -> dict[InstanceName, Instance | None]:
            found = {one.name: one for one in await api.instances(group.project, zone, names, progress)}
            return {InstanceName(zone, name): found.get(name) for name in names}

        calls = [partial(request, zone, batch) for zone, names in zones.items() for batch in batches(names)]
        running: dict[InstanceName, Instance] = {}
        for found in await gather(calls, limit=MAX_CONCURRENT_REQUESTS):
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

    def _state(self, group: InstanceGroupName, running: Mapping[InstanceName, Instance]) -> ClusterState:
        hosts = {name: self._host(group, name, instance) for name, instance in running.items()}
        if without := [name.name for name, host in hosts.items() if not host]:
            raise ConfigurationError(
                f"instances without an external address: {', '.join(without[:MAX_SHOWN])}",
                argument="address",
                hint="Leave it out, or create the instances with external addresses.",
            )
        endpoints = [
            Endpoint(
                host_port(hosts[name], self._port),
                name=name.name,
                uid=str(instance.id) or None,
                node=name.zone,
                status=instance.status or None,
                accelerators=ReadOnlyMapping(counts) if (counts := instance.accelerators) else None,
            )
            for name, instance in running.items()
        ]
        return ClusterState.of({self._job: endpoints}, observed_at=datetime.now(UTC))

    def _host(self, group: InstanceGroupName, name: InstanceName, instance: Instance) -> str:
        match self._address:
            case "internal_ip":
                return instance.internal_ip
            case "external_ip":
                return instance.external_ip
        return instance.hostname or internal_dns_name(name, instance.self_link, group.project)

    async def _find_group(self, connections: Connections, progress: Progress) -> InstanceGroupName:
        """Return the full name of the group; the metadata server is requested for what was not given."""
        group, project, zone = self._group, self._project, self._zone
        unknown = [] if group else ["instance_group"]
        unknown += ["project"] if group and not (project or is_full_name(group)) else []
        unknown += ["zone"] if group and not self._is_located else []
        problem = "no instance group was given, and this machine is not known to belong to a managed one"
        if group:
            problem = f"unknown {' and '.join(unknown)} of instance group {group!r}: the metadata server"
            problem += " of this machine did not report it"
        try:
            metadata = await shared_metadata_server(self, connections) if unknown else None
            if metadata is not None and not group:
                group = await metadata.attribute(CREATED_BY, progress)
                if group is None:
                    raise ConfigurationError(f"its metadata server has no attribute {CREATED_BY}")
                return instance_group_name(group)
            if metadata is not None and "project" in unknown:
                project = await metadata.project_id(progress)
            if metadata is not None and "zone" in unknown:
                zone = await metadata.zone(progress)
        except ResolveError as error:
            if error.retryable:
                raise
            hint = Hint(f"Pass {' and '.join(f'{{{name}}}' for name in unknown)}.")
            raise ConfigurationError(f"{problem}: {error.summary}", hint=hint) from error
        return instance_group_name(group or "", project, zone, self._region)

    async def _declared_accelerators(
        self, task_type: str | None, task_id: int | None, timeout: float
    ) -> Declared:
        from aioresolve.probe.accelerators import declared_by_all

        def gpus(accelerators: Mapping[str, int]) -> dict[str, int] | None:
            is_known = all(kind.startswith(GPU_PREFIX) for kind in accelerators)
            return {"GPU": sum(accelerators.values())} if is_known else None

        state = await self.cluster_state(timeout=timeout)
        return declared_by_all(state, task_type, task_id, gpus)

    async def _new_api(self, stack: AsyncExitStack) -> ComputeAPI:
        from aioresolve.gcp.client import GoogleSession

        return ComputeAPI(await stack.enter_async_context(GoogleSession(self._credentials)))


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
    causes = "; ".join(f"{error.code}: {error.message[:300]}".strip(": ") for error in instance.errors[:3])
    reason = f"{status}, {action} by its group" if action else status
    return f"{reason} ({causes})" if causes else reason


def internal_dns_name(name: InstanceName, self_link: str, project: str) -> str:
    """Return the zonal DNS name of an instance.

    Format: https://cloud.google.com/compute/docs/internal-dns. It contains the id of the project, which the
    URL of the instance has even if `project` is the number.
    """
    _, found, rest = self_link.partition("/projects/")
    own = rest.partition("/")[0] if found else project
    # The domain of a project such as example.com:my-project follows its id.
    return ".".join([name.name, name.zone, "c", *reversed(own.split(":")), "internal"])


def _in_order(found: Mapping[InstanceName, T]) -> dict[InstanceName, T]:
    """Return it in the order of tasks: by name, with numbers compared as numbers, and then by zone."""
    keys = natural_keys([name.name for name in found])
    return {name: found[name] for _, name in sorted(zip(keys, found, strict=True))}


async def _managed_instances(
    api: InstanceAPI, group: InstanceGroupName, progress: Progress
) -> dict[InstanceName, ManagedInstance] | None:
    """Return what the manager of a group reports; None if it has no manager."""
    try:
        found = await api.managed_instances(group, progress)
    except APIError as error:
        # Without permission, or with a client of the user, only the instances that exist are known.
        if error.status not in (403, 404, 501) or error.retryable:
            raise
        return None if error.status == 404 else {}
    return {_parse_url(one.instance, group): one for one in found}


def _parse_url(url: str, group: InstanceGroupName) -> InstanceName:
    try:
        return instance_name(url, "" if group.is_regional else group.location)
    except ValueError as error:
        raise ProtocolError(f"the list of {group} is invalid: {error}", scope=str(group)) from error
