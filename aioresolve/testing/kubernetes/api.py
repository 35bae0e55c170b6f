"""What the server says of itself: its version and the resources it has.

From a request to its reply, faults aside: routing, representation, lists, watches and writes.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aioresolve.testing.replies import Reply

from .disturbances import RunningWatch
from .endless_pages import endless_page
from .lists import list_body, object_body, page
from .options import ListOptions, Representation, accepts_gzip, included_object, list_options, negotiated
from .statuses import (
    Failure,
    bad_request,
    compact_json,
    indented_json,
    method_not_allowed,
    no_such_resource,
    not_found,
    unauthorized,
    unsupported_media_type,
)
from .watches import EventEncoder, check_watch, watch_pieces

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from aioresolve.testing.faults import Interruption

    from .access import Caller
    from .cluster import Cluster
    from .endless_pages import EndlessPages
    from .options import IncludeObject
    from .requests import RequestRecord, Target
    from .store import StoredPod

__all__ = ["PUBLIC_PATHS", "Call", "discovery_body", "failure_reply", "reply_to"]

_HEALTH = frozenset({"/readyz", "/livez", "/healthz"})
PUBLIC_PATHS = _HEALTH | {"/version"}
"""What is answered without credentials."""

_VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-06-16T00:00:00Z",
    "goVersion": "go1.26",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_POD_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discovery_body(path: str) -> tuple[str, bytes] | None:
    """Content type and body of the answer on `path`, None where there is none."""
    if path in _HEALTH:
        return "text/plain; charset=utf-8", b"ok"
    if path == "/version":
        return "application/json", indented_json(compact_json(_VERSION))
    document = _DOCUMENTS.get(path)
    return None if document is None else ("application/json", compact_json(document) + b"\n")


def _pods(name: str, verbs: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": True, "kind": "Pod", "verbs": verbs, **more}


_DOCUMENTS: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _pods("pods", _POD_VERBS, shortNames=["po"], categories=["all"]) | {"singularName": "pod"},
            _pods("pods/status", ["get", "patch", "update"]),
        ],
    },
}


_GZIP_FROM = 128 * 1024
"""The API server compresses bodies of at least this many bytes."""
_JSON = {"Content-Type": "application/json"}
_GZIPPED = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
_PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the API sees it; `record` is what is kept of it."""

    record: RequestRecord
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    caller: Caller
    target: Target | None


async def reply_to(cluster: Cluster, call: Call, lie: EndlessPages | None = None) -> Reply:
    """The reply to `call`, a failure being one as well; `lie` is what a list is answered with instead."""
    try:
        if call.target is None:
            return _discovery(call)
        cluster.access.check(call.caller, call.target)
        if not call.target.verb:
            raise method_not_allowed()
        accept, agent = call.headers.get("Accept"), call.headers.get("User-Agent", "")
        representation = negotiated(accept, agent, call.query.get("pretty"))
        match call.target.verb:
            case "list":
                if lie is not None:
                    return _endless_list(cluster, call, call.target, representation, lie)
                return await _list(cluster, call, call.target, representation)
            case "watch":
                return _watch(cluster, call, call.target, representation)
            case _:
                return _one(call, representation, *_touched(cluster, call, call.target))
    except Failure as failure:
        return failure_reply(failure)


def _discovery(call: Call) -> Reply:
    path = call.path.rstrip("/")
    refused = call.caller.user is None
    if refused and (call.caller.scheme or path not in PUBLIC_PATHS):
        raise unauthorized()
    found = discovery_body(path)
    if found is None:
        raise no_such_resource()
    content_type, body = found
    return Reply(200, body, {"Content-Type": content_type})


def failure_reply(failure: Failure) -> Reply:
    """The reply that tells of `failure`."""
    return Reply(failure.code, failure.body, _JSON | failure.headers)


async def _list(cluster: Cluster, call: Call, target: Target, representation: Representation) -> Reply:
    options = list_options(target.namespace, call.query, watch=False)
    include = _include(call, representation)
    version = cluster.store.version
    zipped = accepts_gzip(call.headers.get("Accept-Encoding", ""))
    key = (options, representation, include, zipped)
    body = cluster.answers.get(version, key)
    if body is None:
        body = list_body(page(cluster.store, options), representation, include)
        if representation.indent:
            body = indented_json(body)
        if zipped and len(body) >= _GZIP_FROM:
            body = await anyio.to_thread.run_sync(_gzipped, body)
        cluster.answers.put(version, key, body)
    return Reply(200, body, _JSON | (_GZIPPED if body.startswith(b"\x1f\x8b") else {}))


def _endless_list(
    cluster: Cluster, call: Call, target: Target, representation: Representation, lie: EndlessPages
) -> Reply:
    options = list_options(target.namespace, call.query, watch=False)
    listed = endless_page(lie, options, cluster.store.clock())
    return Reply(200, list_body(listed, representation, _include(call, representation)), _JSON)


def _include(call: Call, representation: Representation) -> IncludeObject:
    return included_object(call.query) if representation.kind == "table" else "None"


def _gzipped(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=1, mtime=0)


def _watch(cluster: Cluster, call: Call, target: Target, representation: Representation) -> Reply:
    options = list_options(target.namespace, call.query, watch=True)
    include = _include(call, representation)
    check_watch(cluster.store, options)
    encoder = EventEncoder(representation, include)
    return Reply(200, _connected(cluster, RunningWatch(call.record), options, encoder), _JSON)


async def _connected(
    cluster: Cluster, watch: RunningWatch, options: ListOptions, encoder: EventEncoder
) -> AsyncGenerator[bytes | Interruption, None]:
    """The pieces of a watch; it is one of the cluster's for as long as somebody takes them."""
    cluster.watches.append(watch)
    try:
        async for piece in watch_pieces(
            cluster.store, options, encoder, cluster.pulse, watch.disturbances, cluster.bookmark_interval
        ):
            yield piece
    finally:
        cluster.watches.remove(watch)


def _one(call: Call, representation: Representation, status: int, pod: StoredPod) -> Reply:
    include = _include(call, representation)
    body = object_body(pod, representation, include)
    return Reply(status, indented_json(body) if representation.indent else body, _JSON)


def _touched(cluster: Cluster, call: Call, target: Target) -> tuple[int, StoredPod]:
    """HTTP status and the pod, once what was asked for one pod has been done."""
    namespace, name = target.namespace or "", target.name or ""
    manager = call.headers.get("User-Agent", "").partition("/")[0] or "unknown"
    writer = cluster.writer
    match target.verb:
        case "create":
            return 201, writer.create(namespace, _document(call.body), manager)
        case "update":
            return 200, writer.replace(namespace, name, _document(call.body), target.subresource, manager)
        case "patch":
            kind = call.headers.get("Content-Type", "").partition(";")[0].strip()
            if kind not in _PATCHES:
                raise unsupported_media_type(*_PATCHES)
            return 200, writer.patch(namespace, name, _document(call.body), target.subresource, manager)
        case "delete" if not target.subresource:
            return 200, writer.delete(namespace, name, _grace_period(call))
        case "get":
            pod = cluster.store.get(namespace, name)
            if pod is None:
                raise not_found(name)
            return 200, pod
        case _:
            raise method_not_allowed()


def _grace_period(call: Call) -> int | None:
    asked = call.query.get("gracePeriodSeconds")
    if asked is None and call.body:
        asked = _document(call.body).get("gracePeriodSeconds")
    try:
        return None if asked is None else int(asked)
    except (TypeError, ValueError):
        raise bad_request(f"gracePeriodSeconds is no number: {asked!r}") from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise bad_request(f"the object provided is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("the object provided is unrecognized (must be of type Pod)")
    return document
