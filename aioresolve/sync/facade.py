"""What every facade is: methods that block, over an async one that their calls share."""

from __future__ import annotations

import weakref
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from aioresolve.sharing import Shared

from .iterating import BlockingIterator

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from types import TracebackType

__all__ = ["Facade", "blocking", "blocking_iterator"]

P = ParamSpec("P")
R = TypeVar("R")
SharedT = TypeVar("SharedT", bound=Shared[Any])


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[R]],
) -> Callable[Concatenate[Facade[Any], P], R]:
    """Return `method` of an async resolver as a method of its facade: the same signature, without `await`.

    The resolver's own override of it is what is called.
    """
    name = method.__name__

    @wraps(method)
    def blocking_method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        answer: R = self._shared.ask(name, *args, **kwargs)
        return answer

    return blocking_method


def blocking_iterator(
    method: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Facade[Any], P], BlockingIterator[R]]:
    """Return an async generator `method` as one of the facade, which returns an iterator of the same items.

    The resolver's own override of it is what is called, with the first `next`.
    """
    name = method.__name__

    @wraps(method)
    def iterator_method(self: Facade[Any], /, *args: P.args, **kwargs: P.kwargs) -> BlockingIterator[R]:
        def items(entered: Any) -> AsyncGenerator[R, None]:
            generator: AsyncGenerator[R, None] = getattr(entered, name)(*args, **kwargs)
            return generator

        return BlockingIterator(self, self._shared, items)

    # What it tells of how to close is told of the blocking one here.
    iterator_method.__doc__ = (method.__doc__ or "").replace("contextlib.aclosing", "contextlib.closing")
    return iterator_method


class Facade(Generic[SharedT]):
    """An async resolver or fleet, blocking. Its first call enters it, in the loop thread."""

    def __init__(self, shared: SharedT) -> None:
        self._shared = shared
        # At exit the portal itself leaves everything that was entered.
        weakref.finalize(self, shared.release).atexit = False

    def __repr__(self) -> str:
        return f"<sync {type(self).__name__} of {self._shared.entered!r}>"

    def close(self) -> None:
        """Close the connections that the calls share, once those in flight in other threads are done.

        Iterators that go on end. Closing twice, or without having made a call, does nothing. The next call
        opens connections again.

        Raises:
            DeadlineExceededError: they could not be closed within `timeout` seconds.
        """
        self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
