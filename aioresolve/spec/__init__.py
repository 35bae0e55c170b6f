"""What a cluster is: plain values, without I/O, clock or event loop.

`ClusterSpec` is job names to task addresses. `Endpoint` is one task's address with the identity that its
source knows. `ClusterState` is the endpoints of all jobs at one moment, and `ClusterDiff` what changed
between two such moments. `Observation` is all that a source shows: the state, and who is missing in it.
"""

from .cluster import ClusterSpec
from .state import ClusterDiff, ClusterState, Endpoint, Member, Missing, Move, Observation, host_port

__all__ = [
    "ClusterDiff",
    "ClusterSpec",
    "ClusterState",
    "Endpoint",
    "Member",
    "Missing",
    "Move",
    "Observation",
    "host_port",
]
