"""KubernetesClusterResolver: the pods of label selectors as a cluster."""

from .api.objects import CONTEXT_NAMESPACE, Pod
from .auth import ExecutableLocation
from .resolver import KubernetesClusterResolver

__all__ = ["CONTEXT_NAMESPACE", "ExecutableLocation", "KubernetesClusterResolver", "Pod"]
