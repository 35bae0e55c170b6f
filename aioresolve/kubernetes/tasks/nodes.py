"""The nodes of a cluster and their labels, for an order of tasks by topology.

Format: NodeList of `v1`, as Kubernetes 1.36 writes it. Nodes belong to no namespace, so listing them needs a
ClusterRole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.kubernetes.api.objects import ObjectList, Query, Resource, Struct, json_resource

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeMeta(Struct, kw_only=True, frozen=True):
    """The fields of `metadata` that are read."""

    name: str
    labels: dict[str, str] | None = None


class Node(Struct, kw_only=True, frozen=True):
    """A node with the fields that are read."""

    metadata: NodeMeta


class NodeList(ObjectList[Node], kw_only=True, tag_field="kind", tag="NodeList", frozen=True):
    """One page of nodes."""


NODES: Resource[Node] = json_resource("", "nodes", "node", NodeList, Node)


class NodeQuery(Query[Node], frozen=True):
    """A request for all nodes."""

    @property
    def resource(self) -> Resource[Node]:
        return NODES

    @property
    def where(self) -> str:
        return "the cluster"

    @property
    def selection(self) -> str:
        return "all nodes"

    @property
    def alternative(self) -> str:
        return ", or pass {order_by=name}"


ALL_NODES = NodeQuery("")


def labels_by_node(keys: Sequence[str], nodes: Sequence[Node]) -> list[tuple[str, tuple[str | None, ...]]]:
    """Return the name of each node with the values of its labels `keys`."""
    return [
        (node.metadata.name, tuple((node.metadata.labels or {}).get(key) for key in keys)) for node in nodes
    ]
