"""The number of accelerators per worker of a cluster: the implementation of every `num_accelerators`.

The rules are those of `tf.distribute.cluster_resolver.ClusterResolver.num_accelerators`: the result maps
accelerator types to their number per worker; `task_type` and `task_id` select the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aioresolve.errors import ConfigurationError, ProbeDeadlineError, ProbeError, UnknownTaskError
from aioresolve.spec import ClusterSpec

from .workers import probe_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve.spec import ClusterState

    from .devices import WorkerProbe

MAX_LISTED = 8
"""How many workers an error lists."""


async def accelerators_per_worker(
    spec: ClusterSpec,
    task_type: str | None = None,
    task_id: int | None = None,
    *,
    timeout: float,
) -> dict[str, int]:
    """Return the number of accelerators per worker, by accelerator type, without CPUs.

    All workers are probed concurrently, and must report the same accelerators.
    """
    tasks = tasks_to_probe(spec, task_type, task_id)
    probes = await probe_workers(tasks.values(), timeout=timeout, worker_timeout=timeout)
    return common_accelerators(dict(zip(tasks, probes, strict=True)), timeout)


def tasks_to_probe(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> dict[str, str]:
    """Return the selected tasks: `/job:worker/task:0` to `host:port`. Arguments: see above."""
    spec = ClusterSpec(spec)  # a copy has str only; names and addresses may have been given as bytes
    jobs = [task_type] if task_type is not None else ["worker"] if "worker" in spec.jobs else spec.jobs
    if task_id is not None and len(jobs) > 1:
        raise ConfigurationError(
            f"task_id={task_id} is ambiguous, because the cluster has the jobs {', '.join(jobs)}",
            hint="Pass {task_type} too.",
        )
    tasks = {
        f"/job:{job}/task:{index}": spec.task_address(job, index)
        for job in jobs
        for index in (spec.task_indices(job) if task_id is None else [task_id])
    }
    if not tasks:
        raise UnknownTaskError(f"{spec!r} has no task to probe for accelerators")
    return tasks


class Declared(NamedTuple):
    """The number of accelerators that the source declares for each worker, by type, or why it is unknown."""

    counts: dict[str, int] | None = None
    reason: str = ""


def declared_by_all(
    state: ClusterState,
    task_type: str | None,
    task_id: int | None,
    count: Callable[[Mapping[str, int]], dict[str, int] | None],
) -> Declared:
    """Return the number of accelerators that each of the selected tasks declares, by accelerator type.

    It is unknown if a task declares none, or they differ. `count` returns the number by type for
    `Endpoint.accelerators`, None if a name there is not known.
    """
    probed = tasks_to_probe(state.spec, task_type, task_id)
    declared = {
        task: None if member.endpoint.accelerators is None else count(member.endpoint.accelerators)
        for member in state.members
        if (task := f"/job:{member.job}/task:{member.task_index}") in probed
    }
    counts = next(iter(declared.values()), None)
    for task, other in declared.items():
        if other is None:
            return Declared(reason=f"{task} declares none")
        if other != counts:
            return Declared(reason="the tasks declare different ones")
    return Declared(counts)


def common_accelerators(
    probes: Mapping[str, WorkerProbe], timeout: float, only: str | None = None
) -> dict[str, int]:
    """Return the number of accelerators that each of these workers has, by type.

    `probes` are the results by worker, as the error names it; `timeout` is the seconds that the workers had,
    for the message; `only` is the type to count, all types if None. If a worker failed, or they differ, it
    raises a ProbeError: a ProbeDeadlineError if none failed for a reason other than the timeout.
    """
    failures = {task: probe.error for task, probe in probes.items() if probe.error is not None}
    counts = {
        task: {kind: count for kind, count in probe.accelerators.items() if only in (None, kind)}
        for task, probe in probes.items()
        if task not in failures
    }
    texts = {
        task: ", ".join(f"{number} {kind}" for kind, number in each.items()) or "none"
        for task, each in counts.items()
    }
    if failures:
        raise _failure_error(failures, texts, timeout)
    first = next(iter(counts.values()))
    if all(each == first for each in counts.values()):
        return first
    raise ProbeError(
        f"the workers have different accelerators: {_format_tasks(texts)}",
        hint="Select one worker with {task_type} and {task_id}."
        if only is None
        else "Check that each host is up, and that no other program holds part of its TPU.",
        code="uneven",
        failures=texts,
    )


def operation_timeout(config_proto: Any) -> float | None:
    """Return the `operation_timeout_in_ms` of a TensorFlow ConfigProto in seconds; None if it is not set."""
    if config_proto is None:
        return None
    milliseconds = getattr(config_proto, "operation_timeout_in_ms", None)
    if not isinstance(milliseconds, int):
        raise ConfigurationError(
            f"expected a tf.compat.v1.ConfigProto or None; got {type(config_proto).__name__}",
            argument="config_proto",
        )
    if milliseconds < 0:
        raise ConfigurationError(
            f"operation_timeout_in_ms must not be negative; got {milliseconds}", argument="config_proto"
        )
    return milliseconds / 1000 or None


def _failure_error(
    failures: Mapping[str, ProbeError], reached: Mapping[str, str], timeout: float
) -> ProbeError:
    reasons = {task: error.summary for task, error in failures.items()}
    number = f"{len(failures)} of {len(failures) + len(reached)} workers"
    summary = f"{number} did not report their accelerators: {_format_tasks(reasons)}"
    first = next(iter(failures.values()))
    codes = {error.code for error in failures.values()}
    hint = first.hint if len(codes) == 1 else None
    address = first.address if len(failures) == 1 else None
    if codes == {"deadline"}:
        return ProbeDeadlineError(
            summary, hint=hint, timeout=timeout, reached=reached, address=address, failures=reasons
        )
    return ProbeError(
        summary,
        hint=hint,
        address=address,
        code=first.code if len(codes) == 1 else "failed",
        failures=reasons,
        retryable=all(error.retryable for error in failures.values()),
    )


def _format_tasks(texts: Mapping[str, str]) -> str:
    """Return the texts of the first tasks, and the number of the others."""
    shown = [f"{task}: {text}" for task, text in list(texts.items())[:MAX_LISTED]]
    more = [f"and {len(texts) - MAX_LISTED} more"] if len(texts) > MAX_LISTED else []
    return "; ".join(shown + more)
