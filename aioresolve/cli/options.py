"""The options that every resolving command has, and how their values are read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .durations import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "output_option",
    "quiet_option",
    "read_by",
    "timeout_option",
    "verbose_option",
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


timeout_option = click.option(
    "--timeout",
    metavar="DURATION",
    callback=read_by(seconds),
    default="30s",
    show_default=True,
    help="Give up after this long in all: 30s, 2m, 1m30s, 500ms, or a number of seconds.",
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
    """Send our log lines to stderr until the command ends: at -v every request, at -vv everything."""
    if not verbosity:
        return
    logger = logging.getLogger("aioresolve")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)

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
