"""The resolvers of aioresolve, blocking."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal

from aioresolve import tpu as tpus
from aioresolve.errors import ConfigurationError, InvalidClusterError
from aioresolve.resolver import base, static, union

from .facade import Attributes, Facade, InLoop, blocking, blocking_iterator
from .shared import SharedResolver

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from aioresolve.gcp.credentials import AnyCredentials
    from aioresolve.gcp.tpu_api import TPUVersion
    from aioresolve.kubernetes import Pod
    from aioresolve.spec import ClusterSpec

__all__ = [
    "ClusterResolver",
    "KubernetesClusterResolver",
    "SimpleClusterResolver",
    "TPUClusterResolver",
    "UnionClusterResolver",
    "in_fleet",
]


class ClusterResolver(Attributes, Facade[SharedResolver]):
    """An async resolver, blocking: the base of the facades here, and the facade of a resolver of your own.

    >>> class VariableResolver(aioresolve.ClusterResolver):
    ...     async def fetch_state(self, progress):
    ...         return ClusterState.from_spec(ClusterSpec({"worker": [await self.leader()]}))
    ...     async def leader(self):
    ...         return os.environ["LEADER"]
    >>> os.environ["LEADER"] = "10.0.0.1:8470"
    >>> aioresolve.sync.ClusterResolver(VariableResolver()).cluster_spec()
    ClusterSpec({'worker': ['10.0.0.1:8470']})

    Methods of its own become part of a facade of its own:

    >>> class SyncVariableResolver(aioresolve.sync.ClusterResolver):
    ...     leader = aioresolve.sync.blocking(VariableResolver.leader)
    >>> SyncVariableResolver(VariableResolver()).leader()
    '10.0.0.1:8470'

    The first call enters the async resolver, in the loop thread; from then on it belongs to the facade and is
    to be used through it alone. After `close()` the next call enters it again. In a child process forked
    after that first call, a resolver of your own that has an `__aenter__` cannot be used: make another there.

    Args:
        resolver: the async resolver.

    Raises:
        InvalidClusterError: (a TypeError) it is no `aioresolve.ClusterResolver`.
    """

    _made: Callable[[], base.ClusterResolver] | None = None

    def __init__(self, resolver: base.ClusterResolver) -> None:
        if not isinstance(resolver, base.ClusterResolver):
            raise InvalidClusterError(
                "a sync ClusterResolver is made of an async aioresolve.ClusterResolver;"
                f" got {type(resolver).__name__} {resolver!r}"
            )
        self._share(resolver, partial(_usable_in_child, resolver))

    def _share(self, resolver: base.ClusterResolver, remade: Callable[[], base.ClusterResolver]) -> None:
        super().__init__(SharedResolver(resolver, remade))

    def _make(self, made: Callable[[], base.ClusterResolver]) -> None:
        self._share(made(), made)
        self._made = made

    cluster_spec = blocking(base.ClusterResolver.cluster_spec)
    cluster_state = blocking(base.ClusterResolver.cluster_state)
    master = blocking(base.ClusterResolver.master)
    num_accelerators = blocking(base.ClusterResolver.num_accelerators)
    wait = blocking(base.ClusterResolver.wait)
    watch = blocking_iterator(base.ClusterResolver.watch)


class KubernetesClusterResolver(ClusterResolver):
    """`aioresolve.KubernetesClusterResolver`, blocking: see there for the arguments and errors."""

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, str | Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: str | None = None,
        *,
        namespace: str | Sequence[str] | None = None,
        context: str | None = None,
        kubeconfig: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        address: str | Callable[[Pod], str | tuple[str, int] | None] = "pod_ip",
        order_by: Literal["name", "index"] = "name",
        not_running: Literal["raise", "skip"] = "raise",
        timeout: float = 30.0,
        max_concurrency: int = 16,
    ) -> None:
        from aioresolve import (
            kubernetes,  # which takes 0.4 seconds that users of other resolvers shall not pay
        )

        made = partial(
            kubernetes.KubernetesClusterResolver,
            job_to_label_mapping,
            tf_server_port,
            rpc_layer,
            override_client,
            executable_location,
            namespace=namespace,
            context=context,
            kubeconfig=kubeconfig,
            address=address,
            order_by=order_by,
            not_running=not_running,
            timeout=timeout,
            max_concurrency=max_concurrency,
        )
        self._make(made)


class SimpleClusterResolver(ClusterResolver):
    """`aioresolve.SimpleClusterResolver`, blocking: see there for the arguments and errors."""

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
        made = partial(
            static.SimpleClusterResolver,
            cluster_spec,
            master,
            task_type,
            task_id,
            environment,
            num_accelerators,
            rpc_layer,
            timeout=timeout,
        )
        self._make(made)

    master = blocking(static.SimpleClusterResolver.master)
    num_accelerators = blocking(static.SimpleClusterResolver.num_accelerators)


class TPUClusterResolver(ClusterResolver):
    """`aioresolve.TPUClusterResolver`, blocking: see there for the arguments and errors."""

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
        made = partial(
            tpus.TPUClusterResolver,
            tpu,
            zone,
            project,
            job_name,
            coordinator_name,
            coordinator_address,
            credentials,
            service,
            discovery_url,
            api_version=api_version,
            timeout=timeout,
        )
        self._make(made)

    @staticmethod
    @wraps(tpus.TPUClusterResolver.connect)
    def connect(
        tpu: str | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        *,
        timeout: float = 300.0,
    ) -> TPUClusterResolver:
        resolver = TPUClusterResolver(tpu, zone, project)
        resolver.initialize_system(timeout=timeout)
        return resolver

    def get_job_name(self) -> str:
        """Return the job that the workers are."""
        resolver = self._shared.resolver
        assert isinstance(resolver, tpus.TPUClusterResolver)
        return resolver.get_job_name()

    master = blocking(tpus.TPUClusterResolver.master)
    get_master = blocking(tpus.TPUClusterResolver.get_master)
    num_accelerators = blocking(tpus.TPUClusterResolver.num_accelerators)
    get_tpu_system_metadata = blocking(tpus.TPUClusterResolver.get_tpu_system_metadata)
    initialize_system = blocking(tpus.TPUClusterResolver.initialize_system)
    probe = blocking(tpus.TPUClusterResolver.probe)
    slices = blocking(tpus.TPUClusterResolver.slices)
    nodes = blocking(tpus.TPUClusterResolver.nodes)
    node = blocking(tpus.TPUClusterResolver.node)
    state = blocking(tpus.TPUClusterResolver.state)
    health = blocking(tpus.TPUClusterResolver.health)
    symptoms = blocking(tpus.TPUClusterResolver.symptoms)
    recoverable = blocking(tpus.TPUClusterResolver.recoverable)
    runtime_version = blocking(tpus.TPUClusterResolver.runtime_version)
    accelerator_type = blocking(tpus.TPUClusterResolver.accelerator_type)
    topology = blocking(tpus.TPUClusterResolver.topology)


class UnionClusterResolver(ClusterResolver):
    """`aioresolve.UnionClusterResolver`, blocking, and of facades: see there for the arguments and errors.

    The resolvers stay usable on their own, and share their connections with the union. An async resolver is
    put into one inside a facade: `UnionClusterResolver(ClusterResolver(resolver))`.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise InvalidClusterError(
                    "a sync union is made of aioresolve.sync's resolvers, or of yours inside a sync"
                    f" ClusterResolver; got {type(resolver).__name__} {resolver!r}"
                )
        made = partial(
            union.UnionClusterResolver,
            *map(InLoop, resolvers),
            rpc_layer=rpc_layer,
            task_type=task_type,
            task_id=task_id,
            timeout=timeout,
        )
        self._make(made)

    master = blocking(union.UnionClusterResolver.master)
    num_accelerators = blocking(union.UnionClusterResolver.num_accelerators)


def in_fleet(facade: ClusterResolver) -> base.ClusterResolver:
    """Return the async resolver that a fleet asks for `facade`, in the loop thread.

    One that can share connections is made again, for them to be the fleet's. Any other is the facade's.
    """
    if facade._made is not None and facade._shared.resolver.pool_key is not None:
        return facade._made()
    return InLoop(facade)


def _usable_in_child(resolver: base.ClusterResolver) -> base.ClusterResolver:
    """Return the resolver, entered in the parent process, where entering it opened nothing."""
    if type(resolver).__aenter__ is base.ClusterResolver.__aenter__:
        return resolver
    raise ConfigurationError(
        f"{resolver!r} was entered before this process was forked, and its connections are the parent's;"
        " make a new one in the child, or make no call before the fork"
    )
