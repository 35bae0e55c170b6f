"""The facades of the resolvers whose libraries take 0.4 seconds to import, which few programs need all of."""

from __future__ import annotations

from aioresolve import kubernetes
from aioresolve.environment import gce

from .resolvers import ClusterResolver, constructs


class GCEClusterResolver(ClusterResolver):
    """`aioresolve.GCEClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(gce.GCEClusterResolver)
    def __init__(self) -> None: ...


class KubernetesClusterResolver(ClusterResolver):
    """`aioresolve.KubernetesClusterResolver` with blocking methods; see there for arguments and errors."""

    @constructs(kubernetes.KubernetesClusterResolver)
    def __init__(self) -> None: ...
