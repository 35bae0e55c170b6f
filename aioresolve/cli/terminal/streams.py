"""The two streams: the answer goes to stdout and whatever else is to be said to stderr."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, TextIO

import click

from aioresolve.cli.error_messages import OUTPUT_CLOSED
from aioresolve.cli.output.formats import aligned, plain_sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.cli.output.formats import Section, Table

__all__ = [
    "can_draw",
    "complain",
    "discard",
    "has_colours",
    "hush_grpc",
    "is_terminal",
    "sections_text",
    "table_text",
    "write",
]


def write(text: str) -> None:
    """Write the answer to stdout, whole.

    Raises:
        SystemExit: whoever read it has gone (`| head`); the code is that of SIGPIPE.
        click.ClickException: it could not be written.
    """
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise click.ClickException("the answer was not written: stdout is closed")
    try:
        stream.buffer.write(text.encode(stream.encoding, "backslashreplace"))
        stream.buffer.flush()
    except BrokenPipeError:
        discard(stream)
        raise SystemExit(OUTPUT_CLOSED) from None
    except OSError as error:
        discard(stream)
        raise click.ClickException(f"the answer was not written to stdout: {error.strerror}") from error


def complain(text: str) -> None:
    """Write what is no answer to stderr; where nobody reads that, there is nobody to tell."""
    stream: TextIO | None = sys.stderr
    try:
        if stream is not None:
            stream.write(text)
            stream.flush()
    except OSError:
        discard(stream)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person looks at `stream`, on a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def can_draw(stream: TextIO | None) -> bool:
    """Whether something may be drawn in place on `stream`: on a terminal, where no log lines come between."""
    return is_terminal(stream) and not logging.getLogger("aioresolve").isEnabledFor(logging.INFO)


def has_colours(stream: TextIO | None) -> bool:
    """Whether `stream` is a terminal whose owner has not asked for NO_COLOR (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def table_text(table: Table) -> str:
    """Return the table for stdout as it is: drawn on a terminal, plain in a pipe or a file."""
    if not has_colours(sys.stdout):
        return aligned(table)
    from .drawing import drawn_table

    return drawn_table(table)


def sections_text(sections: Sequence[Section]) -> str:
    """Return the page for stdout as it is: drawn on a terminal, plain in a pipe or a file."""
    if not has_colours(sys.stdout):
        return plain_sections(sections)
    from .drawing import drawn_sections

    return drawn_sections(sections)


def hush_grpc() -> None:
    """Keep the log of gRPC's core, which it writes to stderr by itself, from who has not asked for it.

    To be called before grpc is imported: it reads `$GRPC_VERBOSITY` then.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def discard(stream: TextIO | None) -> None:
    """Let what is still buffered go nowhere, so that the interpreter does not trip over it at exit."""
    if stream is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    finally:
        os.close(null)
