"""The command as a process: terminals, pipes, closed streams, signals, and imports."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import Delay, Hang

from .process import (
    COMMAND,
    ESCAPE,
    SHOW_CURSOR,
    Terminal,
    run_on_terminal,
    run_process,
    without_colors,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.testing import ThreadedKubernetesServer

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

TRAIN = ("kubernetes", "-l", "worker=app=train")


# Pipes and terminals


def test_output_to_a_pipe_is_plain_and_stderr_is_empty(env: dict[str, str]) -> None:
    result = run_process(TRAIN, env)
    assert result.code == 0
    assert result.stdout.splitlines()[1].split() == ["worker", "0", "10.0.0.1:8470"]
    assert ESCAPE not in result.stdout
    assert result.stderr == ""


def test_output_to_a_terminal_has_colors(env: dict[str, str]) -> None:
    code, sent = run_on_terminal((*TRAIN, "-l", "ps=app=ps"), env)
    assert code == 0
    assert ESCAPE in sent
    rows = without_colors(sent).splitlines()
    assert rows[1].split() == ["worker", "0", "10.0.0.1:8470"]
    assert rows[-1].split() == ["ps", "0", "[fd00::7]:8470"]


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_disable_colors(env: dict[str, str], variable: dict[str, str]) -> None:
    code, sent = run_on_terminal(TRAIN, env | variable)
    assert (code, ESCAPE in sent) == (0, False)
    assert sent == run_process(TRAIN, env).stdout


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


def test_the_result_follows_what_the_calling_program_printed_before(env: dict[str, str]) -> None:
    program = f"print('before'); from aioresolve.cli import main; print(main({[*TRAIN, '-o', 'name']!r}))"
    env = {name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "before\n10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n0\n"
    assert done.stderr == ""


# Closed streams, signals, deadlines


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


# Imports


def loaded_packages(arguments: tuple[str, ...], env: Mapping[str, str]) -> set[str]:
    """Return the packages that are imported when the command has run."""
    script = (
        "import sys; from aioresolve.cli import main; main(sys.argv[1:]);"
        " print(*(name for name in sys.modules if '.' not in name), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), ("watch", "kubernetes", "--help"), ("probe", "--help")])
def test_help_imports_no_library_of_clients_or_terminals(
    arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    heavy = {"aiohttp", "anyio", "asyncio", "google", "grpc", "rich", "ssl", "trustme", "yaml"}
    assert loaded_packages(arguments, env) & heavy == set()


def test_waiting_in_a_pipe_imports_neither_rich_nor_grpc(env: dict[str, str]) -> None:
    loaded = loaded_packages(("wait", *TRAIN), env)
    assert "aiohttp" in loaded
    assert loaded & {"rich", "grpc", "trustme", "kubernetes_asyncio", "google", "hypothesis"} == set()


def test_a_missing_library_is_reported_with_the_extra_to_install(env: dict[str, str]) -> None:
    script = (
        "import sys; sys.modules['rich'] = None; from aioresolve.cli import main; sys.exit(main(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: the command line requires rich: pip install 'aioresolve[cli]'\n"
