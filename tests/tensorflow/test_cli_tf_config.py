"""`-o tf-config`, parsed by TensorFlow's own resolver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aioresolve import ClusterSpec
from aioresolve.cli.output.formats import TaskName, tf_config

if TYPE_CHECKING:
    from collections.abc import Mapping

pytest.importorskip("tensorflow")

CLUSTERS: list[Mapping[str, Any]] = [
    {"worker": ["10.0.0.1:8470", "[fd00::7]:8470"], "ps": ["10.0.0.3:8470"]},
    {"worker": {0: "a:1", 2: "b:1", 10: "c:1"}},
    {"worker": ["a:1"], "ps": []},
    {},
]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_tensorflow_parses_the_same_cluster(
    cluster: Mapping[str, Any], tf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = ClusterSpec(cluster)
    monkeypatch.setenv("TF_CONFIG", tf_config(spec))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert resolver.cluster_spec() == spec
    assert (resolver.task_type, resolver.task_id) == (None, None)


@pytest.mark.parametrize("task", [TaskName("worker", 1), TaskName("ps", 0), TaskName("evaluator", 0)])
def test_tensorflow_parses_the_same_task(task: TaskName, tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(ClusterSpec(CLUSTERS[0]), task))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    assert (resolver.task_type, resolver.task_id) == (task.job, task.index)


def test_tensorflow_finds_the_address_of_the_task(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", tf_config(ClusterSpec(CLUSTERS[0]), TaskName("worker", 1)))
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver(rpc_layer="grpc")
    assert resolver.master() == "grpc://[fd00::7]:8470"
