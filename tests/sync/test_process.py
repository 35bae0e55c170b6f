"""The blocking facade in separate processes: how they end, fork and are interrupted.

Every process runs in Python's development mode with warnings as errors, and must write nothing to stderr.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aioresolve.testing import Hang, KubernetesServer, ThreadedKubernetesServer, pod, tpu_worker_process

PATIENCE = 60.0
"""Seconds until a process must end; a script would wait longer for a loop that does not end."""

SPEC = "ClusterSpec({'worker': ['10.0.0.1:8470', '10.0.0.2:8470']})"

RESOLVER = """
import os, sys, warnings
from aioresolve.sync import loop_thread
from aioresolve.sync import *
loop_thread.EXIT_TIMEOUT = 600.0
resolver = KubernetesClusterResolver(
    {"worker": ["app=train"]}, kubeconfig=sys.argv[1], not_running="skip"  # one request a call
)

def pause(at):
    print(at, flush=True)
    sys.stdin.readline()

def fork():
    loop_thread._lock.acquire()  # as if another thread were making the first call
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: this process has threads
        child = os.fork()
    if child:
        loop_thread._lock.release()
    return child
"""


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    pods = [pod(f"train-{n}", labels={"app": "train"}, ip=f"10.0.0.{n}") for n in (1, 2)]
    with KubernetesServer(pods, tls=True, tokens={"t": "alice"}).in_thread() as server:
        yield server
        server.until(lambda: server.connections == 0)


@pytest.fixture
def kubeconfig(server: ThreadedKubernetesServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and its output."""

    code: int
    stdout: list[str]
    stderr: str


class Script:
    """A running script, which stops at each `pause()` until the test resumes it."""

    def __init__(self, source: str, kubeconfig: Path) -> None:
        flags = ("-X", "dev", "-W", "error", "-c")
        command = [sys.executable, *flags, RESOLVER + source, str(kubeconfig)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        """Return the next line of its output."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()

    def resume(self) -> None:
        """Continue after a `pause()`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """Send the signal of Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def ended(self, stdin: str = "") -> Ended:
        """Wait until it ends, and return how it ended."""
        try:
            stdout, stderr = self._process.communicate(stdin, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        # The duration of a callback depends on the load of the machine.
        stderr = re.sub(r"^(?:>>> )*Executing <.*> took \d+\.\d+ seconds\n", "", stderr, flags=re.MULTILINE)
        return Ended(self._process.returncode, stdout.splitlines(), stderr)


def test_ctrl_c_cancels_the_call_and_leaves_no_task_behind(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    server.inject(Hang())
    script = Script(
        """
import asyncio
from aioresolve.sync.loop_thread import get_loop_thread

async def number_of_tasks():
    await asyncio.sleep(0.01)
    return len(asyncio.all_tasks())

try:
    resolver.cluster_spec()
except KeyboardInterrupt:
    interrupted = get_loop_thread().run(number_of_tasks)
    print(resolver.cluster_spec())
    print(get_loop_thread().run(number_of_tasks) - interrupted)
""",
        kubeconfig,
    )
    server.until(lambda: len(server.requests) == 1, PATIENCE)
    script.interrupt()
    ended = script.ended()
    assert (ended.code, ended.stdout, ended.stderr) == (0, [SPEC, "0"], "")


def test_script_exits_cleanly_with_an_open_watch(server: ThreadedKubernetesServer, kubeconfig: Path) -> None:
    source = """
import atexit
atexit.register(lambda: print(resolver.cluster_spec()))
watch = resolver.watch()
print(next(watch).spec)
pause("watching")
"""
    script = Script(source, kubeconfig)
    assert [script.line(), script.line()] == [SPEC, "watching"]
    server.until(lambda: server.watches == 1, PATIENCE)
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, [SPEC], "")
    server.until(lambda: server.watches == 0)


def test_ctrl_c_in_a_loop_over_a_watch_ends_a_script_with_one_traceback(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    script = Script("for state in resolver.watch(): print(state.spec, flush=True)", kubeconfig)
    assert script.line() == SPEC
    server.until(lambda: server.watches == 1, PATIENCE)
    script.interrupt()
    ended = script.ended()
    assert ended.code == -signal.SIGINT
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert ended.stderr.count("Traceback") == 1
    server.until(lambda: server.watches == 0)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


@needs_fork
def test_parent_and_child_of_a_fork_use_separate_connections(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    script = Script(
        """
import gc
resolver.task_type = "worker"
resolver.cluster_spec()
pause("parent")
child = fork()
if child == 0:
    print(resolver.cluster_spec())
    resolver.cluster_spec()
    gc.collect()
    pause(f"child {resolver.task_type}")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(resolver.cluster_spec())
pause("parent")
""",
        kubeconfig,
    )
    assert script.line() == "parent"
    assert server.connections == 1
    script.resume()
    assert [script.line(), script.line()] == [SPEC, "child worker"]
    assert server.connections == 2
    script.resume()
    assert [script.line(), script.line()] == [SPEC, "parent"]
    server.until(lambda: server.connections == 1)
    assert len(server.requests) == 4
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, [], "")


FUNCTIONS = """
import aioresolve, json, os
from aioresolve.sync import detect
from aioresolve.sync.probe import probe_workers
os.environ.update(NO_GCE_CHECK="true", TF_CONFIG=json.dumps({"cluster": {"worker": ["a:1"]}}))
"""
CALL = "print(detect(timeout=50).source, resolver.cluster_spec())"


@needs_fork
def test_functions_can_be_called_in_a_child_forked_after_a_probe_except_those_that_probe(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"""
{FUNCTIONS}
print(probe_workers(os.environ["WORKERS"].split(), libtpu_ports=())[0].accelerators, flush=True)
child = fork()
if child == 0:
    {CALL}
    try:
        probe_workers(os.environ["WORKERS"].split(), libtpu_ports=())
    except aioresolve.ConfigurationError as error:
        print(error)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
{CALL}
"""
    with tpu_worker_process(devices=4) as workers:
        monkeypatch.setenv("WORKERS", " ".join(workers))
        ended = Script(source, kubeconfig).ended()
    called = f"TF_CONFIG {SPEC}"
    assert ended.stdout[:2] == ["{'TPU': 4}", called]
    assert ended.stdout[2].startswith("workers cannot be probed in this process: it was forked after")
    assert ended.stdout[3:] == [called]
    assert ended.code == 0


@needs_fork
def test_watch_continues_in_the_parent_of_a_fork(server: ThreadedKubernetesServer, kubeconfig: Path) -> None:
    script = Script(
        """
import aioresolve, gc
watch = resolver.watch()
print(next(watch).spec, flush=True)
child = fork()
if child == 0:
    try:
        next(watch)
    except aioresolve.ConfigurationError as error:
        print(error)
    watch.close()
    del watch
    gc.collect()
    print(len(next(resolver.watch()).members))
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
pause("parent")
print(len(next(watch).members))
""",
        kubeconfig,
    )
    assert script.line() == SPEC
    assert script.line().startswith("this iterator was started before this process was forked")
    assert [script.line(), script.line()] == ["2", "parent"]
    server.add(pod("train-3", labels={"app": "train"}))
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, ["3"], "")
