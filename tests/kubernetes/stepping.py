"""Cancel a call at its n-th suspension, in whichever of its tasks that occurs."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")

__all__ = ["cancel_at"]


async def cancel_at(
    step: int, call: Callable[[], Coroutine[Any, Any, T]], *, times: int = 1
) -> tuple[bool, T | None]:
    """Run `call` in a task and cancel that task when the call has been suspended for the `step`-th time.

    With `times=2` it is cancelled once more at its next suspension, in the middle of its cleaning up.

    Suspensions are counted in the call's own task and in every task that is started meanwhile, so that the
    same number is the same place of the same call, as far as the network allows.

    Returns:
        Whether the call came so far, and what it returned if it was not cancelled.
    """
    loop = asyncio.get_running_loop()
    suspensions = 0

    def count() -> None:
        nonlocal suspensions
        suspensions += 1
        if step <= suspensions < step + times:
            root.cancel()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(_Counted(coroutine, count), loop=loop, **options)

    loop.set_task_factory(factory)
    try:
        root = loop.create_task(call())
        await asyncio.wait([root])
    finally:
        loop.set_task_factory(None)
    return suspensions >= step, None if root.cancelled() else root.result()


class _Counted(Coroutine[Any, Any, T]):
    """A coroutine that calls `count` whenever it is suspended."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], count: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._count = count

    def __getattr__(self, name: str) -> Any:
        # anyio checks whether the coroutine of a task has started.
        return getattr(self._coroutine, name)

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def send(self, value: Any) -> Any:
        waited = self._coroutine.send(value)
        self._count()
        return waited

    def throw(self, *error: Any) -> Any:
        waited = self._coroutine.throw(*error)
        self._count()
        return waited

    def close(self) -> None:
        self._coroutine.close()
