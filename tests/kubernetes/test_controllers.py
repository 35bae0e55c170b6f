"""How many pods controllers want: from the pods, and from the object of the controller."""

from collections.abc import Mapping
from contextlib import aclosing
from copy import deepcopy
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aioresolve import APIError, KubernetesClusterResolver, Progress, Want
from aioresolve.spec import ExpectedTasks
from aioresolve.testing import Answer, RequestRecord, pod

from . import samples
from .loopback import Loopback, is_controller_read

LWS, JOBSET = "leaderworkerset.sigs.k8s.io", "jobset.sigs.k8s.io"


def owner(kind: str, name: str, api_version: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def owned(
    name: str,
    owned_by: dict[str, Any] | None,
    labels: Mapping[str, str],
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Return a pod with the label `app=train`, unless it has another one."""
    made = pod(name, "ml", labels={"app": "train", **labels}, annotations=dict(annotations or {}), **more)
    made["metadata"]["ownerReferences"] = [] if owned_by is None else [owned_by]
    return made


JOB = owner("Job", "train", "batch/v1")
STATEFUL_SET = owner("StatefulSet", "train", "apps/v1")
VOLCANO = owner("Job", "vc", "batch.volcano.sh/v1alpha1")
MPI = owner("MPIJob", "pi", "kubeflow.org/v2beta1")
TORCH = owner("PyTorchJob", "pt", "kubeflow.org/v1")
LLM = owner("LeaderWorkerSet", "llm", "leaderworkerset.x-k8s.io/v1")
SET = owner("JobSet", "train", "jobset.x-k8s.io/v1alpha2")


def lws_pod(group: int, worker: int, size: object = 4) -> dict[str, Any]:
    labels = {f"{LWS}/name": "llm", f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}
    labels |= {"app": "llm", "role": "worker" if worker else "leader", f"{LWS}/group-key": f"key-{group}"}
    return owned(f"llm-{group}-{worker}", STATEFUL_SET, labels, {f"{LWS}/size": str(size)})


def jobset_pod(job: int) -> dict[str, Any]:
    name = f"train-workers-{job}"
    labels = {f"{JOBSET}/jobset-name": "train", f"{JOBSET}/replicatedjob-name": "workers", "job-name": name}
    labels |= {f"{JOBSET}/job-index": str(job), "app": "t"}
    return owned(f"{name}-0", owner("Job", name, "batch/v1"), labels)


def template(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"containers": []}}


def groups(replicas: int, size: int, **leader: Any) -> dict[str, Any]:
    return {
        "replicas": replicas,
        "leaderWorkerTemplate": {"size": size, "workerTemplate": template(app="llm"), **leader},
    }


INDEXED = owned("train-0", JOB, {"job-name": "train"}, index=0)
ORDINAL = owned("train-1", STATEFUL_SET, {"apps.kubernetes.io/pod-index": "1"})
LLM_PODS = [lws_pod(group, worker) for group in range(2) for worker in (0, 2)]
WORKLOADS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]] = {
    "indexed Job": ([INDEXED], JOB, {"completions": 16, "parallelism": 16}),
    "Job as a work queue": ([INDEXED], JOB, {"parallelism": 4}),
    "Job with few workers": ([INDEXED], JOB, {"completions": 16, "parallelism": 4}),
    "StatefulSet": ([ORDINAL], STATEFUL_SET, {"replicas": 5}),
    "StatefulSet of the largest size": ([ORDINAL], STATEFUL_SET, {"replicas": 200_000}),
    "StatefulSet that is too large": ([ORDINAL], STATEFUL_SET, {"replicas": 200_001}),
    "ReplicaSet": (
        [owned("train-0", owner("ReplicaSet", "train-5d", "apps/v1"), {})],
        owner("ReplicaSet", "train-5d", "apps/v1"),
        {"replicas": 3},
    ),
    "JobSet": (
        [jobset_pod(0), jobset_pod(1)],
        SET,
        {
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 2,
                    "template": {"spec": {"completions": 4, "parallelism": 2, "template": template(app="t")}},
                },
                {"name": "driver", "template": {"spec": {"template": template()}}},
            ]
        },
    ),
    "LeaderWorkerSet": (LLM_PODS, LLM, groups(3, 4)),
    "LeaderWorkerSet with a template for leaders": (
        LLM_PODS,
        LLM,
        groups(2, 4, leaderTemplate=template(role="leader")),
    ),
    "LeaderWorkerSet without a number of groups": (
        [lws_pod(0, 0), lws_pod(0, 2)],
        LLM,
        {"leaderWorkerTemplate": {"size": 4, "workerTemplate": template(app="llm")}},
    ),
    "groups that are too large together": (LLM_PODS, LLM, groups(150_000, 2)),
    "LeaderWorkerSet of the default size": (
        [lws_pod(0, 0)],
        LLM,
        {"leaderWorkerTemplate": {"workerTemplate": template(app="llm")}},
    ),
    "Volcano Job with default names and numbers": (
        [owned("vc-0", VOLCANO, {"volcano.sh/task-spec": "default", "volcano.sh/job-name": "vc"})],
        VOLCANO,
        {"tasks": [{"template": template()}]},
    ),
    "Volcano Job": (
        [owned("vc-0", VOLCANO, {"volcano.sh/task-spec": "worker", "volcano.sh/job-name": "vc"})],
        VOLCANO,
        {
            "tasks": [
                {"name": "master", "replicas": 1, "template": template()},
                {"name": "worker", "replicas": 7, "template": template()},
            ]
        },
    ),
    "MPIJob": (
        [owned("pi-worker-0", MPI, {"training.kubeflow.org/job-role": "worker", "job": "pi"})],
        MPI,
        {
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template()},
                "Worker": {"replicas": 6, "template": template()},
            }
        },
    ),
    "PyTorchJob": (
        [owned("pt-master-0", TORCH, {"training.kubeflow.org/replica-type": "master", "job": "pt"})],
        TORCH,
        {
            "pytorchReplicaSpecs": {
                "Master": {"template": template()},
                "Worker": {"replicas": 3, "template": template()},
            }
        },
    ),
}

SELECTORS = [
    ("indexed Job", "app=train", 16),
    ("indexed Job", "job-name=train", 16),
    ("indexed Job", "app=train,batch.kubernetes.io/job-completion-index in (0,1)", None),
    ("Job as a work queue", "app=train", 4),
    ("Job with few workers", "app=train", 4),
    ("StatefulSet", "app in (train, trainer)", 5),
    ("StatefulSet", "apps.kubernetes.io/pod-index!=0", None),
    ("StatefulSet of the largest size", "app=train", 200_000),
    ("StatefulSet that is too large", "app=train", None),
    ("ReplicaSet", "app=train", 3),
    ("JobSet", f"{JOBSET}/jobset-name=train", 5),
    ("JobSet", "app=t", 4),
    ("JobSet", f"{JOBSET}/jobset-name=train,{JOBSET}/replicatedjob-name=workers", 4),
    ("JobSet", f"{JOBSET}/replicatedjob-name=workers,{JOBSET}/job-index=1", 2),
    ("JobSet", f"{JOBSET}/replicatedjob-name=workers,{JOBSET}/job-index in (0, 1)", None),
    ("JobSet", "job-name=train-workers-0", 2),
    ("LeaderWorkerSet", f"{LWS}/name=llm", 12),
    ("LeaderWorkerSet", "app=llm", 12),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/worker-index=0", 3),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/worker-index in (0)", 3),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/worker-index=2", None),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/group-index=1", 4),
    ("LeaderWorkerSet with a template for leaders", "role=leader", 2),
    ("LeaderWorkerSet without a number of groups", f"{LWS}/name=llm", 4),
    ("groups that are too large together", f"{LWS}/name=llm", None),
    ("LeaderWorkerSet of the default size", f"{LWS}/name=llm", 1),
    ("Volcano Job with default names and numbers", "volcano.sh/job-name=vc", 1),
    ("Volcano Job", "volcano.sh/job-name=vc", 8),
    ("Volcano Job", "volcano.sh/job-name=vc,volcano.sh/task-spec=worker", 7),
    ("MPIJob", "job=pi", 6),
    ("PyTorchJob", "job=pt", 4),
    ("PyTorchJob", "job=pt,training.kubeflow.org/replica-type=master", 1),
]


def resolver_of(
    loopback: Loopback, *, size_interval: float = 10.0, **arguments: Any
) -> KubernetesClusterResolver:
    resolver = loopback.resolver(**arguments)
    resolver.watch_policy = samples.watch_policy(size_interval=size_interval)
    return resolver


def document(reference: dict[str, Any], spec: object) -> dict[str, Any]:
    """Return the object of a controller."""
    kind = {key: reference[key] for key in ("apiVersion", "kind")}
    return {**kind, "metadata": {"name": reference["name"], "namespace": "ml"}, "spec": spec}


async def expected(
    loopback: Loopback, selector: str, *pods: dict[str, Any], controllers: tuple[dict[str, Any], ...] = ()
) -> ExpectedTasks | None:
    """Return what the first observation of these pods expects, and keep only the requests for it."""
    loopback.replace_pods(pods)
    loopback.server.add_controllers(*controllers)
    async with aclosing(resolver_of(loopback, jobs={"worker": [selector]}).observations(sizes=True)) as found:
        observation = await anext(found)
    assert observation.state is not None
    assert observation.state.members
    return observation.expected.get("worker")


async def test_size_is_that_of_the_pods_that_the_selector_will_match(loopback: Loopback) -> None:
    for name, selector, number in SELECTORS:
        pods, controller, spec = WORKLOADS[name]
        found = await expected(loopback, selector, *pods, controllers=(document(controller, spec),))
        assert (name, selector, found and found.number) == (name, selector, number)


async def test_body_that_is_malformed_states_no_size(loopback: Loopback) -> None:
    for body in (b"", b"[]", b'{"spec": null}', b"\xff", b"[" * 100_000):
        loopback.server.inject(Answer(200, body), match=is_controller_read)
        assert await expected(loopback, "app=train", ORDINAL) is None


@pytest.mark.parametrize(
    ("selector", "number", "reads"),
    [
        (f"{LWS}/name=llm", None, 1),
        (f"{LWS}/name=llm,{LWS}/group-index=0", 4, 0),
        (f"{LWS}/name=llm,{LWS}/group-index=0,{LWS}/group-key=key-0", 4, 0),
        (f"{LWS}/group-index in (0)", 4, 0),
        (f"{LWS}/group-index in (0, 1)", None, 1),
        (f"{LWS}/group-index=0,role=worker", None, 1),
    ],
)
async def test_pods_of_a_leader_worker_set_state_the_size_of_their_groups(
    loopback: Loopback, selector: str, number: int | None, reads: int
) -> None:
    pods = [lws_pod(group, 1) for group in range(1 if f"{LWS}/group-index" in selector else 2)]
    found = await expected(loopback, selector, *pods)
    assert found == (None if number is None else ExpectedTasks(number, f"{LWS}/size of the pods"))
    assert len(sizes_read(loopback)) == reads
    for size in (0, "", "two", "9" * 10):
        assert await expected(loopback, f"{LWS}/group-index=0", lws_pod(0, 0, size=size)) is None


async def test_pods_that_have_succeeded_count_for_the_size(loopback: Loopback) -> None:
    job, job_set = "spec.completions and spec.parallelism of Job", "spec.replicatedJobs of JobSet"
    for name, selector, ended, number, source in [
        ("indexed Job", "app=train", 3, 16, job),
        ("Job with few workers", "app=train", 0, 4, job),
        ("Job with few workers", "app=train", 3, 7, job),
        ("Job with few workers", "app=train", 14, 16, job),
        ("JobSet", "app=t", 5, 8, job_set),
    ]:
        pods, controller, spec = WORKLOADS[name]
        done = [deepcopy(pods[0]) for _ in range(ended)]
        for index, each in enumerate(done):
            each["metadata"]["name"] = f"done-{index}"
            each["status"]["phase"] = "Succeeded"
        found = await expected(loopback, selector, *pods, *done, controllers=(document(controller, spec),))
        assert found == ExpectedTasks(number, f"{source} ml/train", ended)


@pytest.mark.parametrize(
    ("controller", "spec", "status", "reported"),
    [
        (MPI, {"mpiReplicaSpecs": {}, "runPolicy": {"suspend": True}}, {}, ["suspended"]),
        (VOLCANO, {"tasks": []}, {"state": {"phase": "Aborted", "reason": "Timeout"}}, ["failed (Timeout)"]),
        (VOLCANO, {"tasks": []}, {"state": {"phase": "Running"}}, []),
    ],
)
async def test_job_has_ended_or_is_suspended_if_each_of_its_controllers_is(
    loopback: Loopback, controller: dict[str, Any], spec: Any, status: Any, reported: list[str]
) -> None:
    loopback.server.add_controllers({**document(controller, spec), "status": status})
    for owners, statuses in (([controller], reported), ([controller, STATEFUL_SET], [])):
        loopback.replace_pods([owned(f"w-{n}", each, {}, phase="Failed") for n, each in enumerate(owners)])
        found = await resolver_of(loopback).observe(Want(controllers=True), Progress())
        assert [str(each) for each in found.controllers.get("worker", ())] == statuses


async def test_size_is_unknown_as_long_as_one_pod_has_an_unknown_controller(loopback: Loopback) -> None:
    assert await expected(loopback, "app=train", INDEXED, owned("bare", None, {})) is None
    assert sizes_read(loopback) == []


def train_pod(name: str, **more: Any) -> dict[str, Any]:
    return owned(name, STATEFUL_SET, {}, **more)


def stateful_set(replicas: int) -> dict[str, Any]:
    return document(STATEFUL_SET, {"replicas": replicas})


def sizes_read(loopback: Loopback) -> list[RequestRecord]:
    """Return the requests for controllers so far."""
    return [request for request in loopback.requests if is_controller_read(request)]


async def test_controller_is_read_again_only_before_its_cluster_is_complete(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(3))
    loopback.server.add(train_pod("train-0"))
    reads = []
    async with (
        resolver_of(loopback, size_interval=3600.0) as resolver,
        aclosing(resolver.observations(sizes=True)) as observations,
    ):
        for number in range(1, 4):
            observation = await anext(observations)
            assert observation.state is not None
            assert observation.expected["worker"].number == 3
            assert len(observation.state.endpoints["worker"]) == number
            reads.append(len(sizes_read(loopback)))
            loopback.server.add(train_pod(f"train-{number}"))
    assert reads == [1, 1, 2]
    paths = {request.path for request in sizes_read(loopback)}
    assert paths == {"/apis/apps/v1/namespaces/ml/statefulsets/train"}


async def test_larger_size_is_noticed_before_the_wait_ends(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(2))
    loopback.server.add(train_pod("train-0"))
    found: list[int] = []

    async def wait() -> None:
        state = await resolver_of(loopback, size_interval=3600.0).wait(timeout=60)
        found.append(state.spec.num_tasks("worker"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.to_thread.run_sync(loopback.server.until, lambda: len(sizes_read(loopback)) >= 1)
        loopback.server.add_controllers(stateful_set(3))
        loopback.server.add(train_pod("train-1"))
        await anyio.to_thread.run_sync(loopback.server.until, lambda: len(sizes_read(loopback)) >= 2)
        loopback.server.add(train_pod("train-2"))
    assert found == [3]


async def test_smaller_size_completes_a_wait_without_a_change_of_the_pods(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(2))
    loopback.server.add(train_pod("train-0"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(resolver_of(loopback, size_interval=0.05).wait, timeout=60))
        await anyio.to_thread.run_sync(loopback.server.until, lambda: len(sizes_read(loopback)) > 1)
        loopback.server.add_controllers(stateful_set(1))


async def test_controller_that_cannot_be_read_again_keeps_its_size(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(2))
    loopback.server.add(train_pod("train-0"))
    async with aclosing(resolver_of(loopback, size_interval=0.05).observations(sizes=True)) as observations:
        while (await anext(observations)).state is None:
            pass
        loopback.server.inject(Answer(403), times=None, match=is_controller_read)
        number = len(sizes_read(loopback))
        while len(sizes_read(loopback)) < number + 2:
            assert (await anext(observations)).expected["worker"].number == 2


async def test_controller_that_may_not_be_read_changes_nothing(loopback: Loopback) -> None:
    loopback.server.add(train_pod("train-0"))
    for status in (403, 404):
        loopback.server.inject(Answer(status), match=is_controller_read)
        assert (await resolver_of(loopback).wait(timeout=30)).spec.num_tasks("worker") == 1


async def test_controller_is_read_again_after_a_failure_of_the_server(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(1))
    loopback.server.inject(Answer(503, headers={"Retry-After": "3600"}), match=is_controller_read)
    loopback.server.add(train_pod("train-0"))
    overloaded = pytest.raises(APIError, match="503 for StatefulSet ml/train: the server is overloaded")
    with anyio.fail_after(30), overloaded:  # at once: the server requests a longer wait
        await resolver_of(loopback).observe(Want(sizes=True), Progress())
    loopback.server.forget_requests()
    loopback.server.inject(Answer(503), match=is_controller_read)
    observations = resolver_of(loopback).observations(sizes=True)
    assert (await anext(observations)).expected["worker"].number == 1
    assert len(sizes_read(loopback)) == 2
    await observations.aclose()
