"""The Cloud TPU API, v1 and v2: nodes and queued resources, read only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aioresolve.testing.google.paging import page
from aioresolve.testing.google.statuses import (
    json_reply,
    no_such_page,
    not_found,
    permission_denied,
    service_disabled,
    unauthenticated,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.testing.google.cloud import Cloud
    from aioresolve.testing.sending import Reply

__all__ = ["tpu_reply"]

SERVICE = "tpu.googleapis.com"

_PATH = re.compile(
    r"/(?P<version>v[12])/(?P<parent>projects/(?P<project>[^/]+)/locations/(?P<zone>[^/]+))"
    r"/(?P<collection>nodes|queuedResources)(?:/(?P<name>[^/]+))?"
)

V1_FIELDS = (
    "name",
    "description",
    "acceleratorType",
    "state",
    "health",
    "healthDescription",
    "createTime",
    "schedulingConfig",
    "labels",
    "apiVersion",
    "symptoms",
)
"""What v1 says of a node in the words of v2."""


def tpu_reply(
    cloud: Cloud, method: str, path: str, query: Mapping[str, str], authorization: str, user: str | None
) -> Reply:
    """The answer to one request.

    Raises:
        Failure: it is refused.
    """
    found = _PATH.fullmatch(path)
    if found is None or method != "GET":
        raise no_such_page()
    if found["version"] == "v1" and found["collection"] == "queuedResources":
        raise no_such_page()
    if cloud.tokens.known is not None and user is None:
        raise unauthenticated(bool(authorization))
    if SERVICE in cloud.disabled_services:
        raise service_disabled(SERVICE, found["project"])
    permission = f"tpu.{found['collection']}.{'get' if found['name'] else 'list'}"
    resource = path.split("/", 2)[2]
    if permission in cloud.denied or found["project"] not in cloud.projects:
        raise permission_denied(permission, resource)
    if found["name"]:
        return json_reply(_one(cloud, found, resource))
    return json_reply(_list(cloud, found, query))


def _one(cloud: Cloud, found: re.Match[str], name: str) -> dict[str, Any]:
    shelf = cloud.nodes if found["collection"] == "nodes" else cloud.queued_resources
    resource = shelf.get(name)
    if resource is None or not _is_shown(found["version"], resource):
        raise not_found(name)
    return _shown(found["version"], shelf.seen(name) or {})


def _list(cloud: Cloud, found: re.Match[str], query: Mapping[str, str]) -> dict[str, Any]:
    shelf = cloud.nodes if found["collection"] == "nodes" else cloud.queued_resources
    collection, zone = found["collection"], found["zone"]
    prefix = f"projects/{found['project']}/locations/"
    gone = {place for place in cloud.unreachable if zone in ("-", place)}
    names = [
        name
        for name in shelf.names
        if name.startswith(prefix)
        and zone in ("-", name.split("/")[3])
        and name.split("/")[3] not in gone
        and _is_shown(found["version"], shelf.get(name) or {})
    ]
    here, token = page(names, query, "pageSize", cloud.page_size)
    answer: dict[str, Any] = {}
    if here:
        answer[collection] = [_shown(found["version"], shelf.seen(name) or {}) for name in here]
    if token:
        answer["nextPageToken"] = token
    if gone:
        answer["unreachable"] = [f"{prefix}{place}" for place in sorted(gone)]
    return answer


def _is_shown(version: str, resource: Mapping[str, Any]) -> bool:
    """Whether a version of the API knows a resource: v1 knows no TPU VMs."""
    return version == "v2" or resource.get("apiVersion") == "V1"


def _shown(version: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    if version == "v2":
        return dict(resource)
    node = {field: resource[field] for field in V1_FIELDS if field in resource}
    endpoints = [
        {field: endpoint[field] for field in ("ipAddress", "port") if field in endpoint}
        for endpoint in resource.get("networkEndpoints", ())
    ]
    node["tensorflowVersion"] = resource.get("runtimeVersion", "")
    if endpoints:
        first = endpoints[0]
        node |= {"networkEndpoints": endpoints, "ipAddress": first["ipAddress"], "port": str(first["port"])}
    return node
