"""What TPU platforms set in each process of a cluster, and what JAX's own classes compute from it.

The values are those that GKE, KubeRay's TPU webhook, LeaderWorkerSet and the metadata server of TPU VMs set.
"""

import socket
from collections.abc import Iterator

import pytest

from aioresolve import launch, sync
from aioresolve.errors import APIError, ConfigurationError, PartialClusterError, TaskIdentityError
from aioresolve.spec import split_host_port
from aioresolve.testing import Answer, GoogleServer, ThreadedGoogleServer, tpu_node, tpu_vm

# {slice} and {worker} are the numbers of the process, {host} is that of its host.
GKE = {
    "v5p in a JobSet with three slices": (
        3,
        2,
        {
            "JOB_COMPLETION_INDEX": "{worker}",
            "TPU_WORKER_HOSTNAMES": "run-slice-{slice}-0.run,run-slice-{slice}-1.run",
            "TPU_WORKER_ID": "{worker}",
            "TPU_ACCELERATOR_TYPE": "v5p-16",
            "TPU_TOPOLOGY": "2x2x2",
            "MEGASCALE_COORDINATOR_ADDRESS": "run-slice-0-0.run",
            "MEGASCALE_NUM_SLICES": "3",
            "MEGASCALE_SLICE_ID": "{slice}",
        },
    ),
    "v6e in a LeaderWorkerSet": (
        1,
        2,
        {
            "LWS_GROUP_SIZE": "2",
            "LWS_WORKER_INDEX": "{worker}",
            "TPU_NAME": "serve-0",
            "TPU_WORKER_HOSTNAMES": "serve-0.serve,serve-0-1.serve",
            "TPU_PROCESS_ADDRESSES": "serve-0.serve:8476,serve-0-1.serve:8476",
            "TPU_PROCESS_PORT": "8476",
            "TPU_WORKER_ID": "{worker}",
        },
    ),
    "7x with one host of two containers": (
        1,
        2,
        {
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477",
            "TPU_WORKER_ID": "{worker}",
            "TPU_ACCELERATOR_TYPE": "tpu7x-8",
            "TPU_TOPOLOGY": "2x2x1",
        },
    ),
    "7x in a LeaderWorkerSet, two containers a host": (
        1,
        4,
        {
            "LWS_GROUP_SIZE": "2",
            "LWS_WORKER_INDEX": "{host}",
            "TPU_NAME": "serve-0",
            "TPU_WORKER_HOSTNAMES": "serve-0.serve,serve-0.serve,serve-0-1.serve,serve-0-1.serve",
            "TPU_PROCESS_ADDRESSES": "serve-0.serve:8476,serve-0.serve:8477,"
            "serve-0-1.serve:8476,serve-0-1.serve:8477",
            "TPU_WORKER_ID": "{worker}",
        },
    ),
    "7x in KubeRay with two slices, two containers a host": (
        2,
        4,
        {
            "TPU_NAME": "tpu-{slice}",
            "TPU_WORKER_HOSTNAMES": "tpu-{slice}-0.ray-headless,tpu-{slice}-1.ray-headless",
            "TPU_PROCESS_ADDRESSES": "tpu-{slice}-0.ray-headless:8476,tpu-{slice}-0.ray-headless:8477,"
            "tpu-{slice}-1.ray-headless:8476,tpu-{slice}-1.ray-headless:8477",
            "TPU_WORKER_ID": "{worker}",
            "MEGASCALE_COORDINATOR_ADDRESS": "tpu-0-0.ray-headless:8081",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": "{slice}",
        },
    ),
}

Processes = tuple[str, int, int]
"""The host of the coordinator, the number of processes, and the id of one of them."""


def computed_by_jax(name: str) -> Processes:
    """Return what JAX's class of that name computes in this process."""
    pytest.importorskip("requests", reason="JAX requests the metadata server with it")
    cluster = getattr(pytest.importorskip("jax._src.clusters.cloud_tpu_cluster"), name)
    address = cluster.get_coordinator_address(60, None)
    return split_host_port(address)[0], cluster.get_process_count(), cluster.get_process_id()


def resolved() -> Processes:
    """Return what `aioresolve exec tpu --for jax` hands over in this process."""
    resolver = sync.TPUClusterResolver()
    try:
        state = resolver.cluster_state()
        variables = launch.jax(state, resolver.this_task(state))
    except PartialClusterError as error:
        variables = launch.jax_processes(error)
    return (
        split_host_port(variables["JAX_COORDINATOR_ADDRESS"])[0],
        int(variables["JAX_NUM_PROCESSES"]),
        int(variables["JAX_PROCESS_ID"]),
    )


def is_one_cluster(processes: list[Processes]) -> bool:
    return (
        len({each[:2] for each in processes}) == 1
        and [each[2] for each in processes] == list(range(len(processes)))
        and processes[0][1] == len(processes)
    )


@pytest.fixture(autouse=True)
def google_cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedGoogleServer]:
    """Google Cloud as this VM reaches it, which is not a TPU VM: its `tpu-env` is empty."""
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "127.0.0.1")
    monkeypatch.setattr(socket, "gethostname", lambda: "a-node")
    with GoogleServer().in_thread() as server:
        server.metadata["instance/attributes/tpu-env"] = ""
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("name", GKE)
def test_processes_on_gke_are_those_of_jax(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slices, workers, variables = GKE[name]
    hosts = len({each.partition(":")[0] for each in variables["TPU_WORKER_HOSTNAMES"].split(",")})
    found = []
    for process in range(slices * workers):
        index, worker = divmod(process, workers)
        for variable, value in variables.items():
            text = value.format(slice=index, worker=worker, host=worker * hosts // workers)
            monkeypatch.setenv(variable, text)
        found.append(resolved())
        assert found[-1] == computed_by_jax("GkeTpuCluster")
    assert is_one_cluster(found)


@pytest.mark.parametrize("triples", [True, False])
@pytest.mark.parametrize("slices", [1, 2])
def test_processes_on_tpu_vms_are_those_of_jax(
    slices: int, triples: bool, google_cloud: ThreadedGoogleServer
) -> None:
    found = []
    for process in range(slices * 4):
        index, worker = divmod(process, 4)
        # Docker's bridge network hides the addresses of the VM.
        hosts = [f"198.51.100.{4 * index + each}" for each in range(4)]
        google_cloud.metadata.update(tpu_vm(hosts=hosts, worker=worker, triples=triples))
        if slices > 1:
            google_cloud.metadata["instance/attributes/tpu-env"] += (
                "MEGASCALE_COORDINATOR_ADDRESS: '198.51.100.0'\n"
                f"MEGASCALE_NUM_SLICES: '{slices}'\nMEGASCALE_SLICE_ID: '{index}'\n"
            )
        found.append(resolved())
        assert found[-1] == computed_by_jax("GceTpuCluster")
    assert is_one_cluster(found)


def test_one_slice_of_several_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GKE["v5p in a JobSet with three slices"][2].items():
        monkeypatch.setenv(name, value.format(slice=1, worker=1))
    resolver = sync.TPUClusterResolver()
    for call in (resolver.cluster_spec, resolver.cluster_state, resolver.master, resolver.this_task):
        with pytest.raises(PartialClusterError, match="slice 1 of 3"):
            call()
    with pytest.raises(PartialClusterError):
        resolver.wait(6, timeout=60)
    with pytest.raises(PartialClusterError):
        next(iter(resolver.watch()))
    (one,) = resolver.slices()
    assert (one.index, one.num_slices, len(one.endpoints)) == (1, 3, 2)


@pytest.mark.parametrize("unset", ["MEGASCALE_COORDINATOR_ADDRESS", "TPU_WORKER_ID"])
def test_jax_is_not_started_without_the_coordinator_or_the_index(
    unset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GKE["v5p in a JobSet with three slices"][2].items():
        monkeypatch.setenv(name, value.format(slice=1, worker=1))
    monkeypatch.delenv(unset)
    with pytest.raises(PartialClusterError, match=f"{unset} is not set"):
        resolved()


def test_variable_that_names_one_tpu_of_a_multislice_is_no_cluster(
    google_cloud: ThreadedGoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google_cloud.add(tpu_node("my-tpu"))
    monkeypatch.setenv("TPU_NAME", "my-tpu")
    assert sync.TPUClusterResolver().cluster_spec().num_tasks("worker") == 1
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "3")
    with pytest.raises(PartialClusterError, match="slice 0 of 3"):
        sync.TPUClusterResolver().cluster_spec()
    google_cloud.add(tpu_node("my-tpu", health="TIMEOUT"), tpu_node("other"))
    with pytest.raises(PartialClusterError, match="slice 0 of 3"):
        next(iter(sync.TPUClusterResolver().watch()))
    monkeypatch.setenv("TPU_NAME", "my-tpu,other")
    assert next(iter(sync.TPUClusterResolver().watch())).spec.num_tasks("worker") == 2


def test_worker_of_a_named_tpu_is_found_by_its_number_behind_a_bridge_network(
    google_cloud: ThreadedGoogleServer,
) -> None:
    hosts = ["198.51.100.1", "198.51.100.2"]
    google_cloud.add(tpu_node("mine", ips=hosts), tpu_node("other", ips=["198.51.100.3"]))
    google_cloud.metadata.update(tpu_vm(hosts=hosts, worker=1, node="mine"))
    task = sync.TPUClusterResolver(["other", "mine"]).this_task()
    assert (task.rank, task.address) == (2, "198.51.100.2:8470")
    google_cloud.metadata["instance/attributes/tpu-env"] = "malformed"
    with pytest.raises(TaskIdentityError):
        sync.TPUClusterResolver("mine").this_task()
    del google_cloud.metadata["instance/attributes/tpu-env"]
    with pytest.raises(TaskIdentityError):
        sync.TPUClusterResolver("other").this_task()
    overloaded = Answer(503, headers={"Metadata-Flavor": "Google", "Retry-After": "3600"})
    google_cloud.inject(overloaded, match=lambda request: request.path.endswith("tpu-env"), times=None)
    with pytest.raises(APIError):
        sync.TPUClusterResolver("mine").this_task()


def test_metadata_of_its_node_does_not_identify_a_pod(
    google_cloud: ThreadedGoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google_cloud.add(tpu_node("mine", ips=["198.51.100.1"]))
    google_cloud.metadata.update(tpu_vm(hosts=["198.51.100.1"], node="mine"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    with pytest.raises(TaskIdentityError):
        sync.TPUClusterResolver("mine").this_task()


# Contradictions


def test_variable_that_contradicts_the_multislice_of_the_vm_is_an_error(
    google_cloud: ThreadedGoogleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    google_cloud.metadata.update(tpu_vm(hosts=["198.51.100.1"]))
    google_cloud.metadata["instance/attributes/tpu-env"] += "MEGASCALE_NUM_SLICES: '2'\n"
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "4")
    with pytest.raises(ConfigurationError, match=r"\$MEGASCALE_NUM_SLICES=4 contradicts .* which is 2"):
        sync.TPUClusterResolver().cluster_spec()


def test_host_name_of_another_worker_contradicts_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "train-1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "train-0.train,train-1.train")
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    with pytest.raises(TaskIdentityError, match=r"\$TPU_WORKER_ID is 0, .*the host name 'train-1': .*task:1"):
        sync.TPUClusterResolver().this_task()
