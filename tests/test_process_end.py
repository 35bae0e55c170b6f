"""A process ends with its call, whatever hangs: at the deadline, at Ctrl-C and at SIGTERM."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from .cli.process import environment
from .kubernetes.kubeconfigs import EXEC_V1, kubeconfig, write_file
from .programs import ROOT

Start: TypeAlias = Callable[..., subprocess.Popen[str]]

PATIENCE = 60.0
"""Seconds after which a process that should have ended is considered hung."""

DEADLINE = 5
"""Seconds until the deadline of a call: on a busy machine, some pass before it hangs."""

WAIT_FOREVER = """
from aioresolve._core import threads
from aioresolve.sync import loop_thread
threads.MAX_EXIT_WAIT = loop_thread.EXIT_TIMEOUT = loop_thread.INTERRUPT_TIMEOUT = 3600.0
"""
"""Makes the waits at the exit of a process endless, so that a process which begins one does not end."""

COMMAND = "import sys; from aioresolve.cli import main; sys.exit(main())"

PLUGIN = """
import aioresolve, asyncio, sys
resolver = aioresolve.KubernetesClusterResolver({"worker": "app=train"}, timeout=float(sys.argv[1]))
asyncio.run(resolver.cluster_spec())
"""
PLUGIN_OF_BLOCKING_CALL = """
import aioresolve.sync, sys
resolver = aioresolve.sync.KubernetesClusterResolver({"worker": "app=train"}, timeout=float(sys.argv[1]))
resolver.cluster_spec()
"""
BLOCKING_CLIENT = """
import aioresolve, asyncio, kubernetes, os, sys, threading
def hang(*args, **kwargs):
    open(os.environ["STARTED"], "w").write("started")
    threading.Event().wait()
configuration = kubernetes.client.Configuration(host="http://127.0.0.1:9", api_key={"authorization": "t"})
configuration.refresh_api_key_hook = hang
resolver = aioresolve.KubernetesClusterResolver(
    {"worker": "app=train"},
    override_client=kubernetes.client.ApiClient(configuration),
    timeout=float(sys.argv[1]),
)
asyncio.run(resolver.cluster_spec())
"""
programs = pytest.mark.parametrize(
    "program",
    [PLUGIN, PLUGIN_OF_BLOCKING_CALL, BLOCKING_CLIENT],
    ids=["plugin", "plugin of a blocking call", "blocking client"],
)
"""Calls in which an exec plugin or a client of the user hangs. The argument of a program is the deadline."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts Python code with arguments, and returns the process when its call hangs.

    After the test, no process that the call has started runs, and no temporary file exists.
    """
    started, temporary = tmp_path / "started", tmp_path / "temporary"
    temporary.mkdir()
    os.mkfifo(started)  # what hangs opens it
    call = ["-c", f"echo >{started}; exec sleep 120"]
    plugin = {"apiVersion": EXEC_V1, "command": "sh", "args": call, "interactiveMode": "Never"}
    config = write_file(tmp_path / "kubeconfig", kubeconfig({"exec": plugin}))
    env = environment(config, STARTED=str(started), PYTHONPATH=str(ROOT), TMPDIR=str(temporary))

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WAIT_FOREVER + code, *map(str, arguments)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        at_exit.enter_context(process)
        at_exit.callback(process.kill)
        with started.open("r+b", buffering=0) as pipe:
            assert select.select([pipe], [], [], PATIENCE)[0]
        return process

    with ExitStack() as at_exit:
        yield start
        assert list(temporary.iterdir()) == []
        assert [name for name, variables in processes() if variables.get("STARTED") == str(started)] == []


def processes() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the variables of each process of this user."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            yield process.name(), process.environ()


@programs
def test_process_ends_at_the_deadline_of_its_call(start: Start, program: str) -> None:
    process = start(program, DEADLINE)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Error" in stderr


@programs
def test_process_ends_at_ctrl_c(start: Start, program: str) -> None:
    process = start(program, 2 * PATIENCE)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=PATIENCE)
    assert stderr.endswith("KeyboardInterrupt\n")
    assert process.returncode == -signal.SIGINT


def test_command_ends_at_its_deadline(start: Start) -> None:
    process = start(COMMAND, "kubernetes", "-l", "app=train", "--timeout", f"{DEADLINE}s")
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert (process.returncode, stdout) == (3, "")
    assert f"within {DEADLINE} s" in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", ["", "wait", "watch", "exec", "poll", "doctor"])
def test_command_ends_at_a_signal(start: Start, tmp_path: Path, command: str, number: int, code: int) -> None:
    arguments = [*command.split(), "kubernetes", "-l", "app=train"]
    if command == "exec":
        arguments += ["--", "true"]
    if command == "poll":
        file = tmp_path / "fleet.yaml"
        file.write_text("targets:\n  train:\n    kubernetes: {jobs: {worker: app=train}}\n")
        arguments = [command, str(file)]
    process = start(COMMAND, *arguments)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=PATIENCE)
    assert command or (stdout, stderr) == ("", "")
    assert "Traceback" not in stderr
    assert process.returncode == code
