"""Clusters as immutable values. No I/O, clock or event loop.

`ClusterSpec` maps job names to task addresses. `Task` is one of these tasks with its rank. `Endpoint` is the
address of one task with its identity, if that is known. `ClusterState` contains the endpoints of all jobs at
one time; `ClusterDiff` is the difference between two states. `Observation` is a state together with its
missing members.
"""

from .cluster import ClusterSpec, Task
from .observation import ControllerStatus, ExpectedTasks, Missing, Observation
from .state import (
    ClusterDiff,
    ClusterState,
    DoneTask,
    Endpoint,
    Member,
    Move,
    ReadOnlyMapping,
    host_port,
    split_host_port,
)

__all__ = [
    "ClusterDiff",
    "ClusterSpec",
    "ClusterState",
    "ControllerStatus",
    "DoneTask",
    "Endpoint",
    "ExpectedTasks",
    "Member",
    "Missing",
    "Move",
    "Observation",
    "ReadOnlyMapping",
    "Task",
    "host_port",
    "split_host_port",
]
