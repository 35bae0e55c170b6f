"""KubernetesClusterResolver: the pods of label selectors as a cluster."""

from .api.objects import Pod
from .api.queries import CONTEXT_NAMESPACE
from .auth import ExecutableLocation
from .resolver import KubernetesClusterResolver

__all__ = ["CONTEXT_NAMESPACE", "ExecutableLocation", "KubernetesClusterResolver", "Pod"]
