"""`ClusterSpec` and `tf.train.ClusterSpec`, compared on the same input."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve import ClusterSpec, InvalidClusterError

NAMES = st.text(max_size=5)
ADDRESSES = st.text(max_size=5)
INDICES = st.integers(0, 9) | st.integers(0, 2**31 - 1)
TASKS = st.lists(ADDRESSES, max_size=4) | st.dictionaries(INDICES, ADDRESSES, max_size=4)
CLUSTERS = st.dictionaries(NAMES, TASKS, max_size=4)
ODD_TASKS = (
    st.lists(st.sampled_from([None, 3, "\ud800", "a"]), max_size=3)
    | st.dictionaries(st.sampled_from([-1, True, 1.5, "3", "x", None, 2**31]), ADDRESSES, max_size=3)
    | st.sampled_from([None, "a:1", b"a:1", 3, {"a:1"}, ("a:1",), [["a:1"]]])
)
ODD_CLUSTERS: st.SearchStrategy[Any] = st.dictionaries(
    NAMES | st.sampled_from([None, 3, ()]), TASKS | ODD_TASKS, max_size=3
) | st.sampled_from([None, [], "worker", 3, object])

CONVERSIONS = (ValueError, OverflowError)
"""Errors of int(), protobuf and codecs inside TensorFlow, which documents a TypeError."""


@pytest.fixture(scope="session")
def tf_spec(tf: Any) -> Any:
    return tf.train.ClusterSpec


def sparse(spec: Any) -> dict[Any, dict[int, Any]]:
    return {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}


def serialize(spec: Any) -> bytes:
    message: bytes = spec.as_cluster_def().SerializeToString(deterministic=True)
    return message


def is_kept(spec: ClusterSpec) -> bool:
    """Return whether TensorFlow keeps every task: it loses those with a negative index."""
    return all(index >= 0 for tasks in sparse(spec).values() for index in tasks)


def assert_same(ours: ClusterSpec, theirs: Any) -> None:
    """Assert that all members of two specs return the same values."""
    assert ours.jobs == theirs.jobs
    assert bool(ours) == bool(theirs)
    assert sparse(ours) == sparse(theirs)
    assert serialize(ours) == serialize(theirs)
    assert ours == theirs
    assert theirs == ours
    assert not ours != theirs  # noqa: SIM202
    assert not theirs != ours  # noqa: SIM202
    for form in (sparse(theirs), ours.as_dict(), None, "worker", 3):
        assert (ours == form) == (theirs == form)
        assert (ours != form) == (theirs != form)
    for job in ours.jobs:
        assert ours.num_tasks(job) == theirs.num_tasks(job)
        indices = ours.task_indices(job)
        list_is_short = bool(indices) and indices[-1] < 10_000
        if list_is_short and indices[0] >= 0:
            assert ours.job_tasks(job) == theirs.job_tasks(job)
    if is_kept(ours):
        assert ours.as_dict() == theirs.as_dict()
        assert list(ours.as_dict()) == list(theirs.as_dict())
        assert list(map(type, ours.as_dict().values())) == list(map(type, theirs.as_dict().values()))


@given(CLUSTERS | ODD_CLUSTERS)
@example({"worker": {1: "a:1", "1": "b:2", 1.5: "c:3"}})
@example({"worker": {-1: "a:1", 1: "b:2"}})
def test_any_input_gives_the_same_spec_or_is_rejected_by_both(tf_spec: Any, cluster: Any) -> None:
    try:
        theirs = tf_spec(cluster)
    except (TypeError, *CONVERSIONS):
        with pytest.raises(InvalidClusterError):
            ClusterSpec(cluster)
        return
    ours = ClusterSpec(cluster)
    assert_same(ours, theirs)
    is_plain = all(isinstance(tasks, list | dict) for tasks in cluster.values())
    if is_kept(ours) and is_plain and len(repr(theirs)) <= 200:  # a longer one is a summary
        assert repr(ours) == repr(theirs)
    copy = tf_spec(theirs)
    for source in (ours, theirs, theirs.as_cluster_def(), ours.as_cluster_def(), serialize(theirs)):
        assert_same(ClusterSpec(source), copy)


def test_job_tasks_of_an_empty_job_is_an_empty_list_but_fails_in_tensorflow(tf_spec: Any) -> None:
    with pytest.raises(ValueError, match="empty"):
        tf_spec({"ps": []}).job_tasks("ps")
    assert ClusterSpec({"ps": []}).job_tasks("ps") == []


def test_task_with_a_negative_index_is_kept_but_lost_in_tensorflow(tf_spec: Any) -> None:
    tasks = {-1: "z:9", 1: "b:2"}
    assert tf_spec({"worker": tasks}).as_dict() == {"worker": [None, "b:2"]}
    assert ClusterSpec({"worker": tasks}).as_dict() == {"worker": tasks}


OURS = "from aioresolve.spec import ClusterSpec; import aioresolve.spec.cluster_pb2"
THEIRS = "import tensorflow as tf"
BOTH = """
cluster = {"worker": ["a:1", "b:2"], "ps": {3: "c:4"}}
ours, theirs = ClusterSpec(cluster), tf.train.ClusterSpec(cluster)
assert ours == theirs == ClusterSpec(theirs)
assert ours.as_cluster_def().SerializeToString(deterministic=True) == \\
    theirs.as_cluster_def().SerializeToString(deterministic=True)
"""


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "tensorflow first"])
def test_both_libraries_can_be_imported_in_one_process_in_either_order(
    tf: Any, order: tuple[str, str]
) -> None:
    subprocess.run([sys.executable, "-c", "\n".join([*order, BOTH])], check=True, capture_output=True)
