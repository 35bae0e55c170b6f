"""KubernetesClusterResolver: the pods of label selectors as a cluster."""

from .auth import ExecutableLocation
from .objects import Pod
from .resolver import KubernetesClusterResolver

__all__ = ["ExecutableLocation", "KubernetesClusterResolver", "Pod"]
