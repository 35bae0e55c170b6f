"""The classes of `aioresolve.tensorflow`, compared with TensorFlow's own classes of the same names."""

import copy
import inspect
import pickle
import subprocess
import sys
from typing import Any

import cloudpickle
import pytest

import aioresolve
from aioresolve import ClusterSpec, ClusterState, Observation, Want, sync

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


def public_members(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


class TestShape:
    @pytest.mark.parametrize("name", NAMES)
    def test_class_is_a_subclass_with_the_same_arguments_and_the_documented_additions(
        self, name: str, ours: Any, theirs: Any
    ) -> None:
        assert issubclass(getattr(ours, name), getattr(theirs, name))
        assert issubclass(getattr(ours, name), sync.ClusterResolver)
        expected, found = public_members(getattr(theirs, name)), public_members(getattr(ours, name))
        assert expected <= found
        specific = {"rpc_layer"} | (
            public_members(aioresolve.TPUClusterResolver) | {"connect"} if "TPU" in name else set()
        )
        assert found - expected <= ADDED_METHODS | specific

        def positional(cls: Any) -> list[str]:
            parameters = inspect.signature(cls.__init__).parameters.values()
            return [each.name for each in parameters if each.kind is not inspect.Parameter.KEYWORD_ONLY]

        left_out = {"service"} if name == "GCEClusterResolver" else set()
        expected_arguments = [each for each in positional(getattr(theirs, name)) if each not in left_out]
        assert positional(getattr(ours, name)) == expected_arguments

    def test_every_name_of_tensorflow_exists(self, ours: Any, theirs: Any) -> None:
        names = {name for name in vars(theirs) if name[0].isupper()}
        assert names <= set(ours.__all__)
        for name in names - set(NAMES):
            assert getattr(ours, name) is getattr(theirs, name)

    def test_import_without_tensorflow_names_the_extra(self) -> None:
        script = (
            "import sys; sys.modules['tensorflow'] = None\n"
            "try: import aioresolve.tensorflow\n"
            "except ImportError as error: print(type(error).__name__, error)"
        )
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert run.stdout.startswith("MissingDependencyError ")
        assert "pip install 'aioresolve[tensorflow]'" in run.stdout


def test_job_of_an_instance_group_cannot_be_changed(ours: Any) -> None:
    resolver = ours.GCEClusterResolver("my-project", "us-east1-d", "group", 8470)
    with pytest.raises(RuntimeError, match="cannot reset the task_type of the GCEClusterResolver"):
        resolver.task_type = "foobar"


class TestUnion:
    def pair(self, tf: Any, module: Any, other: Any) -> Any:
        first = module.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": WORKERS}), task_type="worker", task_id=1, rpc_layer="grpc"
        )
        second = other.SimpleClusterResolver(tf.train.ClusterSpec({"ps": ["p:1"], "worker": ["w:1"]}))
        return first, second

    def test_tensorflows_union_takes_resolvers_of_both(self, tf: Any, ours: Any, theirs: Any) -> None:
        for module, other, union in (
            (ours, ours, ours.UnionResolver),
            (ours, ours, theirs.UnionResolver),
            (ours, theirs, theirs.UnionResolver),
            (theirs, ours, theirs.UnionResolver),
        ):
            resolver = union(*self.pair(tf, module, other))
            spec = tf.train.ClusterSpec({"worker": [*WORKERS, "w:1"], "ps": ["p:1"]})
            assert resolver.cluster_spec() == spec
            assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
            assert resolver.master("ps", 0) == "p:1"

    def test_unknown_keyword_is_a_value_error(self, tf: Any, ours: Any, theirs: Any) -> None:
        for union in (ours.UnionResolver, theirs.UnionResolver):
            with pytest.raises(ValueError, match="task_index"):
                union(*self.pair(tf, theirs, theirs), task_index=1)


def test_invalid_spec_and_master_of_a_simple_resolver_are_type_errors(
    tf: Any, ours: Any, theirs: Any
) -> None:
    for arguments in (("text",), ({"worker": ["a:1"]},), (None,), (tf.train.ClusterSpec({}), 3)):
        for kind in (ours.SimpleClusterResolver, theirs.SimpleClusterResolver):
            with pytest.raises(TypeError):
                kind(*arguments)


class TestFromAsync:
    def test_async_resolver_becomes_a_tensorflow_resolver(self, tf: Any, ours: Any, theirs: Any) -> None:
        class Fixed(aioresolve.ClusterResolver):
            async def observe(self, want: Want, progress: Any) -> Observation:
                return Observation(ClusterState.from_spec(ClusterSpec({"worker": WORKERS})))

        resolver = ours.from_async_resolver(Fixed(task_type="worker", task_id=0, rpc_layer="grpc"))
        assert isinstance(resolver, theirs.ClusterResolver)
        assert isinstance(resolver.cluster_spec(), tf.train.ClusterSpec)
        assert resolver.master() == "grpc://10.0.0.1:8470"
        assert copy.deepcopy(resolver).master("worker", 1) == "grpc://10.0.0.2:8470"


class TestCopies:
    def test_copies_of_each_class_have_its_arguments_and_what_was_set(
        self, tf: Any, ours: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SLURM_PROCID", "1")
        monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
        monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
        monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)")
        simple = ours.SimpleClusterResolver(tf.train.ClusterSpec({"worker": WORKERS}), rpc_layer="grpc")
        resolvers = [
            simple,
            ours.GCEClusterResolver("p", "z-a", "g", 8470, "ps", 1),
            ours.KubernetesClusterResolver({"worker": ["app=a"]}, timeout=7.0),
            ours.SageMakerClusterResolver(task_type="worker", rpc_layer="grpc"),
            ours.SlurmClusterResolver({"ps": 1, "worker": 1}, gpus_per_node=0),
            ours.TFConfigClusterResolver("worker", rpc_layer="grpc"),
            ours.TPUClusterResolver("grpc://10.0.0.1", job_name="tpu"),
            ours.UnionResolver(simple, task_type="worker"),
        ]
        assert {type(resolver).__name__ for resolver in resolvers} == set(NAMES)
        monkeypatch.delenv("SLURM_STEP_NODELIST")  # as in another process
        for resolver in resolvers:
            resolver.task_id, resolver.rpc_layer = 7, "http"
            for copied in (
                copy.copy(resolver),
                copy.deepcopy(resolver),
                pickle.loads(pickle.dumps(resolver)),
                pickle.loads(cloudpickle.dumps(resolver)),
            ):
                assert (type(copied), repr(copied)) == (type(resolver), repr(resolver))
                assert (copied.task_id, copied.rpc_layer, copied.timeout) == (7, "http", resolver.timeout)
                copied.task_id = 0
                assert resolver.task_id == 7
