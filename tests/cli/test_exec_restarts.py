"""`aioresolve exec --restart-on-change`: a program that is restarted for another cluster, and its signals."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import psutil
import pytest

from aioresolve.testing import Answer, RequestRecord, ThreadedKubernetesServer

from .process import COMMAND, TIMEOUT, Result, Running, environment, run_as_first_process, trainer
from .test_program_outputs import uid

pytest.importorskip("pty", reason="this system has no pseudo-terminals, and thus no POSIX processes")

from aioresolve.cli.program import Program, Supervisor

EXEC = ("exec", "kubernetes", "-l", "app=train")
REPORT = "starting sh as /job:worker/task:1 at 10.0.0.2:8470, rank 1"


@pytest.fixture
def env(kubeconfig: Path, server: ThreadedKubernetesServer) -> dict[str, str]:
    """The environment of a process in the pod `train-2`, which is task 1."""
    return environment(kubeconfig, POD_UID=uid(server, "train-2"))


def python(code: str) -> tuple[str, ...]:
    return "--", sys.executable, "-c", code


def shell(code: str) -> tuple[str, ...]:
    return "--", "sh", "-c", code


# Restarts


SLEEP = "i=0; while [ $i -lt 1000 ]; do sleep 0.05; i=$((i + 1)); done"  # it ends even if nothing ends it
LOOP = f'echo "$AIORESOLVE_RANK $JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS"; {SLEEP}'
RESTARTED = (*EXEC, "--count", "3", "--for", "jax", "--restart-on-change")


def test_program_is_restarted_once_when_a_pod_is_replaced(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        assert running.line() == "1 3 10.0.0.1:8470"
        assert running.stderr_line(REPORT) == REPORT
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.delete("train-1", "ml")
        assert running.stderr_line() == (
            "the members of the cluster have changed: lost /job:worker/task:0 at 10.0.0.1:8470 (ml/train-1)"
            " and 2 more; stopping sh"
        )
        assert running.stderr_line("2 of 3").startswith("waiting: job 'worker': 2 tasks, 2 of 3")
        server.add(trainer(1, ip="10.0.0.77"))
        # The pod that remained keeps its rank.
        assert running.line() == "1 3 10.0.0.77:8470"
        assert running.stderr_line(REPORT) == REPORT
        assert running.wait_for_exit(signal.SIGTERM) == Result(143, "", "")


@pytest.mark.slow
def test_pod_with_a_new_container_or_uid_at_the_same_address_restarts_the_program(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        first = running.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        for name in ("train-2", "train-1"):  # that of the process itself restarts nothing
            status = {"containerStatuses": [{"name": "main", "ready": True, "restartCount": 1}]}
            server.patch(name, "ml", patch={"status": status})
        assert "lost /job:worker/task:0" in running.stderr_line("stopping")
        assert running.line() == first
        server.until(lambda: server.watches == 1, TIMEOUT)
        replacement = trainer(1)
        replacement["metadata"]["uid"] = "another"
        server.add(replacement)
        assert "lost /job:worker/task:0" in running.stderr_line("stopping")
        assert running.line() == first
        server.delete("train-2", "ml")
        assert "lost /job:worker/task:1" in running.stderr_line("stopping")
        running.wait_for_exit(signal.SIGTERM)


UNREADY = {
    "status": {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "main", "ready": False, "restartCount": 0}],
    }
}


def test_program_is_left_alone_in_an_outage_if_a_pod_becomes_unready_and_once_a_task_has_succeeded(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    script = f"trap 'echo usr1; exit 5' USR1; {LOOP}"
    with Running((*RESTARTED, *shell(script)), env) as running:
        running.line()
        running.stderr_line(REPORT)
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.patch("train-1", "ml", patch=UNREADY)
        # The watch that follows an outage has had the event before the source is up to date again.
        with server.down():
            assert "retrying" in running.stderr_line()
        assert running.stderr_line() == "up to date again"
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.patch("train-1", "ml", patch={"status": {"phase": "Succeeded"}})
        assert running.stderr_line() == (
            "a task has ended with success: sh is not stopped for changes from now on"
        )
        server.delete("train-10", "ml")
        result = running.wait_for_exit(signal.SIGUSR1)
    assert (result.code, result.stdout) == (5, "usr1\n")
    assert "stopping" not in result.stderr


# Signals and exit codes


@pytest.mark.slow
def test_program_that_ignores_sigterm_is_killed_after_the_grace_period(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    # Its child ignores the signal as well, and must not outlive it.
    script = f"trap '' TERM; sleep 60 & echo $!; {LOOP}"
    with Running((*RESTARTED, "--grace", "200ms", *shell(script)), env) as running:
        child = psutil.Process(int(running.line()))
        running.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.add(trainer(1, ip="10.0.0.77"))
        assert int(running.line()) != child.pid
        assert running.line() == "1 3 10.0.0.77:8470"
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        for process in psutil.Process(running.process.pid).children(recursive=True):
            process.kill()
        running.wait_for_exit()


# A supervisor in this process


class Supervised:
    """A supervisor that runs scripts of sh in turn; their `$0` is a file to which they append lines."""

    def __init__(self, folder: Path, *scripts: str) -> None:
        self.starts = 0
        self.changed = anyio.Event()
        self._scripts = scripts
        self._log = folder / "log"
        self._log.touch()

    async def prepare(self) -> Program:
        self.starts += 1
        return Program("/bin/sh", ("sh", "-c", self._scripts[self.starts - 1], str(self._log)), os.environ)

    async def wait_for_change(self) -> None:
        await self.changed.wait()
        self.changed = anyio.Event()

    async def run(self) -> int:
        supervisor = Supervisor(self.prepare, self.wait_for_change, grace=TIMEOUT, exit_with=lambda _: None)
        with anyio.fail_after(TIMEOUT):
            return await supervisor.run()

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    async def until(self, *lines: str) -> None:
        """Wait until exactly these lines have been written."""
        with anyio.fail_after(TIMEOUT):
            while self.lines() != [*lines]:  # noqa: ASYNC110 - another process writes them
                await anyio.sleep(0.01)

    def finish(self) -> None:
        """Let `LASTING` end."""
        self._log.with_suffix(".end").touch()


# Until a file exists; at most about two minutes, so that tests which are killed leave no process behind.
UNTIL_FINISHED = "until [ -e $0.end ] || [ $((waits += 1)) -gt 5000 ]; do sleep 0.02; done"

# Records the signals that it receives, and ends when it is finished.
LASTING = f"""
for name in HUP INT QUIT TERM USR1; do trap "echo $name >>$0" $name; done
echo started >>$0
{UNTIL_FINISHED}
exit 5
"""


async def exit_code(supervised: Supervised, script: Callable[[], Awaitable[None]]) -> int:
    """Return the exit code of a supervisor during whose run `script` is called."""
    codes = []
    async with anyio.create_task_group() as tasks:

        async def run() -> None:
            codes.append(await supervised.run())

        tasks.start_soon(run)
        await supervised.until("started")
        await script()
        supervised.finish()
    return codes[0]


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137)])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_supervisor_ends_with_the_exit_code_of_the_program(
    tmp_path: Path, script: str, code: int
) -> None:
    assert await Supervised(tmp_path, script).run() == code


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_before_the_program_starts_ends_the_process() -> None:
    async def prepare() -> Program:
        signal.raise_signal(signal.SIGTERM)
        return await asyncio.Future()  # which has no result

    exited: asyncio.Future[int] = asyncio.Future()
    supervisor = Supervisor(prepare, anyio.sleep_forever, grace=TIMEOUT, exit_with=exited.set_result)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run)
        with anyio.fail_after(TIMEOUT):
            assert await exited == 143
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("name", ["TERM", "HUP"])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_change_after_a_signal_neither_stops_the_program_nor_starts_it_again(
    tmp_path: Path, name: str
) -> None:
    # `kubectl delete job` sends SIGTERM to all pods, which vanish from the cluster one after another.
    supervised = Supervised(tmp_path, LASTING, "exit 3")

    async def script() -> None:
        signal.raise_signal(getattr(signal, f"SIG{name}"))
        await supervised.until("started", name)
        supervised.changed.set()
        await anyio.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGUSR1)  # it arrives after a SIGTERM that the change could cause
        await supervised.until("started", name, "USR1")

    assert await exit_code(supervised, script) == 5
    assert (supervised.lines(), supervised.starts) == (["started", name, "USR1"], 1)


@pytest.mark.parametrize(("name", "received"), [("TERM", ()), ("INT", ("INT",))])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_while_the_program_is_stopped_prevents_its_restart(
    tmp_path: Path, name: str, received: tuple[str, ...]
) -> None:
    supervised = Supervised(tmp_path, LASTING, "exit 3")

    async def script() -> None:
        supervised.changed.set()
        await supervised.until("started", "TERM")
        signal.raise_signal(getattr(signal, f"SIG{name}"))
        await supervised.until("started", "TERM", *received)
        signal.raise_signal(signal.SIGUSR1)
        # The program has received SIGTERM already; a second one would be sent before SIGUSR1.
        await supervised.until("started", "TERM", *received, "USR1")

    assert await exit_code(supervised, script) == 5
    assert supervised.starts == 1


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_that_the_parent_process_ignores_does_not_prevent_a_restart(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, LASTING, "exit 3")

    async def script() -> None:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGUSR1)
        await supervised.until("started", "USR1")
        supervised.changed.set()
        await supervised.until("started", "USR1", "TERM")

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert await exit_code(supervised, script) == 3
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_suspended_program_continues_to_receive_the_sigterm_before_its_restart(tmp_path: Path) -> None:
    suspended = "trap 'echo TERM >>$0; exit 5' TERM; echo started >>$0; kill -STOP $$; exit 3"
    supervised = Supervised(tmp_path, suspended, "exit 4")

    async def script() -> None:
        (child,) = psutil.Process().children()
        with anyio.fail_after(TIMEOUT):
            while child.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - another process stops itself
                await anyio.sleep(0.01)
        supervised.changed.set()

    assert await exit_code(supervised, script) == 4
    assert supervised.lines() == ["started", "TERM"]


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_next_program_starts_when_all_processes_of_the_last_one_have_exited(tmp_path: Path) -> None:
    child = f"trap '' TERM; trap 'echo HUP >>$0' HUP; echo started >>$0; {UNTIL_FINISHED}"
    supervised = Supervised(tmp_path, f"({child}; echo ended >>$0) & wait", "echo next >>$0; exit 3")
    others = psutil.Process().children()

    async def script() -> None:
        supervised.changed.set()
        with anyio.fail_after(TIMEOUT):
            while psutil.Process().children() != others:  # noqa: ASYNC110 - another process ends
                await anyio.sleep(0.01)

    assert await exit_code(supervised, script) == 3
    assert supervised.lines() == ["started", "ended", "next"]


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_program_does_not_outlive_a_supervisor_that_fails(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, f"trap 'echo TERM >>$0; exit 5' TERM; echo started >>$0; {SLEEP}")

    async def script() -> None:
        raise RuntimeError("the watch has failed")

    others = psutil.Process().children()
    with pytest.raises(ExceptionGroup) as raised:
        await exit_code(supervised, script)
    assert raised.group_contains(RuntimeError, match="the watch has failed")
    assert (supervised.lines(), psutil.Process().children()) == (["started", "TERM"], others)


LEAVE_ORPHANS = """
import os, subprocess, sys, time
for number in range(20):
    # Its parent ends first; half of them leave the process group.
    subprocess.run(["sh", "-c", "sleep 0.1 &"], start_new_session=number % 2 == 0, stdout=subprocess.DEVNULL)
while {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getppid(), os.getpid()}:
    time.sleep(0.05)
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [(LEAVE_ORPHANS, 7), ("import os, signal; os.kill(1, signal.SIGTERM); signal.pause()", 143)],
)
def test_first_process_of_a_container_reaps_orphans_and_has_the_exit_code_of_the_program(
    env: dict[str, str], script: str, code: int
) -> None:
    done = run_as_first_process([*COMMAND, *RESTARTED, "-q", *python(script)], env)
    assert (done.returncode, done.stderr) == (code, "")


# Other programs


@pytest.mark.slow
def test_program_continues_if_it_becomes_forbidden_to_watch(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    # The wait lists the pods, which are complete; then the program's watch begins with a second list.
    lists: list[RequestRecord] = []

    def is_after_the_wait(request: RequestRecord) -> bool:
        if request.verb == "list":
            lists.append(request)
        return len(lists) > 1

    server.inject(Answer(403), match=is_after_the_wait, times=None)
    script = f"trap 'exit 5' USR1; {LOOP}"
    with Running((*RESTARTED, *shell(script)), env) as running:
        running.line()
        running.stderr_line(REPORT)
        assert "cannot watch the cluster, the program continues: " in running.stderr_line()
        assert running.wait_for_exit(signal.SIGUSR1).code == 5


@pytest.mark.slow
def test_temporary_host_file_is_written_again_and_removed(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    script = f'echo $AIORESOLVE_HOSTFILE; head -1 "$AIORESOLVE_HOSTFILE"; {SLEEP}'
    arguments = ("--count", "3", "--for", "mpi", "--restart-on-change")
    with Running((*EXEC, *arguments, *shell(script)), env) as running:
        path, first = running.lines(2)
        assert first == "10.0.0.1 slots=1"
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.add(trainer(1, ip="10.0.0.77"))
        assert running.lines(2) == [path, "10.0.0.77 slots=1"]
        assert running.wait_for_exit(signal.SIGTERM).code == 143
    assert not Path(path).exists()
