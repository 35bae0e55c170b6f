"""KubernetesClusterResolver: the pods of label selectors as a cluster."""

from .auth import ExecutableLocation
from .objects import Pod
from .resolver import CONTEXT_NAMESPACE, KubernetesClusterResolver

__all__ = ["CONTEXT_NAMESPACE", "ExecutableLocation", "KubernetesClusterResolver", "Pod"]
