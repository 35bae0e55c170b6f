"""The facades of resolvers: `ClusterResolver`, and that of each source of `aioresolve.sources`."""

from __future__ import annotations

import copy
import inspect
import weakref
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self

from aioresolve._core.connections import Copyable, recreate
from aioresolve._core.deadline import within_deadline
from aioresolve._core.threads import run_in_thread
from aioresolve.environment import detection
from aioresolve.environment.detection import Detection
from aioresolve.errors import InvalidClusterError
from aioresolve.resolver import base, union
from aioresolve.spec import ClusterSpec, ClusterState, Observation

from .facade import SharedResolver, blocking, blocking_iterator, blocking_text
from .loop_thread import get_loop_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve import kubernetes, tpu
    from aioresolve._core.deadline import Progress
    from aioresolve.environment import gce, sagemaker, slurm, tf_config
    from aioresolve.resolver import static
    from aioresolve.spec.observation import Want
    from aioresolve.tpu.system import TopologyHolder

P = ParamSpec("P")


def _forwarded(name: str) -> Any:
    """Return a property that reads and sets the one of that name of the async resolver."""
    return property(
        lambda facade: getattr(facade._shared.resolver, name),
        lambda facade, value: setattr(facade._shared.resolver, name, value),
        doc=getattr(base.ClusterResolver, name).__doc__,
    )


class ClusterResolver(Copyable):
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

    _kept_attributes = base.ClusterResolver._kept_attributes

    def __init__(self, resolver: base.ClusterResolver | None = None) -> None:
        if resolver is None and type(self).cluster_spec is not ClusterResolver.cluster_spec:
            resolver = _Implementation(weakref.ref(self))
        if not isinstance(resolver, base.ClusterResolver):
            raise InvalidClusterError(
                "aioresolve.sync.ClusterResolver takes an async aioresolve.ClusterResolver;"
                f" got {type(resolver).__name__} {resolver!r}",
                hint=f"Pass one, or implement `cluster_spec` and `master` in {type(self).__name__}.",
            )
        self._shared = SharedResolver(resolver)
        # Not at exit: there the loop thread itself exits everything that was entered.
        weakref.finalize(self, self._shared.close_soon).atexit = False

    @cached_property
    def _shared(self) -> SharedResolver:
        # A subclass with an `__init__` of its own need not call this one, as with TensorFlow's base class.
        ClusterResolver.__init__(self)
        shared: SharedResolver = vars(self)["_shared"]
        return shared

    def __repr__(self) -> str:
        return f"<sync {type(self).__name__} of {self._shared.resolver!r}>"

    task_type: str | None = _forwarded("task_type")
    task_id: int | None = _forwarded("task_id")
    rpc_layer: str | None = _forwarded("rpc_layer")

    @property
    def environment(self) -> str:
        """Where TensorFlow runs: `"google"` inside Google, an empty string everywhere else."""
        return self._shared.resolver.environment

    @property
    def timeout(self) -> float:
        """The default total deadline of a call, in seconds."""
        return self._shared.resolver.timeout

    cluster_spec = blocking(base.ClusterResolver.cluster_spec)
    cluster_state = blocking(base.ClusterResolver.cluster_state)
    master = blocking(base.ClusterResolver.master)
    num_accelerators = blocking(base.ClusterResolver.num_accelerators)
    this_task = blocking(base.ClusterResolver.this_task)
    wait = blocking(base.ClusterResolver.wait)
    watch = blocking_iterator(base.ClusterResolver.watch)

    def close(self) -> None:
        """Wait for the calls in progress in other threads, and close the connections that the calls share.

        Running iterators end. Closing twice, or before the first call, does nothing. The next call opens
        connections again.

        Raises:
            DeadlineExceededError: they could not be closed within `timeout` seconds.
        """
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _implemented(name: str) -> Any:
    """Return a property: that of the class of the facade if it has its own, or else what was set there."""

    def read(implementation: _Implementation) -> Any:
        facade = implementation._facade
        return getattr(facade, name if implementation._has_own(name) else f"_{name}", None)

    return property(read, lambda implementation, value: setattr(implementation._facade, f"_{name}", value))


class _Implementation(base.ClusterResolver):
    """The async resolver behind a facade that implements `cluster_spec` itself."""

    task_type: str | None = _implemented("task_type")
    task_id: int | None = _implemented("task_id")
    rpc_layer: str | None = _implemented("rpc_layer")

    def __init__(self, facade: weakref.ref[ClusterResolver]) -> None:
        # Not that of the base class, which would reset what the facade has set.
        self._reference = facade

    def __repr__(self) -> str:
        return "its own cluster_spec()"

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Call `cluster_spec` of the facade."""
        spec = await self._call("cluster_spec", progress)
        return Observation(ClusterState.from_spec(ClusterSpec(spec)))

    async def master(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> str:
        """Call `master` of the facade, or return the address of the task if it has none of its own."""

        async def call(progress: Progress) -> str:
            master: str = await self._call("master", progress, *args, **kwargs)
            return master

        if not self._has_own("master"):
            return await super().master(*args, timeout=timeout, **kwargs)
        return await within_deadline(self._deadline(timeout), f"master() of {self!r}", call)

    async def _call(self, method: str, progress: Progress, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the facade in a thread, which no deadline can interrupt."""
        progress.waiting(f"{method}()", "it has not returned")
        with base.source_errors(self._facade, method):
            return await run_in_thread(f"{method}()", getattr(self._facade, method), *args, **kwargs)

    def _has_own(self, name: str) -> bool:
        return getattr(type(self._facade), name) is not getattr(ClusterResolver, name)

    @property
    def _facade(self) -> ClusterResolver:
        facade = self._reference()
        assert facade is not None
        return facade


# The facades of other classes

_FACADES: dict[type[base.ClusterResolver], type[ClusterResolver]] = {}


def facade_class(kind: type[base.ClusterResolver]) -> type[ClusterResolver]:
    """Return the facade of an async class: with its arguments, methods and properties."""
    if kind in _FACADES:
        return _FACADES[kind]

    @wraps(kind.__init__)
    def construct(self: ClusterResolver, /, *args: Any, **kwargs: Any) -> None:
        # A union takes facades too; an async resolver that a facade has entered could not be entered again.
        given = [
            copy.copy(each._shared.resolver) if isinstance(each, ClusterResolver) else each for each in args
        ]
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
    # Of two threads that make it, both get the class of the first one.
    return _FACADES.setdefault(kind, type(kind.__name__, (*plain, ClusterResolver), attributes))


def _facade_method(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(method):
        return blocking(method)
    if inspect.isasyncgenfunction(method):
        return blocking_iterator(method)

    @wraps(method)
    def call(self: ClusterResolver, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._shared.resolver, method.__name__)(*args, **kwargs)

    return call


def _facade_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an async function that returns a resolver as a blocking one that returns its facade."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> ClusterResolver:
        return facade_of(get_loop_thread().run(partial(function, *args, **kwargs)))

    return call


def facade_of(resolver: base.ClusterResolver) -> ClusterResolver:
    """Return the facade of an async resolver, with its arguments."""
    args, kwargs = resolver._copied_arguments()
    return recreate(facade_class(type(resolver)), args, kwargs, resolver._assignments)


if TYPE_CHECKING:
    # For type checkers and the documentation: what `facade_class` returns.

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
        probe = blocking(tpu.TPUClusterResolver.probe)
        slices = blocking(tpu.TPUClusterResolver.slices)
        nodes = blocking(tpu.TPUClusterResolver.nodes)

    class UnionClusterResolver(ClusterResolver):
        """`aioresolve.UnionClusterResolver` with blocking methods.

        It takes facades, which can still be used on their own, over connections of their own: the union has
        copies of their resolvers.
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
    UnionClusterResolver = facade_class(union.UnionClusterResolver)


def detect(*, port: int | None = None, timeout: float = 30.0) -> Detection[ClusterResolver]:
    """Return the blocking resolver of the cluster of this process, as `aioresolve.detect` does."""
    found = get_loop_thread().run(partial(detection.detect, port=port, timeout=timeout))
    return Detection(found.source, facade_of(found.resolver), found.evidence)
