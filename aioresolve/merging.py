"""The clusters of several sources -> one cluster. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from .errors import TaskConflictError
from .spec import ClusterSpec, ClusterState, Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .spec import Endpoint

__all__ = ["merged_observation", "merged_spec", "merged_state"]

T = TypeVar("T")


def merged_spec(specs: Iterable[ClusterSpec]) -> ClusterSpec:
    """Return all addresses; see `UnionClusterResolver` for how they are numbered.

    Raises:
        TaskConflictError: a task index is taken twice.
    """
    return ClusterSpec(_merged(_addresses(spec) for spec in specs))


def merged_state(states: Sequence[ClusterState]) -> ClusterState:
    """Return all endpoints, numbered as `merged_spec` does, as old as the oldest answer.

    Raises:
        TaskConflictError: a task index is taken twice.
    """
    jobs = _merged(_endpoints(state) for state in states)
    spec = ClusterSpec({job: {i: e.address for i, e in tasks.items()} for job, tasks in jobs.items()})
    endpoints = {job: tuple(tasks[i] for i in spec.task_indices(job)) for job, tasks in jobs.items()}
    moments = [state.observed_at for state in states if state.observed_at is not None]
    return ClusterState(endpoints, spec, observed_at=min(moments, default=None))


def merged_observation(observations: Sequence[Observation]) -> Observation:
    """Return what all of them show: a state once each has one, as stale as the stalest.

    Raises:
        TaskConflictError: a task index is taken twice.
    """
    states = [one.state for one in observations if one.state is not None]
    stale = [one.stale_since for one in observations if one.stale_since is not None]
    return Observation(
        merged_state(states) if len(states) == len(observations) else None,
        absent=tuple(missing for one in observations for missing in one.absent),
        unready=tuple(missing for one in observations for missing in one.unready),
        error=next((one.error for one in observations if one.error is not None), None),
        stale_since=min(stale, default=None),
    )


def _addresses(spec: ClusterSpec) -> dict[str, dict[int, str]]:
    return {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}


def _endpoints(state: ClusterState) -> dict[str, dict[int, Endpoint]]:
    return {
        job: dict(zip(state.spec.task_indices(job), endpoints, strict=True))
        for job, endpoints in state.endpoints.items()
    }


def _merged(clusters: Iterable[Mapping[str, dict[int, T]]]) -> dict[str, dict[int, T]]:
    """Return the tasks of all clusters by job and task index, jobs in the order they are first met."""
    by_job: dict[str, list[dict[int, T]]] = {}
    for cluster in clusters:
        for job, tasks in cluster.items():
            by_job.setdefault(job, []).append(tasks)
    return {job: _merged_tasks(job, parts) for job, parts in by_job.items()}


def _merged_tasks(job: str, parts: list[dict[int, T]]) -> dict[int, T]:
    if all(list(tasks) == list(range(len(tasks))) for tasks in parts):
        return dict(enumerate(task for tasks in parts for task in tasks.values()))
    merged: dict[int, T] = {}
    for tasks in parts:
        if twice := sorted(merged.keys() & tasks.keys()):
            raise TaskConflictError(
                f"job {job!r}: more than one resolver of the union knows task {', '.join(map(str, twice))}; "
                "the tasks of at least one are sparse, so all keep their indices: let each have its own",
                job=job,
                indices=twice,
            )
        merged |= tasks
    return merged
