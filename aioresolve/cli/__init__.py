"""The `aioresolve` command. The rooms of click and rich, which the extra `cli` installs."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    0 is an answer, 1 none, 2 wrong usage or configuration, 3 a deadline that passed, 130 an interrupt. The
    answer is on stdout, everything else on stderr.

    Args:
        arguments: what follows the command's name; `sys.argv[1:]` where None.

    Raises:
        SystemExit: it was ended by SIGTERM (143), or whoever read stdout has gone (141).
    """
    missing = [name for name in ("click", "rich") if find_spec(name) is None]
    if missing:
        sys.stderr.write(
            f"error: the command line needs {' and '.join(missing)}: pip install 'aioresolve[cli]'\n"
        )
        return 2
    from .application import run

    return run(arguments)
