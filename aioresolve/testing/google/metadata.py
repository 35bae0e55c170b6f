"""The GCE metadata server: values, directories, waiting for changes, and service account tokens.

Rules: https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import anyio

from aioresolve.testing.replies import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .resources import Cloud

_ROOT = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"
_COMMON_HEADERS = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "X-XSS-Protection": "0"}
_TEXT_HEADERS = {**_COMMON_HEADERS, "Content-Type": "application/text"}
_JSON_HEADERS = {**_COMMON_HEADERS, "Content-Type": "application/json"}
_HTML_HEADERS = {**_COMMON_HEADERS, "Content-Type": "text/html; charset=UTF-8"}

_POLL_SECONDS = 0.005
"""The interval of checks for a change: a mapping has no event for that."""


def default_metadata(project: str, zone: str, email: str) -> dict[str, str]:
    """Return the values that every VM's metadata server has, by path."""
    return {
        "project/project-id": project,
        "project/numeric-project-id": "123456789012",
        "instance/id": "1152921504606846976",
        "instance/name": "loopback",
        "instance/zone": f"projects/123456789012/zones/{zone}",
        "instance/network-interfaces/0/ip": "10.128.0.2",
        "universe/universe-domain": "googleapis.com",
        f"{_ACCOUNT}aliases": "default",
        f"{_ACCOUNT}email": email,
        f"{_ACCOUNT}scopes": "https://www.googleapis.com/auth/cloud-platform",
    }


async def metadata_reply(
    cloud: Cloud, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> Reply:
    """Return the reply to a request; with `wait_for_change=true`, wait until the value changes.

    That is, until its entity tag differs from `last_etag`, or without that from the current one. After
    `timeout_sec` the current value is returned.
    """
    reply = _current_reply(cloud, path, query, headers)
    known = query.get("last_etag") or reply.headers.get("ETag")
    if not _is_true(query, "wait_for_change") or known is None:
        return reply
    with anyio.move_on_after(_seconds(query.get("timeout_sec", ""))):
        while reply.headers.get("ETag") == known:
            await anyio.sleep(_POLL_SECONDS)
            reply = _current_reply(cloud, path, query, headers)
    return reply


def _current_reply(cloud: Cloud, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
    if path == "/":
        return Reply(200, b"computeMetadata/\n", _TEXT_HEADERS)
    if headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in headers:
        return Reply(403, b"<!DOCTYPE html>\n<title>Error 403 (Forbidden)!!1</title>\n", _HTML_HEADERS)
    with cloud.lock:
        values = dict(cloud.metadata)
    # The default account is also available under its address.
    email = values.get(f"{_ACCOUNT}email", "default")
    name = path.removeprefix(_ROOT).replace(f"instance/service-accounts/{email}/", _ACCOUNT, 1)
    if name == f"{_ACCOUNT}token" and f"{_ACCOUNT}email" in values:
        member = f"serviceAccount:{values[f'{_ACCOUNT}email']}"
        return Reply(200, json.dumps(cloud.tokens.issue_json(member)).encode(), _JSON_HEADERS)
    if name in values:
        return _reply_with_etag(path, values[name].encode(), _TEXT_HEADERS)
    within = {each.removeprefix(name): values[each] for each in values if each.startswith(name)}
    if not name.endswith("/") or not within:
        return Reply(404, b"<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>\n", _HTML_HEADERS)
    if _is_true(query, "recursive"):
        return _reply_with_etag(path, json.dumps(_tree(within)).encode(), _JSON_HEADERS)
    if _is_true(query, "wait_for_change"):
        return Reply(400, b"<!DOCTYPE html>\n<title>Error 400 (Bad Request)!!1</title>\n", _HTML_HEADERS)
    entries = {each.partition("/")[0] + ("/" if "/" in each else "") for each in within}
    return _reply_with_etag(path, "".join(f"{entry}\n" for entry in sorted(entries)).encode(), _TEXT_HEADERS)


def _reply_with_etag(path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """Return a reply with an entity tag: a hash of the body, so that an old value has its old tag again."""
    tag = hashlib.blake2b(path.encode() + b"\0" + body, digest_size=8).hexdigest()
    return Reply(200, body, {**headers, "ETag": tag})


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() == "true"


def _seconds(text: str) -> float:
    """Return how long a request waits; without a limit if it sets none."""
    return float(text) if text.isascii() and text.isdigit() else math.inf


def _tree(values: Mapping[str, str]) -> dict[str, Any]:
    """Return a directory as `recursive=true` shows it; values with one item per line become lists."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        directory = tree
        *parents, name = path.split("/")
        for parent in parents:
            directory = directory.setdefault(parent, {})
        directory[name] = value.split("\n") if name in ("scopes", "aliases") else value
    return tree
