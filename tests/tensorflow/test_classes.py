"""The classes of `aioresolve.tensorflow`, compared with TensorFlow's own classes of the same names."""

from __future__ import annotations

import asyncio
import copy
import inspect
import os
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import mock

import pytest

import aioresolve
from aioresolve import ClusterSpec, ClusterState, errors, sync
from aioresolve.testing import KubernetesServer, TPUWorker, pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

WORKERS = ["10.0.0.1:8470", "10.0.0.2:8470"]
NAMES = [
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "SageMakerClusterResolver",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
]

ADDED_METHODS = {"close", "cluster_state", "this_task", "timeout", "wait", "watch"}
"""The members that every class has in addition to TensorFlow's."""


@pytest.fixture(scope="module")
def theirs(tf: Any) -> Any:
    # TensorFlow does not export this one.
    from tensorflow.python.distribute.cluster_resolver import sagemaker_cluster_resolver as sagemaker

    public = vars(tf.distribute.cluster_resolver)
    return SimpleNamespace(**{**public, "SageMakerClusterResolver": sagemaker.SageMakerClusterResolver})


@pytest.fixture(scope="module")
def ours(tf: Any) -> Any:
    import aioresolve.tensorflow

    return aioresolve.tensorflow


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pods = [
        pod(f"train-{index}", ip=f"10.0.0.{index + 1}", labels={"job-name": "tensorflow"})
        for index in range(2)
    ]
    with KubernetesServer(pods).in_thread() as server:
        yield server.write_kubeconfig(tmp_path_factory.mktemp("kubernetes") / "config")


def public_members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


class PodLister:
    """A fake CoreV1Api, as TensorFlow's own tests have one."""

    def __init__(self, phase: str = "Running") -> None:
        self.phase = phase

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        assert label_selector == "job-name=tensorflow"
        items = [
            SimpleNamespace(
                metadata=SimpleNamespace(name=f"train-{index}", namespace="ml"),
                # TensorFlow reads the first, aioresolve the second: the page of the class promises pod IPs.
                status=SimpleNamespace(
                    phase=self.phase, host_ip=f"10.0.0.{index + 1}", pod_ip=f"10.0.0.{index + 1}"
                ),
            )
            for index in range(2)
        ]
        return SimpleNamespace(items=items)


class TestShape:
    @pytest.mark.parametrize("name", NAMES)
    def test_class_is_a_subclass_of_the_one_that_it_replaces(self, name: str, ours: Any, theirs: Any) -> None:
        assert issubclass(getattr(ours, name), getattr(theirs, name))
        assert issubclass(getattr(ours, name), sync.ClusterResolver)

    @pytest.mark.parametrize("name", NAMES)
    def test_class_has_all_members_and_the_documented_additions(
        self, name: str, ours: Any, theirs: Any
    ) -> None:
        expected, found = public_members(getattr(theirs, name)), public_members(getattr(ours, name))
        assert expected <= found
        specific = {"rpc_layer"} | (
            public_members(aioresolve.TPUClusterResolver) | {"connect"} if "TPU" in name else set()
        )
        assert found - expected <= ADDED_METHODS | specific

    @pytest.mark.parametrize("name", NAMES)
    def test_positional_arguments_have_tensorflows_names_and_order(
        self, name: str, ours: Any, theirs: Any
    ) -> None:
        def positional(cls: Any) -> list[str]:
            parameters = inspect.signature(cls.__init__).parameters.values()
            return [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]

        assert positional(getattr(ours, name)) == positional(getattr(theirs, name))

    def test_names_without_a_class_of_our_own_are_tensorflows(self, ours: Any, theirs: Any) -> None:
        assert ours.ClusterResolver is theirs.ClusterResolver
        assert ours.KubernetesExecutableLocation is theirs.KubernetesExecutableLocation

    def test_subclass_with_two_methods_is_a_resolver(self, tf: Any, ours: Any) -> None:
        class Fixed(ours.ClusterResolver):  # type: ignore[misc]
            def cluster_spec(self) -> Any:
                return tf.train.ClusterSpec({"worker": WORKERS})

            def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
                return WORKERS[0]

        union = ours.UnionResolver(Fixed(), task_type="worker", task_id=0)
        assert union.cluster_spec().as_dict() == {"worker": WORKERS}
        assert union.master() == WORKERS[0]

    def test_import_without_tensorflow_names_the_extra(self) -> None:
        script = (
            "import sys; sys.modules['tensorflow'] = None\n"
            "try: import aioresolve.tensorflow\n"
            "except ImportError as error: print(type(error).__name__, error)"
        )
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert run.stdout.startswith("MissingDependencyError ")
        assert "pip install 'aioresolve[tensorflow]'" in run.stdout


class TestKubernetes:
    def test_results_are_tensorflows_types_with_tensorflows_values(
        self, tf: Any, ours: Any, theirs: Any
    ) -> None:
        results = []
        for module in (ours, theirs):
            resolver = module.KubernetesClusterResolver(override_client=PodLister())
            resolver.task_type, resolver.task_id = "worker", 1
            spec = resolver.cluster_spec()
            assert isinstance(spec, tf.train.ClusterSpec)
            accelerators = resolver.num_accelerators()
            results.append(
                (
                    spec.as_cluster_def(),
                    resolver.master(),
                    resolver.master("worker", 0, "http"),
                    resolver.environment,
                    resolver.rpc_layer,
                    type(accelerators),
                    accelerators,
                )
            )
        assert results[0] == results[1]
        assert results[0][1] == "grpc://10.0.0.2:8470"

    def test_pod_that_is_not_running_is_a_runtime_error(self, ours: Any, theirs: Any) -> None:
        for module in (ours, theirs):
            with pytest.raises(RuntimeError, match="Pending"):
                module.KubernetesClusterResolver(override_client=PodLister("Pending")).cluster_spec()

    @pytest.mark.parametrize(
        ("jobs", "pods", "expected"),
        [
            (
                None,
                {"job-name=tensorflow": {"tensorflow-abc123": 3}},
                {"worker": [3]},
            ),
            (
                None,
                {
                    "job-name=tensorflow": {
                        "tensorflow-abc123": 3,
                        "tensorflow-def456": 4,
                        "tensorflow-999999": 5,
                    }
                },
                {"worker": [5, 3, 4]},
            ),
            (
                {"worker": ["job-name=worker1", "job-name=worker2"], "ps": ["job-name=ps"]},
                {
                    "job-name=worker1": {
                        "tensorflow-abc123": 3,
                        "tensorflow-def456": 4,
                        "tensorflow-999999": 5,
                    },
                    "job-name=worker2": {
                        "tensorflow-abc124": 6,
                        "tensorflow-def457": 7,
                        "tensorflow-999990": 8,
                    },
                    "job-name=ps": {"tensorflow-ps-1": 1, "tensorflow-ps-2": 2},
                },
                {"ps": [1, 2], "worker": [5, 3, 4, 8, 6, 7]},
            ),
        ],
    )
    def test_selectors_and_order_are_tensorflows(
        self, jobs: Any, pods: dict[str, dict[str, int]], expected: Any, ours: Any, theirs: Any
    ) -> None:
        """The cases of TensorFlow's own tests of this class, with their inputs and results."""

        def list_pods(label_selector: str) -> Any:
            items = [
                SimpleNamespace(
                    metadata=SimpleNamespace(name=name, namespace="ml"),
                    status=SimpleNamespace(phase="Running", host_ip=f"10.1.2.{n}", pod_ip=f"10.1.2.{n}"),
                )
                for name, n in pods[label_selector].items()
            ]
            return SimpleNamespace(items=items)

        client = SimpleNamespace(list_pod_for_all_namespaces=list_pods)
        for module in (ours, theirs):
            spec = module.KubernetesClusterResolver(jobs, override_client=client).cluster_spec()
            assert spec.as_dict() == {
                job: [f"10.1.2.{number}:8470" for number in numbers] for job, numbers in expected.items()
            }

    def test_location_is_tensorflows(self, ours: Any, kubeconfig: Path, monkeypatch: Any) -> None:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        location = ours.KubernetesExecutableLocation.OFF_CLUSTER
        resolver = ours.KubernetesClusterResolver(executable_location=location)
        with resolver:
            assert resolver.cluster_spec().as_dict() == {"worker": WORKERS}

    def test_copies_resolve_on_their_own(self, ours: Any, kubeconfig: Path) -> None:
        resolver = ours.KubernetesClusterResolver(kubeconfig=str(kubeconfig), rpc_layer="http")
        resolver.task_id = 7
        for copied in (copy.deepcopy(resolver), copy.copy(resolver), pickle.loads(pickle.dumps(resolver))):
            with copied:
                assert copied.cluster_spec().as_dict() == {"worker": WORKERS}
            assert (copied.task_type, copied.task_id, copied.rpc_layer) == (None, 7, "http")
            copied.task_id = 0
        assert resolver.task_id == 7

    def test_aioresolves_own_methods_work_too(self, ours: Any, kubeconfig: Path) -> None:
        with ours.KubernetesClusterResolver(kubeconfig=str(kubeconfig)) as resolver:
            assert resolver.wait(2, timeout=60).spec == resolver.cluster_state().spec
            resolver.task_type, resolver.task_id = "worker", 1
            assert resolver.this_task().rank == 1

    def test_accelerators_are_those_of_this_process(self, tf: Any, ours: Any) -> None:
        # The strategies rely on it: they count before any server runs.
        resolver = ours.KubernetesClusterResolver(override_client=PodLister())
        assert resolver.num_accelerators("worker", 0) == {}
        assert resolver.num_accelerators("worker", 0)["GPU"] == 0


class TestGCE:
    """The cases of TensorFlow's own tests of this class, with their inputs and results."""

    def service(self, **addresses: str) -> Any:
        """A client with a group of these instances; TensorFlow's tests use one with these methods."""
        service = mock.MagicMock()
        groups = service.instanceGroups.return_value
        items = [{"instance": f"https://gce.example.com/gce/res/{name}"} for name in addresses]
        groups.listInstances.return_value.execute.return_value = {"items": items}
        groups.listInstances_next.return_value = None

        def get(project: str, zone: str, instance: str) -> Any:
            details = {"networkInterfaces": [{"networkIP": addresses[instance]}]}
            return SimpleNamespace(execute=lambda: details)

        service.instances.return_value.get.side_effect = get
        return service

    def resolver(self, module: Any, addresses: dict[str, str] | None = None, **arguments: Any) -> Any:
        service = self.service(**({"gce-instance-1": "10.123.45.67"} if addresses is None else addresses))
        defaults = {"port": 8470, "credentials": None, "service": service}
        return module.GCEClusterResolver("test-project", "us-east1-d", "group", **{**defaults, **arguments})

    THREE: ClassVar = {"instance1": "10.1.2.3", "instance2": "10.2.3.4", "instance3": "10.3.4.5"}

    def test_addresses_and_masters_are_tensorflows(self, tf: Any, ours: Any, theirs: Any) -> None:
        for module in (ours, theirs):
            assert self.resolver(module).cluster_spec() == tf.train.ClusterSpec(
                {"worker": ["10.123.45.67:8470"]}
            )
            assert self.resolver(module, task_id=0).master() == "grpc://10.123.45.67:8470"
            assert self.resolver(module).master() == "grpc://10.123.45.67:8470"
            assert self.resolver(module, self.THREE).master("worker", 2, "test") == "test://10.3.4.5:8470"
            custom = self.resolver(module, task_type="custom", port=2222)
            assert custom.cluster_spec().as_dict() == {"custom": ["10.123.45.67:2222"]}
            several = self.resolver(module, self.THREE).cluster_spec().as_dict()
            assert several == {"worker": ["10.1.2.3:8470", "10.2.3.4:8470", "10.3.4.5:8470"]}

    def test_attributes_can_be_set_but_not_the_job(self, ours: Any, theirs: Any) -> None:
        for module in (ours, theirs):
            resolver = self.resolver(module, self.THREE, task_type="testworker")
            assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("testworker", 0, "grpc")
            resolver.task_id, resolver.rpc_layer = 1, "test"
            assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("testworker", 1, "test")
            assert resolver.master() == "test://10.2.3.4:8470"
            with pytest.raises(
                RuntimeError, match="You cannot reset the task_type of the GCEClusterResolver"
            ):
                resolver.task_type = "foobar"

    def test_job_may_be_empty_text(self, ours: Any, theirs: Any) -> None:
        for module in (ours, theirs):
            resolver = self.resolver(module, self.THREE, task_type="", task_id=1)
            assert resolver.master(task_type="", task_id=0) == "grpc://10.1.2.3:8470"

    def test_union_merges_groups(self, ours: Any, theirs: Any) -> None:
        second = {"instance4": "10.4.5.6", "instance5": "10.5.6.7"}
        for module in (ours, theirs):
            union = module.UnionResolver(
                self.resolver(module, self.THREE),
                self.resolver(module, second),
                self.resolver(module, {"ps1": "10.100.1.2"}, task_type="ps", port=2222),
            )
            assert union.cluster_spec().as_dict() == {
                "ps": ["10.100.1.2:2222"],
                "worker": [f"{ip}:8470" for ip in (*self.THREE.values(), *second.values())],
            }

    def test_instances_are_in_the_order_of_their_names(self, ours: Any, theirs: Any) -> None:
        addresses = {"vm-10": "10.0.0.1", "vm-9": "10.0.0.20", "vm-1": "10.0.0.3"}
        by_name = self.resolver(ours, addresses).cluster_spec().as_dict()["worker"]
        assert by_name == ["10.0.0.3:8470", "10.0.0.20:8470", "10.0.0.1:8470"]
        by_text = self.resolver(theirs, addresses).cluster_spec().as_dict()["worker"]
        assert by_text == sorted(by_name)

    def test_empty_group_is_a_key_error_only_in_tensorflow(self, ours: Any, theirs: Any) -> None:
        service = self.service()
        service.instanceGroups.return_value.listInstances.return_value.execute.return_value = {}
        assert self.resolver(ours, service=service).cluster_spec().as_dict() == {"worker": {}}
        with pytest.raises(KeyError):
            self.resolver(theirs, service=service).cluster_spec()

    def test_group_is_passed_by_the_name_of_the_api_only_by_aioresolve(self, ours: Any, theirs: Any) -> None:
        # googleapiclient rejects an argument that the API does not have.
        for module, name in ((ours, "instanceGroup"), (theirs, "instanceGroups")):
            service = self.service(vm="10.0.0.1")
            self.resolver(module, service=service).cluster_spec()
            [call] = service.instanceGroups.return_value.listInstances.call_args_list
            assert call.kwargs[name] == "group"

    def test_copies_keep_the_task(self, ours: Any) -> None:
        resolver = ours.GCEClusterResolver("p", "z-a", "g", 8470, "ps", 1)
        resolver.task_id = 2
        for copied in (copy.deepcopy(resolver), pickle.loads(pickle.dumps(resolver))):
            assert (copied.task_type, copied.task_id) == ("ps", 2)


class TestUnion:
    def pair(self, tf: Any, module: Any, other: Any) -> Any:
        first = module.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": WORKERS}), task_type="worker", task_id=1, rpc_layer="grpc"
        )
        second = other.SimpleClusterResolver(tf.train.ClusterSpec({"ps": ["p:1"], "worker": ["w:1"]}))
        return first, second

    def test_resolvers_of_both_are_taken_by_both(self, tf: Any, ours: Any, theirs: Any) -> None:
        for module, other in [(ours, theirs), (theirs, ours), (ours, ours), (theirs, theirs)]:
            for union in (ours.UnionResolver, theirs.UnionResolver):
                resolver = union(*self.pair(tf, module, other))
                assert resolver.cluster_spec() == tf.train.ClusterSpec(
                    {"worker": [*WORKERS, "w:1"], "ps": ["p:1"]}
                )
                assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
                assert resolver.master("ps", 0) == "p:1"

    async def test_aioresolves_own_unions_take_tensorflows_resolvers(self, tf: Any, theirs: Any) -> None:
        spec = tf.train.ClusterSpec({"ps": ["p:1"]})
        resolver = theirs.SimpleClusterResolver(spec, master="m:1", num_accelerators={"GPU": 2})
        async with aioresolve.UnionClusterResolver(resolver, task_type="ps", task_id=0) as union:
            assert (await union.cluster_spec()).as_dict() == {"ps": ["p:1"]}
            assert (await union.this_task()).address == "p:1"
            assert await union.master() == "m:1"
            assert await union.num_accelerators() == {"GPU": 2}

    def test_blocking_union_takes_tensorflows_resolvers(self, tf: Any, theirs: Any) -> None:
        resolver = theirs.SimpleClusterResolver(tf.train.ClusterSpec({"ps": ["p:1"]}))
        with sync.UnionClusterResolver(resolver) as union:
            assert union.cluster_spec().as_dict() == {"ps": ["p:1"]}

    async def test_resolver_of_tensorflow_that_hangs_ends_at_the_deadline(self, tf: Any, ours: Any) -> None:
        released = asyncio.Event()
        loop = asyncio.get_running_loop()

        class Hanging(ours.ClusterResolver):  # type: ignore[misc]
            def cluster_spec(self) -> Any:
                asyncio.run_coroutine_threadsafe(released.wait(), loop).result()

            def master(self, *_: Any) -> str:
                return ""

        union = aioresolve.UnionClusterResolver(Hanging())
        with pytest.raises(errors.DeadlineExceededError, match=r"cluster_spec\(\) has not returned"):
            await union.cluster_spec(timeout=0.1)
        released.set()

    @pytest.mark.parametrize("arguments", [(), ("text",), (3,)])
    def test_invalid_arguments_raise_the_same_types(self, arguments: Any, ours: Any, theirs: Any) -> None:
        with pytest.raises((TypeError, ValueError)) as expected:
            theirs.UnionResolver(*arguments)
        with pytest.raises(expected.type):
            ours.UnionResolver(*arguments)

    def test_unknown_keyword_is_a_value_error(self, tf: Any, ours: Any, theirs: Any) -> None:
        for union in (ours.UnionResolver, theirs.UnionResolver):
            with pytest.raises(ValueError, match="task_index"):
                union(*self.pair(tf, theirs, theirs), task_index=1)

    def test_task_0_can_be_overridden(self, tf: Any, ours: Any, theirs: Any) -> None:
        first, second = self.pair(tf, theirs, theirs)
        assert ours.UnionResolver(first, second, task_id=0).task_id == 0
        assert theirs.UnionResolver(first, second, task_id=0).task_id == 1  # a mistake in TensorFlow


class TestSimple:
    @pytest.mark.parametrize("arguments", [("text",), ({"worker": ["a:1"]},), (None,)])
    def test_invalid_spec_is_a_type_error(self, arguments: Any, ours: Any, theirs: Any) -> None:
        for module in (ours, theirs):
            with pytest.raises(TypeError):
                module.SimpleClusterResolver(*arguments)

    def test_invalid_master_is_a_type_error(self, tf: Any, ours: Any, theirs: Any) -> None:
        for module in (ours, theirs):
            with pytest.raises(TypeError):
                module.SimpleClusterResolver(tf.train.ClusterSpec({}), master=3)

    def test_attributes_and_copies(self, tf: Any, ours: Any) -> None:
        resolver = ours.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": {0: "a:1", 3: "b:1"}}),
            "m:1",
            "worker",
            3,
            "google",
            {"GPU": 2},
            "grpc",
        )
        for each in (resolver, copy.deepcopy(resolver), pickle.loads(pickle.dumps(resolver))):
            assert each.cluster_spec().as_dict() == {"worker": {0: "a:1", 3: "b:1"}}
            assert (each.task_type, each.task_id, each.environment) == ("worker", 3, "google")
            assert each.master() == "grpc://m:1"
            assert each.num_accelerators() == {"GPU": 2}


class TestTPU:
    def test_members_that_strategies_read(self, ours: Any, tf: Any) -> None:
        resolver = ours.TPUClusterResolver("grpc://10.0.0.1,grpc://10.0.0.2")
        assert resolver.cluster_spec().as_dict() == {"worker": WORKERS}
        assert resolver.master() == resolver.get_master() == "grpc://10.0.0.1:8470"
        assert resolver.get_job_name() == "worker"
        assert resolver.get_coordination_service_leader() == "/job:worker/task:0"
        assert resolver.tpu_hardware_feature is None
        assert resolver._tpu not in ("", "local")
        assert copy.deepcopy(resolver) is resolver

    def test_topology_gives_the_hardware_feature(self, ours: Any, theirs: Any, tf: Any) -> None:
        from tensorflow.core.protobuf.tpu import topology_pb2

        topology = topology_pb2.TopologyProto(mesh_shape=[2, 2, 1, 1])  # pyright: ignore[reportAttributeAccessIssue]
        topology.tpu_hardware_feature.embedding_feature = 1
        for module in (ours, theirs):
            resolver = module.TPUClusterResolver("grpc://10.0.0.1:8470")
            resolver.set_tpu_topology(topology.SerializeToString())
            assert resolver.tpu_hardware_feature == topology.tpu_hardware_feature

    def test_tpu_of_this_host_has_no_master(self, ours: Any) -> None:
        resolver = ours.TPUClusterResolver("local")
        assert (resolver.master(), resolver._tpu) == ("", "local")
        assert resolver.cluster_spec().as_dict() == {}

    async def test_metadata_is_tensorflows_tuple(self, ours: Any, tf: Any) -> None:
        async with TPUWorker(4) as first, TPUWorker(4) as second:
            resolver = ours.TPUClusterResolver(f"grpc://{first.address},grpc://{second.address}")
            metadata = await asyncio.to_thread(resolver.get_tpu_system_metadata)
            assert isinstance(metadata, tf.tpu.experimental.TPUSystemMetadata)
            assert (metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host) == (8, 2, 4)
            assert metadata.topology is None
            assert await asyncio.to_thread(resolver.num_accelerators) == {"TPU": 4}
            await asyncio.to_thread(resolver.close)

    def test_worker_without_a_tpu_is_not_found(self) -> None:
        # In a process of its own, because TensorFlow cannot leave a cluster again.
        script = """
import tensorflow as tf
from aioresolve.tensorflow import TPUClusterResolver
server = tf.distribute.Server({"worker": ["127.0.0.1:0"]}, protocol="grpc", start=True)
try:
    TPUClusterResolver.connect(server.target)
except tf.errors.NotFoundError as error:
    print("not found")
"""
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
        )
        assert run.stdout.splitlines()[-1:] == ["not found"], run.stderr[-3000:]

    def test_worker_that_does_not_respond_is_an_error(self, ours: Any) -> None:
        with pytest.raises(errors.ProbeError, match="refused"):
            ours.TPUClusterResolver.connect("grpc://127.0.0.1:1", timeout=30)


class TestFromAsync:
    def test_async_resolver_becomes_a_tensorflow_resolver(self, tf: Any, ours: Any, theirs: Any) -> None:
        class Fixed(aioresolve.ClusterResolver):
            async def fetch_state(self, progress: Any) -> ClusterState:
                return ClusterState.from_spec(ClusterSpec({"worker": WORKERS}))

        resolver = ours.from_async_resolver(Fixed(task_type="worker", task_id=0, rpc_layer="grpc"))
        assert isinstance(resolver, theirs.ClusterResolver)
        assert isinstance(resolver.cluster_spec(), tf.train.ClusterSpec)
        assert resolver.master() == "grpc://10.0.0.1:8470"
        with pytest.raises(errors.ConfigurationError, match="cannot be copied"):
            copy.deepcopy(resolver)
