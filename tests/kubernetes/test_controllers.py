"""How many pods controllers want: from the pods, and from the object of the controller."""

from __future__ import annotations

import json
import logging
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from aioresolve.errors import IncompleteClusterError
from aioresolve.kubernetes.tasks.controllers import (
    MIN_PAUSE,
    Controller,
    Controllers,
    SelectedPods,
    parse_controller,
    pod_set,
)
from aioresolve.spec import ExpectedTasks
from aioresolve.testing import Answer
from aioresolve.testing import pod as pod_document

from . import samples
from .peer_clients import sync_client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aioresolve import KubernetesClusterResolver
    from aioresolve.kubernetes import Pod
    from aioresolve.testing import RequestRecord

    from .loopback import Loopback

LWS, JOBSET = "leaderworkerset.sigs.k8s.io", "jobset.sigs.k8s.io"


def owner(kind: str, name: str, api_version: str) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}


def owned(
    owned_by: dict[str, Any] | None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    metadata: dict[str, Any] = {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
    if owned_by is not None:
        metadata["ownerReferences"] = [owned_by]
    return samples.pod(metadata=metadata)


JOB = owner("Job", "train", "batch/v1")
STATEFUL_SET = owner("StatefulSet", "train", "apps/v1")
RAY = owner("RayCluster", "ray", "ray.io/v1")
VOLCANO = owner("Job", "vc", "batch.volcano.sh/v1alpha1")
MPI = owner("MPIJob", "pi", "kubeflow.org/v2beta1")


def lws_pod(group: int, worker: int, size: int = 4) -> Pod:
    labels = {f"{LWS}/name": "llm", f"{LWS}/group-index": str(group), f"{LWS}/worker-index": str(worker)}
    return owned(STATEFUL_SET, labels, {f"{LWS}/size": str(size)})


def jobset_pod(role: str, job: int, replicas: int = 2, jobset: str = "train") -> Pod:
    labels = {
        f"{JOBSET}/jobset-name": jobset,
        f"{JOBSET}/replicatedjob-name": role,
        f"{JOBSET}/replicatedjob-replicas": str(replicas),
        f"{JOBSET}/job-index": str(job),
    }
    return owned(owner("Job", f"{jobset}-{role}-{job}", "batch/v1"), labels)


def template(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": labels}, "spec": {"containers": []}}


OBJECTS: dict[str, tuple[Pod, dict[str, Any]]] = {
    "indexed Job": (owned(JOB), {"completions": 16, "parallelism": 16}),
    "Job as a work queue": (owned(JOB), {"parallelism": 4}),
    "Job with few workers": (owned(JOB), {"completions": 16, "parallelism": 4}),
    "StatefulSet": (owned(STATEFUL_SET), {"replicas": 5}),
    "ReplicaSet": (owned(owner("ReplicaSet", "train-5d", "apps/v1")), {"replicas": 3}),
    "JobSet": (
        jobset_pod("workers", 0),
        {
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 2,
                    "template": {"spec": {"completions": 4, "parallelism": 4, "template": template(app="t")}},
                },
                {"name": "driver", "template": {"spec": {"template": template()}}},
            ]
        },
    ),
    "LeaderWorkerSet": (
        lws_pod(0, 0),
        {"replicas": 3, "leaderWorkerTemplate": {"size": 4, "workerTemplate": template(app="llm")}},
    ),
    "Volcano Job": (
        owned(VOLCANO, {"volcano.sh/task-spec": "worker"}),
        {
            "tasks": [
                {"name": "master", "replicas": 1, "template": template()},
                {"name": "worker", "replicas": 7, "template": template()},
            ]
        },
    ),
    "RayCluster": (
        owned(RAY, {"ray.io/group": "tpu"}),
        {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [
                {"groupName": "tpu", "replicas": 2, "numOfHosts": 4, "template": template()},
                {"groupName": "cpu", "minReplicas": 1, "template": template()},
            ],
        },
    ),
    "RayCluster that changes its size": (
        owned(RAY, {"ray.io/group": "tpu"}),
        {
            "headGroupSpec": {"template": template()},
            "workerGroupSpecs": [
                {"groupName": "tpu", "replicas": 2, "suspend": True, "template": template()},
                {"groupName": "cpu", "replicas": 5, "maxReplicas": 3, "template": template()},
                {"groupName": "gpu", "replicas": 0, "minReplicas": 2, "template": template()},
            ],
        },
    ),
    "MPIJob": (
        owned(MPI, {"training.kubeflow.org/job-role": "worker"}),
        {
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template()},
                "Worker": {"replicas": 6, "template": template()},
            }
        },
    ),
    "groups that are too large together": (
        lws_pod(0, 0),
        {"replicas": 150_000, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
    ),
    "PyTorchJob": (
        owned(owner("PyTorchJob", "pt", "kubeflow.org/v1"), {"training.kubeflow.org/replica-type": "master"}),
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
    ("indexed Job", "batch.kubernetes.io/job-name=train", 16),
    ("indexed Job", "app=train,batch.kubernetes.io/job-completion-index in (0,1)", None),
    ("Job as a work queue", "app=train", 4),
    ("Job with few workers", "app=train", 4),
    ("StatefulSet", "app in (train, trainer)", 5),
    ("StatefulSet", "apps.kubernetes.io/pod-index!=0", None),
    ("ReplicaSet", "app=train", 3),
    ("JobSet", f"{JOBSET}/jobset-name=train", 9),
    ("JobSet", "app=t", 8),
    ("JobSet", f"{JOBSET}/jobset-name=train,{JOBSET}/replicatedjob-name=workers", 8),
    ("JobSet", f"{JOBSET}/replicatedjob-name=workers,{JOBSET}/job-index=1", 4),
    ("JobSet", f"{JOBSET}/replicatedjob-name=workers,{JOBSET}/job-index in (0, 1)", None),
    ("JobSet", "job-name=train-workers-0", 4),
    ("LeaderWorkerSet", f"{LWS}/name=llm", 12),
    ("LeaderWorkerSet", "app=llm", 12),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/worker-index=0", 3),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/worker-index in (0)", 3),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/worker-index=2", None),
    ("LeaderWorkerSet", f"{LWS}/name=llm,{LWS}/group-index=1", 4),
    ("Volcano Job", "volcano.sh/job-name=vc", 8),
    ("Volcano Job", "volcano.sh/job-name=vc,volcano.sh/task-spec=worker", 7),
    ("RayCluster", "ray.io/cluster=ray", 10),
    ("RayCluster", "ray.io/cluster=ray,ray.io/group=tpu", 8),
    ("RayCluster", "ray.io/group=tpu,ray.io/worker-group-replica-index=1", 4),
    ("RayCluster that changes its size", "ray.io/cluster=ray", 6),
    ("groups that are too large together", f"{LWS}/name=llm", None),
    ("MPIJob", "training.kubeflow.org/job-name=pi", 6),
    ("PyTorchJob", "training.kubeflow.org/job-name=pt", 4),
    ("PyTorchJob", "training.kubeflow.org/job-name=pt,training.kubeflow.org/replica-type=master", 1),
]


def expected(
    sizes: Controllers,
    selector: str,
    *pods: Pod,
    done: Sequence[Pod] = (),
) -> ExpectedTasks | None:
    selected = SelectedPods(
        selector,
        list(dict.fromkeys(pod_set(one) for one in pods)),
        {pod_set(one): done.count(one) for one in done},
    )
    return sizes.expected({"worker": [selected]}).get("worker")


def unread(sizes: Controllers, selector: str, *pods: Pod) -> list[str]:
    selected = SelectedPods(selector, list(dict.fromkeys(pod_set(one) for one in pods)), {})
    return [str(one) for one in sizes.unread({"worker": [selected]})]


def sizes_of(pod: Pod, spec: object) -> Controllers:
    """Return the sizes after the controller of the pod was read."""
    found = pod_set(pod)
    assert found is not None
    body = json.dumps({"spec": spec}).encode()
    return Controllers(objects={found.controller: parse_controller(found.controller, body)})


def test_size_is_that_of_the_pods_that_the_selector_will_match() -> None:
    for name, selector, number in SELECTORS:
        pod, spec = OBJECTS[name]
        found = expected(sizes_of(pod, spec), selector, pod)
        assert (name, selector, found and found.number) == (name, selector, number)


def test_source_names_the_fields_and_the_object() -> None:
    pod, spec = OBJECTS["StatefulSet"]
    found = expected(sizes_of(pod, spec), "app=train", pod)
    assert found == ExpectedTasks(5, "spec.replicas of StatefulSet ml/train")


def test_size_of_one_group_of_a_leader_worker_set_needs_no_request() -> None:
    selector, pod = f"{LWS}/name=llm,{LWS}/group-index=0", lws_pod(0, 0)
    assert unread(Controllers(), selector, pod) == []
    found = expected(Controllers(), selector, pod)
    assert found == ExpectedTasks(4, f"{LWS}/size of the pods")
    found = expected(Controllers(), f"{LWS}/group-index=0", pod)
    assert found == ExpectedTasks(4, f"{LWS}/size of the pods")
    assert expected(Controllers(), f"{LWS}/group-index in (0, 1)", pod) is None


@pytest.mark.parametrize(
    ("selector", "workers", "number"),
    [
        (f"{LWS}/name=llm", [0], 8),
        (f"{LWS}/name=llm", [1], 8),
        ("app=llm", [0, 1], 8),
        ("role=worker", [1, 2], 6),
        (f"{LWS}/worker-index!=0", [1], 6),
        (f"{LWS}/worker-index=0", [0], 2),
        ("role=leader", [0], None),
    ],
)
def test_groups_of_a_leader_worker_set_that_may_not_be_read_must_be_whole(
    selector: str, workers: list[int], number: int | None
) -> None:
    pods = [lws_pod(group, worker) for group in range(2) for worker in workers]
    sizes = Controllers()
    assert unread(sizes, selector, *pods) == ["LeaderWorkerSet ml/llm"]
    sizes.objects[Controller("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "ml", "llm")] = None
    found = expected(sizes, selector, *pods)
    assert (found and found.number) == number


def test_leader_of_a_group_of_one_has_no_workers() -> None:
    for size, number in [(0, None), (1, 1), (2, None)]:
        found = expected(Controllers(), "role=leader", lws_pod(0, 0, size=size))
        assert (found and found.number) == number


def test_leaders_that_the_template_distinguishes_do_not_count_as_workers() -> None:
    leader_worker = {
        "size": 4,
        "leaderTemplate": template(role="leader"),
        "workerTemplate": template(role="worker"),
    }
    spec = {"replicas": 2, "leaderWorkerTemplate": leader_worker}
    found = expected(sizes_of(lws_pod(0, 0), spec), "role=leader", lws_pod(0, 0))
    assert found is not None
    assert found.number == 2


def test_number_that_no_cluster_can_have_is_ignored() -> None:
    for size in ("", "-1", "two", "٣", "9" * 10, "9" * 5000):
        labels, annotations = {f"{LWS}/name": "llm", f"{LWS}/worker-index": "0"}, {f"{LWS}/size": size}
        found = pod_set(owned(STATEFUL_SET, labels, annotations))
        assert found is not None
        assert found.declared is None
    pod = OBJECTS["StatefulSet"][0]
    largest = expected(sizes_of(pod, {"replicas": 200_000}), "app=train", pod)
    assert largest is not None
    assert largest.number == 200_000
    assert expected(sizes_of(pod, {"replicas": 200_001}), "app=train", pod) is None


def test_pod_group_of_kueue_states_its_size() -> None:
    labels, annotations = (
        {"kueue.x-k8s.io/pod-group-name": "g"},
        {"kueue.x-k8s.io/pod-group-total-count": "6"},
    )
    pod = owned(None, labels, annotations)
    assert unread(Controllers(), "app=train", pod) == []
    found = expected(Controllers(), "app=train", pod)
    assert found == ExpectedTasks(6, "kueue.x-k8s.io/pod-group-total-count of the pods")
    invalid = owned(None, labels, {"kueue.x-k8s.io/pod-group-total-count": "many"})
    assert expected(Controllers(), "app=train", invalid) is None
    assert unread(Controllers(), "app=train", invalid) == []
    assert pod_set(owned(None, labels)) is None


def test_jobset_that_may_not_be_read_is_as_large_as_its_jobs() -> None:
    pods, sizes = [jobset_pod("workers", 0), jobset_pod("workers", 1)], Controllers()
    assert unread(sizes, "app=t", *pods) == ["JobSet ml/train"]
    sizes.objects[Controller("jobset.x-k8s.io/v1alpha2", "JobSet", "ml", "train")] = None
    (job,) = sizes.unread({"w": [SelectedPods("app=t", [pod_set(one) for one in pods], {})]})
    assert job.kind == "Job"
    sizes.objects[job] = parse_controller(job, b'{"spec": {"completions": 4, "parallelism": 4}}')
    assert unread(sizes, "app=t", *pods) == []
    found = expected(sizes, "app=t", *pods)
    assert found == ExpectedTasks(8, f"{JOBSET}/replicatedjob-replicas of the pods and their Jobs")
    found = expected(sizes, f"{JOBSET}/replicatedjob-name=workers,{JOBSET}/job-index=1", pods[1])
    assert found is not None
    assert found.number == 4


def test_pods_that_have_succeeded_count_for_the_size() -> None:
    pod, spec = OBJECTS["indexed Job"]
    found = expected(sizes_of(pod, spec), "app=train", pod, done=[pod] * 3)
    assert found == ExpectedTasks(16, "spec.completions and spec.parallelism of Job ml/train", 3)
    others = [samples.pod("bare"), OBJECTS["StatefulSet"][0]]
    found = expected(sizes_of(pod, spec), "app=train", pod, done=others)
    assert found is not None
    assert (found.number, found.done) == (16, 0)


def test_job_with_few_workers_has_as_many_tasks_as_were_started() -> None:
    pod, spec = OBJECTS["Job with few workers"]
    for done, number in [(0, 4), (3, 7), (12, 16), (14, 16)]:
        found = expected(sizes_of(pod, spec), "app=train", pod, done=[pod] * done)
        assert found is not None
        assert (found.number, found.done) == (number, done)


def test_size_is_unknown_as_long_as_one_pod_has_an_unknown_controller() -> None:
    pod, spec = OBJECTS["indexed Job"]
    bare = samples.pod("bare")
    assert pod_set(bare) is None
    assert expected(sizes_of(pod, spec), "app=train", pod, bare) is None
    assert unread(Controllers(), "app=train", pod, bare) == []


def test_controllers_of_one_job_add_up() -> None:
    pods = [OBJECTS["indexed Job"][0], OBJECTS["StatefulSet"][0]]
    read = [sizes_of(*OBJECTS[name]).objects for name in ("indexed Job", "StatefulSet")]
    sizes = Controllers(objects=read[0] | read[1])
    found = expected(sizes, "app=train", *pods)
    assert found is not None
    assert found.number == 21


def test_malformed_object_states_no_size() -> None:
    found = pod_set(OBJECTS["StatefulSet"][0])
    assert found is not None
    for body in (b"", b"[]", b'{"spec": null}', b'{"spec": {"replicas": "many"}}', b"\xff", b"[" * 100_000):
        assert not parse_controller(found.controller, body).roles


# Over real sockets


def train_pod(name: str, **more: Any) -> dict[str, Any]:
    made = pod_document(name, "ml", labels={"app": "train"}, **more)
    made["metadata"]["ownerReferences"] = [STATEFUL_SET]
    return made


def stateful_set(replicas: int) -> dict[str, Any]:
    metadata = {"name": "train", "namespace": "ml"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {"replicas": replicas},
    }


def resolver_of(
    loopback: Loopback, *, size_interval: float = 10.0, **arguments: Any
) -> KubernetesClusterResolver:
    resolver = loopback.resolver(**arguments)
    resolver.watch_policy = samples.watch_policy(size_interval=size_interval)
    return resolver


def sizes_read(loopback: Loopback) -> list[RequestRecord]:
    """Return the requests for controllers so far."""
    return [request for request in loopback.requests if not request.verb]


@pytest.mark.slow
async def test_wait_without_a_number_waits_for_all_pods_that_the_controller_wants(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    loopback.server.add_controllers(stateful_set(2))
    loopback.server.add(train_pod("train-0"))
    with pytest.raises(IncompleteClusterError) as caught:
        await resolver_of(loopback).wait(timeout=2.0)
    assert caught.value.wanted == {"worker": 2}
    assert caught.value.sources == {"worker": "spec.replicas of StatefulSet ml/train"}
    assert "1 of 2 tasks (spec.replicas of StatefulSet ml/train)" in str(caught.value)
    loopback.server.add(train_pod("train-1"))
    with caplog.at_level(logging.INFO, "aioresolve.watch"):
        assert (await resolver_of(loopback).wait(timeout=30)).spec.num_tasks("worker") == 2
    assert "has all 2 tasks of job 'worker' (spec.replicas of StatefulSet ml/train)" in caplog.text


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
            reads.append(sum(not request.verb for request in loopback.requests))
            loopback.server.add(train_pod(f"train-{number}"))
    assert reads == [1, 1, 2]
    paths = {request.path for request in loopback.requests if not request.verb}
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
        await anyio.to_thread.run_sync(loopback.server.until, lambda: len(sizes_read(loopback)) == 1)
        loopback.server.add_controllers(stateful_set(3))
        loopback.server.add(train_pod("train-1"))
        await anyio.to_thread.run_sync(loopback.server.until, lambda: len(sizes_read(loopback)) == 2)
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
        loopback.server.inject(Answer(403), times=None, match=lambda request: not request.verb)
        number = len(sizes_read(loopback))
        while len(sizes_read(loopback)) < number + 2:
            assert (await anext(observations)).expected["worker"].number == 2


@pytest.mark.slow
async def test_client_that_cannot_watch_reads_controllers_with_each_poll(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(2))
    loopback.server.add(train_pod("train-0"))
    with sync_client(loopback) as client:
        resolver = resolver_of(loopback, override_client=client, kubeconfig=None)
        async with aclosing(resolver.observations(sizes=True, interval=0.01)) as observations:
            assert (await anext(observations)).expected["worker"].number == 2
            loopback.server.add_controllers(stateful_set(3))
            with anyio.fail_after(60):
                while (await anext(observations)).expected["worker"].number != 3:
                    pass


async def test_controller_that_may_not_be_read_changes_nothing(loopback: Loopback) -> None:
    loopback.server.add(train_pod("train-0"))
    for status in (403, 404):
        loopback.server.inject(Answer(status), match=lambda request: not request.verb)
        assert (await resolver_of(loopback).wait(timeout=30)).spec.num_tasks("worker") == 1


async def test_controller_is_read_again_after_a_failure_of_the_server(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(1))
    loopback.server.inject(Answer(503), match=lambda request: not request.verb)
    loopback.server.add(train_pod("train-0"))
    observations = resolver_of(loopback).observations(sizes=True)
    assert (await anext(observations)).expected["worker"].number == 1
    await observations.aclose()


async def test_controllers_are_read_only_by_wait_without_a_number(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(1))
    loopback.server.add(train_pod("train-0"))
    resolver = resolver_of(loopback)
    await resolver.cluster_spec()
    await resolver.cluster_state()
    await resolver.wait(1)
    async with aclosing(resolver.observations()) as observations:
        await anext(observations)
    assert all(request.verb for request in loopback.requests)


@pytest.mark.slow
async def test_pods_do_not_count_while_their_controller_cannot_be_read(loopback: Loopback) -> None:
    loopback.server.add_controllers(stateful_set(1))
    refusal = Answer(429, headers={"Retry-After": "60"})
    loopback.server.inject(refusal, times=None, match=lambda request: not request.verb)
    loopback.server.add(train_pod("train-0"))
    with pytest.raises(IncompleteClusterError, match=r"the source: .*429 for StatefulSet ml/train"):
        await resolver_of(loopback).wait(timeout=1.0)


async def test_controller_is_not_read_for_each_pod_that_becomes_ready(loopback: Loopback) -> None:
    names = [f"train-{number}" for number in range(50)]
    loopback.server.add_controllers(stateful_set(len(names)))
    loopback.server.add(*(train_pod(name, ready=False) for name in names))
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    async with anyio.create_task_group() as group:
        group.start_soon(resolver_of(loopback).wait)
        await anyio.to_thread.run_sync(loopback.server.until, lambda: len(sizes_read(loopback)) == 1)
        for name in names:
            loopback.server.patch(name, "ml", patch={"status": ready})
            await anyio.sleep(0.01)  # the watch reports each of them on its own
    times = [request.time for request in sizes_read(loopback)]
    assert 2 <= len(times) <= 2 + (times[-1] - times[0]) / MIN_PAUSE
