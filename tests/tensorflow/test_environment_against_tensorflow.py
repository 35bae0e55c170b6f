"""The resolvers that read variables: the cases of TensorFlow's own tests, and where TensorFlow is wrong.

The cases are those of `{tfconfig,slurm,sagemaker}_cluster_resolver_test.py` of TensorFlow 2.21, whose inputs
and results both classes must agree on. Each test of a difference shows TensorFlow's result too.
"""

from __future__ import annotations

import json
import os
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve import EnvironmentVariableError

pytestmark = pytest.mark.slow

CLUSTER = {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222", "worker2:2222"]}
THREE_NODES = {"PROCID": "0", "STEP_NUM_TASKS": "3", "STEP_NODELIST": "t02n13,t02n41,t02n43"}
FIVE_TASKS = {**THREE_NODES, "PROCID": "1", "STEP_NUM_TASKS": "5", "STEP_TASKS_PER_NODE": "2(x2),1"}


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets variables; `slurm(...)` adds the prefix."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("aioresolve.environment.slurm._assigned", None)

    def set_variables(prefix: str = "", **values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(f"{prefix}{name}", value)

    return set_variables


def tf_config(set_variables: Any, **config: Any) -> None:
    set_variables(TF_CONFIG=json.dumps(config))


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
    @pytest.fixture
    def pair(self, ours: Any, theirs: Any) -> Any:
        def make(*arguments: Any, **options: Any) -> list[Any]:
            name = "TFConfigClusterResolver"
            return [cls(*arguments, **options) for cls in (getattr(ours, name), getattr(theirs, name))]

        return make

    def test_overrides(self, pair: Any, variables: Any, tf: Any) -> None:
        tf_config(variables, cluster=CLUSTER, task=task("ps", 1), rpc_layer="grpc")
        for resolver in pair(task_type="ps", task_id=0):
            assert isinstance(resolver.cluster_spec(), tf.train.ClusterSpec)
            assert resolver.master() == "grpc://ps0:2222"
            assert (resolver.task_type, resolver.task_id) == ("ps", 0)
            resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "test"
            assert resolver.master() == "test://worker1:2222"
            assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "test")

    @given(CONFIGS, QUERIES)
    @example({"cluster": {"worker": {"1": "w1:2222"}}, "task": task("worker", 1)}, (None, None, None))
    @example({"cluster": {"worker": {"1": "w1:2222"}}}, ("worker", 1, "grpc"))
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

    @pytest.mark.parametrize(("index", "used"), [(1.9, 1), (-1, -1)])
    def test_index_that_is_not_one_is_an_error(
        self, index: Any, used: int, pair: Any, variables: Any
    ) -> None:
        tf_config(variables, cluster=CLUSTER, task=task("ps", index))
        mine, other = pair()
        assert other.task_id == used
        with pytest.raises(ValueError, match="not an integer from 0"):
            _ = mine.task_id


class TestSlurm:
    @pytest.fixture
    def pair(self, ours: Any, theirs: Any) -> Any:
        def make(**options: Any) -> list[Any]:
            name = "SlurmClusterResolver"
            return [cls(**options) for cls in (getattr(ours, name), getattr(theirs, name))]

        return make

    def test_step(self, pair: Any, variables: Any, tf: Any) -> None:
        variables("SLURM_", **THREE_NODES, STEP_TASKS_PER_NODE="1(x3)")
        variables(CUDA_VISIBLE_DEVICES="0")
        for resolver in pair():
            spec = resolver.cluster_spec()
            assert isinstance(spec, tf.train.ClusterSpec)
            assert spec.as_dict() == {"worker": ["t02n13:8888", "t02n41:8888", "t02n43:8888"]}
            assert resolver.master("worker", 0, rpc_layer="grpc") == "grpc://t02n13:8888"
            assert resolver.num_accelerators() == {"GPU": 1}
            assert os.environ["CUDA_VISIBLE_DEVICES"] == "0"
            assert resolver.get_task_info() == ("worker", 0)

    def test_jobs(self, pair: Any, variables: Any) -> None:
        variables("SLURM_", **THREE_NODES, STEP_TASKS_PER_NODE="1(x3)")
        for resolver in pair(
            jobs={"ps": 1, "worker": 2},
            port_base=8888,
            gpus_per_node=1,
            gpus_per_task=1,
            auto_set_gpu=False,
        ):
            assert resolver.cluster_spec().as_dict() == {
                "ps": ["t02n13:8888"],
                "worker": ["t02n41:8888", "t02n43:8888"],
            }
            resolver.task_type, resolver.task_id = "worker", 1
            assert resolver.master("worker", 1) == "grpc://t02n43:8888"
            resolver.rpc_layer = "ab"
            assert resolver.master("ps", 0) == "ab://t02n13:8888"
            assert resolver.master("ps", 0, rpc_layer="test") == "test://t02n13:8888"

    @pytest.mark.parametrize(("node", "each", "devices"), [(4, 2, "2,3")])
    def test_several_tasks_on_a_node(
        self, node: int, each: int, devices: str, pair: Any, variables: Any
    ) -> None:
        for position in range(2):
            variables("SLURM_", **FIVE_TASKS)
            variables(CUDA_VISIBLE_DEVICES="")
            resolver = pair(
                jobs={"ps": 1, "worker": 4}, port_base=8888, gpus_per_node=node, gpus_per_task=each
            )[position]
            assert resolver.cluster_spec().as_dict() == {
                "ps": ["t02n13:8888"],
                "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"],
            }
            assert os.environ["CUDA_VISIBLE_DEVICES"] == devices

    def test_nodes_have_the_order_of_ranks_but_of_text_in_tensorflow(self, pair: Any, variables: Any) -> None:
        variables("SLURM_", PROCID="0", STEP_NODELIST="n[9-10]", STEP_NUM_TASKS="2")
        variables("SLURM_", STEP_TASKS_PER_NODE="1(x2)")
        variables(SLURMD_NODENAME="n9")
        mine, other = pair(gpus_per_node=1)
        assert mine.cluster_spec().as_dict() == {"worker": ["n9:8888", "n10:8888"]}
        assert mine.this_task().address == "n9:8888"
        assert other.cluster_spec().as_dict() == {"worker": ["n10:8888", "n9:8888"]}
        assert other.master() == "grpc://n10:8888"  # but this process runs on n9

    def test_cyclic_ranks_are_followed_but_not_by_tensorflow(self, pair: Any, variables: Any) -> None:
        variables("SLURM_", PROCID="1", STEP_NODELIST="n[1-2]", STEP_NUM_TASKS="4", LOCALID="0")
        variables("SLURM_", STEP_TASKS_PER_NODE="2(x2)", DISTRIBUTION="cyclic")
        variables(SLURMD_NODENAME="n2")
        mine, other = pair(gpus_per_node=2)
        other.cluster_spec()
        assert mine.master() == "grpc://n2:8888"
        assert other.master() == "grpc://n1:8889"

    def test_devices_are_those_of_slurm_but_counted_from_0_in_tensorflow(
        self, ours: Any, theirs: Any, variables: Any
    ) -> None:
        for cls, devices in ((ours.SlurmClusterResolver, "6,7"), (theirs.SlurmClusterResolver, "2,3")):
            variables("SLURM_", PROCID="1", STEP_NODELIST="n1", STEP_NUM_TASKS="2", STEP_TASKS_PER_NODE="2")
            variables(CUDA_VISIBLE_DEVICES="4,5,6,7")
            cls().cluster_spec()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == devices


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.sampled_from([None, {"ps": 1}, {"chief": 1, "ps": 1}]),
)
def test_steps_with_one_digit_have_the_same_cluster(
    ours: Any, theirs: Any, counts: list[int], jobs: Any
) -> None:
    """Where the order of text is that of the ranks, and each task has a GPU, both have the same result."""
    total = sum(counts)
    if jobs is not None:
        rest = total - sum(jobs.values())
        jobs = {**jobs, "worker": rest} if rest > 0 else None
    environ = {
        "SLURM_PROCID": str(total - 1),
        "SLURM_STEP_NODELIST": f"n[1-{len(counts)}]" if len(counts) > 1 else "n1",
        "SLURM_STEP_NUM_TASKS": str(total),
        "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
    }
    results = []
    for cls in (ours.SlurmClusterResolver, theirs.SlurmClusterResolver):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
            resolver = cls(jobs=jobs, gpus_per_node=max(counts))
            spec = resolver.cluster_spec().as_dict()
            results.append(
                (spec, resolver.get_task_info(), resolver.master(), os.environ["CUDA_VISIBLE_DEVICES"])
            )
    assert results[0] == results[1]


class TestSageMaker:
    @pytest.fixture
    def pair(self, ours: Any, theirs: Any) -> Any:
        def make(*arguments: Any, **options: Any) -> list[Any]:
            name = "SageMakerClusterResolver"
            return [cls(*arguments, **options) for cls in (getattr(ours, name), getattr(theirs, name))]

        return make

    def test_hosts(self, pair: Any, variables: Any, tf: Any) -> None:
        variables(SM_HOSTS='["algo-1","algo-2"]', SM_CURRENT_HOST="algo-2")
        for resolver in pair():
            assert isinstance(resolver.cluster_spec(), tf.train.ClusterSpec)
            assert resolver.cluster_spec().as_dict() == {"worker": ["algo-1:2223", "algo-2:2223"]}
            assert resolver.master() == resolver.master("worker", 1) == "algo-2:2223"
            assert (resolver.task_type, resolver.task_id) == ("worker", 1)

    def test_rpc_layer_port_and_overrides(self, pair: Any, variables: Any) -> None:
        variables(SM_HOSTS='["algo-2","algo-10","algo-1"]', SM_CURRENT_HOST="algo-1")
        for resolver in pair(2224, rpc_layer="grpc"):
            assert resolver.master() == "grpc://algo-1:2224"
            assert resolver.master("worker", 1) == "grpc://algo-10:2224"
        for resolver in pair(task_type="worker", task_id=0):
            assert resolver.master() == "algo-1:2223"
            resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "test"
            assert resolver.master() == "test://algo-10:2223"
            assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "test")
        assert [resolver.task_id for resolver in pair(task_id=1)] == [1, 1]

    def test_unknown_current_host_is_an_error_but_an_empty_cluster_in_tensorflow(
        self, pair: Any, variables: Any
    ) -> None:
        variables(SM_HOSTS='["algo-1"]', SM_CURRENT_HOST="algo-7")
        mine, other = pair()
        assert other.cluster_spec().as_dict() == {}
        with pytest.raises(EnvironmentVariableError, match="SM_CURRENT_HOST"):
            mine.cluster_spec()
