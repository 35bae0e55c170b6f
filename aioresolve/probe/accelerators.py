"""How many accelerators a worker of a cluster has: what `num_accelerators` of every resolver stands on.

The rules are those of `tf.distribute.cluster_resolver.ClusterResolver.num_accelerators`: a map of accelerator
types to their number per worker, narrowed by task type and task id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, DeadlineExceededError, ProbeError, UnknownTaskError
from aioresolve.spec import ClusterSpec

from .workers import LIBTPU_PORTS, probe_workers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .channels import ProbeChannels
    from .devices import WorkerProbe

__all__ = ["accelerators_per_worker", "accelerators_shared", "operation_timeout", "tasks_asked"]

DEFAULT_JOB = "worker"


async def accelerators_per_worker(
    spec: ClusterSpec,
    task_type: str | None = None,
    task_id: int | None = None,
    *,
    timeout: float = 30.0,
    libtpu_ports: Sequence[int] = LIBTPU_PORTS,
    channels: ProbeChannels | None = None,
) -> dict[str, int]:
    """Return accelerator type to number of accelerators per worker, CPUs left out.

    Every worker is asked, at once, and all have to agree.

    Args:
        spec: the cluster.
        task_type: the job to ask; where None, the job `worker`, or every job if there is none of that name.
        task_id: the one task of that job to ask.
        timeout: seconds until the workers that have not answered are given up.
        libtpu_ports: where each host's libtpu processes listen.
        channels: how the workers are reached; in plain where None.

    Raises:
        UnknownTaskError: (a ValueError) the cluster has no such task, or none at all.
        DeadlineExceededError: workers did not answer in time; it names them.
        ProbeError: (a RuntimeError) workers cannot be probed, or have different accelerators; it names them.
    """
    asked = tasks_asked(spec, task_type, task_id)
    probes = await probe_workers(
        asked.values(), timeout=timeout, worker_timeout=timeout, libtpu_ports=libtpu_ports, channels=channels
    )
    return accelerators_shared(dict(zip(asked, probes, strict=True)), timeout)


def tasks_asked(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> dict[str, str]:
    """Return the tasks to ask, as `/job:worker/task:0` to `host:port`; the arguments are as above.

    Raises:
        UnknownTaskError: (a ValueError) the cluster has no such task, or none at all.
        ConfigurationError: `task_id` could be of several jobs.
    """
    spec = ClusterSpec(spec)  # names and addresses may have been given as bytes
    by_default = [DEFAULT_JOB] if DEFAULT_JOB in spec.jobs else spec.jobs
    jobs = by_default if task_type is None else [task_type]
    if task_id is not None and len(jobs) > 1:
        raise ConfigurationError(f"task_id={task_id} of which job? Give task_type, one of {', '.join(jobs)}")
    asked = {
        f"/job:{job}/task:{index}": spec.task_address(job, index)
        for job in jobs
        for index in (spec.task_indices(job) if task_id is None else [task_id])
    }
    if not asked:
        raise UnknownTaskError(f"there is no task to ask for its accelerators in {spec!r}")
    return asked


def accelerators_shared(probes: Mapping[str, WorkerProbe], timeout: float) -> dict[str, int]:
    """Return the accelerators that every one of these workers has, by type.

    Args:
        probes: each task in words to its row.
        timeout: the seconds they had, for the error message.

    Raises:
        DeadlineExceededError: all that did not answer ran out of time.
        ProbeError: (a RuntimeError) a worker did not answer, or one has other accelerators than another.
    """
    failures = {task: probe.error for task, probe in probes.items() if probe.error is not None}
    if failures:
        raise _unanswered(probes, failures, timeout)
    counts = {task: probe.accelerators for task, probe in probes.items()}
    first = next(iter(counts.values()))
    if all(count == first for count in counts.values()):
        return first
    each = {task: _in_words(count) for task, count in counts.items()}
    raise ProbeError(
        f"the workers have different accelerators: {_listed(each)}; ask for one with task_type and task_id",
        code="uneven",
        failures=each,
    )


def operation_timeout(config_proto: Any) -> float | None:
    """Return `operation_timeout_in_ms` of a TensorFlow ConfigProto in seconds; None where it is not set.

    Raises:
        ConfigurationError: it is no ConfigProto, or the timeout is below zero.
    """
    if config_proto is None:
        return None
    milliseconds = getattr(config_proto, "operation_timeout_in_ms", None)
    if not isinstance(milliseconds, int):
        raise ConfigurationError(
            f"config_proto is a tf.compat.v1.ConfigProto or None; got {type(config_proto).__name__}"
        )
    if milliseconds < 0:
        raise ConfigurationError(f"config_proto.operation_timeout_in_ms={milliseconds} is below zero")
    return milliseconds / 1000 or None


def _unanswered(
    probes: Mapping[str, WorkerProbe], failures: Mapping[str, ProbeError], timeout: float
) -> ProbeError | DeadlineExceededError:
    reasons = {task: str(error) for task, error in failures.items()}
    what = f"{len(failures)} of {len(probes)} workers did not tell their accelerators: {_listed(reasons)}"
    codes = {error.code for error in failures.values()}
    if codes == {"deadline"}:
        reached = {
            task: _in_words(probe.accelerators) for task, probe in probes.items() if task not in failures
        }
        return DeadlineExceededError(what, timeout=timeout, reached=reached, missing=reasons)
    only = next(iter(failures.values()))
    return ProbeError(
        what,
        address=only.address if len(failures) == 1 else None,
        code=only.code if len(codes) == 1 else "failed",
        failures=reasons,
        retryable=all(error.retryable for error in failures.values()),
    )


def _in_words(count: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in count.items()) or "none"


def _listed(reasons: Mapping[str, str], limit: int = 8) -> str:
    """Return the first reasons, one after the other, and how many more there are."""
    shown = [f"{task}: {reason}" for task, reason in list(reasons.items())[:limit]]
    more = [f"and {len(reasons) - limit} more"] if len(reasons) > limit else []
    return "; ".join(shown + more)
