"""`Fleet` with Kubernetes clusters over real sockets: shared pools, watches, outages."""

from __future__ import annotations

from contextlib import ExitStack, aclosing
from typing import TYPE_CHECKING

import anyio.to_thread

from aioresolve.errors import ConnectionFailedError
from aioresolve.fleet import Fleet
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing import pod
from tests.fleet.fleets import take, until

from .loopback import TOKEN, run_loopback
from .samples import watch_policy

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from .loopback import Loopback


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


async def test_target_is_stale_while_its_server_is_down_and_the_others_are_not_affected(
    no_leak: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KubernetesClusterResolver, "watch_policy", watch_policy(0.001, 0.02))
    with ExitStack() as stack:
        clusters = {}
        for name in ("well", "down"):
            (tmp_path / name).mkdir()
            clusters[name] = stack.enter_context(run_loopback(tmp_path / name))
            clusters[name].train("train-0")
        servers = [loopback.server for loopback in clusters.values()]
        fleet = Fleet({name: each.resolver() for name, each in clusters.items()}, timeout=10.0)
        async with aclosing(fleet.watch()) as readings:
            await take(readings, 2)
            await until(lambda: all(server.watches == 1 for server in servers))
            with ExitStack() as outage:
                await anyio.to_thread.run_sync(outage.enter_context, clusters["down"].server.down())
                [stale] = await take(readings, 1)
                assert (stale.name, stale.num_tasks, stale.is_stale) == ("down", 1, True)
                assert isinstance(stale.error, ConnectionFailedError)
                clusters["well"].train("train-9")
                [reading] = await take(readings, 1)
                assert (reading.name, reading.num_tasks) == ("well", 2)
                await anyio.to_thread.run_sync(outage.close)
            [again] = await take(readings, 1)
            assert (again.name, again.num_tasks, again.error, again.stale_since) == ("down", 1, None, None)
        await until(lambda: all(server.connections == server.watches == 0 for server in servers))
