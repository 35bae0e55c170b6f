"""The nodes of a cluster and their labels, for an order of tasks by topology.

Format: NodeList of `v1`, as Kubernetes 1.36 writes it. Nodes belong to no namespace, so listing them needs a
ClusterRole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import msgspec

from aioresolve.kubernetes.api.objects import ObjectList, Query, Resource, Struct, decode_json

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


_page_decoder = msgspec.json.Decoder(NodeList)
_items_decoder = msgspec.json.Decoder(list[Node])


def decode_page(body: bytes | bytearray) -> NodeList:
    """Return `body` as a NodeList; raises a ValueError if it is not one."""
    page: NodeList = decode_json(_page_decoder, body)
    return page


def decode_items(body: bytes | bytearray) -> list[Node]:
    """Return `body`, a JSON array, as nodes; raises a ValueError if it is something else."""
    nodes: list[Node] = decode_json(_items_decoder, body)
    return nodes


def decode_event(_: bytes | bytearray) -> NoReturn:
    """Raise a ValueError: nodes are not watched."""
    raise ValueError("nodes are not watched")


NODES: Resource[Node] = Resource("", "nodes", "node", decode_page, decode_event, decode_items)


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
