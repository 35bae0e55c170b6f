"""The kubelet and the controllers of these tests: they do what those of a cluster do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from .cluster import ProcessCluster
from .controllers import IndexedJob

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["asyncio"])]


def spec(command: str, **fields: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "trainer:v1", "command": ["sh", "-c", command]}
    return {"restartPolicy": "Never", "containers": [container], **fields}


def status(cluster: ProcessCluster) -> dict[str, Any]:
    """Return the status of the container of the pod `p`."""
    containers = cluster.server.pod("p")["status"].get("containerStatuses") or [{"state": {}}]
    return dict(containers[0])


async def test_failed_container_is_restarted_in_place(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        cluster.add_pod("p", spec("read code; exit $code", restartPolicy="OnFailure"))
        await cluster.until(lambda: "running" in status(cluster)["state"])
        before = cluster.server.pod("p")
        cluster.kubelet.container("p").write("3\n")
        await cluster.until(lambda: status(cluster)["restartCount"] == 1)
        after = cluster.server.pod("p")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["podIP"] == before["status"]["podIP"] == "127.0.1.2"
        old, new = (one["status"]["containerStatuses"][0] for one in (before, after))
        assert new["containerID"] != old["containerID"] == new["lastState"]["terminated"]["containerID"]
        assert new["lastState"]["terminated"]["exitCode"] == 3
        cluster.kubelet.container("p").write("0\n")
        await cluster.until(lambda: cluster.exit_code("p") == 0)
        assert cluster.server.pod("p")["status"]["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("trap 'echo ended; exit 0' TERM; echo; read line", "\nended"),
        ("trap '' TERM; sleep 99 & echo; wait", ""),
    ],
)
async def test_deleted_pod_has_its_grace_period(command: str, printed: str, tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        cluster.add_pod("p", spec(command, terminationGracePeriodSeconds=1))
        await cluster.until(lambda: len(cluster.log) == 1)
        cluster.server.delete("p", grace_period_seconds=None)
        await cluster.until(lambda: not cluster.server.pods)
        assert cluster.output("p") == printed


async def test_job_replaces_failed_pods_until_its_backoff_limit(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        command = "echo $JOB_COMPLETION_INDEX; test $JOB_COMPLETION_INDEX != 1"
        job = IndexedJob(
            cluster.server,
            "train",
            {"completions": 3, "parallelism": 2, "backoffLimit": 2, "template": {"spec": spec(command)}},
        )
        cluster.add(job)
        await cluster.until(lambda: job.has("Complete") or job.has("Failed"))
        assert [condition["type"] for condition in job.status["conditions"]] == ["FailureTarget", "Failed"]
        assert job.status["conditions"][1]["reason"] == "BackoffLimitExceeded"
        assert job.status["failed"] == 3
        assert [text for _, text in cluster.log].count("1") == 3
