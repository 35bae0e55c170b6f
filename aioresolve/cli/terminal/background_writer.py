"""Writing to a stream for as long as a command goes on: a reader who is slow, or gone, holds up nothing."""

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

from aioresolve.cli.error_messages import OUTPUT_CLOSED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve.cli.running import Ending

__all__ = ["Pen", "pen"]

Job = tuple[bytes, "asyncio.Future[None]"]


class Pen:
    """Writes to one stream, in a thread, one text after the other.

    The thread is a daemon that holds no lock of the interpreter's: where the process ends while a reader does
    not read, nothing waits for them. (A worker thread of anyio's would be joined.)

    Args:
        stream: where to write.
        ending: ends the work as SIGPIPE would, once whoever read the stream has gone.
    """

    def __init__(self, stream: TextIO, ending: Ending) -> None:
        # The file below the buffer, whose lock would be held while a write waits.
        self._file: Any = getattr(stream.buffer, "raw", stream.buffer)
        self._encoding = stream.encoding
        self._ending = ending
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._last: asyncio.Future[None] | None = None
        threading.Thread(target=self._work, name="aioresolve pen", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether what was put down last is not written yet."""
        return self._last is not None and not self._last.done()

    async def write(self, text: str) -> None:
        """Write `text`, and return once that is done.

        Raises:
            click.ClickException: it could not be written.
        """
        try:
            await self._queued(text)
        except BrokenPipeError:
            self._ending.now(OUTPUT_CLOSED)
            await anyio.sleep_forever()
        except OSError as error:
            raise click.ClickException(f"the answer was not written to stdout: {error.strerror}") from error

    def put(self, text: str) -> None:
        """Let `text` be written after what came before it; a stream that fails ends the work."""
        self._last = self._queued(text)
        self._last.add_done_callback(self._end_if_failed)

    async def drained(self, patience: float) -> None:
        """Return once everything that was put down is written, or after `patience` seconds."""
        if self._last is not None:
            await asyncio.wait([self._last], timeout=patience)

    def close(self) -> None:
        """Let the thread end once everything is written."""
        self._jobs.put(None)

    def _queued(self, text: str) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((text.encode(self._encoding, "backslashreplace"), done))
        return done

    def _end_if_failed(self, done: asyncio.Future[None]) -> None:
        if done.exception() is not None:
            self._ending.now(OUTPUT_CLOSED)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            data, done = job
            failure: OSError | None = None
            try:
                _write(self._file, data)
            except OSError as error:
                failure = error
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(_settle, done, failure)


@contextmanager
def pen(stream: TextIO | None, ending: Ending) -> Iterator[Pen]:
    """Yield a pen for `stream`; a pipe whose last reader goes ends the work at once, with nothing written.

    Raises:
        click.ClickException: the stream is closed.
    """
    if stream is None:
        raise click.ClickException("the answer was not written: stdout is closed")
    loop = asyncio.get_running_loop()
    descriptor = _pipe_to_others(stream)
    if descriptor is not None:
        # A pipe's end for writing is never readable: it is reported for its error alone, that nobody reads.
        loop.add_reader(descriptor, _end, loop, descriptor, ending)
    one = Pen(stream, ending)
    try:
        yield one
    finally:
        one.close()
        if descriptor is not None:
            loop.remove_reader(descriptor)


def _end(loop: asyncio.AbstractEventLoop, descriptor: int, ending: Ending) -> None:
    loop.remove_reader(descriptor)
    ending.now(OUTPUT_CLOSED)


def _pipe_to_others(stream: TextIO) -> int | None:
    """Return the descriptor of a pipe that this process can only write to; None for anything else."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        descriptor = stream.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        is_ours_to_write = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except (OSError, ValueError):
        return None
    return descriptor if is_pipe and is_ours_to_write else None


def _write(file: Any, data: bytes) -> None:
    """Write all of `data`, waiting for room as long as it takes."""
    rest = memoryview(data)
    while rest:
        written = file.write(rest)
        if written is None:  # somebody made it non-blocking, and there is no room
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
