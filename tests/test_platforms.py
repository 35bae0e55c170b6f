"""On Windows, which is simulated here: what it lacks is missing, so what the package does without it works.

This does not replace tests on Windows. docs/platform-support.md lists the tests of each system.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from .programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

WINDOWS = """
import asyncio, os, signal, sys
import aiohttp, anyio._backends._asyncio, click, google.auth, grpc.aio, msgspec, rich.live, trustme
import yaml

for module in ("fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty", "uvloop"):
    sys.modules[module] = None
for name in (
    "fchmod fork forkpty getgid getpgid getuid geteuid initgroups killpg memfd_create mkfifo openpty"
    " posix_spawn register_at_fork setpgid setsid setuid sysconf uname wait3 wait4 waitid WNOHANG"
).split():
    vars(os).pop(name, None)
for name in "SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIGUSR2 SIGXFSZ setitimer".split():
    delattr(signal, name)

def unsupported(*_arguments):
    raise NotImplementedError

for name in ("add_reader", "remove_reader", "add_signal_handler", "remove_signal_handler"):
    setattr(asyncio.SelectorEventLoop, name, unsupported)
sys.platform = "win32"
"""
"""Removes what Windows lacks, and from the event loop what a ProactorEventLoop lacks."""

RESOLVE = """
from aioresolve.cli import main
from aioresolve.sync import KubernetesClusterResolver
from aioresolve.testing import KubernetesServer, pod

with KubernetesServer([pod("a", "n", labels={"app": "a"}, ip="10.0.0.1")], tls=True).in_thread() as server:
    path = str(server.write_kubeconfig(sys.argv[1]))
    resolver = KubernetesClusterResolver({"worker": ["app=a"]}, kubeconfig=path)
    print(resolver.cluster_spec().as_dict())
    options = ["kubernetes", "-n", "n", "-l", "app=a", "--kubeconfig", path]
    print(main([*options, "-o", "name"]), flush=True)
    print(main(["wait", *options, "--count", "1", "--quiet", "-o", "name"]), flush=True)
"""

EXEC = """
from aioresolve.cli import main
print(main(["exec", "kubernetes", "-l", "app=a", "--count", "1", "--", "train"]))
"""


def run_on_windows(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WINDOWS + program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )


@pytest.mark.slow
def test_commands_and_blocking_calls_work_on_windows(tmp_path: Path) -> None:
    done = run_on_windows(RESOLVE, tmp_path / "config")
    address = "10.0.0.1:8470"
    assert done.stdout == f"{{'worker': ['{address}']}}\n{address}\n0\n{address}\n0\n", done.stderr
    assert done.stderr == ""


@pytest.mark.slow
def test_command_that_becomes_another_program_says_what_to_do_instead_on_windows() -> None:
    done = run_on_windows(EXEC)
    assert done.stdout == "2\n", done.stderr
    assert "`aioresolve exec` is not available on Windows" in done.stderr
    assert "-o env" in done.stderr
