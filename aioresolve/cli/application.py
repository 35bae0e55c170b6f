"""The root command: it loads subcommands, runs their async work, and turns errors into exit codes."""

from __future__ import annotations

import logging
import re
import signal
import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aioresolve._version import __version__
from aioresolve.errors import ResolveError

from . import streams
from .error_messages import COULD_NOT_RESOLVE, WRONG_USAGE, exit_code, write_report
from .formats import one_line
from .options import OUTPUT, CommandGroup
from .signals import INTERRUPTED, default_handlers

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import TypeAlias

    ExitWith: TypeAlias = Callable[[int], None]

NAME = "aioresolve"

COMMANDS = {
    **dict.fromkeys(("kubernetes", "tpu", "here"), ".commands.resolve"),
    **{
        name: f".commands.{name}"
        for name in ("watch", "wait", "exec", "poll", "probe", "doctor", "rendezvous", "demo")
    },
    "completion": ".completion",
}
"""The subcommands, which are imported when used, and the module of each."""

T = TypeVar("T")


class Application(CommandGroup):
    """A group that imports a subcommand when it is used, and reports the errors of aioresolve."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of all commands; `-o=json` is accepted for `-o json`, as by kubectl."""
        end = args.index("--") if "--" in args else len(args)
        before = [re.sub("^-([lno])=", r"-\1", argument) for argument in args[:end]]
        return super().parse_args(ctx, before + args[end:])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands, in the order of `--help`."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, and import it if necessary."""
        name = "kubernetes" if cmd_name == "k8s" else cmd_name
        if name not in COMMANDS:
            return super().get_command(ctx, name)
        command: click.Command = getattr(import_module(COMMANDS[name], __package__), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, and exit with the code for its error or for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except ResolveError as error:
            write_report(error, ctx.meta.get(OUTPUT))
            # Messages of aioresolve contain no credentials, and neither do those that it keeps as causes.
            logging.getLogger(NAME).info(
                "traceback of the error:\n%s", "".join(traceback.format_exception(error)).rstrip()
            )
            ctx.exit(exit_code(error))
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(
    cls=Application,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success, 1 could not resolve or nothing found, 2 invalid usage or configuration,"
    " 3 deadline passed, 130 and 143 ended by Ctrl-C and SIGTERM.",
)
@click.version_option(__version__, message="%(prog)s %(version)s", help="The same as `aioresolve version`.")
@click.pass_context
def application(context: click.Context) -> None:
    """Find the tasks of a cluster and their addresses.

    \b
    aioresolve kubernetes -l app=trainer                   the pods of a label selector, as tasks
    aioresolve tpu my-tpu                                  the workers of a Cloud TPU, as tasks
    aioresolve here                                        the cluster that this process is part of
    aioresolve watch kubernetes -l app=trainer             tasks as they join and leave
    aioresolve wait tpu my-tpu --timeout 30m               a cluster, once it is complete
    aioresolve exec kubernetes -l app=x --for jax -- CMD   a program, once its cluster is complete
    aioresolve poll fleet.yaml                             many clusters at once
    aioresolve probe 10.0.0.7 10.0.0.8                     the devices of workers
    aioresolve doctor kubernetes -l app=trainer            which step fails, and what to change
    aioresolve rendezvous train                            the nodes of an elastic job of torchrun
    aioresolve demo                                        a demonstration without a cluster
    """
    if context.invoked_subcommand is None:
        streams.write_stderr(f"{context.get_help()}\n")
        context.exit(WRONG_USAGE)


@application.command("help", short_help="The help of a command.")
@click.argument("names", metavar="[COMMAND]...", nargs=-1)
def help_(names: tuple[str, ...]) -> None:
    """Print what `aioresolve COMMAND --help` prints."""
    application.main([*names, "--help"], prog_name=NAME, standalone_mode=False)


@application.command(short_help="The version of aioresolve.")
def version() -> None:
    """Print the version of aioresolve; `aioresolve doctor` prints those of its libraries."""
    streams.write_stdout(f"{NAME} {__version__}\n")


def run_command(arguments: Sequence[str] | None) -> int:
    """Run the root command and return the exit code."""
    try:
        code = application.main(arguments, prog_name=NAME, standalone_mode=False)
    except click.UsageError as error:
        _report_wrong_usage(error)
        return error.exit_code
    except click.ClickException as error:
        streams.write_stderr(f"error: {error.format_message()}\n")
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except OSError as error:
        # Errors of files and sockets are ResolveErrors: this is a lack of memory, descriptors or disk space.
        logging.getLogger(NAME).info("traceback of the error:", exc_info=True)
        streams.discard(sys.stdout)
        streams.write_stderr(f"error: {error}\n")
        return COULD_NOT_RESOLVE
    return code if isinstance(code, int) else 0


def _report_wrong_usage(error: click.UsageError) -> None:
    assert error.ctx is not None  # click sets it where a command has not
    command = error.ctx.command
    message = one_line(error.format_message())
    extra = re.search(r"unexpected extra arguments? \((.+)\)", message)
    if extra and any(each.name == "selectors" for each in command.params):
        selector = extra[1] if "=" in extra[1] else "app=trainer"
        message = f"unexpected argument {extra[1]!r}; pass a selector with -l, such as -l {selector}"
    elif isinstance(error, click.NoSuchOption) and command is application:
        message += " Options come after the command, such as aioresolve kubernetes -l app=trainer"
    streams.write_stderr(f"error: {message}\nTry '{error.ctx.command_path} --help'.\n")


def run_async(work: Callable[[ExitWith], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in a new event loop and return its result.

    `work` is called with a function that ends it early with an exit code, as Ctrl-C (130) and SIGTERM (143)
    do: the function cancels `work`, and after the cleanup `run_async` raises SystemExit with the code. A
    second signal ends the process although its cleanup hangs.
    """
    import asyncio

    streams.silence_grpc()
    codes: list[int] = []

    async def main() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def exit_with(code: int) -> None:
            codes.append(code)
            if len(codes) == 1:
                task.cancel()

        def restore(number: int) -> None:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])

        def handle(number: int) -> None:
            # Back to the default action: a second signal ends a process whose cleanup hangs.
            restore(number)
            exit_with(128 + number)

        before = default_handlers()
        for number in before:
            loop.add_signal_handler(number, handle, number)
        try:
            return await work(exit_with)
        finally:
            for number in before:
                restore(number)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if not codes:  # neither a signal nor `work` has requested an exit
            raise
        raise SystemExit(codes[0]) from None
