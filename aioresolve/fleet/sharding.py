"""The shards of a fleet: which of several processes takes which targets, by rendezvous hashing."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

SHARD_INDEX = "JOB_COMPLETION_INDEX"
"""The environment variable with the index of a pod in an Indexed Job:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode."""

MAX_SHARDS = 1000
"""The maximum number of shards: finding the shard of a target takes a hash for each."""


def shard_of(name: str, num_shards: int) -> int:
    """Return the index of the shard that takes the target `name`: the one with the highest weight.

    Every process computes the same one from the name alone, whatever other targets it knows. The price is
    that few targets are spread unevenly: of 4 targets, one of 4 shards may have three.

    A new shard takes its share from all the others, and no other target moves; if the last shard is removed,
    only its targets move. Thaler and Ravishankar, "Using name-based
    mappings to increase hit rates", 1998.
    """
    return max(range(num_shards), key=lambda shard: _weight(name, shard))


def _weight(name: str, shard: int) -> bytes:
    return blake2b(f"{shard}:{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def validate_shard(shard: Any, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the index of the shard and the number of shards; None for the whole fleet.

    `shard` is that pair; or the number alone, if the index is in `JOB_COMPLETION_INDEX`; or None.
    """
    if shard is None:
        return None
    is_pair = isinstance(shard, tuple) and len(shard) == 2
    index, number = shard if is_pair else (0, shard)
    if type(index) is not int or type(number) is not int or not 0 <= index < number:
        raise ConfigurationError(
            f"{shard!r} is not a valid shard",
            argument="shard",
            hint="Pass the index of the shard, from 0, and the number of shards, such as (0, 4); or the"
            f" number alone in a pod of an Indexed Job, which has its index in ${SHARD_INDEX}.",
        )
    if number > MAX_SHARDS:
        raise ConfigurationError(
            f"{number} shards are more than {MAX_SHARDS:,}",
            argument="shard",
            hint="Pass the number of processes that share the fleet, such as 4.",
        )
    return (index if is_pair else _index_from_environment(number, environ)), number


def _index_from_environment(number: int, environ: Mapping[str, str]) -> int:
    text = environ.get(SHARD_INDEX)
    if text is None:
        raise ConfigurationError(
            f"cannot determine which of {number} shards this is, because ${SHARD_INDEX} is not set",
            argument="shard",
            hint="Pass the index as well, or run as a pod of an Indexed Job.",
        )
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(f"${SHARD_INDEX} is {text!r}, not the index of a shard, such as 0")
    index = int(text)
    if index >= number:
        raise ConfigurationError(
            f"${SHARD_INDEX} is {index}, but there are {number} shards, counted from 0",
            hint="Run as many pods as there are shards.",
        )
    return index
