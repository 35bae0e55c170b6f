"""TPU VMs: what the metadata server of this machine reports about its slice.

Formats: `tpu-env` and `worker-network-endpoints`, as found on TPU VMs and as JAX reads them
(`jax/_src/clusters/cloud_tpu_cluster.py`). VMs that were created through Compute Engine have names with the
prefix `TPU_`, such as `TPU_ACCELERATOR_TYPE`, in `tpu-env`.
"""

from __future__ import annotations

import ipaddress
import math
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve._core.concurrency import gather
from aioresolve.errors import ConfigurationError, Hint, ProtocolError, ResolveError, TPUNotFoundError
from aioresolve.spec import host_port

from .discovery import NUMBER, TPU_PORT, GivenWorkers, TPUEnvironment, tpu_environment, validate_index

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.metadata_server import MetadataServer

    from .discovery import MetadataSource

T = TypeVar("T")

TPU_ENV = "tpu-env"
WORKER_HOSTS = "worker-network-endpoints"

MEGASCALE = {
    "MEGASCALE_NUM_SLICES": "num_slices",
    "MEGASCALE_SLICE_ID": "slice_index",
    "MEGASCALE_COORDINATOR_ADDRESS": "coordinator",
}
"""The variables of a multislice, and what `TPUEnvironment` calls their values."""

_LINE = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*:\s*(.*?)\s*")
_HOSTNAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")


async def fetch_own_slice(
    source: MetadataSource, metadata: MetadataServer, progress: Progress
) -> GivenWorkers:
    """Return the workers of this VM's slice, and what the VM reports about the slice.

    As in JAX, variables of this process that describe a multislice take precedence. If this is not a TPU VM,
    it raises a TPUNotFoundError.
    """
    tried, variables = source.tried, source.environment
    calls: list[Callable[[], Awaitable[Any]]] = [
        partial(fetch_worker_hosts, metadata, progress),
        partial(fetch_tpu_env, metadata, progress),
        partial(metadata.attribute, "accelerator-type", progress),
        partial(metadata.attribute, "agent-worker-number", progress),
    ]
    hosts, reported, accelerator_type, number = await _or_no_tpu(tried, gather(calls, limit=len(calls)))
    environment: TPUEnvironment = reported or TPUEnvironment()
    if number is not None and NUMBER.fullmatch(number) is None:
        raise _malformed("agent-worker-number", f"{number[:80]!r} is not a number from 0")
    if number is not None and environment.worker_id not in (None, int(number)):
        raise _malformed("agent-worker-number", f"{number} contradicts {TPU_ENV}: {environment.worker_id}")
    environment = replace(
        environment,
        accelerator_type=environment.accelerator_type or accelerator_type,
        worker_id=environment.worker_id if number is None else int(number),
    )
    if hosts is None:
        if reported is None:
            raise no_tpu_found(tried, "this VM's metadata server reports that it is not a TPU VM")
        if not _is_one_host(environment):
            missing = f"no {WORKER_HOSTS}, and no slice of one host"
            raise no_tpu_found(tried, f"this VM's metadata server reports {missing}")
        hosts = (await _or_no_tpu(tried, metadata.internal_ip(progress)),)
    is_multislice = (environment.num_slices or 1) > 1  # or the process may make one of TPUs of its own
    for name, field in MEGASCALE.items():
        ours, given = getattr(environment, field), getattr(variables, field)
        if is_multislice and None not in (ours, given) and ours != given:
            raise ConfigurationError(
                f"${name}={given} contradicts {name} in {TPU_ENV}, which is {ours}",
                hint="Unset the variable.",
            )
        environment = replace(environment, **{field: ours if given is None else given})
    where = f"{WORKER_HOSTS} of the metadata server"
    addresses = tuple(host_port(host, TPU_PORT) for host in hosts)
    validate_index(addresses, environment.worker_id, "WORKER_ID", where)
    return GivenWorkers(where, addresses, environment)


async def fetch_tpu_env(metadata: MetadataServer, progress: Progress) -> TPUEnvironment | None:
    """Return the attribute `tpu-env` of this VM; None if it has none: it is not a TPU VM."""
    text = await metadata.attribute(TPU_ENV, progress)
    return None if text is None else parse_tpu_env(text)


async def fetch_worker_hosts(metadata: MetadataServer, progress: Progress) -> tuple[str, ...] | None:
    """Return the host of each worker of the slice, by index; None if the VM does not report them."""
    text = await metadata.attribute(WORKER_HOSTS, progress)
    return None if text is None else parse_worker_hosts(text)


def parse_tpu_env(text: str) -> TPUEnvironment:
    """Return the values in `tpu-env`, which has lines such as `ACCELERATOR_TYPE: 'v4-256'`.

    Other lines are skipped, as in JAX.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    values = {match[1]: match[2].strip("'\"") for line in lines if (match := _LINE.fullmatch(line))}
    if lines and not values:
        # Not an environment with a line that is unknown here, but something else.
        raise _malformed(TPU_ENV, f"line 1 {lines[0][:60]!r} is not \"NAME: 'value'\"")
    environment = tpu_environment(
        {name.removeprefix("TPU_"): value for name, value in values.items()},
        lambda name, problem: _malformed(TPU_ENV, f"{name}: {problem}"),
    )
    node_id = values.get("NODE_ID", "")
    # VMs that were created through Compute Engine have a number, but ids start with a letter.
    return replace(environment, node_id=None if NUMBER.fullmatch(node_id) else node_id or None)


def parse_worker_hosts(text: str) -> tuple[str, ...]:
    """Return the host of each worker in `worker-network-endpoints`, by index, IPv6 without brackets.

    The attribute has one of two forms, both comma-separated: hosts, or triples `name:id:address`. An entry
    that is a valid IPv6 address as a whole is read as one.
    """
    return tuple(_host(entry.strip(), position) for position, entry in enumerate(text.split(",")))


def _host(entry: str, position: int) -> str:
    # First as an address: an IPv6 address also looks like a triple separated by colons.
    triple = entry.split(":", 2)
    for text in (entry, triple[2] if len(triple) == 3 and triple[0] and triple[1] else ""):
        bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
        with suppress(ValueError):
            ipaddress.ip_address(bare)
            return bare
        if _HOSTNAME.fullmatch(text):
            return text
    raise _malformed(WORKER_HOSTS, f"entry {position} {entry[:80]!r} is neither a host nor name:id:address")


def _is_one_host(environment: TPUEnvironment) -> bool:
    """Return whether the slice is known to have one host: all its chips are those of a host."""
    if environment.host_bounds is not None:
        return math.prod(environment.host_bounds) == 1
    chips, of_host = re.findall(r"[0-9]+", environment.topology or ""), environment.chips_per_host_bounds
    return bool(chips) and of_host is not None and math.prod(map(int, chips)) == math.prod(of_host)


async def _or_no_tpu(tried: Sequence[str], response: Awaitable[T]) -> T:
    """Return the response of the metadata server, the last source: a final error means that no TPU exists."""
    try:
        return await response
    except ResolveError as error:
        if error.retryable:
            raise
        reason = f"this VM's metadata server did not report one: {error.summary}"
        raise no_tpu_found(tried, reason) from error


def no_tpu_found(tried: Sequence[str], last: str) -> TPUNotFoundError:
    """Return the error for a machine that is not a TPU VM; `last` is what its metadata server reports."""
    return TPUNotFoundError(
        f"no TPU was named and none was found: {'; '.join([*tried, last])}",
        tried=[*tried, last],
        hint="Pass a name or an address such as 'grpc://10.0.0.7:8470' as {tpu}, or set TPU_NAME.",
    )


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
