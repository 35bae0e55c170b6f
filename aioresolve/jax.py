"""A JAX cluster environment: after `import aioresolve.jax`, `jax.distributed.initialize()` needs no argument.

    import aioresolve.jax
    import jax

    jax.distributed.initialize()

It works in two places, and has no effect elsewhere:

- Under `aioresolve exec --for jax`, which sets `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
  `JAX_PROCESS_ID`. JAX reads only the first of them itself.
- In a pod, with one process per pod. The processes are the pods of the same Job, JobSet (replicated job),
  LeaderWorkerSet (group), StatefulSet, Kubeflow job or Volcano Job, in the order of their indices.
  `initialize()` waits for all of them within its `initialization_timeout`, and fails if one of them has ended
  with success already: the others could not connect to it.

In a pod, these variables matter:

- `AIORESOLVE_COUNT`: the number of processes; by default, that of the controller, if it may be read
  (docs/permissions.md).
- `AIORESOLVE_SELECTOR`: the label selector of the pods, instead of those of the same workload. They must have
  indices, and be in the namespace of this pod.
- `JAX_COORDINATOR_PORT`: the port on which process 0 runs the coordinator; 55527 by default, as in JAX.
- `POD_NAME` and `POD_UID`, of the downward API, identify the pod where its IP address does not: with
  `hostNetwork`.

The service account of the pod must be permitted to list and watch pods (docs/permissions.md).

JAX uses the first environment that is present. This one comes after Open MPI, Slurm and Cloud TPU, and before
JAX's own support for Kubernetes. `jax.distributed.initialize(cluster_detection_method="aioresolve")` selects
it before all others.

Raises:
    MissingDependencyError: (an ImportError) on import: JAX is not installed, or its interface for cluster
        environments, which is not public, has changed.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from aioresolve import launch
from aioresolve._core.deadline import Deadline, within_deadline
from aioresolve._core.service_account import is_in_pod
from aioresolve.environment.detection import choose, examine_pod
from aioresolve.errors import ConfigurationError, MissingDependencyError
from aioresolve.resolver.completeness import validate_condition
from aioresolve.spec.observation import Want
from aioresolve.sync.loop_thread import get_loop_thread

try:
    import jax
except ImportError as error:
    raise MissingDependencyError(
        f"aioresolve.jax needs JAX, which is not installed ({error})", hint="Run `pip install jax`."
    ) from error

try:
    from jax._src.clusters.cluster import ClusterEnv

    _environments: list[type[Any]] = ClusterEnv._cluster_types
except (ImportError, AttributeError) as error:
    raise MissingDependencyError(
        f"aioresolve.jax does not support JAX {jax.__version__}: {error}",
        hint="Install another release of JAX (0.10.2 works), or pass the arguments of"
        " jax.distributed.initialize().",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AioresolveCluster"]

DEFAULT_PORT = 55527
"""The port of the coordinator, that of JAX's own support for Kubernetes."""

DEFAULT_TIMEOUT = 300
"""Seconds. The `initialization_timeout` of JAX, which JAX does not pass if it has a coordinator address."""

COUNT, ID = "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"


class AioresolveCluster(ClusterEnv):
    """The cluster environment; JAX calls its methods."""

    name: str = "aioresolve"

    # JAX calls the three methods one after another; all results must describe one state of the cluster.
    _found: Mapping[str, str] | None = None

    @classmethod
    def is_env_present(cls) -> bool:
        """Whether `aioresolve exec --for jax` started this process, or it runs in a pod."""
        return _is_started_by_exec() or is_in_pod()

    @classmethod
    def get_coordinator_address(cls, timeout_secs: int | None, override_coordinator_port: str | None) -> str:
        """Return `host:port` of process 0, after waiting for all processes at most `timeout_secs` seconds."""
        if _is_started_by_exec():
            raise ConfigurationError(
                f"${COUNT} and ${ID} are set, but JAX_COORDINATOR_ADDRESS is not",
                hint="Set it to host:port of process 0, or start the program by `aioresolve exec --for jax`.",
            )
        cls._found = _resolve(timeout_secs)
        return cls._found["JAX_COORDINATOR_ADDRESS"]

    @classmethod
    def get_process_count(cls) -> int:
        """Return the number of processes."""
        return _number(COUNT, cls._variables())

    @classmethod
    def get_process_id(cls) -> int:
        """Return the number of this process: the rank of its pod."""
        return _number(ID, cls._variables(), minimum=0)

    @classmethod
    def _variables(cls) -> Mapping[str, str]:
        if _is_started_by_exec():
            return os.environ
        if cls._found is None:  # the caller of initialize() passed a coordinator address
            cls._found = _resolve(None)
        return cls._found


# JAX has appended it to its list, behind its own support for Kubernetes.
_environments[:] = [each for each in _environments if each.name != AioresolveCluster.name]
_names = [each.__name__ for each in _environments]
_environments.insert(_names.index("K8sCluster") if "K8sCluster" in _names else len(_names), AioresolveCluster)


def _is_started_by_exec() -> bool:
    return COUNT in os.environ or ID in os.environ


def _resolve(timeout: float | None) -> Mapping[str, str]:
    port = DEFAULT_PORT
    if os.environ.get("JAX_COORDINATOR_PORT"):
        port = _number("JAX_COORDINATOR_PORT", os.environ, maximum=65535)
    return get_loop_thread().run(partial(_wait_for_processes, port, timeout or DEFAULT_TIMEOUT))


async def _wait_for_processes(port: int, timeout: float) -> Mapping[str, str]:
    """Return the variables of `launch.jax` for this process, once all of its processes are there."""
    deadline = Deadline.after(timeout)
    examine = partial(examine_pod, port=port)
    _, found = await within_deadline(timeout, "the lookup of the pod of this process", examine)
    if not found.found:
        raise ConfigurationError(
            found.reason,
            hint="Set AIORESOLVE_SELECTOR to a label selector of the pods, and AIORESOLVE_COUNT to their"
            " number, in the pod template.",
        )
    found, new_resolver = choose([found])
    resolver = new_resolver(order_by="index")
    if os.environ.get("AIORESOLVE_COUNT"):
        count = _number("AIORESOLVE_COUNT", os.environ)
    else:
        observe = partial(resolver._call_observe, Want(sizes=True))
        observation = await within_deadline(deadline.next_timeout, "the number of processes", observe)
        if (expected := observation.expected.get("worker")) is None:
            raise ConfigurationError(
                f"the number of processes is not known ({found.reason}): no controller states it, or it may"
                " not be read",
                hint="Set AIORESOLVE_COUNT in the pod template, or let the service account get the"
                " controller.",
            )
        count = expected.number
    # Pods may become ready only after their processes have found one another.
    condition = validate_condition(count, None, False, False, 0.0, needs_all=True)
    state = await resolver._wait(condition, timeout=deadline.next_timeout, interval=30.0)
    return launch.jax(state, await resolver.this_task(state, timeout=deadline.next_timeout))


def _number(variable: str, variables: Mapping[str, str], *, minimum: int = 1, maximum: int = 999_999) -> int:
    text = variables.get(variable, "")
    if text.isascii() and text.isdigit() and minimum <= int(text) <= maximum:
        return int(text)
    found = f"is {text!r}, not a number from {minimum} to {maximum}" if text else "is not set"
    by_exec = ", or start the program by `aioresolve exec --for jax`" if variable in (COUNT, ID) else ""
    raise ConfigurationError(f"${variable} {found}", hint=f"Correct {variable}{by_exec}.")
