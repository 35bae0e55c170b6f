"""`SimpleClusterResolver`: a cluster that is known in advance.

It follows `tf.distribute.cluster_resolver.SimpleClusterResolver`.
"""

from __future__ import annotations

import reprlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio

from aioresolve._core.deadline import Progress
from aioresolve.errors import InvalidClusterError
from aioresolve.spec import ClusterSpec, ClusterState, Observation

from .base import ClusterResolver, master_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from aioresolve.spec.observation import Want


class SimpleClusterResolver(ClusterResolver):
    """Returns the cluster that it was given.

    >>> resolver = SimpleClusterResolver(ClusterSpec({"worker": ["10.0.0.1:8470"]}), rpc_layer="grpc")
    >>> await resolver.master("worker", 0)
    'grpc://10.0.0.1:8470'

    Args:
        cluster_spec: the cluster; a `tf.train.ClusterSpec` is accepted too.
        master: the address that `master()` returns if no task is given, without the rpc_layer.
        task_type: the job of this process.
        task_id: the task index of this process in that job.
        environment: the value of the `environment` property.
        num_accelerators: the value that `num_accelerators()` returns: devices per host, by type.
        rpc_layer: the protocol of the tasks, such as `"grpc"`.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        InvalidClusterError: (a TypeError) `cluster_spec` is not a ClusterSpec, or `master` is not a str.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(task_type=task_type, task_id=task_id, rpc_layer=rpc_layer, timeout=timeout)
        spec: Any = cluster_spec
        if not (isinstance(spec, ClusterSpec) or hasattr(spec, "as_cluster_def")):  # of tf.train.ClusterSpec
            raise InvalidClusterError(
                f"cluster_spec must be a ClusterSpec; got {type(spec).__name__}",
                hint="Use SimpleClusterResolver(ClusterSpec(...)).",
            )
        self._cluster_spec = spec if isinstance(spec, ClusterSpec) else ClusterSpec(spec)
        if not isinstance(master, str):
            raise InvalidClusterError(
                f"master must be a str, such as 'host:port'; got {reprlib.repr(master)}"
            )
        self._master = master
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of jobs {self._cluster_spec.jobs}>"

    @property
    def environment(self) -> str:
        """The `environment` given to the constructor."""
        return self._environment

    @property
    def known_jobs(self) -> Sequence[str]:
        """The jobs of the cluster."""
        return self._cluster_spec.jobs

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Return the spec given to the constructor; its endpoints have an address only."""
        return Observation(ClusterState.from_spec(self._cluster_spec, observed_at=datetime.now(UTC)))

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        """Yield the cluster once, and then wait forever, because it never changes."""
        yield await self.observe(want, Progress())
        await anyio.sleep_forever()

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return `rpc_layer://host:port` of the given task, or else the `master` given to the constructor.

        As in TensorFlow, the resolver's `task_type` and `task_id` are not used as defaults. For the arguments
        and errors see `ClusterResolver.master`.
        """
        master = self._master
        if task_type is not None and task_id is not None:
            spec = await self.cluster_spec(timeout=timeout)
            master = spec.task_address(task_type, task_id)
        return master_url(master, rpc_layer or self.rpc_layer)

    async def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, int]:
        """Return the `num_accelerators` given to the constructor. The arguments are ignored."""
        return dict(self._num_accelerators)
