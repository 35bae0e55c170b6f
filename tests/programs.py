"""Runs programs of tests and examples as processes of their own, as if they ran in pods."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parent.parent

SECONDS = 300
"""How long a program may take. On a busy machine TensorFlow takes half a minute to be imported."""

RUN_IN_POD = """\
import runpy, sys
from aioresolve.kubernetes.auth import discovery
discovery.SERVICE_ACCOUNT_FOLDER = sys.argv.pop(1)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the program in the second argument with the service account in the folder of the first one."""


def free_port() -> int:
    """Return a port that is free. Another process may take it in the meantime."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


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
    """Start a command with these variables in addition to those of the tests, and without accelerators."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command,
        env={**os.environ, **quiet, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def last_lines(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Wait for the programs, and return the last line that each of them printed."""
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            with process:
                process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [output.splitlines()[-1] for output, _ in outputs]
