"""The GPUs of a Slurm task: how many there are, and which of them this task uses.

The meaning of `CUDA_VISIBLE_DEVICES`:
https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#cuda-environment-variables
What Slurm sets: https://slurm.schedmd.com/gres.html#Running_Jobs
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from aioresolve.environment.base import reject, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

OTHER_VISIBLE_DEVICES = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "SLURM_STEP_GPUS")
"""What names the devices of a task on AMD's and Intel's GPUs, and on all."""

DRIVER_FOLDER = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver has a folder there for each GPU of the machine."""

MAX_GPUS = 1024

_REQUEST = re.compile(r"(?:[A-Za-z0-9._-]+:)*([0-9]{1,6})")

# What this process set, and the value before: later calls read the latter, as if it had not been changed.
_assigned: tuple[str, str | None] | None = None


def assign_gpus(devices: str) -> None:
    """Set `$CUDA_VISIBLE_DEVICES` of this process."""
    global _assigned
    before = _initial_value(os.environ)
    os.environ[VISIBLE_DEVICES] = devices
    _assigned = (devices, before)


def gpus_of_node(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs that the step has on this node; 0 without GPUs.

    The first of these that is known: `$SLURM_GPUS_ON_NODE`, `$SLURM_GPUS_PER_NODE`, `$SLURM_STEP_GPUS`,
    `$CUDA_VISIBLE_DEVICES`, the GPUs of NVIDIA's driver.

    Raises:
        EnvironmentVariableError: the variable is malformed.
    """
    for variable in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if environ.get(variable):
            return _requested(environ, variable)
    if environ.get("SLURM_STEP_GPUS"):
        return len(environ["SLURM_STEP_GPUS"].split(","))
    devices = visible_devices(environ)
    return _installed_gpus() if devices is None else len(devices)


def bound_gpus(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that Slurm, or its user, has bound this task to.

    None if the task sees those of all tasks of the node, or nothing is known.

    Raises:
        EnvironmentVariableError: `$SLURM_GPUS_ON_NODE` is malformed.
    """
    devices = visible_devices(environ)
    if devices is None:
        other = next((environ[name] for name in OTHER_VISIBLE_DEVICES if environ.get(name)), None)
        if other is None:
            return None
        devices = other.split(",")
    # The text is that of `--gpu-bind`, such as `gpu:single:1`.
    binding = environ.get("SLURMD_TRES_BIND", "")
    is_bound = not devices or re.search("gpu:(?!(verbose,)?none)", binding) is not None
    if not is_bound and environ.get("SLURM_GPUS_ON_NODE"):
        is_bound = len(devices) < _requested(environ, "SLURM_GPUS_ON_NODE")
    return len(devices) if is_bound else None


def gpus_per_task(environ: Mapping[str, str]) -> int | None:
    """Return the number of GPUs that was requested for each task; None if none was requested.

    Raises:
        EnvironmentVariableError: `$SLURM_GPUS_PER_TASK` is malformed.
    """
    return _requested(environ, "SLURM_GPUS_PER_TASK") if environ.get("SLURM_GPUS_PER_TASK") else None


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """Return the devices that CUDA uses; None for all of them, which is the default."""
    value = _initial_value(environ)
    if value is None:
        return None
    devices = [device.strip() for device in value.split(",")]
    # CUDA ignores an invalid device and all after it. Slurm writes NoDevFiles for no device.
    invalid = (number for number, device in enumerate(devices) if device in ("", "-1", "NoDevFiles"))
    return devices[: next(invalid, len(devices))]


def devices_of_task(environ: Mapping[str, str], local_id: int, tasks_on_node: int, number: int) -> str | None:
    """Return the devices of the task at that position of its node, as text; None if they must not be changed.

    Args:
        environ: the environment variables.
        local_id: the position of the task on its node.
        tasks_on_node: the number of tasks of the node.
        number: the GPUs of each task.
    """
    if not number:
        return None
    visible = visible_devices(environ)
    first, end = local_id * number, (local_id + 1) * number
    if not visible:  # TensorFlow too replaces an empty variable by the devices of its arguments
        visible = [str(index) for index in range(end)]
    elif bound_gpus(environ) is not None or len(visible) < tasks_on_node * number:
        return None  # these are not the devices of the whole node
    return ",".join(visible[first:end])


def _requested(environ: Mapping[str, str], variable: str) -> int:
    """Return a number of GPUs as options of Slurm have it: `4`, `a100:4`, or `a100:2,v100:2`."""
    total = 0
    for part in environ[variable].split(","):
        match = _REQUEST.fullmatch(part)
        total += int(match[1]) if match else MAX_GPUS + 1
    if total > MAX_GPUS:
        raise reject(
            variable,
            f"is {shorten(environ[variable])}, not a number of GPUs such as 4 or a100:4",
            "Correct it, or pass {gpus_per_node} and {gpus_per_task}.",
        )
    return total


def _initial_value(environ: Mapping[str, str]) -> str | None:
    value = environ.get(VISIBLE_DEVICES)
    return _assigned[1] if _assigned is not None and value == _assigned[0] else value


def _installed_gpus() -> int:
    try:
        return len(os.listdir(DRIVER_FOLDER))
    except OSError:
        return 0
