"""The metadata attributes of a TPU VM: parses their text into values. No I/O.

Formats: `tpu-env` and `worker-network-endpoints`, as found on TPU VMs and as JAX reads them
(`jax/_src/clusters/cloud_tpu_cluster.py`). VMs that were created through Compute Engine have names with the
prefix `TPU_`, such as `TPU_ACCELERATOR_TYPE`, in `tpu-env`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aioresolve.errors import Hint, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aioresolve.errors import ResolveError

_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:\s*(.*?)\s*")
_HOSTNAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_NUMBER = re.compile(r"[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class TPUEnvironment:
    """What variables of a process, or `tpu-env` of a TPU VM, report about a slice; None for the rest.

    Attributes:
        accelerator_type: such as `v4-256`.
        topology: chips of the slice in each dimension, such as `4x4x8`.
        chips_per_host_bounds: chips of one host in each dimension, such as `(2, 2, 1)`.
        host_bounds: hosts of the slice in each dimension, such as `(2, 2, 8)`.
        process_bounds: processes of the slice in each dimension.
        worker_id: the index of this VM in the slice, from 0.
        runtime_metrics_ports: the ports of libtpu's metrics, one for each process.
        node_id: the id of the TPU node.
        slice_index: the index of the slice in a multislice, from 0.
        num_slices: the number of slices of a multislice.
        coordinator: `MEGASCALE_COORDINATOR_ADDRESS`: the host of the first worker of the first slice, perhaps
            with a port.
    """

    accelerator_type: str | None = None
    topology: str | None = None
    chips_per_host_bounds: tuple[int, ...] | None = None
    host_bounds: tuple[int, ...] | None = None
    process_bounds: tuple[int, ...] | None = None
    worker_id: int | None = None
    runtime_metrics_ports: tuple[int, ...] = ()
    node_id: str | None = None
    slice_index: int | None = None
    num_slices: int | None = None
    coordinator: str | None = None


def parse_tpu_env(text: str) -> TPUEnvironment:
    """Return the values in `tpu-env`, which has lines such as `ACCELERATOR_TYPE: 'v4-256'`.

    Other lines are skipped, as in JAX.

    Raises:
        ProtocolError: no line has that form, or a number is malformed.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    values = {match[1]: match[2].strip("'\"") for line in lines if (match := _LINE.fullmatch(line))}
    if lines and not values:
        # Not an environment with a line that is unknown here, but something else.
        raise _malformed("tpu-env", f"line 1 {lines[0][:60]!r} is not \"NAME: 'value'\"")
    environment = tpu_environment(
        {name.removeprefix("TPU_"): value for name, value in values.items()},
        lambda name, problem: _malformed("tpu-env", f"{name}: {problem}"),
    )
    node_id = values.get("NODE_ID", "")
    # VMs that were created through Compute Engine have a number, but ids start with a letter.
    return replace(environment, node_id=None if _NUMBER.fullmatch(node_id) else node_id or None)


def tpu_environment(
    values: Mapping[str, str], malformed: Callable[[str, str], ResolveError]
) -> TPUEnvironment:
    """Return what variables report about a slice.

    Args:
        values: the variables, without the prefix `TPU_`.
        malformed: returns the error for a variable, given its name and the problem with its value.
    """

    def numbers(name: str) -> tuple[int, ...] | None:
        value = values.get(name, "").strip()
        parts = [part.strip() for part in value.removesuffix(",").split(",")]
        if value and not all(map(_NUMBER.fullmatch, parts)):
            raise malformed(name, f"{value!r} is not a comma-separated list of numbers")
        return tuple(map(int, parts)) if value else None

    def number(name: str) -> int | None:
        value = values.get(name, "").strip()
        if value and _NUMBER.fullmatch(value) is None:
            raise malformed(name, f"{value!r} is not a number from 0")
        return int(value) if value else None

    return TPUEnvironment(
        accelerator_type=values.get("ACCELERATOR_TYPE") or None,
        topology=values.get("TOPOLOGY") or None,
        chips_per_host_bounds=numbers("CHIPS_PER_HOST_BOUNDS"),
        host_bounds=numbers("HOST_BOUNDS"),
        process_bounds=numbers("PROCESS_BOUNDS"),
        worker_id=number("WORKER_ID"),
        runtime_metrics_ports=numbers("RUNTIME_METRICS_PORTS") or (),
        slice_index=number("MEGASCALE_SLICE_ID"),
        num_slices=number("MEGASCALE_NUM_SLICES"),
        coordinator=values.get("MEGASCALE_COORDINATOR_ADDRESS", "").strip() or None,
    )


def parse_worker_hosts(text: str) -> tuple[str, ...]:
    """Return the host of each worker in `worker-network-endpoints`, by index, IPv6 without brackets.

    The attribute has one of two forms, both comma-separated: hosts, or triples `name:id:address`. An entry
    that is a valid IPv6 address as a whole is read as one.

    Raises:
        ProtocolError: there is no entry, or one has another form.
    """
    return tuple(_host(entry.strip(), position) for position, entry in enumerate(text.split(",")))


def parse_worker_number(text: str) -> int:
    """Return the number in `agent-worker-number`.

    Raises:
        ProtocolError: it is not a number from 0.
    """
    if _NUMBER.fullmatch(text) is None:
        raise _malformed("agent-worker-number", f"{text[:80]!r} is not a number from 0")
    return int(text)


def _host(entry: str, position: int) -> str:
    # First as an address: an IPv6 address also looks like a triple separated by colons.
    triple = entry.split(":", 2)
    for text in (entry, triple[2] if len(triple) == 3 and triple[0] and triple[1] else ""):
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        if _is_ip_address(bare):
            return bare
        if _HOSTNAME.fullmatch(text):
            return text
    raise _malformed(
        "worker-network-endpoints",
        f"entry {position} {entry[:80]!r} is neither a host nor name:id:address",
    )


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _malformed(attribute: str, reason: str) -> ProtocolError:
    return ProtocolError(
        f"invalid metadata attribute {attribute}: {reason}",
        hint=Hint(
            "Check it with `curl -H 'Metadata-Flavor: Google'"
            f" http://metadata.google.internal/computeMetadata/v1/instance/attributes/{attribute}`,"
            " or pass the addresses of the workers as {tpu}."
        ),
        host="http://metadata.google.internal",
        scope=f"instance/attributes/{attribute}",
    )
