"""The command's root: its subcommands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from aioresolve._version import __version__
from aioresolve.errors import ResolveError

from .commands.demo import demo
from .commands.kubernetes import kubernetes
from .commands.poll import poll
from .commands.probe import probe
from .commands.tpu import tpu
from .commands.wait import wait
from .commands.watch import watch
from .completion import completion
from .error_messages import (
    COULD_NOT_RESOLVE,
    INTERRUPTED,
    WRONG_USAGE,
    error_report,
    exit_code,
    redacted_traceback,
)
from .terminal import streams

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["application", "run"]

NAME = "aioresolve"


class Application(click.Group):
    """A group that tells our errors to the person who typed the command."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; an error of ours, or Ctrl-C, ends it with the exit code that says so."""
        try:
            return super().invoke(ctx)
        except ResolveError as error:
            streams.complain(error_report(error))
            logger = logging.getLogger(NAME)
            if logger.isEnabledFor(logging.INFO):
                logger.info("where that came from:\n%s", redacted_traceback(error))
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(
    cls=Application,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 answered, 1 could not resolve, 2 wrong usage or configuration, 3 too late,"
    " 130 and 143 ended by Ctrl-C and SIGTERM.",
)
@click.version_option(__version__, prog_name=NAME, message="%(prog)s %(version)s")
@click.pass_context
def application(context: click.Context) -> None:
    """Who is in my cluster, at which address.

    \b
    aioresolve kubernetes -l worker=app=trainer            the pods of a job, as tasks
    aioresolve tpu my-tpu                                  the workers of a Cloud TPU, as tasks
    aioresolve watch kubernetes -l worker=app=trainer      who joins them, and who leaves
    aioresolve wait tpu my-tpu --timeout 30m               a cluster, once it is complete
    aioresolve poll fleet.yaml                             many clusters, side by side
    aioresolve probe 10.0.0.7 10.0.0.8                     which devices do workers have
    aioresolve demo                                        see it work, without a cluster
    """
    if context.invoked_subcommand is None:
        streams.complain(f"{context.get_help()}\n")
        context.exit(WRONG_USAGE)


application.add_command(kubernetes)
application.add_command(tpu)
application.add_command(watch)
application.add_command(wait)
application.add_command(poll)
application.add_command(probe)
application.add_command(demo)
application.add_command(completion)


def run(arguments: Sequence[str] | None) -> int:
    """Run the command and return its exit code."""
    try:
        code = application.main(arguments, prog_name=NAME, standalone_mode=False)
    except click.UsageError as error:
        streams.complain(_usage(error))
        return error.exit_code
    except click.ClickException as error:
        streams.complain(f"error: {error.format_message()}\n")
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except OSError as error:
        # A command's own files and sockets have errors of ours: here the machine ran out of something.
        streams.discard(sys.stdout)
        streams.complain(f"error: {error}\n")
        return COULD_NOT_RESOLVE
    return code if isinstance(code, int) else 0


def _usage(error: click.UsageError) -> str:
    """Return what is wrong with the command as it was typed, and where to read on."""
    command = NAME if error.ctx is None else error.ctx.command_path
    return f"error: {error.format_message()}\nTry '{command} --help'.\n"
