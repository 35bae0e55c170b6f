"""Runs programs of tests and examples as processes of their own, as if they ran in pods."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).parent.parent

SECONDS = 300
"""How long a program may take. On a busy machine TensorFlow takes half a minute to be imported."""

RUN_IN_POD = """\
import runpy, sys
from aioresolve._core import service_account
service_account.FOLDER = sys.argv.pop(1)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the program in the second argument with the service account in the folder of the first one."""


def free_port() -> int:
    """Return a port that is free."""
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """Return consecutive ports that are free.

    They are below those that Linux chooses for connections, so that a connection that is opened in the
    meantime does not take them.
    """
    for _ in range(100):
        first = random.randrange(20000, 32768 - count)
        with contextlib.ExitStack() as listeners:
            try:
                for port in range(first, first + count):
                    listeners.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return range(first, first + count)
    raise AssertionError(f"{count} consecutive free ports were not found between 20000 and 32767")


def start(
    program: Path,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    service_account: Path | None = None,
) -> subprocess.Popen[str]:
    """Start a Python program, with the service account in a folder if one is given."""
    in_pod = [] if service_account is None else ["-c", RUN_IN_POD, str(service_account)]
    return start_command([sys.executable, *in_pod, str(program), *map(str, arguments)], environment or {})


def start_command(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command with these variables in addition to those of the tests, and without accelerators.

    Its process group contains only the command and what it starts.
    """
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command,
        env={**os.environ, **quiet, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def last_lines(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait for the programs, and return the last line that each of them printed.

    If one fails, the others are killed: they may be waiting for it.
    """
    with ThreadPoolExecutor(len(processes)) as threads:
        lines = [threads.submit(last_line, process) for process in processes]
        try:
            ended, _ = wait(lines, timeout=SECONDS, return_when=FIRST_EXCEPTION)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    for line in [*ended, *lines]:
        line.result()
    return [line.result() for line in lines]


def last_line(process: subprocess.Popen[str]) -> str:
    """Wait for a program, and return the last line that it printed."""
    output, errors = process.communicate()
    assert process.returncode == 0, f"exit code {process.returncode}\n{output[-4000:]}\n{errors[-4000:]}"
    return output.splitlines()[-1]
