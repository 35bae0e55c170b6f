"""aioresolve's resolvers as TensorFlow's own classes: change the import, and nothing else.

```
from aioresolve.tensorflow import KubernetesClusterResolver

resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
resolver.task_type, resolver.task_id = "worker", 0
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
```

The classes have the names of `tf.distribute.cluster_resolver`, are subclasses of the classes there, and
return TensorFlow's types: `cluster_spec()` is a `tf.train.ClusterSpec`. They are also the blocking resolvers
of `aioresolve.sync`, with their arguments, `watch()`, `wait()`, `this_task()` and `cluster_state()`.
docs/migration.md lists every difference from TensorFlow.

`ClusterResolver`, `ClusterSpec` and `KubernetesExecutableLocation` are those of TensorFlow.

Raises:
    MissingDependencyError: (an ImportError) on import: TensorFlow is not installed.
"""

from __future__ import annotations

from functools import partial, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aioresolve import sync
from aioresolve.errors import ConfigurationError, MissingDependencyError
from aioresolve.sync.loop_thread import get_loop_thread
from aioresolve.tpu.discovery import LocalTPU

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError(
        f"aioresolve.tensorflow needs TensorFlow, which is not installed ({error})",
        hint="Run `pip install 'aioresolve[tensorflow]'`.",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.resolver import base

__all__ = [
    "ClusterResolver",
    "ClusterSpec",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
    "from_async_resolver",
]

DETECTION_TIMEOUT = 2.0
"""Seconds after which the constructor of `TPUClusterResolver` takes this machine for no TPU VM."""

_theirs: Any = tf.distribute.cluster_resolver

# TensorFlow does not export it.
_their_sagemaker: Any = import_module(
    "tensorflow.python.distribute.cluster_resolver.sagemaker_cluster_resolver"
)

ClusterResolver = _theirs.ClusterResolver
"""`tf.distribute.cluster_resolver.ClusterResolver` itself."""

ClusterSpec = tf.train.ClusterSpec
"""`tf.train.ClusterSpec` itself, which `cluster_spec()` returns."""

KubernetesExecutableLocation = _theirs.KubernetesExecutableLocation
"""`tf.distribute.cluster_resolver.KubernetesExecutableLocation` itself."""


class _TensorFlowResolver(sync.ClusterResolver, _theirs.ClusterResolver):
    """A blocking resolver that returns TensorFlow's types."""

    _counts_own_task = False
    """Whether `num_accelerators()` counts the devices of this task, which variables name."""

    def cluster_spec(self, *, timeout: float | None = None) -> Any:
        """Return the current address of each task as a `tf.train.ClusterSpec`.

        Args:
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            ResolveError: the cluster could not be resolved; see `aioresolve.errors` for the subclasses.
        """
        return tf.train.ClusterSpec(super().cluster_spec(timeout=timeout).as_dict())

    def num_accelerators(  # type: ignore[override]
        self, task_type: str | None = None, task_id: int | None = None, config_proto: Any = None
    ) -> Any:
        """Return the number of accelerators by type, as TensorFlow counts them.

        In eager mode these are the logical devices of this process, and of the tasks that it is connected to.

        Args:
            task_type: the job of a task; together with `task_id`, only its devices count.
            task_id: the task index.
            config_proto: the configuration of the session that lists the devices in graph mode.
        """
        if self._counts_own_task:
            task_type = self.task_type if task_type is None else task_type
            task_id = self.task_id if task_id is None else task_id
        return _theirs.ClusterResolver.num_accelerators(self, task_type, task_id, config_proto)


class GCEClusterResolver(_TensorFlowResolver, sync.GCEClusterResolver, _theirs.GCEClusterResolver):
    """TensorFlow's class of this name, over `aioresolve.GCEClusterResolver`: see there."""

    @property
    def task_type(self) -> str | None:
        """The job of the instances."""
        return super().task_type

    @task_type.setter
    def task_type(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, task_type: str | None
    ) -> None:
        raise RuntimeError(
            "You cannot reset the task_type of the GCEClusterResolver after it has been created."
        )


class KubernetesClusterResolver(
    _TensorFlowResolver, sync.KubernetesClusterResolver, _theirs.KubernetesClusterResolver
):
    """TensorFlow's class of this name, over `aioresolve.KubernetesClusterResolver`: see there."""


class SimpleClusterResolver(_TensorFlowResolver, sync.SimpleClusterResolver, _theirs.SimpleClusterResolver):
    """TensorFlow's class of this name, over `aioresolve.SimpleClusterResolver`: see there."""

    num_accelerators = sync.SimpleClusterResolver.num_accelerators  # pyright: ignore[reportAssignmentType]


class TFConfigClusterResolver(
    _TensorFlowResolver, sync.TFConfigClusterResolver, _theirs.TFConfigClusterResolver
):
    """TensorFlow's class of this name, over `aioresolve.TFConfigClusterResolver`: see there."""

    _counts_own_task = True


class SageMakerClusterResolver(
    _TensorFlowResolver, sync.SageMakerClusterResolver, _their_sagemaker.SageMakerClusterResolver
):
    """TensorFlow's class of this name, over `aioresolve.SageMakerClusterResolver`: see there.

    TensorFlow does not export its class.
    """

    _counts_own_task = True


class SlurmClusterResolver(_TensorFlowResolver, sync.SlurmClusterResolver, _theirs.SlurmClusterResolver):
    """TensorFlow's class of this name, over `aioresolve.SlurmClusterResolver`: see there.

    As in TensorFlow, the constructor raises a RuntimeError outside Slurm: an EnvironmentVariableError.
    """

    if not TYPE_CHECKING:

        @wraps(sync.SlurmClusterResolver.__init__)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if not self._is_copy:
                self.get_task_info()
                self.num_accelerators()

    num_accelerators = sync.SlurmClusterResolver.num_accelerators  # pyright: ignore[reportAssignmentType]


class TPUClusterResolver(_TensorFlowResolver, sync.TPUClusterResolver, _theirs.TPUClusterResolver):
    """TensorFlow's class of this name, over `aioresolve.TPUClusterResolver`: see there.

    `num_accelerators()` probes the workers, and so counts their cores before TensorFlow is connected to them.

    As in TensorFlow, the constructor raises if there is no TPU, so that a program can use another strategy.

    Raises:
        TPUNotFoundError: (a ValueError and RuntimeError) no TPU is named by `tpu` or a variable, and this
            machine is not a TPU VM; off Google Cloud that takes at most two seconds.
        ConfigurationError: (a ValueError) an argument or a variable is invalid, or the `zone` and `project`
            of a named TPU are unknown.
    """

    __deepcopy__ = None  # TensorFlow's returns the resolver itself

    if not TYPE_CHECKING:

        @wraps(sync.TPUClusterResolver.__init__)
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if not self._is_copy:
                # Not inside the shared resolver: that would open the connections that calls share.
                locate = partial(self._shared.resolver._locate, timeout=DETECTION_TIMEOUT)
                get_loop_thread().run(locate)

    @staticmethod
    def connect(
        tpu: str | Sequence[str] | None = None,
        zone: str | None = None,
        project: str | None = None,
        *,
        timeout: float = 300.0,
    ) -> TPUClusterResolver:
        """Return a resolver after connecting TensorFlow to its TPU system and initializing it.

        The workers are probed first, because TensorFlow would wait for one that does not respond.

        Args:
            tpu: see the class.
            zone: see the class.
            project: see the class.
            timeout: the deadline of the probe, in seconds. TensorFlow's own calls have no deadline.

        Raises:
            tf.errors.NotFoundError: the workers have no TPU.
            ResolveError: the workers could not be resolved, or do not respond.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        resolver._shared.call("_verify_servers", timeout=timeout)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return resolver

    num_accelerators = sync.TPUClusterResolver.num_accelerators  # pyright: ignore[reportAssignmentType]

    def get_tpu_system_metadata(self, *, timeout: float | None = None) -> Any:
        """Probe every worker, and return a `tf.tpu.experimental.TPUSystemMetadata` without a topology.

        Args:
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            ResolveError: the workers could not be resolved, or did not report their devices.
        """
        metadata = super().get_tpu_system_metadata(timeout=timeout)
        return tf.tpu.experimental.TPUSystemMetadata(*metadata)

    @property
    def _tpu(self) -> str:
        """What TensorFlow takes for the name of the TPU; `"local"` for the TPU of this host."""
        resolver: Any = self._shared.resolver
        return "local" if isinstance(resolver._source(), LocalTPU) else repr(resolver)


class UnionResolver(_TensorFlowResolver, sync.UnionClusterResolver, _theirs.UnionResolver):
    """TensorFlow's class of this name, over `aioresolve.UnionClusterResolver`: see there.

    It merges resolvers of this module and of `aioresolve.sync`; TensorFlow's class also takes TensorFlow's
    own. Another keyword argument is a ConfigurationError (a ValueError), as in TensorFlow.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if unknown := sorted(kwargs.keys() - {"rpc_layer", "task_type", "task_id", "timeout"}):
            raise ConfigurationError("UnionResolver has no such argument", argument=unknown[0])
        super().__init__(*args, **kwargs)

    num_accelerators = sync.UnionClusterResolver.num_accelerators  # pyright: ignore[reportAssignmentType]


class _FromAsync(_TensorFlowResolver):
    """An async resolver as a TensorFlow resolver."""

    def __init__(self, resolver: base.ClusterResolver) -> None:
        sync.ClusterResolver(resolver)  # raises for None too, which means that a subclass resolves itself
        super().__init__(resolver)


def from_async_resolver(resolver: base.ClusterResolver) -> Any:
    """Return an async resolver, such as one of your own, as a resolver that TensorFlow accepts.

    Raises:
        InvalidClusterError: (a TypeError) `resolver` is not an `aioresolve.ClusterResolver`.
    """
    return _FromAsync(resolver)
