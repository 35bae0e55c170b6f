"""`Fleet` with Kubernetes clusters over real sockets: shared pools, watches, outages."""

from pathlib import Path

from aioresolve.fleet import Fleet
from aioresolve.testing import pod

from .loopback import TOKEN, Loopback


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


async def test_other_users_and_limits_have_connections_of_their_own(
    loopback: Loopback, tmp_path: Path
) -> None:
    loopback.add_trainers("train-0")
    loopback.server.tokens = {TOKEN: "alice", "another-token": "bob"}
    other = loopback.server.write_kubeconfig(tmp_path / "other", token="another-token")
    targets = {
        "alice": loopback.resolver(),
        "bob": loopback.resolver(kubeconfig=other),
        "alice again": loopback.resolver(),
        "alice, one at a time": loopback.resolver(max_concurrency=1),
    }
    async with Fleet(targets, max_concurrency=1, timeout=10.0) as fleet:
        assert [reading.error for reading in (await fleet.resolve()).values()] == [None] * 4
        assert [request.user for request in loopback.requests] == ["alice", "bob", "alice", "alice"]
        assert loopback.server.connections == 3
