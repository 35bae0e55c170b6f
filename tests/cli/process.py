"""The command in a process of its own, as a shell would start it, and a cluster for it to ask."""

from __future__ import annotations

import os
import queue
import re
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

from aioresolve.testing import KubernetesServer, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import TracebackType

    from aioresolve.testing import ThreadedKubernetesServer

TOKEN = "t0ken-nobody-may-see"
COMMAND = (sys.executable, "-m", "aioresolve")
PATIENCE = 30
"""Seconds after which a process that should have ended is taken for hung."""

ESCAPE = "\x1b["
SHOW_CURSOR = "\x1b[?25h"
HIDE_CURSOR = "\x1b[?25l"


def cluster() -> ThreadedKubernetesServer:
    """Return a cluster that speaks TLS and knows one token: three trainers and a parameter server in `ml`."""
    pods = [
        pod(
            f"train-{number}",
            "ml",
            labels={"app": "train"},
            index=number,
            ip=f"10.0.0.{number}",
            node="node-a",
        )
        for number in (10, 2, 1)
    ]
    pods += [
        pod("ps-0", "ml", labels={"app": "ps"}, ip="fd00::7", ready=False),
        pod("other-0", "default", labels={"app": "train"}, ip="10.0.9.9"),
        pod("stuck-0", "ml", labels={"app": "stuck"}, ip="10.0.8.1"),
        pod("stuck-1", "ml", labels={"app": "stuck"}, phase="Pending", node=None),
    ]
    return KubernetesServer(pods, tls=True, tokens={TOKEN: "alice"}).in_thread()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str


def environment(kubeconfig: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a person with this kubeconfig, and no more of the machine's than needed."""
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT", "COVERAGE_PROCESS_START")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "HOME": str(kubeconfig.parent),
        "KUBECONFIG": str(kubeconfig),
        "TERM": "xterm-256color",
        **variables,
    }


def run(arguments: tuple[str, ...], env: Mapping[str, str]) -> Ended:
    """Return how `aioresolve ARGUMENTS` ended, its streams being pipes."""
    done = subprocess.run(
        [*COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Running:
    """`aioresolve ARGUMENTS` while it runs, its streams being pipes; killed at the end of the block.

    What it writes is read as it comes, stdout only once somebody asks for it.
    """

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._command = [*COMMAND, *arguments]
        self._env = env
        self._stdout: _Lines | None = None

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stderr is not None
        self._stderr = _Lines(self.process.stderr)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        for lines in (self._stdout, self._stderr):
            if lines is not None:
                lines.finish()
        if self._stdout is None and self.process.stdout is not None:
            self.process.stdout.close()

    def line(self) -> str:
        """Return the next line of stdout, without its end."""
        return self._read_stdout().line()

    def lines(self, number: int) -> list[str]:
        """Return the next lines of stdout."""
        return [self.line() for _ in range(number)]

    def complaint(self) -> str:
        """Return the next line of stderr, without its end."""
        return self._stderr.line()

    def leave(self) -> None:
        """Close our end of its stdout, as `head` does; nobody may have asked for more than `first_line`."""
        assert self.process.stdout is not None
        self.process.stdout.close()

    def first_line(self) -> str:
        """Return the first line of stdout, and read no more of it than that."""
        assert self.process.stdout is not None
        line = bytearray()
        while not line.endswith(b"\n") and (byte := os.read(self.process.stdout.fileno(), 1)):
            line += byte
        return line.decode().removesuffix("\n")

    def ended(self, signal: int | None = None) -> Ended:
        """Return how it ended, by `signal` or by itself, and what nobody has read of what it wrote."""
        if signal is not None:
            self.process.send_signal(signal)
        code = self.process.wait(PATIENCE)
        stdout = self.process.stdout
        is_left = stdout is None or (self._stdout is None and stdout.closed)
        return Ended(code, "" if is_left else self._read_stdout().rest(), self._stderr.rest())

    def _read_stdout(self) -> _Lines:
        if self._stdout is None:
            assert self.process.stdout is not None
            self._stdout = _Lines(self.process.stdout)
        return self._stdout


class _Lines:
    """The lines of a pipe, read by a thread."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._pipe = pipe
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def line(self) -> str:
        found = self._queue.get(timeout=PATIENCE)
        assert found is not None, "it has ended"
        return found.removesuffix("\n")

    def rest(self) -> str:
        lines: list[str] = []
        while (line := self._queue.get(timeout=PATIENCE)) is not None:
            lines.append(line)
        self._queue.put(None)
        return "".join(lines)

    def finish(self) -> None:
        self._thread.join(PATIENCE)
        self._pipe.close()

    def _read(self) -> None:
        for line in self._pipe:
            self._queue.put(line.decode())
        self._queue.put(None)


class Terminal:
    """`aioresolve ARGUMENTS` on a terminal of its own; killed at the end of the block.

    Args:
        arguments: the command's.
        env: its environment.
        size: the lines and columns of the terminal.
    """

    def __init__(
        self, arguments: tuple[str, ...], env: Mapping[str, str], size: tuple[int, int] = (24, 100)
    ) -> None:
        self._command = [*COMMAND, *arguments]
        self._env = env
        self._size = size
        self._sent = b""
        self._news = threading.Condition()
        self._is_read = threading.Event()

    def __enter__(self) -> Self:
        import fcntl
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *self._size, 0, 0))
        self.process = subprocess.Popen(
            self._command, env=self._env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._is_read.set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        self._is_read.set()
        self._thread.join(PATIENCE)
        os.close(self._ours)

    @property
    def sent(self) -> str:
        """All that the terminal was sent."""
        return self._sent.decode(errors="replace")

    @property
    def shown(self) -> list[str]:
        """The lines that a person sees, from the first to the last that has been written."""
        return displayed(self.sent)

    def pause(self) -> None:
        """Read nothing more of what is sent (but for what is being read), as a terminal that hangs."""
        self._is_read.clear()

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """Return what is shown, as soon as that satisfies `condition`."""
        ends = time.monotonic() + PATIENCE
        with self._news:
            while not condition(shown := self.shown):
                assert self._news.wait(ends - time.monotonic()), f"still shown: {shown}"
        return shown

    def until_it_shows(self, text: str) -> list[str]:
        """Return what is shown, as soon as `text` is in one of the lines."""
        return self.until(lambda shown: any(text in line for line in shown))

    def ended(self, signal: int | None = None) -> int:
        """Return its exit code, once it has ended, by `signal` or by itself, and all is read."""
        if signal is not None:
            self.process.send_signal(signal)
        code = self.process.wait(PATIENCE)
        self._is_read.set()
        self._thread.join(PATIENCE)
        return code

    def _read(self) -> None:
        try:
            while chunk := os.read(self._ours, 65536):
                with self._news:
                    self._sent += chunk
                    self._news.notify_all()
                self._is_read.wait()
        except OSError:
            pass  # EIO: the last one who had the terminal open is gone
        with self._news:
            self._news.notify_all()


def displayed(sent: str) -> list[str]:
    """Return the lines of a terminal that was sent this, by what the command uses of its language.

    A line is as long as it was written: none is wrapped.
    """
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", sent):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif not part.startswith(ESCAPE):
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
            column += len(part)
        elif part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif part.endswith("K"):
            lines[row] = ""
    return lines
