"""A process ends with its call, whatever hangs: at the deadline, at Ctrl-C and at SIGTERM."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from .cli.process import environment
from .kubernetes.kubeconfigs import EXEC_V1, kubeconfig, write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parent.parent

PATIENCE = 60.0
"""Seconds after which a process that should have ended is considered hung."""

WAIT_FOREVER = """
from aioresolve._core import threads
from aioresolve.sync import loop_thread
threads.MAX_EXIT_WAIT = loop_thread.EXIT_TIMEOUT = loop_thread.INTERRUPT_TIMEOUT = 3600.0
"""
"""Makes the waits at the exit of a process endless, so that a process which begins one does not end."""

COMMAND = "import sys; from aioresolve.cli import main; sys.exit(main())"

DEADLINE = 5
"""Seconds until the deadline of a call: on a busy machine, some pass before it hangs."""

ASYNC = """
import asyncio, aioresolve
async def main():
    await {call}
asyncio.run(main())
"""
SYNC = """
from aioresolve import sync as aioresolve
{call}
"""
KUBERNETES = 'aioresolve.KubernetesClusterResolver({"worker": "app=train"}).cluster_spec'
TPU = 'aioresolve.TPUClusterResolver("my-tpu", zone="us-central1-a", project="my-project").cluster_spec'

BLOCKING_CLIENT = """
import kubernetes, os, threading
def hang(*args, **kwargs):
    open(os.environ["STARTED"], "w").write("started")
    threading.Event().wait()
configuration = kubernetes.client.Configuration(host="http://127.0.0.1:9", api_key={"authorization": "t"})
configuration.refresh_api_key_hook = hang
client = kubernetes.client.ApiClient(configuration)
"""
CLIENT = 'aioresolve.KubernetesClusterResolver({"worker": "app=train"}, override_client=client).cluster_spec'


class Hanging:
    """A call that hangs: as Python code, as arguments of the command, and the variables that make it hang.

    `started` is a named pipe that what hangs opens.
    """

    def __init__(self, folder: Path, at_exit: ExitStack) -> None:
        folder.mkdir()
        self.folder = folder
        self.at_exit = at_exit
        self.started = folder / "started"
        os.mkfifo(self.started)
        (folder / "temporary").mkdir()
        self.env = environment(
            folder / "kubeconfig",
            STARTED=str(self.started),
            PYTHONPATH=str(ROOT),
            TMPDIR=str(folder / "temporary"),
        )
        self.source, self.call = "", KUBERNETES
        self.arguments: tuple[str, ...] = ("kubernetes", "-l", "worker=app=train")
        self.wait: Callable[[], None] = self._wait_for_writer

    def exec_plugin(self) -> None:
        call = ["-c", f"echo >{self.started}; exec sleep 120"]
        plugin = {"apiVersion": EXEC_V1, "command": "sh", "args": call, "interactiveMode": "Never"}
        write_file(self.folder / "kubeconfig", kubeconfig({"exec": plugin}))

    def blocking_client(self) -> None:
        self.source, self.call = BLOCKING_CLIENT, CLIENT

    def metadata_server(self) -> None:
        listener = self.at_exit.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.env["GCE_METADATA_HOST"] = f"127.0.0.1:{listener.getsockname()[1]}"
        self.call = TPU

        def wait() -> None:
            listener.settimeout(PATIENCE)
            self.at_exit.enter_context(listener.accept()[0])

        self.wait = wait

    def start(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{WAIT_FOREVER}{code}", *arguments],
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.at_exit.enter_context(process)
        self.at_exit.callback(process.kill)
        self.wait()
        return process

    def remains(self) -> list[str]:
        """Return the processes that the call has started and that run, and its temporary files."""
        remains = [path.name for path in (self.folder / "temporary").iterdir()]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("STARTED") == str(self.started):
                    remains.append(process.name())
        return remains

    def _wait_for_writer(self) -> None:
        pipe = self.at_exit.enter_context(self.started.open("r+b", buffering=0))
        assert select.select([pipe], [], [], PATIENCE)[0]


HANGS: dict[str, Callable[[Hanging], None]] = {
    "plugin": Hanging.exec_plugin,
    "client": Hanging.blocking_client,
    "metadata server": Hanging.metadata_server,
}


@contextmanager
def hanging_call(folder: Path, source: str) -> Iterator[Hanging]:
    """Yield a call that hangs; fail if something of it remains after the block."""
    with ExitStack() as at_exit:
        hanging = Hanging(folder / "hanging", at_exit)
        HANGS[source](hanging)
        yield hanging
        assert hanging.remains() == []


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what the process has written when it ends."""
    return process.communicate(timeout=PATIENCE)


@pytest.mark.parametrize(("source", "code"), [*((each, ASYNC) for each in HANGS), ("plugin", SYNC)])
def test_process_ends_at_the_deadline_of_its_call(tmp_path: Path, source: str, code: str) -> None:
    with hanging_call(tmp_path, source) as hanging:
        call = f"{hanging.call}(timeout={DEADLINE})"
        process = hanging.start(hanging.source + code.format(call=call))
        _, stderr = end(process)
        assert process.returncode == 1
        assert "Error" in stderr


@pytest.mark.parametrize(("source", "code"), [("plugin", ASYNC), ("client", ASYNC), ("plugin", SYNC)])
def test_process_ends_at_ctrl_c(tmp_path: Path, source: str, code: str) -> None:
    with hanging_call(tmp_path, source) as hanging:
        call = f"{hanging.call}(timeout={2 * PATIENCE})"
        process = hanging.start(hanging.source + code.format(call=call))
        process.send_signal(signal.SIGINT)
        _, stderr = end(process)
        assert stderr.endswith("KeyboardInterrupt\n")
        assert process.returncode == -signal.SIGINT


def test_command_ends_at_its_deadline(tmp_path: Path) -> None:
    with hanging_call(tmp_path, "plugin") as hanging:
        process = hanging.start(COMMAND, *hanging.arguments, "--timeout", f"{DEADLINE}s")
        stdout, stderr = end(process)
        assert (process.returncode, stdout) == (3, "")
        assert f"within {DEADLINE} s" in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("name", ["", "wait", "watch", "exec", "poll", "doctor"])
def test_command_ends_at_a_signal(tmp_path: Path, name: str, number: int, code: int) -> None:
    with hanging_call(tmp_path, "plugin") as hanging:
        arguments = [
            *([name] if name else []),
            *hanging.arguments,
            *(["--", "true"] if name == "exec" else []),
        ]
        if name == "poll":
            file = hanging.folder / "fleet.yaml"
            file.write_text("targets:\n  train:\n    kubernetes: {jobs: {worker: app=train}}\n")
            arguments = [name, str(file)]
        process = hanging.start(COMMAND, *arguments)
        process.send_signal(number)
        stdout, stderr = end(process)
        assert name or (stdout, stderr) == ("", "")
        assert "Traceback" not in stderr
        assert process.returncode == code
