"""torchrun in the pods of Jobs and StatefulSets, which run as processes."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from aioresolve.testing import Delay, RequestRecord
from tests.kubelet.cluster import ProcessCluster
from tests.kubelet.controllers import IndexedJob, StatefulSet
from tests.programs import ROOT

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("torch") is None, reason="needs torch"),
    pytest.mark.asyncio(loop_factories=["asyncio"]),
]

GUIDE = ROOT / "docs" / "torchrun.md"
PROGRAM = Path(__file__).with_name("train.py")

FREEZE = 2.0
"""Seconds for which the API server is frozen."""


def of_guide(kind: str) -> dict[str, Any]:
    """Return the spec of the object of this kind in docs/torchrun.md."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    (found,) = (document["spec"] for document in documents if document["kind"] == kind)
    return dict(found)


def with_program(
    spec: dict[str, Any], end: Path, *, nodes: str = "2:3", workers: int = 2, backend: str = ""
) -> dict[str, Any]:
    """Return the spec of a controller of the guide, whose pods train until the file `end` exists."""
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    line = " ".join(container["command"]).replace("=2:8", f"={nodes}").replace("train.py", f"{PROGRAM} {end}")
    line = line.replace("--nproc-per-node=8", f"--nproc-per-node={workers}")
    line = line.replace("--rdzv-backend=kubernetes", backend or "--rdzv-backend=kubernetes")
    env = [{"name": "GLOO_SOCKET_IFNAME", "value": "lo"}, {"name": "OMP_NUM_THREADS", "value": "1"}]
    container = {**container, "command": ["sh", "-c", f"exec {line}"], "env": [*container["env"], *env]}
    pod = {**pod, "terminationGracePeriodSeconds": 5, "containers": [container]}
    return {**spec, "template": {**spec["template"], "spec": pod}}


def new_job(cluster: ProcessCluster, size: int, end: Path, **options: Any) -> IndexedJob:
    spec = {**of_guide("Job"), "completions": size, "parallelism": size, "podFailurePolicy": {}}
    return cluster.add(IndexedJob(cluster.server, "train", with_program(spec, end, **options)))


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


async def runs(cluster: ProcessCluster, *indices: int, after: int = 0, workers: int = 2) -> int:
    """Return when a round of the pods with these indices runs; return how many beginnings there were."""
    await cluster.until(lambda: round_of(*indices, workers=workers) <= set(begun(cluster)[after:]))
    return len(begun(cluster))


async def test_training_continues_when_any_node_is_lost_and_when_it_comes_back(tmp_path: Path) -> None:
    end = tmp_path / "end"
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, end)
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


async def test_a_job_that_c10d_coordinates_is_lost_with_the_host_of_its_state(tmp_path: Path) -> None:
    """The same program as above: torchrun ends on the other nodes too."""
    is_host = "is_host=$([ $JOB_COMPLETION_INDEX = 0 ] && echo 1 || echo 0)"
    backend = f"--rdzv-backend=c10d --rdzv-endpoint=127.0.1.2:29412 --rdzv-conf={is_host}"
    async with ProcessCluster.run(tmp_path) as cluster:
        new_job(cluster, 3, tmp_path / "end", backend=backend)
        await cluster.until(lambda: len(begun(cluster)) == 3)
        pods = [cluster.pod(f"train-{index}") for index in range(3)]
        cluster.kubelet.unschedulable |= {f"train-{index}" for index in range(3)}
        cluster.container("train-0").kill()
        await cluster.until(lambda: all(cluster.exit_code(pod) is not None for pod in pods))
        assert [cluster.exit_code(pod) for pod in pods] == [137, 1, 1]


async def freeze(cluster: ProcessCluster, seconds: float) -> None:
    """Let the API server respond to no request of an agent, and send it no event."""

    def is_of_agent(request: RequestRecord) -> bool:
        return request.namespace is not None

    cluster.server.disturb(Delay(seconds), match=is_of_agent)
    cluster.server.inject(Delay(seconds), match=is_of_agent, times=None)
    await anyio.sleep(seconds)
    cluster.server.clear_faults()


async def test_a_job_grows_and_shrinks_while_the_api_server_fails(tmp_path: Path) -> None:
    end = tmp_path / "end"
    async with ProcessCluster.run(tmp_path) as cluster:
        server = cluster.server
        job = new_job(cluster, 2, end, nodes="2:5", workers=1)
        seen = await runs(cluster, 0, 1, workers=1)
        await server.restart()
        server.compact()
        job.change(completions=5, parallelism=5)
        seen = await runs(cluster, *range(5), after=seen, workers=1)
        cluster.container("train-1").kill()
        await freeze(cluster, FREEZE)
        server.compact()
        seen = await runs(cluster, *range(5), after=seen, workers=1)
        job.change(completions=3, parallelism=3)
        await freeze(cluster, FREEZE)
        await runs(cluster, 0, 1, 2, after=seen, workers=1)
        # Each step of the program checks that its workers are those of one round, and no others.
        assert not [line for line in cluster.log if "the sum over" in line.text]
        end.touch()
        await cluster.until(lambda: job.has("Complete"))


async def test_a_container_of_a_stateful_set_that_restarts_keeps_its_rank(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        spec = with_program({**of_guide("StatefulSet"), "replicas": 2}, tmp_path / "end", workers=1)
        cluster.add(StatefulSet(cluster.server, "train", spec))
        seen = await runs(cluster, 0, 1, workers=1)
        cluster.container("train-0").kill()
        await runs(cluster, 0, 1, after=seen, workers=1)
