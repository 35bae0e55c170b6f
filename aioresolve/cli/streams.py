"""The output streams: data goes to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import os
import re
import select
import stat
import sys
import textwrap
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import click

from .formats import Table, aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OUTPUT_CLOSED = 141
"""128 + SIGPIPE, as a shell reports a process whose reader (such as `head`) has closed the pipe."""

_ERROR = re.compile("^error: .*$", re.MULTILINE)


def write_stdout(content: str | Table, *, has_headers: bool = True) -> None:
    """Write `content` to stdout at once: a table with colors and as wide as a terminal, or plain in a pipe.

    Tables are written without their headers if `has_headers` is false. If the reader has closed the pipe
    (`| head`), this exits with the code of SIGPIPE.
    """
    stream = _open_stdout()
    if isinstance(content, Table):
        if is_terminal(stream):
            content = content.fitted(terminal_width(stream))
        content = aligned(content, has_headers=has_headers, has_colors=has_colors(stream))
    data = content.encode(stream.encoding, "backslashreplace")
    try:
        if stream.isatty():
            stream.write(data.decode(stream.encoding))
        else:
            stream.flush()
            _write_all(_raw_file(stream), data)
        stream.flush()
    except OSError as error:
        discard(stream)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(OUTPUT_CLOSED) from None
        raise _write_error(error) from error


def write_stderr(text: str) -> None:
    """Write messages to stderr; a stderr that is closed is ignored.

    On a terminal, an error is wrapped at words, and `error:` is red.
    """
    stream: TextIO | None = sys.stderr
    if stream is None:
        return
    if is_terminal(stream):
        prefix, width = (
            click.style("error:", fg="red") if has_colors(stream) else "error:",
            terminal_width(stream),
        )

        def shown(line: re.Match[str]) -> str:
            wrapped = textwrap.fill(line[0], width, break_long_words=False, break_on_hyphens=False)
            return prefix + wrapped.removeprefix("error:")

        text = _ERROR.sub(shown, text)
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        discard(stream)


class StdoutWriter:
    """Writes texts to stdout from an event loop, so that a slow reader delays only the next text.

    A terminal is written to directly. If the reader has closed the stream, `exit_with` is called with an exit
    code, to end the command.
    """

    def __init__(self, stream: TextIO, exit_with: Callable[[int], None]) -> None:
        self._exit_with = exit_with
        self._is_terminal = is_terminal(stream)
        self._file = _raw_file(stream)
        self._encoding = stream.encoding

    async def write(self, text: str) -> None:
        """Write `text`, and return once it is written; a failure is a click.ClickException."""
        if self._is_terminal:
            write_stdout(text)
            return
        import anyio

        from aioresolve._core.threads import run_in_thread

        try:
            data = text.encode(self._encoding, "backslashreplace")
            await run_in_thread("write to stdout", _write_all, self._file, data)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                self._exit_with(OUTPUT_CLOSED)
                await anyio.sleep_forever()  # until the exit cancels this task
            raise _write_error(error) from error


@contextmanager
def stdout_writer(exit_with: Callable[[int], None]) -> Iterator[StdoutWriter]:
    """Yield a writer for stdout; if that is a pipe, the command ends as soon as the last reader closes it."""
    write_stdout("")  # what the calling program has printed before comes first
    stream = _open_stdout()
    writer = StdoutWriter(stream, exit_with)
    # Event loops of Windows do not watch pipes.
    if sys.platform == "win32" or not _is_pipe(stream):
        yield writer
        return
    import asyncio

    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(stream)
        exit_with(OUTPUT_CLOSED)

    # The writing end of a pipe never becomes readable; the event loop reports it when it has an error, which
    # means that no reader is left. Without this, the command would run until its next write.
    loop.add_reader(stream, end)
    try:
        yield writer
    finally:
        loop.remove_reader(stream)


def _is_pipe(stream: TextIO) -> bool:
    with suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    return False


def _raw_file(stream: TextIO) -> Any:
    """Return the file below the buffer of a stream.

    A write that blocks would hold the lock of the buffer, which the interpreter needs at exit.
    """
    return getattr(stream.buffer, "raw", stream.buffer)


def _write_all(file: Any, data: bytes) -> None:
    while data:
        written = file.write(data)
        if written is None:  # the pipe is full, and another process has made it non-blocking, as Node does
            select.select([], [file], [])
        data = data[written or 0 :]


def _open_stdout() -> TextIO:
    stream: TextIO | None = sys.stdout
    if stream is None:
        raise click.ClickException("cannot write the result: stdout is closed")
    return stream


def _write_error(error: OSError) -> click.ClickException:
    return click.ClickException(f"cannot write the result to stdout: {error.strerror}")


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether `stream` is a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width(stream: TextIO) -> int:
    """Return the number of columns of the terminal that `stream` is."""
    columns = 0
    with suppress(OSError, ValueError):
        columns = os.get_terminal_size(stream.fileno()).columns
    return columns or 80


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
    with open(os.devnull, "w") as null:
        os.dup2(null.fileno(), stream.fileno())
