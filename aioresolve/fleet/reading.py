"""`Reading`: what is known of one target of a fleet at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from aioresolve.errors import ResolveError
    from aioresolve.spec import ClusterState, Missing

__all__ = ["Reading", "lean"]

CAUSES = 8
"""How many errors, each the cause of the one before, a reading keeps."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is known of one target.

    Attributes:
        name: the target.
        state: its members, the newest that are known, also while there is an `error`; None where none ever
            were.
        error: why the target could not be asked just now. It has no traceback.
        latency: seconds that the answer took, or the failure; None for a change that a watch told.
        stale_since: the moment in UTC since which `state` may no longer be right, while there is an `error`:
            the last good answer, or the end of a watch. None where there is no `state`.
        absent: who was found and is no member, and why: pods that are pending, TPUs in creation. It is as of
            `state`.
        unready: the members that are not ready, and why, as of `state`.
    """

    name: str
    state: ClusterState | None
    error: ResolveError | None = None
    latency: float | None = None
    stale_since: datetime | None = None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()

    @property
    def is_stale(self) -> bool:
        """Whether there is a `state` and it may no longer be right."""
        return self.state is not None and self.error is not None

    @property
    def num_tasks(self) -> int:
        """How many tasks `state` has in all jobs; 0 where there is none."""
        return 0 if self.state is None else sum(map(len, self.state.endpoints.values()))

    @property
    def tasks_by_job(self) -> dict[str, int]:
        """How many tasks each job of `state` has."""
        return {} if self.state is None else {job: len(tasks) for job, tasks in self.state.endpoints.items()}

    def differs_from(self, older: Reading | None) -> bool:
        """Whether the members are others than in `older`, or the error says something else."""
        return older is None or self.state != older.state or _words(self.error) != _words(older.error)


def _words(error: ResolveError | None) -> tuple[type, str] | None:
    return None if error is None else (type(error), str(error))


def lean(error: ResolveError) -> ResolveError:
    """Return `error` without the frames that it and its causes came through, and without its remotest causes.

    Frames keep what was in them alive, such as the bodies of answers; and an error that is raised again and
    again, as a resolver may do, has more of them each time.
    """
    link: BaseException | None = error
    for place in range(CAUSES):
        if link is None:
            break
        link.__traceback__ = None
        link.__context__ = None
        if place == CAUSES - 1:
            link.__cause__ = None
        link = link.__cause__
    return error
