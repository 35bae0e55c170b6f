"""The changes that `watch.py` makes: the n-th gives one pod an address that says n.

So whoever sees an address knows which change it came with, and anybody can say who is where after n of them.
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
"""How many pods further the next change is; a prime, so that each pod has its turn."""

CHANGED = "11."
"""What the addresses begin with that changes made; the first ones begin with 10."""


def pod_name(pod: int) -> str:
    """Return the name of a pod by its number; numbers ascend as names do."""
    return f"trainer-{pod}"


def pod_changed(change: int, pods: int) -> int:
    """Return the number of the pod, of so many, that the change with this number is made to; from 0."""
    return change * STRIDE % pods


def first_address(pod: int) -> str:
    """Return the address that a pod has before it is changed."""
    return _dotted("10.", pod)


def address_of(change: int) -> str:
    """Return the address that a change gives its pod."""
    return _dotted(CHANGED, change)


def change_seen(address: str) -> int:
    """Return the change that gave a pod its address, with or without a port; -1 if none did."""
    if not address.startswith(CHANGED):
        return -1
    _, high, middle, low = address.partition(":")[0].split(".")
    return int(high) << 16 | int(middle) << 8 | int(low)


def addresses_after(changes: int, pods: int) -> list[str]:
    """Return every pod's address after so many changes, by the pods' numbers."""
    addresses = [first_address(pod) for pod in range(pods)]
    for change in range(changes):
        addresses[pod_changed(change, pods)] = address_of(change)
    return addresses


def digest(addresses: Iterable[str]) -> str:
    """Return a hash of addresses in their order, their ports left out."""
    return hashlib.sha256(" ".join(each.partition(":")[0] for each in addresses).encode()).hexdigest()


def _dotted(begin: str, number: int) -> str:
    return f"{begin}{number >> 16}.{number >> 8 & 255}.{number & 255}"
