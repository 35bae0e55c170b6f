"""Pages of a list: the names of one, and the token of the next.

Compute Engine, v1: VMs, and the instances of a group, read only.

The Cloud TPU API, v1 and v2: nodes and queued resources, read only.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

from .statuses import (
    bad_page_token,
    compute_not_found,
    failure,
    json_reply,
    no_such_page,
    not_found,
    permission_denied,
    service_disabled,
    unauthenticated,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aioresolve.testing.replies import Reply

    from .cloud import Cloud
    from .statuses import Failure

__all__ = ["compute_reply", "page", "tpu_reply"]

_START = "after "


def page(names: Sequence[str], query: Mapping[str, str], size: str, largest: int) -> tuple[list[str], str]:
    """The names of the page that `query` asks for, and the token of the next one, empty after the last.

    Args:
        names: every name, in order.
        query: the URL's query.
        size: the name of the parameter that says how many a page holds.
        largest: how many a page holds at most.

    Raises:
        Failure: the token is none of ours, or the size is no number.
    """
    try:
        wanted = int(query.get(size) or 0)
        after = base64.b64decode(query.get("pageToken", ""), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise bad_page_token() from error
    if after and not after.startswith(_START):
        raise bad_page_token()
    left = [name for name in names if name > after.removeprefix(_START)]
    count = min(wanted or largest, largest)
    token = base64.urlsafe_b64encode(f"{_START}{left[count - 1]}".encode()).decode() if left[count:] else ""
    return left[:count], token


SERVICE = "compute.googleapis.com"
BASE = "https://www.googleapis.com/compute/v1"

_PATH = re.compile(
    r"/compute/v1/(?P<parent>projects/(?P<project>[^/]+)/zones/(?P<zone>[^/]+))"
    r"/(?P<collection>instances|instanceGroups|instanceGroupManagers)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<verb>listInstances|listManagedInstances))?"
)


def compute_reply(
    cloud: Cloud, method: str, path: str, query: Mapping[str, str], authorization: str, user: str | None
) -> Reply:
    """The answer to one request.

    Raises:
        Failure: it is refused.
    """
    found = _PATH.fullmatch(path)
    if found is None:
        raise no_such_page()
    if cloud.tokens.known is not None and user is None:
        raise unauthenticated(bool(authorization))
    if SERVICE in cloud.disabled_services:
        raise service_disabled(SERVICE, found["project"])
    match method, found["collection"], found["name"], found["verb"]:
        case "GET", "instances", None, None:
            _check(cloud, "compute.instances.list", found["parent"])
            return json_reply(_instances(cloud, found["parent"], query))
        case "GET", "instances", str(name), None:
            _check(cloud, "compute.instances.get", f"{found['parent']}/instances/{name}")
            return json_reply(_instance(cloud, found["parent"], name))
        case "POST", "instanceGroups", str(name), "listInstances":
            _check(cloud, "compute.instanceGroups.list", f"{found['parent']}/instanceGroups/{name}")
            return json_reply(_group(cloud, found["parent"], name, query))
        case "POST", "instanceGroupManagers", str(name), "listManagedInstances":
            resource = f"{found['parent']}/instanceGroupManagers/{name}"
            _check(cloud, "compute.instanceGroupManagers.get", resource)
            return json_reply(_managed(cloud, found["parent"], name, query))
    raise no_such_page()


def _check(cloud: Cloud, permission: str, resource: str) -> None:
    if permission in cloud.denied or resource.split("/")[1] not in cloud.projects:
        raise _denied(permission, resource)


def _denied(permission: str, resource: str) -> Failure:
    return failure(403, f"Required '{permission}' permission for '{resource}'", "forbidden", "global")


def _shown(parent: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    links = {"zone": f"{BASE}/{parent}", "selfLink": f"{BASE}/{parent}/instances/{resource['name']}"}
    return {**resource, **links}


def _instance(cloud: Cloud, parent: str, name: str) -> dict[str, Any]:
    full = f"{parent}/instances/{name}"
    resource = cloud.instances.seen(full)
    if resource is None:
        raise compute_not_found(full)
    return _shown(parent, resource)


def _instances(cloud: Cloud, parent: str, query: Mapping[str, str]) -> dict[str, Any]:
    names = [name for name in cloud.instances.names if name.startswith(f"{parent}/instances/")]
    here, token = page(names, query, "maxResults", cloud.page_size)
    answer: dict[str, Any] = {"kind": "compute#instanceList", "id": f"{parent}/instances"}
    if here:
        answer["items"] = [_shown(parent, cloud.instances.seen(name) or {"name": name}) for name in here]
    return answer | ({"nextPageToken": token} if token else {})


def _members(
    cloud: Cloud, parent: str, group: str, query: Mapping[str, str]
) -> tuple[list[tuple[str, dict[str, Any]]], str]:
    """The instances of one page of a group, by full name, and the token of the next page."""
    if group not in cloud.instance_groups:
        raise compute_not_found(f"{parent}/instanceGroups/{group}")
    names = sorted(f"{parent}/instances/{name}" for name in cloud.instance_groups[group])
    here, token = page(names, query, "maxResults", cloud.page_size)
    return [(name, cloud.instances.seen(name) or {}) for name in here], token


def _group(cloud: Cloud, parent: str, group: str, query: Mapping[str, str]) -> dict[str, Any]:
    members, token = _members(cloud, parent, group, query)
    # As Compute Engine does, a group that has no member has no `items` either.
    answer: dict[str, Any] = {"kind": "compute#instanceGroupsListInstances"}
    if members:
        answer["items"] = [
            {"instance": f"{BASE}/{name}", "status": member.get("status", "TERMINATED")}
            for name, member in members
        ]
    return answer | ({"nextPageToken": token} if token else {})


def _managed(cloud: Cloud, parent: str, group: str, query: Mapping[str, str]) -> dict[str, Any]:
    members, token = _members(cloud, parent, group, query)
    answer: dict[str, Any] = {}
    if members:
        answer["managedInstances"] = [
            {
                "instance": f"{BASE}/{name}",
                "id": member.get("id", "0"),
                "instanceStatus": member.get("status", "TERMINATED"),
                "currentAction": "NONE",
            }
            for name, member in members
        ]
    return answer | ({"nextPageToken": token} if token else {})


SERVICE_TPU = "tpu.googleapis.com"

_TPU_PATH = re.compile(
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
    found = _TPU_PATH.fullmatch(path)
    if found is None or method != "GET":
        raise no_such_page()
    if found["version"] == "v1" and found["collection"] == "queuedResources":
        raise no_such_page()
    if cloud.tokens.known is not None and user is None:
        raise unauthenticated(bool(authorization))
    if SERVICE_TPU in cloud.disabled_services:
        raise service_disabled(SERVICE_TPU, found["project"])
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
    return _tpu_shown(found["version"], shelf.seen(name) or {})


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
        answer[collection] = [_tpu_shown(found["version"], shelf.seen(name) or {}) for name in here]
    if token:
        answer["nextPageToken"] = token
    if gone:
        answer["unreachable"] = [f"{prefix}{place}" for place in sorted(gone)]
    return answer


def _is_shown(version: str, resource: Mapping[str, Any]) -> bool:
    """Whether a version of the API knows a resource: v1 knows no TPU VMs."""
    return version == "v2" or resource.get("apiVersion") == "V1"


def _tpu_shown(version: str, resource: Mapping[str, Any]) -> dict[str, Any]:
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
