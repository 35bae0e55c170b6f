"""KubernetesClusterResolver: the pods of label selectors as a cluster."""

from .credentials import ExecutableLocation
from .messages import Pod
from .resolver import KubernetesClusterResolver

__all__ = ["ExecutableLocation", "KubernetesClusterResolver", "Pod"]
