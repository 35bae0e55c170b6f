"""The base class of all resolvers, a fixed cluster, unions, waiting, checks, and which task a process is."""

from .base import ClusterResolver

__all__ = ["ClusterResolver"]
