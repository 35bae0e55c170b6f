"""The Cloud TPU API (v2) and Compute Engine (v1): single resources, pages of lists, and failures."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from aioresolve.testing.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .resources import Cloud

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_JSON_HEADERS = {"Content-Type": "application/json; charset=UTF-8"}


class Failure(Exception):  # noqa: N818 - a reply, not an error of the server
    """A request that is rejected with `reply`."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def json_reply(document: Any, status: int = 200, **headers: str) -> Reply:
    """Return a reply with the body `document`, indented as by Google's APIs."""
    return Reply(status, json.dumps(document, indent=2).encode() + b"\n", {**_JSON_HEADERS, **headers})


def _rpc_failure(
    status: int, message: str, reason: str = "", domain: str = "googleapis.com", **metadata: str
) -> Failure:
    """Return a google.rpc.Status, with an ErrorInfo if there is a reason."""
    name = _STATUS_NAMES.get(status, "UNKNOWN")
    error: dict[str, Any] = {"code": status, "message": message, "status": name}
    if reason:
        error["details"] = [{"@type": _ERROR_INFO, "reason": reason, "domain": domain, "metadata": metadata}]
    return Failure(json_reply({"error": error}, status))


def failure_of_status(status: int) -> Reply:
    """Return a general failure with that status."""
    return _rpc_failure(status, f"The server returned status {status}.").reply


def unauthenticated(has_token: bool) -> Failure:
    """401: the token is missing or invalid."""
    problem = "had invalid authentication credentials" if has_token else "is missing required credentials"
    message = f"Request {problem}. Expected OAuth 2 access token, login cookie or other valid credential."
    reply = _rpc_failure(401, message, "ACCESS_TOKEN_EXPIRED" if has_token else "CREDENTIALS_MISSING").reply
    challenge = 'Bearer realm="https://accounts.google.com/"' + ', error="invalid_token"' * has_token
    return Failure(Reply(401, reply.body, {**reply.headers, "WWW-Authenticate": challenge}))


def _compute_failure(status: int, message: str, reason: str) -> Failure:
    """Return a failure in the older format, that of Compute Engine."""
    errors = [{"message": message, "domain": "global", "reason": reason}]
    return Failure(json_reply({"error": {"code": status, "message": message, "errors": errors}}, status))


def no_such_page() -> Failure:
    """404 for a path that no API has, as an HTML page."""
    page = b"<!DOCTYPE html>\n<html lang=en>\n  <title>Error 404 (Not Found)!!1</title>\n"
    return Failure(Reply(404, page, {"Content-Type": "text/html; charset=UTF-8"}))


# Pages


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
        raise _rpc_failure(400, "The page token is invalid.") from error
    # The token contains the last name rather than a position, so that changes between pages do no harm.
    left = [name for name in names if name > after]
    count = min(limit or page_size, page_size)
    if not left[count:]:
        return left, ""
    return left[:count], base64.urlsafe_b64encode(left[count - 1].encode()).decode()


def _page_document(field: str, items: Sequence[Any], token: str, **more: str) -> dict[str, Any]:
    """Return a page; Google's APIs leave out an empty list, and the token after the last page."""
    return more | ({field: items} if items else {}) | ({"nextPageToken": token} if token else {})


# The Cloud TPU API

_TPU_PATH = re.compile(
    r"/v2/(?P<parent>projects/(?P<project>[^/]+)/locations/(?P<zone>[^/]+))"
    r"/(?P<collection>nodes|queuedResources)(?:/(?P<name>[^/]+))?"
)


def tpu_reply(cloud: Cloud, method: str, path: str, query: Mapping[str, str]) -> Reply:
    """Return the reply of the Cloud TPU API to an authenticated request, or raise a Failure."""
    found = _TPU_PATH.fullmatch(path)
    if found is None or method != "GET":
        raise no_such_page()
    permission = f"tpu.{found['collection']}.{'get' if found['name'] else 'list'}"
    resource = path.split("/", 2)[2]
    if not cloud.may(permission, found["project"]):
        raise _rpc_failure(
            403,
            f"Permission '{permission}' denied on resource '//tpu.googleapis.com/{resource}' (or it may not"
            " exist).",
            "IAM_PERMISSION_DENIED",
            "iam.googleapis.com",
            permission=permission,
            resource=resource,
        )
    if not found["name"]:
        return json_reply(_tpu_list(cloud, found, query))
    if resource not in cloud.names(found["project"], found["collection"]):
        message = f"Resource '{resource}' was not found"
        raise _rpc_failure(404, message, "RESOURCE_NOT_FOUND", resource=resource)
    return json_reply(cloud.read(resource))


def _tpu_list(cloud: Cloud, found: re.Match[str], query: Mapping[str, str]) -> dict[str, Any]:
    zone = found["zone"]
    names = [
        name
        for name in cloud.names(found["project"], found["collection"])
        if zone in ("-", name.split("/")[3])
    ]
    listed, token = _page(names, query, "pageSize", cloud.page_size)
    return _page_document(found["collection"], [cloud.read(name) for name in listed], token)


# Compute Engine

_COMPUTE_BASE = "https://www.googleapis.com/compute/v1"
_COMPUTE_PATH = re.compile(
    r"/compute/v1/(?P<parent>projects/(?P<project>[^/]+)/(?:zones|regions)/(?P<location>[^/]+))"
    r"/(?P<collection>instances|instanceGroups|instanceGroupManagers)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<verb>listInstances|listManagedInstances))?"
)
_NAME_FILTER = re.compile(r"""name eq (["']?)(?P<regex>.*)\1""")


def compute_reply(cloud: Cloud, method: str, path: str, query: Mapping[str, str]) -> Reply:
    """Return the reply of Compute Engine to an authenticated request, or raise a Failure.

    Partial responses (`fields`) are not implemented: every field is returned.
    """
    found = _COMPUTE_PATH.fullmatch(path)
    if found is None:
        raise no_such_page()
    parent = found["parent"]
    is_zonal = "/zones/" in parent
    match method, found["collection"], found["name"], found["verb"]:
        case "GET", "instances", None, None if is_zonal:
            _check_permission(cloud, "compute.instances.list", parent)
            return json_reply(_instance_list(cloud, parent, query))
        case "GET", "instanceGroups", None, None:
            _check_permission(cloud, "compute.instanceGroups.list", parent)
            return json_reply({"items": [{"name": name} for name in cloud.groups(parent)]})
        case "POST", "instanceGroups", str(name), "listInstances":
            permission = "compute.instanceGroups.list" if is_zonal else "compute.instanceGroups.get"
            _check_permission(cloud, permission, f"{parent}/instanceGroups/{name}")
            return json_reply(_group_instances(cloud, f"{parent}/instanceGroups/{name}", query))
        case "POST", "instanceGroupManagers", str(name), "listManagedInstances":
            manager = f"{parent}/instanceGroupManagers/{name}"
            _check_permission(cloud, "compute.instanceGroupManagers.get", manager)
            return json_reply(_managed_instances(cloud, manager, query))
    raise no_such_page()


def _check_permission(cloud: Cloud, permission: str, resource: str) -> None:
    if not cloud.may(permission, resource.split("/")[1]):
        raise _compute_failure(403, f"Required '{permission}' permission for '{resource}'", "forbidden")


def _instance_list(cloud: Cloud, parent: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of instances; a filter has the form `name eq REGEX`, of the whole name."""
    found = _NAME_FILTER.fullmatch(query.get("filter") or "name eq .*")
    if found is None:
        raise _compute_failure(400, "Invalid list filter expression.", "invalid")
    prefix = f"{parent}/instances/"
    names = [
        name
        for name in cloud.names(parent.split("/")[1], "instances")
        if name.startswith(prefix) and re.fullmatch(found["regex"], name.removeprefix(prefix))
    ]
    listed, token = _page(names, query, "maxResults", cloud.page_size)
    place = {"zone": f"{_COMPUTE_BASE}/{parent}"}
    items = [cloud.read(each) | place | {"selfLink": f"{_COMPUTE_BASE}/{each}"} for each in listed]
    return _page_document("items", items, token, kind="compute#instanceList", id=f"{parent}/instances")


def _group_instances(cloud: Cloud, group: str, query: Mapping[str, str]) -> dict[str, Any]:
    known = cloud.names(group.split("/")[1], "instances")
    existing = [name for name in _members(cloud, group) if name in known]
    listed, token = _page(existing, query, "maxResults", cloud.page_size)
    items = [{"instance": f"{_COMPUTE_BASE}/{name}", "status": cloud.read(name)["status"]} for name in listed]
    return _page_document("items", items, token, kind="compute#instanceGroupsListInstances")


def _managed_instances(cloud: Cloud, group: str, query: Mapping[str, str]) -> dict[str, Any]:
    listed, token = _page(_members(cloud, group), query, "maxResults", cloud.page_size)
    known, items = cloud.names(group.split("/")[1], "instances"), []
    for full in listed:
        name = full.rpartition("/")[2]
        item = {"instance": f"{_COMPUTE_BASE}/{full}", "name": name, "currentAction": "CREATING"}
        if full in known:
            member = cloud.get(full)
            item |= {"id": member["id"], "instanceStatus": member["status"], "currentAction": "NONE"}
        items.append(item | cloud.managed_instances.get(name, {}))
    return _page_document("managedInstances", items, token)


def _members(cloud: Cloud, group: str) -> list[str]:
    """Return the full names of the instances of a group or its manager; 404 if it does not exist."""
    found = cloud.group(group.replace("/instanceGroupManagers/", "/instanceGroups/"))
    if found is None:
        raise _compute_failure(404, f"The resource '{group}' was not found", "notFound")
    return found
