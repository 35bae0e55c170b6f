"""The facade of the fleet."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from aioresolve import sync
from aioresolve.errors import ConfigurationError, InvalidClusterError
from tests.fleet.fleets import Scripted, respond_with, workers

SHORT = 0.01


def scripted(number: int, **arguments: Any) -> tuple[dict[str, Scripted], dict[str, sync.ClusterResolver]]:
    """Return `number` async resolvers, and their facades."""
    resolvers = {f"t{n}": Scripted(**arguments) for n in range(number)}
    return resolvers, {name: sync.ClusterResolver(resolver) for name, resolver in resolvers.items()}


# Targets


def test_targets_are_the_facades() -> None:
    _, facades = scripted(3)
    fleet = sync.Fleet(facades, timeout=2.0)
    assert fleet.targets == facades
    assert (fleet.timeout, fleet.shard) == (2.0, None)
    assert repr(fleet) == "<sync Fleet of <Fleet of 3 targets>>"


def test_fleet_accepts_facades_only() -> None:
    async_resolver: Any = Scripted()
    with pytest.raises(
        InvalidClusterError, match=r"target 'a': aioresolve.sync.Fleet takes .*; got Scripted"
    ):
        sync.Fleet({"a": async_resolver})
    with pytest.raises(InvalidClusterError, match="target 'a'"):
        sync.Fleet().add("a", async_resolver)


# Resolving, polling and watching


def test_each_target_is_resolved_once() -> None:
    resolvers, facades = scripted(5, respond=respond_with(2))
    with sync.Fleet(facades) as fleet:
        readings = fleet.resolve()
        assert list(readings) == list(facades)
        assert all(reading.state == workers(2) for reading in readings.values())
        assert fleet.readings == readings
        facades["t0"].cluster_spec()
        fleet.resolve()
        assert [resolver.history for resolver in resolvers.values()] == [["entered"]] * 5
    for facade in facades.values():
        facade.close()
    assert [resolver.history for resolver in resolvers.values()] == [["entered", "left"]] * 5


def test_targets_can_be_added_and_removed_during_a_poll_from_any_thread() -> None:
    _, facades = scripted(2)
    fleet = sync.Fleet({"t0": facades["t0"]})
    with closing(fleet.poll(interval=SHORT)) as readings, ThreadPoolExecutor(1) as thread:
        assert next(readings).name == "t0"
        thread.submit(fleet.add, "t1", facades["t1"]).result()
        while next(readings).name != "t1":
            pass
        assert set(fleet.targets) == {"t0", "t1"}
        thread.submit(fleet.remove, "t0").result()
        assert set(fleet.targets) == {"t1"} == set(fleet.readings)
        assert {next(readings).name for _ in range(5)} == {"t1"}
        with pytest.raises(ConfigurationError, match="no target is named 't0'; targets: 't1'"):
            fleet.remove("t0")
        with pytest.raises(ConfigurationError, match="already a target 't1'"):
            fleet.add("t1", facades["t0"])
    assert fleet.targets["t1"] is facades["t1"]


def test_closing_the_fleet_ends_its_iterators() -> None:
    fleet = sync.Fleet(scripted(2)[1])
    readings = [fleet.poll(interval=SHORT), fleet.watch(interval=SHORT)]
    for each in readings:
        next(each)
    fleet.close()
    assert [list(each) for each in readings] == [[], []]
    assert len(fleet.resolve()) == 2


def test_closing_a_resolver_makes_its_reading_stale_and_enters_it_again() -> None:
    resolvers, facades = scripted(1)
    with closing(sync.Fleet(facades).watch(interval=SHORT)) as readings:
        assert next(readings).error is None
        facades["t0"].close()
        stale = next(readings)
        assert stale.health == "stale"
        assert "was closed while it was watched" in str(stale.error)
        assert next(readings).error is None
    facades["t0"].close()
    assert resolvers["t0"].history == ["entered", "left"] * 2


def test_fleet_is_served_inside_the_block() -> None:
    _, facades = scripted(1)
    fleet = sync.Fleet(facades)
    with fleet.serve() as url:
        fleet.resolve()
        with urllib.request.urlopen(f"{url}api/targets/t0") as response:
            assert json.load(response)["health"] == "ready"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)
