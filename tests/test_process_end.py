"""A process ends when its call ends, by a deadline or a signal, although blocking work still hangs.

A thread cannot be interrupted. What hangs here never ends by itself.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from .cli.process import COMMAND, environment
from .kubernetes.kubeconfigs import EXEC_V1, kubeconfig, write_file

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent

PATIENCE = 60.0
"""Seconds after which a process that should have ended is considered hung."""

END = 1.0
"""Seconds after a deadline or a signal until the process has ended, on a machine that does nothing else."""

ATTEMPTS = 4
"""How often a process may try to end in that time: a busy machine delays some attempts, a wait delays all."""

MEASURED = 0.1
"""Seconds of processor time for which it is measured how busy the machine is."""

DEADLINE = 5
"""Seconds until the deadline of a call: on a busy machine, some pass before it hangs."""

HANG = "echo >{started}; exec sleep 120"

ASYNC = """
import asyncio, time, aioresolve
async def main():
    print(time.time(), flush=True)
    await {resolver}.cluster_spec(timeout={timeout})
asyncio.run(main())
"""

SYNC = """
import time
from aioresolve import sync as aioresolve
print(time.time(), flush=True)
{resolver}.cluster_spec(timeout={timeout})
"""

KUBERNETES = 'aioresolve.KubernetesClusterResolver({"worker": "app=train"})'
TPU = 'aioresolve.TPUClusterResolver("my-tpu", zone="us-central1-a", project="my-project")'
BLOCKING_CLIENT = """
import os, kubernetes, threading
def hang(configuration):
    open(os.environ["STARTED"], "w").write("started")
    threading.Event().wait()
configuration = kubernetes.client.Configuration(host="http://127.0.0.1:9", api_key={"authorization": "t"})
configuration.refresh_api_key_hook = hang
client = kubernetes.client.ApiClient(configuration)
"""
CLIENT = 'aioresolve.KubernetesClusterResolver({"worker": "app=train"}, override_client=client)'


class Hanging:
    """A call that hangs: as Python code, as arguments of the command, and the variables that make it hang.

    `started` is a named pipe that the call opens, or that what hangs in its place opens.
    """

    def __init__(self, folder: Path, at_exit: ExitStack) -> None:
        self.folder = folder
        self.at_exit = at_exit
        self.started = folder / "started"
        os.mkfifo(self.started)
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.env = environment(
            folder / "kubeconfig",
            STARTED=str(self.started),
            PYTHONPATH=str(ROOT),
            TMPDIR=str(self.temporary),
        )
        self.source = ""
        self.resolver = KUBERNETES
        self.arguments: tuple[str, ...] = ("kubernetes", "-l", "worker=app=train")
        self.wait: Callable[[], None] = self._wait_for_writer

    def kubeconfig_on_a_dead_file_system(self) -> None:
        self.env["KUBECONFIG"] = str(self.started)
        self.wait = self._wait_for_reader

    def exec_plugin(self) -> None:
        call = ["-c", HANG.format(started=self.started)]
        plugin = {"apiVersion": EXEC_V1, "command": "sh", "args": call, "interactiveMode": "Never"}
        write_file(self.folder / "kubeconfig", kubeconfig({"exec": plugin}))

    def blocking_client(self) -> None:
        self.source, self.resolver = BLOCKING_CLIENT, CLIENT

    def metadata_server(self) -> None:
        listener = self.at_exit.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.env["GCE_METADATA_HOST"] = f"127.0.0.1:{listener.getsockname()[1]}"
        self.resolver = TPU
        self.arguments = ("tpu", "my-tpu", "--zone", "us-central1-a", "--project", "my-project")

        def wait() -> None:
            listener.settimeout(PATIENCE)
            self.at_exit.enter_context(listener.accept()[0])

        self.wait = wait

    def executable_for_google_credentials(self) -> None:
        self.metadata_server()
        executable = self.folder / "executable"
        executable.write_text(f"#!/bin/sh\n{HANG.format(started=self.started)}\n")
        executable.chmod(0o700)
        credentials = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/all/workloadIdentityPools/a/providers/b",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
            "credential_source": {"executable": {"command": str(executable), "timeout_millis": 120_000}},
        }
        self.env["GOOGLE_APPLICATION_CREDENTIALS"] = str(self.folder / "credentials.json")
        self.env["GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES"] = "1"
        (self.folder / "credentials.json").write_text(json.dumps(credentials))
        self.wait = self._wait_for_writer

    def remains(self) -> list[str]:
        """Return the processes that the call has started and that run, and its temporary files."""
        remains = [path.name for path in self.temporary.iterdir()]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("STARTED") == str(self.started):
                    remains.append(process.name())
        return remains

    def _wait_for_writer(self) -> None:
        pipe = self.at_exit.enter_context(self.started.open("r+b", buffering=0))
        assert select.select([pipe], [], [], PATIENCE)[0]

    def _wait_for_reader(self) -> None:
        until = time.monotonic() + PATIENCE
        while True:
            try:  # the file remains open, so that the reader never sees an end
                self.at_exit.callback(os.close, os.open(self.started, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:  # there is no reader yet
                assert time.monotonic() < until
                time.sleep(0.01)
            else:
                return


HANGS: dict[str, Callable[[Hanging], None]] = {
    "kubeconfig": Hanging.kubeconfig_on_a_dead_file_system,
    "plugin": Hanging.exec_plugin,
    "client": Hanging.blocking_client,
    "metadata server": Hanging.metadata_server,
    "executable": Hanging.executable_for_google_credentials,
}


EXECUTABLE = "executable"
"""google-auth runs it; it outlives the call, as docs/credentials.md says."""


def check_end(folder: Path, source: str, end_process: Callable[[Hanging], float]) -> None:
    """Fail if a process with a call that hangs does not end in time, or if it leaves something behind.

    `end_process` starts the process, and returns how many seconds after the deadline or signal it has ended.
    """
    delays: list[float] = []
    for attempt in range(ATTEMPTS):
        (folder / f"{attempt}").mkdir()
        with ExitStack() as at_exit:
            hanging = Hanging(folder / f"{attempt}", at_exit)
            HANGS[source](hanging)
            delays.append(end_process(hanging))
            assert source == EXECUTABLE or hanging.remains() == []
        if delays[-1] < END or delays[-1] < END * slowdown():
            return
    pytest.fail(f"the process has ended after {delays} s")


def slowdown() -> float:
    """Return how many times longer than on an idle machine this process needs at present, at least 1."""
    started_at, used = time.monotonic(), time.process_time()
    while time.process_time() < used + MEASURED:
        pass
    return max(1.0, (time.monotonic() - started_at) / MEASURED)


INTERRUPTED_IMPORT = """
import signal, sys
from aioresolve.cli import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(main(["kubernetes", "-l", "worker=app=train", "--kubeconfig", "/missing"]))
"""


@pytest.mark.parametrize("module", ["click", "aiohttp"])
def test_command_ends_without_a_traceback_at_ctrl_c_while_it_imports(module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, module]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


ABANDONED_THREAD = """
import asyncio, ssl, sys, time
from aioresolve._core import concurrency

def load():
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        ssl.create_default_context()

async def main():
    await asyncio.wait_for(concurrency.run_in_thread("load certificates", load), 0.1)

concurrency.MAX_EXIT_WAIT = float(sys.argv[2])
try:
    asyncio.run(main())
except TimeoutError:
    sys.exit(7)
"""


def test_process_that_ends_while_a_thread_works_neither_crashes_nor_hangs() -> None:
    for _ in range(4):  # without the wait at exit, about half of the runs crash
        command = [sys.executable, "-c", ABANDONED_THREAD, "0.4", f"{PATIENCE}"]
        assert subprocess.run(command, timeout=PATIENCE, check=False).returncode == 7
    # It may crash, as OpenSSL is cleaned up while the thread uses it.
    command = [sys.executable, "-c", ABANDONED_THREAD, "inf", "0.5"]
    subprocess.run(command, timeout=PATIENCE, check=False)


def start(hanging: Hanging, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=hanging.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    hanging.at_exit.enter_context(process)
    hanging.at_exit.callback(process.kill)
    return process


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what the process has written when it ends."""
    return process.communicate(timeout=PATIENCE)


def interrupt(process: subprocess.Popen[str], number: int) -> tuple[float, str, str]:
    """Send a signal; return after how many seconds the process has ended, and what it has written."""
    sent_at = time.time()
    process.send_signal(number)
    stdout, stderr = end(process)
    return time.time() - sent_at, stdout, stderr


def is_last_attempt(stderr: str) -> bool:
    """Whether a busy machine noticed the end of an attempt so late that there was no time for another one."""
    return "did not respond to metadata" in stderr


@pytest.mark.parametrize(("source", "code"), [*((each, ASYNC) for each in HANGS), ("plugin", SYNC)])
def test_process_ends_at_the_deadline_of_its_call(tmp_path: Path, source: str, code: str) -> None:
    def end_process(hanging: Hanging) -> float:
        call = code.format(resolver=hanging.resolver, timeout=DEADLINE)
        process = start(hanging, "-c", hanging.source + call)
        hanging.wait()
        called_at, stderr = end(process)
        assert "DeadlineExceededError" in stderr or is_last_attempt(stderr)
        assert process.returncode == 1
        return time.time() - (float(called_at) + DEADLINE)

    check_end(tmp_path, source, end_process)


@pytest.mark.parametrize(("source", "code"), [*((each, ASYNC) for each in HANGS), ("plugin", SYNC)])
def test_process_ends_at_ctrl_c(tmp_path: Path, source: str, code: str) -> None:
    def end_process(hanging: Hanging) -> float:
        call = code.format(resolver=hanging.resolver, timeout=PATIENCE)
        process = start(hanging, "-c", hanging.source + call)
        hanging.wait()
        delay, _, stderr = interrupt(process, signal.SIGINT)
        assert stderr.endswith("KeyboardInterrupt\n")
        assert process.returncode == -signal.SIGINT
        return delay

    check_end(tmp_path, source, end_process)


def command(hanging: Hanging, name: str) -> list[str]:
    """Return the command line of a command, which finds its cluster with `hanging.arguments`."""
    if name == "poll":
        file = hanging.folder / "fleet.yaml"
        file.write_text("targets:\n  train:\n    kubernetes: {jobs: {worker: app=train}}\n")
        return [*COMMAND[1:], name, str(file)]
    program = ["--", "true"] if name == "exec" else []
    return [*COMMAND[1:], *([name] if name else []), *hanging.arguments, *program]


@pytest.mark.parametrize("source", ["plugin", "metadata server"])
def test_command_ends_at_its_deadline(tmp_path: Path, source: str) -> None:
    def end_process(hanging: Hanging) -> float:
        process = start(hanging, *command(hanging, ""), "--timeout", f"{DEADLINE}s")
        hanging.wait()
        started_at = time.time()
        stdout, stderr = end(process)
        assert stdout == ""
        if not is_last_attempt(stderr):
            assert f"within {DEADLINE} s" in stderr
            assert process.returncode == 3
        return time.time() - (started_at + DEADLINE)

    check_end(tmp_path, source, end_process)


def test_doctor_ends_at_the_deadline_of_its_checks(tmp_path: Path) -> None:
    def end_process(hanging: Hanging) -> float:
        process = start(hanging, *command(hanging, "doctor"), "--timeout", f"{DEADLINE}s")
        hanging.wait()
        started_at = time.time()
        stdout, _ = end(process)
        assert "failed" in stdout
        assert process.returncode == 1
        return time.time() - (started_at + DEADLINE)

    check_end(tmp_path, "plugin", end_process)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize(
    ("source", "name"),
    [
        *(("plugin", name) for name in ("", "wait", "watch", "exec", "poll", "doctor")),
        ("kubeconfig", ""),
        ("metadata server", ""),
    ],
)
def test_command_ends_at_a_signal(tmp_path: Path, source: str, name: str, number: int, code: int) -> None:
    def end_process(hanging: Hanging) -> float:
        process = start(hanging, *command(hanging, name))
        hanging.wait()
        delay, stdout, stderr = interrupt(process, number)
        assert name or (stdout, stderr) == ("", "")
        assert name == "doctor" or stdout == ""
        assert "Traceback" not in stderr
        assert process.returncode == code
        return delay

    check_end(tmp_path, source, end_process)


LOOK_UP = """
import asyncio, os, socket, threading, time
import aioresolve.probe.channels
from aioresolve import ClusterSpec, SimpleClusterResolver

def hang(*args, **kwargs):
    open(os.environ["STARTED"], "w").write("started")
    threading.Event().wait()

socket.getaddrinfo = hang

async def main():
    print(time.time(), flush=True)
    await {call}

asyncio.run(main())
"""


WAIT = (
    'SimpleClusterResolver(ClusterSpec({"worker": ["a.example:1"]})).wait(reachable="tcp", timeout={timeout})'
)
DETECT_TLS = 'aioresolve.probe.channels.detect_tls("a.example", 1, {timeout})'


@pytest.mark.parametrize("call", [WAIT, DETECT_TLS], ids=["wait", "TLS detection"])
def test_process_does_not_wait_for_a_look_up(tmp_path: Path, call: str) -> None:
    def end_process(hanging: Hanging) -> float:
        process = start(hanging, "-c", LOOK_UP.replace("{call}", call.replace("{timeout}", f"{DEADLINE}")))
        hanging.wait()
        called_at, _ = end(process)
        return time.time() - (float(called_at) + DEADLINE)

    check_end(tmp_path, "client", end_process)
