"""The blocking facade in processes of their own: how they end, fork and are interrupted.

Every process runs in Python's development mode with warnings as errors, and must write nothing to stderr.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import Hang, KubernetesServer, pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

PATIENCE = 30.0
"""Seconds after which a process is taken for hung."""

PROMPT = 3.0
"""Seconds within which an interpreter ends. It would wait longer for a loop that does not."""

SPEC = "ClusterSpec({'worker': ['10.0.0.1:8470', '10.0.0.2:8470']})"

RESOLVER = """
import os, sys, warnings
from aioresolve.sync import loop_thread
from aioresolve.sync import *
resolver = KubernetesClusterResolver({"worker": ["app=train"]}, kubeconfig=sys.argv[1])

def pause(at):
    print(at, flush=True)
    sys.stdin.readline()

def fork():
    loop_thread._lock.acquire()  # as a thread holds it that makes the first call
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
    """How a process ended, what it wrote, and how many seconds it took for that."""

    code: int
    stdout: list[str]
    stderr: str
    took: float


class Script:
    """A running script, which the test may hold at its `pause()`s."""

    def __init__(self, source: str, kubeconfig: Path, *flags: str) -> None:
        started = ["-c", RESOLVER + source] if source else list(flags)
        command = [sys.executable, "-X", "dev", "-W", "error", *started, str(kubeconfig)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def line(self) -> str:
        """Return the next line it writes."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip()

    def resume(self) -> None:
        """Let it go on from its `pause()`."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def interrupt(self) -> None:
        """Do what Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def ended(self, stdin: str = "") -> Ended:
        """Return how it ends."""
        started = time.monotonic()
        try:
            stdout, stderr = self._process.communicate(stdin, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        # How long a callback takes is a matter of the machine's other work.
        stderr = re.sub(r"^Executing <.*> took \d+\.\d+ seconds\n", "", stderr, flags=re.MULTILINE)
        return Ended(self._process.returncode, stdout.splitlines(), stderr, time.monotonic() - started)


def test_a_script_ends_clean_with_its_resolver_open(kubeconfig: Path) -> None:
    script = Script("print(resolver.cluster_spec()); pause('asked')", kubeconfig)
    assert [script.line(), script.line()] == [SPEC, "asked"]
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, [], "")
    assert ended.took < PROMPT


def test_the_exit_leaves_every_resolver_that_was_entered(kubeconfig: Path) -> None:
    script = Script(
        """
import asyncio
import aioresolve

class Slow(aioresolve.SimpleClusterResolver):
    async def aclose(self):
        await asyncio.sleep(0.05)
        print("left")

resolvers = [ClusterResolver(Slow(aioresolve.ClusterSpec({"worker": ["a:1"]}))) for _ in range(2)]
for resolver in resolvers:
    resolver.cluster_spec()
""",
        kubeconfig,
    )
    ended = script.ended()
    assert (ended.code, ended.stdout, ended.stderr) == (0, ["left", "left"], "")


def test_a_script_ends_clean_where_a_name_was_looked_up_in_a_thread(kubeconfig: Path) -> None:
    document = json.loads(kubeconfig.read_text())
    cluster = document["clusters"][0]["cluster"]
    cluster["server"] = cluster["server"].replace("127.0.0.1", "localhost")
    kubeconfig.write_text(json.dumps(document))
    ended = Script("print(resolver.cluster_spec())", kubeconfig).ended()
    assert (ended.code, ended.stdout, ended.stderr) == (0, [SPEC], "")


def test_a_script_ends_clean_while_another_thread_waits_for_an_answer(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    server.inject(Hang())
    script = Script(
        "import threading; threading.Thread(target=resolver.cluster_spec, daemon=True).start(); pause('')",
        kubeconfig,
    )
    script.line()
    server.until(lambda: len(server.requests) == 1, PATIENCE)
    ended = script.ended("\n")
    assert ended.code == 0
    assert ended.took < PROMPT


def test_a_call_at_exit_is_made_if_it_was_planned_after_the_import(kubeconfig: Path) -> None:
    source = "import atexit; atexit.register(lambda: print(resolver.cluster_spec())); resolver.cluster_spec()"
    ended = Script(source, kubeconfig).ended()
    assert (ended.code, ended.stdout, ended.stderr) == (0, [SPEC], "")


def test_a_prompt_needs_no_with(kubeconfig: Path, tmp_path: Path) -> None:
    start = tmp_path / "start.py"
    start.write_text(RESOLVER)
    lines = ["resolver", "resolver.cluster_spec()", "_.jobs", "resolver.cluster_spec().jobs", ""]
    ended = Script("", kubeconfig, "-q", "-i", str(start)).ended("\n".join(lines))
    shown = "<sync KubernetesClusterResolver of <KubernetesClusterResolver "
    assert ended.stdout[0].startswith(shown)
    assert ended.stdout[1:] == [SPEC, "['worker']", "['worker']"]
    assert (ended.code, ended.stderr.replace(">>> ", "").strip()) == (0, "")


def test_ctrl_c_cancels_the_call_and_leaves_nothing_behind(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    server.inject(Hang())
    script = Script(
        """
import asyncio
from aioresolve.sync.loop_thread import get_loop_thread

async def tasks_at_rest():
    await asyncio.sleep(0.01)
    return len(asyncio.all_tasks())

try:
    resolver.cluster_spec()
except KeyboardInterrupt:
    interrupted = get_loop_thread().run(tasks_at_rest)
    print(resolver.cluster_spec())
    print(get_loop_thread().run(tasks_at_rest) - interrupted)
""",
        kubeconfig,
    )
    server.until(lambda: len(server.requests) == 1, PATIENCE)
    script.interrupt()
    ended = script.ended()
    assert (ended.code, ended.stdout, ended.stderr) == (0, [SPEC, "0"], "")
    assert ended.took < PROMPT


def test_ctrl_c_ends_a_script_with_nothing_but_its_traceback(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    server.inject(Hang())
    script = Script("resolver.cluster_spec()", kubeconfig)
    server.until(lambda: len(server.requests) == 1, PATIENCE)
    script.interrupt()
    ended = script.ended()
    assert ended.code == -signal.SIGINT
    assert ended.stderr.startswith("Traceback (most recent call last):")
    assert ended.stderr.endswith("KeyboardInterrupt\n")
    assert ended.stderr.count("Traceback") == 1
    assert ended.took < PROMPT


def test_a_script_ends_clean_with_a_watch_open(server: ThreadedKubernetesServer, kubeconfig: Path) -> None:
    source = """
fleet = Fleet({"a": resolver})
watches = [resolver.watch(), fleet.watch(), fleet.poll()]
print(next(watches[0]).spec, next(watches[1]).num_tasks, next(watches[2]).num_tasks)
pause("watching")
"""
    script = Script(source, kubeconfig)
    assert [script.line(), script.line()] == [f"{SPEC} 2 2", "watching"]
    server.until(lambda: server.watches == 2, PATIENCE)
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, [], "")
    assert ended.took < PROMPT
    server.until(lambda: server.watches == 0)


def test_a_script_ends_clean_while_another_thread_follows_a_watch(kubeconfig: Path) -> None:
    source = """
import threading

def follow():
    for state in resolver.watch():
        print(state.spec, flush=True)

threading.Thread(target=follow, daemon=True).start()
sys.stdin.readline()
"""
    script = Script(source, kubeconfig)
    assert script.line() == SPEC
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, [], "")
    assert ended.took < PROMPT


def test_ctrl_c_ends_the_next_of_a_watch_that_goes_on(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    source = """
watch = resolver.watch()
print(next(watch).spec, flush=True)
try:
    next(watch)
except KeyboardInterrupt:
    pause("interrupted")
print(len(next(watch).members))
"""
    script = Script(source, kubeconfig)
    assert script.line() == SPEC
    server.until(lambda: server.watches == 1, PATIENCE)
    script.interrupt()
    assert script.line() == "interrupted"
    server.add(pod("train-3", labels={"app": "train"}))
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, ["3"], "")
    assert ended.took < PROMPT


def test_ctrl_c_in_a_loop_over_a_watch_ends_a_script_with_nothing_but_its_traceback(
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
    assert ended.took < PROMPT
    server.until(lambda: server.watches == 0)


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@needs_fork
def test_after_a_fork_parent_and_child_go_on_over_connections_of_their_own(
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
    assert ended.took < PROMPT


@needs_fork
def test_a_child_that_only_lets_go_of_the_resolver_leaves_the_parents_connection_alone(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    script = Script(
        """
import gc
resolver.cluster_spec()
child = fork()
if child == 0:
    resolver.close()
    del resolver
    gc.collect()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(resolver.cluster_spec())
pause("asked")
""",
        kubeconfig,
    )
    assert [script.line(), script.line()] == [SPEC, "asked"]
    assert server.connections == 1
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, [], "")


@needs_fork
def test_after_a_fork_a_resolver_of_ones_own_is_used_if_nothing_in_it_is_the_parents(
    kubeconfig: Path,
) -> None:
    script = Script(
        """
import aioresolve
spec = aioresolve.ClusterSpec({"worker": ["a:1"]})

class Entered(aioresolve.SimpleClusterResolver):
    async def __aenter__(self):
        return self

used = [ClusterResolver(aioresolve.SimpleClusterResolver(spec)), ClusterResolver(Entered(spec))]
unused = ClusterResolver(Entered(spec))
union = UnionClusterResolver(used[0], resolver)
for one in [*used, union]:
    one.cluster_spec()
child = fork()
if child == 0:
    print(used[0].cluster_spec(), unused.cluster_spec(), union.cluster_spec(), sep="\\n")
    try:
        used[1].cluster_spec()
    except aioresolve.ConfigurationError as error:
        print(error)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(used[1].cluster_spec())
""",
        kubeconfig,
    )
    ended = script.ended()
    own = "ClusterSpec({'worker': ['a:1']})"
    union = "ClusterSpec({'worker': ['a:1', '10.0.0.1:8470', '10.0.0.2:8470']})"
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout[:3] == [own, own, union]
    assert ended.stdout[3].startswith("<Entered of jobs ['worker']> was entered before this process was fork")
    assert ended.stdout[4:] == [own]


@needs_fork
def test_after_a_fork_a_watch_goes_on_in_the_parent_and_a_fleet_is_used_afresh(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    script = Script(
        """
import aioresolve, gc
fleet = Fleet({"a": resolver, "b": SimpleClusterResolver(aioresolve.ClusterSpec({"worker": ["b:1"]}))})
watches = [resolver.watch(), fleet.watch()]
print(next(watches[0]).spec, sorted([next(watches[1]).name, next(watches[1]).name]), flush=True)
child = fork()
if child == 0:
    for watch in watches:
        try:
            next(watch)
        except aioresolve.ConfigurationError as error:
            print(error)
        watch.close()
    del watch, watches
    gc.collect()
    print({name: reading.num_tasks for name, reading in fleet.resolve().items()}, next(fleet.poll()).error)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
pause("parent")
print(len(next(watches[0]).members), next(watches[1]).num_tasks)
""",
        kubeconfig,
    )
    assert script.line() == f"{SPEC} ['a', 'b']"
    for _ in range(2):
        assert script.line().startswith("this iterator was started before this process was forked")
    assert [script.line(), script.line()] == ["{'a': 2, 'b': 1} None", "parent"]
    server.add(pod("train-3", labels={"app": "train"}))
    ended = script.ended("\n")
    assert (ended.code, ended.stdout, ended.stderr) == (0, ["3 3"], "")
    assert ended.took < PROMPT
