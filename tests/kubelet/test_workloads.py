"""`aioresolve exec` in the pods of Jobs and StatefulSets, which run as processes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from .cluster import ProcessCluster
from .controllers import IndexedJob, StatefulSet

if TYPE_CHECKING:
    from pathlib import Path

    from .controllers import Controller

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["asyncio"])]

PROGRAM = 'echo "START $HOSTNAME $AIORESOLVE_RANK of $AIORESOLVE_NUM_TASKS"; read code; exit "$code"'
"""Prints its rank, and ends with the exit code that it reads."""

RESTARTED = "--restart-on-change"
SELECTOR = "batch.kubernetes.io/job-name=train"


def exec_here(*options: str) -> tuple[str, ...]:
    return ("python", "-m", "aioresolve", "exec", "here", *options, "--", "sh", "-c", PROGRAM)


def late(host: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that, in the pod with that host name, first waits for a line of input."""
    return ("sh", "-c", f'test $HOSTNAME != {host} || read line; exec "$@"', "sh", *command)


def pod_spec(command: tuple[str, ...], restart_policy: str = "Never") -> dict[str, Any]:
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    container = {"name": "main", "image": "trainer:v1", "command": command, "env": env}
    return {
        "restartPolicy": restart_policy,
        "terminationGracePeriodSeconds": 60,
        "containers": [container],
    }


def new_job(
    cluster: ProcessCluster, size: int, command: tuple[str, ...], policy: str = "Never", **spec: Any
) -> IndexedJob:
    """Create the Job `train`, which has as many pods as completions."""
    template = {"spec": pod_spec(command, policy)}
    job = IndexedJob(
        cluster.server, "train", {"completions": size, "parallelism": size, "template": template, **spec}
    )
    cluster.add(job)
    return job


def new_stateful_set(cluster: ProcessCluster, size: int, command: tuple[str, ...]) -> StatefulSet:
    template = {"spec": pod_spec(command, "Always")}
    workload = StatefulSet(
        cluster.server, "train", {"replicas": size, "serviceName": "train", "template": template}
    )
    cluster.add(workload)
    return workload


def starts(cluster: ProcessCluster) -> Counter[str]:
    """Return how often the program was started as which task: `train-1 1 of 4`."""
    return Counter(text.removeprefix("START ") for _, text in cluster.log if text.startswith("START "))


def each_once(size: int) -> Counter[str]:
    return Counter(f"train-{index} {index} of {size}" for index in range(size))


async def started(cluster: ProcessCluster, expected: Counter[str]) -> None:
    """Return when the program was started as `expected`, and nothing more happens."""
    await cluster.until(lambda: starts(cluster) >= expected)
    await cluster.settle()
    assert starts(cluster) == expected, cluster.describe()


async def end(cluster: ProcessCluster, host: str, exit_code: int = 0) -> None:
    """Let the program in the pod with that host name end, and wait until its pod has ended."""
    pod = cluster.pod(host)
    cluster.container(host).write(f"{exit_code}\n")
    await cluster.until(lambda: cluster.exit_code(pod) is not None)
    await cluster.settle()


async def complete(cluster: ProcessCluster, job: IndexedJob, *hosts: str) -> None:
    """End the programs in these pods, one after another, with which the Job is complete."""
    for host in hosts:
        await end(cluster, host)
    await cluster.until(lambda: job.has("Complete") or job.has("Failed"))
    assert job.has("Complete"), cluster.describe()


@pytest.mark.parametrize("options", [(), (RESTARTED,)])
async def test_members_that_end_one_after_another_are_started_once(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 4, exec_here(*options), backoffLimit=0)
        await started(cluster, each_once(4))
        await complete(cluster, job, "train-2", "train-0", "train-3", "train-1")
        assert starts(cluster) == each_once(4)


@pytest.mark.parametrize("options", [(), (RESTARTED,)])
async def test_failed_member_is_replaced(options: tuple[str, ...], tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_here(*options))
        await started(cluster, each_once(3))
        await end(cluster, "train-1", 3)
        again = each_once(3) if options else Counter({"train-1 1 of 3": 1})
        await started(cluster, each_once(3) + again)
        await complete(cluster, job, "train-0", "train-1", "train-2")
        assert starts(cluster) == each_once(3) + again
        assert job.status["failed"] == 1


async def test_member_that_fails_after_one_has_succeeded_restarts_no_other(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_here(RESTARTED))
        await started(cluster, each_once(3))
        await end(cluster, "train-2")
        await end(cluster, "train-1", 3)
        expected = each_once(3) + Counter({"train-1 1 of 3": 1})
        await started(cluster, expected)
        await complete(cluster, job, "train-1", "train-0")
        assert starts(cluster) == expected


@pytest.mark.parametrize("options", [(), (RESTARTED,)])
async def test_member_that_starts_when_one_has_ended_has_its_rank(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 4, late("train-2", exec_here(*options)))
        await started(cluster, each_once(4) - Counter(["train-2 2 of 4"]))
        await end(cluster, "train-0")
        cluster.container("train-2").write("go\n")
        await started(cluster, each_once(4))
        await complete(cluster, job, "train-1", "train-2", "train-3")
        assert starts(cluster) == each_once(4)


async def test_program_that_connects_to_its_peers_does_not_start_when_one_has_ended(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        new_job(cluster, 3, late("train-2", exec_here("--for", "jax")), backoffLimit=0)
        await started(cluster, each_once(3) - Counter(["train-2 2 of 3"]))
        ended, pod = cluster.pod("train-0"), cluster.pod("train-2")
        await end(cluster, "train-0")
        cluster.container("train-2").write("go\n")
        await cluster.until(lambda: cluster.exit_code(pod) is not None)
        assert cluster.exit_code(pod) == 1, cluster.describe()
        assert ended in cluster.output(pod)


async def test_members_of_a_job_that_is_resumed_start_again(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_here(RESTARTED), backoffLimit=0)
        await started(cluster, each_once(3))
        job.change(suspend=True)
        await cluster.until(lambda: not job.pods)
        job.change(suspend=False)
        await started(cluster, each_once(3) + each_once(3))
        await complete(cluster, job, "train-0", "train-1", "train-2")
        assert starts(cluster) == each_once(3) + each_once(3)


async def test_wait_lasts_until_a_suspended_job_is_resumed(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        cluster.kubelet.unschedulable.add("train-1")
        job = new_job(cluster, 2, exec_here())
        cluster.add_pod(
            "waiting", pod_spec(("python", "-m", "aioresolve", "wait", "kubernetes", "-l", SELECTOR))
        )
        await cluster.until(lambda: "1 of 2" in cluster.output("waiting"))
        job.change(suspend=True)
        await cluster.until(lambda: "suspended" in cluster.output("waiting"))
        cluster.kubelet.unschedulable.clear()
        job.change(suspend=False)
        await started(cluster, each_once(2))
        await cluster.until(lambda: cluster.exit_code("waiting") is not None)
        assert cluster.exit_code("waiting") == 0, cluster.describe()
        await complete(cluster, job, "train-0", "train-1")


@pytest.mark.parametrize("kind", ["Job", "StatefulSet"])
async def test_members_are_restarted_when_the_workload_is_scaled(kind: str, tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job: Controller
        if kind == "Job":
            job, fields = new_job(cluster, 2, exec_here(RESTARTED)), ["completions", "parallelism"]
        else:
            job, fields = new_stateful_set(cluster, 2, exec_here(RESTARTED)), ["replicas"]
        expected = each_once(2)
        await started(cluster, expected)
        for size in (3, 2):
            job.change(**dict.fromkeys(fields, size))
            expected += each_once(size)
            await started(cluster, expected)
        if isinstance(job, IndexedJob):
            await complete(cluster, job, "train-0", "train-1")
        else:
            job.change(replicas=0)
            await cluster.until(lambda: not job.pods)
        assert starts(cluster) == expected


async def test_peers_of_a_container_that_is_restarted_in_place_are_restarted(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        workload = new_stateful_set(cluster, 3, exec_here(RESTARTED))
        await started(cluster, each_once(3))
        cluster.container("train-1").kill("OOMKilled")
        await started(cluster, each_once(3) + each_once(3))
        workload.change(replicas=0)
        await cluster.until(lambda: not workload.pods)
        assert starts(cluster) == each_once(3) + each_once(3)


async def test_peers_of_a_program_that_fails_and_is_restarted_in_place_are_restarted(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_here(RESTARTED), "OnFailure")
        await started(cluster, each_once(3))
        cluster.container("train-1").write("3\n")
        await started(cluster, each_once(3) + each_once(3))
        await complete(cluster, job, "train-0", "train-1", "train-2")
        assert starts(cluster) == each_once(3) + each_once(3)


RULE = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"backoffLimit": 0}, "BackoffLimitExceeded"),
        ({"podFailurePolicy": {"rules": [RULE]}}, "PodFailurePolicy"),
    ],
)
async def test_wait_ends_when_the_job_fails(spec: dict[str, Any], reason: str, tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        cluster.kubelet.unschedulable.add("train-1")
        job = new_job(cluster, 2, exec_here(), **spec)
        cluster.add_pod(
            "waiting", pod_spec(("python", "-m", "aioresolve", "wait", "kubernetes", "-l", SELECTOR))
        )
        await cluster.until(lambda: "1 of 2" in cluster.output("waiting"))
        cluster.container("train-0").kill()
        await cluster.until(lambda: cluster.exit_code("waiting") is not None)
        assert job.has("Failed")
        assert cluster.exit_code("waiting") == 1, cluster.describe()
        assert reason in cluster.output("waiting")


async def test_wait_for_a_complete_job_ends_at_once(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 2, ("true",))
        await cluster.until(lambda: job.has("Complete") or job.has("Failed"))
        cluster.add_pod(
            "waiting", pod_spec(("python", "-m", "aioresolve", "wait", "kubernetes", "-l", SELECTOR))
        )
        await cluster.until(lambda: cluster.exit_code("waiting") is not None)
        assert cluster.exit_code("waiting") == 1, cluster.describe()
        assert "complete" in cluster.output("waiting")
