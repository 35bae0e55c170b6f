"""What an observation of pods needs besides the pods: labels of nodes, devices of claims, controllers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from .tasks.controllers import ENDED_PAUSE
from .tasks.order_by import ALL_NODES, labels_by_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.spec import Observation

    from .api.client import ObjectAPI
    from .tasks.controllers import Controllers
    from .watch.cluster_cache import ClusterCache


class Details:
    """Reads what a cache lacks.

    Args:
        api: where to read it.
        cache: the pods, or the slices, which lack nothing.
        controllers: where the objects of the controllers are kept; None if they are not needed.
        size_interval: the age at which controllers are read again, in seconds.

    Attributes:
        has_read_nodes: whether the labels of nodes could be read.
        claim_faults: why devices of ResourceClaims are not known, by namespace, when they were read last.
    """

    def __init__(
        self,
        api: ObjectAPI,
        cache: ClusterCache[Any, Any],
        controllers: Controllers | None,
        *,
        size_interval: float,
    ) -> None:
        self.has_read_nodes = False
        self.claim_faults: dict[str, str] = {}
        self._api, self._cache, self._controllers = api, cache, controllers
        self._size_interval = size_interval

    async def read(self, progress: Progress, *, with_claims: bool = True) -> bool:
        """Read everything that the cache lacks; return whether controllers were read."""
        cache, controllers = self._cache, self._controllers
        has_read = False
        while True:
            if cache.has_unknown_nodes:
                convert = partial(labels_by_node, cache.ordering.node_keys)
                found = await self._api.objects(ALL_NODES, progress, convert=convert)
                cache.set_nodes(dict(found.items))
                self.has_read_nodes = True
            elif with_claims and (pods := cache.with_claims):
                from .tasks.resource_claims import read_devices  # most pods have none

                counted, self.claim_faults = await read_devices(self._api, pods, members=cache.num_members)
                cache.set_devices(counted)
            elif controllers is not None and (unread := cache.unread_controllers):
                await controllers.read(self._api, unread)
                has_read = True
            else:
                return has_read

    async def read_again(self, observe: Callable[[], Observation]) -> bool:
        """Read the controllers again if they are outdated for an observation; return whether they were."""
        controllers = self._controllers
        if controllers is None or not controllers.is_outdated(observe(), self._size_interval):
            return False
        await controllers.read_again(self._api)
        return True

    async def repeat(self, observe_again: Callable[[], object]) -> None:
        """Call `observe_again` whenever it is time to read the controllers again; never returns."""
        while self._controllers is not None:
            await anyio.sleep(min(self._size_interval, ENDED_PAUSE))
            if self._controllers.is_due(self._size_interval):
                observe_again()
