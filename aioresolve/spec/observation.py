"""`Observation` and `Missing`: what a source shows at one moment, the members and who is missing."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from aioresolve.errors import ResolveError

    from .state import ClusterState

__all__ = ["Missing", "Observation"]


@dataclass(frozen=True, slots=True)
class Missing:
    """Who is wanted in a job and cannot be used, and why.

    Attributes:
        job: the job.
        name: what the source calls it: `namespace/name` of a pod, the name of a TPU.
        reason: why, in words, such as `Pending (Unschedulable: 0/5 nodes are available)`.
        is_final: whether it can never be used any more, by itself.
        tasks: how many tasks of the job it stands for; None where the source does not know yet.
    """

    job: str
    name: str
    reason: str
    _: KW_ONLY
    is_final: bool = False
    tasks: int | None = 1


@dataclass(frozen=True, slots=True)
class Observation:
    """What a source shows at one moment.

    Attributes:
        state: the members; None before the source has answered at all.
        absent: who was found and is no member: pods that are pending, TPUs in creation.
        unready: the members that are not ready, and why.
        error: why the source cannot be asked at present; all else is then what it said last.
        stale_since: the moment in UTC since which that is so; None while the source answers.
    """

    state: ClusterState | None
    absent: tuple[Missing, ...] = ()
    unready: tuple[Missing, ...] = ()
    error: ResolveError | None = None
    stale_since: datetime | None = None

    def stale(self, error: ResolveError, now: datetime) -> Observation:
        """Return the same, once the source could not be asked because of `error`."""
        return replace(self, error=error, stale_since=self.stale_since or now)
