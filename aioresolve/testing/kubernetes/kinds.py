"""The kinds of objects that the server has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """A kind of object.

    Attributes:
        name: the kind, such as `Pod`.
        group: its API group; empty for the core group.
        resource: its plural in URLs and RBAC rules.
        fields: the top-level fields of an object after `metadata`, in the order of the server, with the value
            for an object that does not have the field.
        bare: the JSON of these fields in a bookmark.
        is_namespaced: whether its objects belong to namespaces.
    """

    name: str
    group: str
    resource: str
    fields: Mapping[str, object]
    bare: bytes
    is_namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified_resource(self) -> str:
        """The resource with its group, as in messages: `endpointslices.discovery.k8s.io`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def head(self) -> bytes:
        """The beginning of the JSON of an object: kind and apiVersion."""
        return b'{"kind":"%s","apiVersion":"%s",' % (self.name.encode(), self.api_version.encode())

    @property
    def list_head(self) -> bytes:
        """The beginning of the JSON of a list of such objects."""
        return b'{"kind":"%sList","apiVersion":"%s",' % (self.name.encode(), self.api_version.encode())


POD = Kind("Pod", "", "pods", {"spec": {}, "status": {}}, b'"spec":{"containers":null},"status":{}')
ENDPOINT_SLICE = Kind(
    "EndpointSlice",
    "discovery.k8s.io",
    "endpointslices",
    {"addressType": "", "endpoints": None, "ports": None},
    b'"addressType":"","endpoints":null,"ports":null',
)
SERVICE = Kind("Service", "", "services", {"spec": {}, "status": {}}, b"")
NODE = Kind(
    "Node",
    "",
    "nodes",
    {"spec": {}, "status": {}},
    b'"spec":{},"status":{}',
    is_namespaced=False,
)
RESOURCE_CLAIM = Kind(
    "ResourceClaim",
    "resource.k8s.io",
    "resourceclaims",
    {"spec": {}, "status": {}},
    b'"spec":{"devices":{}},"status":{}',
)
KINDS = (POD, ENDPOINT_SLICE, NODE, RESOURCE_CLAIM)
"""The kinds that a client can list and watch; a Service it can only get."""
