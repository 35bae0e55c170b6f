"""Running a command's work: SIGTERM, or a reader who has gone, ends it as Ctrl-C does, with nothing left."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from .error_messages import TERMINATED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["Ending", "run"]

T = TypeVar("T")


class Ending:
    """What ends the work before its time: it is cancelled, and the process exits with a code of its own."""

    def __init__(self) -> None:
        self.code: int | None = None
        self._task: asyncio.Task[Any] | None = asyncio.current_task()

    def now(self, code: int) -> None:
        """End the work; where that has been asked for already, the first `code` stays."""
        if self.code is None and self._task is not None:
            self.code = code
            self._task.cancel()


def run(work: Callable[[Ending], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` returns, in an event loop of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C; what `work` holds has been closed.
        SystemExit: it was ended otherwise, by SIGTERM (143) or by itself. A second SIGTERM kills.
    """
    endings: list[Ending] = []

    async def main() -> T:
        ending = Ending()
        endings.append(ending)
        with _ended_by_sigterm(ending):
            return await work(ending)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        code = endings[0].code if endings else None
        if code is None:
            raise
        raise SystemExit(code) from None


@contextmanager
def _ended_by_sigterm(ending: Ending) -> Iterator[None]:
    """Let SIGTERM be the end, unless whoever started this process has it ignored, or handles it."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        ending.now(TERMINATED)

    with suppress(NotImplementedError):  # on Windows, where SIGTERM cannot be caught
        loop.add_signal_handler(signal.SIGTERM, end)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGTERM)
