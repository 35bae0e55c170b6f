"""`run_command`: limited output, no secrets from the standard error, and no processes left behind."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psutil
import pytest

from aioresolve.errors import CredentialsError
from aioresolve.kubernetes.auth.exec_plugin import MAX_STDOUT, run_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("warm", "no_leak")


@pytest.fixture(scope="module")
def warm() -> None:
    """Make uvloop open its pipe for signals, once per process, before the check for leaks."""
    with suppress(ImportError):
        import uvloop

        uvloop.run(run_command([sys.executable, "-S", "-c", ""], env={}, what="nothing"))


async def run(
    code: str,
    *,
    secrets: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> bytes:
    with anyio.fail_after(60):
        return await run_command(
            [sys.executable, "-S", "-c", code, *arguments],
            env={**os.environ, **(env or {})},
            what="the command",
            secrets=secrets,
        )


async def failure(code: str, **options: Any) -> str:
    with pytest.raises(CredentialsError) as caught:
        await run(code, **options)
    return str(caught.value)


async def read_pids(fifo: Path) -> list[int]:
    """Return the process ids that a command writes to `fifo`."""
    with anyio.fail_after(60):
        text = await anyio.to_thread.run_sync(fifo.read_text, abandon_on_cancel=True)
    return [int(word) for word in text.split()]


async def wait_for_exit(pid: int) -> None:
    """Wait until the process has exited; an orphan of another process may remain unreaped for a while."""
    with anyio.fail_after(60):
        while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await anyio.sleep(0.01)


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


async def test_command_has_the_given_environment_an_empty_input_and_no_terminal() -> None:
    code = """
import os, sys
try:
    open("/dev/tty")
except OSError:
    print("no terminal", repr(sys.stdin.read()), os.environ["A"])
"""
    assert await run(code, env={"A": "b"}) == b"no terminal '' b\n"


async def test_a_megabyte_of_output_is_read_and_much_standard_error_does_not_block() -> None:
    code = f"import sys; sys.stderr.write('x' * 5_000_000); sys.stdout.write('x' * {MAX_STDOUT})"
    assert len(await run(code)) == MAX_STDOUT


async def test_command_that_writes_more_than_a_megabyte_is_killed(fifo: Path) -> None:
    code = f"""
import os, sys
open({str(fifo)!r}, "w").write(str(os.getpid()))
while True:
    sys.stdout.write("x" * 65536)
"""
    message, [pid] = await asyncio.gather(failure(code), read_pids(fifo))
    assert "wrote more than 1 MiB" in message
    assert not psutil.pid_exists(pid)


async def test_error_shows_exit_code_and_standard_error_but_never_the_output() -> None:
    message = await failure(
        "import sys; print('hunter22'); sys.stderr.write('\\x1b[31mexpired\\x1b[0m:\\tlog in'); sys.exit(3)"
    )
    assert message == "the command exited with code 3: expired: log in"


async def test_error_for_a_failure_without_a_message_says_how_it_ended() -> None:
    none = "without a message on its standard error"
    assert await failure("raise SystemExit(1)") == f"the command exited with code 1, {none}"
    assert await failure("import os; os.kill(os.getpid(), 9)") == f"the command was killed by SIGKILL, {none}"


async def test_only_the_end_of_a_long_standard_error_is_shown() -> None:
    message = await failure("import sys; sys.stderr.write('x ' * 50_000 + 'the end'); sys.exit(1)")
    assert message.endswith("the end")
    assert len(message) < 2200


async def test_what_the_command_was_given_is_removed_from_its_standard_error() -> None:
    message = "hunter1, hunter2, hunter3, abc and abcd: --region not found"
    message = await failure(
        f"import sys; sys.exit({message!r})",
        secrets=("hunter3", "abc"),
        arguments=["hunter1", "--token=hunter2", "--region"],
    )
    assert message == (
        "the command exited with code 1: (secret), (secret), (secret), (secret) and abcd: --region not found"
    )


async def test_command_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("#!/no/such/interpreter")
    text.chmod(0o755)
    for path, reason in ((str(text), "No such file"), (str(tmp_path), "Permission denied")):
        with pytest.raises(CredentialsError, match=f"^cannot start the command: {reason}"):
            await run_command([path], env={}, what="the command")


WAIT = "import signal; signal.pause()"


async def cancel(code: str, fifo: Path) -> float:
    """Run `code`, cancel it after it wrote its process ids, and return the seconds that this took."""
    task = asyncio.create_task(run(code))
    pids = await read_pids(fifo)
    before = time.monotonic()
    task.cancel()
    await asyncio.wait([task])
    elapsed = time.monotonic() - before
    assert not psutil.pid_exists(pids[0])
    for pid in pids[1:]:
        await wait_for_exit(pid)
    return elapsed


async def test_command_cancelled_during_its_start_is_killed() -> None:
    for turns in range(8):
        task = asyncio.create_task(run(WAIT))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert not psutil.Process().children()


async def test_cancelled_command_is_killed_with_its_children_although_it_ignores_signals(fifo: Path) -> None:
    code = f"""
import os, signal, subprocess, sys
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", {WAIT!r}])
open({str(fifo)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
while True:
    signal.pause()
"""
    assert await cancel(code, fifo) < 20


async def test_grandchild_with_open_pipes_does_not_block(fifo: Path) -> None:
    """A plugin may leave a helper running, such as an agent that caches logins."""
    code = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {WAIT!r}])
sys.stdout.write("x" * 60_000)
sys.stdout.flush()
open({str(fifo)!r}, "w").write(str(child.pid))
"""
    before = time.monotonic()
    output, [pid] = await asyncio.gather(run(code), read_pids(fifo))
    assert time.monotonic() - before < 60
    assert len(output) == 60_000
    psutil.Process(pid).kill()
    await wait_for_exit(pid)
