"""The command as a process: terminals, pipes, closed streams, signals, and imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import Delay, Hang

from .process import COMMAND, ESCAPE, SHOW_CURSOR, TIMEOUT, Result, cluster, environment, run, without_colors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")

TRAIN = ("kubernetes", "-l", "worker=app=train")


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    """A cluster of its own for each test: a server may read the last requests of a call after its end."""
    with cluster() as server:
        yield server


@pytest.fixture
def env(server: ThreadedKubernetesServer, tmp_path: Path) -> dict[str, str]:
    return environment(server.write_kubeconfig(tmp_path / "config", namespace="ml"))


def run_on_terminal(
    arguments: tuple[str, ...], env: Mapping[str, str], *, interrupt_at: bytes | None = None
) -> tuple[int, str]:
    """Run the command on a pseudo-terminal, and return the exit code and everything that was written to it.

    With `interrupt_at`, the command receives SIGINT as soon as it has written that.
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
            pass  # EIO: no process has the terminal open any longer
        finally:
            os.close(ours)
        return process.wait(TIMEOUT), sent.decode().replace("\r\n", "\n")


# Pipes and terminals


def test_output_to_a_pipe_is_plain_and_stderr_is_empty(env: dict[str, str]) -> None:
    result = run(TRAIN, env)
    assert result.code == 0
    assert result.stdout.splitlines()[1].split() == ["worker", "0", "10.0.0.1:8470"]
    assert ESCAPE not in result.stdout
    assert result.stderr == ""


def test_no_progress_is_written_to_a_pipe(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    server.inject(Delay(0.8))
    result = run((*TRAIN, "-o", "name"), env)
    assert result == Result(0, "10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n", "")


def test_output_to_a_terminal_has_colors(env: dict[str, str]) -> None:
    code, sent = run_on_terminal(TRAIN, env)
    assert code == 0
    assert ESCAPE in sent
    assert without_colors(sent).splitlines()[1].split() == ["worker", "0", "10.0.0.1:8470"]


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_disable_colors(env: dict[str, str], variable: dict[str, str]) -> None:
    code, sent = run_on_terminal(TRAIN, env | variable)
    assert (code, ESCAPE in sent) == (0, False)
    assert sent == run(TRAIN, env).stdout


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
    code, sent = run_on_terminal(TRAIN, env, interrupt_at=b"waiting for")
    assert code == 130
    assert SHOW_CURSOR in sent[sent.rindex("waiting for") :]
    assert "Traceback" not in sent


def test_quiet_shows_no_progress_on_a_terminal(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    server.inject(Delay(0.9))
    assert run_on_terminal((*TRAIN, "-o", "name", "-q"), env) == (
        0,
        "10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n",
    )


# Calls of main() by other programs


def print_and_call_main(env: Mapping[str, str], stdout: int) -> subprocess.CompletedProcess[str]:
    """Run a program whose `print` is still in the buffer of stdout when it calls main()."""
    program = f"print('before'); from aioresolve.cli import main; print(main({[*TRAIN, '-o', 'name']!r}))"
    buffered = {name: value for name, value in env.items() if name != "PYTHONUNBUFFERED"}
    command = [COMMAND[0], "-c", program]
    return subprocess.run(
        command, env=buffered, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT
    )


def test_the_result_follows_what_the_program_printed_before(env: dict[str, str]) -> None:
    done = print_and_call_main(env, subprocess.PIPE)
    assert done.stdout == "before\n10.0.0.1:8470\n10.0.0.2:8470\n10.0.0.10:8470\n0\n"
    assert (done.returncode, done.stderr) == (0, "")


def test_a_stdout_that_was_closed_before_the_call_ends_it_as_sigpipe_does(env: dict[str, str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = print_and_call_main(env, write)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


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
@pytest.mark.parametrize("arguments", [TRAIN, ("--help",)])
def test_a_full_disk_is_an_error_without_a_traceback(env: dict[str, str], arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], env=env, stdout=full, stderr=subprocess.PIPE, check=False
        )
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


def test_an_interrupt_exits_with_130_without_a_traceback(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Hang())
    with subprocess.Popen(
        [*COMMAND, *TRAIN], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        server.until(lambda: len(server.requests) >= 1, TIMEOUT)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT) == (b"", b"")
        assert process.returncode == 130
    server.until(lambda: server.connections == 0)


def test_a_deadline_exits_with_3_and_names_the_server(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.inject(Hang())
    result = run((*TRAIN, "--timeout", "3s"), env)
    assert (result.code, result.stdout) == (3, "")
    assert "within 3 s" in result.stderr
    assert server.url in result.stderr
    assert "raise --timeout, or check the server" in result.stderr


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
def test_help_imports_no_library_of_clients_or_terminals(
    arguments: tuple[str, ...], env: dict[str, str]
) -> None:
    heavy = {"aiohttp", "anyio", "asyncio", "rich", "ssl", "tenacity", "trustme", "yaml"}
    assert loaded_packages(arguments, env) & heavy == set()


def test_resolving_in_a_pipe_does_not_import_rich(env: dict[str, str]) -> None:
    loaded = loaded_packages(TRAIN, env)
    assert "aiohttp" in loaded
    assert loaded & {"rich", "trustme", "kubernetes_asyncio", "google", "hypothesis"} == set()


def test_waiting_in_a_pipe_imports_neither_rich_nor_grpc(env: dict[str, str]) -> None:
    loaded = loaded_packages(("wait", *TRAIN), env)
    assert "aiohttp" in loaded
    assert loaded & {"rich", "grpc", "trustme", "google", "yaml"} == set()


def test_resolving_pods_loads_only_the_packages_that_it_needs(env: dict[str, str]) -> None:
    script = (
        "import sys; from aioresolve.cli import main; main(sys.argv[1:]);"
        " print(*[name for name in sys.modules if name.startswith('aioresolve.')], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *TRAIN, "-o", "name"],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    packages = {"_core", "_version", "cli", "errors", "kubernetes", "resolver", "spec"}
    assert {name.split(".")[1] for name in loaded} == packages
    assert {name for name in loaded if name.startswith("aioresolve.cli.commands.")} == {
        "aioresolve.cli.commands.kubernetes"
    }
    assert loaded.isdisjoint(
        {
            *("aioresolve.cli.output.templates", "aioresolve.cli.terminal.views"),
            *("aioresolve.kubernetes.tasks.nodes", "aioresolve.kubernetes.tasks.resource_claims"),
            *("aioresolve.resolver.static", "aioresolve.resolver.this_task", "aioresolve.resolver.union"),
            *("aioresolve.resolver.wait", "aioresolve.kubernetes.api.override_client"),
            *("aioresolve.kubernetes.auth.auth_provider", "aioresolve.kubernetes.auth.exec_plugin"),
        }
    )


def test_exit_does_not_search_the_objects_of_all_modules_for_garbage(env: dict[str, str]) -> None:
    # The function that is registered first runs last.
    script = (
        "import atexit, gc, sys; atexit.register(lambda: print(gc.get_freeze_count() > 0, file=sys.stderr));"
        " from aioresolve.cli import main; main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "--version"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == "True\n"


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_a_missing_library_is_reported_with_the_extra_to_install(missing: str, env: dict[str, str]) -> None:
    script = (
        f"import sys; sys.modules[{missing!r}] = None;"
        " from aioresolve.cli import main; sys.exit(main(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: the command line requires {missing}: pip install 'aioresolve[cli]'\n"


# The root command


def test_the_version_is_that_of_the_package(env: dict[str, str]) -> None:
    import aioresolve

    assert run(("--version",), env) == Result(0, f"aioresolve {aioresolve.__version__}\n", "")


def test_no_command_prints_the_help_and_exits_with_2(env: dict[str, str]) -> None:
    result = run((), env)
    assert (result.code, result.stdout) == (2, "")
    assert "kubernetes" in result.stderr


@pytest.mark.parametrize("command", ["watch", "wait"])
def test_watch_and_wait_require_a_source(env: dict[str, str], command: str) -> None:
    hint = f"Try 'aioresolve {command} --help'.\n"
    message = f"the source is missing; write here, kubernetes or tpu after `aioresolve {command}`"
    assert run((command,), env) == Result(2, "", f"error: {message}\n{hint}")


def test_an_unknown_command_is_invalid_usage(env: dict[str, str]) -> None:
    result = run(("kubernets",), env)
    assert result.code == 2
    assert result.stderr.startswith("error: No such command 'kubernets'")


def test_ipv6_addresses_are_printed_correctly(env: dict[str, str]) -> None:
    arguments = ("kubernetes", "-l", "ps=app=ps", "-o")
    _, drawn = run_on_terminal((*arguments, "table"), env)
    assert "[fd00::7]:8470" in without_colors(drawn)
    found = json.loads(run((*arguments, "tf-config"), env).stdout)
    assert found == {"cluster": {"ps": ["[fd00::7]:8470"]}}
