"""Waiting for a cluster: what `aioresolve wait` does, and says on stderr, until it is complete."""

from __future__ import annotations

import sys
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from aioresolve.errors import IncompleteClusterError
from aioresolve.retry import Progress, within_deadline
from aioresolve.waiting import complete_state

from . import streams
from .failures import as_options
from .output import one_line
from .pen import pen
from .progress import shown
from .running import run
from .ticking import PATIENCE, ticking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aioresolve.resolver import ClusterResolver
    from aioresolve.spec import ClusterState
    from aioresolve.waiting import Shortfall, Wanted

    from .request import PodRequest, TPURequest
    from .running import Ending
    from .tpu_lookup import FoundTPUs

__all__ = ["complete_pods", "complete_tpus"]

WITH_SLICES = frozenset({"wide", "json", "yaml"})
"""The outputs that tell of a TPU what its workers do not."""

LEAST = 1.0
"""Seconds that the API has for a last question, were the TPUs ready at the last moment."""

LINE_PERIOD = 1.0
"""Seconds between two lines about who is missing, at least."""


def complete_pods(request: PodRequest, wanted: Wanted) -> ClusterState:
    """Return the pods' cluster once it is what is wanted.

    Raises:
        IncompleteClusterError: the deadline passed.
        ResolveError: it can become complete no more, or an error that does not pass.
    """
    return run(partial(_pods, request, wanted))


def complete_tpus(request: TPURequest, wanted: Wanted, interval: float) -> FoundTPUs:
    """Return the TPUs, asked about every `interval` seconds, as `complete_pods` does."""
    return run(partial(_tpus, request, wanted, interval))


async def _pods(request: PodRequest, wanted: Wanted, ending: Ending) -> ClusterState:
    # Here and not above: whoever waits for TPUs is not to pay for it.
    from .lookup import kubernetes_resolver

    ends = time.monotonic() + request.timeout
    with shown(progress := Progress(), quiet=request.quiet):
        resolver = await within_deadline(
            request.timeout, request.asked, lambda _: kubernetes_resolver(request, progress)
        )
    async with resolver:
        return await _complete(resolver, request, wanted, ends, ending)


async def _tpus(request: TPURequest, wanted: Wanted, interval: float, ending: Ending) -> FoundTPUs:
    # Here and not above: whoever waits for pods is not to pay for it.
    from aioresolve.tpu.slices import cluster_of

    from .tpu_lookup import FoundTPUs, tpu_resolver

    ends = time.monotonic() + request.timeout
    async with tpu_resolver(request) as resolver:
        state = await _complete(resolver, request, wanted, ends, ending, interval)
        if request.output not in WITH_SLICES:
            return FoundTPUs((), state)
        slices = await resolver.slices(timeout=max(ends - time.monotonic(), LEAST))
    return FoundTPUs(slices, cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC)))


async def _complete(
    resolver: ClusterResolver,
    request: PodRequest | TPURequest,
    wanted: Wanted,
    ends: float,
    ending: Ending,
    interval: float = 30.0,
) -> ClusterState:
    async with _told(request, ends, ending) as tell:
        try:
            return await complete_state(
                resolver.observations(interval=interval),
                wanted,
                timeout=max(ends - time.monotonic(), 0.0),
                whose=request.asked,
                on_shortfall=tell,
            )
        except IncompleteClusterError as error:
            error.timeout = request.timeout  # of the whole, with what came before the wait
            raise


@asynccontextmanager
async def _told(
    request: PodRequest | TPURequest, ends: float, ending: Ending
) -> AsyncIterator[Callable[[Shortfall], None]]:
    """Yield what is to be told of each shortfall, which is shown on stderr until the block ends.

    On a terminal that is drawn in place, and leaves nothing behind. Elsewhere, and among the log lines of
    `-v`, it is a line whenever it has changed.
    """
    if request.quiet:
        yield lambda _: None
        return
    if not streams.can_draw(sys.stderr):
        lines = _Lines()
        with ticking(lines.look, period=LINE_PERIOD):
            yield lines.tell
        return
    # Here and not above: it loads rich.
    from .screen import screen
    from .wait_picture import WaitPicture

    picture = WaitPicture(request.asked, request.timeout, ends)
    with pen(sys.stderr, ending) as stderr:
        async with screen(stderr, picture.drawn, patience=PATIENCE, is_left_behind=False) as live:

            def tell(lacking: Shortfall) -> None:
                picture.lacking = lacking
                live.stir()

            yield tell


class _Lines:
    """A line on stderr for each shortfall that is there when it is looked at."""

    def __init__(self) -> None:
        self._line = ""
        self._said = ""

    def tell(self, lacking: Shortfall) -> None:
        self._line = f"waiting: {as_options(str(lacking))}"

    def look(self) -> None:
        if self._line != self._said:
            self._said = self._line
            streams.complain(f"{one_line(self._line)}\n")
