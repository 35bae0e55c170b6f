"""The documentation page of `tf.distribute.cluster_resolver.ClusterResolver`, entry by entry.

The page is a contract for implementors. The same subclasses are written for TensorFlow's base class, for the
one that `aioresolve.tensorflow` has, and for the blocking base class of `aioresolve.sync`.
"""

from typing import Any

import pytest

import aioresolve
from aioresolve import sync

pytestmark = pytest.mark.slow

WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]


@pytest.fixture(params=["tensorflow", "aioresolve.tensorflow", "aioresolve.sync"])
def base(request: pytest.FixtureRequest) -> Any:
    """The class that is subclassed."""
    if request.param == "aioresolve.sync":
        return sync.ClusterResolver
    return request.getfixturevalue("theirs" if request.param == "tensorflow" else "ours").ClusterResolver


@pytest.fixture(params=["attributes", "private attributes", "class attributes", "properties"])
def implementor(request: pytest.FixtureRequest, base: Any, tf: Any) -> Any:
    """A resolver of a user, with its task in each form that the pages permit."""

    class Methods(base):  # type: ignore[misc]
        addresses = WORKERS

        def cluster_spec(self) -> Any:
            is_sync = base is sync.ClusterResolver
            return (aioresolve.ClusterSpec if is_sync else tf.train.ClusterSpec)({"worker": self.addresses})

        def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
            address = self.cluster_spec().task_address(task_type or self.task_type, task_id or self.task_id)
            return f"{rpc_layer or self.rpc_layer}://{address}"

    class Attributes(Methods):
        def __init__(self) -> None:
            self.task_type, self.task_id, self.rpc_layer = "worker", 1, "grpc"

    class PrivateAttributes(Methods):
        def __init__(self) -> None:
            self._task_type, self._task_id, self._rpc_layer = "worker", 1, "grpc"
            if base is not sync.ClusterResolver:
                self.rpc_layer = "grpc"  # for which TensorFlow's class has no property

    class ClassAttributes(Methods):
        task_type, task_id, rpc_layer = "worker", 1, "grpc"

    class Properties(Methods):
        number = 1
        task_type = property(lambda self: "worker")
        task_id = property(lambda self: self.number, lambda self, value: setattr(self, "number", value))
        rpc_layer = property(lambda self: "grpc")

    kinds = {kind.__name__: kind for kind in (Attributes, PrivateAttributes, ClassAttributes, Properties)}
    return kinds[request.param.title().replace(" ", "")]()


def test_base_class_is_abstract(base: Any) -> None:
    with pytest.raises(TypeError):
        base()


def test_implementor_is_used_as_it_is(base: Any, implementor: Any) -> None:
    assert (implementor.task_type, implementor.task_id, implementor.rpc_layer) == ("worker", 1, "grpc")
    assert implementor.master() == "grpc://10.0.0.2:2222"
    assert implementor.master("worker", 1, "http") == "http://10.0.0.2:2222"
    implementor.task_id = 0
    assert implementor.task_id == 0
    # The environment is an empty string unless it is overridden.
    assert implementor.environment == ""
    assert type("Google", (type(implementor),), {"environment": "google"})().environment == "google"
    # The cluster is that of the moment of the call.
    assert implementor.cluster_spec().as_dict() == {"worker": WORKERS}
    implementor.addresses = ["10.0.0.3:2222"]
    assert implementor.cluster_spec().as_dict() == {"worker": ["10.0.0.3:2222"]}


def test_accelerators_are_counted_by_type_of_one_task(api: Any, tf: Any, monkeypatch: Any) -> None:
    from tensorflow.python.framework import config

    class Fixed(api.ClusterResolver):  # type: ignore[misc]
        def cluster_spec(self) -> Any:
            return tf.train.ClusterSpec({"worker": WORKERS})

        def master(self, *_: Any) -> str:
            return ""

    names = [("GPU", 0, 0), ("GPU", 0, 1), ("TPU", 1, 0), ("GPU", 1, 0)]
    devices = [
        tf.config.LogicalDevice(f"/job:worker/task:{task}/device:{kind}:{number}", kind)
        for kind, task, number in names
    ]
    monkeypatch.setattr(config, "list_logical_devices", lambda *_: devices)
    assert Fixed().num_accelerators("worker", 0) == {"GPU": 2}
    assert Fixed().num_accelerators("worker", 1) == {"GPU": 1, "TPU": 1}


def test_union_takes_a_blocking_implementor_and_names_tensorflows_union_for_others(
    implementor: Any, ours: Any
) -> None:
    if not isinstance(implementor, sync.ClusterResolver):
        with pytest.raises(TypeError, match=r"into tf\.distribute\.cluster_resolver\.UnionResolver"):
            ours.UnionResolver(implementor)
        return
    union = sync.UnionClusterResolver(implementor)
    assert union.cluster_spec().as_dict() == {"worker": WORKERS}
    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 1, "grpc")
    assert union.master() == "grpc://10.0.0.2:2222"
