"""Compute Engine, v1: VMs, and the instances of a group, read only."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from aioresolve.testing.google.paging import page
from aioresolve.testing.google.statuses import (
    compute_not_found,
    failure,
    json_reply,
    no_such_page,
    service_disabled,
    unauthenticated,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.testing.google.cloud import Cloud
    from aioresolve.testing.google.statuses import Failure
    from aioresolve.testing.sending import Reply

__all__ = ["compute_reply"]

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
