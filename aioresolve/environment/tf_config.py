"""`TFConfigClusterResolver`: the cluster that the environment variable `TF_CONFIG` describes.

It follows `tf.distribute.cluster_resolver.TFConfigClusterResolver`. The format:
https://www.tensorflow.org/guide/distributed_training#set_up_tf_config_environment_variable
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from aioresolve.errors import EnvironmentVariableError, InvalidClusterError
from aioresolve.launch import EVALUATOR
from aioresolve.resolver.this_task import TaskClaim
from aioresolve.spec import ClusterSpec, ClusterState, Task

from .base import Description, EnvironmentClusterResolver, counted, reject
from .detection import Evidence, absent, invalid

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

VARIABLE = "TF_CONFIG"


class _Task(msgspec.Struct, frozen=True):
    type: str | int | None = None
    index: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None


class _Config(msgspec.Struct, frozen=True):
    """The value of `$TF_CONFIG`. Other fields are ignored."""

    cluster: dict[str, Any] = {}
    task: _Task = _Task()
    rpc_layer: str | None = None
    session_master: str | None = None


class TFConfigClusterResolver(EnvironmentClusterResolver):
    """Resolves the cluster that `$TF_CONFIG` describes.

    >>> cluster, task = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, {"type": "worker", "index": 1}
    >>> os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    >>> await TFConfigClusterResolver().this_task()
    Task(job='worker', index=1, address='10.0.0.2:2222', rank=1, num_tasks=2)

    `$TF_CONFIG` is a JSON object with the keys `cluster` (jobs to lists of addresses, or to objects of task
    index to address), `task` (`type` and `index`), `rpc_layer` and `session_master`; others are ignored.
    Without the variable, the cluster is empty. Every call and every property reads it again.

    If neither the variable nor an override names a task, `this_task()` identifies the process as other
    resolvers do: by its host name, and then by an IP address of this machine. An evaluator need not be in the
    cluster: it is then `Task("evaluator", index, "", 0, 0)`.

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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ${VARIABLE}>"

    def _read(self) -> Description:
        return parse_tf_config(os.environ.get(VARIABLE, "{}"))

    async def _claim(self, progress: Progress) -> TaskClaim:
        return TaskClaim(self.task_type, self.task_id, job_variable=VARIABLE)

    async def _identify(self, state: ClusterState, progress: Progress) -> Task:
        if self.task_type == EVALUATOR and EVALUATOR not in state.endpoints:
            return Task(EVALUATOR, self.task_id or 0, "", 0, 0)
        return await super()._identify(state, progress)


def examine(_: int | None) -> Evidence:
    """Return whether `$TF_CONFIG` describes tasks."""
    text = os.environ.get(VARIABLE)
    if not text:
        return absent(VARIABLE, f"${VARIABLE} is not set")
    try:
        spec = parse_tf_config(text).state.spec
    except EnvironmentVariableError as error:
        return invalid(VARIABLE, error)
    if not spec.tasks:
        return absent(VARIABLE, f"${VARIABLE} has no tasks")
    sizes = ", ".join(f"{counted(spec.num_tasks(job), 'task')} of {job}" for job in spec.jobs)
    return Evidence(VARIABLE, True, f"${VARIABLE} has {sizes}", TFConfigClusterResolver)


def parse_tf_config(text: str) -> Description:
    """Return what the value of `$TF_CONFIG` says.

    Raises:
        EnvironmentVariableError: it is malformed.
    """
    try:
        # Some programs write numbers as text, or every number as a float.
        config = msgspec.json.decode(text, type=_Config, strict=False)
        spec = ClusterSpec(config.cluster)
    except InvalidClusterError as error:
        raise _malformed(f"is invalid: `$.cluster`: {error.summary}") from error
    except msgspec.ValidationError as error:
        raise _malformed(f"is invalid: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(f"is not JSON: {error if text.strip() else 'it is empty'}") from error
    return Description(
        ClusterState.from_spec(spec, observed_at=datetime.now(UTC)),
        None if config.task.type is None else str(config.task.type),
        config.task.index,
        rpc_layer=config.rpc_layer,
        session_master=config.session_master,
    )


def _malformed(problem: str) -> EnvironmentVariableError:
    return reject(
        VARIABLE,
        problem,
        'Set it to JSON such as {"cluster": {"worker": ["10.0.0.1:2222"]}, "task": {"type": "worker",'
        ' "index": 0}}, or unset it.',
    )
