"""The program of `aioresolve exec`: in place of this process, or as a child that is restarted."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import anyio
import click

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

if sys.platform == "win32":
    raise ImportError("`aioresolve exec` requires the signals and processes of POSIX")

SIGNALLED = 128
"""Added to the number of the signal that ended a program, as in a shell."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals after which no program is started: they end this process, or the program that runs."""

FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)
"""The signals that are sent on to a program that runs as a child."""

IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores these; a program that inherits that would not end when its reader is gone."""

POLL_PERIOD = 0.05
"""Seconds between two checks whether all processes of a group have exited."""

KILL_GRACE = 5.0
"""Seconds to wait until killed processes have exited; they take milliseconds unless the kernel hangs."""


class StartError(click.ClickException):
    """The program exists but cannot be executed. The exit code is that of a shell."""

    exit_code = 126


class UnknownProgramError(StartError):
    """The program does not exist. The exit code is that of a shell."""

    exit_code = 127


class Program(NamedTuple):
    """A program: the path of its file, its arguments (the first is its name), and its environment."""

    path: str
    arguments: tuple[str, ...]
    environ: Mapping[str, str]


def find_program(command: str) -> str:
    """Return the path of the file that `command` names, in `$PATH` if it has no slash.

    Raises:
        StartError: the file does not exist, or is not executable.
    """
    path = shutil.which(command)
    if path is not None:
        return path
    has_slash = "/" in command
    found = command if has_slash and os.path.exists(command) else shutil.which(command, os.F_OK)
    if found is not None:
        raise StartError(f"{found} is {'a directory' if os.path.isdir(found) else 'not executable'}")
    raise UnknownProgramError(f"the command {command!r} does not exist{'' if has_slash else ' in $PATH'}")


def leave_init_process() -> None:
    """If this is the first process of a container, continue in a child, whose init process it becomes.

    It reaps orphans, sends signals on to the child, and ends with the child's exit code. It is a process of
    its own because it reaps every child, also those for which asyncio waits. Call it while there are no
    threads.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        received = signal.sigwaitinfo(signal.valid_signals())
        # A signal of the kernel, such as Ctrl-C of a terminal, reaches the child by itself.
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            os.kill(child, received.si_signo)
        for ended, code in _reaped(-1):
            if ended == child:
                os._exit(code)


def _reaped(which: int) -> Iterator[tuple[int, int]]:
    """Reap the children that `which` selects and that have exited; yield their ids and exit codes."""
    with suppress(ChildProcessError):
        while (found := os.waitpid(which, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            yield found[0], SIGNALLED - code if code < 0 else code


def replace_process(program: Program) -> NoReturn:
    """Execute a program in place of this process, which thus has its signals and its exit code.

    File descriptors other than the standard streams are closed by the system, and threads end.

    Raises:
        StartError: the system cannot execute the file.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, AttributeError):  # closed
            stream.flush()
    # Python would lose a signal that arrives between its last check for signals and the start of the program.
    for number in (*ENDING, *IGNORED_BY_PYTHON):
        if number in IGNORED_BY_PYTHON or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(program.path, program.arguments, program.environ)  # noqa: S606 - as the user wrote it
    except OSError as error:
        raise _start_error(program, error) from error


def _start_error(program: Program, error: OSError) -> StartError:
    # A file that exists is not found if the interpreter in its first line does not exist.
    return StartError(f"{program.path} cannot be executed: {error.strerror}")


class ChildProgram:
    """A program that runs as a child, in a process group of its own, so that signals reach all its processes.

    `reap` must be called after each SIGCHLD.
    """

    def __init__(self, program: Program) -> None:
        path, arguments, environ = program
        try:
            self.group = os.posix_spawn(path, arguments, environ, setpgroup=0, setsigdef=IGNORED_BY_PYTHON)
        except OSError as error:
            raise _start_error(program, error) from error
        self.exit_code: int | None = None
        self._exited = anyio.Event()

    def reap(self) -> None:
        """Collect the exit code of the program, and of its orphans if they are children of this process."""
        # Only of this group: the exec plugin of a kubeconfig is a child as well, for which asyncio waits.
        for ended, code in _reaped(-self.group):
            if ended == self.group:
                self.exit_code = code
                self._exited.set()

    def send(self, number: int) -> bool:
        """Send a signal to all processes of the group, and return whether any has received it."""
        try:
            os.killpg(self.group, number)
            if number in ENDING:
                # A stopped process, such as one that read from its terminal, must continue to receive it.
                os.killpg(self.group, signal.SIGCONT)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    async def wait(self) -> int:
        """Return the exit code of the program, 128 + N if signal N ended it."""
        await self._exited.wait()
        assert self.exit_code is not None
        return self.exit_code

    async def wait_for_group(self) -> None:
        """Return when all processes of the group have exited, and have been reaped by their parents."""
        await self.wait()
        while self._has_group():  # noqa: ASYNC110 - no event reports that a group is empty
            await anyio.sleep(POLL_PERIOD)

    async def stop(self, grace: float) -> None:
        """Send SIGTERM to the group, and SIGKILL if any of its processes runs `grace` seconds later.

        Returns when the whole group has exited on SIGTERM, or the program on SIGKILL.
        """
        if self.send(signal.SIGTERM):
            with anyio.move_on_after(grace):
                await self.wait_for_group()
                return
        self.send(signal.SIGKILL)
        await self.wait()

    def _has_group(self) -> bool:
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # Linux: only processes of other users are left; macOS: or only zombies
            return sys.platform == "linux"
        return True


async def _wait_for_first(*calls: Callable[[], Awaitable[object]]) -> None:
    async with anyio.create_task_group() as tasks:

        async def wait(call: Callable[[], Awaitable[object]]) -> None:
            await call()
            tasks.cancel_scope.cancel()

        for call in calls:
            tasks.start_soon(wait, call)


class Supervisor:
    """Runs a program as a child, and starts it again when its environment has changed.

    Args:
        prepare: returns the program to start; called before each start.
        wait_for_change: returns when the running program must be started again.
        grace: seconds between SIGTERM and SIGKILL when the program is stopped.
        exit_with: ends this process with an exit code, by cancelling `run`.
    """

    def __init__(
        self,
        prepare: Callable[[], Awaitable[Program]],
        wait_for_change: Callable[[], Awaitable[None]],
        *,
        grace: float,
        exit_with: Callable[[int], None],
    ) -> None:
        self._prepare = prepare
        self._wait_for_change = wait_for_change
        self._grace = grace
        self._exit_with = exit_with
        self._child: ChildProgram | None
        self._is_stopping: bool
        self._end_requested = anyio.Event()

    async def run(self) -> int:
        """Return the exit code of the program, once it has exited on its own or after a signal."""
        with self._handle_signals():
            while True:
                self._child, self._is_stopping = None, False
                program = await self._prepare()
                self._child = child = ChildProgram(program)
                await self._run_until_change(child)
                if self._is_stopping:
                    # Then the ports and accelerators of the program are free for the next one.
                    with anyio.move_on_after(KILL_GRACE):
                        await _wait_for_first(child.wait_for_group, self._end_requested.wait)
                if self._end_requested.is_set() or not self._is_stopping:
                    return await child.wait()

    async def _run_until_change(self, child: ChildProgram) -> None:
        """Return when the program has exited, also because it was stopped for a change."""
        try:
            await _wait_for_first(child.wait, self._end_requested.wait, self._wait_for_change)
            # After a signal the program has the time that it needs. When a job is deleted, the other pods
            # vanish meanwhile, which is not a reason to kill it or to start it again.
            if self._end_requested.is_set() and child.send(0):
                await child.wait()
        finally:
            # Also if this process ends for another reason: the program must not outlive it.
            if child.exit_code is None:
                self._is_stopping = True
                with anyio.CancelScope(shield=True):
                    await child.stop(self._grace)

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        # A signal that the parent process has ignored, as nohup does, remains ignored.
        numbers = [each for each in FORWARDED if signal.getsignal(each) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._on_signal, number)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child)
        try:
            yield
        finally:
            for number in (*numbers, signal.SIGCHLD):
                loop.remove_signal_handler(number)

    def _on_child(self) -> None:
        if self._child is not None:
            self._child.reap()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._child is None:
            if number in ENDING:
                self._exit_with(SIGNALLED + number)
            return
        if number in ENDING:
            self._end_requested.set()
        if not (self._is_stopping and number == signal.SIGTERM):  # which the program has received already
            self._child.send(number)
