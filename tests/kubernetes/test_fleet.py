"""`Fleet` with Kubernetes clusters over real sockets: shared pools, watches, outages."""

from __future__ import annotations

from contextlib import ExitStack, aclosing
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

from aioresolve.errors import ConnectionFailedError
from aioresolve.fleet import Fleet
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing import pod
from tests.fleet.fleets import take, until

from .loopback import TOKEN, run_loopback
from .samples import watch_policy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

    from .loopback import Loopback


@pytest.fixture
def clusters(no_leak: None, tmp_path: Path) -> Iterator[dict[str, Loopback]]:
    """Three servers, with one, two and three pods."""
    with ExitStack() as stack:
        clusters = {}
        for number in (1, 2, 3):
            folder = tmp_path / f"c{number}"
            folder.mkdir()
            clusters[f"c{number}"] = loopback = stack.enter_context(run_loopback(folder))
            loopback.train(*(f"train-{n}" for n in range(number)))
        yield clusters
        for server in [loopback.server for loopback in clusters.values()]:
            server.until(partial(_is_left, server))


@pytest.fixture
def quick_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits between attempts to a few milliseconds."""
    policy = watch_policy(0.001, 0.02)
    monkeypatch.setattr(KubernetesClusterResolver, "watch_policy", policy)


def _is_left(server: ThreadedKubernetesServer) -> bool:
    return server.connections == server.watches == 0


def fleet_of(clusters: dict[str, Loopback]) -> Fleet:
    return Fleet({name: loopback.resolver() for name, loopback in clusters.items()}, timeout=10.0)


async def test_fifty_targets_on_one_server_share_its_connections(loopback: Loopback) -> None:
    for number in range(50):
        loopback.server.add(pod(f"p-{number}", "ml", labels={"app": f"a{number}"}))
    targets = {f"t{n}": loopback.resolver({"worker": [f"app=a{n}"]}, namespace="ml") for n in range(50)}
    async with Fleet(targets, max_concurrency=4, timeout=10.0) as fleet:
        for _ in range(3):
            readings = await fleet.resolve()
            assert [(reading.num_tasks, reading.error) for reading in readings.values()] == [(1, None)] * 50
            assert 1 <= loopback.server.connections <= 4
        assert len(loopback.requests) == 150


async def test_two_users_of_one_server_do_not_share_connections(loopback: Loopback, tmp_path: Path) -> None:
    loopback.train("train-0")
    loopback.server.tokens = {TOKEN: "alice", "another-token": "bob"}
    other = loopback.server.write_kubeconfig(tmp_path / "other", token="another-token")
    targets = {
        "alice": loopback.resolver(),
        "bob": loopback.resolver(kubeconfig=other),
        "alice again": loopback.resolver(),
    }
    async with Fleet(targets, max_concurrency=1, timeout=10.0) as fleet:
        assert [reading.error for reading in (await fleet.resolve()).values()] == [None] * 3
        assert [request.user for request in loopback.requests] == ["alice", "bob", "alice"]
        assert loopback.server.connections == 2


async def test_removing_the_last_target_of_a_server_closes_its_connections(
    clusters: dict[str, Loopback],
) -> None:
    fleet = fleet_of(clusters)
    async with aclosing(fleet.poll(interval=0.05)) as readings:
        await take(readings, 3)
        fleet.add("c1 again", clusters["c1"].resolver())
        await until(lambda: "c1 again" in fleet.readings)
        fleet.remove("c1")
        await take(readings, 6)
        await until(lambda: clusters["c1"].server.connections >= 1)
        fleet.remove("c1 again")
        await until(lambda: clusters["c1"].server.connections == 0)
        await until(lambda: clusters["c2"].server.connections >= 1)


async def test_target_is_stale_while_its_server_is_down_and_the_others_are_not_affected(
    clusters: dict[str, Loopback], quick_watches: None
) -> None:
    fleet = fleet_of(clusters)
    async with aclosing(fleet.watch()) as readings:
        await take(readings, 3)
        await until(lambda: all(loopback.server.watches == 1 for loopback in clusters.values()))
        with ExitStack() as stack:
            await anyio.to_thread.run_sync(stack.enter_context, clusters["c2"].server.down())
            [stale] = await take(readings, 1)
            assert (stale.name, stale.num_tasks, stale.is_stale) == ("c2", 2, True)
            assert isinstance(stale.error, ConnectionFailedError)
            clusters["c1"].train("train-9")
            [reading] = await take(readings, 1)
            assert (reading.name, reading.num_tasks) == ("c1", 2)
            await anyio.to_thread.run_sync(stack.close)
        [well] = await take(readings, 1)
        assert (well.name, well.num_tasks, well.error, well.stale_since) == ("c2", 2, None, None)
