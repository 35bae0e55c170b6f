"""The facade of each resolver."""

from __future__ import annotations

import copy
import weakref
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from aioresolve import tpu as tpus
from aioresolve._core.copying import recreate
from aioresolve._core.threads import run_in_thread
from aioresolve.environment import sagemaker, slurm, tf_config
from aioresolve.errors import InvalidClusterError
from aioresolve.resolver import base, static, union
from aioresolve.resolver.blocking import BlockingResolver, is_tensorflow_resolver
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import ClusterSpec, ClusterState, Observation
from aioresolve.tpu.tensorflow_runtime import TopologyHolder

from .facade import Facade, FacadeResolver, ResolverAttributes, blocking, blocking_iterator
from .shared import SharedResource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.want import Want


P = ParamSpec("P")


class ClusterResolver(ResolverAttributes, Facade[SharedResource[base.ClusterResolver]]):
    """The base class of all facades of resolvers, and the facade of your own async resolvers.

    >>> class VariableResolver(aioresolve.ClusterResolver):
    ...     async def observe(self, want, progress):
    ...         return Observation(ClusterState.from_spec(ClusterSpec({"worker": [await self.leader()]})))
    ...     async def leader(self):
    ...         return os.environ["LEADER"]
    >>> os.environ["LEADER"] = "10.0.0.1:8470"
    >>> aioresolve.sync.ClusterResolver(VariableResolver()).cluster_spec()
    ClusterSpec({'worker': ['10.0.0.1:8470']})

    Add the additional methods of your resolver to a facade of its own:

    >>> class SyncVariableResolver(aioresolve.sync.ClusterResolver):
    ...     leader = aioresolve.sync.blocking(VariableResolver.leader)
    >>> SyncVariableResolver(VariableResolver()).leader()
    '10.0.0.1:8470'

    Or implement the two methods of TensorFlow's base class, `cluster_spec` and `master`, in a blocking
    subclass, which needs no async resolver:

    >>> class FixedResolver(aioresolve.sync.ClusterResolver):
    ...     def cluster_spec(self):
    ...         return ClusterSpec({"worker": ["10.0.0.1:8470"]})
    ...     def master(self, task_type=None, task_id=None, rpc_layer=None):
    ...         return "grpc://10.0.0.1:8470"
    >>> FixedResolver().wait(1).endpoints["worker"][0].address
    '10.0.0.1:8470'

    The first call enters the async resolver, in the event loop thread. From then on, use it only through the
    facade. After `close()`, the next call enters it again. If a process forks after the first call, the child
    uses a copy of a resolver that has an `__aenter__`.

    Args:
        resolver: the async resolver; None in a subclass that implements `cluster_spec`.

    Raises:
        InvalidClusterError: (a TypeError) `resolver` is not an `aioresolve.ClusterResolver`.
    """

    def __init__(self, resolver: base.ClusterResolver | None = None) -> None:
        if resolver is None and type(self).cluster_spec is not ClusterResolver.cluster_spec:
            resolver = _Implementation(weakref.ref(self))
        if not isinstance(resolver, base.ClusterResolver):
            raise InvalidClusterError(
                "aioresolve.sync.ClusterResolver takes an async aioresolve.ClusterResolver;"
                f" got {type(resolver).__name__} {resolver!r}",
                hint=f"Pass one, or implement `cluster_spec` and `master` in {type(self).__name__}.",
            )
        super().__init__(SharedResource(resolver, _unopened))

    @cached_property
    def _shared(self) -> SharedResource[base.ClusterResolver]:  # type: ignore[override]
        # A subclass with an `__init__` of its own need not call this one, as with TensorFlow's base class.
        ClusterResolver.__init__(self)
        shared: SharedResource[base.ClusterResolver] = vars(self)["_shared"]
        return shared

    cluster_spec = blocking(base.ClusterResolver.cluster_spec)
    cluster_state = blocking(base.ClusterResolver.cluster_state)
    master = blocking(base.ClusterResolver.master)
    num_accelerators = blocking(base.ClusterResolver.num_accelerators)
    this_task = blocking(base.ClusterResolver.this_task)
    wait = blocking(base.ClusterResolver.wait)
    watch = blocking_iterator(base.ClusterResolver.watch)


class _Implementation(base.ClusterResolver):
    """The async resolver behind a facade that implements `cluster_spec` itself."""

    # Kept in the facade, where TensorFlow's implementors may set them.
    _task_type: str | None = base.forwarded("_task_type", "_facade")
    _task_id: int | None = base.forwarded("_task_id", "_facade")
    _rpc_layer: str | None = base.forwarded("_rpc_layer", "_facade")

    def __init__(self, facade: weakref.ref[ClusterResolver]) -> None:
        # Not that of the base class, which would reset what the facade has set.
        self._reference = facade

    def __repr__(self) -> str:
        return "its own cluster_spec()"

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Call `cluster_spec` in a thread, which no deadline can interrupt."""
        progress.waiting("cluster_spec()", "it has not returned")
        spec = await run_in_thread("cluster_spec()", self._facade.cluster_spec)
        return Observation(ClusterState.from_spec(ClusterSpec(spec)))

    async def _claim(self, progress: Progress) -> TaskClaim:
        # The class of the facade may have properties of these names.
        return TaskClaim(self._facade.task_type, self._facade.task_id)

    @property
    def _facade(self) -> ClusterResolver:
        facade = self._reference()
        assert facade is not None
        return facade


def constructs(
    kind: Callable[P, base.ClusterResolver],
) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator of an `__init__` that creates the async resolver: with the arguments of `kind`."""
    constructor: Any = kind

    def decorate(_: Callable[[Any], None]) -> Callable[Concatenate[Any, P], None]:
        @wraps(constructor.__init__)
        def construct(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> None:
            ClusterResolver.__init__(self, kind(*args, **kwargs))

        return construct

    return decorate


class SimpleClusterResolver(ClusterResolver):
    """`aioresolve.SimpleClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(static.SimpleClusterResolver)
    def __init__(self) -> None: ...

    master = blocking(static.SimpleClusterResolver.master)
    num_accelerators = blocking(static.SimpleClusterResolver.num_accelerators)


class TFConfigClusterResolver(ClusterResolver):
    """`aioresolve.TFConfigClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(tf_config.TFConfigClusterResolver)
    def __init__(self) -> None: ...

    master = blocking(tf_config.TFConfigClusterResolver.master)
    this_task = blocking(tf_config.TFConfigClusterResolver.this_task)


class SlurmClusterResolver(ClusterResolver):
    """`aioresolve.SlurmClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(slurm.SlurmClusterResolver)
    def __init__(self) -> None: ...

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return `task_type` and `task_id`: the job of this process, and its task index in that job.

        Raises:
            EnvironmentVariableError: (a RuntimeError) variables are missing or malformed.
        """
        return self.task_type, self.task_id

    num_accelerators = blocking(slurm.SlurmClusterResolver.num_accelerators)


class SageMakerClusterResolver(ClusterResolver):
    """`aioresolve.SageMakerClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(sagemaker.SageMakerClusterResolver)
    def __init__(self) -> None: ...

    master = blocking(sagemaker.SageMakerClusterResolver.master)


class TPUClusterResolver(TopologyHolder, ClusterResolver):
    """`aioresolve.TPUClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(tpus.TPUClusterResolver)
    def __init__(self) -> None: ...

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
        """Return the job name of the workers."""
        return self._tpus.get_job_name()

    def get_coordination_service_leader(self) -> str:
        """Return the task where TensorFlow's coordination service runs: `/job:worker/task:0`."""
        return self._tpus.get_coordination_service_leader()

    @property
    def _tpus(self) -> tpus.TPUClusterResolver:
        resolver = self._shared.resource
        assert isinstance(resolver, tpus.TPUClusterResolver)
        return resolver

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
    """`aioresolve.UnionClusterResolver` with blocking methods; see there for arguments and errors.

    It takes facades, which can still be used on their own and share their connections with the union. Wrap an
    async resolver in a facade first: `UnionClusterResolver(ClusterResolver(resolver))`. TensorFlow's own
    resolvers are taken as they are.
    """

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(
            union.UnionClusterResolver(
                *map(_member_of_union, resolvers),
                rpc_layer=rpc_layer,
                task_type=task_type,
                task_id=task_id,
                timeout=timeout,
            )
        )

    master = blocking(union.UnionClusterResolver.master)
    num_accelerators = blocking(union.UnionClusterResolver.num_accelerators)


def _calling(facade: ClusterResolver) -> base.ClusterResolver:
    """Return an async resolver that calls the facade, or the resolver behind it."""
    if isinstance(facade._shared.resource, _Implementation):
        return BlockingResolver(facade)
    return FacadeResolver(facade)


def _member_of_union(resolver: Any) -> Any:
    if isinstance(resolver, ClusterResolver):
        return _calling(resolver)
    if is_tensorflow_resolver(resolver):
        return resolver
    raise InvalidClusterError(
        "aioresolve.sync.UnionClusterResolver takes resolvers of aioresolve.sync, or of TensorFlow;"
        f" got {type(resolver).__name__} {resolver!r}",
        hint="Wrap an async resolver in aioresolve.sync.ClusterResolver.",
    )


def facade_of(resolver: base.ClusterResolver) -> ClusterResolver:
    """Return the facade of the class of the same name as that of an async resolver, with its arguments."""
    from aioresolve import sync

    name = type(resolver).__name__
    kind: type[ClusterResolver] | None = getattr(sync, name) if name in sync.__all__ else None
    if kind is None:
        return ClusterResolver(resolver)
    args, kwargs = resolver._copied_arguments()
    return recreate(kind, args, kwargs, resolver._assignments)


def resolver_for_fleet(facade: ClusterResolver) -> base.ClusterResolver:
    """Return the async resolver that a fleet uses for `facade`.

    If its connections can be shared, it is a copy, so that it can share those of the fleet. Otherwise it
    calls the resolver behind the facade.
    """
    resolver = facade._shared.resource
    return copy.copy(resolver) if resolver._has_clients else _calling(facade)


def _unopened(resolver: base.ClusterResolver) -> base.ClusterResolver:
    """Return a copy of a resolver that a parent process has entered, if entering it can open connections."""
    opens = resolver._has_clients or type(resolver).__aenter__ is not base.ClusterResolver.__aenter__
    return copy.copy(resolver) if opens else resolver
