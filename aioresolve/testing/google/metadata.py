"""The GCE metadata server: values by path, folders, and tokens of the default service account."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aioresolve.testing.sending import Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.testing.google.cloud import Cloud

__all__ = ["default_metadata", "metadata_reply"]

ROOT = "/computeMetadata/v1/"
ACCOUNT = "instance/service-accounts/default/"
FLAVOR = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "X-XSS-Protection": "0"}
TEXT = {**FLAVOR, "Content-Type": "application/text"}
JSON = {**FLAVOR, "Content-Type": "application/json"}
PAGE = {**FLAVOR, "Content-Type": "text/html; charset=UTF-8"}


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


def metadata_reply(cloud: Cloud, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> Reply:
    """The answer to one request, a refusal being one as well."""
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
        return Reply(200, values[name].encode(), TEXT)
    within = {each.removeprefix(name): values[each] for each in values if each.startswith(name)}
    if not name.endswith("/") or not within:
        return Reply(404, b"<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>\n", PAGE)
    if query.get("recursive", "").lower() == "true":
        return Reply(200, json.dumps(_tree(within)).encode(), JSON)
    entries = {each.partition("/")[0] + ("/" if "/" in each else "") for each in within}
    return Reply(200, "".join(f"{entry}\n" for entry in sorted(entries)).encode(), TEXT)


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
