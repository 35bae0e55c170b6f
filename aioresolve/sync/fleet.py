"""`Fleet`, blocking."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve import fleet as fleets
from aioresolve.errors import InvalidClusterError

from .facade import Facade, blocking, blocking_iterator
from .resolvers import ClusterResolver, in_fleet
from .shared import Shared

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.fleet import Reading
    from aioresolve.resolver import base

__all__ = ["Fleet"]


class Fleet(Facade[Shared[fleets.Fleet]]):
    """`aioresolve.Fleet`, blocking, and of facades: see there for the arguments and errors.

    The resolvers stay usable on their own, over connections of their own. An async resolver is put into a
    fleet inside a facade: `Fleet({"a": ClusterResolver(resolver)})`.
    """

    def __init__(
        self,
        targets: Mapping[str, ClusterResolver] | None = None,
        *,
        timeout: float = 30.0,
        max_concurrency: int = 256,
        shard: tuple[int, int] | int | None = None,
    ) -> None:
        fleet = fleets.Fleet(timeout=timeout, max_concurrency=max_concurrency, shard=shard)
        facades: dict[str, ClusterResolver] = {}
        for name, facade in (targets or {}).items():
            _add(fleet, facades, name, facade)

        def remade(old: fleets.Fleet) -> fleets.Fleet:
            targets = {name: _target(name, facade) for name, facade in facades.items()}
            return fleets.Fleet(targets, timeout=timeout, max_concurrency=max_concurrency, shard=old.shard)

        super().__init__(Shared(fleet, remade))
        self._facades = facades

    @property
    def timeout(self) -> float:
        """Seconds that a question to one target may take."""
        return self._shared.entered.timeout

    @property
    def shard(self) -> tuple[int, int] | None:
        """Which part of the fleet this is, and of how many; None where it is the whole."""
        return self._shared.entered.shard

    @property
    def targets(self) -> Mapping[str, ClusterResolver]:
        """The resolvers of this shard by name, as they are now."""
        return self._facades.copy()

    @property
    def readings(self) -> Mapping[str, Reading]:
        """The newest reading of each target that was asked, by name, as they are now."""
        return self._shared.entered.readings.copy()

    def add(self, name: str, resolver: ClusterResolver) -> None:
        """Take one more target, also into the polls and watches that are going on.

        One that falls to another shard is left to that.

        Args:
            name: what to call it.
            resolver: its resolver.

        Raises:
            ConfigurationError: (a ValueError) the name is taken, or none.
            InvalidClusterError: (a TypeError) it is no resolver of `aioresolve.sync`.
        """
        self._shared.change(lambda fleet: _add(fleet, self._facades, name, resolver))

    def remove(self, name: str) -> None:
        """Let a target go at once: what is being asked of it ends, and no reading of it follows.

        One of another shard is no matter.

        Raises:
            ConfigurationError: (a ValueError) there is no such target.
        """
        self._shared.change(lambda fleet: fleet.remove(name))
        self._facades.pop(name, None)

    resolve = blocking(fleets.Fleet.resolve)
    poll = blocking_iterator(fleets.Fleet.poll)
    watch = blocking_iterator(fleets.Fleet.watch)


def _add(
    fleet: fleets.Fleet, facades: dict[str, ClusterResolver], name: str, facade: ClusterResolver
) -> None:
    fleet.add(name, _target(name, facade))
    if name in fleet.targets:
        facades[name] = facade


def _target(name: str, facade: ClusterResolver) -> base.ClusterResolver:
    if not isinstance(facade, ClusterResolver):
        raise InvalidClusterError(
            f"target {name!r}: a sync fleet is made of aioresolve.sync's resolvers, or of yours inside a sync"
            f" ClusterResolver; got {type(facade).__name__} {facade!r}"
        )
    return in_fleet(facade)
