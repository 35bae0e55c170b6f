"""What Ctrl-C and SIGTERM do to this process while no event loop runs.

It imports nothing else of the command line, so that they are handled from the first moment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 130
"""128 + SIGINT, as a shell reports a process that Ctrl-C ended."""


def exit_on_signals() -> None:
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


def default_handlers() -> dict[int, Any]:
    """Return Ctrl-C and SIGTERM with their handlers, without those that the parent process ignores."""
    # Only the main thread can handle signals, and no event loop of Windows does.
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        return {}
    defaults = (signal.SIG_DFL, signal.default_int_handler, exit_at_once)
    found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    return {number: handler for number, handler in found.items() if handler in defaults}
