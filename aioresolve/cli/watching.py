"""Following a cluster: what `aioresolve watch` prints while it goes on."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.errors import UnknownTaskError
from aioresolve.retry import Progress, within_deadline
from aioresolve.spec import ClusterState

from . import streams
from .notes import Notes
from .pen import pen
from .progress import shown
from .running import run
from .watch_output import ChangeRows, SpecLines, change_json, change_yaml

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve.resolver import ClusterResolver
    from aioresolve.spec import Observation

    from .pen import Pen
    from .request import PodRequest, TPURequest
    from .running import Ending

__all__ = ["watch_pods", "watch_tpus"]

INTERVAL = 30.0
"""Seconds between two questions to a source that has no watch, where nothing else is said."""


def watch_pods(request: PodRequest) -> None:
    """Print the pods' cluster, and then each change of it, until somebody ends that.

    Raises:
        ResolveError: there was no first answer before the deadline, or an error that does not pass.
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, or whoever read stdout has gone.
    """
    # Here and not above: whoever watches TPUs is not to pay for it.
    from .lookup import kubernetes_resolver

    run(partial(_watched, request, partial(kubernetes_resolver, request), INTERVAL))


def watch_tpus(request: TPURequest, interval: float = INTERVAL) -> None:
    """Print the TPUs' cluster as `watch_pods` does; they are asked about every `interval` seconds."""
    # Here and not above: whoever watches pods is not to pay for it.
    from .tpu_lookup import tpu_resolver

    async def opened(_: Progress) -> ClusterResolver:
        return tpu_resolver(request)

    run(partial(_watched, request, opened, interval))


async def _watched(
    request: PodRequest | TPURequest,
    opened: Callable[[Progress], Awaitable[ClusterResolver]],
    interval: float,
    ending: Ending,
) -> None:
    with pen(sys.stdout, ending) as stdout:
        progress = Progress()
        with shown(progress, quiet=request.quiet):
            resolver = await within_deadline(request.timeout, request.asked, opened)
        async with resolver, aclosing(resolver.observations(interval=interval)) as observations:
            first = await _first(request, observations)
            is_drawn = request.output in ("table", "wide") and streams.can_draw(sys.stdout)
            follow = _on_screen if is_drawn else _in_lines
            await follow(request, first, observations, stdout)


async def _first(
    request: PodRequest | TPURequest, observations: AsyncGenerator[Observation, None]
) -> Observation:
    """Return the first observation that has a state; told on stderr meanwhile is what it waits for."""

    async def first(progress: Progress) -> Observation:
        progress.waiting(request.asked, "no answer yet")
        with shown(progress, quiet=request.quiet):
            async for observation in observations:
                if observation.state is not None:
                    return observation
                if observation.error is not None:
                    progress.failed(request.asked, observation.error)
        raise RuntimeError("observations() has to go on")

    return await within_deadline(request.timeout, request.asked, first)


async def _in_lines(
    request: PodRequest | TPURequest,
    first: Observation,
    observations: AsyncGenerator[Observation, None],
    stdout: Pen,
) -> None:
    """Write a text for each change, and on stderr what is wrong meanwhile."""
    text = _text_of_changes(request)
    notes = Notes(quiet=request.quiet)
    older = ClusterState.of({})

    async def write(observation: Observation) -> None:
        nonlocal older
        notes.tell(observation)
        state = observation.state
        if state is None or (observation is not first and state == older):
            return
        try:
            await stdout.write(text(state, older))
        except UnknownTaskError as error:
            notes.say(f"nothing printed of this change: {error}")
        older = state

    await write(first)
    if not (first.state and first.state.members):
        notes.say(f"nobody is there yet: {request.asked}")
    async for observation in observations:
        await write(observation)


async def _on_screen(
    request: PodRequest | TPURequest,
    first: Observation,
    observations: AsyncGenerator[Observation, None],
    stdout: Pen,
) -> None:
    """Draw the cluster in place."""
    # Here and not above: it loads rich.
    from .screen import screen
    from .watch_picture import WatchPicture

    picture = WatchPicture(request.asked, is_wide=request.output == "wide")
    picture.show(first, datetime.now(UTC))
    async with screen(stdout, picture.drawn) as live:
        async for observation in observations:
            picture.show(observation, datetime.now(UTC))
            live.stir()


def _text_of_changes(request: PodRequest | TPURequest) -> Callable[[ClusterState, ClusterState], str]:
    """Return what makes the text of a state and of the one before it."""
    match request.output:
        case "json":
            return change_json
        case "yaml":
            return change_yaml
        case "tf-config":
            return SpecLines(request.task).text
    return ChangeRows(is_wide=request.output == "wide").text
