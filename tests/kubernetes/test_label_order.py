"""The order of tasks by labels of pods, and by those of the nodes that they run on."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import KubernetesClusterResolver
from aioresolve.errors import ConfigurationError, ForbiddenError, PodIndexError
from aioresolve.kubernetes.tasks.matched_pods import MatchedPod, match_pods
from aioresolve.kubernetes.tasks.order_by import validate_order_by
from aioresolve.kubernetes.tasks.task_order import JobTasks, LabelOrdering, SelectorTasks
from aioresolve.testing import Answer, node

from . import samples
from .loopback import TRAIN

if TYPE_CHECKING:
    from aioresolve import ClusterState

    from .loopback import Loopback

BLOCK, HOST = "node-label:cloud.google.com/gce-topology-block", "node-label:kubernetes.io/hostname"
TOPOLOGY = [BLOCK, HOST]


def matched(name: str, ordering: LabelOrdering, *, on: str = "node-a", **labels: str) -> MatchedPod:
    pod = samples.pod(name, metadata={"labels": labels}, spec={"nodeName": on})
    return match_pods([pod], "pod_ip", 8470, label_keys=ordering.pod_keys)[0]


def names(selector: SelectorTasks) -> list[str | None]:
    return [endpoint.name for endpoint in selector.endpoints]


def names_of(state: ClusterState) -> list[str | None]:
    return [endpoint.name for endpoint in state.endpoints["worker"]]


def test_names_of_orders() -> None:
    assert validate_order_by("name") == "name"
    assert validate_order_by(["index"]) == "index"
    assert validate_order_by("label:rank") == ("label:rank",)
    assert validate_order_by(["label:a.b/c", "node-label:d"]) == ("label:a.b/c", "node-label:d")


@pytest.mark.parametrize("order_by", ["age", "label:", "label:a b", "label:a/b/c", [], [1], None])
def test_other_orders_are_invalid(order_by: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not one of 'name', 'index', 'label:KEY'"):
        KubernetesClusterResolver(order_by=order_by)


def test_only_labels_can_be_combined() -> None:
    for order_by in (["name", "label:a"], ["label:a", "index"], ["name", "index"]):
        with pytest.raises(ConfigurationError, match="' cannot be combined with another order"):
            KubernetesClusterResolver(order_by=order_by)


def test_values_of_labels_are_compared_as_numbers_and_ties_by_name() -> None:
    ordering = LabelOrdering(["label:slice", "label:host"])
    selector = SelectorTasks("worker", order_by=ordering)
    places = {"a": ("10", "0"), "b": ("2", "1"), "d": ("2", "0"), "c": ("2", "0")}
    selector.fill(matched(name, ordering, slice=one, host=two) for name, (one, two) in places.items())
    assert names(selector) == ["c", "d", "b", "a"]
    assert list(selector.numbering.addresses) == [0, 1, 2, 3]
    assert (selector.numbering.first, selector.numbering.end) == (0, 4)


def test_pod_without_the_label_is_reported() -> None:
    ordering = LabelOrdering(["label:rank"])
    selector = SelectorTasks("worker", order_by=ordering)
    selector.fill([matched("a", ordering, rank="0"), matched("b", ordering)])
    with pytest.raises(PodIndexError, match="by label 'rank': it is missing for ml/b") as caught:
        JobTasks("worker", [selector], allow_gaps=True).addresses()
    assert caught.value.unindexed == ("ml/b",)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcde"), st.none() | st.sampled_from(["0", "1", "02", "x"]), st.booleans()
        ),
        max_size=12,
    )
)
def test_changes_one_by_one_give_the_order_of_a_list(
    writes: list[tuple[str, str | None, bool]],
) -> None:
    ordering = LabelOrdering(["label:rank"])
    selector = SelectorTasks("worker", order_by=ordering)
    selector.fill(())
    pods: dict[str, MatchedPod] = {}
    for name, rank, exists in writes:
        one = matched(name, ordering, **({} if rank is None else {"rank": rank}))
        if exists:
            pods[name] = one
            selector.put(one)
        else:
            pods.pop(name, None)
            selector.discard(one)
        listed = SelectorTasks("worker", order_by=ordering)
        listed.fill(pods.values())
        assert names(selector) == names(listed)
        assert selector.numbering.addresses == listed.numbering.addresses
        assert sorted(selector.numbering.unindexed) == sorted(listed.numbering.unindexed)


def test_node_of_a_member_is_unknown_until_the_nodes_are_read() -> None:
    ordering = LabelOrdering(["node-label:rack"])
    selector = SelectorTasks("worker", order_by=ordering)
    first, second = matched("a", ordering, on="node-2"), matched("b", ordering, on="node-1")
    pending = samples.pod("c", phase="Pending", spec={"nodeName": "node-3"})
    selector.fill([first, *match_pods([pending], "pod_ip", 8470, label_keys=ordering.pod_keys)])
    assert selector.unknown_nodes == {"node-2"}
    selector.put(second)
    assert selector.unknown_nodes == {"node-1", "node-2"}
    selector.discard(second)
    assert selector.unknown_nodes == {"node-2"}
    ordering.nodes, ordering.absent = {"node-2": ("r2",)}, frozenset({"node-1"})
    selector.put(first)
    selector.put(second)
    assert selector.unknown_nodes == set()
    assert (names(selector), selector.numbering.unindexed) == (["a"], ["ml/b"])
    ordering.nodes, ordering.absent = {"node-2": ("r2",), "node-1": ("r1",)}, frozenset()
    selector.put(second)
    assert (names(selector), selector.numbering.unindexed) == (["b", "a"], [])


# Over real sockets


def add_topology(loopback: Loopback) -> None:
    """Add four pods on four nodes in two blocks; the names of the pods are in no order of the blocks."""
    for number, block in enumerate(["b", "a", "b", "a"]):
        labels = {"cloud.google.com/gce-topology-block": block}
        loopback.server.add(node(f"node-{number}", labels=labels))
        loopback.train(f"train-{number}", node=f"node-{number}")


IN_TOPOLOGY = ["train-1", "train-3", "train-0", "train-2"]


async def test_tasks_are_in_the_order_of_their_nodes(loopback: Loopback) -> None:
    add_topology(loopback)
    resolver = loopback.resolver(order_by=TOPOLOGY)
    state = await resolver.cluster_state()
    assert names_of(state) == IN_TOPOLOGY
    assert await resolver.cluster_spec() == state.spec
    assert names_of(await resolver.wait(4)) == IN_TOPOLOGY
    async with aclosing(resolver.watch()) as states:
        assert names_of(await anext(states)) == IN_TOPOLOGY


async def test_labels_of_the_pod_and_of_the_node_can_be_combined(loopback: Loopback) -> None:
    add_topology(loopback)
    for number in range(4):
        labels = {**TRAIN, "rank": str(9 - number)}
        loopback.train(f"train-{number}", node=f"node-{number}", labels=labels)
    state = await loopback.resolver(order_by=[BLOCK, "label:rank"]).cluster_state()
    assert names_of(state) == ["train-3", "train-1", "train-2", "train-0"]
    loopback.server.forget_requests()
    await loopback.resolver(order_by="label:rank").cluster_state()
    assert not any(request.path == "/api/v1/nodes" for request in loopback.requests)


async def test_nodes_are_read_again_when_a_pod_runs_on_a_new_one(loopback: Loopback) -> None:
    add_topology(loopback)
    resolver = loopback.resolver(order_by=TOPOLOGY)
    async with aclosing(resolver.watch()) as states:
        await anext(states)
        loopback.server.add(node("node-9", labels={"cloud.google.com/gce-topology-block": "a"}))
        loopback.train("train-9", node="node-9")
        state = await anext(states)
        assert names_of(state) == ["train-1", "train-3", "train-9", "train-0", "train-2"]
        loopback.train("train-8", node="node-9")
        await anext(states)
    assert sum(request.path == "/api/v1/nodes" for request in loopback.requests) == 2


async def test_pods_on_nodes_without_the_label_are_reported(loopback: Loopback) -> None:
    loopback.server.add(node("node-0"))
    loopback.train("train-0", node="node-0")
    loopback.train("train-1", node="gone")
    message = "by label 'cloud.google.com/gce-topology-block' of the node and label 'app': it is missing for"
    with pytest.raises(PodIndexError, match="missing for ml/train-0, ml/train-1") as caught:
        await loopback.resolver(order_by=[BLOCK, "label:app"]).cluster_state()
    assert message in str(caught.value)


async def test_user_without_the_right_to_list_nodes_gets_the_cluster_role(loopback: Loopback) -> None:
    add_topology(loopback)
    loopback.server.resources = {"alice": ["pods"]}
    resolver = loopback.resolver(order_by=TOPOLOGY)
    for call in (resolver.cluster_spec, resolver.cluster_state, resolver.wait):
        with pytest.raises(ForbiddenError) as caught:
            await call()
        assert "user 'alice' may not list nodes in the cluster" in str(caught.value)
        assert "kind: ClusterRole" in caught.value.manifest
        assert "resources: [nodes]" in caught.value.manifest
        assert "`order_by='name'`" in str(caught.value)


def test_client_that_lists_only_pods_cannot_order_by_nodes() -> None:
    class Lister:
        def list_pod_for_all_namespaces(self, **_: object) -> None: ...

    KubernetesClusterResolver(override_client=Lister(), order_by="label:rank")
    with pytest.raises(ConfigurationError, match="only methods that list pods, not nodes"):
        KubernetesClusterResolver(override_client=Lister(), order_by=TOPOLOGY)


async def test_failure_of_the_server_while_nodes_are_read_is_retried(loopback: Loopback) -> None:
    add_topology(loopback)
    loopback.server.inject(Answer(503), match=lambda request: request.path == "/api/v1/nodes")
    assert names_of(await loopback.resolver(order_by=TOPOLOGY).wait(4)) == IN_TOPOLOGY


@pytest.mark.parametrize("status", [302, 403])
async def test_watch_that_has_read_the_nodes_continues_after_a_permanent_failure(
    loopback: Loopback, status: int
) -> None:
    add_topology(loopback)
    resolver = loopback.resolver(order_by=TOPOLOGY)
    resolver.watch_policy = samples.watch_policy()
    async with aclosing(resolver.watch()) as states:
        assert names_of(await anext(states)) == IN_TOPOLOGY
        loopback.server.inject(Answer(status), match=lambda request: request.path == "/api/v1/nodes", times=3)
        loopback.server.add(node("new", labels={"cloud.google.com/gce-topology-block": "z"}))
        loopback.train("w-new", node="new")
        assert names_of(await anext(states)) == [*IN_TOPOLOGY, "w-new"]
