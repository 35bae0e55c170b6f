"""aioresolve resolves clusters: the members of Kubernetes jobs and Cloud TPUs, and their addresses.

>>> import aioresolve
>>> resolver = aioresolve.KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
>>> await resolver.cluster_spec()
ClusterSpec({'worker': ['10.8.0.10:8470', '10.8.0.11:8470']})

`aioresolve.sync` has the same classes with blocking methods. `aioresolve.testing` has loopback servers for
tests. Importing this module loads no third-party library: each name loads its module on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from ._core.deadline import Progress
    from .errors import (
        APIError,
        ConfigurationError,
        ConnectionFailedError,
        CredentialsError,
        DeadlineExceededError,
        FailedClusterError,
        ForbiddenError,
        Hint,
        IncompleteClusterError,
        InvalidClusterError,
        LaunchError,
        MissingDependencyError,
        PodIndexError,
        PodNotRunningError,
        ProbeDeadlineError,
        ProbeError,
        ProtocolError,
        ResolveError,
        TaskConflictError,
        TaskIdentityError,
        TLSError,
        TPUNotFoundError,
        TPUNotReadyError,
        UnauthorizedError,
        UnknownTaskError,
    )
    from .fleet import Fleet, TargetStatus
    from .kubernetes import CONTEXT_NAMESPACE, ExecutableLocation, KubernetesClusterResolver, Pod
    from .resolver import ClusterResolver, SimpleClusterResolver, UnionClusterResolver
    from .spec import (
        ClusterDiff,
        ClusterSpec,
        ClusterState,
        Endpoint,
        Member,
        Missing,
        Move,
        Observation,
        Task,
    )
    from .tpu import TPUClusterResolver, TPUSlice, TPUSystemMetadata, TPUTopology

__all__ = [
    "CONTEXT_NAMESPACE",
    "APIError",
    "ClusterDiff",
    "ClusterResolver",
    "ClusterSpec",
    "ClusterState",
    "ConfigurationError",
    "ConnectionFailedError",
    "CredentialsError",
    "DeadlineExceededError",
    "Endpoint",
    "ExecutableLocation",
    "FailedClusterError",
    "Fleet",
    "ForbiddenError",
    "Hint",
    "IncompleteClusterError",
    "InvalidClusterError",
    "KubernetesClusterResolver",
    "LaunchError",
    "Member",
    "Missing",
    "MissingDependencyError",
    "Move",
    "Observation",
    "Pod",
    "PodIndexError",
    "PodNotRunningError",
    "ProbeDeadlineError",
    "ProbeError",
    "Progress",
    "ProtocolError",
    "ResolveError",
    "SimpleClusterResolver",
    "TLSError",
    "TPUClusterResolver",
    "TPUNotFoundError",
    "TPUNotReadyError",
    "TPUSlice",
    "TPUSystemMetadata",
    "TPUTopology",
    "TargetStatus",
    "Task",
    "TaskConflictError",
    "TaskIdentityError",
    "UnauthorizedError",
    "UnionClusterResolver",
    "UnknownTaskError",
    "__version__",
]

_MODULES = {
    "CONTEXT_NAMESPACE": "kubernetes",
    "ClusterDiff": "spec",
    "ClusterResolver": "resolver",
    "ClusterSpec": "spec",
    "ClusterState": "spec",
    "Endpoint": "spec",
    "ExecutableLocation": "kubernetes",
    "Fleet": "fleet",
    "KubernetesClusterResolver": "kubernetes",
    "Member": "spec",
    "Missing": "spec",
    "Move": "spec",
    "Observation": "spec",
    "Pod": "kubernetes",
    "Progress": "_core.deadline",
    "TargetStatus": "fleet",
    "SimpleClusterResolver": "resolver",
    "TPUClusterResolver": "tpu",
    "TPUSlice": "tpu",
    "TPUSystemMetadata": "tpu",
    "TPUTopology": "tpu",
    "Task": "spec",
    "UnionClusterResolver": "resolver",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULES.get(name, 'errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
