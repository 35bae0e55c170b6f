"""`aioresolve watch`: a cluster, and then each of its changes."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.detection import detect_resolver
from aioresolve.cli.options import (
    CommandGroup,
    interval_option,
    max_requests_option,
    output_option,
    pod_options,
    quiet_option,
    task_options,
    timeout_option,
    tpu_options,
    verbose_option,
)
from aioresolve.cli.output.change_lines import ChangeRows, TFConfigLines, change_json, change_yaml
from aioresolve.cli.output.formats import WATCH_OUTPUTS
from aioresolve.cli.requests import (
    HereRequest,
    PodRequest,
    TPURequest,
    find_task_name,
    new_pod_resolver,
    new_tpu_resolver,
    validate_output,
    validate_pod_request,
)
from aioresolve.cli.terminal import streams
from aioresolve.errors import TaskIdentityError, UnknownTaskError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.cli.application import ExitRequest
    from aioresolve.cli.requests import ClusterRequest
    from aioresolve.cli.terminal.background_writer import BackgroundWriter
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState, Observation

INTERVAL = 30.0
"""Seconds between two requests to a source without a watch, by default."""

EPILOG = """\
\b
Outputs:
  table      on a terminal the cluster, redrawn in place; otherwise a row for each task, and then
             for each change: its EVENT (JOINED, LEFT, MOVED), job, task and address, and for
             a task that moved its previous place WAS, as TASK@ADDRESS
  wide       in addition the identity of each task
  json       {"jobs", "version", "observed_at", "joined": [TASK, ...], "left": [TASK, ...],
             "moved": [{"from": TASK, "to": TASK}, ...]}, on one line for each change
  yaml       the same, one document for each change
  tf-config  TensorFlow's TF_CONFIG, on one line whenever it changes

\b
Exit codes: 130 ended by Ctrl-C, 143 by SIGTERM, 141 by the reader of stdout; 1 an error that is
not retryable; 2 invalid usage or configuration; 3 no response before the deadline.
"""

first_response_option = timeout_option(effect="Deadline of the first response")


@click.group(cls=CommandGroup, no_args_is_help=False, short_help="A cluster, and then each of its changes.")
def watch() -> None:
    """Print a cluster and then each of its changes, until interrupted.

    A slow reader skips intermediate states but always gets the latest one. Errors of the source are
    reported on stderr, or below the table on a terminal.
    """


@watch.command(
    "kubernetes",
    short_help="The pods of label selectors.",
    epilog=f"""\
\b
Examples:
  # tasks as they join and leave
  aioresolve watch kubernetes -l worker=app=trainer -l ps=app=ps

\b
  # the addresses of the workers after each change
  aioresolve watch kubernetes -l app=trainer -o json | jq -c '.jobs.worker | map(.address)'

{EPILOG}""",
)
@pod_options
@output_option(WATCH_OUTPUTS)
@task_options
@first_response_option
@max_requests_option
@quiet_option
@verbose_option
def watch_kubernetes(**parameters: Any) -> None:
    """Watch the pods of label selectors as the tasks of a cluster.

    The tasks are the pods that are running and not being deleted. The API server reports each change at once.
    """
    request = PodRequest(**parameters)
    validate_pod_request(request)
    watch_pods(request)


@watch.command(
    "tpu",
    short_help="The workers of Cloud TPUs.",
    epilog=f"""\
\b
Example:
  # the changes of two slices, requested every ten seconds
  aioresolve watch tpu slice-0 slice-1 --interval 10s

{EPILOG}""",
)
@tpu_options
@output_option(WATCH_OUTPUTS)
@task_options
@interval_option("30s")
@first_response_option
@quiet_option
@verbose_option
def watch_tpu(interval: float, **parameters: Any) -> None:
    """Watch the workers of Cloud TPUs as the tasks of a cluster.

    For NAME see `aioresolve tpu --help`. The tasks are the workers of the TPUs that are ready,
    and those that are running but not healthy unless --not-healthy=skip.
    """
    request = TPURequest(**parameters)
    validate_output(request)
    watch_tpus(request, interval)


@watch.command(
    "here",
    short_help="The cluster that this process is part of.",
    epilog=f"""\
\b
Example:
  # in a pod of a workload: the pods as they join and leave
  aioresolve watch here -o wide

{EPILOG}""",
)
@output_option(WATCH_OUTPUTS)
@task_options
@interval_option("30s", "a source that")
@first_response_option
@quiet_option
@verbose_option
def watch_here(interval: float, **parameters: Any) -> None:
    """Watch the cluster that this process is part of.

    `aioresolve here` prints which cluster that is, and why.
    """
    request = HereRequest(**parameters)
    validate_output(request)
    watch_own_cluster(request, interval)


def watch_own_cluster(request: HereRequest, interval: float = INTERVAL) -> None:
    """Print the cluster of this process and then each of its changes, until interrupted."""
    from aioresolve.cli.application import run_async

    request, resolver = detect_resolver(request)
    run_async(partial(_watch, request, resolver, interval))


def watch_pods(request: PodRequest) -> None:
    """Print the cluster of the pods and then each of its changes, until interrupted."""
    from aioresolve.cli.application import run_async

    run_async(partial(_watch, request, new_pod_resolver(request), INTERVAL))


def watch_tpus(request: TPURequest, interval: float = INTERVAL) -> None:
    """Print the cluster of the TPUs as `watch_pods` does, with a request every `interval` seconds."""
    from aioresolve.cli.application import run_async

    run_async(partial(_watch, request, new_tpu_resolver(request), interval))


async def _watch(
    request: ClusterRequest,
    resolver: ClusterResolver,
    interval: float,
    exit_request: ExitRequest,
) -> None:
    from aioresolve.cli.terminal.background_writer import background_writer

    with background_writer(sys.stdout, exit_request.exit) as stdout:
        async with resolver, aclosing(resolver.observations(interval=interval)) as observations:
            first = await _first_observation(request, observations)
            if request.output in ("table", "wide") and streams.can_draw(sys.stdout):
                await _follow_on_screen(request, first, observations, stdout)
            else:
                await _follow_in_lines(request, resolver, first, observations, stdout)


async def _first_observation(
    request: ClusterRequest, observations: AsyncGenerator[Observation, None]
) -> Observation:
    """Return the first observation that has a state, and show on stderr what it is waiting for."""
    from aioresolve.cli.terminal.progress import run_with_progress

    async def operation(progress: Progress) -> Observation:
        progress.waiting(request.scope, "no response yet")
        async for observation in observations:
            if observation.state is not None:
                return observation
            if observation.error is not None:
                progress.failed(request.scope, observation.error)
        raise RuntimeError("observations() ended without an error")

    return await run_with_progress(request, operation)


async def _follow_in_lines(
    request: ClusterRequest,
    resolver: ClusterResolver,
    first: Observation,
    observations: AsyncGenerator[Observation, None],
    stdout: BackgroundWriter,
) -> None:
    """Write each change to stdout, and errors of the source to stderr."""
    from aioresolve.cli.terminal.progress import StatusReporter
    from aioresolve.spec import ClusterState

    format_change = _change_formatter(request, resolver)
    status = StatusReporter(quiet=request.quiet)
    older: ClusterState | None = None

    async def write(observation: Observation) -> None:
        nonlocal older
        status.report(observation)
        state = observation.state
        if state is None or state == older:
            return
        try:
            await stdout.write(await format_change(state, older or ClusterState.of({})))
        except (UnknownTaskError, TaskIdentityError) as error:
            status.write(f"this change was not printed: {error}")
        older = state

    await write(first)
    if not (first.state and first.state.members):
        status.write(f"no tasks yet: {request.scope}")
    async for observation in observations:
        await write(observation)


async def _follow_on_screen(
    request: ClusterRequest,
    first: Observation,
    observations: AsyncGenerator[Observation, None],
    stdout: BackgroundWriter,
) -> None:
    from aioresolve.cli.terminal.views import WatchView, live_view

    view = WatchView(request.scope, is_wide=request.output == "wide")
    view.update(first, datetime.now(UTC))
    async with live_view(stdout, view) as screen:
        async for observation in observations:
            view.update(observation, datetime.now(UTC))
            screen.invalidate()


def _change_formatter(
    request: ClusterRequest, resolver: ClusterResolver
) -> Callable[[ClusterState, ClusterState], Awaitable[str]]:
    """Return a function that formats a state and the change from the previous one."""
    lines = TFConfigLines(request.task, rpc_layer=request.rpc_layer)
    rows = ChangeRows(is_wide=request.output == "wide", has_headers=request.has_headers)

    async def format_change(state: ClusterState, older: ClusterState) -> str:
        match request.output:
            case "json":
                return change_json(state, older)
            case "yaml":
                return change_yaml(state, older)
            case "tf-config":
                # Its index may change with the other tasks.
                lines.task = await find_task_name(resolver, request, state)
                return lines.format(state, older)
        return rows.format(state, older)

    return format_change
