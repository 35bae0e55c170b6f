"""Following a cluster: what `aioresolve watch` prints while it goes on.

`aioresolve watch`: a cluster as it is, and then each change of it.
"""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.options import (
    PodRequest,
    TPURequest,
    check_pods,
    check_tpus,
    interval_option,
    output_option,
    pod_options,
    quiet_option,
    requests_at_once_option,
    task_option,
    timeout_option,
    tpu_options,
    verbose_option,
)
from aioresolve.cli.output.change_lines import ChangeRows, SpecLines, change_json, change_yaml
from aioresolve.cli.output.cluster_text import WATCHED
from aioresolve.cli.terminal import streams
from aioresolve.cli.terminal.status_reporter import Notes
from aioresolve.errors import UnknownTaskError
from aioresolve.spec import ClusterState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve._core.retry import Progress
    from aioresolve.cli.running import Ending
    from aioresolve.cli.terminal.background_writer import Pen
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import Observation

__all__ = ["watch", "watch_pods", "watch_tpus"]

INTERVAL = 30.0
"""Seconds between two questions to a source that has no watch, where nothing else is said."""


def watch_pods(request: PodRequest) -> None:
    """Print the pods' cluster, and then each change of it, until somebody ends that.

    Raises:
        ResolveError: there was no first answer before the deadline, or an error that does not pass.
        KeyboardInterrupt: Ctrl-C.
        SystemExit: SIGTERM, or whoever read stdout has gone.
    """
    # Imported here, so that `--help` and completion load click only.
    import aioresolve.kubernetes.auth  # noqa: F401
    from aioresolve.cli.running import run

    from .kubernetes import kubernetes_resolver

    run(partial(_watched, request, partial(kubernetes_resolver, request), INTERVAL))


def watch_tpus(request: TPURequest, interval: float = INTERVAL) -> None:
    """Print the TPUs' cluster as `watch_pods` does; they are asked about every `interval` seconds."""
    from aioresolve.cli.running import run

    from .tpu import tpu_resolver

    async def opened(_: Progress) -> ClusterResolver:
        return tpu_resolver(request)

    run(partial(_watched, request, opened, interval))


async def _watched(
    request: PodRequest | TPURequest,
    opened: Callable[[Progress], Awaitable[ClusterResolver]],
    interval: float,
    ending: Ending,
) -> None:
    from aioresolve._core.retry import Progress, within_deadline
    from aioresolve.cli.terminal.background_writer import pen
    from aioresolve.cli.terminal.progress import shown

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

    from aioresolve._core.retry import within_deadline
    from aioresolve.cli.terminal.progress import shown

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
    from aioresolve.cli.terminal.screen import screen
    from aioresolve.cli.terminal.views import WatchPicture

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


EPILOG = """\
\b
Outputs:
  table      on a terminal the cluster, drawn in place; elsewhere a row for each task, and then
             for each change: its EVENT (JOINED, LEFT, MOVED), job, task and address, and of
             a task that moved where it WAS, as TASK@ADDRESS
  wide       and who each task is
  json       {"jobs", "version", "observed_at", "joined": [TASK, ...], "left": [TASK, ...],
             "moved": [{"from": TASK, "to": TASK}, ...]}, on a line for each change
  yaml       the same, a document for each change
  tf-config  TensorFlow's TF_CONFIG, on a line for each one that differs from the last

\b
Exit codes: 130 ended by Ctrl-C, 143 by SIGTERM, 141 by a reader who has gone; 1 an error that
does not pass; 2 wrong usage or configuration; 3 there was no first answer by the deadline.
"""

first_answer_option = timeout_option(what="Give up where there is no first answer by then")


@click.group(no_args_is_help=False, short_help="A cluster as it is, and then each change of it.")
def watch() -> None:
    """Print a cluster as it is, and then each change of it, until somebody ends that.

    A reader who is slow misses states in between, and never the newest. What is wrong with the source
    meanwhile is told on stderr, or below the table that a terminal shows.
    """


@watch.command(
    "kubernetes",
    short_help="The pods of label selectors.",
    epilog=f"""\
\b
Examples:
  # who joins and who leaves
  aioresolve watch kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # the workers' addresses after each change
  aioresolve watch kubernetes -l worker=app=trainer -o json | jq -c '.jobs.worker | map(.address)'

{EPILOG}""",
)
@pod_options
@output_option(WATCHED)
@task_option
@first_answer_option
@requests_at_once_option
@quiet_option
@verbose_option
def watch_kubernetes(**parameters: Any) -> None:
    """Watch the pods of label selectors as the tasks of a cluster.

    Pods that run and are not being deleted are its members. The API server tells each change as it happens.
    """
    request = PodRequest(**parameters)
    check_pods(request)
    watch_pods(request)


@watch.command(
    "tpu",
    short_help="The workers of Cloud TPUs.",
    epilog=f"""\
\b
Example:
  # whatever happens to two slices, asked about every ten seconds
  aioresolve watch tpu slice-0 slice-1 --interval 10s

{EPILOG}""",
)
@tpu_options
@output_option(WATCHED)
@task_option
@interval_option("30s", "the API, which has to be asked for changes")
@first_answer_option
@quiet_option
@verbose_option
def watch_tpu(interval: float, **parameters: Any) -> None:
    """Watch the workers of Cloud TPUs as the tasks of a cluster.

    NAME is as of `aioresolve tpu`. The workers of TPUs that are ready are its members.
    """
    request = TPURequest(**parameters)
    check_tpus(request)
    watch_tpus(request, interval)
