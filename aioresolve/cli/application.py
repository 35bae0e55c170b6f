"""The root command: it loads subcommands, runs their async work, and turns errors into exit codes."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aioresolve._version import __version__
from aioresolve.errors import ResolveError

from . import INTERRUPTED, default_interrupts, exit_at_once
from .options import SHORT_NAMES, CommandGroup
from .output.error_messages import (
    COULD_NOT_RESOLVE,
    TERMINATED,
    WRONG_USAGE,
    error_report,
    exit_code,
    redacted_traceback,
)
from .terminal import streams

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator, Sequence

NAME = "aioresolve"

COMMANDS = ("kubernetes", "tpu", "here", "watch", "wait", "exec", "poll", "probe", "doctor", "demo")
"""The subcommands that are imported when used: each has its name in the module of that name in `commands`."""

SHORT_OPTION_AND_VALUE = re.compile("(-[lno])=(.*)", re.DOTALL)
"""A short option and its value, as kubectl accepts them: `-o=json`."""

T = TypeVar("T")


class Application(CommandGroup):
    """A group that imports a subcommand when it is used, and reports the errors of aioresolve."""

    kind = "command"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments of all commands, with short options as in kubectl."""
        end = args.index("--") if "--" in args else len(args)
        parsed: list[str] = []
        for argument in args[:end]:
            match = SHORT_OPTION_AND_VALUE.fullmatch(argument)
            parsed += [argument] if match is None else match.groups()
        return super().parse_args(ctx, parsed + args[end:])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands, in the order of `--help`."""
        return [*COMMANDS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, and import it if necessary."""
        name = SHORT_NAMES.get(cmd_name, cmd_name)
        if name not in COMMANDS:
            return super().get_command(ctx, name)
        command: click.Command = getattr(import_module(f"{__package__}.commands.{name}"), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, and exit with the code for its error or for Ctrl-C."""
        try:
            return super().invoke(ctx)
        except ResolveError as error:
            streams.write_stderr(error_report(error))
            logger = logging.getLogger(NAME)
            if logger.isEnabledFor(logging.INFO):
                logger.info("traceback of the error:\n%s", redacted_traceback(error))
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
@click.option(
    "--version", "is_version", is_flag=True, help="Show the version and exit; with -v, what it runs on."
)
@click.option("-v", "is_verbose", is_flag=True, hidden=True)
@click.pass_context
def application(context: click.Context, is_version: bool, is_verbose: bool) -> None:
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
    aioresolve demo                                        a demonstration without a cluster
    """
    if is_version:
        streams.write_stdout(_versions() if is_verbose else f"{NAME} {__version__}\n")
        context.exit()
    if is_verbose:
        raise click.UsageError("-v requires --version here; for a command pass it after its name")
    if context.invoked_subcommand is None:
        streams.write_stderr(f"{context.get_help()}\n")
        context.exit(WRONG_USAGE)


def _versions() -> str:
    """Return the versions of what may change how a command works, one per line."""
    from aioresolve.environment.doctor import installed_versions

    return "".join(f"{line}\n" for line in installed_versions())


COMPLETION_EPILOG = """\
\b
Examples:
  source <(aioresolve completion bash)                                           # in ~/.bashrc
  source <(aioresolve completion zsh)                                            # in ~/.zshrc
  aioresolve completion fish > ~/.config/fish/completions/aioresolve.fish
"""


SCRIPT_CORRECTIONS = (
    # The fish script of click splits each candidate at all commas, also at those of its description.
    ('string split "," ', 'string split --max 1 "," '),
    # bash splits words at `=` too, and replaces only the part after the last one.
    (
        """\
    local response

    response=$(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD""",
        """\
    local response words=() cword=0 i

    for ((i = 0; i < ${#COMP_WORDS[@]}; i++)); do
        if ((i > 0)) && [[ ${COMP_WORDS[i]} == =* || ${COMP_WORDS[i - 1]} == *= ]]; then
            words[-1]+=${COMP_WORDS[i]}
        else
            words+=("${COMP_WORDS[i]}")
        fi
        ((i == COMP_CWORD)) && cword=$((${#words[@]} - 1))
    done
    local word=${words[cword]}
    local replaced=$word
    [[ $COMP_WORDBREAKS == *=* ]] && replaced=${word##*=}

    response=$(env COMP_WORDS="${words[*]}" COMP_CWORD=$cword""",
    ),
    ("COMPREPLY+=($value)", 'COMPREPLY+=("${value#"${word%"$replaced"}"}")'),
)
"""Corrections of the scripts of click: texts, and what replaces them."""


@application.command(epilog=COMPLETION_EPILOG, short_help="The completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands, options and their values.

    Contexts are read from the kubeconfig, and namespaces and labels of pods from the cluster.
    """
    from click.shell_completion import ShellComplete, get_completion_class

    root = context.find_root()
    name = root.info_name or ""
    completer = get_completion_class(shell)
    assert completer is not None
    # The method of the base class: that of bash would first start a bash, to check its version.
    script = ShellComplete.source(completer(root.command, {}, name, f"_{name.upper()}_COMPLETE"))
    for old, new in SCRIPT_CORRECTIONS:
        script = script.replace(old, new)
    streams.write_stdout(script)


def run_command(arguments: Sequence[str] | None) -> int:
    """Run the root command and return the exit code."""
    try:
        streams.flush_stdout()
        code = application.main(arguments, prog_name=NAME, standalone_mode=False)
    except click.UsageError as error:
        streams.write_stderr(_usage_message(error))
        return error.exit_code
    except click.ClickException as error:
        streams.write_stderr(f"error: {error.format_message()}\n")
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except OSError as error:
        # Errors of files and sockets are ResolveErrors: this is a lack of memory, descriptors or disk space.
        streams.discard(sys.stdout)
        streams.write_stderr(f"error: {error}\n")
        return COULD_NOT_RESOLVE
    return code if isinstance(code, int) else 0


def _usage_message(error: click.UsageError) -> str:
    command = NAME if error.ctx is None else error.ctx.command_path
    return f"error: {error.format_message()}\nTry '{command} --help'.\n"


class ExitRequest:
    """Ends a command early: cancels its work, and sets the exit code of the process."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.code: int | None = None
        self._task = task

    def exit(self, code: int) -> None:
        """Cancel the work and exit with `code`; only the first call has an effect."""
        if self.code is None:
            self.code = code
            self._task.cancel()


def run_async(work: Callable[[ExitRequest], Coroutine[Any, Any, T]]) -> T:
    """Run `work` in a new event loop and return its result.

    Ctrl-C (130), SIGTERM (143) or a requested exit cancels `work`; after it has cleaned up, it is a
    SystemExit. A second signal ends the process although its cleanup hangs.
    """
    import asyncio

    requests: list[ExitRequest] = []

    async def main(signals: dict[int, int]) -> T:
        task = asyncio.current_task()
        assert task is not None
        request = ExitRequest(task)
        requests.append(request)
        with _exit_on(signals, request):
            return await work(request)

    try:
        with default_interrupts(), streams.dropping_unread_messages():
            return asyncio.run(main(_signals_to_handle()))
    except asyncio.CancelledError:
        # Without a code, neither a signal nor `work` has requested an exit.
        code = requests[0].code if requests else None
        if code is None:
            raise
        raise SystemExit(code) from None


def _signals_to_handle() -> dict[int, int]:
    """Return the signals that end a command, with its exit codes.

    Not those that the parent process has ignored or that something else handles.
    """
    import signal
    import threading

    # Only the main thread can handle signals.
    if threading.current_thread() is not threading.main_thread():
        return {}
    codes: dict[int, int] = {}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        codes[signal.SIGINT] = INTERRUPTED
    if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, exit_at_once):
        codes[signal.SIGTERM] = TERMINATED
    return codes


@contextmanager
def _exit_on(signals: dict[int, int], request: ExitRequest) -> Iterator[None]:
    """Exit on each of the signals with its code.

    The event loop calls their handlers between two callbacks. The handler of `asyncio.run` for Ctrl-C cancels
    in the midst of one: if that is about to complete the future that is now cancelled, asyncio logs an error.
    """
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in signals}

    def remove(number: int) -> None:
        loop.remove_signal_handler(number)
        signal.signal(number, before[number])

    def handle(number: int) -> None:
        # Back to the default action: a second signal ends a process whose cleanup hangs.
        remove(number)
        request.exit(signals[number])

    with suppress(NotImplementedError):  # on Windows, where asyncio.run handles Ctrl-C, and nothing SIGTERM
        for number in signals:
            loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for number in signals:
                remove(number)
