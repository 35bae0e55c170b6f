"""What an observation of pods needs besides the pods: labels of nodes, devices of claims, controllers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.deadline import within_deadline

from .tasks.controllers import ENDED_PAUSE

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve._core.deadline import Progress
    from aioresolve.spec import Observation

    from .api.client import ObjectAPI
    from .tasks.controllers import Controllers
    from .watch.pod_cache import PodCache


class Details:
    """Reads what a cache of pods lacks, step by step.

    Args:
        api: where to read it.
        cache: the pods.
        controllers: where the objects of the controllers are kept; None if they are not needed.
        timeout: the deadline of a request for nodes, in seconds.
        size_interval: the age at which controllers are read again, in seconds.
        reads_claims: whether the devices of ResourceClaims are needed.

    Attributes:
        has_read_nodes: whether the labels of nodes could be read.
    """

    def __init__(
        self,
        api: ObjectAPI,
        cache: PodCache,
        controllers: Controllers | None,
        *,
        timeout: float,
        size_interval: float,
        reads_claims: bool = True,
    ) -> None:
        self.has_read_nodes = False
        self._api, self._cache, self._controllers = api, cache, controllers
        self._timeout, self._size_interval = timeout, size_interval
        self._reads_claims = reads_claims

    async def read_once(self, progress: Progress) -> None:
        """Read everything that the cache lacks, within the deadline of `progress`."""
        cache, controllers = self._cache, self._controllers
        if cache.has_unknown_nodes:
            await self._read_nodes(progress)
        if self._reads_claims and cache.with_claims:
            await self._read_claims()
        if controllers is not None and controllers.objects:  # of the previous poll
            await controllers.read(self._api, list(controllers.objects))
        while controllers is not None and (unread := cache.unread_controllers):
            await controllers.read(self._api, unread)

    async def read_next(self, observe: Callable[[], Observation], *, are_current: bool) -> str:
        """Read one kind of what the observation lacks and return its name; empty if it lacks nothing.

        Args:
            observe: returns the observation.
            are_current: whether the controllers were read for this observation.
        """
        cache, controllers = self._cache, self._controllers
        if cache.has_unknown_nodes:
            await within_deadline(self._timeout, "the labels of the nodes", self._read_nodes)
            self.has_read_nodes = True
            return "nodes"
        if cache.with_claims:
            await self._read_claims()
            return "claims"
        if controllers is None:
            return ""
        if unread := cache.unread_controllers:
            await controllers.read(self._api, unread)
            return "controllers"
        if not are_current and controllers.is_outdated(observe(), self._size_interval):
            await controllers.read_again(self._api)
            return "controllers"
        return ""

    async def repeat(self, observe_again: Callable[[], object]) -> None:
        """Call `observe_again` whenever it is time to read the controllers again; never returns."""
        while True:
            await anyio.sleep(min(self._size_interval, ENDED_PAUSE))
            if self._controllers is not None and self._controllers.is_due(self._size_interval):
                observe_again()

    async def _read_nodes(self, progress: Progress) -> None:
        """Read the labels of all nodes by which the members are ordered."""
        from .tasks.nodes import ALL_NODES, labels_by_node

        convert = partial(labels_by_node, self._cache.node_label_keys)
        found = await self._api.objects(ALL_NODES, progress, convert=convert)
        self._cache.set_nodes(dict(found.items))

    async def _read_claims(self) -> None:
        """Read the devices of the members whose ResourceClaims were not read."""
        from .tasks.resource_claims import read_devices

        pods = self._cache.with_claims
        counted, self._cache.claim_faults = await read_devices(
            self._api, pods, members=self._cache.num_members
        )
        self._cache.set_devices(pods, counted)
