"""Writing to a stream from a thread, so that a slow or absent reader does not block the event loop."""

from __future__ import annotations

import asyncio
import os
import queue
import select
import stat
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import anyio
import click

from aioresolve.cli.output.error_messages import OUTPUT_CLOSED

from .streams import is_reader_gone

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QueuedWrite = tuple[bytes, "asyncio.Future[None]"]


class BackgroundWriter:
    """Writes texts to one stream in order, in a daemon thread.

    The thread is not one of anyio's, which the interpreter would join at exit: if the process ends while the
    reader does not read, it must not wait for the pending write. If the reader has closed the stream,
    `exit_with` is called with an exit code, to end the command.
    """

    def __init__(self, stream: TextIO, exit_with: Callable[[int], None]) -> None:
        # The raw file: a blocked write would hold the lock of the buffer above it, which the interpreter
        # needs at exit.
        self._file: Any = getattr(stream.buffer, "raw", stream.buffer)
        self._encoding = stream.encoding
        self._exit_with = exit_with
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[QueuedWrite | None] = queue.SimpleQueue()
        self._last: asyncio.Future[None] | None = None
        threading.Thread(target=self._work, name="aioresolve writer", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether the last text passed to `write_soon` is not written yet."""
        return self._last is not None and not self._last.done()

    async def write(self, text: str) -> None:
        """Write `text`, and return once it is written; a failure is a click.ClickException."""
        try:
            await self._enqueue(text)
        except OSError as error:
            if is_reader_gone(error):
                self._exit_with(OUTPUT_CLOSED)
                await anyio.sleep_forever()  # until the exit cancels this task
            raise click.ClickException(f"cannot write the result to stdout: {error.strerror}") from error

    def write_soon(self, text: str) -> None:
        """Write `text` after all earlier texts, without waiting; a failure ends the command."""
        self._last = self._enqueue(text)
        self._last.add_done_callback(self._exit_if_failed)

    async def flush(self, timeout: float) -> None:
        """Wait until everything passed to `write_soon` is written, for `timeout` seconds at most."""
        if self._last is not None:
            await asyncio.wait([self._last], timeout=timeout)

    def close(self) -> None:
        """End the thread once everything is written."""
        self._queue.put(None)

    def _enqueue(self, text: str) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((text.encode(self._encoding, "backslashreplace"), done))
        return done

    def _exit_if_failed(self, done: asyncio.Future[None]) -> None:
        if done.exception() is not None:
            self._exit_with(OUTPUT_CLOSED)

    def _work(self) -> None:
        while (write := self._queue.get()) is not None:
            data, done = write
            failure: OSError | None = None
            try:
                _write_all(self._file, data)
            except OSError as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed, so nothing awaits the future any longer
                self._loop.call_soon_threadsafe(_settle, done, failure)


@contextmanager
def background_writer(
    stream: TextIO | None, exit_with: Callable[[int], None], *, is_endless: bool = True
) -> Iterator[BackgroundWriter]:
    """Yield a writer for `stream`.

    If it is a pipe, a command that is endless ends as soon as the last reader closes it; another one ends
    with its next write, because the reader may have read everything.
    """
    if stream is None:
        raise click.ClickException("cannot write the result: stdout is closed")
    loop = asyncio.get_running_loop()
    descriptor = _write_only_pipe(stream) if is_endless else None
    if descriptor is not None:
        # The writing end of a pipe never becomes readable; the event loop reports it when it has an error,
        # which means that no reader is left. Without this, the command would run until its next write.
        loop.add_reader(descriptor, _exit_without_reader, loop, descriptor, exit_with)
    writer = BackgroundWriter(stream, exit_with)
    try:
        yield writer
    finally:
        writer.close()
        if descriptor is not None:
            loop.remove_reader(descriptor)


def _exit_without_reader(
    loop: asyncio.AbstractEventLoop, descriptor: int, exit_with: Callable[[int], None]
) -> None:
    loop.remove_reader(descriptor)
    exit_with(OUTPUT_CLOSED)


def _write_only_pipe(stream: TextIO) -> int | None:
    """Return the file descriptor of `stream` if it is a pipe that this process can only write to."""
    # On Windows, the event loop does not watch pipes.
    if sys.platform != "win32":
        import fcntl

        with suppress(OSError, ValueError):
            descriptor = stream.fileno()
            is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
            is_write_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
            if is_pipe and is_write_only:
                return descriptor
    return None


def _write_all(file: Any, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = file.write(rest)
        if written is None:  # another process made the file non-blocking, and it is full
            select.select([], [file], [])
        else:
            rest = rest[written:]


def _settle(done: asyncio.Future[None], failure: OSError | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
