"""What ends a command, and how it writes: signals, slow readers, full disks."""

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

from aioresolve.cli.running import Ending, run
from aioresolve.cli.terminal.background_writer import pen

from .process import COMMAND, PATIENCE, Running, cluster, environment

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


# Endings


def test_work_returns_what_it_returns() -> None:
    async def work(_: Ending) -> int:
        await asyncio.sleep(0)
        return 7

    assert run(work) == 7


def test_work_that_is_ended_is_cancelled_and_the_first_code_stays() -> None:
    closed: list[str] = []

    async def work(ending: Ending) -> None:
        try:
            ending.now(141)
            ending.now(143)
            await asyncio.sleep(PATIENCE)
        finally:
            closed.append("all of it")

    with pytest.raises(SystemExit) as ended:
        run(work)
    assert (ended.value.code, closed) == (141, ["all of it"])


def test_work_that_is_cancelled_by_nobody_of_ours_is_cancelled() -> None:
    async def work(_: Ending) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(work)


def test_what_handles_sigterm_already_goes_on_to_do_so() -> None:
    async def work(_: Ending) -> object:
        return signal.getsignal(signal.SIGTERM)

    def handle(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, handle)
    try:
        assert run(work) is handle
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_sigterm_is_as_before_afterwards() -> None:
    async def work(_: Ending) -> object:
        return signal.getsignal(signal.SIGTERM)

    assert run(work) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_thread_without_signals_can_run_work_as_well() -> None:
    results: list[int] = []

    async def work(_: Ending) -> int:
        return 7

    thread = threading.Thread(target=lambda: results.append(run(work)))
    thread.start()
    thread.join(PATIENCE)
    assert results == [7]


STUBBORN = """
import asyncio
from aioresolve.cli.running import run

async def work(ending):
    print("ready", flush=True)
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print("ending", flush=True)
        await asyncio.sleep(60)

run(work)
"""


def test_a_second_sigterm_kills_what_cannot_end() -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "ending\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_a_sigterm_that_is_ignored_stays_so(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
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
        assert process.wait(PATIENCE) == 130


def test_every_command_that_asks_ends_by_sigterm_as_by_an_interrupt(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    from aioresolve.testing import Hang

    server.inject(Hang())
    with Running(("kubernetes", "-l", "worker=app=train"), env) as asking:
        server.until(lambda: len(server.requests) == 1, PATIENCE)
        ended = asking.ended(signal.SIGTERM)
    assert (ended.code, ended.stdout, ended.stderr) == (143, "", "")


# Writing


def written_to(descriptor: int, *texts: str) -> list[str]:
    """Return what a pen raised when it wrote `texts` to the descriptor, which is closed in the end."""
    failures: list[str] = []
    stream = open(descriptor, "w", encoding="utf-8")  # noqa: SIM115 - closed once the pen's thread has ended

    async def work(ending: Ending) -> None:
        with pen(stream, ending) as one:
            for text in texts:
                try:
                    await one.write(text)
                except click.ClickException as error:
                    failures.append(error.message)

    try:
        run(work)
    finally:
        for thread in threading.enumerate():
            if thread.name == "aioresolve pen":
                thread.join(PATIENCE)
        stream.close()
    return failures


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_text_larger_than_the_pipe_arrives_whole(is_blocking: bool) -> None:
    read, write = os.pipe()
    os.set_blocking(write, is_blocking)
    received: list[str] = []

    def receive() -> None:
        with open(read, encoding="utf-8") as stream:
            received.append(stream.read())

    reader = threading.Thread(target=receive)
    reader.start()
    texts = ["a" * 300_000, "é" * 100_000, "", "end\n"]
    assert written_to(write, *texts) == []
    reader.join(PATIENCE)
    assert received == ["".join(texts)]


def test_a_pipe_without_a_reader_is_the_end() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(SystemExit) as ended:
        written_to(write, "text")
    assert ended.value.code == 141


def test_a_pipe_that_this_process_may_read_itself_is_not_taken_for_left(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    descriptor = os.open(tmp_path / "fifo", os.O_RDWR)
    assert written_to(descriptor, "one\n", "two\n") == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error(env: dict[str, str]) -> None:
    assert written_to(os.open("/dev/full", os.O_WRONLY), "text") == [
        "the answer was not written to stdout: No space left on device"
    ]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *TRAIN], env=env, stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE
        )
    assert done.returncode == 1
    assert done.stderr == b"error: the answer was not written to stdout: No space left on device\n"


def test_a_closed_stdout_is_an_error(env: dict[str, str]) -> None:
    script = f"exec {COMMAND[0]} -m aioresolve {' '.join(TRAIN)} >&-"
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: the answer was not written: stdout is closed\n"
