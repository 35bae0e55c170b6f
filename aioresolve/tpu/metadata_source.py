"""This VM as a source of workers: what its metadata server reports about its slice."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from aioresolve._core.concurrency import gather
from aioresolve.errors import ConfigurationError, Hint, ProtocolError, ResolveError, TPUNotFoundError
from aioresolve.gcp.tpu_env import TPUEnvironment, parse_worker_number

from .slices import parse_bounds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.metadata_server import MetadataServer

    from .discovery import MetadataSource

T = TypeVar("T")

WORKER_ID = "WORKER_ID of the metadata server"

MEGASCALE = {
    "MEGASCALE_NUM_SLICES": "num_slices",
    "MEGASCALE_SLICE_ID": "slice_index",
    "MEGASCALE_COORDINATOR_ADDRESS": "coordinator",
}
"""The variables of a multislice, and what `TPUEnvironment` calls their values."""


async def fetch_worker_hosts(
    source: MetadataSource, metadata: MetadataServer, progress: Progress
) -> tuple[tuple[str, ...], TPUEnvironment]:
    """Return the host of each worker of this VM's slice, and what the VM reports about the slice.

    Raises:
        TPUNotFoundError: there is no metadata server, or this is not a TPU VM.
        ConfigurationError: what the VM reports contradicts itself, or the variables of the process.
        ResolveError: any other, retryable error.
    """
    calls: list[Callable[[], Awaitable[Any]]] = [
        partial(metadata.worker_network_endpoints, progress),
        partial(metadata.tpu_env, progress),
        partial(metadata.attribute, "accelerator-type", progress),
        partial(metadata.attribute, "agent-worker-number", progress),
    ]
    responses = gather(calls, limit=len(calls))
    hosts, reported, accelerator_type, number = await _or_no_tpu(source, responses)
    environment: TPUEnvironment = reported or TPUEnvironment()
    environment = replace(
        environment,
        accelerator_type=environment.accelerator_type or accelerator_type,
        host_bounds=environment.host_bounds or _computed_host_bounds(environment),
        worker_id=_worker_id(environment, None if number is None else parse_worker_number(number)),
    )
    if hosts is None:
        num_hosts = math.prod(environment.host_bounds or (0,))
        if num_hosts != 1:
            if reported is None:
                reason = "that it is not a TPU VM"
            elif num_hosts:
                reason = f"a slice of {num_hosts} hosts, but no worker-network-endpoints"
            else:
                reason = (
                    "neither worker-network-endpoints, nor in tpu-env HOST_BOUNDS, or TOPOLOGY and"
                    " CHIPS_PER_HOST_BOUNDS"
                )
            raise no_tpu_found(source, f"this VM's metadata server reports {reason}")
        hosts = (await _or_no_tpu(source, metadata.internal_ip(progress)),)
    return hosts, _with_variables(environment, source.environment)


def _worker_id(environment: TPUEnvironment, number: int | None) -> int | None:
    """Return the index of this VM, which may be in `tpu-env`, in `agent-worker-number`, or in both."""
    if None not in (number, environment.worker_id) and number != environment.worker_id:
        raise ConfigurationError(
            f"the metadata server contradicts itself: agent-worker-number is {number}, but WORKER_ID in"
            f" tpu-env is {environment.worker_id}",
            hint=Hint("Pass the name of the TPU as {tpu}."),
        )
    return environment.worker_id if number is None else number


def _with_variables(environment: TPUEnvironment, variables: TPUEnvironment) -> TPUEnvironment:
    """Return `tpu-env` with, as in JAX, the variables of the process that describe a multislice.

    Raises:
        ConfigurationError: they contradict each other.
    """
    is_multislice = (environment.num_slices or 1) > 1
    for name, field in MEGASCALE.items():
        reported, given = getattr(environment, field), getattr(variables, field)
        if is_multislice and None not in (reported, given) and reported != given:
            raise ConfigurationError(
                f"${name}={given} contradicts {name} in tpu-env, which is {reported}",
                hint="Unset the variable.",
            )
        if given is not None:
            environment = replace(environment, **{field: given})
    return environment


def _computed_host_bounds(environment: TPUEnvironment) -> tuple[int, ...] | None:
    """Return the hosts in each dimension, computed from the chips; None if unknown."""
    try:
        chips = parse_bounds(environment.topology)
    except ProtocolError:
        return None  # the topology is reported as malformed where it is used
    if chips is None or environment.chips_per_host_bounds is None:
        return None
    # v5e and v6e have topologies with two dimensions, and bounds with three.
    pairs = list(zip_longest(chips, environment.chips_per_host_bounds, fillvalue=1))
    if any(part < 1 or total % part for total, part in pairs):
        return None
    return tuple(total // part for total, part in pairs)


async def _or_no_tpu(source: MetadataSource, response: Awaitable[T]) -> T:
    """Return the response of the metadata server, the last source; without one, there is no TPU.

    An error that is not retryable becomes a TPUNotFoundError.
    """
    try:
        return await response
    except ResolveError as error:
        if error.retryable:
            raise
        raise no_tpu_found(
            source, f"this VM's metadata server did not report one: {error.summary}"
        ) from error


def no_tpu_found(source: MetadataSource, last: str) -> TPUNotFoundError:
    """Return the error for a machine that is not a TPU VM; `last` is what its metadata server reports."""
    tried = (*source.tried, last)
    return TPUNotFoundError(
        f"no TPU was named and none was found: {'; '.join(tried)}",
        tried=tried,
        hint="Pass a name or an address such as 'grpc://10.0.0.7:8470' as {tpu}, or set TPU_NAME.",
    )
