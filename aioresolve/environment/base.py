"""The base class of the resolvers that read the cluster and the task of this process from variables."""

from __future__ import annotations

import abc
import re
import reprlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, EnvironmentVariableError, UnknownTaskError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import Observation, host_port

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioresolve._core.deadline import Progress
    from aioresolve.errors import Hint
    from aioresolve.spec import ClusterState
    from aioresolve.spec.observation import Want


@dataclass(frozen=True, slots=True)
class Description:
    """What variables say about a cluster and the task of this process; None for what they do not say.

    Attributes:
        state: the cluster.
        task_type: the job of this process.
        task_id: the task index of this process in that job.
        rpc_layer: the protocol of the tasks, such as `"grpc"`.
        session_master: the result of `master()`, if it does not depend on the task.
    """

    state: ClusterState
    task_type: str | None = None
    task_id: int | None = None
    rpc_layer: str | None = None
    session_master: str | None = None


class EnvironmentClusterResolver(ClusterResolver):
    """Resolves a cluster that environment variables describe. Every call and every property reads them again.

    The arguments override what the variables say; see `TFConfigClusterResolver`.
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
        super().__init__(task_type=task_type, rpc_layer=rpc_layer, timeout=timeout)
        self.task_id = task_id  # pyright: ignore[reportIncompatibleVariableOverride]
        self._environment = environment or ""

    @abc.abstractmethod
    def _read(self) -> Description:
        """Return what the variables say now; an EnvironmentVariableError if they are invalid."""

    def _default(self, name: str) -> Any:
        return getattr(self._read(), name)

    @property
    def task_id(self) -> int | None:
        """The task index of this process: the override, or else as the variables say. Can be set."""
        return self._read().task_id if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        given: Any = task_id
        # TensorFlow converts it, so that the text of a variable works too.
        if isinstance(given, str) and re.fullmatch("[0-9]{1,10}", given):
            given = int(given)
        if given is not None and (type(given) is not int or given < 0):
            raise ConfigurationError(f"{shorten(task_id)} is not an integer from 0", argument="task_id")
        self._task_id = given

    @property
    def environment(self) -> str:
        """The `environment` given to the constructor; an empty string by default."""
        return self._environment

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Return the cluster that the variables describe now."""
        return Observation(self._read().state)

    async def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        *,
        timeout: float | None = None,
    ) -> str:
        """Return `rpc_layer://host:port` of one task, as `ClusterResolver.master`.

        As in TensorFlow, it is `""` if the cluster has at most one task, at index 0, and the session master
        if the variables give one; and with an empty `rpc_layer` the bare address.

        Raises:
            UnknownTaskError: (a ValueError) the cluster has no such task, or no task is given.
            EnvironmentVariableError: (a RuntimeError) the variables are invalid.
        """
        self._deadline(timeout)  # raises if it is invalid
        description = self._read()
        if description.session_master is not None:
            return description.session_master
        spec = description.state.spec
        if len(spec.jobs) <= 1 and all(spec.task_indices(job) in ([], [0]) for job in spec.jobs):
            return ""
        if found := await super().master(task_type, task_id, rpc_layer, timeout=timeout):
            return found.removeprefix(f"{self.rpc_layer}://") if rpc_layer == "" else found
        raise UnknownTaskError(
            f"the environment does not say which task of jobs {spec.jobs} this process is",
            hint="Pass {task_type} and {task_id}.",
        )


def reject(variable: str, problem: str, hint: Hint | str | None) -> EnvironmentVariableError:
    """Return the error for an environment variable; `problem` follows its name in the summary."""
    return EnvironmentVariableError(f"${variable} {problem}", variable=variable, hint=hint)


def shorten(value: object) -> str:
    """Return a value of a variable as text of limited length."""
    return reprlib.repr(value)


def counted(number: int, thing: str) -> str:
    """Return a number of things as text: `2 processes`."""
    plural = f"{thing}es" if thing.endswith("s") else f"{thing}s"
    return f"{number} {thing if number == 1 else plural}"


def addresses_by_rank(hosts: Iterable[str], first_port: int) -> list[str]:
    """Return `host:port` of each task, for its host: the first task of a host has the first port.

    Raises:
        ConfigurationError: a host is invalid, or a port is above 65535.
    """
    started = Counter[str]()
    addresses = []
    for host in hosts:
        addresses.append(host_port(host, first_port + started[host]))
        started[host] += 1
    return addresses
