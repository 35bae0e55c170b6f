"""How commands exit and write: signals, slow readers, full disks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import click
import psutil
import pytest

from aioresolve.cli.application import ExitRequest, run_async
from aioresolve.cli.terminal.background_writer import background_writer
from aioresolve.cli.terminal.progress import StatusReporter
from aioresolve.cli.terminal.streams import dropping_unread_messages
from aioresolve.errors import ResolveError
from aioresolve.spec import Observation

from .process import (
    COMMAND,
    TIMEOUT,
    Running,
    cluster,
    environment,
    full_pipe,
    read_available,
    run_as_first_process,
)

fcntl = pytest.importorskip("fcntl", reason="this system has no POSIX pipes")
termios = pytest.importorskip("termios")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

TRAIN = ("watch", "kubernetes", "-l", "worker=app=train")


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def env(server: ThreadedKubernetesServer, tmp_path: Path) -> dict[str, str]:
    return environment(server.write_kubeconfig(tmp_path / "config", namespace="ml"))


# Exiting


def test_the_result_of_the_work_is_returned() -> None:
    async def work(_: ExitRequest) -> int:
        await asyncio.sleep(0)
        return 7

    assert run_async(work) == 7


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


def test_a_cancellation_without_an_exit_request_propagates() -> None:
    async def work(_: ExitRequest) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_async(work)


def test_an_existing_sigterm_handler_is_kept() -> None:
    async def work(_: ExitRequest) -> object:
        return signal.getsignal(signal.SIGTERM)

    def handle(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handle)
    try:
        assert run_async(work) is handle
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_sigterm_handler_is_restored() -> None:
    async def work(_: ExitRequest) -> object:
        return signal.getsignal(signal.SIGTERM)

    assert run_async(work) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_handler_of_ctrl_c_is_restored() -> None:
    async def work(_: ExitRequest) -> None: ...

    run_async(work)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
@pytest.mark.parametrize("module", ["aioresolve.cli.application", "aioresolve.cli.commands.watch", "asyncio"])
def test_ctrl_c_during_an_import_is_not_lost(
    server: ThreadedKubernetesServer, env: dict[str, str], module: str
) -> None:
    command = [sys.executable, "-c", INTERRUPT_IN_A_CALLBACK, module, "2", *TRAIN]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not server.requests


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGINT])
def test_signal_during_an_import_ends_the_first_process_of_a_container(
    env: dict[str, str], number: signal.Signals
) -> None:
    command = [sys.executable, "-c", INTERRUPT_IN_A_CALLBACK, "asyncio", str(number.value), *TRAIN]
    done = run_as_first_process(command, env)
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_ctrl_c_cancels_between_two_callbacks_of_the_event_loop() -> None:
    errors: list[dict[str, object]] = []

    async def work(_: ExitRequest) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        future = loop.create_future()

        def complete() -> None:
            if not future.done():
                signal.raise_signal(signal.SIGINT)
                future.set_result(None)

        loop.call_soon(complete)
        await future
        await asyncio.sleep(TIMEOUT)

    with pytest.raises(SystemExit) as ended:
        run_async(work)
    assert (ended.value.code, errors) == (130, [])


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


def test_sigterm_ends_a_pending_request(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    from aioresolve.testing import Hang

    server.inject(Hang())
    with Running(("kubernetes", "-l", "worker=app=train"), env) as command:
        server.until(lambda: len(server.requests) >= 1, TIMEOUT)
        ended = command.wait_for_exit(signal.SIGTERM)
    assert (ended.code, ended.stdout, ended.stderr) == (143, "", "")


# Writing


WRITE_MESSAGES = """
import logging
from datetime import UTC, datetime
from aioresolve.cli.application import run_async
from aioresolve.cli.commands.wait import _ShortfallLines
from aioresolve.cli.options import _StderrHandler
from aioresolve.cli.terminal.progress import ProgressBar, StatusReporter, _FailureLines
from aioresolve._core.deadline import Progress
from aioresolve.errors import ResolveError
from aioresolve.spec import Observation

error = ResolveError("the source failed")

async def work(_):
    logging.getLogger("aioresolve").addHandler(_StderrHandler())
    logging.getLogger("aioresolve").warning("a record")
    StatusReporter(quiet=False).report(Observation(None, error=error, stale_since=datetime.now(UTC)))
    _FailureLines().update(Progress(last_error=error))
    lines = _ShortfallLines()
    lines.update("one of two")
    lines.write_if_new()
    ProgressBar(2).draw()

run_async(work)
print("done")
"""


def test_messages_do_not_block_an_event_loop_while_stderr_is_not_read() -> None:
    command = [sys.executable, "-c", WRITE_MESSAGES]
    with full_pipe() as (_, stderr):
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=TIMEOUT, check=True
        )
    assert done.stdout == "done\n"


def test_a_status_that_was_dropped_is_written_when_stderr_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = Observation(None, error=ResolveError("the source failed"))
    with full_pipe() as (read, write), open(write, "w", closefd=False) as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        with dropping_unread_messages():
            status = StatusReporter(quiet=False)
            status.report(failing)
            assert read_available(read) == b""
            status.report(failing)
            status.report(failing)
        assert read_available(read) == b"not up to date; retrying: the source failed\n"


WRITE_ERROR = """
from aioresolve.cli.application import run_async
from aioresolve.cli.terminal.streams import write_stderr
async def work(_): ...
run_async(work)
print("written next", flush=True)
write_stderr("error")
"""


def test_a_message_is_not_dropped_after_the_event_loop_has_ended() -> None:
    command = [sys.executable, "-c", WRITE_ERROR]
    with (
        full_pipe() as (read, write),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=write, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "written next\n"
        before = read_available(read)
        assert process.wait(TIMEOUT) == 0
        assert before + read_available(read) == b"error"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_wait_whose_log_is_not_read(
    number: int, code: int, server: ThreadedKubernetesServer, env: dict[str, str]
) -> None:
    command = [*COMMAND, "wait", "kubernetes", "-l", "app=train", "--count", "9", "-v"]
    with (
        full_pipe() as (_, stderr),
        subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=stderr) as process,
    ):
        # The response to the list is logged before the watch is requested.
        server.until(lambda: any("watch" in request.query for request in server.requests), TIMEOUT)
        process.send_signal(number)
        assert process.wait(TIMEOUT) == code


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


WRITE = """
import sys
from aioresolve.cli.terminal import streams
try:
    streams.write_stdout("x" * 4000)
    streams.write_stdout("x" * 4000)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the capacity of a pipe is counted in pages by Linux")
def test_ctrl_c_ends_a_command_whose_result_is_not_read() -> None:
    read, write = os.pipe()
    capacity = fcntl.fcntl(write, fcntl.F_GETPIPE_SZ)
    os.write(write, bytes(capacity - 4096))  # one page is free, for the first write
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen([sys.executable, "-c", WRITE], stdout=write, env=buffered) as process:
        os.close(write)
        try:
            while unread(read) < capacity - 96 or psutil.Process(process.pid).status() != "sleeping":
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT) == 130
        finally:
            process.kill()
            os.close(read)


def unread(descriptor: int) -> int:
    """Return the number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_pipe_without_a_reader_ends_the_command() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(SystemExit) as ended:
        write_errors(write, "text")
    assert ended.value.code == 141


def test_a_pipe_that_this_process_can_read_is_not_considered_closed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path / "fifo", os.O_RDWR)
    assert write_errors(descriptor, "one\n", "two\n") == []


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


def test_a_closed_stdout_is_an_error(env: dict[str, str]) -> None:
    script = f"exec {COMMAND[0]} -m aioresolve {' '.join(TRAIN)} >&-"
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: cannot write the result: stdout is closed\n"
