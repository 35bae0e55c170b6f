"""TPUClusterResolver: resolves names, addresses or the environment to the workers of Cloud TPUs."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeVar
from urllib.parse import urlsplit

from aioresolve._core.deadline import Deadline, Progress, within_deadline
from aioresolve._core.service_account import is_in_pod
from aioresolve._core.validation import validate_choice, validate_text
from aioresolve.errors import ResolveError, TaskIdentityError
from aioresolve.gcp.credentials import GoogleCredentials
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.this_task import TaskClaim

from . import system
from .discovery import (
    LocalTPU,
    MetadataSource,
    NamedTPUs,
    environment_task_id,
    invalid_value,
    tpu_source,
    validate_tpu,
)
from .finder import SliceFinder, TPUClients
from .slices import NOT_FOUND, libtpu_ports
from .vm import fetch_tpu_env, no_tpu_found

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.tpu_api import Node
    from aioresolve.probe import WorkerProbe
    from aioresolve.resolver.checks import PlannedCheck
    from aioresolve.spec import ClusterState, Missing, Observation, Task
    from aioresolve.spec.observation import Want

    from .discovery import Source
    from .slices import TPUSlice
    from .system import TPUSystemMetadata

T = TypeVar("T")

INITIALIZATION_TIMEOUT = 300.0
"""Seconds that TensorFlow may take to initialize a TPU system, as in TensorFlow's own resolver."""


class TPUClusterResolver(system.TopologyHolder, ClusterResolver):
    """Resolves Cloud TPUs to the addresses of their workers: one job, slice after slice.

    >>> resolver = TPUClusterResolver("grpc://10.130.0.2:8470,grpc://10.130.0.3")
    >>> await resolver.cluster_spec()
    ClusterSpec({'worker': ['10.130.0.2:8470', '10.130.0.3:8470']})

    A name is looked up with the Cloud TPU API:

    ```
    async with TPUClusterResolver("my-tpu", "us-central2-b", "my-project") as resolver:
        spec = await resolver.cluster_spec()
        cores = await resolver.num_accelerators()
    ```

    If no TPU is given, the first of these variables that is set names it: `$KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`,
    `$TPU_PROCESS_ADDRESSES_PATH`, `$TPU_PROCESS_ADDRESSES` and `$TPU_WORKER_HOSTNAMES` of GKE's TPU pods,
    `$TPU_NAME`, `$TPU_CONFIG`. If none is set, the metadata server of this VM reports the slice that the VM
    belongs to. Every call reads them again.

    `task_type` is `job_name`. `task_id` is `$TPU_WORKER_ID` in GKE's TPU pods; otherwise 0, as in TensorFlow.

    If the environment describes one slice of several, calls that return a cluster raise a
    PartialClusterError; `slices()` and `probe()` describe that slice.

    Calls raise an error if a TPU is not ready; `watch` and `wait` use the slices that are ready and continue.
    A watch continues if a TPU is preempted or deleted, or does not exist yet: it may be created (again) under
    that name. `wait` also waits for a TPU that does not exist, and reports that at its deadline; for a TPU
    that exists and is lost it raises a FailedClusterError at once.

    Every method has the argument `timeout`: the total deadline of the call in seconds; if None, the
    resolver's own.

    Args:
        tpu: the id or full name of a TPU; that of a queued resource, which stands for its nodes; a list of
            names, each of them a slice; addresses such as `"grpc://10.0.0.7:8470,grpc://10.0.0.8:8470"`, with
            8470 as the default port; or `"local"`, the TPU of this host, whose cluster is empty.
        zone: the zone of the TPUs; if None, that of this VM, as its metadata server reports it.
        project: the project of the TPUs; if None, that of this VM.
        job_name: the job of the workers.
        coordinator_name: the job of the coordinator; if None, the cluster has no coordinator.
        coordinator_address: `host:port` of the coordinator. If None, and `coordinator_name` is given, the
            first call starts a TensorFlow server in this process.
        credentials: google-auth credentials; `"default"` and None mean application default credentials.
        service: what `googleapiclient.discovery.build("tpu", ...)` returned. It is called in worker threads,
            in place of `credentials` and `discovery_url`. The caller closes it.
        discovery_url: template, with `{api}` and `{apiVersion}`, of the URL of the API's discovery document;
            requests go to its host. `$TPU_API_DISCOVERY_URL` takes precedence.
        not_healthy: what to do with TPUs that are READY but not healthy, as during maintenance. `"raise"`:
            calls raise TPUNotReadyError; a watch keeps their workers, as not ready. `"allow"`: they are used,
            as in TensorFlow.
        address: which address of a worker to use: `"internal_ip"`, or `"external_ip"`, which only TPUs that
            are named have.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid.
    """

    def __init__(
        self,
        tpu: str | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: AnyCredentials = "default",
        service: Any = None,
        discovery_url: str | None = None,
        *,
        not_healthy: Literal["raise", "allow"] = "raise",
        address: Literal["internal_ip", "external_ip"] = "internal_ip",
        timeout: float = 30.0,
    ) -> None:
        job_name = validate_text("job_name", job_name) or "worker"
        super().__init__(task_type=job_name, task_id=0, rpc_layer="grpc", timeout=timeout)
        self._is_task_id_set = False
        self._tpu = validate_tpu(tpu)
        if self._tpu:
            tpu_source(self._tpu, {})  # raises for an invalid address now, not in the first call
        self._coordinator = system.Coordinator(coordinator_name, coordinator_address, job_name)
        self._job_name = job_name
        self._finder = SliceFinder(
            validate_text("project", project),
            validate_text("zone", zone),
            validate_choice("not_healthy", not_healthy, ("raise", "allow")),
            validate_choice("address", address, ("internal_ip", "external_ip")),
        )
        self._base_url = api_base_url(discovery_url, os.environ)
        self._user_client = None
        if service is not None:
            from aioresolve.gcp.tpu_api import UserTPUClient

            self._user_client = UserTPUClient(service)
            credentials = "default"  # that client has its own: ours are not even validated, as in TensorFlow
        self._credentials = GoogleCredentials(credentials)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._tpu) or 'the TPU of this environment'}>"

    # Resolving

    @property
    def known_jobs(self) -> Sequence[str]:
        """The job of the workers, and that of the coordinator."""
        return [job for job in (self.get_job_name(), self._coordinator.name) if job is not None]

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Request every TPU, all at once: the workers, slice after slice, and the missing ones."""
        job, source = self.get_job_name(), self._source()
        async with self._clients() as clients:
            found = await self._finder.find(source, clients, progress)
            if want.complete:
                await self._finder.raise_if_unready(found.unready, source, clients, progress)
            others = await self._coordinator.jobs(clients, progress) if found.slices else {}
        return found.observation(source, job, others, datetime.now(UTC))

    async def slices(self, *, timeout: float | None = None) -> tuple[TPUSlice, ...]:
        """Return the current slices, in the order of their tasks; empty for the TPU of this host.

        Raises:
            TPUNotReadyError: (a RuntimeError) some TPUs are not ready; it lists them all.
            ResolveError: the request failed.
        """
        return await self._call(timeout, "slices()", self.fetch_slices)

    async def fetch_slices(self, progress: Progress) -> tuple[TPUSlice, ...]:
        """Request every TPU, all at once, and return the slices, noting each step in `progress`.

        It has no deadline: call it inside `within_deadline`.

        Raises:
            ResolveError: see `slices`.
        """
        source = self._source()
        async with self._clients() as clients:
            found = await self._finder.find(source, clients, progress)
            await self._finder.raise_if_unready(found.unready, source, clients, progress)
        return found.slices

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return `grpc://host:port` of one worker; `""` for the TPU of this host.

        Args:
            task_type: the task's job; if None, the resolver's own `task_type`.
            task_id: the task's index; if None, the resolver's own `task_id`.
            rpc_layer: the protocol before the address; if None, the resolver's own.
            timeout: the total deadline of the call in seconds; if None, the resolver's own.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such task.
            TPUNotFoundError: (a ValueError) a named TPU does not exist.
            ResolveError: the request failed.
        """
        if isinstance(self._source(), LocalTPU):
            return ""  # as TensorFlow's resolver does
        job = self.get_job_name() if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        return await super().master(job, index or 0, rpc_layer, timeout=timeout)

    async def get_master(self, *, timeout: float | None = None) -> str:
        """Return `master()`."""
        return await self.master(timeout=timeout)

    @property
    def task_id(self) -> int | None:
        """The task index of this process: `$TPU_WORKER_ID` in GKE's TPU pods, else 0. Can be set.

        Raises:
            ConfigurationError: a variable of GKE is invalid.
        """
        if self._is_task_id_set or self._tpu:
            return self._task_id
        index = environment_task_id(os.environ)
        return self._task_id if index is None else index

    @task_id.setter
    def task_id(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, task_id: int | None
    ) -> None:
        self._task_id = task_id
        self._is_task_id_set = True

    @asynccontextmanager
    async def _checks(self) -> AsyncIterator[Sequence[PlannedCheck]]:
        # Imported here because only `aioresolve.doctor` needs it.
        from .checks import plan_checks

        async with self._clients() as clients:
            source, job = self._source, self.get_job_name()
            yield plan_checks(source, self._finder, clients, job, self.this_task)

    async def _identify(self, state: ClusterState, progress: Progress) -> Task:
        try:
            return await super()._identify(state, progress)
        except TaskIdentityError as error:
            # A container on Docker's bridge network does not have the address of its VM, and the metadata
            # server that a pod reaches is that of its node.
            if is_in_pod() or error.candidates or not isinstance(self._source(), NamedTPUs):
                raise
            name = await self._fetch_own_name(progress)
            for member in state.members:
                if name is not None and member.endpoint.name == name:
                    return state.task(member.job, member.task_index)
            raise

    async def _fetch_own_name(self, progress: Progress) -> str | None:
        """Return the name of the worker that is this VM; None if this is not a TPU VM."""
        async with self._clients() as clients:
            try:
                environment = await fetch_tpu_env(await clients.metadata(), progress)
            except ResolveError as error:
                if error.retryable:
                    raise
                return None
        if environment is None or None in (environment.node_id, environment.worker_id):
            return None
        return f"{environment.node_id}/worker-{environment.worker_id}"

    async def _claim(self, progress: Progress) -> TaskClaim:
        job = self.get_job_name()
        if self._is_task_id_set:
            return TaskClaim(job, self._task_id, "TPU_WORKER_ID")
        # The default of `task_id`, 0, is TensorFlow's, and says nothing about this process.
        if isinstance(self._source(), MetadataSource):
            (one,) = await self.fetch_slices(progress)
            source = "WORKER_ID of the metadata server"
            return TaskClaim(job, one.environment.worker_id, index_source=source)
        index = None if self._tpu else environment_task_id(os.environ)
        return TaskClaim(job, index, "TPU_WORKER_ID", "$TPU_WORKER_ID")

    def get_job_name(self) -> str:
        """Return the job of the workers."""
        return self.task_type or self._job_name

    def get_coordination_service_leader(self) -> str:
        """Return the task where TensorFlow's coordination service runs: `/job:worker/task:0`."""
        return f"/job:{self.get_job_name()}/task:0"

    # Facts about the TPUs

    async def nodes(self, *, timeout: float | None = None) -> tuple[Node, ...]:
        """Return each TPU in any state, as the Cloud TPU API describes it.

        The result is empty if the API is not used: the addresses of the workers are given, or this VM's
        metadata server reports them.

        Raises:
            TPUNotFoundError: a name does not exist.
            TPUNotReadyError: a queued resource has no nodes yet.
            ResolveError: the request failed.
        """

        async def fetch(progress: Progress) -> tuple[Node, ...]:
            async with self._clients() as clients:
                return await self._finder.find_nodes(self._source(), clients, progress)

        return await self._call(timeout, "nodes()", fetch)

    # Probing the workers

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Probe every worker, all at once, and return `{"TPU": cores per host}`; 0 if they have none.

        Cores are counted as TensorFlow counts them: its TPU devices.

        Args:
            task_type: unused, as in TensorFlow: all workers must have the same number.
            task_id: unused.
            config_proto: a `tf.compat.v1.ConfigProto`, whose `operation_timeout_in_ms` also limits the call.
            timeout: the total deadline of the call in seconds; if None, the resolver's own.

        Raises:
            ProbeError: (a RuntimeError) workers failed or differ; it lists each with its reason or number.
            ProbeDeadlineError: (a DeadlineExceededError and RuntimeError) workers did not respond in time.
            MissingDependencyError: the TPU is local, and TensorFlow is not installed.
            ResolveError: the workers could not be resolved.
        """
        metadata = await self._system_metadata(config_proto, timeout)
        return {"TPU": metadata.num_of_cores_per_host}

    async def get_tpu_system_metadata(self, *, timeout: float | None = None) -> TPUSystemMetadata:
        """Probe every worker, all at once, and return the numbers of cores and hosts, and the devices.

        Raises:
            ResolveError: see `num_accelerators`.
        """
        return await self._system_metadata(None, timeout)

    async def probe(self, *, timeout: float | None = None) -> tuple[WorkerProbe, ...]:
        """Probe every worker, all at once, and return the devices or the error of each, in task order.

        Raises:
            ResolveError: the workers could not be resolved. The error of a worker is not raised.
        """
        probes, _ = await self._probe(self._deadline(timeout))
        return tuple(probes.values())

    @staticmethod
    async def connect(
        tpu: str | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        *,
        timeout: float = INITIALIZATION_TIMEOUT,
    ) -> TPUClusterResolver:
        """Return a resolver after connecting this process's TensorFlow to its TPU system and initializing it.

        For the arguments see the class; `timeout` is the total deadline in seconds. The TensorFlow server of
        each worker is probed first. TensorFlow cannot be interrupted: after the deadline, its thread is
        abandoned.

        Raises:
            MissingDependencyError: (an ImportError) TensorFlow is not installed.
            TPUNotFoundError: the workers have no TPU.
            ResolveError: the workers could not be resolved or do not respond, or TensorFlow failed.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        deadline = Deadline.after(resolver._deadline(timeout))
        addresses = await resolver._verify_servers(timeout=deadline.timeout)

        async def initialize(progress: Progress) -> None:
            progress.waiting("TensorFlow", "it has not initialized the TPU system")
            await system.initialize_system(addresses, resolver.get_job_name())

        await resolver._call(deadline.next_timeout, "connect()", initialize)
        return resolver

    async def _verify_servers(self, *, timeout: float) -> list[str]:
        """Return the addresses of the workers after the TensorFlow server of each has responded.

        TensorFlow would wait forever for one that does not respond.
        """
        probes, left = await self._probe(timeout, uses_libtpu=False)
        if probes:
            system.system_metadata(probes, self.get_job_name(), left)  # raises if a worker failed
        return [probe.address for probe in probes.values()]

    @asynccontextmanager
    async def _clients(self) -> AsyncIterator[TPUClients]:
        async with self._connected() as connections:
            yield TPUClients(self, connections, self._credentials, self._base_url, self._user_client)

    async def _locate(self, *, timeout: float) -> None:
        """Raise an error unless a TPU is named or this VM belongs to one. The TPU itself is not requested."""
        source = self._source()

        async def locate(progress: Progress) -> None:
            async with self._clients() as clients:
                if isinstance(source, MetadataSource):
                    await self._finder.find(source, clients, progress)
                elif isinstance(source, NamedTPUs):
                    await self._finder.find_location(source, clients, progress)

        try:
            await self._call(timeout, "the search for a TPU", locate)
        except ResolveError as error:
            if not error.retryable:
                raise
            if isinstance(source, MetadataSource):
                raise no_tpu_found(source.tried, error.summary) from error
            # The calls try again, for as long as their deadline permits.

    def _source(self) -> Source:
        # Nothing is cached: each call reads the variables again.
        return tpu_source(self._tpu, os.environ)

    async def _call(
        self, timeout: float | None, name: str, operation: Callable[[Progress], Awaitable[T]]
    ) -> T:
        return await within_deadline(self._deadline(timeout), f"{name} of {self!r}", operation)

    async def _unmatched(self, observation: Observation) -> tuple[Missing, ...]:
        unknown = [one for one in observation.absent if NOT_FOUND in one.reason]
        source = self._source()
        if not unknown or not isinstance(source, NamedTPUs):
            return ()
        async with self._clients() as clients:
            existing = await self._finder.existing(source, clients, Progress())
        return tuple(replace(one, reason=f"{one.reason}; {existing}") for one in unknown) if existing else ()

    async def _system_metadata(self, config_proto: Any, timeout: float | None) -> TPUSystemMetadata:
        from aioresolve.probe.workers import operation_timeout

        limit = min(self._deadline(timeout), operation_timeout(config_proto) or float("inf"))
        if isinstance(self._source(), LocalTPU):
            return await self._call(limit, "the devices", lambda _: system.local_system())
        probes, probe_timeout = await self._probe(limit)
        return system.system_metadata(probes, self.get_job_name(), probe_timeout)

    async def _probe(
        self, timeout: float, *, uses_libtpu: bool = True
    ) -> tuple[dict[str, WorkerProbe], float]:
        """Return the description of each worker to its probe, in task order, and the seconds that they had.

        With `uses_libtpu`, libtpu is requested too, if no TensorFlow server listens.
        """
        deadline = Deadline.after(timeout)
        slices = await self.slices(timeout=timeout)
        left = deadline.next_timeout
        if not slices:
            return {}, left
        from aioresolve.probe import probe_workers

        workers = [endpoint for one in slices for endpoint in one.endpoints]
        async with self._clients() as clients:
            probes = await probe_workers(
                [worker.address for worker in workers],
                timeout=left,
                worker_timeout=left,
                libtpu_ports=libtpu_ports(slices) if uses_libtpu else (),
                channels=await clients.channels(),
            )
        names = [f"{each.name} at {each.address}" if each.name else each.address for each in workers]
        return dict(zip(names, probes, strict=True)), left


def api_base_url(discovery_url: Any, environ: Mapping[str, str]) -> str | None:
    """Return the base URL of the API for the URL of its discovery document; None for Google's own.

    An API serves its own discovery document, so the scheme and host of that URL are those of the API. The
    exception is Google's directory of all documents. The variable takes precedence, as in TensorFlow.

    Raises:
        ConfigurationError: the URL is not a template with `{api}` and `{apiVersion}`.
    """
    variable = environ.get("TPU_API_DISCOVERY_URL")
    template = variable or discovery_url
    if not template:
        return None
    parts = urlsplit("")
    with suppress(AttributeError, LookupError, ValueError):  # not text, unknown parameters, not a URL
        parts = urlsplit(template.format(api="tpu", apiVersion="v2"))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise invalid_value(
            "$TPU_API_DISCOVERY_URL" if variable else "discovery_url",
            f"{template!r} is not a URL with the parameters {{api}} and {{apiVersion}} only",
            "Write it as https://tpu.googleapis.com/$discovery/rest?version={apiVersion}.",
        )
    if parts.path.startswith("/discovery/v1/apis/") and parts.hostname.endswith(".googleapis.com"):
        return None
    return f"{parts.scheme}://{parts.netloc}"
