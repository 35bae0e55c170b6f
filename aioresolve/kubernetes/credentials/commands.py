"""What a command printed: a child process, both its pipes drained, its output bounded, gone when cancelled.

asyncio's subprocess protocol is used because `Process.wait()`, asyncio's and with it anyio's before 4.14,
waits until every pipe is closed: a grandchild that inherited one would hold the credentials up until the
deadline.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from aioresolve.errors import CredentialsError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

__all__ = ["output_of"]

MAX_STDOUT = 1024 * 1024
"""Bytes of standard output; credentials are a few KB."""

MAX_STDERR = 64 * 1024
"""Bytes of standard error that are kept, the last ones."""

MAX_QUOTED = 2000
"""Characters of it that a message shows, the last ones."""

EOF_GRACE = 0.1
"""Seconds after the command's end for its pipes to end too.

What it wrote is in the pipes by then and the loop reads it at its next turn; only a grandchild that holds
a pipe open uses the time up.
"""

KILL_GRACE = 5.0
"""Seconds for a killed process to be gone; it takes milliseconds unless it hangs in the kernel."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_WORDS = re.compile(r"[\w.~+/=-]{16,}")
_SECRETS = re.compile(
    r"-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END [^-]*-----|\Z)"
    r"|eyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"
    r"|k8s-aws-v1\.\S+|ya29\.\S+"
    r"|(?i:(?<=bearer )|(?<=basic ))\S+",
    re.DOTALL,
)


async def output_of(
    command: Sequence[str], *, env: Mapping[str, str], what: str, secrets: Collection[str] = ()
) -> bytes:
    """Return what `command` wrote to its standard output, once it has ended with exit code 0.

    It runs in a session of its own, without a terminal and with an empty standard input. When the call is
    cancelled, the command and every process of its group are killed before the cancellation goes on.

    Args:
        command: the path of a program, and its arguments.
        env: all of its environment.
        what: the command in words, for messages; its arguments may hold secrets.
        secrets: texts that are blanked out where the command's standard error is shown.

    Raises:
        CredentialsError: it could not be started, ended with another exit code, or wrote more than 1 MiB.
    """
    # The start is a task of its own: a cancellation that came in the middle of it, even asyncio's own, would
    # leave a child that nobody knows.
    starting = asyncio.ensure_future(_started(command, env))
    try:
        transport, child = await asyncio.shield(starting)
        await child.done.wait()
        if not child.overflowed:
            with anyio.move_on_after(EOF_GRACE):
                await child.pipes_closed.wait()
    except (OSError, ValueError) as error:  # ValueError: a null byte in an argument
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise CredentialsError(f"{what} could not be started: {reason}") from error
    finally:
        with anyio.CancelScope(shield=True):
            await _ended(asyncio.ensure_future(_end(starting)))
    if child.overflowed:
        raise CredentialsError(f"{what} wrote more than {MAX_STDOUT >> 20} MiB to its standard output")
    if (code := transport.get_returncode()) != 0:
        raise CredentialsError(f"{what} {_ending(code)}{_quoted(child, secrets)}")
    return bytes(child.stdout)


async def _started(
    command: Sequence[str], env: Mapping[str, str]
) -> tuple[asyncio.SubprocessTransport, _Child]:
    return await asyncio.get_running_loop().subprocess_exec(
        _Child, *command, stdin=subprocess.DEVNULL, env=dict(env), start_new_session=True
    )


async def _ended(ending: asyncio.Future[None]) -> None:
    """Wait for `ending`, which takes a moment, however often asyncio cancels its caller meanwhile."""
    cancellation = None
    while not ending.done():
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        raise cancellation


async def _end(starting: asyncio.Future[tuple[asyncio.SubprocessTransport, _Child]]) -> None:
    """Wait until the child is known, and then until it is gone, which it is at once."""
    await asyncio.wait([starting])
    if starting.cancelled() or starting.exception() is not None:
        return
    transport, child = starting.result()
    if transport.get_returncode() is None:
        _kill(transport)
        with anyio.move_on_after(KILL_GRACE):
            await child.exited.wait()
    transport.close()


class _Child(asyncio.SubprocessProtocol):
    """What came out of one child process so far.

    Attributes:
        done: it has exited, or wrote too much to be waited for.
        exited: it has exited.
        pipes_closed: nobody holds its standard output or error any more.
    """

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.overflowed = False
        self.done = asyncio.Event()
        self.exited = asyncio.Event()
        self.pipes_closed = asyncio.Event()
        self._open_pipes = {1, 2}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.stderr += data
            del self.stderr[:-MAX_STDERR]
        elif len(self.stdout) + len(data) > MAX_STDOUT:
            self.overflowed = True
            self.done.set()
        else:
            self.stdout += data

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self.pipes_closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.done.set()


def _kill(transport: asyncio.SubprocessTransport) -> None:
    """Kill the child and its group with SIGKILL, which none can ignore."""
    with suppress(ProcessLookupError):
        if sys.platform == "win32":
            transport.kill()
        else:
            os.killpg(transport.get_pid(), signal.SIGKILL)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _quoted(child: _Child, secrets: Collection[str]) -> str:
    """Return the end of the standard error as part of a message, with what may be a secret blanked out."""
    text = child.stderr.decode("utf-8", "replace")
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 6:  # shorter ones are words such as "true", and blanking those tells what they are
            text = text.replace(secret, "(secret)")
    # The standard output holds credentials, and some commands repeat it on their standard error.
    printed = child.stdout.decode("utf-8", "replace")
    text = _WORDS.sub(lambda word: "(secret)" if word[0] in printed else word[0], text)
    text = _ANSI.sub("", _SECRETS.sub("(secret)", text))
    text = "".join(char if char.isprintable() or char == "\n" else " " for char in text).strip()
    return f", saying: {text[-MAX_QUOTED:]}" if text else ", saying nothing on its standard error"
