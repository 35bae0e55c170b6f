"""`SimpleClusterResolver` and `UnionClusterResolver`, compared with TensorFlow's on the same input."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import ClusterSpec, SimpleClusterResolver, UnionClusterResolver

pytestmark = pytest.mark.slow

JOBS = st.sampled_from(["worker", "ps"])
INDICES = st.integers(0, 3)
ADDRESSES = st.sampled_from(["a:1", "b:2", "c:3"])
CLUSTERS = st.dictionaries(
    JOBS, st.lists(ADDRESSES, max_size=3) | st.dictionaries(INDICES, ADDRESSES, max_size=3)
)
RPC_LAYERS = st.sampled_from([None, "grpc", "grpcs"])
ARGUMENTS = st.fixed_dictionaries(
    {"cluster": CLUSTERS},
    optional={
        "master": st.sampled_from(["", "m:9"]),
        "task_type": st.none() | JOBS,
        "task_id": st.none() | INDICES,
        "environment": st.sampled_from(["", "google"]),
        "num_accelerators": st.sampled_from([None, {}, {"GPU": 8}]),
        "rpc_layer": RPC_LAYERS,
    },
)
OVERRIDES = st.fixed_dictionaries(
    {}, optional={"task_type": st.none() | JOBS, "task_id": st.none() | INDICES, "rpc_layer": RPC_LAYERS}
)
QUERIES = st.tuples(st.none() | JOBS, st.none() | INDICES, RPC_LAYERS)


def pair(tf: Any, arguments: dict[str, Any]) -> tuple[SimpleClusterResolver, Any]:
    options = {name: value for name, value in arguments.items() if name != "cluster"}
    return (
        SimpleClusterResolver(ClusterSpec(arguments["cluster"]), **options),
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(arguments["cluster"]), **options
        ),
    )


def assert_same_masters(ours: Any, theirs: Any, query: tuple[Any, ...]) -> None:
    try:
        expected = theirs.master(*query)
    except (ValueError, KeyError) as error:
        with pytest.raises(type(error)):
            asyncio.run(ours.master(*query))
    else:
        assert asyncio.run(ours.master(*query)) == expected


def assert_same_attributes(ours: Any, theirs: Any) -> None:
    for attribute in ("task_type", "task_id", "rpc_layer", "environment"):
        assert getattr(ours, attribute) == getattr(theirs, attribute)


@given(ARGUMENTS, QUERIES, QUERIES)
def test_simple_resolver_returns_the_same(
    tf: Any, arguments: dict[str, Any], query: tuple[Any, ...], assigned: tuple[Any, ...]
) -> None:
    ours, theirs = pair(tf, arguments)
    assert asyncio.run(ours.cluster_spec()) == theirs.cluster_spec()
    assert asyncio.run(ours.num_accelerators()) == theirs.num_accelerators()
    assert_same_attributes(ours, theirs)
    assert_same_masters(ours, theirs, query)
    for resolver in (ours, theirs):
        resolver.task_type, resolver.task_id, resolver.rpc_layer = assigned
    assert_same_attributes(ours, theirs)
    assert_same_masters(ours, theirs, ())


@given(st.lists(ARGUMENTS, min_size=1, max_size=3), OVERRIDES, QUERIES)
def test_union_returns_the_same(
    tf: Any, arguments: list[dict[str, Any]], overrides: dict[str, Any], query: tuple[Any, ...]
) -> None:
    for each in arguments:  # jobs without tasks, and task 0 as an override, differ: see below
        each["cluster"] = {job: tasks for job, tasks in each["cluster"].items() if tasks}
    overrides = {name: value for name, value in overrides.items() if value != 0}
    pairs = [pair(tf, each) for each in arguments]
    ours = UnionClusterResolver(*(one for one, _ in pairs), **overrides)
    theirs = tf.distribute.cluster_resolver.UnionResolver(*(other for _, other in pairs), **overrides)
    assert_same_attributes(ours, theirs)
    assert_same_masters(ours, theirs, query)
    try:
        expected = theirs.cluster_spec()
    except KeyError:
        with pytest.raises(KeyError):
            asyncio.run(ours.cluster_spec())
        with pytest.raises(KeyError):
            asyncio.run(ours.cluster_state())
    else:
        spec = asyncio.run(ours.cluster_spec())
        assert spec == expected
        assert spec.jobs == expected.jobs
        assert asyncio.run(ours.cluster_state()).spec == expected


def test_override_of_task_0_is_used_but_ignored_by_tensorflow(tf: Any) -> None:
    ours, theirs = pair(tf, {"cluster": {}, "task_id": 1})
    assert tf.distribute.cluster_resolver.UnionResolver(theirs, task_id=0).task_id == 1
    assert UnionClusterResolver(ours, task_id=0).task_id == 0


def test_job_without_tasks_adds_nothing_but_is_sparse_in_tensorflow(tf: Any) -> None:
    pairs = [pair(tf, {"cluster": {"worker": tasks}}) for tasks in (["a:1"], [], ["b:2"])]
    with pytest.raises(KeyError):
        tf.distribute.cluster_resolver.UnionResolver(*(theirs for _, theirs in pairs)).cluster_spec()
    spec = asyncio.run(UnionClusterResolver(*(ours for ours, _ in pairs)).cluster_spec())
    assert spec.as_dict() == {"worker": ["a:1", "b:2"]}
