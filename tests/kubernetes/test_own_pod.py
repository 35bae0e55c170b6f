"""The pod that this process runs in, and the workload that the pod belongs to."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from aioresolve._core.deadline import Progress
from aioresolve.errors import CredentialsError, TaskIdentityError
from aioresolve.kubernetes import Pod, own_pod
from aioresolve.kubernetes.own_pod import Workload, fetch_own_pod, own_address, workload_of
from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer, pod

from .kubeconfigs import isolate
from .samples import labelled
from .samples import pod as sample

JOB, OLD_JOB = "batch.kubernetes.io/job-name", "job-name"
JOBSET, REPLICATED_JOB = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name"
LWS, GROUP = "leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"
REVISION = "controller-revision-hash"
KUBEFLOW, OPERATOR = "training.kubeflow.org/job-name", "training.kubeflow.org/operator-name"
ROLE = "training.kubeflow.org/job-role"
VOLCANO = "volcano.sh/job-name"


def of_stateful_set(labels: dict[str, str], *, controller: bool = True) -> Pod:
    owner = {"kind": "StatefulSet", "name": "train", "controller": controller}
    return sample("train-0", metadata={"labels": labels, "ownerReferences": [owner]})


def of_kubeflow(*, owner_version: str = "kubeflow.org/v1", kind: str = "PyTorchJob") -> Pod:
    owner = {"apiVersion": owner_version, "kind": kind, "name": "torch", "controller": True}
    return sample("torch-0", metadata={"labels": {KUBEFLOW: "torch"}, "ownerReferences": [owner]})


@pytest.mark.parametrize(
    ("found", "workload"),
    [
        (labelled("a", **{JOB: "train", OLD_JOB: "train"}), Workload("Job", "train", f"{JOB}=train")),
        (labelled("a", **{OLD_JOB: "train"}), Workload("Job", "train", f"{OLD_JOB}=train")),
        (
            labelled("a", **{JOBSET: "set", REPLICATED_JOB: "workers", JOB: "set-workers-0"}),
            Workload("JobSet", "set", f"{JOBSET}=set,{REPLICATED_JOB}=workers"),
        ),
        (
            labelled("serve-1", **{LWS: "serve", GROUP: "1", REVISION: "serve-1-abc"}),
            Workload("LeaderWorkerSet", "serve", f"{LWS}=serve,{GROUP}=1"),
        ),
        (
            of_stateful_set({REVISION: "train-5d4f"}),
            Workload("StatefulSet", "train", f"{REVISION}=train-5d4f"),
        ),
        (
            labelled("a", **{KUBEFLOW: "torch", "training.kubeflow.org/replica-type": "master"}),
            Workload("Kubeflow job", "torch", f"{KUBEFLOW}=torch"),
        ),
        (
            labelled(
                "a", **{KUBEFLOW: "mpi", OPERATOR: "mpi-operator", ROLE: "launcher", JOB: "mpi-launcher"}
            ),
            Workload("MPIJob", "mpi", f"{KUBEFLOW}=mpi,{ROLE}!=launcher"),
        ),
        (
            of_kubeflow(owner_version="batch/v1", kind="Job"),
            Workload("Kubeflow job", "torch", f"{KUBEFLOW}=torch"),
        ),
        (of_kubeflow(), Workload("PyTorchJob", "torch", f"{KUBEFLOW}=torch")),
        (labelled("a", **{VOLCANO: "v"}), Workload("Volcano Job", "v", f"{VOLCANO}=v")),
        (of_stateful_set({REVISION: "train-5d4f"}, controller=False), None),
        (of_stateful_set({}), None),
        (labelled("a", **{LWS: "serve"}), None),
        (labelled("a", app="train"), None),
    ],
)
def test_labels_give_the_workload(found: Pod, workload: Workload | None) -> None:
    assert workload_of(found) == workload


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedKubernetesServer]:
    """The API server of the cluster in which this process is a pod; its address there is 127.0.0.1."""
    isolate(tmp_path, monkeypatch)
    monkeypatch.setattr(own_pod, "LOOKUP_INTERVAL", 0.01)
    with KubernetesServer(tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        for name, value in server.in_cluster(tmp_path / "serviceaccount", namespace="ml").items():
            monkeypatch.setenv(name, value)
        yield server


async def test_own_pod_is_found_by_its_name_unless_it_was_replaced(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(pod("train-0", "ml"), pod("train-1", "ml"), pod("train-1", "other"))
    monkeypatch.setenv("POD_NAME", "train-1")
    assert (await fetch_own_pod(Progress())).full_name == "ml/train-1"
    monkeypatch.setenv("POD_UID", "an-earlier-uid")
    with pytest.raises(TaskIdentityError, match=r"pod 'train-1' of .* with the uid .* matches no pod"):
        await fetch_own_pod(Progress())
    assert len(server.requests) == 2


async def test_own_pod_is_found_by_its_address_while_others_are_not(server: ThreadedKubernetesServer) -> None:
    server.add(
        pod("train-0", "ml", ip="127.0.0.1"),
        pod("train-1", "ml", ip="127.0.0.2"),
        pod("finished", "ml", ip="127.0.0.1", phase="Succeeded"),
        pod("train-0", "other", ip="127.0.0.1"),
    )
    assert (await fetch_own_pod(Progress())).full_name == "ml/train-0"


async def test_own_pod_is_looked_up_again_until_the_kubelet_has_reported_its_address(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(pod("train-0", "ml", ip=None, phase="Pending"))

    async def sleep(seconds: float) -> None:
        server.add(pod("train-0", "ml", ip="127.0.0.1"))

    monkeypatch.setattr("aioresolve.kubernetes.own_pod.anyio.sleep", sleep)
    assert (await fetch_own_pod(Progress())).full_name == "ml/train-0"
    assert len(server.requests) == 2


async def test_uid_decides_between_pods_with_the_address_of_a_node(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(pod("train-0", "ml", ip="127.0.0.1"), pod("train-1", "ml", ip="127.0.0.1"))
    with pytest.raises(TaskIdentityError, match=r"127\.0\.0\.1 .* matches 2 pods\. Let the pod") as caught:
        await fetch_own_pod(Progress())
    assert list(caught.value.candidates) == ["ml/train-0", "ml/train-1"]
    assert len(server.requests) == 1  # more lookups would not help
    monkeypatch.setenv("POD_UID", server.pod("train-1", "ml")["metadata"]["uid"])
    assert (await fetch_own_pod(Progress())).full_name == "ml/train-1"


async def test_completion_index_decides_between_pods_with_the_address_of_a_node(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(*(pod(f"train-{index}", "ml", ip="127.0.0.1", index=index) for index in range(2)))
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    assert (await fetch_own_pod(Progress())).full_name == "ml/train-1"
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
    monkeypatch.setenv("POD_UID", "u")
    message = r"uid 'u' of \$POD_UID with the index 2 of \$JOB_COMPLETION_INDEX matches no pod"
    with pytest.raises(TaskIdentityError, match=message):
        await fetch_own_pod(Progress())


async def test_address_that_no_pod_has_is_an_error(server: ThreadedKubernetesServer) -> None:
    with pytest.raises(TaskIdentityError, match=r"127\.0\.0\.1 of namespace 'ml' matches no pod"):
        await fetch_own_pod(Progress())
    assert len(server.requests) == own_pod.LOOKUPS


async def test_outside_of_a_cluster_there_is_no_own_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolate(tmp_path, monkeypatch)
    with pytest.raises(CredentialsError, match="KUBERNETES_SERVICE_HOST is not set"):
        await fetch_own_pod(Progress())


async def test_error_for_a_server_that_is_not_found_has_the_remedy_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", Mock(side_effect=OSError("no such host")))
    with pytest.raises(
        TaskIdentityError, match=r"address of this machine .*\(no such host\)\. Do this\."
    ) as caught:
        await own_address("https://api.example:6443", "Do this.")
    assert "POD_NAME" not in str(caught.value)
