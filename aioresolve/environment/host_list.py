"""Slurm's host lists, such as `n[1-2],m5,o[006-011]`, and its counts per node, such as `3(x2),2,1`. No I/O.

The grammar is that of `scontrol show hostnames` (https://slurm.schedmd.com/scontrol.html), and also permits
text after brackets: `n[1-2]-ib0`. What Slurm accepts but never writes, such as unbalanced brackets, spaces
and empty entries, is an error. Sizes are limited, because a few characters can stand for any number of hosts.
"""

from __future__ import annotations

import itertools
import re
import reprlib

from aioresolve.errors import ConfigurationError
from aioresolve.spec import host_port

MAX_HOSTS = 65_536
"""The most hosts of a list. Slurm has this limit for one range."""

MAX_TASKS = 262_144
"""The most tasks of all nodes."""

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def expand_host_list(text: str) -> list[str]:
    """Return the hosts of a list, in its order, with repetitions.

    Raises:
        ValueError: the list is malformed, or has more than `MAX_HOSTS` hosts.
    """
    entries = _ENTRY.findall(text)
    if not entries or ",".join(entries) != text:
        raise ValueError("an entry is empty, or brackets are unbalanced")
    hosts: list[str] = []
    for entry in entries:
        hosts += _expand_entry(entry, MAX_HOSTS - len(hosts))
    return hosts


def expand_counts(text: str) -> list[int]:
    """Return the number of each node, in the order of the nodes: `3(x2),2,1` is `[3, 3, 2, 1]`.

    Raises:
        ValueError: the text is malformed, or there are more than `MAX_HOSTS` nodes or `MAX_TASKS` in total.
    """
    counts: list[int] = []
    total = 0
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise ValueError(f"{reprlib.repr(part)} is not a number such as 2, or 2(x3) for three nodes")
        count, repetitions = int(match[1]), int(match[2] or 1)
        total += count * repetitions
        if len(counts) + repetitions > MAX_HOSTS or total > MAX_TASKS:
            raise ValueError(f"more than {MAX_HOSTS} nodes or {MAX_TASKS} tasks")
        counts += [count] * repetitions
    return counts


def expand_host_file(text: str) -> list[str]:
    """Return the host of each task, for the text of a `$SLURM_HOSTFILE`: `n2*3` is three tasks on `n2`.

    Raises:
        ValueError: the text is malformed, or has more than `MAX_TASKS` hosts.
    """
    hosts: list[str] = []
    for line in text.splitlines():
        for entry in _ENTRY.findall(re.sub(r"\s+", ",", line.partition("#")[0])):
            name, _, repetitions = entry.partition("*")
            names, number = expand_host_list(name), int(repetitions or 1)
            if len(hosts) + len(names) * number > MAX_TASKS:
                raise ValueError(f"more than {MAX_TASKS} hosts")
            hosts += names * number
    return hosts


def _expand_entry(entry: str, limit: int) -> list[str]:
    """Return the hosts of one entry: `a[1-2]b[3,5]` has four. The last bracket varies fastest."""
    parts: list[list[str]] = []
    number = 1
    for ranges, literal in _PART.findall(entry):
        parts.append([literal] if literal else _expand_ranges(ranges, limit))
        number *= len(parts[-1])
        if number > limit:  # checked before the hosts are generated
            raise _too_many()
    longest = "".join(max(part, key=len) for part in parts)  # the others differ in digits only
    try:
        host_port(longest, 1)
    except ConfigurationError:
        raise ValueError(f"{reprlib.repr(longest)} is not a host name") from None
    return ["".join(name) for name in itertools.product(*parts)]


def _expand_ranges(text: str, limit: int) -> list[str]:
    """Return the numbers between brackets, with the width of the first number of each range: `006-008,11`."""
    numbers: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{reprlib.repr(part)} between brackets is not a number, or a range such as 1-4")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"the range {part} is descending")
        if len(numbers) + last - first + 1 > limit:
            raise _too_many()
        width = len(match[1])
        numbers += [f"{number:0{width}}" for number in range(first, last + 1)]
    return numbers


def _too_many() -> ValueError:
    return ValueError(f"more than {MAX_HOSTS} hosts")
