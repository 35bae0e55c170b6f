"""The base class of all resolvers, and two resolvers that need no service: a fixed cluster, and a union."""

from .base import ClusterResolver
from .static import SimpleClusterResolver
from .union import UnionClusterResolver

__all__ = ["ClusterResolver", "SimpleClusterResolver", "UnionClusterResolver"]
