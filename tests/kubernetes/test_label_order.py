"""The order of tasks by labels of pods, and by those of the nodes that they run on."""

from contextlib import aclosing
from typing import Any

import pytest

from aioresolve import ClusterState, KubernetesClusterResolver
from aioresolve.errors import ConfigurationError, ForbiddenError, PodIndexError
from aioresolve.kubernetes import Pod
from aioresolve.testing import Answer, node

from . import samples
from .loopback import TRAIN, Loopback
from .watched_cluster import listed_cache, names, state

BLOCK, HOST = "node-label:cloud.google.com/gce-topology-block", "node-label:kubernetes.io/hostname"
TOPOLOGY = [BLOCK, HOST]


def placed(name: str, *, on: str = "node-a", **labels: str) -> Pod:
    return samples.pod(name, metadata={"labels": labels}, spec={"nodeName": on})


def names_of(state: ClusterState) -> list[str | None]:
    return [endpoint.name for endpoint in state.endpoints["worker"]]


@pytest.mark.parametrize(
    "order_by",
    [
        *("age", "label:", "label:a b", "label:a/b/c", [], [1], None),
        *(["name", "label:a"], ["label:a", "index"], ["name", "index"]),
    ],
)
def test_other_orders_are_invalid(order_by: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"is not one of .*'label:KEY' .* Only labels can"):
        KubernetesClusterResolver(order_by=order_by)


def test_values_of_labels_are_compared_as_numbers_and_ties_by_name() -> None:
    places = {"a": ("10", "0"), "b": ("2", "1"), "d": ("2", "0"), "c": ("2", "0")}
    pods = [placed(name, slice=one, host=two) for name, (one, two) in places.items()]
    cache = listed_cache(*pods, order_by=["label:slice", "label:host"])
    assert names(cache) == ["c", "d", "b", "a"]
    assert state(cache).spec.task_indices("worker") == [0, 1, 2, 3]


def test_pod_without_the_label_is_reported() -> None:
    with pytest.raises(PodIndexError, match="by label 'rank': it is missing for ml/b\\."):
        state(listed_cache(placed("a", rank="0"), placed("b"), order_by=["label:rank"]))


# Over real sockets


def add_topology(loopback: Loopback) -> None:
    """Add four pods on four nodes in two blocks; the names of the pods are in no order of the blocks."""
    for number, block in enumerate(["b", "a", "b", "a"]):
        labels = {"cloud.google.com/gce-topology-block": block}
        loopback.server.add(node(f"node-{number}", labels=labels))
        loopback.add_trainers(f"train-{number}", node=f"node-{number}")


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
        loopback.add_trainers(f"train-{number}", node=f"node-{number}", labels=labels)
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
        loopback.add_trainers("train-9", node="node-9")
        state = await anext(states)
        assert names_of(state) == ["train-1", "train-3", "train-9", "train-0", "train-2"]
        loopback.add_trainers("train-8", node="node-9")
        await anext(states)
    assert sum(request.path == "/api/v1/nodes" for request in loopback.requests) == 2


async def test_nodes_are_not_read_in_a_loop_if_several_do_not_exist(loopback: Loopback) -> None:
    add_topology(loopback)
    resolver = loopback.resolver(order_by=TOPOLOGY)
    async with aclosing(resolver.observations()) as observations:
        while (await anext(observations)).state is None:
            pass
        for number in (8, 9):
            loopback.add_trainers(f"train-{number}", node=f"gone-{number}")
            while f"ml/train-{number}" not in str((await anext(observations)).error):
                pass
    assert sum(request.path == "/api/v1/nodes" for request in loopback.requests) == 3


async def test_pods_on_nodes_without_the_label_are_reported(loopback: Loopback) -> None:
    loopback.server.add(node("node-0"))
    loopback.add_trainers("train-0", node="node-0")
    loopback.add_trainers("train-1", node="gone")
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
        assert "user 'alice' may not list nodes in the cluster: " in str(caught.value)
        assert " returned 403 for all nodes. Have a" in str(caught.value)
        assert "kind: ClusterRole" in caught.value.manifest
        assert "resources: [nodes]" in caught.value.manifest
        assert "`order_by='name'`" in str(caught.value)


def test_client_that_lists_only_pods_cannot_order_by_nodes() -> None:
    class Lister:
        def list_pod_for_all_namespaces(self, **_: object) -> None: ...

    KubernetesClusterResolver(override_client=Lister(), order_by="label:rank")
    with pytest.raises(ConfigurationError, match="only methods that list pods, not nodes"):
        KubernetesClusterResolver(override_client=Lister(), order_by=TOPOLOGY)


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
        loopback.add_trainers("w-new", node="new")
        assert names_of(await anext(states)) == [*IN_TOPOLOGY, "w-new"]
