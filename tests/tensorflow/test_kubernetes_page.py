"""The documentation page of `tf.distribute.cluster_resolver.KubernetesClusterResolver`, entry by entry.

Each program runs on TensorFlow's class and on aioresolve's. `test_programs.py` trains with the example.
"""

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioresolve.testing import KubernetesServer, pod

pytestmark = pytest.mark.slow

EXAMPLE = {"worker": ["job-name=worker-cluster-a", "job-name=worker-cluster-b"]}
SAMPLE = {**EXAMPLE, "ps": ["job-name=ps-1", "job-name=ps-2"]}


class PodLister:
    """A fake CoreV1Api, as TensorFlow's own tests have one: selectors to names to the ends of addresses."""

    def __init__(self, pods: dict[str, dict[str, int]] | None = None, phase: str = "Running") -> None:
        self.pods = pods or {"job-name=tensorflow": {"train-0": 1, "train-1": 2}}
        self.phase = phase

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        items = [
            SimpleNamespace(
                metadata=SimpleNamespace(name=name, namespace="ml"),
                # TensorFlow reads the first, aioresolve the second: the page of the class promises pod IPs.
                status=SimpleNamespace(phase=self.phase, host_ip=f"10.1.2.{n}", pod_ip=f"10.1.2.{n}"),
            )
            for name, n in self.pods[label_selector].items()
        ]
        return SimpleNamespace(items=items)


def addresses(*numbers: int, port: int = 8470) -> list[str]:
    return [f"10.1.2.{number}:{port}" for number in numbers]


def test_arguments_have_the_documented_names_and_defaults(api: Any) -> None:
    parameters = inspect.signature(api.KubernetesClusterResolver).parameters
    assert [(name, parameters[name].default) for name in list(parameters)[:4]] == [
        ("job_to_label_mapping", None),
        ("tf_server_port", 8470),
        ("rpc_layer", "grpc"),
        ("override_client", None),
    ]


def test_example_of_each_worker(api: Any, tf: Any) -> None:
    client = PodLister({"job-name=worker-cluster-a": {"a": 1}, "job-name=worker-cluster-b": {"b": 2}})
    for index in range(2):
        resolver = api.KubernetesClusterResolver(EXAMPLE, override_client=client)
        resolver.task_type = "worker"
        resolver.task_id = index
        spec = resolver.cluster_spec()
        assert isinstance(spec, tf.train.ClusterSpec)
        assert spec.as_dict() == {"worker": addresses(1, 2)}
        assert resolver.master() == f"grpc://10.1.2.{index + 1}:8470"


@pytest.mark.parametrize(
    ("jobs", "pods", "expected"),
    [
        (
            None,
            {"job-name=tensorflow": {"tensorflow-abc123": 3, "tensorflow-def456": 4, "tensorflow-999999": 5}},
            {"worker": [5, 3, 4]},
        ),
        (
            SAMPLE,
            {
                "job-name=worker-cluster-a": {"tf-abc123": 3, "tf-def456": 4, "tf-999999": 5},
                "job-name=worker-cluster-b": {"tf-abc124": 6, "tf-def457": 7, "tf-999990": 8},
                "job-name=ps-1": {"tensorflow-ps-1": 1},
                "job-name=ps-2": {"tensorflow-ps-2": 2},
            },
            {"ps": [1, 2], "worker": [5, 3, 4, 8, 6, 7]},
        ),
    ],
    ids=["default", "sample mapping"],
)
def test_args_job_to_label_mapping(jobs: Any, pods: Any, expected: dict[str, list[int]], api: Any) -> None:
    """The cases of TensorFlow's own tests of this class, with their results."""
    spec = api.KubernetesClusterResolver(jobs, override_client=PodLister(pods)).cluster_spec()
    assert spec.as_dict() == {job: addresses(*numbers) for job, numbers in expected.items()}


def test_args_tf_server_port_and_rpc_layer(api: Any) -> None:
    resolver = api.KubernetesClusterResolver(None, 2222, "http", PodLister())
    assert resolver.cluster_spec().as_dict() == {"worker": addresses(1, 2, port=2222)}
    assert resolver.master("worker", 0) == "http://10.1.2.1:2222"
    resolver.rpc_layer = "grpc"
    assert resolver.master("worker", 0) == "grpc://10.1.2.1:2222"


def test_raises_import_error_without_the_client_only_in_tensorflow(
    ours: Any, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError):
        theirs.KubernetesClusterResolver()
    ours.KubernetesClusterResolver()
    for module in (ours, theirs):
        module.KubernetesClusterResolver(override_client=PodLister()).cluster_spec()


def test_raises_value_error_for_an_invalid_location(api: Any) -> None:
    with pytest.raises(ValueError, match=r"executable.location"):
        api.KubernetesClusterResolver(executable_location="elsewhere")
    # The page mentions this argument, but no version has it.
    with pytest.raises(TypeError, match="autoresolve_task"):
        api.KubernetesClusterResolver(autoresolve_task=True)


def test_attributes(api: Any) -> None:
    resolver = api.KubernetesClusterResolver(override_client=PodLister())
    assert (resolver.task_type, resolver.task_id, resolver.environment) == (None, None, "")
    resolver.task_type, resolver.task_id = "worker", 0
    assert resolver.task_type == "worker"
    assert resolver.task_id == 0


def test_cluster_spec_is_that_of_the_moment_of_the_call(api: Any) -> None:
    client = PodLister()
    resolver = api.KubernetesClusterResolver(override_client=client)
    assert resolver.cluster_spec().as_dict() == {"worker": addresses(1, 2)}
    client.pods["job-name=tensorflow"]["train-0"] = 9
    assert resolver.cluster_spec().as_dict() == {"worker": addresses(9, 2)}


@pytest.mark.parametrize("phase", ["Pending", "Failed"])
def test_cluster_spec_raises_runtime_error_if_a_pod_is_not_running(phase: str, api: Any) -> None:
    with pytest.raises(RuntimeError, match=phase):
        api.KubernetesClusterResolver(override_client=PodLister(phase=phase)).cluster_spec()


def test_master_is_that_of_the_properties_or_of_the_parameters(api: Any) -> None:
    resolver = api.KubernetesClusterResolver(override_client=PodLister())
    assert resolver.master() == ""
    assert resolver.master("worker", 0, "http") == "http://10.1.2.1:8470"
    resolver.task_type, resolver.task_id = "worker", 1
    assert resolver.master() == "grpc://10.1.2.2:8470"
    assert resolver.master(task_id=0) == "grpc://10.1.2.1:8470"
    with pytest.raises(ValueError, match=r"[Nn]o task"):
        resolver.master(task_id=2)


def test_num_accelerators_are_those_of_this_process_before_any_server_runs(api: Any) -> None:
    resolver = api.KubernetesClusterResolver(override_client=PodLister())
    found = resolver.num_accelerators("worker", 0)
    assert found == {}
    assert found["GPU"] == 0  # on which the strategies rely


def test_aioresolves_own_methods_and_tensorflows_locations_work_too(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [pod(f"train-{i}", ip=f"10.1.2.{i + 1}", labels={"job-name": "tensorflow"}) for i in range(2)]
    with KubernetesServer(pods).in_thread() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config")))
        location = ours.KubernetesExecutableLocation.OFF_CLUSTER
        with ours.KubernetesClusterResolver(executable_location=location) as resolver:
            assert resolver.cluster_spec().as_dict() == {"worker": addresses(1, 2)}
            assert resolver.wait(2, timeout=60).spec == resolver.cluster_state().spec
            resolver.task_type, resolver.task_id = "worker", 1
            assert resolver.this_task().rank == 1
