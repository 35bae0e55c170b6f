"""The metadata attributes of a TPU VM: parses their text into values. No I/O.

Formats: `tpu-env` and `worker-network-endpoints`, as found on TPU VMs and as JAX reads them
(`jax/_src/clusters/cloud_tpu_cluster.py`). VMs that were created through Compute Engine have names with the
prefix `TPU_`, such as `TPU_ACCELERATOR_TYPE`, in `tpu-env`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from aioresolve.errors import Hint, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:\s*(.*)")
_HOSTNAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


@dataclass(frozen=True, slots=True)
class TPUEnvironment:
    """The attribute `tpu-env` of a TPU VM. Values that it does not contain are None.

    Attributes:
        accelerator_type: such as `v4-256`.
        topology: chips of the slice in each dimension, such as `4x4x8`.
        chips_per_host_bounds: chips of one host in each dimension, such as `(2, 2, 1)`.
        host_bounds: hosts of the slice in each dimension, such as `(2, 2, 8)`.
        worker_id: the index of this VM in the slice, from 0.
        runtime_metrics_ports: the ports of libtpu's metrics, one for each process.
        zone: such as `us-central2-b`.
        node_id: the id of the TPU node.
        slice_index: the index of the slice in a multislice, from 0.
        num_slices: the number of slices of a multislice.
        coordinator: `MEGASCALE_COORDINATOR_ADDRESS`: the host of the first worker of the first slice, perhaps
            with a port.
        values: all lines that are `NAME: 'value'`, name to value.
    """

    accelerator_type: str | None = None
    topology: str | None = None
    chips_per_host_bounds: tuple[int, ...] | None = None
    host_bounds: tuple[int, ...] | None = None
    worker_id: int | None = None
    runtime_metrics_ports: tuple[int, ...] = ()
    zone: str | None = None
    node_id: str | None = None
    slice_index: int | None = None
    num_slices: int | None = None
    coordinator: str | None = None
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False, hash=False)


def parse_tpu_env(text: str) -> TPUEnvironment:
    """Return the values in `tpu-env`, which has lines such as `ACCELERATOR_TYPE: 'v4-256'`.

    Other lines are skipped, as in JAX.

    Raises:
        ProtocolError: no line has that form, or a number is malformed.
    """
    values = _values(text)
    slice_index, num_slices = _number(values, "MEGASCALE_SLICE_ID"), _number(values, "MEGASCALE_NUM_SLICES")
    if (slice_index or 0) >= (num_slices or 1):
        reason = (
            f"MEGASCALE_SLICE_ID {slice_index or 0} is out of range: MEGASCALE_NUM_SLICES is {num_slices}"
        )
        raise _malformed("tpu-env", reason)
    node_id = values.get("NODE_ID")
    return TPUEnvironment(
        accelerator_type=_value(values, "ACCELERATOR_TYPE"),
        topology=_value(values, "TOPOLOGY"),
        chips_per_host_bounds=_numbers(values, "CHIPS_PER_HOST_BOUNDS"),
        host_bounds=_numbers(values, "HOST_BOUNDS"),
        worker_id=_number(values, "WORKER_ID"),
        runtime_metrics_ports=_numbers(values, "RUNTIME_METRICS_PORTS") or (),
        zone=values.get("ZONE") or None,
        # VMs that were created through Compute Engine have a number, but ids start with a letter.
        node_id=None if not node_id or _is_number(node_id) else node_id,
        slice_index=slice_index,
        num_slices=num_slices,
        coordinator=values.get("MEGASCALE_COORDINATOR_ADDRESS") or None,
        values=MappingProxyType(values),
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
    if not _is_number(text):
        raise _malformed("agent-worker-number", f"{text[:80]!r} is not a number from 0")
    return int(text)


def _values(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    last = None
    skipped: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        # As in YAML, an indented line continues the value before it, unless the quotes of that are closed.
        if line[0].isspace() and last is not None and not _is_quoted(values[last]):
            values[last] = f"{values[last]} {line.strip()}".strip()
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            last = None
            skipped.append(f"line {number} {line[:60]!r}")
            continue
        last = match[1]
        values[last] = match[2]
    if skipped and not values:
        # Not an environment with a line that is unknown here, but something else.
        raise _malformed("tpu-env", f"{skipped[0]} is not \"NAME: 'value'\"")
    return {name: _unquoted(value) for name, value in values.items()}


def _is_quoted(value: str) -> bool:
    """Return whether the value begins with a quote and ends with its counterpart."""
    if value.startswith("'"):
        return len(value) >= 2 and value.endswith("'") and value.count("'") % 2 == 0
    return len(value) >= 2 and value.startswith('"') and value.endswith('"') and not value.endswith('\\"')


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1].replace('\\"', '"')
    return value


def _value(values: Mapping[str, str], name: str) -> str | None:
    return values.get(name) or values.get(f"TPU_{name}") or None


def _number(values: Mapping[str, str], name: str) -> int | None:
    value = _value(values, name)
    if not value:
        return None
    if not _is_number(value):
        raise _malformed("tpu-env", f"{name}: {value!r} is not a number from 0")
    return int(value)


def _numbers(values: Mapping[str, str], name: str) -> tuple[int, ...] | None:
    value = _value(values, name)
    if not value:
        return None
    parts = [part.strip() for part in value.removesuffix(",").split(",")]
    if not all(_is_number(part) for part in parts):
        raise _malformed("tpu-env", f"{name}: {value!r} is not a comma-separated list of numbers")
    return tuple(int(part) for part in parts)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _host(entry: str, position: int) -> str:
    bare = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
    # First as an address: an IPv6 address also looks like a triple separated by colons.
    if _is_ip_address(bare):
        return bare
    if _HOSTNAME.fullmatch(entry):
        return entry
    parts = entry.split(":", 2)
    if len(parts) == 3 and parts[0] and parts[1]:
        host = parts[2].removeprefix("[").removesuffix("]")
        if _is_ip_address(host) or _HOSTNAME.fullmatch(host):
            return host
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
