"""The devices of workers, for code without an event loop: `aioresolve.probe` with blocking functions.

```
from aioresolve.sync.probe import probe_workers

for probe in probe_workers(["10.0.0.1:8470", "10.0.0.2:8470"]):
    print(probe.address, probe.accelerators if probe.error is None else probe.error)
```

They have the arguments, results and errors of the async functions. Each probe opens a channel of its own.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from aioresolve import probe
from aioresolve.errors import ResolveError

from .loop_thread import get_loop_thread, without_internal_frames

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["probe_worker", "probe_workers"]

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(function: Callable[P, Awaitable[R]]) -> Callable[P, R]:
    @wraps(function)
    def blocking_function(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return get_loop_thread().run(partial(function, *args, **kwargs))
        except ResolveError as error:
            raise without_internal_frames(error)  # noqa: B904 - it is the same error

    return blocking_function


probe_worker = _blocking(probe.probe_worker)
"""`aioresolve.probe.probe_worker`, but it blocks."""

probe_workers = _blocking(probe.probe_workers)
"""`aioresolve.probe.probe_workers`, but it blocks."""
