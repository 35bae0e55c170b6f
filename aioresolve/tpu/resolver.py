"""The arguments of TPUClusterResolver, checked: each wrong one is told by its name, with the mend. Pure.

What is asked of one TPU, each question being one field of what its source says.

What the workers of TPUs are asked themselves: their devices, and how many cores each host has.

TPUClusterResolver: names, addresses or the environment -> the workers of Cloud TPUs.
"""

from __future__ import annotations

import abc
import os
import re
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit

from aioresolve._core.retry import within_deadline
from aioresolve._core.shared_context import Sharing
from aioresolve._core.validation import checked_seconds
from aioresolve.errors import ConfigurationError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.resolver.polling import poll

from . import tensorflow_runtime as tensorflow
from .connections import Connections, Way
from .coordinator import Coordinator
from .discovery import Local, NamedTPUs, OwnVM, checked_tpu, tpu_source, worker_address
from .metadata_source import own_vm_observations
from .nodes import Finder
from .readiness import is_recoverable, observation_of
from .slices import cluster_of, shared_topology

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from aioresolve._core.retry import Progress
    from aioresolve._core.shared_context import Pool
    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.messages import Node, Symptom
    from aioresolve.gcp.tpu_api import TPUVersion
    from aioresolve.probe import WorkerProbe
    from aioresolve.spec import ClusterState, Observation

    from .discovery import Source
    from .slices import TPUSlice
    from .tensorflow_runtime import TPUSystemMetadata
    from .topology import TPUTopology

__all__ = [
    "TPUClusterResolver",
    "TPUInspection",
    "TPUProbing",
    "api_base",
    "checked_coordinator",
    "checked_text",
    "checked_version",
]

DISCOVERY_VARIABLE = "TPU_API_DISCOVERY_URL"

DIRECTORY = "/discovery/v1/apis/"
"""Where Google keeps the discovery documents of all its APIs, whose host says nothing of where they are."""

_PARAMETER = re.compile(r"\{(\w*)\}")


def checked_text(name: str, text: Any) -> str | None:
    """Return `text`, or None where it is None or empty, as the seed of every project and zone has it."""
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f"{name}={text!r} is no text; give its name")
    return text


def checked_version(version: Any) -> TPUVersion:
    """Return the API's version where there is one of that name."""
    if version not in ("v1", "v2"):
        raise ConfigurationError(f"api_version={version!r} is none of 'v2' and 'v1'")
    return version  # type: ignore[no-any-return]


def checked_coordinator(name: Any, address: Any, job_name: str) -> tuple[str | None, str | None]:
    """Return name and address of the coordinator; both None where it is to be no part of the cluster.

    Raises:
        ConfigurationError: one of them is none, or the name is that of the TPU's own job.
    """
    name = checked_text("coordinator_name", name)
    address = checked_text("coordinator_address", address)
    if name is None:
        return None, None
    if name == job_name:
        raise ConfigurationError(
            f"coordinator_name={name!r} is the job of the TPU workers; name the coordinator otherwise, or"
            " them with job_name"
        )
    return name, None if address is None else worker_address(address, "coordinator_address")


def api_base(discovery_url: Any, environ: Mapping[str, str], version: str) -> str | None:
    """Return the base URL of the API that a discovery document's URL stands for; None for Google's own.

    `$TPU_API_DISCOVERY_URL` comes before the argument. A discovery document is served by its API, so that the
    URL's scheme and host are the API's; but for that in Google's directory of all documents.

    Args:
        discovery_url: a template with `{api}` and `{apiVersion}`, or None.
        environ: the environment variables.
        version: the API's version.

    Raises:
        ConfigurationError: it is no such template.
    """
    variable = environ.get(DISCOVERY_VARIABLE)
    where = f"${DISCOVERY_VARIABLE}" if variable else "discovery_url"
    template = variable or discovery_url
    if not template:
        return None
    mend = "write it as https://tpu.googleapis.com/$discovery/rest?version={apiVersion}"
    if not isinstance(template, str):
        raise ConfigurationError(f"{where}={template!r} is no text; {mend}")
    values = {"api": "tpu", "apiVersion": version}
    if unknown := sorted(set(_PARAMETER.findall(template)) - values.keys()):
        raise ConfigurationError(f"{where}={template!r} has the parameter {{{unknown[0]}}}; {mend}")
    url = _PARAMETER.sub(lambda found: values[found[1]], template)
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigurationError(f"{where}={template!r} is no URL ({error}); {mend}") from error
    if not is_url:
        raise ConfigurationError(f"{where}={template!r} is no URL; {mend}")
    if parts.path.startswith(DIRECTORY) and (parts.hostname or "").endswith(".googleapis.com"):
        return None
    return f"{parts.scheme}://{parts.netloc}"


T = TypeVar("T")


class TPUInspection(ClusterResolver):
    """A resolver of TPUs that can be asked about the one that it has.

    Each method takes `timeout`, the call's total deadline in seconds (the resolver's own where None), and
    raises a ConfigurationError where there are several TPUs: ask `nodes()` or `slices()` then.
    """

    @abc.abstractmethod
    async def slices(self, *, timeout: float | None = None) -> tuple[TPUSlice, ...]:
        """Return the slices as they are now, in the order of their tasks."""

    @abc.abstractmethod
    async def nodes(self, *, timeout: float | None = None) -> tuple[Node, ...]:
        """Return what the Cloud TPU API says of each TPU, in whatever state; none where it is not asked."""

    async def node(self, *, timeout: float | None = None) -> Node | None:
        """Return what the Cloud TPU API says of the TPU, in whatever state; None where it is not asked.

        Raises:
            ConfigurationError: there are several; ask `nodes()`.
            ResolveError: the API could not be asked.
        """
        return self._only(await self.nodes(timeout=timeout), "nodes()")

    async def state(self, *, timeout: float | None = None) -> str | None:
        """Return the TPU's state, `READY` and so on; None where nobody tells. Errors are as of `node`."""
        node = await self.node(timeout=timeout)
        return None if node is None else node.state or None

    async def health(self, *, timeout: float | None = None) -> str | None:
        """Return the TPU's health, `HEALTHY` and so on; None where nobody tells. Errors are as of `node`."""
        node = await self.node(timeout=timeout)
        return None if node is None else node.health or None

    async def symptoms(self, *, timeout: float | None = None) -> tuple[Symptom, ...]:
        """Return what has happened to the TPU's workers, as the API lists it. Errors are as of `node`."""
        node = await self.node(timeout=timeout)
        return () if node is None else node.symptoms

    async def runtime_version(self, *, timeout: float | None = None) -> str | None:
        """Return the TPU's software, such as `tpu-ubuntu2204-base`, or with v1 its version of TensorFlow.

        It is None where nobody tells. Errors are as of `node`.
        """
        node = await self.node(timeout=timeout)
        return None if node is None else node.runtime_version or node.tensorflow_version or None

    async def recoverable(self, *, timeout: float | None = None) -> bool:
        """Return whether a job may go on: no TPU is preempted or terminated, or ran out of memory just now.

        Every TPU is looked at where there are several. One that the API is not asked for is taken to be well.

        Raises:
            ResolveError: the API could not be asked.
        """
        return is_recoverable(await self.nodes(timeout=timeout))

    async def accelerator_type(self, *, timeout: float | None = None) -> str | None:
        """Return the slice's type, such as `v4-16`; None where nobody tells.

        Raises:
            ConfigurationError: there are several; ask `slices()`.
            ResolveError: as `slices`.
        """
        one = self._only(await self.slices(timeout=timeout), "slices()")
        return None if one is None else one.accelerator_type

    async def topology(self, *, timeout: float | None = None) -> TPUTopology | None:
        """Return how the slice is built: chips, hosts and bounds; None where nobody tells.

        Raises:
            ConfigurationError: there are several; ask `slices()`.
            ProtocolError: what its source says contradicts itself.
            ResolveError: as `slices`.
        """
        one = self._only(await self.slices(timeout=timeout), "slices()")
        return None if one is None else one.topology

    def _only(self, found: Sequence[T], method: str) -> T | None:
        if len(found) > 1:
            raise ConfigurationError(f"{self!r} is {len(found)} TPUs; ask {method}, which tells of each")
        return found[0] if found else None


class TPUProbing(TPUInspection):
    """A resolver of TPUs whose workers can be asked for their devices, all at once."""

    _sharing: Sharing[Connections]

    @abc.abstractmethod
    def _source(self) -> Source:
        """Return who names the workers."""

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return `{"TPU": cores per host}`, every worker having been asked at once; 0 where none has any.

        Cores are counted as TensorFlow counts them: they are its TPU devices.

        Args:
            task_type: not used, as in TensorFlow: all workers have to agree.
            task_id: not used.
            config_proto: a `tf.compat.v1.ConfigProto`, whose `operation_timeout_in_ms` bounds the call too.
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ProbeError: (a RuntimeError) hosts did not answer, or differ; it names each, with reason or count.
            DeadlineExceededError: hosts did not answer in time.
            MissingDependencyError: the TPU is local, and TensorFlow is not installed.
            ResolveError: the workers were not found.
        """
        metadata = await self._system(config_proto, timeout)
        return {"TPU": metadata.num_of_cores_per_host}

    async def get_tpu_system_metadata(self, *, timeout: float | None = None) -> TPUSystemMetadata:
        """Return numbers of cores and hosts, and the devices, every worker having been asked at once.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ResolveError: as `num_accelerators`.
        """
        return await self._system(None, timeout)

    async def probe(self, *, timeout: float | None = None) -> tuple[WorkerProbe, ...]:
        """Return what each worker says of its devices, or why it does not, in task order.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            ResolveError: the workers were not found. No worker's fault is raised: each has its row.
        """
        _, probes, _ = await self._probed(self._deadline(timeout))
        return tuple(probes.values())

    async def _within(
        self, timeout: float | None, asked: str, operation: Callable[[Progress], Awaitable[T]]
    ) -> T:
        return await within_deadline(self._deadline(timeout), f"{asked} of {self!r}", operation)

    async def _system(self, config_proto: Any, timeout: float | None) -> TPUSystemMetadata:
        from .probing import local_system, operation_timeout, system_metadata  # which loads grpc

        within = min(self._deadline(timeout), operation_timeout(config_proto) or float("inf"))
        if isinstance(self._source(), Local):
            return local_system(
                await self._within(within, "the devices", lambda _: tensorflow.local_devices())
            )
        slices, probes, had = await self._probed(within)
        return system_metadata(probes, shared_topology(slices), had)

    async def _probed(self, within: float) -> tuple[tuple[TPUSlice, ...], dict[str, WorkerProbe], float]:
        """Return the slices, their workers' answers, and the seconds that the workers had."""
        from .probing import Deadline, probed_slices  # which loads grpc

        deadline = Deadline.after(within)
        slices = await self.slices(timeout=within)
        left = max(deadline.left, 0.001)
        async with self._sharing.opened() as connections:
            return slices, await probed_slices(slices, left, await connections.channels()), left


INITIALIZATION = 300.0
"""Seconds that TensorFlow may take to initialize a TPU system: as long as its own resolver gives it."""


class TPUClusterResolver(TPUProbing):
    """Finds the workers of Cloud TPUs and answers with their addresses, one job, slice after slice.

    >>> resolver = TPUClusterResolver("grpc://10.130.0.2:8470,grpc://10.130.0.3")
    >>> await resolver.cluster_spec()
    ClusterSpec({'worker': ['10.130.0.2:8470', '10.130.0.3:8470']})

    With a name, the Cloud TPU API is asked:

    ```
    async with TPUClusterResolver("my-tpu", "us-central2-b", "my-project") as resolver:
        spec = await resolver.cluster_spec()
        cores = await resolver.num_accelerators()
    ```

    Where no TPU is named, the first of these that is set names it: `$KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`, the
    `$TPU_WORKER_HOSTNAMES` (or `$TPU_PROCESS_ADDRESSES`) of GKE's TPU pods, `$TPU_NAME`, `$TPU_CONFIG`; else
    this VM's metadata server tells the slice that it is part of. They are looked at in every call.

    `task_type` is `job_name` and `task_id` 0, as in TensorFlow.

    Calls raise an error where a TPU is not ready; `watch` and `wait` take the slices that are, and go on.
    That a TPU is preempted or deleted, or that there is none of its name yet, ends no watch: it may come
    (again) under that name. `wait` waits for a TPU that does not exist, for somebody may be creating it, and
    says so at its deadline; one that exists and is lost is a FailedClusterError at once.

    Args:
        tpu: a TPU's name, id or full; a queued resource's, which stands for its nodes; a list of names, each
            a slice, fetched at once; addresses such as `"grpc://10.0.0.7:8470,grpc://10.0.0.8:8470"`, 8470
            being the port where there is none; or `"local"`, the TPU of this very host, whose cluster is
            empty.
        zone: the TPUs' zone; where None, that of this VM, as its metadata server tells.
        project: the TPUs' project; where None, that of this VM.
        job_name: the job that the workers are.
        coordinator_name: the job that the coordinator is; where None, there is none in the cluster.
        coordinator_address: the coordinator's `host:port`; where None, and there is a `coordinator_name`, a
            TensorFlow server of this process, started by the first call.
        credentials: of google-auth; application default credentials where `"default"` or None.
        service: what `googleapiclient.discovery.build("tpu", ...)` returned, to be asked in worker threads,
            in place of any `credentials` and `discovery_url`. It stays yours to close.
        discovery_url: a template with `{api}` and `{apiVersion}` of the URL of the API's discovery document,
            whose host is asked; `$TPU_API_DISCOVERY_URL` comes before it.
        api_version: `"v2"`, or `"v1"` for TPU nodes of old; v1 knows no TPU VMs.
        timeout: the total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is not one of these.
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
        api_version: TPUVersion = "v2",
        timeout: float = 30.0,
    ) -> None:
        job_name = checked_text("job_name", job_name) or "worker"
        super().__init__(task_type=job_name, task_id=0, rpc_layer="grpc", timeout=timeout)
        self._tpu = checked_tpu(tpu)
        if self._tpu:
            tpu_source(self._tpu, {})  # an address that is none is told here, not at the first call
        self._version = checked_version(api_version)
        self._coordinator = Coordinator(*checked_coordinator(coordinator_name, coordinator_address, job_name))
        self._job_name = job_name
        self._finder = Finder(checked_text("project", project), checked_text("zone", zone), self._version)
        base = api_base(discovery_url, os.environ, self._version)
        self._way = Way(credentials, service, {} if base is None else {"tpu": base}, self._version)
        self._sharing = Sharing(self, self.new_pool)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self._tpu) or 'the TPU of this environment'}>"

    @staticmethod
    async def connect(
        tpu: str | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        *,
        timeout: float = INITIALIZATION,
    ) -> TPUClusterResolver:
        """Return a resolver whose TPU system this process's TensorFlow is connected to and has initialized.

        Args:
            tpu: as for the class.
            zone: as for the class.
            project: as for the class.
            timeout: seconds that all of it may take.

        Raises:
            MissingDependencyError: (an ImportError) TensorFlow is not installed.
            TPUNotFoundError: the workers have no TPU.
            ResolveError: the workers were not found, do not answer, or TensorFlow says what went wrong.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        await resolver.initialize_system(timeout=timeout)
        return resolver

    async def fetch_state(self, progress: Progress) -> ClusterState:
        """Ask for every TPU, at once, and return their workers, slice after slice."""
        async with self._sharing.opened() as connections:
            slices = await self._finder.slices(self._source(), connections, progress)
            others = await self._coordinator.jobs(connections, progress) if slices else {}
        return cluster_of(slices, self.get_job_name(), others, datetime.now(UTC))

    async def fetch_observation(self, progress: Progress) -> Observation:
        """Ask for every TPU, at once, and return the workers of those that are ready, and who is not."""
        async with self._sharing.opened() as connections:
            return await self._observed(self._source(), self._finder, connections, progress)

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        """Yield what is seen of the TPUs: the workers of those that are ready, and who is not, and why.

        The Cloud TPU API is asked at intervals, and need not answer in full what has not changed. This VM's
        metadata server tells by itself when it has changed. Who names the TPUs is looked up once.
        """
        source, finder = self._source(), self._finder.for_watch()
        interval = checked_seconds("interval", interval)
        async with self._sharing.opened() as connections:

            async def fetch() -> Observation:
                observed = partial(self._observed, source, finder, connections)
                return await within_deadline(self._timeout, f"a question to {self!r}", observed)

            if isinstance(source, OwnVM):
                metadata = await connections.metadata()
                told = own_vm_observations(source, metadata, fetch, interval)
            else:
                told = poll(fetch, interval)
            async with aclosing(told) as observations:
                async for observation in observations:
                    yield observation

    async def slices(self, *, timeout: float | None = None) -> tuple[TPUSlice, ...]:
        """Return the slices as they are now, in the order of their tasks; none where the TPU is local.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            TPUNotReadyError: (a RuntimeError) a TPU is not ready; it lists every such one.
            ResolveError: the source could not be asked.
        """
        return await self._within(timeout, "slices()", self.fetch_slices)

    async def fetch_slices(self, progress: Progress) -> tuple[TPUSlice, ...]:
        """Ask for every TPU, at once, and return the slices; for whoever shows the progress of it.

        It has no deadline of its own: call it within `aioresolve.retry.within_deadline`.

        Raises:
            ResolveError: as `slices`.
        """
        async with self._sharing.opened() as connections:
            return await self._finder.slices(self._source(), connections, progress)

    async def nodes(self, *, timeout: float | None = None) -> tuple[Node, ...]:
        """Return what the Cloud TPU API says of each TPU, in whatever state; none where it is not asked.

        It is not asked where the workers' addresses are given, or told by this VM's metadata server.

        Args:
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            TPUNotFoundError: there is none of a name.
            TPUNotReadyError: a queued resource has no nodes yet.
            ResolveError: the API could not be asked.
        """
        return await self._within(timeout, "nodes()", self._found_nodes)

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return `grpc://host:port` of one worker, the first where none is named; "" where the TPU is local.

        Args:
            task_type: the task's job; the resolver's own `task_type` where None.
            task_id: the task's index; the resolver's own `task_id` where None.
            rpc_layer: the protocol to put before the address; the resolver's own where None.
            timeout: the call's total deadline in seconds; the resolver's own where None.

        Raises:
            UnknownTaskError: (a ValueError) there is no such task.
            TPUNotFoundError: (a ValueError) there is no TPU of a name.
            ResolveError: the source could not be asked.
        """
        if isinstance(self._source(), Local):
            return ""
        job = self.get_job_name() if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        return await super().master(job, 0 if index is None else index, rpc_layer, timeout=timeout)

    async def get_master(self, *, timeout: float | None = None) -> str:
        """Return `master()`."""
        return await self.master(timeout=timeout)

    def get_job_name(self) -> str:
        """Return the job that the workers are."""
        return self.task_type or self._job_name

    async def initialize_system(self, *, timeout: float = INITIALIZATION) -> None:
        """Connect this process's TensorFlow to the workers, and initialize their TPU system.

        Before, every worker's TensorFlow server is asked whether it is there.

        Args:
            timeout: seconds that all of it may take. TensorFlow cannot be interrupted: where they are over,
                it is left alone in its thread.

        Raises:
            ResolveError: as `connect`.
        """
        from .probing import Deadline, tensorflow_answers  # which loads grpc

        deadline = Deadline.after(self._deadline(timeout))
        slices = await self.slices(timeout=deadline.timeout)
        if slices:
            # TensorFlow would wait for ever for a worker that is gone.
            await tensorflow_answers(slices, max(deadline.left, 0.001))
        addresses = [endpoint.address for one in slices for endpoint in one.endpoints]

        async def initialize(progress: Progress) -> None:
            progress.waiting("TensorFlow", "it has not initialized the TPU system")
            await tensorflow.connected_system(addresses, self.get_job_name())

        await self._within(max(deadline.left, 0.001), "initialize_system()", initialize)

    async def __aenter__(self) -> Self:
        self._sharing.enter()
        return self

    async def aclose(self) -> None:
        """Close the connections that the calls inside `async with` shared."""
        await self._sharing.aclose()

    @property
    def pool_key(self) -> Hashable:
        """The credentials, service, endpoint and version: whoever is given the same shares connections."""
        return self._way.key

    def new_pool(self) -> Connections:
        """Return connections for the resolvers that have this `pool_key`, and the access tokens they use."""
        return Connections(self._way)

    def using(self, pool: Pool) -> AbstractContextManager[None]:
        """Let the calls and watches inside the block use `pool`, which its owner closes; not in `async with`.

        Raises:
            ConfigurationError: it is entered already, or the pool is one of another `pool_key`.
        """
        if not isinstance(pool, Connections) or pool.key != self._way.key:
            raise self._sharing.unfit(pool)
        return self._sharing.using(pool)

    def _source(self) -> Source:
        return tpu_source(self._tpu, os.environ)

    async def _observed(
        self, source: Source, finder: Finder, connections: Connections, progress: Progress
    ) -> Observation:
        found = await finder.found(source, connections, progress)
        others = await self._coordinator.jobs(connections, progress) if found.slices else {}
        return observation_of(source, found, self.get_job_name(), others, datetime.now(UTC))

    async def _found_nodes(self, progress: Progress) -> tuple[Node, ...]:
        source = self._source()
        if not isinstance(source, NamedTPUs):
            return ()
        async with self._sharing.opened() as connections:
            return tuple(await self._finder.nodes(source, connections, progress))
