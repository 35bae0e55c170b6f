"""`aioresolve exec` in the pods of Jobs and StatefulSets, which run as processes."""

import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .cluster import ProcessCluster
from .controllers import IndexedJob, StatefulSet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_factories=["asyncio"])]

PROGRAM = 'echo "START $HOSTNAME $AIORESOLVE_RANK of $AIORESOLVE_NUM_TASKS"; read code; exit "$code"'
"""Prints its rank, and ends with the exit code that it reads."""

SELECTOR = "batch.kubernetes.io/job-name=train"
PODS = ("kubernetes", "-l", SELECTOR)
RESTARTS = ("here", "--restart-on-change")
AIORESOLVE = ("python", "-m", "aioresolve")
JAX = ("python", "-c", "import aioresolve.jax, jax; jax.distributed.initialize()")
WAIT = (*AIORESOLVE, "wait", *PODS)


def exec_program(*arguments: str) -> tuple[str, ...]:
    return (*AIORESOLVE, "exec", *arguments, "--", "sh", "-c", PROGRAM)


def late(host: str, command: tuple[str, ...], late_command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command that is another one in the pod with that host name, after a line of input."""
    script = f'test $HOSTNAME = {host} || exec "$@"; read line; exec {shlex.join(late_command)}'
    return ("sh", "-c", script, "sh", *command)


def pod_spec(command: tuple[str, ...], restart_policy: str = "Never") -> dict[str, Any]:
    fields = {"POD_NAME": "metadata.name", "POD_UID": "metadata.uid"}
    env = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()]
    main = {"name": "main", "image": "trainer:v1", "command": command, "env": env}
    return {"restartPolicy": restart_policy, "terminationGracePeriodSeconds": 60, "containers": [main]}


def new_job(
    cluster: ProcessCluster, size: int, command: tuple[str, ...], policy: str = "Never", **spec: Any
) -> IndexedJob:
    """Create the Job `train`, which has as many pods as completions."""
    template = {"spec": pod_spec(command, policy)}
    sizes = {"completions": size, "parallelism": size}
    return cluster.add(IndexedJob(cluster.server, "train", {**sizes, "template": template, **spec}))


def new_stateful_set(cluster: ProcessCluster, size: int, command: tuple[str, ...]) -> StatefulSet:
    template = {"spec": pod_spec(command, "Always")}
    spec = {"replicas": size, "serviceName": "train", "template": template}
    return cluster.add(StatefulSet(cluster.server, "train", spec))


def starts(cluster: ProcessCluster) -> Counter[str]:
    """Return how often the program was started as which task, such as `train-1 1 of 4`."""
    return Counter(text.removeprefix("START ") for _, text in cluster.log if text.startswith("START "))


def each_once(size: int) -> Counter[str]:
    return Counter(f"train-{index} {index} of {size}" for index in range(size))


def only(index: int, size: int) -> Counter[str]:
    return Counter([f"train-{index} {index} of {size}"])


async def started(cluster: ProcessCluster, expected: Counter[str]) -> None:
    """Return when the program was started as `expected`, and nothing more happens."""
    await cluster.until(lambda: starts(cluster) >= expected)
    await cluster.settle()
    assert starts(cluster) == expected, cluster.describe()


async def end(cluster: ProcessCluster, host: str, exit_code: int = 0) -> None:
    """Let the program in the pod with that host name end, and wait until the pod has ended with its code."""
    pod = cluster.pod(host)
    cluster.container(host).write(f"{exit_code}\n")
    await cluster.until(lambda: cluster.exit_code(pod) is not None)
    assert cluster.exit_code(pod) == exit_code, cluster.describe()
    await cluster.settle()


async def complete(cluster: ProcessCluster, job: IndexedJob, *hosts: str) -> None:
    """End these programs one after another, and with them the Job: none is started again."""
    expected = starts(cluster)
    for host in hosts:
        await end(cluster, host)
    await cluster.until(lambda: job.has("Complete"))
    assert starts(cluster) == expected, cluster.describe()


async def delete_all(cluster: ProcessCluster, workload: StatefulSet) -> None:
    """End the pods, whose programs are not started again meanwhile."""
    expected = starts(cluster)
    workload.change(replicas=0)
    await cluster.until(lambda: not workload.pods)
    assert starts(cluster) == expected, cluster.describe()


@pytest.mark.parametrize("arguments", [("here",), RESTARTS, (*PODS, "--restart-on-change")])
async def test_members_that_end_one_after_another_are_started_once(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 4, exec_program(*arguments), backoffLimit=0)
        await started(cluster, each_once(4))
        await complete(cluster, job, "train-2", "train-0", "train-3", "train-1")


async def fail(cluster: ProcessCluster) -> None:
    await end(cluster, "train-1", 3)


async def delete(cluster: ProcessCluster) -> None:
    cluster.server.delete(cluster.pod("train-1"), grace_period_seconds=None)


async def run_out_of_memory(cluster: ProcessCluster) -> None:
    cluster.container("train-1").kill("OOMKilled")


@pytest.mark.parametrize(
    ("arguments", "cause", "again"),
    [
        (("here",), fail, only(1, 3)),
        (RESTARTS, fail, each_once(3)),
        (RESTARTS, delete, each_once(3)),
    ],
)
async def test_member_of_a_job_is_replaced(
    arguments: tuple[str, ...], cause: Callable[..., Any], again: Counter[str], tmp_path: Path
) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_program(*arguments))
        await started(cluster, each_once(3))
        await cause(cluster)
        await started(cluster, each_once(3) + again)
        await complete(cluster, job, "train-0", "train-1", "train-2")
        assert job.status["failed"] == 1


async def test_member_that_fails_when_one_has_succeeded_restarts_no_other(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_program(*RESTARTS))
        await started(cluster, each_once(3))
        await end(cluster, "train-2")
        await end(cluster, "train-1", 3)
        await started(cluster, each_once(3) + only(1, 3))
        await complete(cluster, job, "train-1", "train-0")


@pytest.mark.parametrize("arguments", [("here",), RESTARTS])
async def test_member_that_starts_when_one_has_ended_has_its_rank(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        command = exec_program(*arguments)
        job = new_job(cluster, 4, late("train-2", command, command))
        await started(cluster, each_once(4) - only(2, 4))
        await end(cluster, "train-0")
        cluster.container("train-2").write("go\n")
        await started(cluster, each_once(4))
        await complete(cluster, job, "train-1", "train-2", "train-3")


@pytest.mark.parametrize("command", [exec_program("here", "--for", "jax"), JAX], ids=["exec", "jax"])
async def test_program_that_connects_to_all_peers_does_not_start_when_one_has_ended(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    if command is JAX:
        pytest.importorskip("jax")
    async with ProcessCluster.run(tmp_path) as cluster:
        new_job(cluster, 3, late("train-2", exec_program("here"), command), backoffLimit=0)
        await started(cluster, each_once(3) - only(2, 3))
        ended, pod = cluster.pod("train-0"), cluster.pod("train-2")
        await end(cluster, "train-0")
        cluster.container("train-2").write("go\n")
        await cluster.until(lambda: cluster.exit_code(pod) is not None)
        assert cluster.exit_code(pod) == 1, cluster.describe()
        assert ended in cluster.output(pod)
        assert starts(cluster) == each_once(3) - only(2, 3)


async def test_members_of_a_job_that_is_resumed_are_started_again(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_program(*RESTARTS), backoffLimit=0)
        await started(cluster, each_once(3))
        job.change(suspend=True)
        await cluster.until(lambda: not job.pods)
        job.change(suspend=False)
        await started(cluster, each_once(3) + each_once(3))
        await complete(cluster, job, "train-0", "train-1", "train-2")


async def test_members_are_started_again_when_a_job_is_scaled(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 2, exec_program(*RESTARTS))
        expected = each_once(2)
        await started(cluster, expected)
        for size in (3, 2):
            job.change(completions=size, parallelism=size)
            expected += each_once(size)
            await started(cluster, expected)
        await complete(cluster, job, "train-1", "train-0")


@pytest.mark.parametrize("cause", [run_out_of_memory, delete])
async def test_members_of_a_stateful_set_are_started_again_when_one_is_restarted(
    cause: Callable[..., Any], tmp_path: Path
) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        workload = new_stateful_set(cluster, 3, exec_program(*RESTARTS))
        await started(cluster, each_once(3))
        await cause(cluster)
        await started(cluster, each_once(3) + each_once(3))
        await delete_all(cluster, workload)


async def test_members_of_a_job_are_started_again_when_one_fails_and_is_restarted(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        job = new_job(cluster, 3, exec_program(*RESTARTS), "OnFailure")
        await started(cluster, each_once(3))
        cluster.container("train-1").write("3\n")
        await started(cluster, each_once(3) + each_once(3))
        await complete(cluster, job, "train-0", "train-1", "train-2")


async def test_wait_ends_when_the_job_fails(tmp_path: Path) -> None:
    async with ProcessCluster.run(tmp_path) as cluster:
        cluster.kubelet.unschedulable.add("train-1")
        job = new_job(cluster, 2, ("sh", "-c", "read code; exit $code"), backoffLimit=0)
        cluster.add_pod("waiting", pod_spec(WAIT))
        await cluster.until(lambda: "1 of 2" in cluster.output("waiting"))
        await end(cluster, "train-0", 42)
        await cluster.until(lambda: cluster.exit_code("waiting") is not None)
        assert job.has("Failed")
        assert cluster.exit_code("waiting") == 1, cluster.describe()
        assert "BackoffLimitExceeded" in cluster.output("waiting"), cluster.describe()
        assert "42" in cluster.output("waiting")
