"""The options that every resolving command has, and how their values are read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aioresolve.durations import seconds

from . import arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .arguments import Task

__all__ = [
    "check_task",
    "interval_option",
    "output_option",
    "quiet_option",
    "read_by",
    "stacked",
    "task_option",
    "timeout_option",
    "verbose_option",
    "watch_option",
    "worker_timeout_option",
    "workers_at_once_option",
]

C = TypeVar("C", bound="Callable[..., Any]")


def read_by(read: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return the callback of an option whose text a pure function reads; its ValueError is wrong usage."""

    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        try:
            if isinstance(value, tuple):
                return tuple(map(read, value))
            return None if value is None else read(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=context, param=parameter) from error

    return callback


def stacked(*options: Callable[[Any], Any]) -> Callable[[C], C]:
    """Return the decorator that adds all these options, which `--help` shows in this order."""

    def decorate(command: C) -> C:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(formats: Sequence[str]) -> Callable[[C], C]:
    """Return `-o/--output`, one of `formats`; the first is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="What to print on stdout.",
    )


def timeout_option(default: str = "30s", what: str = "Give up after this long in all") -> Callable[[C], C]:
    """Return `--timeout`; `what` is said in its help, and followed by the forms of a span."""
    return click.option(
        "--timeout",
        metavar="DURATION",
        callback=read_by(seconds),
        default=default,
        show_default=True,
        help=f"{what}: 30s, 2m, 1m30s, 500ms, or a number of seconds.",
    )


def interval_option(default: str, of: str) -> Callable[[C], C]:
    """Return `--interval`; `of` says in its help what is asked at intervals."""
    return click.option(
        "--interval",
        metavar="DURATION",
        callback=read_by(seconds),
        default=default,
        show_default=True,
        help=f"How long to wait between two questions to {of}.",
    )


def watch_option(source: str) -> Callable[[C], C]:
    """Return `-w/--watch` of the command that resolves `source`."""
    return click.option(
        "-w",
        "--watch",
        "is_watched",
        is_flag=True,
        help=f"Go on with a row for each change, as `aioresolve watch {source}` does.",
    )


def check_task(task: Task | None, output: str) -> None:
    """Raise that `--task` was given to an output which does not name it."""
    if task is not None and output != "tf-config":
        raise click.UsageError("--task goes with -o tf-config; leave it out, or add that")


task_option = click.option(
    "--task",
    metavar="JOB:INDEX",
    callback=read_by(arguments.task),
    help="With -o tf-config: the task that will read it, such as worker:0.",
)

worker_timeout_option = click.option(
    "--worker-timeout",
    metavar="DURATION",
    callback=read_by(seconds),
    default="5s",
    show_default=True,
    help="Give one worker up after this long, connecting included.",
)

workers_at_once_option = click.option(
    "--max-concurrency",
    metavar="N",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="How many workers are asked at a time.",
)

quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="No progress and no notes on stderr; errors only."
)


def _log_to_stderr(context: click.Context, _: click.Parameter, verbosity: int) -> None:
    """Send our log lines to stderr until the command ends: at -v every request, at -vv everything.

    Without it they go nowhere: a command says by itself what is wrong, in its own words.
    """
    logger = logging.getLogger("aioresolve")
    handler: logging.Handler = logging.NullHandler()
    if verbosity:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
        logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    logger.addHandler(handler)

    @context.find_root().call_on_close
    def undo() -> None:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_log_to_stderr,
    help="Log each request with its duration, and where an error came from; -vv logs more.",
)
