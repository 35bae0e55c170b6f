"""How commands exit and write: signals, slow readers, full disks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import click
import pytest

from aioresolve.cli.application import ExitRequest, run_async
from aioresolve.cli.terminal.background_writer import background_writer

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


def test_signal_handlers_of_the_caller_are_kept_or_restored() -> None:
    async def work(_: ExitRequest) -> object:
        return signal.getsignal(signal.SIGTERM)

    def handle(*_: object) -> None: ...

    assert run_async(work) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGTERM, handle)
    try:
        assert run_async(work) is handle
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


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


def test_work_can_run_in_a_thread_that_cannot_handle_signals() -> None:
    results: list[int] = []

    async def work(_: ExitRequest) -> int:
        return 7

    thread = threading.Thread(target=lambda: results.append(run_async(work)))
    thread.start()
    thread.join(TIMEOUT)
    assert results == [7]


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


# Writing


def write_errors(descriptor: int, *texts: str) -> list[str]:
    """Write texts to a descriptor with a background writer, close it, and return the error messages."""
    failures: list[str] = []
    stream = open(descriptor, "w", encoding="utf-8")  # noqa: SIM115 - closed once the thread of the writer has ended

    async def work(request: ExitRequest) -> None:
        with background_writer(stream, request.exit) as writer:
            for text in texts:
                try:
                    await writer.write(text)
                except click.ClickException as error:
                    failures.append(error.message)

    try:
        run_async(work)
    finally:
        for thread in threading.enumerate():
            if thread.name == "aioresolve writer":
                thread.join(TIMEOUT)
        stream.close()
    return failures


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_text_larger_than_the_pipe_is_written_completely(is_blocking: bool) -> None:
    read, write = os.pipe()
    os.set_blocking(write, is_blocking)
    received: list[str] = []

    def receive() -> None:
        with open(read, encoding="utf-8") as stream:
            received.append(stream.read())

    reader = threading.Thread(target=receive)
    reader.start()
    texts = ["a" * 300_000, "é" * 100_000, "", "end\n"]
    assert write_errors(write, *texts) == []
    reader.join(TIMEOUT)
    assert received == ["".join(texts)]


def test_a_pipe_without_a_reader_ends_the_command() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(SystemExit) as ended:
        write_errors(write, "text")
    assert ended.value.code == 141


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error(env: dict[str, str]) -> None:
    assert write_errors(os.open("/dev/full", os.O_WRONLY), "text") == [
        "cannot write the result to stdout: No space left on device"
    ]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *TRAIN], env=env, stdout=full, stderr=subprocess.PIPE, check=False, timeout=TIMEOUT
        )
    assert done.returncode == 1
    assert done.stderr == b"error: cannot write the result to stdout: No space left on device\n"
