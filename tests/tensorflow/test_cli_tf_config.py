"""`-o tf-config`, parsed by TensorFlow's own resolver."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve import ClusterSpec
from aioresolve.cli.clusters import TaskName, tf_config

pytest.importorskip("tensorflow")

DENSE = {"worker": ["10.0.0.1:8470", "[fd00::7]:8470"], "ps": ["10.0.0.3:8470"]}
SPARSE = {"worker": {0: "a:1", 2: "b:1", 10: "c:1"}, "ps": list[str]()}


@pytest.mark.parametrize(
    ("cluster", "task"),
    [(DENSE, TaskName("worker", 1)), (DENSE, TaskName("evaluator", 0)), (SPARSE, None), ({}, None)],
)
def test_tensorflow_parses_the_same_cluster_and_task(
    cluster: Any, task: TaskName | None, tf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ClusterSpec(cluster)
    monkeypatch.setenv("TF_CONFIG", tf_config(spec, task))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    assert resolver.cluster_spec() == spec
    assert (resolver.task_type, resolver.task_id) == ((task.job, task.index) if task else (None, None))
    if task == TaskName("worker", 1):
        assert resolver.master() == "grpc://[fd00::7]:8470"
