"""Agents of a rendezvous in the pods of a loopback cluster, all in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from aioresolve.rendezvous.agent import Agent, Round
from aioresolve.rendezvous.protocol import Limits
from aioresolve.testing import KubernetesServer, pod

JOB = "batch.kubernetes.io/job-name"
USER = "system:serviceaccount:ml:trainer"


def trainer(index: int, uid: str = "", **fields: Any) -> dict[str, Any]:
    """Return the pod `trainer-INDEX` of the Job `train`, which runs at the address 10.0.0.(INDEX + 1)."""
    found = pod(
        f"trainer-{index}", "ml", labels={JOB: "train"}, index=index, ip=f"10.0.0.{index + 1}", **fields
    )
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": f"job{uid}", "controller": True}
    found["metadata"]["ownerReferences"] = [owner]
    return found


class Cluster:
    """A server, and the agents in its pods.

    Attributes:
        server: the API server.
    """

    def __init__(self, server: KubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        self._monkeypatch = monkeypatch
        self._agents: list[Agent] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def agent(
        self,
        index: int | None,
        *,
        nodes: tuple[int, int],
        name: str = "torchrun-train",
        selector: str | None = None,
        address: str | None = "10.9.9.9",
    ) -> Agent:
        """Return an agent that runs in the pod with this index, or outside of pods, for `--nnodes=nodes`."""
        if index is None:
            self._monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
            found = Agent(name, Limits(*nodes), selector=selector, address=address)
        else:
            self._monkeypatch.setenv("KUBERNETES_SERVICE_HOST", self.server.host)
            self._monkeypatch.setenv("POD_NAME", f"trainer-{index}")
            found = Agent(name, Limits(*nodes), selector=selector)
        await found.open()
        self._agents.append(found)
        self._tasks.append(asyncio.create_task(found.run()))
        return found

    async def agents(
        self, *indices: int | None, nodes: tuple[int, int], selector: str | None = None
    ) -> list[Agent]:
        return [await self.agent(index, nodes=nodes, selector=selector) for index in indices]

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for agent in self._agents:
            await agent.aclose()


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A cluster without pods, whose agents look at the clocks 20 times as often as usual."""
    monkeypatch.setattr("aioresolve.rendezvous.agent.TURN", 3600.0)  # so only the first node writes the world
    monkeypatch.setattr("aioresolve.rendezvous.agent.TICK", 0.05)
    monkeypatch.setattr("aioresolve.rendezvous.agent.LOOKUP_AFTER", 0.1)
    async with KubernetesServer(tls=True, tokens={"a-token": USER}) as server:
        account = tmp_path / "account"
        for name, value in server.in_cluster(account, namespace="ml").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config", namespace="ml")))
        monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(account))
        found = Cluster(server, monkeypatch)
        yield found
        await found.aclose()
        sockets = psutil.Process().net_connections("tcp")
        assert (server.port,) not in {each.raddr[1:2] for each in sockets}


async def join(agents: Iterable[Agent]) -> list[Round]:
    """Return the round of each agent, after all have come to the barrier.

    The last call is so long that only the pods and the maximum decide when a round begins.
    """
    rounds: dict[Agent, Round] = {}

    async def one(agent: Agent) -> None:
        rounds[agent] = await agent.join(port=1, timeout=60, last_call=60)

    agents = list(agents)
    async with anyio.create_task_group() as tasks:
        for agent in agents:
            tasks.start_soon(one, agent)
    return [rounds[agent] for agent in agents]


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - an agent has no event for this
            await anyio.sleep(0.01)
