"""How commands exit and write: signals, slow readers, full disks."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aioresolve.cli.application import ExitRequest, run_async

from .process import COMMAND, TIMEOUT, run_as_first_process

pytest.importorskip("fcntl", reason="this system has no POSIX pipes")

if TYPE_CHECKING:
    from aioresolve.testing import ThreadedKubernetesServer

TRAIN = ("watch", "kubernetes", "-l", "worker=app=train")


# Exiting


def test_an_exit_request_cancels_the_work_and_the_first_code_wins() -> None:
    closed: list[str] = []

    async def work(request: ExitRequest) -> None:
        try:
            request.exit(141)
            request.exit(143)
            await asyncio.sleep(TIMEOUT)
        finally:
            closed.append("cleaned up")

    with pytest.raises(SystemExit) as ended:
        run_async(work)
    assert (ended.value.code, closed) == (141, ["cleaned up"])


INTERRUPT_IN_A_CALLBACK = """
import os, signal, sys, weakref
from aioresolve.cli import main

class Lock: ...

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            lock = Lock()
            self.reference = weakref.ref(lock, lambda _: os.kill(os.getpid(), number))
            del lock

module, number = sys.argv.pop(1), int(sys.argv.pop(1))
sys.meta_path.insert(0, Finder())
sys.exit(main())
"""
"""Sends a signal in a callback of a weak reference, in which Python ignores exceptions, during an import."""


@pytest.mark.slow
def test_ctrl_c_during_an_import_is_not_lost(server: ThreadedKubernetesServer, env: dict[str, str]) -> None:
    command = [sys.executable, "-c", INTERRUPT_IN_A_CALLBACK, "aioresolve.cli.application", "2", *TRAIN]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not server.requests


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_an_import_ends_the_first_process_of_a_container(
    env: dict[str, str], number: signal.Signals
) -> None:
    command = [sys.executable, "-c", INTERRUPT_IN_A_CALLBACK, "asyncio", str(number.value), *TRAIN]
    done = run_as_first_process(command, env)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


STUBBORN = """
import asyncio
from aioresolve.cli.application import run_async

async def work(request):
    print("ready", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("cancelled", flush=True)
        await asyncio.sleep(60)

run_async(work)
"""


def test_a_second_sigterm_kills_a_command_that_does_not_exit() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cancelled\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == -signal.SIGTERM


@pytest.mark.slow
def test_an_ignored_sigterm_remains_ignored(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    script = f"trap '' TERM; exec {COMMAND[0]} -m aioresolve {' '.join(TRAIN)}"
    with subprocess.Popen(["sh", "-c", script], env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("EVENT")
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        server.delete("train-10", "ml")
        assert process.stdout.readline().startswith("LEFT")
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
