"""The resolvers that read variables: the cases of TensorFlow's own tests, and where TensorFlow is wrong.

The cases are those of `{tfconfig,slurm,sagemaker}_cluster_resolver_test.py` of TensorFlow 2.21, whose inputs
and results both classes must agree on. Each test of a difference shows TensorFlow's result too.
"""

import json
import os
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve import ClusterSpec, Task, launch

pytestmark = pytest.mark.slow

THREE_NODES = {"PROCID": "0", "STEP_NUM_TASKS": "3", "STEP_NODELIST": "t02n13,t02n41,t02n43"}
FIVE_TASKS = {**THREE_NODES, "PROCID": "1", "STEP_NUM_TASKS": "5", "STEP_TASKS_PER_NODE": "2(x2),1"}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets variables, with a prefix."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("aioresolve.environment.slurm._assigned", None)

    def set_variables(prefix: str = "", **values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"{prefix}{name}", value)

    return set_variables


def task(job: Any, index: Any) -> dict[str, Any]:
    return {"type": job, "index": index}


JOBS = st.sampled_from(["chief", "worker", "ps", "evaluator"])
ADDRESSES = st.sampled_from(["a:2222", "b:2222", "10.0.0.1:8470"])
INDICES = st.integers(0, 3)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "cluster": st.dictionaries(
            JOBS,
            st.lists(ADDRESSES, min_size=1, max_size=3)
            | st.dictionaries(INDICES.map(str), ADDRESSES, min_size=1, max_size=3),
            max_size=3,
        ),
        "task": st.fixed_dictionaries({}, optional={"type": JOBS, "index": INDICES | INDICES.map(str)}),
        "rpc_layer": st.sampled_from(["grpc", "", None]),
        "session_master": st.sampled_from(["s:2222", None]),
        "environment": st.just("cloud"),
    },
)
QUERIES = st.tuples(st.none() | JOBS, st.none() | INDICES, st.sampled_from([None, "", "http"]))


class TestTFConfig:
    @given(CONFIGS, QUERIES)
    @example({"cluster": {"worker": {"1": "w1:2222"}}, "task": task("worker", 1)}, (None, None, None))
    @example({"cluster": {"worker": {"1": "w1:2222"}}}, ("worker", 1, "grpc"))
    @example({"cluster": {"worker": ["a:1", "b:1"]}, "rpc_layer": "grpc"}, ("worker", 1, ""))
    @example({"cluster": {"chief": {"0": "c0:2222"}}, "task": task("chief", 0)}, (None, None, None))
    def test_generated_values_give_the_same_results(
        self, ours: Any, theirs: Any, config: Any, query: Any
    ) -> None:
        mine, other = ours.TFConfigClusterResolver(), theirs.TFConfigClusterResolver()
        with mock.patch.dict(os.environ, TF_CONFIG=json.dumps(config)):
            assert mine.cluster_spec() == other.cluster_spec()
            for name in ("task_type", "task_id", "rpc_layer"):
                assert getattr(mine, name) == getattr(other, name)
            try:
                expected = other.master(*query)
            except ValueError:
                with pytest.raises(ValueError, match=r"no job|no task|does not say which task"):
                    mine.master(*query)
            else:
                assert mine.master(*query) == expected

    @pytest.mark.parametrize(
        ("cluster", "task"),
        [
            ({"worker": ["10.0.0.1:8470", "[fd00::7]:8470"], "ps": ["10.0.0.3:8470"]}, ("worker", 1)),
            ({"worker": ["10.0.0.1:8470"]}, ("evaluator", 0)),
            ({"worker": {0: "a:1", 2: "b:1", 10: "c:1"}, "ps": list[str]()}, None),
            ({}, None),
        ],
    )
    def test_variable_of_launch_has_the_same_cluster_and_task(
        self, cluster: Any, task: tuple[str, int] | None, api: Any, variables: Any
    ) -> None:
        own = None if task is None else Task(*task, cluster["worker"][-1], 0, 1)
        spec = ClusterSpec(cluster)
        if own is not None and own.job == "worker":
            own = spec.task("worker", 1)
        variables(**launch.tensorflow(spec, own, rpc_layer="grpc"))
        resolver = api.TFConfigClusterResolver()
        assert spec == resolver.cluster_spec()
        assert (resolver.task_type, resolver.task_id) == (task or (None, None))
        if task == ("worker", 1):
            assert resolver.master() == "grpc://[fd00::7]:8470"


class TestSlurm:
    def test_step(self, api: Any, variables: Any, tf: Any) -> None:
        variables("SLURM_", **THREE_NODES, STEP_TASKS_PER_NODE="1(x3)")
        variables(CUDA_VISIBLE_DEVICES="0")
        resolver = api.SlurmClusterResolver()
        spec = resolver.cluster_spec()
        assert isinstance(spec, tf.train.ClusterSpec)
        assert spec.as_dict() == {"worker": ["t02n13:8888", "t02n41:8888", "t02n43:8888"]}
        assert resolver.master("worker", 0, rpc_layer="grpc") == "grpc://t02n13:8888"
        assert resolver.num_accelerators() == {"GPU": 1}
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
        assert resolver.get_task_info() == ("worker", 0)

    def test_jobs_and_several_tasks_on_a_node(self, api: Any, variables: Any) -> None:
        variables("SLURM_", **FIVE_TASKS)
        resolver = api.SlurmClusterResolver({"ps": 1, "worker": 4}, 8888, 4, 2)
        assert resolver.cluster_spec().as_dict() == {
            "ps": ["t02n13:8888"],
            "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"],
        }
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
        resolver.task_type, resolver.task_id = "worker", 1
        assert resolver.master("worker", 1) == "grpc://t02n41:8888"
        resolver.rpc_layer = "ab"
        assert resolver.master("ps", 0) == "ab://t02n13:8888"
        assert resolver.master("ps", 0, rpc_layer="test") == "test://t02n13:8888"

    def test_nodes_have_the_order_of_ranks_but_of_text_in_tensorflow(
        self, ours: Any, theirs: Any, variables: Any
    ) -> None:
        variables("SLURM_", PROCID="0", STEP_NODELIST="n[9-10]", STEP_NUM_TASKS="2")
        variables("SLURM_", STEP_TASKS_PER_NODE="1(x2)")
        variables(SLURMD_NODENAME="n9")
        mine, other = (each.SlurmClusterResolver(gpus_per_node=1) for each in (ours, theirs))
        assert mine.cluster_spec().as_dict() == {"worker": ["n9:8888", "n10:8888"]}
        assert mine.this_task().address == "n9:8888"
        assert other.cluster_spec().as_dict() == {"worker": ["n10:8888", "n9:8888"]}
        assert other.master() == "grpc://n10:8888"  # but this process runs on n9

    def test_devices_are_those_of_slurm_but_counted_from_0_in_tensorflow(
        self, ours: Any, theirs: Any, variables: Any
    ) -> None:
        for cls, devices in ((ours.SlurmClusterResolver, "6,7"), (theirs.SlurmClusterResolver, "2,3")):
            variables("SLURM_", PROCID="1", STEP_NODELIST="n1", STEP_NUM_TASKS="2", STEP_TASKS_PER_NODE="2")
            variables(CUDA_VISIBLE_DEVICES="4,5,6,7")
            cls().cluster_spec()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == devices


class TestSageMaker:
    def test_hosts_port_and_overrides(self, api: Any, variables: Any, tf: Any) -> None:
        variables(SM_HOSTS='["algo-2","algo-10","algo-1"]', SM_CURRENT_HOST="algo-1")
        resolver = api.SageMakerClusterResolver(2224, rpc_layer="grpc")
        assert isinstance(resolver.cluster_spec(), tf.train.ClusterSpec)
        assert resolver.cluster_spec().as_dict() == {"worker": ["algo-1:2224", "algo-10:2224", "algo-2:2224"]}
        assert (resolver.task_type, resolver.task_id) == ("worker", 0)
        assert resolver.master() == "grpc://algo-1:2224"
        assert resolver.master("worker", 1) == "grpc://algo-10:2224"
        resolver = api.SageMakerClusterResolver(task_type="worker", task_id=2)
        assert resolver.master() == "algo-2:2223"
        resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "test"
        assert resolver.master() == "test://algo-10:2223"
        assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "test")
