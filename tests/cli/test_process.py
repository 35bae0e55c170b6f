"""The command as a process: terminals, pipes, closed streams, full disks, signals, and imports."""

import os
import signal
import subprocess
import sys

import pytest

from aioresolve.testing import Delay, Hang, ThreadedKubernetesServer

from .process import (
    COMMAND,
    SHOW_CURSOR,
    TIMEOUT,
    Terminal,
    run_as_first_process,
    run_on_terminal,
    run_process,
    without_colors,
)

pytest.importorskip("pty", reason="this system has no pseudo-terminals")

TRAIN = ("kubernetes", "-l", "worker=app=train")
WATCH = ("watch", *TRAIN)


def run_program(program: str, *arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a Python program that calls the command."""
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


# Pipes and terminals


def test_a_terminal_shows_progress_and_then_the_cursor_again(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Delay(0.9))
    code, sent = run_on_terminal((*TRAIN, "-o", "name"), env)
    assert code == 0
    assert "waiting for selector 'app=train' in namespace 'ml'" in without_colors(sent)
    assert sent.rindex(SHOW_CURSOR) < sent.index("10.0.0.1:8470")


def test_an_interrupt_shows_the_cursor_again(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    server.inject(Hang())
    with Terminal(TRAIN, env) as terminal:
        terminal.wait_for_text("waiting for")
        assert terminal.wait_for_exit(signal.SIGINT) == 130
        sent = terminal.sent
    assert SHOW_CURSOR in sent[sent.rindex("waiting for") :]
    assert "Traceback" not in sent


def test_an_error_on_a_terminal_is_red_and_wrapped_at_words(env: dict[str, str]) -> None:
    code, sent = run_on_terminal(("kubernetes", "-l", "app=trian"), env)
    assert code == 1
    assert sent.startswith("\x1b[31merror:\x1b[0m no pod matches app=trian in namespace 'ml'; ")
    lines = without_colors(sent).splitlines()
    assert 80 < max(map(len, lines)) <= 100
    assert " ".join(lines) == run_process(("kubernetes", "-l", "app=trian"), env).stderr.rstrip("\n")


def test_the_result_follows_what_the_calling_program_printed_before(env: dict[str, str]) -> None:
    program = f"print('before'); from aioresolve.cli import main; print(main({[*TRAIN, '-o', 'name']!r}))"
    done = run_program(program, env=env)
    assert done.stdout == "before\n10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n0\n"
    assert done.stderr == ""


# Closed streams and full disks


def test_a_closed_stdout_ends_it_as_sigpipe_does(env: dict[str, str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*COMMAND, *TRAIN], env=env, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_without_a_traceback(env: dict[str, str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*COMMAND, *TRAIN], env=env, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.endswith(b"No space left on device\n")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_writes_no_traceback(env: dict[str, str], closed: int) -> None:
    script = f"exec {COMMAND[0]} -m aioresolve kubernetes -l app=none --allow-empty -o json {closed}>&-"
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if closed == 1 else 0)
    assert "Traceback" not in done.stderr


# Signals


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
    done = run_program(INTERRUPT_IN_A_CALLBACK, "aioresolve.cli.application", "2", *WATCH, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not server.requests


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_an_import_ends_the_first_process_of_a_container(
    env: dict[str, str], number: signal.Signals
) -> None:
    command = [sys.executable, "-c", INTERRUPT_IN_A_CALLBACK, "asyncio", str(number.value), *WATCH]
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
    script = f"trap '' TERM; exec {COMMAND[0]} -m aioresolve {' '.join(WATCH)}"
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


# Imports

LOADED = """
import sys
from aioresolve.cli import main
main(sys.argv[1:])
print(*(name for name in sys.modules if '.' not in name), file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["--help", "watch kubernetes --help", "probe --help"])
def test_help_imports_no_library_of_clients_or_terminals(command: str, env: dict[str, str]) -> None:
    heavy = {"aiohttp", "anyio", "asyncio", "google", "grpc", "rich", "ssl", "trustme", "yaml"}
    assert heavy.isdisjoint(run_program(LOADED, *command.split(), env=env).stderr.split())


def test_waiting_in_a_pipe_imports_neither_rich_nor_grpc(env: dict[str, str]) -> None:
    loaded = set(run_program(LOADED, "wait", *TRAIN, env=env).stderr.split())
    assert "aiohttp" in loaded
    assert loaded & {"rich", "grpc", "trustme", "kubernetes_asyncio", "google", "hypothesis"} == set()
