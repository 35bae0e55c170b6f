"""The VM this runs on: what its metadata server says of the slice it is part of, now and as it changes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeVar

import anyio

from aioresolve._core.concurrency import gather
from aioresolve.errors import ResolveError, TPUNotFoundError
from aioresolve.gcp.tpu_env import TpuEnvironment
from aioresolve.resolver.polling import PollSchedule
from aioresolve.spec import Observation

from .slices import own_slice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve._core.retry import Progress
    from aioresolve.gcp.metadata_server import MetadataServer

    from .discovery import OwnVM
    from .slices import TPUSlice

__all__ = ["own_vm_observations", "own_vm_slice"]

T = TypeVar("T")

HELD_BACK = 60
"""Seconds that the metadata server holds its answer back while nothing changes."""

QUIET = 1.0
"""Seconds between two looks at least: attributes that are written one after another are one change."""


async def own_vm_observations(
    source: OwnVM, metadata: MetadataServer, fetch: Callable[[], Awaitable[Observation]], interval: float
) -> AsyncGenerator[Observation, None]:
    """Yield what `fetch` returns, at first and whenever an attribute of this VM has changed; without end.

    The metadata server holds its answer back until then; one that cannot is asked every `interval` seconds.
    Once it has answered it is taken to be there: no failure ends this any more.

    Raises:
        TPUNotFoundError: there is no metadata server, or this is no TPU VM.
        ResolveError: another failure that does not pass, before there was an answer.
    """
    schedule = PollSchedule(interval)
    seen = Observation(None)
    tag = ""
    while True:
        asked_at = anyio.current_time()
        failure: ResolveError | None = None
        try:
            # The tag comes before the values: what changes in between has another one.
            newer = await _told(source, metadata.attributes_tag(tag, HELD_BACK))
            is_news = newer != tag or not newer
            tag = newer
            if is_news:
                seen = await fetch()
        except ResolveError as error:
            if seen.state is None and not error.retryable:
                raise
            # Who has been told of a TPU needs no advice to name one.
            is_advice = isinstance(error, TPUNotFoundError)
            failure = error.__cause__ if is_advice and isinstance(error.__cause__, ResolveError) else error
            tag, is_news = "", True
            seen = seen.stale(failure, datetime.now(UTC))
        if is_news:
            yield seen
        if not tag:
            await anyio.sleep_until(schedule.next_poll(asked_at, failure))
        elif is_news:
            await anyio.sleep(min(QUIET, interval))
        else:
            await anyio.sleep_until(asked_at + min(HELD_BACK, interval))


async def own_vm_slice(source: OwnVM, metadata: MetadataServer, progress: Progress) -> TPUSlice:
    """Return the slice that this VM is part of.

    Raises:
        TPUNotFoundError: there is no metadata server, or this is no TPU VM.
        ResolveError: another failure, which passes.
    """
    slice_ = await _told(source, _told_slice(metadata, progress))
    if slice_ is None:
        raise _nothing_named(source, "this VM's metadata server says that it is no TPU VM")
    return slice_


async def _told(source: OwnVM, answer: Awaitable[T]) -> T:
    """Return what the metadata server answers.

    Raises:
        TPUNotFoundError: it does not, and there is nobody else to be asked.
        ResolveError: it does not at present.
    """
    try:
        return await answer
    except ResolveError as error:
        if error.retryable:
            raise
        raise _nothing_named(source, f"this VM's metadata server did not tell: {error}") from error


async def _told_slice(metadata: MetadataServer, progress: Progress) -> TPUSlice | None:
    hosts, environment, accelerator_type = await _attributes(metadata, progress)
    if hosts is None:
        # Where nothing else is said, a slice of one host is this very host.
        if environment is None or environment.host_bounds not in ((1, 1, 1), (1, 1)):
            return None
        hosts = (await metadata.internal_ip(progress),)
    return own_slice(hosts, environment or TpuEnvironment(), accelerator_type)


async def _attributes(
    metadata: MetadataServer, progress: Progress
) -> tuple[tuple[str, ...] | None, TpuEnvironment | None, str | None]:
    hosts: tuple[str, ...] | None = None
    environment: TpuEnvironment | None = None
    accelerator_type: str | None = None

    async def ask_hosts() -> None:
        nonlocal hosts
        hosts = await metadata.worker_network_endpoints(progress)

    async def ask_environment() -> None:
        nonlocal environment
        environment = await metadata.tpu_env(progress)

    async def ask_type() -> None:
        nonlocal accelerator_type
        accelerator_type = await metadata.accelerator_type(progress)

    await gather([ask_hosts, ask_environment, ask_type], limit=3)
    return hosts, environment, accelerator_type


def _nothing_named(source: OwnVM, last: str) -> TPUNotFoundError:
    tried = (*source.tried, last)
    return TPUNotFoundError(
        f"no TPU was named and none was found: {'; '.join(tried)}",
        hint="Pass a name or an address such as 'grpc://10.0.0.7:8470' as {tpu}, or set TPU_NAME.",
        tried=tried,
    )
