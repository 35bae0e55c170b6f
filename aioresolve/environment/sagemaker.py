"""`SageMakerClusterResolver`: the hosts of an Amazon SageMaker training job.

It follows TensorFlow's `SageMakerClusterResolver`. The variables:
https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
"""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aioresolve._core.validation import validate_port
from aioresolve.errors import ConfigurationError, EnvironmentVariableError, TaskIdentityError
from aioresolve.resolver.launchers import launched_process
from aioresolve.spec import ClusterSpec, ClusterState, host_port

from .base import Description, EnvironmentClusterResolver, reject, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.this_task import TaskClaim

HOSTS, CURRENT_HOST = "SM_HOSTS", "SM_CURRENT_HOST"

GROUPS, GROUP_HOSTS = "SM_INSTANCE_GROUPS", "SM_INSTANCE_GROUPS_DICT"
CURRENT_GROUP, CURRENT_GROUP_HOSTS = "SM_CURRENT_INSTANCE_GROUP", "SM_CURRENT_INSTANCE_GROUP_HOSTS"
TRAINING_GROUPS = "SM_DISTRIBUTION_INSTANCE_GROUPS"
"""Those of a heterogeneous cluster; other training jobs have one group, `homogeneousCluster`."""

JOB = "worker"


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
        super().__init__(
            task_type=task_type,
            task_id=task_id,
            rpc_layer=rpc_layer,
            environment=environment,
            timeout=timeout,
        )
        given: Any = port  # TensorFlow takes the text of a number too
        is_text = isinstance(given, str) and given.isascii() and given.isdigit()
        self._port = validate_port("port", int(given) if is_text else given)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of ${HOSTS}>"

    @property
    def known_jobs(self) -> Sequence[str]:
        """The job `worker`."""
        return [JOB]

    def _read(self) -> Description:
        hosts = _read_hosts(os.environ)
        current = os.environ.get(CURRENT_HOST)
        process = launched_process(os.environ)
        index = hosts.index(current) if current in hosts else None
        placed = [(host, 0) for host in hosts]
        if process is not None and hosts:
            # In every process of `mpirun`, this variable names the host on which `mpirun` runs.
            own = socket.gethostname() if process.launcher.is_mpi else current
            processes = process.place(hosts, own if own in hosts or not process.launcher.is_mpi else None)
            if processes is None:
                raise process.contradicts(f"the cluster has {len(hosts)} hosts (${HOSTS}), and this is {own}")
            placed, index = processes, process.rank
        try:
            addresses = [host_port(host, self._port + number) for host, number in placed]
        except ConfigurationError as error:
            raise _malformed(HOSTS, f"is invalid: {error.summary}") from error
        spec = ClusterSpec({JOB: addresses} if addresses else {})
        state = ClusterState.from_spec(spec, observed_at=datetime.now(UTC))
        return Description(state) if index is None else Description(state, JOB, index)

    async def _claim(self, progress: Progress) -> TaskClaim:
        current = os.environ.get(CURRENT_HOST)
        if current and self.task_id is None:
            raise TaskIdentityError(
                f"${CURRENT_HOST} is {shorten(current)}, of the instance group"
                f" {shorten(os.environ.get(CURRENT_GROUP, ''))} (${CURRENT_GROUP}), but only"
                f" {shorten(os.environ.get(TRAINING_GROUPS))} train (${TRAINING_GROUPS})",
                hint="Start the program on the hosts that train only, or pass {task_type} and {task_id}.",
            )
        return await super()._claim(progress)


def _read_hosts(environ: Mapping[str, str]) -> list[str]:
    """Return the hosts of the cluster; of several groups, those on which SageMaker starts its launchers.

    As `distribution_hosts` does in `environment.py` of SageMaker's training toolkit.
    """
    hosts, current = _parse_hosts(environ), environ.get(CURRENT_HOST)
    if current and current not in hosts:
        problem = f"is {shorten(current)}, which is not in ${HOSTS}: {shorten(hosts)}"
        raise reject(CURRENT_HOST, problem, "Correct one of them, or unset both outside of SageMaker.")
    groups = _read_groups(environ)
    training, group = _parse_names(environ, TRAINING_GROUPS), environ.get(CURRENT_GROUP)
    listed = [host for members in groups.values() for host in members]
    variable = GROUP_HOSTS if groups else CURRENT_GROUP_HOSTS
    listed = listed or _parse_names(environ, variable)
    if listed and sorted(listed) != hosts:
        raise _mismatch(variable, f"has the hosts {shorten(listed)}", f"${HOSTS} has {shorten(hosts)}")
    if not groups or (len(groups) == 1 and not training):
        return hosts
    if group and current and current not in groups.get(group, ()):
        hosts_of_group = f"whose hosts are {shorten(groups.get(group, []))} (${GROUP_HOSTS})"
        raise _mismatch(
            CURRENT_GROUP, f"is {shorten(group)}, {hosts_of_group}", f"${CURRENT_HOST} is {shorten(current)}"
        )
    if not training:
        raise reject(
            TRAINING_GROUPS,
            f"does not say which of the groups {shorten(list(groups))} (${GROUPS}) are the cluster",
            f"Set it to a JSON array of their names, such as {json.dumps([group or list(groups)[-1]])}.",
        )
    if unknown := sorted(set(training) - groups.keys()):
        raise _mismatch(
            TRAINING_GROUPS, f"has {shorten(unknown[0])}", f"${GROUPS} has {shorten(list(groups))}"
        )
    return [host for name, members in groups.items() if name in training for host in members]


def _read_groups(environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the hosts of each instance group, in the order of `$SM_INSTANCE_GROUPS`."""
    names = _parse_names(environ, GROUPS)
    groups = _load(environ, GROUP_HOSTS) if environ.get(GROUP_HOSTS) else {}
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        raise _malformed(GROUP_HOSTS, "is not an object of instance groups")
    if sorted(names) != sorted(groups):
        raise _mismatch(
            GROUP_HOSTS, f"has the groups {shorten(list(groups))}", f"${GROUPS} has {shorten(names)}"
        )
    return {name: _validate_names(GROUP_HOSTS, groups[name].get("hosts")) for name in names}


def _parse_hosts(environ: Mapping[str, str]) -> list[str]:
    if HOSTS not in environ:
        raise reject(
            HOSTS,
            "is not set",
            "Run this in a SageMaker training job, or set it to a JSON array of host names.",
        )
    return sorted(_parse_names(environ, HOSTS))


def _parse_names(environ: Mapping[str, str], variable: str) -> list[str]:
    return _validate_names(variable, _load(environ, variable)) if environ.get(variable) else []


def _validate_names(variable: str, names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise _malformed(
            variable, f"is not an array of {_kind(variable)} names: {shorten(json.dumps(names))}"
        )
    if repeated := [name for name, number in Counter(names).items() if number > 1]:
        raise _malformed(variable, f"has the {_kind(variable)} {shorten(repeated[0])} more than once")
    try:
        "".join(names).encode()
    except UnicodeError as error:
        raise _malformed(variable, f"is invalid: a name is not valid Unicode: {error}") from error
    return names


def _load(environ: Mapping[str, str], variable: str) -> Any:
    try:
        return json.loads(environ[variable])
    except (ValueError, RecursionError) as error:
        raise _malformed(variable, f"is not JSON: {error}") from error


def _kind(variable: str) -> str:
    return "group" if variable in (GROUPS, TRAINING_GROUPS) else "host"


def _malformed(variable: str, problem: str) -> EnvironmentVariableError:
    example = '["algo-1", "algo-2"]' if variable == HOSTS else "SageMaker's"
    return reject(variable, problem, f"Set it to JSON such as {example}.")


def _mismatch(variable: str, problem: str, other: str) -> EnvironmentVariableError:
    return reject(
        variable, f"{problem}, but {other}", "Correct one of them, or unset both outside of SageMaker."
    )
