"""aioresolve resolves clusters: the members of Kubernetes jobs and Cloud TPUs, and their addresses.

>>> import aioresolve
>>> resolver = aioresolve.KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
>>> await resolver.cluster_spec()
ClusterSpec({'worker': ['10.8.0.10:8470', '10.8.0.11:8470']})

`aioresolve.sync` has the same resolvers with blocking methods. `aioresolve.testing` has loopback servers for
tests. Importing this module loads no third-party library: each name loads its module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__
from .sources import BY_RESOLVER

if TYPE_CHECKING:
    from ._core.deadline import Progress
    from .environment.detection import Detection, detect
    from .environment.doctor import doctor
    from .environment.gce import GCEClusterResolver
    from .environment.sagemaker import SageMakerClusterResolver
    from .environment.slurm import SlurmClusterResolver
    from .environment.tf_config import TFConfigClusterResolver
    from .errors import *  # noqa: F403 - they are listed below
    from .fleet import Fleet, TargetStatus
    from .kubernetes import CONTEXT_NAMESPACE, ExecutableLocation, KubernetesClusterResolver, Pod
    from .resolver import ClusterResolver
    from .resolver.static import SimpleClusterResolver
    from .resolver.union import UnionClusterResolver
    from .spec import (
        ClusterDiff,
        ClusterSpec,
        ClusterState,
        ControllerStatus,
        DoneTask,
        Endpoint,
        ExpectedTasks,
        Member,
        Observation,
        Task,
    )
    from .spec.observation import Want
    from .tpu import TPUClusterResolver, TPUSlice, TPUSystemMetadata

__all__ = [
    "CONTEXT_NAMESPACE",
    "APIError",
    "ClusterDiff",
    "ClusterResolver",
    "ClusterSpec",
    "ClusterState",
    "ConfigurationError",
    "ConnectionFailedError",
    "ControllerStatus",
    "CredentialsError",
    "DeadlineExceededError",
    "Detection",
    "DoneTask",
    "Endpoint",
    "EnvironmentVariableError",
    "ExecutableLocation",
    "ExpectedTasks",
    "FailedClusterError",
    "Fleet",
    "ForbiddenError",
    "GCEClusterResolver",
    "Hint",
    "IncompleteClusterError",
    "InstanceNotRunningError",
    "InvalidClusterError",
    "KubernetesClusterResolver",
    "LaunchError",
    "Member",
    "MissingDependencyError",
    "Observation",
    "Pod",
    "PodIndexError",
    "PodNotRunningError",
    "ProbeDeadlineError",
    "ProbeError",
    "Progress",
    "ProtocolError",
    "ResolveError",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TLSError",
    "TPUClusterResolver",
    "TPULookupError",
    "TPUNotFoundError",
    "TPUNotReadyError",
    "TPUSlice",
    "TPUSystemMetadata",
    "TargetStatus",
    "Task",
    "TaskConflictError",
    "TaskIdentityError",
    "UnauthorizedError",
    "UnionClusterResolver",
    "UnknownTaskError",
    "Want",
    "__version__",
    "detect",
    "doctor",
]

_MODULES = {
    "_core.deadline": ("Progress",),
    "environment.detection": ("Detection", "detect"),
    "environment.doctor": ("doctor",),
    "fleet": ("Fleet", "TargetStatus"),
    "kubernetes": ("CONTEXT_NAMESPACE", "ExecutableLocation", "Pod"),
    "resolver": ("ClusterResolver",),
    "resolver.union": ("UnionClusterResolver",),
    "spec": (
        *("ClusterDiff", "ClusterSpec", "ClusterState", "ControllerStatus", "DoneTask", "Endpoint"),
        *("ExpectedTasks", "Member", "Observation", "Task"),
    ),
    "spec.observation": ("Want",),
    "tpu": ("TPUSlice", "TPUSystemMetadata"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
"""The module of each name, except resolvers (see `aioresolve.sources`) and errors."""


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name in BY_RESOLVER:
        value = BY_RESOLVER[name].load()
    elif name in __all__:
        value = getattr(importlib.import_module(f".{_MODULE_OF.get(name, 'errors')}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
