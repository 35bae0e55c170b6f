"""Which process of several takes which targets: rendezvous hashing, so that few targets ever change hands."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SHARD_INDEX", "checked_shard", "rendezvous"]

SHARD_INDEX = "JOB_COMPLETION_INDEX"
"""The variable that tells each pod of an Indexed Job which one it is:
https://kubernetes.io/docs/concepts/workloads/controllers/job/#completion-mode."""


def rendezvous(name: str, shards: int) -> int:
    """Return which of `shards` shards, counted from 0, takes the target `name`: that of the highest weight.

    Every process finds the same one. One more shard takes its share from all the others, and nothing else
    moves; without the last shard, only what it had moves. Thaler and Ravishankar, "Using name-based mappings
    to increase hit rates", 1998.
    """
    return max(range(shards), key=lambda shard: _weight(name, shard))


def _weight(name: str, shard: int) -> bytes:
    return blake2b(f"{shard}:{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def checked_shard(shard: Any, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return which shard of how many is meant, `(index, number)`; None for the whole fleet.

    Args:
        shard: that pair; or the number alone, where the index is this process's `JOB_COMPLETION_INDEX`; or
            None.
        environ: the environment variables.

    Raises:
        ConfigurationError: it is none of these, there is no such shard, or the variable does not say which.
    """
    if shard is None:
        return None
    if not isinstance(shard, tuple):
        number = _checked_number(shard, shard)
        return _checked_index(_index_of_this_process(number, environ), number), number
    if len(shard) != 2:
        raise _no_shard(shard)
    number = _checked_number(shard[1], shard)
    if not _is_whole(shard[0]) or not 0 <= shard[0] < number:
        raise _no_shard(shard)
    return shard[0], number


def _checked_number(number: Any, shard: Any) -> int:
    if not _is_whole(number) or number < 1:
        raise _no_shard(shard)
    return int(number)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def _no_shard(shard: Any) -> ConfigurationError:
    return ConfigurationError(
        f"{shard!r} is not a valid shard",
        argument="shard",
        hint="Pass the index of the shard, from 0, and the number of shards, such as (0, 4); or the number"
        f" alone in a pod of an Indexed Job, which has its index in ${SHARD_INDEX}.",
    )


def _index_of_this_process(number: int, environ: Mapping[str, str]) -> int:
    index = environ.get(SHARD_INDEX)
    if index is None:
        raise ConfigurationError(
            f"the index of this shard of {number} is unknown, because ${SHARD_INDEX} is not set",
            argument="shard",
            hint="Pass the index as well, or run as a pod of an Indexed Job.",
        )
    if not (index.isascii() and index.isdigit()):
        raise ConfigurationError(f"${SHARD_INDEX} is {index!r}: it has to be the index of a shard, such as 0")
    return int(index)


def _checked_index(index: int, number: int) -> int:
    if index >= number:
        raise ConfigurationError(
            f"${SHARD_INDEX} is {index}, but there are {number} shards, counted from 0: run as many pods as"
            " there are shards"
        )
    return index
