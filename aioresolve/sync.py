"""The blocking facade: the resolvers of aioresolve, for code without an event loop.

>>> from aioresolve.sync import KubernetesClusterResolver
>>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
>>> resolver.cluster_spec()
ClusterSpec({'worker': ['10.8.0.10:8470', '10.8.0.11:8470']})

Every class has the name, the arguments, the methods and the errors of the async one. Calls may be made from
any thread, many at a time, in a forked child, and inside a running event loop (a notebook), which they block
meanwhile. They run in one loop thread, started by the first of them and ended with the interpreter, and see
the context variables of their caller; Ctrl-C cancels the call it interrupts.

The calls of one resolver share its connections. `close()`, the end of `with` and garbage collection close
them, and so does the exit of the interpreter: no `with` is needed.
"""

from __future__ import annotations

import weakref
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Self, TypeVar

from . import resolver as base
from . import static
from . import tpu as tpus
from .errors import ConfigurationError, InvalidClusterError
from .sharing import SharedResolver

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from .gcp.credentials import AnyCredentials
    from .gcp.tpu_api import TPUVersion
    from .kubernetes import Pod
    from .retry import Progress
    from .spec import ClusterSpec, ClusterState

__all__ = [
    "ClusterResolver",
    "KubernetesClusterResolver",
    "SimpleClusterResolver",
    "TPUClusterResolver",
    "UnionClusterResolver",
    "blocking",
]

P = ParamSpec("P")
R = TypeVar("R")


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[ClusterResolver, P], R]:
    """Return `method` of an async resolver as a method of its facade: the same signature, without `await`.

    The resolver's own override of it is what is called.
    """
    name = method.__name__

    @wraps(method)
    def blocking_method(self: ClusterResolver, /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._shared.ask(name, *args, **kwargs)
        return answer

    return blocking_method


class _Attributes:
    """The attributes of the async resolver, read and set through its facade."""

    _shared: SharedResolver

    @property
    def task_type(self) -> str | None:
        """The job this process belongs to (`"worker"`, `"ps"`, ...), or None if that is not known."""
        return self._shared.resolver.task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._shared.resolver.task_type = task_type

    @property
    def task_id(self) -> int | None:
        """This process's task index in its job, or None if that is not known."""
        return self._shared.resolver.task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._shared.resolver.task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol of the tasks, such as `"grpc"`; None for bare addresses."""
        return self._shared.resolver.rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._shared.resolver.rpc_layer = rpc_layer

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, the empty string everywhere else."""
        return self._shared.resolver.environment

    @property
    def timeout(self) -> float:
        """The total deadline of a call, in seconds, where the call names none."""
        return self._shared.resolver.timeout


class ClusterResolver(_Attributes):
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

    def __init__(self, resolver: base.ClusterResolver) -> None:
        if not isinstance(resolver, base.ClusterResolver):
            raise InvalidClusterError(
                "a sync ClusterResolver is made of an async aioresolve.ClusterResolver;"
                f" got {type(resolver).__name__} {resolver!r}"
            )
        self._share(resolver, partial(_usable_in_child, resolver))

    def _share(self, resolver: base.ClusterResolver, remade: Callable[[], base.ClusterResolver]) -> None:
        self._shared = SharedResolver(resolver, remade)
        # At exit the portal itself leaves every resolver.
        weakref.finalize(self, self._shared.release).atexit = False

    def __repr__(self) -> str:
        return f"<sync {type(self).__name__} of {self._shared.resolver!r}>"

    cluster_spec = blocking(base.ClusterResolver.cluster_spec)
    cluster_state = blocking(base.ClusterResolver.cluster_state)
    master = blocking(base.ClusterResolver.master)
    num_accelerators = blocking(base.ClusterResolver.num_accelerators)

    def close(self) -> None:
        """Close the connections that the calls share, once those in flight in other threads are done.

        Closing twice, or without having made a call, does nothing. The next call opens connections again.

        Raises:
            DeadlineExceededError: they could not be closed within `timeout` seconds.
        """
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


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
        from . import kubernetes  # which costs 0.4 seconds, that the users of other resolvers shall not pay

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
        self._share(made(), made)


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
        self._share(made(), made)

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
        self._share(made(), made)

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
            static.UnionClusterResolver,
            *map(_InLoop, resolvers),
            rpc_layer=rpc_layer,
            task_type=task_type,
            task_id=task_id,
            timeout=timeout,
        )
        self._share(made(), made)

    master = blocking(static.UnionClusterResolver.master)
    num_accelerators = blocking(static.UnionClusterResolver.num_accelerators)


class _InLoop(_Attributes, base.ClusterResolver):
    """A facade as an async resolver of the loop thread: what a union of facades asks."""

    def __init__(self, facade: ClusterResolver) -> None:
        super().__init__(timeout=facade.timeout)
        self._facade = facade  # which closes its connections when nobody holds it
        self._shared = facade._shared

    def __repr__(self) -> str:
        return repr(self._facade)

    async def fetch_spec(self, progress: Progress) -> ClusterSpec:
        spec: ClusterSpec = await self._shared.answer("fetch_spec", progress)
        return spec

    async def fetch_state(self, progress: Progress) -> ClusterState:
        state: ClusterState = await self._shared.answer("fetch_state", progress)
        return state

    async def master(self, *args: Any, **kwargs: Any) -> str:
        master: str = await self._shared.answer("master", *args, **kwargs)
        return master

    async def num_accelerators(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        accelerators: dict[str, int] = await self._shared.answer("num_accelerators", *args, **kwargs)
        return accelerators


def _usable_in_child(resolver: base.ClusterResolver) -> base.ClusterResolver:
    """Return the resolver, entered in the parent process, where entering it opened nothing."""
    if type(resolver).__aenter__ is base.ClusterResolver.__aenter__:
        return resolver
    raise ConfigurationError(
        f"{resolver!r} was entered before this process was forked, and its connections are the parent's;"
        " make a new one in the child, or make no call before the fork"
    )
