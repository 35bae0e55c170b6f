"""The `aioresolve` command. It requires click and rich, which the extra `cli` installs."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .signals import exit_on_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


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
        exit_on_signals()
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
