"""A resolver with blocking methods, such as TensorFlow's own, as an async resolver."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from aioresolve._core.deadline import within_deadline
from aioresolve._core.threads import run_in_thread
from aioresolve.spec import ClusterSpec, ClusterState, Observation

from .base import ClusterResolver, forwarded

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

    from .want import Want


def is_tensorflow_resolver(value: object) -> bool:
    """Return whether `value` is a `tf.distribute.cluster_resolver.ClusterResolver`."""
    # If the value is one, TensorFlow is already imported; otherwise it need not even be installed.
    module = sys.modules.get("tensorflow.python.distribute.cluster_resolver.cluster_resolver")
    return isinstance(value, getattr(module, "ClusterResolver", ()))


class BlockingResolver(ClusterResolver):
    """An async resolver that calls a blocking one in worker threads, which no deadline can interrupt.

    A call that passes its deadline raises a DeadlineExceededError, and its thread is abandoned. Errors of the
    blocking resolver are raised as they are.

    Args:
        resolver: a `tf.distribute.cluster_resolver.ClusterResolver`.
        timeout: the default total deadline of a call, in seconds.
    """

    def __init__(self, resolver: Any, *, timeout: float = 30.0) -> None:
        super().__init__(timeout=timeout)
        self._resolver = resolver

    def __repr__(self) -> str:
        return repr(self._resolver)

    task_type: str | None = forwarded("task_type", "_resolver")  # pyright: ignore[reportIncompatibleMethodOverride]
    task_id: int | None = forwarded("task_id", "_resolver")  # pyright: ignore[reportIncompatibleMethodOverride]
    rpc_layer: str | None = forwarded("rpc_layer", "_resolver")  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def environment(self) -> str:
        """The `environment` of the blocking resolver."""
        environment: str = self._resolver.environment
        return environment

    async def observe(self, want: Want, progress: Progress) -> Observation:
        """Call `cluster_spec` in a thread; the endpoints have an address only."""
        spec = ClusterSpec(await self._call("cluster_spec", progress))
        progress.done(repr(self), f"jobs {spec.jobs}")
        return Observation(ClusterState.from_spec(spec))

    async def master(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> str:
        """Call `master` in a thread."""
        master: str = await self._call_within(timeout, "master", *args, **kwargs)
        return master

    async def num_accelerators(
        self, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> dict[str, int]:
        """Call `num_accelerators` in a thread."""
        return dict(await self._call_within(timeout, "num_accelerators", *args, **kwargs))

    async def _call_within(self, timeout: float | None, method: str, *args: Any, **kwargs: Any) -> Any:
        async def call(progress: Progress) -> Any:
            return await self._call(method, progress, *args, **kwargs)

        return await within_deadline(self._deadline(timeout), f"{method}() of {self!r}", call)

    async def _call(self, method: str, progress: Progress, *args: Any, **kwargs: Any) -> Any:
        progress.waiting(repr(self), f"{method}() has not returned")
        function = getattr(self._resolver, method)
        return await run_in_thread(f"call {method}() of {self!r}", function, *args, **kwargs)
