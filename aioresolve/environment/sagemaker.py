"""`SageMakerClusterResolver`: the hosts of an Amazon SageMaker training job.

It follows TensorFlow's `SageMakerClusterResolver`. The variables:
https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from aioresolve._core.validation import validate_port
from aioresolve.errors import ConfigurationError, EnvironmentVariableError
from aioresolve.resolver.launchers import launched_process
from aioresolve.spec import ClusterSpec, ClusterState, split_host_port

from .base import Description, EnvironmentClusterResolver, addresses_by_rank, counted, reject, shorten
from .detection import Evidence, absent, given, invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

HOSTS, CURRENT_HOST = "SM_HOSTS", "SM_CURRENT_HOST"

GROUPS, GROUP_HOSTS = "SM_INSTANCE_GROUPS", "SM_INSTANCE_GROUPS_DICT"
TRAINING_GROUPS = "SM_DISTRIBUTION_INSTANCE_GROUPS"
"""Only heterogeneous clusters have it; other training jobs have one group, `homogeneousCluster`."""

JOB = "worker"

T = TypeVar("T")


class _Group(msgspec.Struct, frozen=True):
    """One group of `$SM_INSTANCE_GROUPS_DICT`."""

    hosts: list[str]


class SageMakerClusterResolver(EnvironmentClusterResolver):
    """Resolves the hosts of an Amazon SageMaker training job: one worker on each.

    >>> os.environ["SM_HOSTS"], os.environ["SM_CURRENT_HOST"] = '["algo-1","algo-2"]', "algo-2"
    >>> await SageMakerClusterResolver().this_task()
    Task(job='worker', index=1, address='algo-2:2223', rank=1, num_tasks=2)

    `$SM_HOSTS` lists the hosts as JSON; `$SM_CURRENT_HOST` is the one on which this process runs. Workers are
    ordered as SageMaker orders them: by the text of their host names. In a heterogeneous cluster they are the
    hosts of the groups in `$SM_DISTRIBUTION_INSTANCE_GROUPS`. Where SageMaker starts the program by `mpirun`
    or `torchrun`, each of their processes is a worker, with the number that the launcher gave it. Every call
    and every property reads the variables again.

    Args:
        port: the port of each worker; of the first one on each host if there are several.
        task_type: overrides the job of this process.
        task_id: overrides the task index of this process.
        rpc_layer: the protocol of the workers, such as `"grpc"`.
        environment: the value of the `environment` property.
        timeout: the default total deadline of a call, in seconds.

    Raises:
        ConfigurationError: (a ValueError) an argument is invalid. Calls and properties raise an
            EnvironmentVariableError (a ValueError and RuntimeError) if a variable is missing or malformed.
    """

    def __init__(
        self,
        port: int = 2223,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        *,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(task_type, task_id, rpc_layer, environment, timeout=timeout)
        self._port = validate_port("port", port)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ${HOSTS}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The job `worker`."""
        return [JOB]

    def _read(self) -> Description:
        hosts = _read_hosts()
        current = os.environ.get(CURRENT_HOST)
        process = launched_process(os.environ)
        index = hosts.index(current) if current in hosts else None
        if process is not None and hosts:
            # In every process of `mpirun`, this variable names the host on which `mpirun` runs.
            own = socket.gethostname() if process.launcher.is_mpi else current
            placed = process.place(hosts, own if own in hosts or not process.launcher.is_mpi else None)
            if placed is None:
                raise process.contradicts(f"the cluster has {len(hosts)} hosts (${HOSTS}), and this is {own}")
            hosts, index = placed, process.rank
        try:
            addresses = addresses_by_rank(hosts, self._port)
        except ConfigurationError as error:
            raise reject(HOSTS, f"is invalid: {error.summary}", error.hint) from error
        state = ClusterState.from_spec(
            ClusterSpec({JOB: addresses} if addresses else {}), observed_at=datetime.now(UTC)
        )
        return Description(state) if index is None else Description(state, JOB, index)


def examine(port: int | None) -> Evidence:
    """Return whether `$SM_HOSTS` has hosts; `port` is that of each task."""
    if not os.environ.get(HOSTS):
        return absent("SageMaker", f"${HOSTS} is not set")
    try:
        tasks = SageMakerClusterResolver()._read().state.tasks
    except EnvironmentVariableError as error:
        return invalid("SageMaker", error)
    if not tasks:
        return absent("SageMaker", f"${HOSTS} has no hosts")
    number = len({split_host_port(task.address)[0] for task in tasks})
    processes = f" with {counted(len(tasks), 'process')}" if len(tasks) > number else ""
    reason = f"${HOSTS} has {counted(number, 'host')}{processes}"
    return Evidence("SageMaker", True, reason, partial(SageMakerClusterResolver, **given("port", port)))


def _read_hosts() -> list[str]:
    """Return the hosts of the cluster; of several groups, those on which SageMaker starts its launchers.

    As `distribution_hosts` does in `environment.py` of SageMaker's training toolkit.
    """
    if HOSTS not in os.environ:
        hint = "Run this in a SageMaker training job, or set it to a JSON array of host names."
        raise reject(HOSTS, "is not set", hint)
    hosts = sorted(_decode(HOSTS, list[str]) or [])
    current = os.environ.get(CURRENT_HOST)
    if current and current not in hosts:
        problem = f"is {shorten(current)}, which is not in ${HOSTS}: {shorten(hosts)}"
        raise reject(CURRENT_HOST, problem, "Correct one of them, or unset both outside of SageMaker.")
    groups, training = _decode(GROUP_HOSTS, dict[str, _Group]) or {}, _decode(TRAINING_GROUPS, list[str])
    if not groups or (len(groups) == 1 and not training):
        return hosts
    known = [name for name in _decode(GROUPS, list[str]) or groups if name in groups]
    unknown = [name for name in training or () if name not in known]
    groups_known = f"the groups {shorten(known)} (${GROUPS})"
    hint = "Set it to a JSON array of the names of the groups that train."
    if not training:
        raise reject(TRAINING_GROUPS, f"does not say which of {groups_known} are the cluster", hint)
    if unknown:
        raise reject(TRAINING_GROUPS, f"has {shorten(unknown[0])}, which is not one of {groups_known}", hint)
    return [host for name in known if name in training for host in groups[name].hosts]


def _decode(variable: str, kind: type[T]) -> T | None:
    """Return the value of a variable that has JSON; None if it is not set or empty."""
    text = os.environ.get(variable)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (ValueError, RecursionError) as error:
        problem = f"is {shorten(text)}, not the JSON that SageMaker writes: {error}"
        example = ' such as ["algo-1", "algo-2"]' if variable == HOSTS else ""
        raise reject(variable, problem, f"Set it to JSON{example}.") from error
