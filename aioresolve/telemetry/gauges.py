"""What gauges show: said when it changes, read by an exporter whenever it likes, in a thread of its own."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .attributes import Attributes

__all__ = ["member_counts", "seconds_of_staleness", "stale_since", "task_counts"]

task_counts: dict[str | None, dict[str, int]] = {}
"""By target, the tasks of each job; None is a cluster that is in no fleet."""

stale_since: dict[str | None, datetime | None] = {}
"""By target, since when what is known of it is stale; None where it is not."""


def member_counts() -> Iterator[tuple[int, Attributes]]:
    """Yield how many tasks each job of each target has, and whose that is."""
    for target, jobs in task_counts.copy().items():
        named: Attributes = {} if target is None else {"aioresolve.target": target}
        for job, tasks in jobs.items():
            yield tasks, {"aioresolve.job": job, **named}


def seconds_of_staleness() -> Iterator[tuple[float, Attributes]]:
    """Yield how stale each target is by now, and which it is."""
    now = datetime.now(UTC)
    for target, since in stale_since.copy().items():
        seconds = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        yield seconds, {} if target is None else {"aioresolve.target": target}
