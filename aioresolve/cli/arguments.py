"""What the command line's arguments say, and what is wrong with those that say nothing. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Task", "job_and_count", "job_and_selector", "selectors_by_job", "shard", "task", "typed"]

EXAMPLE = "such as -l worker=app=trainer"
_NO_JOB_NAME = re.compile(r"[\s!(),]")
"""Characters that selectors have and job names do not."""
_SHARDS = re.compile(r"(?:([0-9]{1,9})/)?([1-9][0-9]{0,8})")
_JOB_AND_COUNT = re.compile(r"(.+)=([1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a cluster, by its job and its index there."""

    job: str
    index: int


def job_and_selector(text: str) -> tuple[str, str]:
    """Return the two halves of `JOB=SELECTOR`: what stands before the first `=`, and all that follows.

    Raises:
        ValueError: a half is missing, or the first begins a selector; the message has the mend.
    """
    job, _, selector = text.partition("=")
    if _NO_JOB_NAME.search(job) or selector.startswith("="):
        example = shlex.quote(f"worker={text}")
        raise ValueError(f"{text!r} names no job; write JOB=SELECTOR, such as -l {example}")
    if not job:
        raise ValueError(f"{text!r} has no job name before the '='; write JOB=SELECTOR, {EXAMPLE}")
    if not selector.strip():
        raise ValueError(
            f"{text!r} has no label selector after the job's name; write JOB=SELECTOR, {EXAMPLE}"
        )
    return job, selector


def job_and_count(text: str) -> tuple[str, int]:
    """Return the two halves of `JOB=N`: a job and a number of its tasks.

    Raises:
        ValueError: it is not that; the message has the mend.
    """
    halves = _JOB_AND_COUNT.fullmatch(text)
    if halves is None:
        raise ValueError(f"{text!r} is no number of a job's tasks; write JOB=N, such as worker=16")
    return halves[1], int(halves[2])


def shard(text: str) -> int | tuple[int, int]:
    """Return the number of shards that `N` says, or the index and the number that `I/N` says.

    Raises:
        ValueError: it is neither; the message has the mend.
    """
    parts = _SHARDS.fullmatch(text)
    if parts is None:
        raise ValueError(
            f"{text!r} is no shard; write INDEX/N, such as 0/4, or in a pod of an Indexed Job N alone"
        )
    index, number = parts.groups()
    return int(number) if index is None else (int(index), int(number))


def selectors_by_job(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return each job's selectors, both in the order given."""
    jobs: dict[str, list[str]] = {}
    for job, selector in pairs:
        jobs.setdefault(job, []).append(selector)
    return jobs


def task(text: str) -> Task:
    """Return the task that `JOB:INDEX` names.

    Raises:
        ValueError: it names none; the message has the mend.
    """
    job, colon, index = text.rpartition(":")
    if not (colon and job and index.isascii() and index.isdigit() and len(index) < 10):
        raise ValueError(f"{text!r} is no task; write JOB:INDEX, such as worker:0")
    return Task(job, int(index))


def typed(selectors: Iterable[tuple[str, str]]) -> str:
    """Return jobs' selectors as they are given at the command line."""
    return " ".join(f"-l {job}={selector}" for job, selector in selectors)
