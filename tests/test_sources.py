"""A source is a module and a row: all else follows from the row and the constructor of its resolver."""

import inspect
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest

import aioresolve
from aioresolve import (
    ClusterResolver,
    ClusterSpec,
    ClusterState,
    ConfigurationError,
    Observation,
    Progress,
    Want,
    sync,
)
from aioresolve import sources as registry
from aioresolve.fleet import fleet_of


class ListedResolver(ClusterResolver):
    """Returns the hosts that it was given."""

    def __init__(
        self, hosts: str | Sequence[str], port: int = 1, client: object = None, timeout: float = 9
    ) -> None:
        super().__init__(timeout=timeout)
        self._addresses = [f"{host}:{port}" for host in hosts]

    async def observe(self, want: Want, progress: Progress) -> Observation:
        return Observation(ClusterState.from_spec(ClusterSpec({"worker": self._addresses})))

    async def leader(self) -> str:
        """Return the first address."""
        return self._addresses[0]

    async def leaders(self) -> AsyncGenerator[str, None]:
        yield await self.leader()

    def number(self, factor: int) -> int:
        return factor * len(self._addresses)

    async def fetch(self, progress: Progress) -> None:
        """A method for writers of resolvers."""


@pytest.fixture(autouse=True)
def _row(monkeypatch: pytest.MonkeyPatch) -> None:
    row = registry.Source(
        "listed", __name__, "ListedResolver", fields={"members": "hosts"}, required=("members",)
    )
    monkeypatch.setitem(registry.BY_KIND, row.kind, row)
    monkeypatch.setitem(registry.BY_RESOLVER, row.resolver, row)


def test_blocking_class_has_the_constructor_and_the_methods_of_the_async_one() -> None:
    assert aioresolve.ListedResolver is ListedResolver
    kind = cast("Any", sync.ListedResolver)
    assert id(sync.ListedResolver) == id(kind)
    assert inspect.signature(kind) == inspect.signature(ListedResolver)
    with kind(["a", "b"], port=7) as resolver:
        assert resolver.cluster_spec() == ClusterSpec({"worker": ["a:7", "b:7"]})
        assert (resolver.leader(), list(resolver.leaders()), resolver.number(2)) == ("a:7", ["a:7"], 4)
    assert kind.leader.__doc__ == "Return the first address."
    assert not {"fetch", "observe", "changes", "aclose"} & set(dir(kind))


async def test_kind_of_target_has_the_arguments_that_a_file_can_express() -> None:
    file = fleet_of("targets: {a: {listed: {members: [x, y], port: 3}}}", environ={})
    assert await file.targets["a"].cluster_spec() == ClusterSpec({"worker": ["x:3", "y:3"]})
    for fields, problem in (
        ("{members: x, client: 1}", "targets.a.listed.client: unknown field of listed"),
        ("{members: x, timeout: 7}", "targets.a.listed.timeout: unknown field of listed"),
        ("{members: x, hosts: y}", "targets.a.listed.hosts: unknown field of listed"),
        ("{members: 7}", "targets.a.listed.members: Expected `str | array`"),
        ("{port: 3}", "targets.a.listed: has no `members`"),
    ):
        with pytest.raises(ConfigurationError, match=problem.replace("|", r"\|")):
            fleet_of(f"targets: {{a: {{listed: {fields}}}}}", environ={})


def test_every_resolver_of_a_row_is_public() -> None:
    for source in registry.SOURCES:
        assert issubclass(source.load(), ClusterResolver)
        assert {source.resolver} <= set(aioresolve.__all__) & set(sync.__all__)
