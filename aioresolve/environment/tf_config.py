"""`TFConfigClusterResolver`: the cluster that the environment variable `TF_CONFIG` describes.

It follows `tf.distribute.cluster_resolver.TFConfigClusterResolver`. The format:
https://www.tensorflow.org/guide/distributed_training#set_up_tf_config_environment_variable
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aioresolve.errors import EnvironmentVariableError, InvalidClusterError
from aioresolve.launch import EVALUATOR
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import ClusterSpec, ClusterState, Task

from .base import Description, EnvironmentClusterResolver, reject, shorten

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

VARIABLE = "TF_CONFIG"


class TFConfigClusterResolver(EnvironmentClusterResolver):
    """Resolves the cluster that `$TF_CONFIG` describes.

    >>> cluster, task = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, {"type": "worker", "index": 1}
    >>> os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    >>> await TFConfigClusterResolver().this_task()
    Task(job='worker', index=1, address='10.0.0.2:2222', rank=1, num_tasks=2)

    `$TF_CONFIG` is a JSON object with the keys `cluster` (jobs to lists of addresses, or to objects of task
    index to address), `task` (`type` and `index`), `rpc_layer` and `session_master`; others are ignored.
    Without the variable, the cluster is empty. Every call and every property reads it again.

    An evaluator need not be in the cluster: `this_task()` then returns it without an address and a rank of
    its own.

    Args:
        task_type: overrides the `type` of the task.
        task_id: overrides the `index` of the task.
        rpc_layer: overrides the `rpc_layer`.
        environment: the value of the `environment` property.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid. Calls and properties raise an
            EnvironmentVariableError (a ValueError and RuntimeError) if `$TF_CONFIG` is malformed.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(
            task_type=task_type,
            task_id=task_id,
            rpc_layer=rpc_layer,
            environment=environment,
            timeout=timeout,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ${VARIABLE}>"

    def _read(self) -> Description:
        return parse_tf_config(os.environ.get(VARIABLE, "{}"))

    async def _claim(self, progress: Progress) -> TaskClaim:
        return TaskClaim(self.task_type, self.task_id, job_variable=VARIABLE)

    async def this_task(self, state: ClusterState | None = None, *, timeout: float | None = None) -> Task:
        """Return the task of the calling process: its job, task index, address and rank.

        It is the one in `$TF_CONFIG`, or the overrides. If neither names a task, the process is identified as
        other resolvers do it: by its host name, and then by an IP address of this machine.

        An evaluator that is not in the cluster is `Task("evaluator", index, "", 0, 0)`.

        Args:
            state: a state that this resolver returned, in which the task is looked up; by default, the
                variable is read.
            timeout: the total deadline of the call, in seconds; the resolver's `timeout` by default.

        Raises:
            UnknownTaskError: (a ValueError) the cluster does not have that task.
            TaskIdentityError: (a RuntimeError) no task is named, and no member or several members match.
            EnvironmentVariableError: (a ValueError and RuntimeError) `$TF_CONFIG` is malformed.
        """
        if self.task_type == EVALUATOR:
            state = await self.cluster_state(timeout=timeout) if state is None else state
            if EVALUATOR not in state.endpoints:
                return Task(EVALUATOR, self.task_id or 0, "", 0, 0)
        return await super().this_task(state, timeout=timeout)


def parse_tf_config(text: str) -> Description:
    """Return what the value of `$TF_CONFIG` says.

    Raises:
        EnvironmentVariableError: it is malformed.
    """
    config = _load(text)
    task_type, task_id = _task(config)
    return Description(
        ClusterState.from_spec(_cluster(config), observed_at=datetime.now(UTC)),
        task_type,
        task_id,
        rpc_layer=_text(config, "rpc_layer", "grpc"),
        session_master=_text(config, "session_master", "grpc://10.0.0.1:2222"),
    )


def _load(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    # RecursionError: thousands of nested brackets.
    except (ValueError, RecursionError) as error:
        reason = "it is empty" if not text.strip() else str(error)
        raise _malformed(f"is not JSON: {reason}") from error
    if not isinstance(config, dict):
        raise _malformed(f"is {_kind(config)}, not an object")
    return config


def _cluster(config: dict[str, Any]) -> ClusterSpec:
    cluster = config.get("cluster", {})
    if not isinstance(cluster, dict):
        raise _malformed(f'is invalid: "cluster" is {_kind(cluster)}, not an object of jobs')
    try:
        return ClusterSpec(cluster)
    except InvalidClusterError as error:
        raise _malformed(f'is invalid: "cluster": {error.summary}') from error


def _task(config: dict[str, Any]) -> tuple[str | None, int | None]:
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise _malformed(f'is invalid: "task" is {_kind(task)}, not an object with "type" and "index"')
    return _task_type(task), _task_index(task)


def _task_type(task: dict[str, Any]) -> str | None:
    if "type" not in task:
        return None
    job = task["type"]
    if isinstance(job, bool) or not isinstance(job, str | int):
        raise _malformed(f'is invalid: the "type" of the task is {_kind(job)}, not a string')
    return job if isinstance(job, str) else shorten(job)


def _task_index(task: dict[str, Any]) -> int | None:
    if "index" not in task:
        return None
    index = task["index"]
    # Some programs write numbers as text, or every number as a float.
    is_digits = isinstance(index, str) and index.isascii() and index.isdigit() and len(index) <= 10
    if is_digits or (isinstance(index, float) and index.is_integer()):
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < 2**31:
        raise _malformed(f'is invalid: the "index" of the task is {shorten(index)}, not an integer from 0')
    return index


def _text(config: dict[str, Any], key: str, example: str) -> str | None:
    value = config.get(key)
    if value is not None and not isinstance(value, str):
        raise _malformed(f'is invalid: "{key}" is {_kind(value)}, not a string such as "{example}"')
    return value


def _kind(value: object) -> str:
    """Return the type of a JSON value, with the value if it is short."""
    kinds = {dict: "an object", list: "an array", str: "the string", bool: "", type(None): ""}
    kind = kinds.get(type(value), "the number")
    if isinstance(value, dict | list):
        return kind
    return f"{kind} {shorten(value) if isinstance(value, str) else json.dumps(value)[:40]}".strip()


def _malformed(problem: str) -> EnvironmentVariableError:
    return reject(
        VARIABLE,
        problem,
        'Set it to JSON such as {"cluster": {"worker": ["10.0.0.1:2222"]}, "task": {"type": "worker",'
        ' "index": 0}}, or unset it.',
    )
