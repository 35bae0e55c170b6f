"""The command as a process: its streams on terminals, in pipes and closed, its signals, and what it loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import Delay, Hang

from .process import COMMAND, ESCAPE, PATIENCE, SHOW_CURSOR, Ended, cluster, environment, run, without_colours

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

TRAIN = ("kubernetes", "-l", "worker=app=train")


@pytest.fixture(scope="module")
def running() -> Iterator[ThreadedKubernetesServer]:
    with cluster() as server:
        yield server


@pytest.fixture
def server(running: ThreadedKubernetesServer) -> Iterator[ThreadedKubernetesServer]:
    running.forget_requests()
    yield running
    running.clear_faults()


@pytest.fixture
def env(server: ThreadedKubernetesServer, tmp_path: Path) -> dict[str, str]:
    return environment(server.write_kubeconfig(tmp_path / "config", namespace="ml"))


def on_a_terminal(
    arguments: tuple[str, ...], env: Mapping[str, str], *, interrupt_at: bytes | None = None
) -> tuple[int, str]:
    """Return the exit code and what a terminal was sent, the command's streams all being that terminal.

    With `interrupt_at`, the command is sent a SIGINT as soon as it has written that.
    """
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], env=env, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        sent = b""
        try:
            while chunk := os.read(ours, 65536):
                sent += chunk
                if interrupt_at is not None and interrupt_at in sent:
                    process.send_signal(signal.SIGINT)
                    interrupt_at = None
        except OSError:
            pass  # EIO: the last one who had the terminal open is gone
        finally:
            os.close(ours)
        return process.wait(PATIENCE), sent.decode().replace("\r\n", "\n")


# Pipes and terminals


def test_in_a_pipe_the_answer_is_plain_and_stderr_is_empty(env: dict[str, str]) -> None:
    answer = run(TRAIN, env)
    assert answer.code == 0
    assert answer.stdout.splitlines()[1].split() == ["worker", "0", "10.0.0.1:8470"]
    assert ESCAPE not in answer.stdout
    assert answer.stderr == ""


def test_in_a_pipe_nothing_is_said_however_long_it_takes(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Delay(0.8))
    answer = run((*TRAIN, "-o", "name"), env)
    assert answer == Ended(0, "10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n", "")


def test_a_terminal_gets_colours(env: dict[str, str]) -> None:
    code, sent = on_a_terminal(TRAIN, env)
    assert code == 0
    assert ESCAPE in sent
    assert without_colours(sent).splitlines()[1].split() == ["worker", "0", "10.0.0.1:8470"]


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_whose_owner_wants_none_gets_no_colours(
    env: dict[str, str], variable: dict[str, str]
) -> None:
    code, sent = on_a_terminal(TRAIN, env | variable)
    assert (code, ESCAPE in sent) == (0, False)
    assert sent == run(TRAIN, env).stdout


def test_a_terminal_shows_what_is_waited_for_and_gets_its_cursor_back(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Delay(0.9))
    code, sent = on_a_terminal((*TRAIN, "-o", "name"), env)
    assert code == 0
    assert "waiting for selector 'app=train' in namespace 'ml'" in without_colours(sent)
    assert sent.rindex(SHOW_CURSOR) < sent.index("10.0.0.1:8470")


def test_an_interrupt_gives_the_cursor_back(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    server.inject(Hang())
    code, sent = on_a_terminal(TRAIN, env, interrupt_at=b"waiting for")
    assert code == 130
    assert SHOW_CURSOR in sent[sent.rindex("waiting for") :]
    assert "Traceback" not in sent


def test_quiet_shows_no_progress_on_a_terminal_either(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Delay(0.9))
    assert on_a_terminal((*TRAIN, "-o", "name", "-q"), env) == (
        0,
        "10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n",
    )


# Streams that close, signals, deadlines


def test_a_reader_that_has_gone_ends_it_as_sigpipe_would(env: dict[str, str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run([*COMMAND, *TRAIN], env=env, stdout=write, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [TRAIN, ("--help",)])
def test_a_full_disk_is_an_error_and_no_traceback(env: dict[str, str], arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], env=env, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: ")
    assert done.stderr.endswith(b"No space left on device\n")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_traceback(env: dict[str, str], closed: int) -> None:
    script = f"exec {COMMAND[0]} -m aioresolve kubernetes -l worker=app=nobody -o json {closed}>&-"
    done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if closed == 1 else 0)
    assert "Traceback" not in done.stderr


def test_an_interrupt_ends_it_with_130_and_no_traceback(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Hang())
    with subprocess.Popen(
        [*COMMAND, *TRAIN], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        server.until(lambda: len(server.requests) == 1, PATIENCE)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
        assert process.returncode == 130
    server.until(lambda: server.connections == 0)


def test_a_deadline_has_an_exit_code_of_its_own_and_names_the_server(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Hang())
    answer = run((*TRAIN, "--timeout", "300ms"), env)
    assert (answer.code, answer.stdout) == (3, "")
    assert "within 0.3 s" in answer.stderr
    assert server.url in answer.stderr
    assert "raise --timeout, or check the server" in answer.stderr


# What it loads


def loaded_by(arguments: tuple[str, ...], env: Mapping[str, str]) -> set[str]:
    """Return the top-level packages that are in memory when the command has run."""
    script = (
        "import sys; from aioresolve.cli import main; main(sys.argv[1:]);"
        " print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=env, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("kubernetes", "--help"),
        ("watch", "kubernetes", "--help"),
        ("wait", "tpu", "--help"),
        ("poll", "--help"),
        ("demo", "--help"),
        ("--version",),
    ],
)
def test_help_loads_nothing_but_click(arguments: tuple[str, ...], env: dict[str, str]) -> None:
    heavy = {"aiohttp", "anyio", "asyncio", "msgspec", "rich", "ssl", "tenacity", "trustme", "yaml"}
    assert loaded_by(arguments, env) & heavy == set()


def test_resolving_in_a_pipe_loads_nothing_to_draw_with(env: dict[str, str]) -> None:
    loaded = loaded_by(TRAIN, env)
    assert "aiohttp" in loaded
    assert loaded & {"rich", "trustme", "kubernetes_asyncio", "google", "hypothesis"} == set()


def test_waiting_in_a_pipe_loads_nothing_to_draw_with_and_nothing_of_tpus(env: dict[str, str]) -> None:
    loaded = loaded_by(("wait", *TRAIN), env)
    assert "aiohttp" in loaded
    assert loaded & {"rich", "grpc", "trustme", "google", "yaml"} == set()


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_libraries_it_says_what_to_install(missing: str, env: dict[str, str]) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None;"
        " from aioresolve.cli import main; sys.exit(main(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: the command line needs {missing}: pip install 'aioresolve[cli]'\n"


# The root command


def test_the_version_is_the_packages(env: dict[str, str]) -> None:
    import aioresolve

    assert run(("--version",), env) == Ended(0, f"aioresolve {aioresolve.__version__}\n", "")


def test_without_a_command_the_help_is_shown_as_wrong_usage(env: dict[str, str]) -> None:
    answer = run((), env)
    assert (answer.code, answer.stdout) == (2, "")
    assert "kubernetes" in answer.stderr


@pytest.mark.parametrize("command", ["watch", "wait"])
def test_what_to_follow_has_to_be_said(env: dict[str, str], command: str) -> None:
    mend = f"Try 'aioresolve {command} --help'.\n"
    assert run((command,), env) == Ended(2, "", f"error: Missing command.\n{mend}")


def test_an_unknown_command_is_wrong_usage(env: dict[str, str]) -> None:
    answer = run(("kubernets",), env)
    assert answer.code == 2
    assert answer.stderr.startswith("error: No such command 'kubernets'")


def test_ipv6_addresses_survive_every_stream(env: dict[str, str]) -> None:
    arguments = ("kubernetes", "-l", "ps=app=ps", "-o")
    _, drawn = on_a_terminal((*arguments, "table"), env)
    assert "[fd00::7]:8470" in without_colours(drawn)
    found = json.loads(run((*arguments, "tf-config"), env).stdout)
    assert found == {"cluster": {"ps": ["[fd00::7]:8470"]}}
