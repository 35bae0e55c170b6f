"""What a call needs to know of a source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Want:
    """What a call needs to know about a cluster. A source may leave out the rest if that is cheaper.

    Attributes:
        complete: the call has no use for a part of the cluster: tasks that are missing or not ready are an
            error that the source raises, and not a part of the observation.
        identities: whether names, uids, nodes and devices of the members are needed besides their addresses.
        controllers: whether `Observation.controllers` is needed for jobs without members.
        sizes: whether `Observation.expected` is needed, even where only further requests show it.
    """

    complete: bool = False
    identities: bool = True
    controllers: bool = False
    sizes: bool = False


ADDRESSES = Want(complete=True, identities=False)
"""What `cluster_spec` needs."""

MEMBERS = Want(complete=True)
"""What `cluster_state` needs."""
