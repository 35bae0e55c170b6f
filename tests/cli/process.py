"""The command in its own process, as a shell runs it: on pipes, and on a pseudo-terminal.

What a test waits for arrives, or the timeout of the test ends it.
"""

import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import pytest

from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer, pod

TOKEN = "s3cret-t0ken"
COMMAND = (sys.executable, "-m", "aioresolve")
_PATIENT_SCRIPT = """
import sys
from aioresolve.cli import live, main
live.SHOW_AFTER = 60.0
sys.exit(main())
"""
"""The command as on a machine that is never busy, where no response takes long enough to show progress."""

TIMEOUT = 240
"""Seconds after which a process that should have exited counts as hung."""

ESCAPE = "\x1b["
SHOW_CURSOR = "\x1b[?25h"
HIDE_CURSOR = "\x1b[?25l"


def cluster() -> ThreadedKubernetesServer:
    """Return a cluster with TLS and one token, with three trainers and a parameter server in `ml`."""
    pods = [
        *(trainer(number, index=number, node="node-a") for number in (10, 2, 1)),
        pod("ps-0", "ml", labels={"app": "ps"}, ip="fd00::7", ready=False),
        pod("other-0", "default", labels={"app": "train"}, ip="10.0.9.9"),
        pod("stuck-0", "ml", labels={"app": "stuck"}, ip="10.0.8.1"),
        pod("stuck-1", "ml", labels={"app": "stuck"}, phase="Pending", node=None),
    ]
    return KubernetesServer(pods, tls=True, tokens={TOKEN: "alice"}).in_thread()


def trainer(number: int, **fields: Any) -> dict[str, Any]:
    return pod(f"train-{number}", "ml", labels={"app": "train"}, **{"ip": f"10.0.0.{number}", **fields})


@dataclass(frozen=True, slots=True)
class Result:
    """The exit code and the output of a process."""

    code: int
    stdout: str
    stderr: str


class Run(Protocol):
    """The fixture `run`: runs `aioresolve ARGUMENTS` in this process."""

    def __call__(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> Result: ...


def environment(kubeconfig: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a user with this kubeconfig, without other variables of this machine."""
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT", "COVERAGE_PROCESS_START")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "HOME": str(kubeconfig.parent),
        "KUBECONFIG": str(kubeconfig),
        "TERM": "xterm-256color",
        **variables,
    }


def run_process(arguments: tuple[str, ...], env: Mapping[str, str]) -> Result:
    """Run `aioresolve ARGUMENTS` in a process, with pipes as its streams, without progress."""
    command = [sys.executable, "-c", _PATIENT_SCRIPT, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    return Result(done.returncode, done.stdout, done.stderr)


def run_as_first_process(command: Sequence[str], env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command as the process with id 1 of its own namespace, as in a container."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        subprocess.run([*unshare, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this system, or its user, cannot create namespaces of process ids (util-linux, root)")
    return subprocess.run(
        [*unshare, *command], env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def without_colors(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Running:
    """A running `aioresolve ARGUMENTS` with pipes as its streams; killed at the end of the block."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._command = [*COMMAND, *arguments]
        self._env = env

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdout, self.stderr = self.process.stdout, self.process.stderr
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.stdout.close()
        self.stderr.close()

    def line(self) -> str:
        """Return the next line of stdout, without the line feed."""
        line = self.stdout.readline()
        assert line, "the process has exited"
        return line.removesuffix("\n")

    def lines(self, number: int) -> list[str]:
        """Return the next lines of stdout."""
        return [self.line() for _ in range(number)]

    def stderr_line(self, text: str = "") -> str:
        """Return the next line of stderr that contains `text`, without the line feed.

        The lines before it are dropped: on a busy machine a command reports that it waits for a response.
        """
        while text not in (line := self.stderr.readline()) or not line:
            assert line, "the process has exited"
        return line.removesuffix("\n")

    def wait_for_exit(self, signal: int | None = None) -> Result:
        """Wait until it exits, after sending `signal` if given; return its code and the unread output."""
        if signal is not None:
            self.process.send_signal(signal)
        stdout = "" if self.stdout.closed else self.stdout.read()
        stderr = self.stderr.read()
        return Result(self.process.wait(), stdout, stderr)


class Terminal:
    """A running `aioresolve ARGUMENTS` on a pseudo-terminal of 24 lines; killed at the end of the block."""

    def __init__(self, arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._command = [*COMMAND, *arguments]
        self._env = env
        self._sent = b""

    def __enter__(self) -> Self:
        import fcntl
        import pty
        import termios

        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        self.process = subprocess.Popen(
            self._command, env=self._env, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def sent(self) -> str:
        """Everything that was written to the terminal."""
        return self._sent.decode(errors="replace")

    @property
    def shown(self) -> list[str]:
        """The lines that a user sees, from the first to the last line written."""
        return displayed(self.sent)

    def wait_for_text(self, text: str) -> list[str]:
        """Return the shown lines as soon as one contains `text`."""
        while text not in "\n".join(shown := self.shown):
            assert self._read(), f"the process has exited, and the terminal shows {shown}"
        return shown

    def wait_for_exit(self, signal: int | None = None) -> int:
        """Wait until it exits, after sending `signal` if given, and return its code."""
        if signal is not None:
            self.process.send_signal(signal)
        while self._read():
            pass
        return self.process.wait()

    def _read(self) -> bytes:
        try:
            chunk = os.read(self._ours, 65536)
        except OSError:  # EIO: no process has the terminal open any longer
            return b""
        self._sent += chunk
        return chunk


def run_on_terminal(arguments: tuple[str, ...], env: Mapping[str, str]) -> tuple[int, str]:
    """Run `aioresolve ARGUMENTS` on a terminal; return its code and everything that it wrote."""
    with Terminal(arguments, env) as terminal:
        return terminal.wait_for_exit(), terminal.sent.replace("\r\n", "\n")


def displayed(sent: str) -> list[str]:
    """Return the lines that a terminal shows after receiving `sent`.

    Only the escape sequences that the command uses are interpreted, and lines are not wrapped.
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
