"""The documentation page of `tf.train.ClusterSpec`, entry by entry, for its class and for aioresolve's two.

`test_spec_against_tensorflow.py` compares generated input.
"""

from typing import Any

import pytest

import aioresolve

pytestmark = pytest.mark.slow

WORKERS = ["worker0.example.com:2222", "worker1.example.com:2222", "worker2.example.com:2222"]
SERVERS = ["ps0.example.com:2222", "ps1.example.com:2222"]
DENSE = {"worker": WORKERS, "ps": SERVERS}
SPARSE = {"worker": {1: "worker1.example.com:2222"}, "ps": SERVERS}


@pytest.fixture(params=["tensorflow", "aioresolve.tensorflow", "aioresolve"])
def spec_class(request: pytest.FixtureRequest) -> Any:
    if request.param == "aioresolve":
        return aioresolve.ClusterSpec
    return request.getfixturevalue("theirs" if request.param == "tensorflow" else "ours").ClusterSpec


def test_class_of_aioresolve_tensorflow_is_tensorflows(tf: Any, ours: Any) -> None:
    assert ours.ClusterSpec is tf.train.ClusterSpec


def test_consumers_of_tensorflow_take_it(tf: Any, ours: Any) -> None:
    cluster = ours.ClusterSpec({"worker": ["127.0.0.1:0"]})
    server = tf.distribute.Server(cluster, job_name="worker", task_index=0, start=False)
    assert server.server_def.cluster == cluster.as_cluster_def()
    assert tf.train.ServerDef(cluster=cluster.as_cluster_def()).cluster.job[0].tasks[0] == "127.0.0.1:0"
    resolver = ours.SimpleClusterResolver(cluster)
    assert resolver.cluster_spec() == cluster


def test_examples(spec_class: Any) -> None:
    assert spec_class(DENSE).as_dict() == DENSE
    assert spec_class(SPARSE).as_dict() == SPARSE


def test_cluster_may_be_a_message(spec_class: Any, tf: Any) -> None:
    message = tf.train.ClusterSpec(SPARSE).as_cluster_def()
    assert isinstance(message, tf.train.ClusterDef)
    spec = spec_class(message)
    assert spec.as_dict() == SPARSE
    assert spec.as_cluster_def().SerializeToString(deterministic=True) == message.SerializeToString(
        deterministic=True
    )


def test_other_clusters_are_type_errors(spec_class: Any) -> None:
    # The last one is a ValueError of `int()` in TensorFlow.
    for cluster in (None, "worker", ["a:1"], {"worker": "a:1"}, {3: ["a:1"]}, {"worker": {"a": "b:1"}}):
        with pytest.raises((TypeError, ValueError)):
            spec_class(cluster)


def test_jobs_tasks_and_indices(spec_class: Any) -> None:
    spec = spec_class(SPARSE)
    assert sorted(spec.jobs) == ["ps", "worker"]
    assert (spec.num_tasks("worker"), spec.num_tasks("ps")) == (1, 2)
    assert (spec.task_indices("worker"), spec.task_indices("ps")) == ([1], [0, 1])
    assert spec.task_address("worker", 1) == "worker1.example.com:2222"
    assert spec.job_tasks("worker") == [None, "worker1.example.com:2222"]
    assert spec.job_tasks("ps") == SERVERS


def test_unknown_job_or_task_is_a_value_error(spec_class: Any) -> None:
    spec = spec_class(SPARSE)
    for method, *arguments in (
        ("num_tasks", "evaluator"),
        ("task_indices", "evaluator"),
        ("job_tasks", "evaluator"),
        ("task_address", "evaluator", 0),
        ("task_address", "worker", 0),
    ):
        with pytest.raises(ValueError, match=r"No such job|No task with|no job|no task"):
            getattr(spec, method)(*arguments)


def test_truth_and_comparisons(spec_class: Any) -> None:
    assert spec_class(DENSE)
    assert spec_class(DENSE).__nonzero__()
    assert not spec_class({})
    assert spec_class(DENSE) == spec_class(dict(reversed(DENSE.items())))
    assert spec_class(DENSE) != spec_class(SPARSE)
