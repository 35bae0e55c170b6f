"""Which source describes the cluster of this process: each source, their order, and what cannot be used."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aioresolve
from aioresolve import (
    GCEClusterResolver,
    KubernetesClusterResolver,
    SageMakerClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    sync,
)
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    DeadlineExceededError,
    ForbiddenError,
    PartialClusterError,
    ResolveError,
    TaskIdentityError,
)
from aioresolve.testing import (
    Answer,
    GoogleServer,
    Hang,
    KubernetesServer,
    ThreadedKubernetesServer,
    instance,
    pod,
    tpu_vm,
)

TF_CONFIG = json.dumps(
    {
        "cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:1"], "ps": ["10.0.0.3:1"]},
        "task": {"type": "worker", "index": 1},
    }
)
SLURM = {
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
NAMES = "TF_CONFIG, Slurm, SageMaker, TPU variables, TPU VM, Kubernetes, Compute Engine, Launcher"
SOURCES = NAMES.split(", ")
"""In the order of precedence."""

SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-2"}
GKE_TPU = {"TPU_WORKER_HOSTNAMES": "t-0.t,t-1.t", "TPU_WORKER_ID": "1"}


@pytest.fixture(autouse=True)
def _no_vm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(tmp_path / "serviceaccount"))
    monkeypatch.setattr("aioresolve.kubernetes.own_pod.LOOKUP_INTERVAL", 0.01)
    monkeypatch.setattr("aioresolve.environment.detection.PRODUCT_FILE", tmp_path / "product_name")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedKubernetesServer]:
    """The API server of the cluster in which this process is a pod; its address there is 127.0.0.1."""
    with KubernetesServer(tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        for name, value in server.in_cluster(tmp_path / "serviceaccount", namespace="ml").items():
            monkeypatch.setenv(name, value)
        yield server


def add_job(cluster: ThreadedKubernetesServer, **more: str) -> None:
    for index in range(2):
        labels = {
            "batch.kubernetes.io/job-name": "train",
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        ip = f"127.0.0.{index + 1}"
        cluster.add(pod(f"train-{index}", "ml", labels={**labels, **more}, ip=ip))


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def reasons(detected: Any) -> dict[str, str]:
    return {each.source: each.reason for each in detected.evidence}


def found(detected: Any) -> list[str]:
    return [each.source for each in detected.evidence if each.found]


# Each source


@pytest.mark.parametrize(
    ("variables", "source", "kind", "reason"),
    [
        (
            *({"TF_CONFIG": TF_CONFIG}, "TF_CONFIG", TFConfigClusterResolver),
            "$TF_CONFIG has 2 tasks of worker, 1 task of ps",
        ),
        (SLURM, "Slurm", SlurmClusterResolver, "$SLURM_STEP_NODELIST has 2 tasks; this is task 1"),
        (SAGEMAKER, "SageMaker", SageMakerClusterResolver, "$SM_HOSTS has 2 hosts"),
        (GKE_TPU, "TPU variables", TPUClusterResolver, "$TPU_WORKER_HOSTNAMES has 2 workers"),
        ({"TPU_NAME": "my-tpu"}, "TPU variables", TPUClusterResolver, "$TPU_NAME names my-tpu"),
    ],
)
async def test_variables_describe_the_cluster(
    variables: dict[str, str], source: str, kind: type, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_all(monkeypatch, variables)
    detected = await aioresolve.detect()
    assert (detected.source, type(detected.resolver)) == (source, kind)
    assert reasons(detected)[source] == reason
    assert [each.source for each in detected.evidence] == SOURCES
    assert found(detected) == [source]
    assert reasons(detected)["Kubernetes"] == f"not requested, because of {source}"
    if source != "TPU variables":
        assert (await detected.resolver.this_task()).index == 1


async def test_tpu_vm_is_described_by_its_metadata_server(google: GoogleServer) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"], worker=1))
    detected = await aioresolve.detect()
    assert (detected.source, type(detected.resolver)) == ("TPU VM", TPUClusterResolver)
    reason = "the metadata server reports TPU my-tpu with 2 workers"
    (evidence,) = [each for each in detected.evidence if each.found]
    assert repr(evidence) == f"Evidence(source='TPU VM', found=True, reason='{reason}')"
    assert (await detected.resolver.cluster_spec()).num_tasks("worker") == 2


async def test_one_attribute_of_a_tpu_vm_is_sufficient(google: GoogleServer) -> None:
    reported = {"tpu-env": "a name with 2 workers", "worker-network-endpoints": "my-tpu with 1 worker"}
    for lacking, tpu in reported.items():
        google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"]))
        del google.metadata[f"instance/attributes/{lacking}"]
        assert reasons(await aioresolve.detect())["TPU VM"].endswith(tpu)


async def test_instance_group_does_not_hide_that_a_tpu_vm_is_of_one_slice(
    google: GoogleServer,
) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1"]))
    google.metadata["instance/attributes/tpu-env"] += "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
    detected = await aioresolve.detect()
    assert (detected.source, reasons(detected)["TPU VM"][-19:]) == ("TPU VM", "one slice of 2 only")
    google.metadata["instance/attributes/created-by"] = "projects/p/zones/z/instanceGroupManagers/g"
    with pytest.raises(PartialClusterError, match="slice 1 of 2"):
        await (await aioresolve.detect()).resolver.cluster_spec()


async def test_vm_that_something_else_created_is_not_in_a_group(google: GoogleServer) -> None:
    google.metadata["instance/attributes/created-by"] = "projects/p/locations/l/jobs/j"
    with pytest.raises(ConfigurationError, match="was not created by a managed instance group"):
        await aioresolve.detect()
    google.metadata["instance/attributes/tpu-env"] = "nonsense"
    with pytest.raises(ResolveError, match="tpu-env"):
        await aioresolve.detect()


async def test_vm_of_a_managed_group_is_described_by_the_group(google: GoogleServer) -> None:
    group = "projects/demo-project/zones/us-central2-b/instanceGroupManagers/workers"
    google.metadata["instance/attributes/created-by"] = group
    google.add(instance("vm-0"))
    google.instance_groups["workers"] = ["vm-0"]
    detected = await aioresolve.detect()
    assert (detected.source, type(detected.resolver)) == ("Compute Engine", GCEClusterResolver)
    assert (await detected.resolver.cluster_spec()).jobs == ["worker"]
    assert (await ports(), await ports(1234)) == ({"8470"}, {"1234"})


async def test_pod_is_described_by_the_pods_of_its_workload(
    cluster: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_job(cluster)
    detected = await aioresolve.detect()
    assert (detected.source, type(detected.resolver)) == ("Kubernetes", KubernetesClusterResolver)
    assert reasons(detected)["Kubernetes"] == "pod ml/train-0 belongs to Job 'train'"
    assert "that of its node" in reasons(detected)["Compute Engine"]
    assert (await ports(), await ports(1234)) == ({"8470"}, {"1234"})
    monkeypatch.setenv("POD_NAME", "train-1")
    assert (await detected.resolver.this_task()).index == 1


async def test_pods_of_a_selector_need_no_workload(
    cluster: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add(*(pod(f"w-{n}", "ml", labels={"app": "w"}, ip=f"127.0.0.{n + 1}") for n in range(2)))
    with pytest.raises(ConfigurationError, match="pod ml/w-0 does not belong to a workload"):
        await aioresolve.detect()
    monkeypatch.setenv("AIORESOLVE_SELECTOR", "app=w")
    detected = await aioresolve.detect()
    assert (await detected.resolver.cluster_spec()).num_tasks("worker") == 2


@pytest.mark.parametrize(
    ("rank", "size", "local_size", "is_task"),
    [(1, 2, 1, True), (0, 2, 1, False), (2, 4, 2, False), (1, 2, 2, False), (1, 3, 1, False)],
)
async def test_process_of_torchrun_in_a_pod_is_a_task_only_if_both_have_the_same_numbers(
    rank: int,
    size: int,
    local_size: int,
    is_task: bool,
    cluster: ThreadedKubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_job(cluster)
    set_all(monkeypatch, {"TORCHELASTIC_RUN_ID": "7", "RANK": str(rank), "WORLD_SIZE": str(size)})
    set_all(monkeypatch, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(local_size), "POD_NAME": "train-1"})
    detected = await aioresolve.detect()
    assert found(detected) == ["Kubernetes", "Launcher"]
    process = f"process {rank} of {size} of torchrun ($RANK and $WORLD_SIZE)"
    assert process in reasons(detected)["Launcher"]
    if is_task:
        assert (await detected.resolver.this_task()).rank == rank
        return
    with pytest.raises(TaskIdentityError) as raised:
        await detected.resolver.this_task()
    assert process in raised.value.summary
    assert "/job:worker/task:1, rank 1 of 2" in raised.value.summary


# The port


async def ports(port: int | None = None) -> set[str]:
    """Return the ports of the tasks of the detected cluster."""
    spec = await (await aioresolve.detect(port=port)).resolver.cluster_spec()
    return {task.address.rpartition(":")[2] for task in spec.tasks}


async def test_port_is_used_where_the_variables_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, default, given in (
        ({"TF_CONFIG": TF_CONFIG}, "1", "1"),
        (GKE_TPU, "8470", "8470"),
        (SLURM, "8888", "1234"),
        (SAGEMAKER, "2223", "1234"),
    ):
        with monkeypatch.context() as patch:
            set_all(patch, variables)
            assert (await ports(), await ports(1234)) == ({default}, {given})
    with pytest.raises(ConfigurationError, match="port"):
        await aioresolve.detect(port=65536)


# Precedence


async def test_what_is_set_for_the_process_precedes_what_describes_its_machine(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"]))
    google.metadata["instance/attributes/created-by"] = "projects/p/zones/z/instanceGroupManagers/g"
    set_all(monkeypatch, {"TF_CONFIG": TF_CONFIG, **SLURM, **SAGEMAKER, **GKE_TPU})
    order = []
    for variables in (["TF_CONFIG"], SLURM, SAGEMAKER, GKE_TPU):
        order.append((await aioresolve.detect()).source)
        for name in variables:
            monkeypatch.delenv(name)
    order.append((await aioresolve.detect()).source)
    assert order == ["TF_CONFIG", "Slurm", "SageMaker", "TPU variables", "TPU VM"]


# TPU pods: all of a workload choose the same source

LWS = "leaderworkerset.sigs.k8s.io"
JOBSET = "jobset.sigs.k8s.io"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def group(number: int, index: int) -> dict[str, str]:
    return {f"{LWS}/name": "serve", f"{LWS}/group-index": str(number), f"{LWS}/worker-index": str(index)}


def jobset(job: int, index: int, *, replicas: int = 2) -> dict[str, str]:
    return {
        f"{JOBSET}/jobset-name": "run",
        f"{JOBSET}/replicatedjob-name": "slice",
        f"{JOBSET}/replicatedjob-replicas": str(replicas),
        f"{JOBSET}/job-index": str(job),
        "batch.kubernetes.io/job-name": f"run-slice-{job}",
        COMPLETION_INDEX: str(index),
    }


def tpu(worker_id: int, *hosts: str, **more: str) -> dict[str, str]:
    return {"TPU_WORKER_HOSTNAMES": ",".join(hosts), "TPU_WORKER_ID": str(worker_id), **more}


def multislice(index: int) -> dict[str, str]:
    return {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": str(index),
        "MEGASCALE_COORDINATOR_ADDRESS": "run-slice-0-0.run",
    }


SERVE = ("serve-0-1.serve", "serve-0-2.serve")
RUN = [(f"run-slice-{job}-0.run", f"run-slice-{job}-1.run") for job in range(2)]

WORKLOADS: dict[str, list[tuple[dict[str, str], dict[str, str]]]] = {
    "a leader without a TPU": [
        (group(0, 0), {}),
        (group(0, 1), tpu(0, *SERVE, TPU_NAME="serve-0", LWS_GROUP_SIZE="3")),
        (group(0, 2), tpu(1, *SERVE, TPU_NAME="serve-0", LWS_GROUP_SIZE="3")),
    ],
    "a leader without a TPU that has the variables": [
        (group(1, 0), tpu(-1, *SERVE)),
        (group(1, 1), tpu(0, *SERVE)),
        (group(1, 2), tpu(1, *SERVE)),
    ],
    "a multislice": [
        (jobset(job, index), tpu(index, *RUN[job], JOB_COMPLETION_INDEX=str(index), **multislice(job)))
        for job in range(2)
        for index in range(2)
    ],
    "one host for each pod, and a name in some": [
        (jobset(0, 0, replicas=1), tpu(0, "localhost", TPU_NAME="slice-0")),
        (jobset(0, 1, replicas=1), tpu(0, "localhost")),
        (jobset(0, 2, replicas=1), {"TPU_NAME": "slice-2"}),
    ],
}


@pytest.mark.parametrize("name", WORKLOADS)
async def test_pods_of_a_workload_have_one_cluster_whatever_their_tpu_variables(
    name: str, cluster: ThreadedKubernetesServer
) -> None:
    pods = WORKLOADS[name]
    names = [f"p-{-number % len(pods)}" for number in range(len(pods))]  # in another order than the tasks
    for number, (labels, _) in enumerate(pods):
        cluster.add(pod(names[number], "ml", labels=labels, ip=f"127.0.0.{number + 1}"))
    other = group(7, 0) | {f"{LWS}/name": "other"}
    cluster.add(pod("other", "ml", labels=other, ip="127.0.1.1"))
    found = []
    for number, (_, variables) in enumerate(pods):
        with pytest.MonkeyPatch.context() as monkeypatch:
            set_all(monkeypatch, {**variables, "POD_NAME": names[number]})
            detected = await aioresolve.detect()
            state = await detected.resolver.cluster_state()
            found.append((detected.source, await detected.resolver.this_task(state), state.spec))
    assert {source for source, _, _ in found} == {"Kubernetes"}
    assert [(task.rank, task.num_tasks) for _, task, _ in found] == [(n, len(pods)) for n in range(len(pods))]
    assert len({str(spec) for _, _, spec in found}) == 1


JOB = {"batch.kubernetes.io/job-name": "train"}
PROCESSES = "serve-0.serve:8476,serve-0.serve:8477,serve-0-1.serve:8476,serve-0-1.serve:8477"


@pytest.mark.parametrize(
    ("labels", "variables", "reason"),
    [
        (group(0, 0), {"LWS_GROUP_SIZE": "2"}, None),
        (group(0, 0), {"LWS_GROUP_SIZE": "3"}, r"on 2 hosts, but \$LWS_GROUP_SIZE=3"),
        (jobset(0, 0, replicas=1), {}, None),
        (JOB, {}, None),
        (jobset(0, 0), {}, "whose pods run several processes each"),
    ],
)
async def test_processes_that_share_a_pod_are_counted_by_the_tpu_variables(
    labels: dict[str, str],
    variables: dict[str, str],
    reason: str | None,
    cluster: ThreadedKubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster.add(pod("p-0", "ml", labels=labels, ip="127.0.0.1"))
    set_all(monkeypatch, {"TPU_PROCESS_ADDRESSES": PROCESSES, "TPU_WORKER_ID": "1", **variables})
    if reason is not None:
        with pytest.raises(ConfigurationError, match=reason):
            await aioresolve.detect()
        return
    detected = await aioresolve.detect()
    assert (detected.source, found(detected)) == ("TPU variables", ["TPU variables", "Kubernetes"])
    task = await detected.resolver.this_task()
    assert (task.rank, task.num_tasks) == (1, 4)


@pytest.mark.parametrize(
    ("labels", "size", "variables", "is_whole"),
    [
        (jobset(1, 1), None, {}, True),
        (jobset(1, 1), None, {"AIORESOLVE_SELECTOR": "app=train"}, True),
        (jobset(0, 1, replicas=1), None, {}, False),
        (JOB, None, {}, False),
        (JOB, None, {"AIORESOLVE_SELECTOR": "app=train"}, True),
        (group(0, 3), "4", {}, True),
        (group(1, 1), "2", {}, False),
        (jobset(1, 1), None, {"TPU_PROCESS_ADDRESSES": PROCESSES}, False),
    ],
)
async def test_workload_that_is_only_one_slice_of_several_is_not_the_cluster(
    labels: dict[str, str],
    size: str | None,
    variables: dict[str, str],
    is_whole: bool,
    cluster: ThreadedKubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    annotations = {} if size is None else {f"{LWS}/size": size}
    own = pod("p-0", "ml", labels=labels | {"app": "train"}, annotations=annotations, ip="127.0.0.1")
    cluster.add(own)
    set_all(monkeypatch, {**tpu(1, "serve-0.serve", "serve-0-1.serve"), **multislice(1), **variables})
    detected = await aioresolve.detect()
    assert detected.source == ("Kubernetes" if is_whole else "TPU variables")
    if not is_whole:
        with pytest.raises(PartialClusterError, match="slice 1 of 2"):
            await detected.resolver.cluster_spec()


@pytest.mark.parametrize("may_list_pods", [False, None], ids=["forbidden", "without a service account"])
@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (tpu(1, "t-0.t", "t-1.t"), None),
        (tpu(0, "localhost", **multislice(1)), "slice 1 of 2"),
        (tpu(0, *SERVE, LWS_GROUP_SIZE="4", **multislice(1)), "slice 1 of 2"),
        (tpu(1, "t-0.t", "t-1.t", LWS_GROUP_SIZE="2"), None),
        (tpu(0, *SERVE, LWS_GROUP_SIZE="3"), r"on 2 hosts, but \$LWS_GROUP_SIZE=3"),
        (tpu(-1, *SERVE), r"without this process: \$TPU_WORKER_ID=-1"),
        (tpu(0, "localhost"), "1 worker, this host only"),
        ({"TPU_NAME": "slice-0"}, "need not be the name of a Cloud TPU"),
    ],
)
async def test_tpu_variables_are_used_without_permission_only_if_they_can_be_the_whole_cluster(
    variables: dict[str, str],
    reason: str | None,
    may_list_pods: bool | None,
    cluster: ThreadedKubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cluster.allow = {}
    if may_list_pods is None:
        monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(tmp_path / "none"))
    set_all(monkeypatch, variables)
    if "MEGASCALE_NUM_SLICES" in variables:
        detected = await aioresolve.detect()
        assert f", of {reason} only" in reasons(detected)["TPU variables"]
        with pytest.raises(PartialClusterError, match=reason):
            await detected.resolver.cluster_spec()
    elif reason is None:
        detected = await aioresolve.detect()
        task = await detected.resolver.this_task()
        assert (detected.source, task.rank, task.num_tasks) == ("TPU variables", 1, 2)
    elif may_list_pods is None:
        with pytest.raises(ConfigurationError, match=reason) as raised:
            await aioresolve.detect()
        assert "this is a pod, but" in raised.value.summary
    else:
        with pytest.raises(ForbiddenError):
            await aioresolve.detect()


RAY = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "ray", "controller": True}


async def test_tpu_pod_without_a_workload_is_described_by_variables_that_can_be_the_whole_cluster(
    cluster: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add(pod("worker", "ml", ip="127.0.0.1"))
    set_all(monkeypatch, tpu(0, "localhost"))
    assert (await aioresolve.detect()).source == "TPU variables"
    owned = cluster.pod("worker", "ml")
    owned["metadata"]["ownerReferences"] = [RAY]
    cluster.add(owned)
    with pytest.raises(ConfigurationError, match="this host only; pod ml/worker does not belong"):
        await aioresolve.detect()
    set_all(monkeypatch, tpu(1, "g-0-0.ray-headless", "g-0-1.ray-headless", TPU_NAME="g-0"))
    assert (await aioresolve.detect()).source == "TPU variables"
    cluster.delete("worker", "ml")
    with pytest.raises(ResolveError, match="the pod of this process was not found"):
        await aioresolve.detect()


async def test_variables_of_one_host_contradict_a_vm_of_several(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"]))
    set_all(monkeypatch, tpu(0, "localhost"))
    with pytest.raises(
        ConfigurationError, match=r"this host only, but the metadata server .* with 2 workers"
    ):
        await aioresolve.detect()
    google.metadata.update(tpu_vm(hosts=["10.0.0.1"]))
    assert (await aioresolve.detect()).source == "TPU VM"


async def test_variable_without_a_cluster_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {"TF_CONFIG": "{}", "TPU_NAME": "local", "SM_HOSTS": "[]", "SLURM_JOB_ID": "7"})
    with pytest.raises(ConfigurationError, match="nothing describes the cluster of this process"):
        await aioresolve.detect()


# Errors


async def test_nothing_found_is_an_error_that_lists_all_sources() -> None:
    with pytest.raises(ConfigurationError) as raised:
        await aioresolve.detect()
    message = str(raised.value)
    assert all(f"{source}: " in message for source in SOURCES)
    assert "$TF_CONFIG is not set" in message
    assert "$KUBERNETES_SERVICE_HOST is not set" in message


async def test_malformed_variable_is_an_error_unless_another_source_precedes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    malformed = {"TPU_WORKER_ID": "x", "SM_HOSTS": "algo-1", "SLURM_STEP_NODELIST": "n[1-", "TF_CONFIG": "{"}
    set_all(monkeypatch, GKE_TPU)
    for variable, value in malformed.items():
        monkeypatch.setenv(variable, value)
        with pytest.raises(ConfigurationError, match=rf"^\${variable}\b"):
            await aioresolve.detect()
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG)
    detected = await aioresolve.detect()
    assert detected.source == "TF_CONFIG"
    assert found(detected) == ["TF_CONFIG", "Slurm", "SageMaker", "TPU variables"]


async def test_machine_without_a_metadata_server_is_detected_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.environment.detection.ABSENT_TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(
            "aioresolve.gcp.metadata_server.DEFAULT_HOST", f"127.0.0.1:{silent.getsockname()[1]}"
        )
        with pytest.raises(ConfigurationError, match=r"no metadata server responded within 0\.1 s"):
            await aioresolve.detect(timeout=300)


async def test_vm_of_google_cloud_waits_for_its_metadata_server(
    google: GoogleServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", google.metadata_host)
    monkeypatch.setattr("aioresolve.environment.detection.ABSENT_TIMEOUT", 0.0)
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_IP"):
        monkeypatch.delenv(name)
    google.metadata.update(tpu_vm(hosts=["10.0.0.1"]))
    with pytest.raises(ConfigurationError):
        await aioresolve.detect()
    (tmp_path / "product_name").write_text("Google Compute Engine\n")
    assert (await aioresolve.detect()).source == "TPU VM"


@pytest.mark.parametrize(("status", "error"), [(503, APIError), (403, ConfigurationError)])
async def test_metadata_server_is_an_error_only_if_it_fails_for_a_while(
    status: int, error: type[ResolveError], google: GoogleServer
) -> None:
    later = {"Metadata-Flavor": "Google", "Retry-After": "3600"}
    google.inject(Answer(status, headers=later), times=None)
    with pytest.raises(error, match=f"returned status {status}"):
        await aioresolve.detect()


async def test_detection_ends_by_its_deadline(google: GoogleServer) -> None:
    google.inject(Hang(), times=100)
    with pytest.raises(DeadlineExceededError):
        await aioresolve.detect(timeout=0.1)


# Doctor


async def test_doctor_of_a_bare_machine_finds_nothing_and_no_failure() -> None:
    checks = await aioresolve.doctor(check_timeout=60, timeout=60)
    assert {check.result for check in checks} == {"ok"}
    found = {check.name: check.found for check in checks}
    assert list(found) == ["versions", "this process"]
    assert found["versions"].startswith(f"aioresolve {aioresolve.__version__}, CPython 3")
    assert ", aiohttp 3." in found["versions"]
    assert found["this process"] == "nothing describes the cluster of this process"


async def test_doctor_reports_what_describes_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG)
    _, check = await aioresolve.doctor(check_timeout=60, timeout=60)
    assert (check.result, check.found[:43]) == ("ok", "is part of the cluster of TF_CONFIG: $TF_CO")
    monkeypatch.setenv("TF_CONFIG", "{")
    _, check = await aioresolve.doctor(check_timeout=60, timeout=60)
    assert (check.result, check.found[:22]) == ("failed", "$TF_CONFIG is not JSON")


# Blocking code


def test_blocking_detection_returns_the_blocking_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG)
    detected = sync.detect()
    assert (detected.source, type(detected.resolver)) == ("TF_CONFIG", sync.TFConfigClusterResolver)
    assert detected.resolver.this_task().index == 1


def test_detection_does_not_change_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**SLURM, "SLURM_STEP_GPUS": "0,1"})
    before = dict(os.environ)
    sync.detect().resolver.cluster_spec()
    assert dict(os.environ) == before
