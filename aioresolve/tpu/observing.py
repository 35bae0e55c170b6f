"""What a source shows of TPUs -> the workers of those that are ready, and who is missing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.spec import ClusterState, Missing, Observation

from .discovery import Local
from .nodes import NotThere
from .slices import cluster_of

if TYPE_CHECKING:
    from datetime import datetime

    from .discovery import Source
    from .finding import FoundTPUs
    from .readiness import Unready

__all__ = ["observation_of"]


def observation_of(
    source: Source, found: FoundTPUs, job: str, others: dict[str, str], observed_at: datetime
) -> Observation:
    """Return what is seen of a source: its state has the slices that are ready, numbered without the others.

    Where none is ready, the job is there without tasks. A name that nothing has may still come to be: whoever
    watches it is told so, and not that it is an error.

    Args:
        source: who names the TPUs.
        found: what it shows.
        job: the job that the workers are.
        others: further jobs of one task each, name to `host:port`.
        observed_at: when it was asked.
    """
    if isinstance(source, Local):
        alone = Missing(
            job, "local", "this host's own TPU has no workers to wait for", is_final=True, tasks=0
        )
        return Observation(cluster_of((), job, {}, observed_at), (alone,))
    absent = tuple(_missing(one, job) for one in found.absent)
    if not found.slices:
        return Observation(ClusterState.of({job: []}, observed_at=observed_at), absent)
    return Observation(cluster_of(found.slices, job, others, observed_at), absent)


def _missing(one: Unready | NotThere, job: str) -> Missing:
    if isinstance(one, NotThere):
        name = one.path.rpartition("/")[2]
        return Missing(job, name, f"there is no {one.path} yet; see that its name is right", tasks=None)
    return Missing(job, one.name, one.reason, is_final=not one.is_passing, tasks=one.workers)
