"""The changes that `watch.py` makes: change n gives one pod an address that contains n.

An address therefore identifies its change, and the addresses of all pods after n changes can be computed.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "address_of",
    "addresses_after",
    "change_seen",
    "digest",
    "first_address",
    "pod_changed",
    "pod_name",
]

STRIDE = 7919
"""The distance from one changed pod to the next; a prime, so that every pod is changed."""

CHANGED = "11."
"""The prefix of addresses that changes assign; the first addresses start with 10."""


def pod_name(pod: int) -> str:
    """Return the name of a pod; names have the same order as numbers."""
    return f"trainer-{pod}"


def pod_changed(change: int, pods: int) -> int:
    """Return the number of the pod, of `pods`, that a change is made to, counted from 0."""
    return change * STRIDE % pods


def first_address(pod: int) -> str:
    """Return the address of a pod before its first change."""
    return _dotted("10.", pod)


def address_of(change: int) -> str:
    """Return the address that a change assigns to its pod."""
    return _dotted(CHANGED, change)


def change_seen(address: str) -> int:
    """Return the number of the change that assigned `address` (with or without a port), or -1."""
    if not address.startswith(CHANGED):
        return -1
    _, high, middle, low = address.partition(":")[0].split(".")
    return int(high) << 16 | int(middle) << 8 | int(low)


def addresses_after(changes: int, pods: int) -> list[str]:
    """Return the addresses of all pods after `changes` changes, in the order of their numbers."""
    addresses = [first_address(pod) for pod in range(pods)]
    for change in range(changes):
        addresses[pod_changed(change, pods)] = address_of(change)
    return addresses


def digest(addresses: Iterable[str]) -> str:
    """Return a hash of the addresses without their ports; the order matters."""
    return hashlib.sha256(" ".join(each.partition(":")[0] for each in addresses).encode()).hexdigest()


def _dotted(begin: str, number: int) -> str:
    return f"{begin}{number >> 16}.{number >> 8 & 255}.{number & 255}"
