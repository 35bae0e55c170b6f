"""The facade of the fleet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

import aioresolve
from aioresolve import sync
from aioresolve.errors import ConfigurationError, ConnectionFailedError, InvalidClusterError
from aioresolve.spec import ClusterSpec
from aioresolve.testing import KubernetesServer, pod
from tests.fleet.fleets import Scripted, fail, hang, respond_with, workers
from tests.sync.loop import settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

JOBS = {"worker": ["app=train"]}
SHORT = 0.01


def scripted(number: int, **arguments: Any) -> tuple[dict[str, Scripted], dict[str, sync.ClusterResolver]]:
    """Return `number` async resolvers, and their facades."""
    resolvers = {f"t{n}": Scripted(**arguments) for n in range(number)}
    return resolvers, {name: sync.ClusterResolver(resolver) for name, resolver in resolvers.items()}


# Errors


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


@pytest.mark.slow
def test_error_of_a_target_is_in_its_reading() -> None:
    facades = {
        name: sync.ClusterResolver(Scripted(fetch)) for name, fetch in {"bad": fail, "stuck": hang}.items()
    }
    readings = sync.Fleet({**facades, "good": sync.ClusterResolver(Scripted())}, timeout=2.0).resolve()
    assert isinstance(readings["bad"].error, ConnectionFailedError)
    assert isinstance(readings["stuck"].error, aioresolve.DeadlineExceededError)
    assert readings["good"].error is None


def test_poll_runs_until_the_loop_is_left() -> None:
    resolvers, facades = scripted(3)
    names = []
    for reading in sync.Fleet(facades).poll(interval=SHORT):
        names.append(reading.name)
        if len(names) == 30:
            break
    assert set(names) == set(facades)
    settle()
    before = [resolver.num_requests for resolver in resolvers.values()]
    settle()
    assert [resolver.num_requests for resolver in resolvers.values()] == before


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
        assert stale.is_stale
        assert "was closed while it was watched" in str(stale.error)
        assert next(readings).error is None
    facades["t0"].close()
    assert resolvers["t0"].history == ["entered", "left"] * 2


# Over real sockets


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    with KubernetesServer([pod("train-0", labels={"app": "train"}, ip="10.0.0.1")]).in_thread() as server:
        yield server
        server.until(lambda: server.connections == server.watches == 0)


@pytest.fixture
def kubeconfig(server: ThreadedKubernetesServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig")


def kubernetes(kubeconfig: Path, number: int) -> dict[str, sync.ClusterResolver]:
    return {f"c{n}": sync.KubernetesClusterResolver(JOBS, kubeconfig=kubeconfig) for n in range(number)}


def test_targets_on_one_server_share_its_connections(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    with sync.Fleet(kubernetes(kubeconfig, 30), max_concurrency=3) as fleet:
        for _ in range(3):
            assert [reading.error for reading in fleet.resolve().values()] == [None] * 30
        assert 1 <= server.connections <= 3
        fleet.targets["c0"].cluster_spec()
        assert server.connections <= 5


def test_fleet_watches_its_servers(server: ThreadedKubernetesServer, kubeconfig: Path) -> None:
    fleet = sync.Fleet(
        {
            **kubernetes(kubeconfig, 2),
            "both": sync.UnionClusterResolver(
                sync.KubernetesClusterResolver(JOBS, kubeconfig=kubeconfig),
                sync.SimpleClusterResolver(ClusterSpec({"ps": ["p:1"]})),
            ),
        }
    )
    with closing(fleet.watch(interval=3600.0)) as readings:
        assert {reading.name: reading.num_tasks for reading in (next(readings) for _ in range(3))} == {
            "c0": 1,
            "c1": 1,
            "both": 2,
        }
        server.until(lambda: server.watches == 3)
        server.add(pod("train-1", labels={"app": "train"}))
        assert {reading.name: reading.num_tasks for reading in (next(readings) for _ in range(3))} == {
            "c0": 2,
            "c1": 2,
            "both": 3,
        }
    server.until(lambda: server.watches == 0)
