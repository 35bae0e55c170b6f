"""Bounded fan-out: many awaits at once, one error."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["gather"]

T = TypeVar("T")


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], *, limit: int) -> list[T]:
    """Return the results of `calls`, in their order, at most `limit` of them running at a time.

    The first failure cancels the others and is raised as it is, not inside an exception group: whoever asks
    for one answer gets one error.
    """
    if len(calls) == 1:
        return [await calls[0]()]
    results: dict[int, T] = {}
    pending = iter(enumerate(calls))

    async def work() -> None:
        for position, call in pending:
            results[position] = await call()

    try:
        async with anyio.create_task_group() as group:
            for _ in range(min(limit, len(calls))):
                group.start_soon(work)
    except BaseExceptionGroup as failures:
        first = _first(failures)
        raise first from first.__cause__
    return [results[position] for position in range(len(calls))]


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
