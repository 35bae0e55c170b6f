"""The `aioresolve` command. It requires click and rich, which the extra `cli` installs."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["main"]


INTERRUPTED = 130
"""128 + SIGINT, as a shell reports a process that Ctrl-C ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    The result is written to stdout, everything else to stderr. Exit codes: 0 for success, 1 for failure, 2
    for invalid usage or configuration, 3 if a deadline passed, 130 for Ctrl-C.

    Args:
        arguments: the arguments of the command; None for `sys.argv[1:]`.

    Raises:
        SystemExit: SIGTERM was received (143), or the reader closed stdout (141).
    """
    if sys.hexversion < 0x030B0000:
        found = f"{sys.version_info.major}.{sys.version_info.minor}"
        sys.stderr.write(f"error: aioresolve requires Python 3.11 or later; this is Python {found}\n")
        return 2
    if arguments is None:  # this process runs nothing else
        _exit_on_signals()
    # Otherwise the interpreter searches the objects of all modules for garbage before it exits.
    atexit.register(gc.freeze)
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command line requires {' and '.join(missing)}: pip install 'aioresolve[cli]'\n"
        )
        return 2
    from .application import run_command

    return run_command(arguments)


def _exit_on_signals() -> None:
    """Have Ctrl-C, and in the first process of a container other signals too, end this process at once.

    That is while no event loop runs, and not if the parent process ignores the signal.

    A KeyboardInterrupt could be lost: Python ignores exceptions in callbacks of weak references, and its
    import system has such callbacks.
    """
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        return
    # For the first process the kernel drops signals that have no handler.
    others = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT) if os.getpid() == 1 else ()
    for number in (signal.SIGINT, *others):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, exit_at_once)


def exit_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal while no event loop runs: end this process, without cleanup."""
    os._exit(128 + number)
