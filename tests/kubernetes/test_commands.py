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
from aioresolve.kubernetes.auth import exec_plugin
from aioresolve.kubernetes.auth.exec_plugin import MAX_STDERR, MAX_STDOUT, _Child, run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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


async def test_standard_output_is_returned() -> None:
    assert await run("print('yes')") == b"yes\n"


async def test_environment_is_the_given_one() -> None:
    assert await run("import os; print(os.environ['A'])", env={"A": "b"}) == b"b\n"


async def test_standard_input_is_empty_and_there_is_no_terminal() -> None:
    code = """
import sys
try:
    open("/dev/tty")
except OSError:
    print("no terminal", repr(sys.stdin.read()))
"""
    assert await run(code) == b"no terminal ''\n"


async def test_megabytes_on_standard_error_do_not_block() -> None:
    code = "import sys; sys.stderr.write('x' * 5_000_000); sys.stderr.flush(); print('yes')"
    assert await run(code) == b"yes\n"


async def test_almost_a_megabyte_on_standard_output_is_read_completely() -> None:
    assert len(await run(f"import sys; sys.stdout.write('x' * {MAX_STDOUT})")) == MAX_STDOUT


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


async def test_error_for_a_failure_without_a_message() -> None:
    assert await failure("raise SystemExit(1)") == (
        "the command exited with code 1, without a message on its standard error"
    )


async def test_error_names_the_signal() -> None:
    assert "was killed by SIGKILL" in await failure("import os; os.kill(os.getpid(), 9)")


async def test_only_the_end_of_the_standard_error_is_kept() -> None:
    child = _Child()
    for _ in range(100):
        child.pipe_data_received(2, b"x" * MAX_STDERR)
    assert len(child.stderr) == MAX_STDERR


async def test_only_the_end_of_a_long_standard_error_is_shown() -> None:
    message = await failure("import sys; sys.stderr.write('x ' * 500_000 + 'the end'); sys.exit(1)")
    assert message.endswith("the end")
    assert len(message) < 2200


@pytest.mark.parametrize(
    "secret",
    [
        "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl",
        "k8s-aws-v1.aHR0cHM6Ly9zdHM",
        "ya29.a0AfH6SMB",
        "Bearer abc",
        "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIA\nabcd\n-----END EC PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIA",
    ],
)
async def test_text_that_looks_like_a_secret_is_removed_from_the_standard_error(secret: str) -> None:
    message = await failure(f"import sys; sys.stderr.write('denied: ' + {secret!r}); sys.exit(1)")
    assert "(secret)" in message
    assert not any(word in message for word in (*secret.removeprefix("Bearer").split(), "MHcCAQEEIA"))


async def test_known_secrets_are_removed_from_the_standard_error() -> None:
    message = await failure(
        "import sys; sys.stderr.write('login with hunter22, abc, abcd: p%40ss%2Fword'); sys.exit(1)",
        secrets=("hunter22", "abc", "p@ss/word"),
    )
    assert message.endswith("exited with code 1: login with (secret), (secret), abcd: (secret)")


@pytest.mark.parametrize(
    "argument", ["hunter22", "--token=hunter22", "-phunter22", "TOKEN=hunter22", "https://me:hunter22@idp"]
)
async def test_arguments_are_removed_from_the_standard_error(argument: str) -> None:
    message = await failure(
        "import sys; sys.stderr.write(f'{sys.argv[1]}, hunter22: --region not found'); sys.exit(1)",
        arguments=[argument, "--region"],
    )
    assert "hunter22" not in message
    assert message.endswith(": --region not found")


async def test_inherited_secrets_are_removed_from_the_standard_error() -> None:
    message = await failure(
        "import os, sys; sys.stderr.write(os.environ['AWS_SECRET_ACCESS_KEY'] + os.environ['AWS_REGION']);"
        "sys.exit(1)",
        env={"AWS_SECRET_ACCESS_KEY": "hunter22", "AWS_REGION": " here"},
    )
    assert message.endswith(": (secret) here")


async def test_working_folders_are_not_secrets() -> None:
    code = "import sys; sys.stderr.write('cannot read /etc/idp in /srv'); sys.exit(1)"
    message = await failure(code, env={"PWD": "/", "OLDPWD": "/srv", "DB_PWD": "idp"})
    assert message.endswith(": cannot read /etc/(secret) in /srv")


@pytest.mark.parametrize(
    "url", ["https://me:hunter22@idp/x", "https://hunter22@idp", "https://me:hunter22@x@y"]
)
async def test_users_in_urls_are_removed_from_the_standard_error(url: str) -> None:
    message = await failure(f"import sys; sys.stderr.write('cannot reach {url}'); sys.exit(1)")
    assert "exited with code 1: cannot reach https://(secret)@" in message
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("output", "repeated"),
    [
        ("{'token': 'qqqqqqqqqqqqqqqqqqqq'}", "qqqqqqqqqqqqqqqqqqqq"),
        ("token hunter22", "hunter22"),
        ('{"token": "secret"}', "secret"),
        ('{"a": [{"token": "p@ss/word"}]}', "p%40ss%2Fword"),
    ],
)
async def test_content_of_the_standard_output_is_removed_from_the_standard_error(
    output: str, repeated: str
) -> None:
    message = await failure(
        f"import sys; print({output!r}); sys.stderr.write('got {repeated} of the token'); sys.exit(1)"
    )
    assert message.endswith("exited with code 1: got (secret) of the token")


async def test_command_that_cannot_be_started_is_reported(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("#!/no/such/interpreter")
    text.chmod(0o755)
    for path, reason in ((str(text), "No such file"), (str(tmp_path), "Permission denied")):
        with pytest.raises(CredentialsError, match=f"^cannot start the command: {reason}"):
            await run_command([path], env={}, what="the command")


async def test_event_loop_that_starts_no_processes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the SelectorEventLoop of Windows."""

    async def subprocess_exec(*_arguments: object, **_options: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(exec_plugin, "_start", subprocess_exec)
    with pytest.raises(CredentialsError, match="the command: this event loop starts no processes") as caught:
        await run_command([sys.executable], env={}, what="the command")
    assert "ProactorEventLoop" in str(caught.value)


def test_null_byte_in_an_argument_is_reported() -> None:
    """On asyncio's own loop; uvloop cuts the argument there."""
    with pytest.raises(CredentialsError, match="cannot start the command: ValueError"):
        asyncio.run(run_command([sys.executable, "a\0b"], env={}, what="the command"))


WAIT = "import signal; signal.pause()"


async def cancel(
    code: str, fifo: Path, stop: Callable[[asyncio.Task[bytes], anyio.CancelScope], object]
) -> float:
    """Run `code`, stop it after it wrote its process ids, and return the seconds that stopping took."""
    scope = anyio.CancelScope()

    async def work() -> bytes:
        with scope:
            return await run(code)
        return b""

    task = asyncio.create_task(work())
    pids = await read_pids(fifo)
    before = time.monotonic()
    stop(task, scope)
    await asyncio.wait([task])
    elapsed = time.monotonic() - before
    assert not psutil.pid_exists(pids[0])
    for pid in pids[1:]:
        await wait_for_exit(pid)
    return elapsed


STOPS: dict[str, Callable[[asyncio.Task[bytes], anyio.CancelScope], object]] = {
    "by a cancel scope": lambda _, scope: scope.cancel(),
    "by the task": lambda task, _: task.cancel(),
}


@pytest.mark.parametrize("how", STOPS)
async def test_cancelled_command_is_killed_and_reaped(fifo: Path, how: str) -> None:
    code = f"import os; open({str(fifo)!r}, 'w').write(str(os.getpid())); {WAIT}"
    assert await cancel(code, fifo, STOPS[how]) < 20


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("how", STOPS)
async def test_command_cancelled_during_its_start_is_killed(how: str, turns: int) -> None:
    scope = anyio.CancelScope()

    async def work() -> bytes:
        with scope:
            return await run(WAIT)
        return b""

    task = asyncio.create_task(work())
    for _ in range(turns):
        await asyncio.sleep(0)
    STOPS[how](task, scope)
    await asyncio.wait([task])
    assert not psutil.Process().children()


async def test_command_that_ignores_signals_is_killed(fifo: Path) -> None:
    code = f"""
import os, signal
for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(name, signal.SIG_IGN)
open({str(fifo)!r}, "w").write(str(os.getpid()))
while True:
    signal.pause()
"""
    assert await cancel(code, fifo, STOPS["by a cancel scope"]) < 20


async def test_grandchildren_with_open_pipes_are_killed(fifo: Path) -> None:
    code = f"""
import os, signal, subprocess, sys
child = subprocess.Popen([sys.executable, "-S", "-c", {WAIT!r}])
open({str(fifo)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
signal.pause()
"""
    assert await cancel(code, fifo, STOPS["by a cancel scope"]) < 20


async def test_output_of_a_process_that_outlives_the_command_is_read_until_all_pipes_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exec_plugin, "EOF_GRACE", 3600.0)
    late = "import os, time\nwhile os.getppid() == {}: time.sleep(0.01)\ntime.sleep(0.2)\nprint('late')"
    code = f"""
import os, subprocess, sys
late = {late!r}.format(os.getpid())
subprocess.Popen([sys.executable, "-S", "-c", late], stderr=subprocess.DEVNULL)
"""
    assert await run(code) == b"late\n"


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
