"""Where the cluster environment of JAX is present, and what it returns there."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aioresolve import launch
from aioresolve.errors import (
    ConfigurationError,
    FailedClusterError,
    IncompleteClusterError,
    LaunchError,
)
from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer, pod

pytest.importorskip("jax", reason="JAX is not installed")

from jax._src.clusters import cloud_tpu_cluster
from jax._src.clusters.cluster import ClusterEnv

from aioresolve.jax import AioresolveCluster

EXEC = {
    "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8470",
    "JAX_NUM_PROCESSES": "4",
    "JAX_PROCESS_ID": "3",
}
SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "node1",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://10.0.0.9:34911",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}
GKE_TPU = {
    "TPU_SKIP_MDS_QUERY": "true",
    "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.2",
    "TPU_WORKER_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
    "MEGASCALE_NUM_SLICES": "1",
    "MEGASCALE_SLICE_ID": "0",
}

IPS = "127.0.0.1", "10.9.0.2"
"""The address of the pod that this process runs in, and that of another pod."""

JOB = {"batch.kubernetes.io/job-name": "train"}
GROUP = {
    "leaderworkerset.sigs.k8s.io/name": "serve",
    "leaderworkerset.sigs.k8s.io/group-index": "2",
}


@pytest.fixture(autouse=True)
def _no_earlier_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AioresolveCluster, "_found", None)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedKubernetesServer]:
    """The API server of the cluster in which this process is a pod: the one with the address 127.0.0.1."""
    account = tmp_path / "serviceaccount"
    monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(account))
    with KubernetesServer(tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        put(monkeypatch, server.in_cluster(account, namespace="ml"))
        yield server


def put(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def detect(
    address: str | None = None, *, method: str | None = None, timeout: int = 60
) -> tuple[str | None, int | None, int | None]:
    """Return the address, count and id that `jax.distributed.initialize` would use."""
    given = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
    address, count, process_id, _ = ClusterEnv.auto_detect_unset_distributed_params(
        given, None, None, None, method, timeout
    )
    return address, count, process_id


# Presence and precedence


def test_environment_is_present_with_its_variables_only() -> None:
    assert not AioresolveCluster.is_env_present()
    assert detect() == (None, None, None)
    with pytest.MonkeyPatch.context() as patch:
        put(patch, EXEC)
        assert detect() == ("10.0.0.1:8470", 4, 3)


def test_explicit_arguments_resolve_nothing_in_a_pod(server: ThreadedKubernetesServer) -> None:
    found = ClusterEnv.auto_detect_unset_distributed_params("10.0.0.1:1", 4, 3, None, None, 60)
    assert found == ("10.0.0.1:1", 4, 3, None)
    assert not server.requests


def test_variables_of_exec_win_under_other_schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, {**SLURM, **OPEN_MPI, **EXEC})
    for name in launch.VARIABLE_READERS["jax"].cleared:
        monkeypatch.delenv(name, raising=False)
    assert ClusterEnv.auto_detect_unset_distributed_params("n:1", None, None, None, None, 60) == (
        *("n:1", 4, 3),
        None,  # all devices, not the one with the local id of the scheduler
    )


@pytest.mark.parametrize("variables", [SLURM, OPEN_MPI, GKE_TPU], ids=["slurm", "ompi", "tpu"])
def test_other_schedulers_and_tpus_win_in_a_pod(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", "TPU_WORKER_ID" in variables)
    put(monkeypatch, {**variables, "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"})
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    address, count, process_id = detect()
    assert (count, process_id) == (2, 1)
    assert address is not None


def test_it_is_registered_once_and_before_support_for_kubernetes_of_jax() -> None:
    names = [each.__name__ for each in ClusterEnv._cluster_types]
    assert names.count("AioresolveCluster") == 1
    assert names[-2:] == ["AioresolveCluster", "K8sCluster"]


# In pods


def test_pods_of_a_job_are_processes_by_index(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index, ip in ((0, "10.9.0.2"), (1, "127.0.0.1"), (2, "10.9.0.3")):
        server.add(pod(f"train-{'zab'[index]}", "ml", labels=JOB, index=index, ip=ip))
    server.add(pod("other", "ml", labels={"batch.kubernetes.io/job-name": "other"}, index=0))
    monkeypatch.setenv("AIORESOLVE_COUNT", "3")
    assert detect() == ("10.9.0.2:55527", 3, 1)
    monkeypatch.setenv("JAX_COORDINATOR_PORT", "1234")
    assert detect() == ("10.9.0.2:1234", 3, 1)


def job_pod(index: int, ip: str, **more: Any) -> dict[str, Any]:
    """Return a pod of the Job `train`, with a reference to it."""
    built = pod(f"train-{index}", "ml", labels=JOB, index=index, ip=ip, **more)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j", "controller": True}
    built["metadata"]["ownerReferences"] = [reference]
    return built


def job(size: int) -> dict[str, Any]:
    spec = {"completions": size, "parallelism": size, "completionMode": "Indexed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "ml"},
        "spec": spec,
    }


def test_number_of_processes_is_that_of_the_job(server: ThreadedKubernetesServer) -> None:
    server.add_controllers(job(2))
    server.add(job_pod(0, IPS[0]))
    with pytest.raises(IncompleteClusterError, match="1 of 2 tasks"):
        detect(timeout=2)
    server.add(job_pod(1, IPS[1]))
    assert detect() == ("127.0.0.1:55527", 2, 0)


def test_process_that_has_ended_with_success_is_an_error_at_once(server: ThreadedKubernetesServer) -> None:
    server.add_controllers(job(2))
    server.add(job_pod(0, IPS[0]), job_pod(1, IPS[1], phase="Succeeded"))
    with pytest.raises(FailedClusterError, match="ml/train-1: has ended with success"):
        detect(timeout=60)


def test_group_of_a_leader_worker_set_needs_no_variable(server: ThreadedKubernetesServer) -> None:
    for index in range(2):
        server.add(
            pod(
                f"serve-2-{index}",
                "ml",
                labels={**GROUP, "leaderworkerset.sigs.k8s.io/worker-index": str(index)},
                annotations={"leaderworkerset.sigs.k8s.io/size": "2"},
                ip=IPS[index],
            )
        )
    assert detect() == ("127.0.0.1:55527", 2, 0)


# Bad input


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"JAX_NUM_PROCESSES": "4"}, "JAX_COORDINATOR_ADDRESS is not"),
        ({**EXEC, "JAX_PROCESS_ID": "x"}, r"\$JAX_PROCESS_ID is 'x', not a number from 0.* or start"),
        ({**EXEC, "JAX_NUM_PROCESSES": ""}, r"\$JAX_NUM_PROCESSES is not set"),
    ],
)
def test_invalid_variable_of_exec_is_named(
    variables: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, variables)
    with pytest.raises(ConfigurationError, match=problem):
        detect()


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({}, r"the number of processes is not known \(pod ml/train-0 .* Job 'train'.*Set AIORESOLVE_COUNT"),
        ({"AIORESOLVE_SELECTOR": "app=x"}, r"is not known \(.* \$AIORESOLVE_SELECTOR is 'app=x'\)"),
        ({"AIORESOLVE_COUNT": "many"}, r"\$AIORESOLVE_COUNT is 'many', not a .* Correct AIORESOLVE_COUNT\.$"),
        (
            {"AIORESOLVE_COUNT": "2", "JAX_COORDINATOR_PORT": "99999"},
            r"\$JAX_COORDINATOR_PORT is '99999', not a number from 1 to 65535",
        ),
    ],
)
def test_missing_or_invalid_variable_in_a_pod_is_named(
    server: ThreadedKubernetesServer,
    variables: dict[str, str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for index in range(2):
        server.add(pod(f"train-{index}", "ml", labels=JOB, index=index, ip=IPS[index]))
    put(monkeypatch, variables)
    with pytest.raises(ConfigurationError, match=problem):
        detect()


def test_pod_without_a_workload_needs_a_selector(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(pod("alone", "ml", labels={"app": "x"}, ip="127.0.0.1", index=0, ready=False))
    with pytest.raises(
        ConfigurationError, match=r"pod ml/alone does not belong to a workload.*Set AIORESOLVE_SELECTOR"
    ):
        detect()
    put(monkeypatch, {"AIORESOLVE_COUNT": "1", "AIORESOLVE_SELECTOR": "app=x"})
    assert detect("10.0.0.1:1") == ("10.0.0.1:1", 1, 0)


def test_missing_index_is_named(server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in (0, 2):
        server.add(pod(f"train-{index}", "ml", labels=JOB, index=index, ip=IPS[index // 2]))
    monkeypatch.setenv("AIORESOLVE_COUNT", "2")
    with pytest.raises(LaunchError, match="job 'worker' has no task 1"):
        detect()


@pytest.mark.slow
def test_import_without_a_supported_jax_is_an_error() -> None:
    remove = "from jax._src.clusters.cluster import ClusterEnv; del ClusterEnv._cluster_types"
    for setup, found in (
        ("sys.modules['jax'] = None", "needs JAX, which is not installed.* Run `pip install jax`"),
        (remove, r"does not support JAX \d"),
    ):
        caught = "except ImportError as error: print(type(error).__name__, error)"
        program = f"import sys\n{setup}\ntry: import aioresolve.jax\n{caught}"
        output = subprocess.check_output([sys.executable, "-c", program], text=True)
        assert re.match(f"MissingDependencyError aioresolve.jax {found}", output)
