"""torchrun in the pods of Jobs and StatefulSets, which run as processes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kubelet.cluster import ProcessCluster
from tests.kubelet.controllers import IndexedJob

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.asyncio(loop_factories=["asyncio"]),
]

PROGRAM = Path(__file__).with_name("train.py")


def torchrun(
    end: Path, *, nodes: str = "2:3", workers: int = 2, backend: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the spec of a pod that trains until the file `end` exists."""
    command = [
        *("torchrun", *(backend or ("--rdzv-backend=kubernetes", "--rdzv-id=train"))),
        *(f"--nnodes={nodes}", f"--nproc-per-node={workers}", "--max-restarts=9"),
        *(str(PROGRAM), str(end)),
    ]
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    env += [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    main = {"name": "main", "image": "trainer:v1", "command": command, "env": env}
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [main]}


def new_job(cluster: ProcessCluster, size: int, spec: dict[str, Any]) -> IndexedJob:
    sizes = {"completions": size, "parallelism": size, "backoffLimit": 9}
    return cluster.add(IndexedJob(cluster.server, "train", {**sizes, "template": {"spec": spec}}))


def begun(cluster: ProcessCluster) -> list[str]:
    """Return the beginnings of rounds on each node, such as `train-1: node 1 of 3, 6 workers`, in order."""
    return [
        f"{'-'.join(line.pod.split('-')[:2])}: {line.text.removeprefix('BEGIN ')}"
        for line in cluster.log
        if line.text.startswith("BEGIN ")
    ]


def round_of(*indices: int, workers: int = 2) -> set[str]:
    size = len(indices)
    return {
        f"train-{index}: node {rank} of {size}, {size * workers} workers"
        for rank, index in enumerate(indices)
    }


async def runs(cluster: ProcessCluster, *indices: int, after: int = 0) -> int:
    """Return when a round of the pods with these indices runs; return how many beginnings there were."""
    await cluster.until(lambda: round_of(*indices) <= set(begun(cluster)[after:]))
    return len(begun(cluster))


async def test_training_continues_when_any_node_is_lost_and_when_it_comes_back(tmp_path: Path) -> None:
    end = tmp_path / "end"
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, torchrun(end))
        seen = await runs(cluster, 0, 1, 2)
        # Rank 0, which hosts the store, and then another one.
        for lost in 0, 1:
            cluster.kubelet.unschedulable.add(f"train-{lost}")
            cluster.container(f"train-{lost}").kill()
            seen = await runs(cluster, *({0, 1, 2} - {lost}), after=seen)
            cluster.kubelet.unschedulable.remove(f"train-{lost}")
            for pod in cluster.server.pods:
                cluster.kubelet.sync(pod)
            seen = await runs(cluster, 0, 1, 2, after=seen)
        end.touch()
        await cluster.until(lambda: job.has("Complete"))
