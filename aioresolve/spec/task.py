"""`Task`: one task of a cluster, with its rank among all tasks."""

from __future__ import annotations

from dataclasses import dataclass

CHIEF_JOBS = ("chief", "master")
"""The jobs whose task leads the cluster in TensorFlow; `master` is the older name."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a cluster, and its rank among all tasks.

    Attributes:
        job: the job, such as `"worker"`.
        index: the task index in the job.
        address: `host:port`, as in the `ClusterSpec`.
        rank: the position among all tasks, from 0: the chief first, then the other jobs in the order of the
            spec, each by task index. Ranks have no gaps, even if task indices have.
        num_tasks: the number of tasks of all jobs.
    """

    job: str
    index: int
    address: str
    rank: int
    num_tasks: int

    def __str__(self) -> str:
        return f"/job:{self.job}/task:{self.index}"


def jobs_by_rank(jobs: list[str]) -> list[str]:
    """Return the jobs in the order of ranks: the chief first, then the others in the given order."""
    return sorted(jobs, key=lambda job: job not in CHIEF_JOBS)
