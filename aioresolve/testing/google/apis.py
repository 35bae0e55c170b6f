"""The Cloud TPU API (v1 and v2) and Compute Engine (v1): reading single resources and pages of lists."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from .statuses import (
    bad_page_token,
    compute_invalid,
    compute_not_found,
    compute_permission_denied,
    invalid_fields,
    json_reply,
    no_such_page,
    not_found,
    permission_denied,
    unauthenticated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aioresolve.testing.replies import Reply

    from .resources import Cloud, ResourceStore

_PAGE_START = "after "


def _page(
    names: Sequence[str], query: Mapping[str, str], size_parameter: str, page_size: int
) -> tuple[list[str], str]:
    """Return the requested page of `names`, and the token of the next page, which is empty after the last.

    A page has at most `page_size` names; the query parameter `size_parameter` can only reduce that.
    """
    try:
        limit = int(query.get(size_parameter) or 0)
        after = base64.b64decode(query.get("pageToken", ""), altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error) as error:
        raise bad_page_token() from error
    if after and not after.startswith(_PAGE_START):
        raise bad_page_token()
    # The token contains the last name rather than a position, so that changes between pages do no harm.
    left = [name for name in names if name > after.removeprefix(_PAGE_START)]
    count = min(limit or page_size, page_size)
    if not left[count:]:
        return left, ""
    return left[:count], base64.urlsafe_b64encode(f"{_PAGE_START}{left[count - 1]}".encode()).decode()


def _page_document(field: str, items: Sequence[Any], token: str, **more: str) -> dict[str, Any]:
    """Return a page; Google's APIs leave out an empty list, and the token after the last page."""
    return more | ({field: items} if items else {}) | ({"nextPageToken": token} if token else {})


def _check_user(cloud: Cloud, authorization: str, user: str | None) -> None:
    if cloud.tokens.known is not None and user is None:
        raise unauthenticated(bool(authorization))


# The Cloud TPU API

_TPU_PATH = re.compile(
    r"/(?P<version>v[12])/(?P<parent>projects/(?P<project>[^/]+)/locations/(?P<zone>[^/]+))"
    r"/(?P<collection>nodes|queuedResources)(?:/(?P<name>[^/]+))?"
)
_V1_FIELDS = (
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
"""The fields of a node that v1 and v2 have in common."""


def tpu_reply(
    cloud: Cloud, method: str, path: str, query: Mapping[str, str], authorization: str, user: str | None
) -> Reply:
    """Return the reply of the Cloud TPU API to a request, or raise a Failure.

    `user` is the IAM member to which the `Authorization` header belongs, None if it is not valid.
    """
    found = _TPU_PATH.fullmatch(path)
    if found is None or method != "GET":
        raise no_such_page()
    if found["version"] == "v1" and found["collection"] == "queuedResources":
        raise no_such_page()
    _check_user(cloud, authorization, user)
    permission = f"tpu.{found['collection']}.{'get' if found['name'] else 'list'}"
    resource = path.split("/", 2)[2]
    if permission in cloud.denied or found["project"] not in cloud.projects:
        raise permission_denied(permission, resource)
    store = cloud.nodes if found["collection"] == "nodes" else cloud.queued_resources
    if found["name"]:
        return json_reply(_tpu_resource(store, found["version"], resource))
    return json_reply(_tpu_list(cloud, store, found, query))


def _tpu_resource(store: ResourceStore, version: str, name: str) -> dict[str, Any]:
    resource = store.get(name)
    if resource is None or not _is_visible(version, resource):
        raise not_found(name)
    return _tpu_json(version, store.read_next(name) or {})


def _tpu_list(
    cloud: Cloud, store: ResourceStore, found: re.Match[str], query: Mapping[str, str]
) -> dict[str, Any]:
    version, zone = found["version"], found["zone"]
    prefix = f"projects/{found['project']}/locations/"
    unreachable = {place for place in cloud.unreachable if zone in ("-", place)}
    names = [
        name
        for name in store.names
        if name.startswith(prefix)
        and zone in ("-", name.split("/")[3])
        and name.split("/")[3] not in unreachable
        and _is_visible(version, store.get(name) or {})
    ]
    listed, token = _page(names, query, "pageSize", cloud.page_size)
    items = [_tpu_json(version, store.read_next(name) or {}) for name in listed]
    document = _page_document(found["collection"], items, token)
    if unreachable:
        document["unreachable"] = [f"{prefix}{place}" for place in sorted(unreachable)]
    return document


def _is_visible(version: str, resource: Mapping[str, Any]) -> bool:
    """Return whether a version of the API has a resource: v1 has no TPU VMs."""
    return version == "v2" or resource.get("apiVersion") == "V1"


def _tpu_json(version: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    if version == "v2":
        return dict(resource)
    node = {field: resource[field] for field in _V1_FIELDS if field in resource}
    endpoints = [
        {field: endpoint[field] for field in ("ipAddress", "port") if field in endpoint}
        for endpoint in resource.get("networkEndpoints", ())
    ]
    node["tensorflowVersion"] = resource.get("runtimeVersion", "")
    if endpoints:
        first = endpoints[0]
        node |= {"networkEndpoints": endpoints, "ipAddress": first["ipAddress"], "port": str(first["port"])}
    return node


# Compute Engine

_COMPUTE_BASE = "https://www.googleapis.com/compute/v1"
_COMPUTE_PATH = re.compile(
    r"/compute/v1/(?P<parent>projects/(?P<project>[^/]+)/(?:zones|regions)/(?P<location>[^/]+))"
    r"/(?P<collection>instances|instanceGroups|instanceGroupManagers)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<verb>listInstances|listManagedInstances))?"
)
_REGEX_FILTER = re.compile(
    r"""\s*(?P<field>[A-Za-z]+)\s+(?P<operator>eq|ne)\s+(?P<quote>["']?)(?P<regex>.*?)(?P=quote)\s*"""
)


def compute_reply(
    cloud: Cloud,
    method: str,
    path: str,
    query: Mapping[str, str],
    authorization: str,
    user: str | None,
    body: bytes = b"",
) -> Reply:
    """Return the reply of Compute Engine to a request; arguments and errors as in `tpu_reply`."""
    found = _COMPUTE_PATH.fullmatch(path)
    if found is None:
        raise no_such_page()
    _check_user(cloud, authorization, user)
    parent = found["parent"]
    is_zonal = "/zones/" in parent
    match method, found["collection"], found["name"], found["verb"]:
        case "GET", "instances", None, None if is_zonal:
            _check_permission(cloud, "compute.instances.list", parent)
            document = _instance_list(cloud, parent, query)
        case "GET", "instances", str(name), None if is_zonal:
            _check_permission(cloud, "compute.instances.get", f"{parent}/instances/{name}")
            document = _instance(cloud, parent, name)
        case "POST", "instanceGroups", str(name), "listInstances":
            permission = "compute.instanceGroups.list" if is_zonal else "compute.instanceGroups.get"
            _check_permission(cloud, permission, f"{parent}/instanceGroups/{name}")
            document = _group_instances(cloud, parent, name, query, body)
        case "POST", "instanceGroupManagers", str(name), "listManagedInstances":
            resource = f"{parent}/instanceGroupManagers/{name}"
            _check_permission(cloud, "compute.instanceGroupManagers.get", resource)
            document = _managed_instances(cloud, parent, name, query)
        case _:
            raise no_such_page()
    if fields := query.get("fields"):
        document = _select(document, _parse_fields(fields), fields)
    return json_reply(document)


def _check_permission(cloud: Cloud, permission: str, resource: str) -> None:
    if permission in cloud.denied or resource.split("/")[1] not in cloud.projects:
        raise compute_permission_denied(permission, resource)


def _instance_json(parent: str, resource: Mapping[str, Any]) -> dict[str, Any]:
    self_link = f"{_COMPUTE_BASE}/{parent}/instances/{resource['name']}"
    return {**resource, "zone": f"{_COMPUTE_BASE}/{parent}", "selfLink": self_link}


def _instance(cloud: Cloud, parent: str, name: str) -> dict[str, Any]:
    full = f"{parent}/instances/{name}"
    resource = cloud.instances.read_next(full)
    if resource is None:
        raise compute_not_found(full)
    return _instance_json(parent, resource)


def _instance_list(cloud: Cloud, parent: str, query: Mapping[str, str]) -> dict[str, Any]:
    matches = _parse_filter(query.get("filter", ""))
    names = [
        name
        for name in cloud.instances.names
        if name.startswith(f"{parent}/instances/") and matches(cloud.instances.get(name) or {})
    ]
    listed, token = _page(names, query, "maxResults", cloud.page_size)
    resources = (cloud.instances.read_next(name) or {"name": name} for name in listed)
    items = [_instance_json(parent, resource) for resource in resources]
    return _page_document("items", items, token, kind="compute#instanceList", id=f"{parent}/instances")


def _parse_filter(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return whether a resource matches a filter: `FIELD eq REGEX` or `FIELD ne REGEX` of the whole value."""
    if not text:
        return lambda _: True
    found = _REGEX_FILTER.fullmatch(text)
    try:
        regex = re.compile(found["regex"]) if found is not None else None
    except re.error:
        regex = None
    if found is None or regex is None:
        raise compute_invalid("filter", text, "Invalid list filter expression.")
    field, is_equal = found["field"], found["operator"] == "eq"
    return lambda resource: (regex.fullmatch(str(resource.get(field, ""))) is not None) == is_equal


def _group_members(cloud: Cloud, parent: str, group: str, collection: str) -> list[str]:
    """Return the full names of the instances of a group, whether or not they exist."""
    names = cloud.find_group(f"{parent}/instanceGroups/{group}")
    is_managed = f"{parent}/instanceGroups/{group}" not in map(cloud.group_name, cloud.unmanaged_groups)
    if names is None or (collection == "instanceGroupManagers" and not is_managed):
        raise compute_not_found(f"{parent}/{collection}/{group}")
    return sorted(cloud.full_name(name, "instances") for name in names)


def _group_instances(
    cloud: Cloud, parent: str, group: str, query: Mapping[str, str], body: bytes
) -> dict[str, Any]:
    names = _group_members(cloud, parent, group, "instanceGroups")
    existing = [name for name in names if cloud.instances.get(name) is not None]
    if _instance_state(body) == "RUNNING":
        existing = [name for name in existing if (cloud.instances.get(name) or {}).get("status") == "RUNNING"]
    listed, token = _page(existing, query, "maxResults", cloud.page_size)
    items = [
        {"instance": f"{_COMPUTE_BASE}/{name}", "status": (cloud.instances.read_next(name) or {})["status"]}
        for name in listed
    ]
    return _page_document("items", items, token, kind="compute#instanceGroupsListInstances")


def _instance_state(body: bytes) -> str:
    """Return which instances a request lists, `ALL` or `RUNNING`."""
    try:
        document = json.loads(body or b"{}")
    except ValueError:
        return "ALL"
    state = document.get("instanceState", "ALL") if isinstance(document, dict) else "ALL"
    if state not in ("ALL", "RUNNING"):
        raise compute_invalid("instanceState", str(state), "Invalid value.")
    return str(state)


def _managed_instances(cloud: Cloud, parent: str, group: str, query: Mapping[str, str]) -> dict[str, Any]:
    names = _group_members(cloud, parent, group, "instanceGroupManagers")
    listed, token = _page(names, query, "maxResults", cloud.page_size)
    items = []
    for name in listed:
        member = cloud.instances.get(name)
        item = {"instance": f"{_COMPUTE_BASE}/{name}", "name": name.rpartition("/")[2]}
        if member is None:
            item["currentAction"] = "CREATING"
        else:
            item |= {"id": member["id"], "instanceStatus": member["status"], "currentAction": "NONE"}
        items.append({**item, **cloud.managed_instances.get(name.rpartition("/")[2], {})})
    return _page_document("managedInstances", items, token)


# Partial responses: https://cloud.google.com/compute/docs/api/best-practices#fields

_Selection = dict[str, "_Selection"]
"""The selected fields of an object, each with those inside it; empty for everything."""


def _parse_fields(text: str) -> _Selection:
    """Return the selection of `a,b/c,d(e,f)`."""
    if re.search(r"[^\w,/()]|[,/(][,/()]|^[,/()]|[,/(]$", text) or text.count("(") != text.count(")"):
        raise invalid_fields(text)
    selection: _Selection = {}
    outer: list[_Selection] = []
    enclosing = parent = selection
    for token in re.findall(r"\w+|.", text):
        match token:
            case "(":
                outer.append(enclosing)
                enclosing = parent
            case ")":
                enclosing = outer.pop()
            case ",":
                parent = enclosing
            case "/":
                pass
            case _:
                parent = parent.setdefault(token, {})
    return selection


def _select(value: Any, selection: _Selection, text: str) -> Any:
    """Return the selected fields of a value, and of the items of lists in it."""
    if not selection:
        return value
    if isinstance(value, list):
        return [_select(item, selection, text) for item in value]
    if not isinstance(value, dict):
        raise invalid_fields(text)
    return {field: _select(value[field], inner, text) for field, inner in selection.items() if field in value}
