"""The facades of resolvers: `ClusterResolver`, and that of each source of `aioresolve.sources`."""

from __future__ import annotations

import inspect
import weakref
from contextlib import aclosing
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

from aioresolve._core.concurrency import stream_latest
from aioresolve._core.connections import recreate
from aioresolve._core.threads import run_in_thread
from aioresolve.environment.detection import Detection, choose, examine
from aioresolve.errors import ConnectionFailedError, InvalidClusterError
from aioresolve.resolver import base, union
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.resolver.union import BlockingResolver
from aioresolve.sources import BY_RESOLVER
from aioresolve.spec import ClusterSpec, ClusterState, Observation

from .facade import Facade, SharedResource, blocking, blocking_iterator, blocking_text
from .loop_thread import get_loop_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from aioresolve import kubernetes, tpu
    from aioresolve._core.concurrency import LatestValue
    from aioresolve._core.deadline import Progress
    from aioresolve.environment import gce, sagemaker, slurm, tf_config
    from aioresolve.resolver import static
    from aioresolve.resolver.checks import Check
    from aioresolve.spec.observation import Want
    from aioresolve.tpu.system import TopologyHolder

P = ParamSpec("P")


class _Attributes:
    """The properties of a facade: they read and set those of the async resolver."""

    _shared: SharedResource[base.ClusterResolver]

    task_type: str | None = base.forwarded("task_type", "_shared.resource")
    task_id: int | None = base.forwarded("task_id", "_shared.resource")
    rpc_layer: str | None = base.forwarded("rpc_layer", "_shared.resource")

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, an empty string everywhere else."""
        return self._shared.resource.environment

    @property
    def timeout(self) -> float:
        """The default total deadline of a call, in seconds."""
        return self._shared.resource.timeout


class ClusterResolver(_Attributes, Facade[base.ClusterResolver]):
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
    uses a copy.

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
        super().__init__(resolver)

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
        with base.source_errors(self._facade, "cluster_spec"):
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


class _FacadeResolver(_Attributes, base.ClusterResolver):  # pyright: ignore[reportIncompatibleVariableOverride]
    """An async resolver that calls the resolver behind a facade, for unions and fleets of facades.

    It must be used in the event loop thread, and shares the connections of the facade.
    """

    def __init__(self, facade: ClusterResolver) -> None:
        super().__init__(timeout=facade.timeout)
        self._facade = facade  # it closes its connections when it is garbage-collected
        self._shared = facade._shared

    def __repr__(self) -> str:
        return repr(self._facade)

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return cast("Observation", await self._shared.acall("_call_observe", want, progress))

    async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
        async with aclosing(stream_latest(partial(self._follow, want, interval))) as observations:
            async for observation in observations:
                yield observation

    async def _follow(self, want: Want, interval: float, latest: LatestValue[Observation]) -> None:
        async def follow(resolver: base.ClusterResolver) -> None:
            async with aclosing(resolver._call_changes(want, interval)) as observations:
                async for observation in observations:
                    latest.put(observation)

        await self._shared.run_until_closed(follow)
        raise ConnectionFailedError(
            f"{self!r} was closed while it was watched",
            hint="Close the union or fleet that watches it first.",
            retryable=False,
        )

    async def _claim(self, progress: Progress) -> TaskClaim:
        return cast("TaskClaim", await self._shared.acall("_claim", progress))

    async def master(self, *args: Any, **kwargs: Any) -> str:
        return cast("str", await self._shared.acall("master", *args, **kwargs))

    async def num_accelerators(self, *args: Any, **kwargs: Any) -> dict[str, int]:
        return cast("dict[str, int]", await self._shared.acall("num_accelerators", *args, **kwargs))


def async_resolver(facade: ClusterResolver) -> base.ClusterResolver:
    """Return an async resolver that calls the facade, or the resolver behind it."""
    if isinstance(facade._shared.resource, _Implementation):
        return BlockingResolver(facade)
    return _FacadeResolver(facade)


# The facades of other classes


def new_facade(kind: type[base.ClusterResolver]) -> type[ClusterResolver]:
    """Return the facade of an async class: with its arguments, methods and properties."""

    @wraps(kind.__init__)
    def construct(self: ClusterResolver, /, *args: Any, **kwargs: Any) -> None:
        # A union takes facades, whose connections it shares.
        given = [async_resolver(each) if isinstance(each, ClusterResolver) else each for each in args]
        ClusterResolver.__init__(self, kind(*given, **kwargs))

    plain = tuple(each for each in kind.__bases__ if not issubclass(each, base.ClusterResolver))
    attributes: dict[str, Any] = {
        "__init__": construct,
        "__doc__": blocking_text(kind.__doc__),
        "__module__": "aioresolve.sync",
    }
    for name in dir(kind):
        # What the base classes have is inherited, or it is for writers of resolvers.
        if name.startswith("_") or any(hasattr(each, name) for each in plain):
            continue
        member = inspect.getattr_static(kind, name)
        is_method = inspect.isfunction(member)
        if hasattr(base.ClusterResolver, name) and not (is_method and hasattr(ClusterResolver, name)):
            continue
        if is_method and "progress" not in inspect.signature(member).parameters:
            attributes[name] = _facade_method(member)
        elif isinstance(member, staticmethod):
            attributes[name] = staticmethod(_facade_function(member.__func__))
    return type(kind.__name__, (*plain, ClusterResolver), attributes)


def _facade_method(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):
        return blocking(method)
    if inspect.isasyncgenfunction(method):
        return blocking_iterator(method)

    @wraps(method)
    def call(self: ClusterResolver, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._shared.resource, method.__name__)(*args, **kwargs)

    return call


def _facade_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async function that returns a resolver as a blocking one that returns its facade."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> ClusterResolver:
        return facade_of(get_loop_thread().run(partial(function, *args, **kwargs)))

    return call


def facade_of(resolver: base.ClusterResolver) -> ClusterResolver:
    """Return the facade of the class of the same name as that of an async resolver, with its arguments."""
    from aioresolve import sync

    name = type(resolver).__name__
    if name not in BY_RESOLVER:
        return ClusterResolver(resolver)
    kind: type[ClusterResolver] = getattr(sync, name)
    args, kwargs = resolver._copied_arguments()
    return recreate(kind, args, kwargs, resolver._assignments)


if TYPE_CHECKING:
    # For type checkers and the documentation: what `new_facade` returns.

    def constructs(
        kind: Callable[P, base.ClusterResolver],
    ) -> Callable[[Callable[[Any], None]], Callable[Concatenate[Any, P], None]]: ...

    class GCEClusterResolver(ClusterResolver):
        """`aioresolve.GCEClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(gce.GCEClusterResolver)
        def __init__(self) -> None: ...

    class KubernetesClusterResolver(ClusterResolver):
        """`aioresolve.KubernetesClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(kubernetes.KubernetesClusterResolver)
        def __init__(self) -> None: ...

    class SageMakerClusterResolver(ClusterResolver):
        """`aioresolve.SageMakerClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(sagemaker.SageMakerClusterResolver)
        def __init__(self) -> None: ...

    class SimpleClusterResolver(ClusterResolver):
        """`aioresolve.SimpleClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(static.SimpleClusterResolver)
        def __init__(self) -> None: ...

    class SlurmClusterResolver(ClusterResolver):
        """`aioresolve.SlurmClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(slurm.SlurmClusterResolver)
        def __init__(self) -> None: ...

        def get_task_info(self) -> tuple[str | None, int | None]: ...

    class TFConfigClusterResolver(ClusterResolver):
        """`aioresolve.TFConfigClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(tf_config.TFConfigClusterResolver)
        def __init__(self) -> None: ...

    class TPUClusterResolver(TopologyHolder, ClusterResolver):
        """`aioresolve.TPUClusterResolver` with blocking methods; see there for its arguments."""

        @constructs(tpu.TPUClusterResolver)
        def __init__(self) -> None: ...

        @staticmethod
        def connect(
            tpu: str | Sequence[str] | None = None,
            zone: str | None = None,
            project: str | None = None,
            *,
            timeout: float = 300.0,
        ) -> TPUClusterResolver: ...
        def get_job_name(self) -> str: ...
        def get_coordination_service_leader(self) -> str: ...

        get_master = blocking(tpu.TPUClusterResolver.get_master)
        get_tpu_system_metadata = blocking(tpu.TPUClusterResolver.get_tpu_system_metadata)
        initialize_system = blocking(tpu.TPUClusterResolver.initialize_system)
        probe = blocking(tpu.TPUClusterResolver.probe)
        slices = blocking(tpu.TPUClusterResolver.slices)
        nodes = blocking(tpu.TPUClusterResolver.nodes)
        node = blocking(tpu.TPUClusterResolver.node)
        state = blocking(tpu.TPUClusterResolver.state)
        health = blocking(tpu.TPUClusterResolver.health)
        symptoms = blocking(tpu.TPUClusterResolver.symptoms)
        recoverable = blocking(tpu.TPUClusterResolver.recoverable)
        runtime_version = blocking(tpu.TPUClusterResolver.runtime_version)
        accelerator_type = blocking(tpu.TPUClusterResolver.accelerator_type)
        topology = blocking(tpu.TPUClusterResolver.topology)

    class UnionClusterResolver(ClusterResolver):
        """`aioresolve.UnionClusterResolver` with blocking methods.

        It takes facades, which can still be used on their own and share their connections with the union, and
        resolvers of TensorFlow.
        """

        def __init__(
            self,
            *resolvers: ClusterResolver,
            rpc_layer: str | None = None,
            task_type: str | None = None,
            task_id: int | None = None,
            timeout: float = 30.0,
        ) -> None: ...

else:
    UnionClusterResolver = new_facade(union.UnionClusterResolver)


# Functions


def detect(*, port: int | None = None, timeout: float = 30.0) -> Detection[ClusterResolver]:
    """Return the blocking resolver of the cluster of this process, as `aioresolve.detect` does."""
    findings = get_loop_thread().run(partial(examine, port=port, timeout=timeout))
    evidence, new_resolver = choose(findings)
    return Detection(evidence.source, facade_of(new_resolver()), findings)


def doctor(
    resolver: ClusterResolver | None = None,
    *,
    timeout: float = 30.0,
    check_timeout: float = 10.0,
    progress: Progress | None = None,
) -> tuple[Check, ...]:
    """Return the result of each check of a resolver of `aioresolve.sync`, as `aioresolve.doctor` does."""
    # Imported here because few programs need it.
    from aioresolve.environment import doctor as checks

    if resolver is not None and not isinstance(resolver, ClusterResolver):
        raise InvalidClusterError(
            f"aioresolve.sync.doctor takes a resolver of aioresolve.sync; got {type(resolver).__name__}",
            hint="Wrap an async resolver in aioresolve.sync.ClusterResolver.",
        )
    call = partial(checks.doctor, timeout=timeout, check_timeout=check_timeout, progress=progress)

    async def check() -> tuple[Check, ...]:
        if resolver is None:
            return await call()
        async with resolver._shared.acquire() as entered:
            return await call(entered)

    return get_loop_thread().run(check)
