"""TPUClusterResolver: names, addresses or the environment -> the workers of Cloud TPUs."""

from __future__ import annotations

import os
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from aioresolve.arguments import checked_seconds
from aioresolve.polling import polled
from aioresolve.pooling import Sharing
from aioresolve.retry import within_deadline

from . import tensorflow
from .accelerators import TPUProbing
from .arguments import api_base, checked_coordinator, checked_text, checked_version
from .connections import Connections, Way
from .coordinator import Coordinator
from .discovery import Local, NamedTPUs, OwnVM, checked_tpu, tpu_source
from .finding import Finder
from .observing import observation_of
from .own_vm import own_vm_observations
from .slices import cluster_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Hashable, Sequence
    from contextlib import AbstractContextManager

    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.messages import Node
    from aioresolve.gcp.tpu_api import TPUVersion
    from aioresolve.pooling import Pool
    from aioresolve.retry import Progress
    from aioresolve.spec import ClusterState, Observation

    from .discovery import Source
    from .slices import TPUSlice

__all__ = ["TPUClusterResolver"]

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
                told = polled(fetch, interval)
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
