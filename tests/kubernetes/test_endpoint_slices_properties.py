"""Random EndpointSlices: each pod once, by an independent oracle, and the same by a list and by a watch."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve.errors import PodNotRunningError
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.kubernetes.api.objects import Added, Bookmark, BookmarkMeta, BookmarkObject, Deleted, Modified
from aioresolve.kubernetes.endpoint_slices import (
    EndpointSlice,
    SliceCache,
    SliceQuery,
)
from aioresolve.testing import endpoint, endpoint_slice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aioresolve.kubernetes.api.objects import WatchEvent
    from aioresolve.spec import Observation

    from .loopback import Loopback

NOW = datetime(2026, 11, 22, tzinfo=UTC)
QUERY = SliceQuery.of("trainer", "ml")
NAMES = ["w-0", "w-1", "w-2", "w-10", "v"]
ADDRESSES = {"IPv4": ["10.8.0.1", "10.8.0.2", "10.8.0.3"], "IPv6": ["fd00::1", "fd00::2", "fd00::3"]}
CONDITIONS = st.sampled_from([None, True, True, False])


@st.composite
def slices(draw: st.DrawFn) -> dict[str, Any]:
    """A slice of the Service `trainer`, as a controller that moves endpoints might write it."""
    family: Any = draw(st.sampled_from(["IPv4", "IPv4", "IPv6"]))
    endpoints = [
        endpoint(
            draw(st.sampled_from(ADDRESSES[family])),
            pod=draw(st.sampled_from([*NAMES, *NAMES, None])),
            namespace="ml",
            uid=draw(st.sampled_from(["u1", "u2"])),
            ready=draw(CONDITIONS),
            serving=draw(CONDITIONS),
            terminating=draw(st.sampled_from([None, False, False, True])),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]
    name = draw(st.sampled_from(["trainer-a", "trainer-b", "trainer-c"]))
    return endpoint_slice(name, "ml", service="trainer", endpoints=endpoints, address_type=family)


def parse(document: Mapping[str, Any], version: int) -> EndpointSlice:
    metadata = {**document["metadata"], "resourceVersion": str(version)}
    return msgspec.convert({**document, "metadata": metadata}, EndpointSlice)


def new_cache(order_by: str = "name") -> SliceCache:
    return SliceCache({"worker": [[QUERY]]}, address="pod_ip", port=8470, order_by=order_by, allow_gaps=True)


def contents(observation: Observation) -> tuple[Any, ...]:
    """Return everything in an observation except for its time and version."""
    state = observation.state
    assert state is not None
    assert state.spec.job_tasks("worker") == [each.address for each in state.endpoints["worker"]]
    return repr(dict(state.endpoints)), observation.absent, observation.unready


def oracle(held: Sequence[EndpointSlice]) -> tuple[dict[str, tuple[str, bool]], set[str]]:
    """Return the address and readiness of each member, and the pods that are not ready."""
    of_pods: dict[str, list[Any]] = {}
    for each in held:
        for position, found in enumerate(each.endpoints or ()):
            if found.target_ref is not None:
                terminating = bool(found.conditions and found.conditions.terminating)
                version = int(each.metadata.resource_version)
                rank = (each.address_type == "IPv4", version, not terminating, -position)
                of_pods.setdefault(found.target_ref.name, []).append((rank, found))
    chosen = {name: max(candidates, key=lambda one: one[0])[1] for name, candidates in of_pods.items()}
    anonymous = {
        family: [
            found
            for each in sorted(held, key=lambda one: -int(one.metadata.resource_version))
            for found in sorted(
                each.endpoints or (), key=lambda one: bool(one.conditions and one.conditions.terminating)
            )
            if each.address_type == family and found.target_ref is None
        ]
        for family in ADDRESSES
    }
    for found in anonymous["IPv4"] or anonymous["IPv6"]:
        chosen.setdefault(found.addresses[0], found)
    members: dict[str, tuple[str, bool]] = {}
    faults = set()
    for name, found in chosen.items():
        conditions = found.conditions
        if conditions.terminating:
            continue
        if conditions.ready is False:
            faults.add(f"ml/{name}")
            continue
        host = found.addresses[0]
        members[name] = f"[{host}]:8470" if ":" in host else f"{host}:8470", conditions.serving is not False
    return members, faults


@given(st.lists(slices(), max_size=12), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_watch_ends_with_the_pods_that_a_list_has(written: list[dict[str, Any]], choices: list[int]) -> None:
    cache, held = new_cache(), dict[str, EndpointSlice]()
    cache.replace(QUERY, [], "1")
    before = contents(cache.observation(NOW))
    for version, (document, choice) in enumerate(zip(written, choices, strict=False), 2):
        new = parse(document, version)
        old = held.pop(new.full_name, None)
        events: list[WatchEvent[EndpointSlice]]
        if choice == 0 and old is not None:
            events = [Deleted(parse(document, version))]
        else:
            held[new.full_name] = new
            events = [Added(new) if old is None else Modified(new)]
        if choice == 1:
            # What was reported before has no effect.
            events += [*events, Bookmark(BookmarkObject(BookmarkMeta(resource_version=str(version))))]
        has_changed = cache.apply(QUERY, events)
        after = contents(cache.observation(NOW))
        assert has_changed or after == before
        before = after
    listed = new_cache()
    listed.replace(QUERY, list(held.values()), "99")
    assert contents(listed.observation(NOW)) == before
    members, faults = oracle(list(held.values()))
    state = listed.state(NOW)
    found = {
        each.name or each.address.rpartition(":")[0].strip("[]"): (each.address, each.ready)
        for each in state.endpoints["worker"]
    }
    assert len(state.endpoints["worker"]) == len(found)
    assert found == members
    assert {missing.name for missing in listed.observation(NOW).absent} == faults


def is_in_transit(cache: SliceCache) -> bool:
    return cache.in_transit


def test_endpoint_is_in_transit_while_no_slice_has_it() -> None:
    one, two = (endpoint(f"10.8.0.{n}", pod=f"w-{n}", namespace="ml") for n in (1, 2))

    def slice_of(name: str, version: int, *endpoints: dict[str, Any]) -> EndpointSlice:
        return parse(endpoint_slice(name, "ml", service="trainer", endpoints=endpoints), version)

    cache = new_cache()
    cache.replace(QUERY, [slice_of("trainer-a", 2, one, two)], "2")
    assert not is_in_transit(cache)
    cache.apply(QUERY, [Modified(slice_of("trainer-a", 3, one))])
    assert is_in_transit(cache)
    cache.apply(QUERY, [Added(slice_of("trainer-b", 4, two))])
    assert not is_in_transit(cache)
    cache.apply(QUERY, [Modified(slice_of("trainer-b", 5, two | {"conditions": {"terminating": True}}))])
    cache.apply(QUERY, [Deleted(slice_of("trainer-b", 6))])
    assert not is_in_transit(cache)
    cache.apply(QUERY, [Deleted(slice_of("trainer-a", 7))])
    assert is_in_transit(cache)
    cache.observation(NOW)
    assert not is_in_transit(cache)
    cache.apply(QUERY, [Added(slice_of("trainer-a", 8, one))])
    cache.apply(QUERY, [Deleted(slice_of("trainer-a", 9))])
    assert is_in_transit(cache)
    cache.replace(QUERY, [], "10")
    assert not is_in_transit(cache)


@given(st.lists(slices(), max_size=6))
@settings(
    max_examples=settings().max_examples // 3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_spec_state_and_watch_agree(loopback: Loopback, written: list[dict[str, Any]]) -> None:
    for old in loopback.server.endpoint_slices:
        loopback.server.delete(old["metadata"]["name"], "ml", kind="EndpointSlice")
    loopback.server.add(*written)
    arguments: dict[str, Any] = {"namespace": "ml", "kubeconfig": loopback.kubeconfig}
    skipping = KubernetesClusterResolver(service="trainer", not_running="skip", **arguments)
    raising = KubernetesClusterResolver(service="trainer", **arguments)

    async def resolve() -> set[str]:
        async with skipping:
            spec, state = await skipping.cluster_spec(), await skipping.cluster_state()
            async with aclosing(skipping.watch()) as states:
                watched = await anext(states)
        assert spec == state.spec
        assert watched == state
        try:
            assert await raising.cluster_state() == state
        except PodNotRunningError as error:
            return set(error.pods)
        return set()

    held = [parse(each, int(each["metadata"]["resourceVersion"])) for each in loopback.server.endpoint_slices]
    assert asyncio.run(resolve()) == oracle(held)[1]
