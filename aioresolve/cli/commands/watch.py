"""`aioresolve watch`: a cluster, and then each of its changes."""

from __future__ import annotations

import sys
import textwrap
from collections import deque
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import clusters, formats, options, sources, streams
from aioresolve.cli.application import run_async

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from rich.console import RenderableType
    from rich.text import Text

    from aioresolve._core.deadline import Progress
    from aioresolve.cli.application import ExitWith
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState, Member, Observation

INTERVAL = 30.0
"""Seconds between two requests to a source without a watch, by default."""

MAX_CHANGES = 5
"""How many of the last changes a terminal shows."""

MAX_MISSING = 8
"""How many reasons for missing tasks a terminal shows."""

STYLES = {"JOINED": "green", "MOVED": "yellow", "LEFT": "red", "DONE": "cyan"}

EPILOG = """\
\b
Outputs:
  table      on a terminal the cluster, redrawn in place; otherwise a row for each task, and then
             for each change: its EVENT (JOINED, LEFT, MOVED, or DONE if the task has ended with
             success), job, task and address, and for a task that moved its previous place WAS, as
             TASK@ADDRESS
  wide       in addition the identity of each task
  json       the cluster as one object on one line for each change, with the tasks that joined,
             left, moved, or ended with success

\b
Once pods are watched, every failure is reported and retried, also a 403.
"""


@click.group(
    cls=options.CommandGroup, no_args_is_help=False, short_help="A cluster, and then each of its changes."
)
def watch() -> None:
    """Print a cluster and then each of its changes, until interrupted.

    A slow reader skips intermediate states but always gets the latest one. Errors of the source are
    reported on stderr, or below the table on a terminal.
    """


def _watch_source(source: str, /, interval: float, **parameters: Any) -> None:
    run_watch(sources.new_request(source, parameters), interval)


sources.add_sources(
    watch,
    _watch_source,
    "Watch {what}.\n\nThe tasks are the pods that are running and not being deleted, whose changes the API"
    " server reports at once, or the workers of TPUs that are READY, healthy or not.",
    {
        "kubernetes": """\
  # the addresses of the workers after each change
  aioresolve watch kubernetes -l app=trainer -o json | jq -c '.jobs.worker | map(.address)'
""",
        "tpu": """\
  # the changes of two slices, requested every ten seconds
  aioresolve watch tpu slice-0 slice-1 --interval 10s
""",
        "here": """\
  # in a pod of a workload: the pods as they join and leave
  aioresolve watch here -o wide
""",
    },
    options.output_option(clusters.WATCH_OUTPUTS),
    options.interval_option("30s"),
    options.timeout_option(effect="Deadline of the first response"),
    epilog=EPILOG,
)


def run_watch(request: sources.ClusterRequest, interval: float = INTERVAL) -> None:
    """Print the cluster and then each of its changes, until interrupted."""
    if request.output not in clusters.WATCH_OUTPUTS:
        possible = " or -o ".join(clusters.WATCH_OUTPUTS)
        raise click.UsageError(f"-o {request.output} cannot show changes; pass -o {possible}")
    click.get_current_context().meta.pop(options.OUTPUT, None)  # no manifest follows rows on stdout
    request, resolver = sources.open_source(request)

    async def follow(exit_with: ExitWith) -> None:
        with streams.stdout_writer(exit_with) as stdout:
            async with resolver, aclosing(resolver.observations(interval=interval)) as observations:
                first = await _first_observation(request, observations)
                if request.output in ("table", "wide") and streams.can_draw(sys.stdout):
                    await _follow_on_screen(request, await resolver._explain(first), observations)
                else:
                    await _follow_in_lines(request, resolver, first, observations, stdout)

    run_async(follow)


async def _first_observation(
    request: sources.ClusterRequest, observations: AsyncGenerator[Observation, None]
) -> Observation:
    """Return the first observation that has a state, and show on stderr what it is waiting for."""

    async def operation(progress: Progress) -> Observation:
        progress.waiting(request.scope, "no response yet")
        async for observation in observations:
            if observation.state is not None:
                return observation
            if observation.error is not None:
                progress.failed(request.scope, observation.error)
        raise RuntimeError("observations() ended without an error")

    return await sources.run_with_progress(request, operation)


async def _follow_in_lines(
    request: sources.ClusterRequest,
    resolver: ClusterResolver,
    first: Observation,
    observations: AsyncGenerator[Observation, None],
    stdout: streams.StdoutWriter,
) -> None:
    from aioresolve.cli.live import StatusReporter
    from aioresolve.spec import ClusterState

    identity = [each for each in clusters.WIDE_COLUMNS if each not in clusters.TASK]
    columns = ("EVENT", *clusters.TASK, "WAS", *(identity if request.output == "wide" else ()))
    widest = ("JOINED", "worker", "TASK", "255.255.255.255:65535", "10@255.255.255.255:65535")
    table = formats.TextTable(columns, [*map(len, widest)], has_headers=request.has_headers)
    status = StatusReporter(quiet=request.quiet)
    older = ClusterState.of({})

    def row(event: str, member: Member, was: str = "") -> list[str]:
        return clusters.member_cells(member, columns, event=event, was=was)

    def format_change(state: ClusterState) -> str:
        if request.output == "json":
            return formats.as_json_line(_change_document(state, older))
        change = state.diff(older)
        rows = [row("LEFT", member) for member in change.left]
        rows += [row("DONE", member) for member in change.done]
        rows += [
            row("MOVED", move.new, f"{move.old.task_index}@{move.old.endpoint.address}")
            for move in change.moved
        ]
        rows += [row("JOINED", member) for member in change.joined]
        return table.lines(rows)

    async def write(observation: Observation) -> None:
        nonlocal older
        status.report(observation)
        state = observation.state
        if state is not None and (state != older or observation is first):
            await stdout.write(format_change(state))
            older = state

    await write(first)
    if not (first.state and first.state.members):
        unmatched = "; ".join(map(str, (await resolver._explain(first)).unmatched))
        status.write(f"no tasks yet: {unmatched or request.scope}")
    async for observation in observations:
        await write(observation)


def _change_document(state: ClusterState, older: ClusterState) -> dict[str, Any]:
    """Return a cluster after a change as one object: that of `ClusterState.as_dict`, and the change.

    Each task that joined, left, ended with success or moved is that of `jobs`, with its `job` in addition.
    """

    def task(member: Member) -> dict[str, Any]:
        return {"job": member.job, **member.as_dict()}

    change = state.diff(older)
    return state.as_dict() | {
        "joined": [task(member) for member in change.joined],
        "left": [task(member) for member in change.left],
        "ended": [task(member) for member in change.done],
        "moved": [{"from": task(move.old), "to": task(move.new)} for move in change.moved],
    }


async def _follow_on_screen(
    request: sources.ClusterRequest, first: Observation, observations: AsyncGenerator[Observation, None]
) -> None:
    from aioresolve.cli.live import draw_live

    view = WatchView(request.scope, first, is_wide=request.output == "wide")
    with draw_live(sys.stdout, view.render, first=0.0, keep=True):
        async for observation in observations:
            view.update(observation)


class WatchView:
    """A watched cluster: its tasks, the missing ones, the last changes, and the status of the source."""

    def __init__(self, scope: str, first: Observation, *, is_wide: bool) -> None:
        assert first.state is not None
        self._scope = scope
        self._is_wide = is_wide
        self._observation = first
        self._state = first.state
        self._changed_at = datetime.now(UTC)
        self._changes: deque[Text] = deque(maxlen=MAX_CHANGES)

    def update(self, observation: Observation) -> None:
        """Show `observation`, which was received now."""
        from aioresolve.cli.live import single_line

        self._observation = observation
        if observation.state is None:
            return
        older, self._state = self._state, observation.state
        if self._state == older:
            return
        self._changed_at = datetime.now(UTC)
        change = self._state.diff(older)
        groups = {"LEFT": change.left, "DONE": change.done, "MOVED": change.moved, "JOINED": change.joined}
        for event, things in groups.items():
            for thing in things:
                text = f"{_local_time(self._changed_at)}  {event:6}  {thing}"
                self._changes.append(single_line(text, STYLES[event]))

    def render(self, columns: int, lines: int) -> RenderableType:
        """Return the current content, for a terminal of that size."""
        from rich.console import Group

        from aioresolve.cli.live import single_line, table_lines

        empty = single_line("")
        wrapped = [
            part for line in _missing_lines(self._observation) for part in textwrap.wrap(line, columns)
        ]
        below = [*([empty, *self._changes] if self._changes else []), empty, self._status_line()]
        # The columns of the table, a row, and an empty line have to fit too.
        limit = max(min(lines - len(below) - 3, 2 * MAX_MISSING), 0)
        if missing := [single_line(line, "yellow") for line in wrapped[:limit]]:
            below = [empty, *missing, *below]
        table = clusters.members_table(self._state, is_wide=self._is_wide)
        available = max(lines - len(below), 2)
        if len(table.rows) < available:
            return Group(*table_lines(table, columns), *below)
        fitting = available - 2
        more = single_line(f"... and {len(table.rows) - fitting} more", "dim")
        return Group(*table_lines(table._replace(rows=table.rows[:fitting]), columns), more, *below)

    def _status_line(self) -> Text:
        from aioresolve.cli.live import single_line

        number = len(self._state.members)
        tasks = f"{number} task{'' if number == 1 else 's'}"
        error = self._observation.error
        if error is None:
            text = f"{tasks}, last changed at {_local_time(self._changed_at)}: {self._scope}"
            return single_line(text, "dim")
        now = datetime.now(UTC)
        since = self._observation.stale_since or now
        age = formats.format_span((now - since).total_seconds())
        text = f"{tasks} as of {_local_time(since)}, {age} ago; no newer state: {error.summary}"
        return single_line(text, "red")


def _missing_lines(observation: Observation) -> list[str]:
    """Return a line for each reason for which tasks are missing or not ready, at most `MAX_MISSING`."""
    members = observation.state.members if observation.state else ()
    missing = (*observation.unready, *observation.absent, *(() if members else observation.unmatched))
    reasons = formats.by_reason({one.name: one.reason for one in missing})
    lines = [reason if names in reason else f"{names}: {reason}" for names, reason in reasons]
    more = len(lines) - MAX_MISSING
    return [*lines[:MAX_MISSING], *([f"and {more} more"] if more > 0 else [])]


def _local_time(moment: datetime) -> str:
    return f"{moment.astimezone():%H:%M:%S}"
