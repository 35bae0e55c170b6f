"""The output streams: data goes to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

import click

from aioresolve.cli.output.error_messages import OUTPUT_CLOSED
from aioresolve.cli.output.formats import Table, aligned, plain_sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aioresolve.cli.output.formats import Section


def write_stdout(content: str | Table, *, has_headers: bool = True) -> None:
    """Write `content` to stdout at once: a table with colors on a terminal, plain in a pipe or file.

    Tables are written without their headers if `has_headers` is false.

    If the reader has closed the pipe (`| head`), this exits with the code of SIGPIPE.
    """
    if not isinstance(content, Table):
        _write(content)
    elif has_colors(sys.stdout):
        from .drawing import render_table

        _write(render_table(content, has_headers=has_headers))
    else:
        _write(aligned(content, has_headers=has_headers))


def write_sections(sections: Sequence[Section]) -> None:
    """Write a page to stdout, with colors on a terminal (see `write_stdout`)."""
    if has_colors(sys.stdout):
        from .drawing import render_sections

        _write(render_sections(sections))
    else:
        _write(plain_sections(sections))


def flush_stdout() -> None:
    """Write what the process printed before it called a command, or it would follow the result."""
    if sys.stdout is not None:
        with _failing_as_a_command(sys.stdout):
            sys.stdout.flush()


def _write(text: str) -> None:
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise click.ClickException("cannot write the result: stdout is closed")
    with _failing_as_a_command(stream):
        stream.buffer.write(text.encode(stream.encoding, "backslashreplace"))
        stream.buffer.flush()


@contextmanager
def _failing_as_a_command(stream: TextIO) -> Iterator[None]:
    """End the command if writing to `stream` inside the block fails."""
    try:
        yield
    except OSError as error:
        discard(stream)
        if is_reader_gone(error):
            raise SystemExit(OUTPUT_CLOSED) from None
        raise click.ClickException(f"cannot write the result to stdout: {error.strerror}") from error
    except KeyboardInterrupt:
        discard(stream)  # at exit, the interpreter would write the rest, and wait for the same reader
        raise


def is_reader_gone(error: OSError) -> bool:
    """Return whether writing failed because the process that reads the stream has closed it."""
    if sys.platform == "win32" and error.errno == errno.EINVAL:
        return True  # so do pipes of Windows fail
    return isinstance(error, BrokenPipeError)


PIPE_BUF = 512
"""Bytes that a pipe accepts without blocking if select() reports that it can be written; POSIX's minimum."""

_may_block = True
"""Whether `write_stderr` waits for a reader of stderr that does not read."""


@contextmanager
def dropping_unread_messages() -> Iterator[None]:
    """Inside the block, drop messages to stderr while its reader does not read.

    In an event loop, waiting for the reader would stop deadlines, signals and the output of results.
    """
    global _may_block
    _may_block = False
    try:
        yield
    finally:
        _may_block = True


def write_stderr(text: str) -> bool:
    """Write a message to stderr, and return False if it was dropped; a stderr that is closed is ignored."""
    stream: TextIO | None = sys.stderr
    if stream is None:
        return True
    try:
        if not _may_block and sys.platform != "win32":  # where select() supports sockets only
            with suppress(io.UnsupportedOperation):  # not a file of the system
                return _write_if_read(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
        stream.write(text)
        stream.flush()
    except OSError:
        discard(stream)
    return True


def _write_if_read(descriptor: int, data: bytes) -> bool:
    """Write data as far as that does not block, and return whether any was written."""
    rest = data
    while rest and select.select([], [descriptor], [], 0)[1]:
        try:
            rest = rest[os.write(descriptor, rest[:PIPE_BUF]) :]
        except BlockingIOError:  # another process made the file non-blocking, and it is full
            break
    return len(rest) < len(data)


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def can_draw(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal on which no log lines are written between redraws."""
    return is_terminal(stream) and not logging.getLogger("aioresolve").isEnabledFor(logging.INFO)


def has_colors(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal and NO_COLOR is not set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def silence_grpc() -> None:
    """Stop gRPC's core from logging to stderr, unless `$GRPC_VERBOSITY` is set.

    Call this before grpc is imported, which is when gRPC reads the variable.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def discard(stream: TextIO | None) -> None:
    """Redirect a broken stream to the null device: flushing it at exit would fail otherwise."""
    if stream is None:
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, stream.fileno())
    finally:
        os.close(null)
