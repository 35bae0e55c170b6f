"""What every resolver can do, and two that need no service: a given cluster, and a union of resolvers."""

from .base import ClusterResolver
from .static import SimpleClusterResolver, UnionClusterResolver

__all__ = ["ClusterResolver", "SimpleClusterResolver", "UnionClusterResolver"]
