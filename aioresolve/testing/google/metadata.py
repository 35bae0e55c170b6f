"""The GCE metadata server: values by path, folders, waiting for changes, tokens of the service account.

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

    from .cloud import Cloud

__all__ = ["awaited_metadata_reply", "default_metadata", "metadata_reply"]

ROOT = "/computeMetadata/v1/"
ACCOUNT = "instance/service-accounts/default/"
FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "X-XSS-Protection": "0"}
TEXT = {**FLAVOR, "Content-Type": "application/text"}
JSON = {**FLAVOR, "Content-Type": "application/json"}
PAGE = {**FLAVOR, "Content-Type": "text/html; charset=UTF-8"}

LOOKING = 0.005
"""Seconds between two looks at what is waited for: a mapping tells nobody when it changes."""


def default_metadata(project: str, zone: str, email: str) -> dict[str, str]:
    """What every VM's metadata server says, by path."""
    return {
        "project/project-id": project,
        "project/numeric-project-id": "123456789012",
        "instance/id": "1152921504606846976",
        "instance/name": "loopback",
        "instance/zone": f"projects/123456789012/zones/{zone}",
        "instance/network-interfaces/0/ip": "10.128.0.2",
        "universe/universe-domain": "googleapis.com",
        f"{ACCOUNT}aliases": "default",
        f"{ACCOUNT}email": email,
        f"{ACCOUNT}scopes": "https://www.googleapis.com/auth/cloud-platform",
    }


async def awaited_metadata_reply(
    cloud: Cloud, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> Reply:
    """The answer to one request, which with `wait_for_change=true` is held back until it is another one.

    That is, another than of the entity tag `last_etag`, or where there is none, than now. Once `timeout_sec`
    are over it is answered as it is.
    """
    reply = metadata_reply(cloud, path, query, headers)
    known = query.get("last_etag") or reply.headers.get("ETag")
    if not _is_true(query, "wait_for_change") or known is None:
        return reply
    with anyio.move_on_after(_seconds(query.get("timeout_sec", ""))):
        while reply.headers.get("ETag") == known:
            await anyio.sleep(LOOKING)
            reply = metadata_reply(cloud, path, query, headers)
    return reply


def metadata_reply(cloud: Cloud, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
    """The answer to one request as of now, a refusal being one as well."""
    if path == "/":
        return Reply(200, b"computeMetadata/\n", TEXT)
    if headers.get("Metadata-Flavor") != "Google" or "X-Forwarded-For" in headers:
        return Reply(403, b"<!DOCTYPE html>\n<title>Error 403 (Forbidden)!!1</title>\n", PAGE)
    with cloud.lock:
        values = dict(cloud.metadata)
    # The default account is there by its address as well.
    email = values.get(f"{ACCOUNT}email", "default")
    name = path.removeprefix(ROOT).replace(f"instance/service-accounts/{email}/", ACCOUNT, 1)
    if name == f"{ACCOUNT}token" and f"{ACCOUNT}email" in values:
        member = f"serviceAccount:{values[f'{ACCOUNT}email']}"
        return Reply(200, json.dumps(cloud.tokens.issued_json(member)).encode(), JSON)
    if name in values:
        return _tagged(path, values[name].encode(), TEXT)
    within = {each.removeprefix(name): values[each] for each in values if each.startswith(name)}
    if not name.endswith("/") or not within:
        return Reply(404, b"<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>\n", PAGE)
    if _is_true(query, "recursive"):
        return _tagged(path, json.dumps(_tree(within)).encode(), JSON)
    if _is_true(query, "wait_for_change"):
        return Reply(400, b"<!DOCTYPE html>\n<title>Error 400 (Bad Request)!!1</title>\n", PAGE)
    entries = {each.partition("/")[0] + ("/" if "/" in each else "") for each in within}
    return _tagged(path, "".join(f"{entry}\n" for entry in sorted(entries)).encode(), TEXT)


def _tagged(path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
    """The reply with its entity tag: sixteen digits of what it says, so that an old value has its old tag."""
    tag = hashlib.blake2b(path.encode() + b"\0" + body, digest_size=8).hexdigest()
    return Reply(200, body, {**headers, "ETag": tag})


def _is_true(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() == "true"


def _seconds(text: str) -> float:
    """How long a request waits; for ever where it does not say."""
    return float(text) if text.isascii() and text.isdigit() else math.inf


def _tree(values: Mapping[str, str]) -> dict[str, Any]:
    """A folder as `recursive=true` shows it; what has a line each is a list there."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        folder = tree
        *parents, name = path.split("/")
        for parent in parents:
            folder = folder.setdefault(parent, {})
        folder[name] = value.split("\n") if name in ("scopes", "aliases") else value
    return tree
