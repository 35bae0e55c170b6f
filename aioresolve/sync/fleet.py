"""`Fleet`: the blocking facade of `aioresolve.Fleet`."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from aioresolve import fleet as fleets
from aioresolve.errors import InvalidClusterError
from aioresolve.fleet.fleet import named_resolvers

from .facade import Facade, blocking, blocking_iterator
from .loop_thread import get_loop_thread
from .resolvers import ClusterResolver, async_resolver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aioresolve._core.connections import Arguments
    from aioresolve.fleet import TargetStatus
    from aioresolve.fleet.status import Expected
    from aioresolve.resolver import base


class Fleet(Facade[fleets.Fleet]):
    """`aioresolve.Fleet` with blocking methods; see there for arguments and errors.

    >>> resolver = KubernetesClusterResolver({"worker": ["job-name=train"]}, namespace="ml")
    >>> Fleet({"trainers": resolver}).resolve()["trainers"]
    <TargetStatus 'trainers', Ready 2/2>

    It takes facades, which can still be used on their own, over connections of their own. Wrap an async
    resolver in a facade first: `Fleet({"a": ClusterResolver(resolver)})`.
    """

    def __init__(
        self,
        targets: Mapping[str, ClusterResolver] | None = None,
        *,
        timeout: float = 30.0,
        max_concurrency: int = 256,
        expected: Mapping[str, Expected] | None = None,
        on_change: Callable[[TargetStatus, TargetStatus | None], object] | None = None,
        shard: tuple[int, int] | int | None = None,
    ) -> None:
        facades = dict(named_resolvers(targets))
        fleet = fleets.Fleet(
            {name: _resolver_of_target(name, facade) for name, facade in facades.items()},
            timeout=timeout,
            max_concurrency=max_concurrency,
            expected=expected,
            on_change=on_change,
            shard=shard,
        )
        super().__init__(fleet)
        self._facades = {name: facade for name, facade in facades.items() if name in fleet.targets}

    def _copied_arguments(self) -> Arguments:
        return (self._facades,), self._shared.resource._copied_arguments()[1]

    @property
    def timeout(self) -> float:
        """The deadline of each request to a target, in seconds."""
        return self._shared.resource.timeout

    @property
    def shard(self) -> tuple[int, int] | None:
        """The index of this shard and the number of shards; None if the fleet is not sharded."""
        return self._shared.resource.shard

    @property
    def targets(self) -> Mapping[str, ClusterResolver]:
        """A copy of the current resolvers of this shard, by name."""
        return self._facades.copy()

    @property
    def readings(self) -> Mapping[str, TargetStatus]:
        """A copy of the latest reading of each target, by name."""
        return self._shared.resource.readings.copy()

    def add(self, name: str, resolver: ClusterResolver, *, expected: Expected = "controller") -> None:
        """Add a target, also to the running polls and watches; see `aioresolve.Fleet.add`."""
        self._shared.call("add", name, _resolver_of_target(name, resolver), expected=expected)
        if name in self._shared.resource.targets:  # it is not a target of another shard
            self._facades[name] = resolver

    def remove(self, name: str) -> None:
        """Remove a target: its requests are cancelled at once; see `aioresolve.Fleet.remove`."""
        self._shared.call("remove", name)
        self._facades.pop(name, None)

    @contextmanager
    def serve(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        allowed_hosts: Sequence[str] = (),
        peers: Sequence[str] = (),
    ) -> Iterator[str]:
        """Serve a page about this fleet inside the block; see `aioresolve.Fleet.serve`."""
        served = self._shared.resource.serve(host, port, allowed_hosts=allowed_hosts, peers=peers)
        thread = get_loop_thread()
        url = thread.run(served.__aenter__)
        try:
            yield url
        finally:
            thread.run(partial(served.__aexit__, None, None, None))

    resolve = blocking(fleets.Fleet.resolve)
    poll = blocking_iterator(fleets.Fleet.poll)
    watch = blocking_iterator(fleets.Fleet.watch)


def _resolver_of_target(name: str, facade: ClusterResolver) -> base.ClusterResolver:
    if not isinstance(facade, ClusterResolver):
        raise InvalidClusterError(
            f"target {name!r}: aioresolve.sync.Fleet takes resolvers of aioresolve.sync;"
            f" got {type(facade).__name__} {facade!r}",
            hint="Wrap an async resolver in aioresolve.sync.ClusterResolver.",
        )
    resolver = facade._shared.resource
    # A copy can share the connections of the fleet.
    return copy.copy(resolver) if resolver._has_clients else async_resolver(facade)
