"""How `watch.py` talks to its processes: a JSON object a line, each answered by one."""

from __future__ import annotations

import asyncio
import json
import select
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["Child", "SilenceError", "answer_questions", "running"]

ROOT = Path(__file__).resolve().parent.parent

LIMIT = 300.0
"""Seconds after which a process that says nothing is given up."""


class SilenceError(Exception):
    """A process ended, or gave no answer in time."""


class Child:
    """The driver's end of a process."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: Path) -> None:
        self._name = name
        self._process = process
        self._errors = errors

    def asked(self, do: str, **details: Any) -> Any:
        """Return its answer to one question.

        Raises:
            SilenceError: there is none.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._silence(do) from error
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise self._silence(do)
        return json.loads(line)

    def _silence(self, do: str) -> SilenceError:
        lines = [line.strip(" |+-") for line in self._errors.read_text(errors="replace").splitlines()]
        last = next(filter(None, reversed(lines)), "it said nothing")
        return SilenceError(f"{self._name} did not {do}: {last}")


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Child]:
    """Run a module of ours as a process inside the block."""
    command = [sys.executable, "-m", module, *arguments]
    pipe = subprocess.PIPE
    with (
        tempfile.NamedTemporaryFile(prefix=f"{module}-", suffix=".log") as errors,
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=errors, text=True) as process,
    ):
        try:
            yield Child(f"{module} {' '.join(arguments)}", process, Path(errors.name))
        finally:
            process.kill()


async def answer_questions(answers: dict[str, Callable[..., Awaitable[Any]]]) -> None:
    """Answer the questions on stdin until it is closed, by the functions that bear their names."""
    questions = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(questions), sys.stdin
    )
    while line := await questions.readline():
        question = json.loads(line)
        answer = await answers[question.pop("do")](**question)
        print(json.dumps(answer), flush=True)
