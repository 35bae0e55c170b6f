"""Writes the man page of the `aioresolve` command, from its `--help`.

python docs/man_page.py > aioresolve.1
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from aioresolve._version import __version__
from aioresolve.cli.application import application

if TYPE_CHECKING:
    from collections.abc import Iterator


def commands(command: Any, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield a command and all of its subcommands, each with its context."""
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, click.Context(found, info_name=name, parent=context))


def escaped(text: str) -> str:
    """Return text in which roff sees neither requests nor escapes."""
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", r"\e").replace("-", r"\-"), flags=re.MULTILINE)


def man_page() -> str:
    """Return the man page: a section for each command, with the text of its `--help`."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    lines = [f'.TH AIORESOLVE 1 "{today}" "aioresolve {__version__}"', ".SH NAME"]
    lines += [escaped("aioresolve - find the tasks of a cluster and their addresses")]
    root = click.Context(application, info_name="aioresolve", max_content_width=100)
    for command, context in commands(application, root):
        title = context.command_path.upper() if context.parent else "SYNOPSIS"
        lines += [f".SH {escaped(title)}", ".nf", escaped(command.get_help(context)), ".fi"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(man_page(), end="")
