"""What the pods of a selector are ordered by: their names, an index, or labels of the pods and their nodes.

Format: NodeList of `v1`, as Kubernetes 1.36 writes it. Nodes belong to no namespace, so listing them needs a
ClusterRole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aioresolve._core.natural_order import natural_key
from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.api.objects import Struct
from aioresolve.kubernetes.api.queries import Query, Resource

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI

POD_LABEL, NODE_LABEL = "label:", "node-label:"
"""The prefixes of the key of a label of a pod, and of the node that it runs on."""

_TERM = re.compile(
    r"(node-)?label:"
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
"""A key is an optional DNS subdomain and a name: https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/"""


def validate_order_by(order_by: object) -> tuple[str, ...]:
    """Return `("name",)`, `("index",)`, or the labels to order by, each with its prefix.

    Raises:
        ConfigurationError: it is something else.
    """
    terms = (order_by,) if isinstance(order_by, str) or not isinstance(order_by, Sequence) else order_by
    if len(terms) == 1 and terms[0] in ("name", "index"):
        return (terms[0],)
    wrong = [each for each in terms if not (isinstance(each, str) and _TERM.fullmatch(each))]
    if wrong or not terms:
        alone = "'name', 'index', " if len(terms) < 2 else ""
        raise ConfigurationError(
            f"{(wrong or [order_by])[0]!r} is not one of {alone}'label:KEY' and 'node-label:KEY'",
            argument="order_by",
            hint="Only labels can be combined, such as 'node-label:topology.kubernetes.io/zone' and then"
            " 'label:rank'.",
        )
    return tuple(terms)


class Ordering:
    """How the pods of one selector become tasks; pods with the same labels are ordered by name.

    Values of labels are compared as names are: numbers in them as numbers.

    Args:
        terms: what `validate_order_by` returned.

    Attributes:
        by_name: whether their names decide.
        by_index: whether each pod has the task index that its controller gave it.
        by_labels: whether the labels of pods and of their nodes decide.
        pod_keys: the keys of the labels of pods.
        node_keys: the keys of the labels of nodes.
        nodes: the values of the labels of each node by its name, as far as they were read; None for all
            labels of a node that did not exist.
    """

    def __init__(self, terms: Sequence[str]) -> None:
        self.by_name = "name" in terms
        self.by_index = "index" in terms
        labels = [term.partition(":") for term in terms if ":" in term]
        self.by_labels = bool(labels)
        self._terms = [(prefix + colon, key) for prefix, colon, key in labels]
        self.pod_keys = tuple(key for prefix, key in self._terms if prefix == POD_LABEL)
        self.node_keys = tuple(key for prefix, key in self._terms if prefix == NODE_LABEL)
        self.nodes: dict[str, tuple[str | None, ...]] = {}

    def __str__(self) -> str:
        """Return what the pods are ordered by, as text for messages."""
        if not self.by_labels:
            return "index" if self.by_index else "name"
        kinds = {POD_LABEL: "label {!r}", NODE_LABEL: "label {!r} of the node"}
        return " and ".join(kinds[prefix].format(key) for prefix, key in self._terms)

    async def read_nodes(self, api: ObjectAPI, needed: Iterable[str], progress: Progress) -> None:
        """Read the labels of all nodes; a node in `needed` may not exist."""
        found = await api.objects(ALL_NODES, progress)
        # Earlier nodes are kept: pods may still run on one that no longer exists.
        self.nodes |= dict.fromkeys(needed, (None,) * len(self.node_keys))
        for node in found.items:
            self.nodes[node.metadata.name] = tuple(map((node.metadata.labels or {}).get, self.node_keys))

    def is_unknown(self, node: str) -> bool:
        """Whether the labels of a node are needed and were not read yet."""
        return bool(self.node_keys) and node not in self.nodes

    def key(self, labels: Sequence[str | None], node: str) -> tuple[str, ...] | None:
        """Return the sort key of a pod with these values of `pod_keys`; None if a label is missing."""
        of_pod, of_node = iter(labels), iter(self.nodes.get(node, (None,) * len(self.node_keys)))
        values = [next(of_node if prefix == NODE_LABEL else of_pod) for prefix, _ in self._terms]
        return None if None in values else tuple(natural_key(value or "") for value in values)


# Nodes


class NodeMeta(Struct, kw_only=True, frozen=True):
    """The fields of `metadata` that are read."""

    name: str
    labels: dict[str, str] | None = None


class Node(Struct, kw_only=True, frozen=True):
    """A node with the fields that are read."""

    metadata: NodeMeta


class NodeQuery(Query[Node], frozen=True):
    """A request for all nodes."""

    resource = Resource("", "nodes", "node", Node, is_namespaced=False)

    @property
    def scope(self) -> str:
        return "all nodes"


ALL_NODES = NodeQuery("")
