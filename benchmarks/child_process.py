"""Exchanges JSON lines with child processes: one line per request, one line per reply."""

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

__all__ = ["Child", "NoReplyError", "running", "serve_requests"]

ROOT = Path(__file__).resolve().parent.parent

LIMIT = 300.0
"""Seconds to wait for a reply."""


class NoReplyError(Exception):
    """A process ended, or did not reply in time."""


class Child:
    """Controls a child process."""

    def __init__(self, name: str, process: subprocess.Popen[str], errors: Path) -> None:
        self._name = name
        self._process = process
        self._errors = errors

    def request(self, do: str, **details: Any) -> Any:
        """Send a request, and return the reply.

        Raises:
            NoReplyError: the process ended, or did not reply in time.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._no_reply(do) from error
        readable, _, _ = select.select([self._process.stdout], [], [], LIMIT)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise self._no_reply(do)
        return json.loads(line)

    def _no_reply(self, do: str) -> NoReplyError:
        lines = [line.strip(" |+-") for line in self._errors.read_text(errors="replace").splitlines()]
        last = next(filter(None, reversed(lines)), "no output")
        return NoReplyError(f"{self._name} did not {do}: {last}")


@contextmanager
def running(module: str, *arguments: str) -> Iterator[Child]:
    """Run a module of this package as a process inside the block."""
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


async def serve_requests(functions: dict[str, Callable[..., Awaitable[Any]]]) -> None:
    """Call the function that each request on stdin names, and write its result, until stdin is closed."""
    requests = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(requests), sys.stdin
    )
    while line := await requests.readline():
        request = json.loads(line)
        reply = await functions[request.pop("do")](**request)
        print(json.dumps(reply), flush=True)
