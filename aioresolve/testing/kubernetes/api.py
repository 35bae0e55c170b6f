"""From a request to its reply: routing, discovery, representation, lists, watches and writes."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aioresolve.testing.replies import JSON_HEADERS, Reply

from .cluster import RunningWatch
from .faults import endless_page
from .lists import list_body, object_body, page
from .options import (
    ListOptions,
    Representation,
    accepts_gzip,
    included_object,
    list_options,
    negotiate_representation,
)
from .protobuf import PROTOBUF, encode_status
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

    from aioresolve.testing.faults import StreamFault

    from .access import Caller, RequestInfo
    from .cluster import Cluster, RequestRecord
    from .faults import EndlessPages
    from .options import IncludeObject
    from .store import StoredPod

_HEALTH = frozenset({"/readyz", "/livez", "/healthz"})
_PUBLIC_PATHS = _HEALTH | {"/version"}
"""Paths that need no credentials."""

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


def _pod_resource(name: str, verbs: list[str], **more: Any) -> dict[str, Any]:
    return {"name": name, "singularName": "", "namespaced": True, "kind": "Pod", "verbs": verbs, **more}


_DOCUMENTS: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _pod_resource("pods", _POD_VERBS, singularName="pod", shortNames=["po"], categories=["all"]),
            _pod_resource("pods/status", ["get", "patch", "update"]),
        ],
    },
}

_GZIP_MINIMUM = 128 * 1024
"""The API server compresses bodies of at least this many bytes."""
_GZIP_HEADERS = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
_PATCH_TYPES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the API sees it."""

    record: RequestRecord
    headers: Mapping[str, str]
    body: bytes
    caller: Caller
    info: RequestInfo | None


async def reply_to(cluster: Cluster, call: Call, endless_pages: EndlessPages | None = None) -> Reply:
    """Return the reply to `call`, which may be a failure; `endless_pages` replaces the result of a list."""
    try:
        if call.info is None:
            return _discovery(call)
        cluster.access.check(call.caller, call.info)
        if not call.info.verb:
            raise method_not_allowed()
        representation = _representation(call)
        match call.info.verb:
            case "list" if endless_pages is not None:
                return _endless_list(cluster, call, representation, endless_pages)
            case "list":
                return await _list(cluster, call, representation)
            case "watch":
                return _watch(cluster, call, representation)
            case _:
                status, pod = _single_pod(cluster, call, call.info)
                body = object_body(pod, representation, _include(call, representation))
                body = indented_json(body) if representation.indent else body
                return Reply(status, body, _headers(representation))
    except Failure as failure:
        return _failure(failure, call)


def _representation(call: Call) -> Representation:
    accept, agent = call.headers.get("Accept"), call.headers.get("User-Agent", "")
    is_watch = call.info is not None and call.info.verb == "watch"  # not implemented in protobuf
    return negotiate_representation(
        accept, agent, call.record.query.get("pretty"), allow_protobuf=not is_watch
    )


def _headers(representation: Representation) -> dict[str, str]:
    return {"Content-Type": PROTOBUF} if representation.protobuf else dict(JSON_HEADERS)


def _failure(failure: Failure, call: Call) -> Reply:
    """Return the reply for a failure, in protobuf if the client prefers that."""
    try:
        representation = _representation(call)
    except Failure:  # a 406: the client accepts neither
        representation = Representation("object")
    body = encode_status(failure.status) if representation.protobuf else failure.body
    return Reply(failure.code, body, _headers(representation) | failure.headers)


def _discovery(call: Call) -> Reply:
    path = call.record.path.rstrip("/")
    if call.caller.user is None and (call.caller.scheme or path not in _PUBLIC_PATHS):
        raise unauthorized()
    if path in _HEALTH:
        return Reply(200, b"ok", {"Content-Type": "text/plain; charset=utf-8"})
    if path == "/version":
        return Reply(200, indented_json(compact_json(_VERSION)), JSON_HEADERS)
    document = _DOCUMENTS.get(path)
    if document is None:
        raise no_such_resource()
    return Reply(200, compact_json(document) + b"\n", JSON_HEADERS)


async def _list(cluster: Cluster, call: Call, representation: Representation) -> Reply:
    options = list_options(call.record.namespace, call.record.query, watch=False)
    include = _include(call, representation)
    version = cluster.store.version
    zipped = accepts_gzip(call.headers.get("Accept-Encoding", ""))
    key = (options, representation, include, zipped)
    body = cluster.responses.get(version, key)
    if body is None:
        body = list_body(page(cluster.store, options), representation, include)
        if representation.indent:
            body = indented_json(body)
        if zipped and len(body) >= _GZIP_MINIMUM:
            # In a thread, so that other requests and watches continue.
            body = await anyio.to_thread.run_sync(partial(gzip.compress, body, compresslevel=1, mtime=0))
        cluster.responses.put(version, key, body)
    zip_headers = _GZIP_HEADERS if body.startswith(b"\x1f\x8b") else {}
    return Reply(200, body, _headers(representation) | zip_headers)


def _endless_list(cluster: Cluster, call: Call, representation: Representation, fault: EndlessPages) -> Reply:
    options = list_options(call.record.namespace, call.record.query, watch=False)
    listed = endless_page(fault, options, cluster.store.clock())
    body = list_body(listed, representation, _include(call, representation))
    return Reply(200, body, _headers(representation))


def _include(call: Call, representation: Representation) -> IncludeObject:
    return included_object(call.record.query) if representation.kind == "table" else "None"


def _watch(cluster: Cluster, call: Call, representation: Representation) -> Reply:
    options = list_options(call.record.namespace, call.record.query, watch=True)
    include = _include(call, representation)
    check_watch(cluster.store, options)
    encoder = EventEncoder(representation, include)
    return Reply(200, _watch_body(cluster, RunningWatch(call.record), options, encoder), JSON_HEADERS)


async def _watch_body(
    cluster: Cluster, watch: RunningWatch, options: ListOptions, encoder: EventEncoder
) -> AsyncGenerator[bytes | StreamFault, None]:
    """Yield the pieces of a watch, which counts as connected while the generator runs."""
    cluster.watches.append(watch)
    try:
        async for piece in watch_pieces(
            cluster.store, options, encoder, cluster.notifier, watch.faults, cluster.bookmark_interval
        ):
            yield piece
    finally:
        cluster.watches.remove(watch)


def _single_pod(cluster: Cluster, call: Call, info: RequestInfo) -> tuple[int, StoredPod]:
    """Read or write one pod; return the HTTP status and the pod."""
    namespace, name = info.namespace or "", info.name or ""
    manager = call.headers.get("User-Agent", "").partition("/")[0] or "unknown"
    writer = cluster.writer
    match info.verb:
        case "create":
            return 201, writer.create(namespace, _document(call.body), manager)
        case "update":
            return 200, writer.replace(namespace, name, _document(call.body), info.subresource, manager)
        case "patch":
            kind = call.headers.get("Content-Type", "").partition(";")[0].strip()
            if kind not in _PATCH_TYPES:
                raise unsupported_media_type(*_PATCH_TYPES)
            return 200, writer.patch(namespace, name, _document(call.body), info.subresource, manager)
        case "delete" if not info.subresource:
            return 200, writer.delete(namespace, name, _grace_period(call))
        case "get":
            pod = cluster.store.get(namespace, name)
            if pod is None:
                raise not_found(name)
            return 200, pod
        case _:
            raise method_not_allowed()


def _grace_period(call: Call) -> int | None:
    value = call.record.query.get("gracePeriodSeconds")
    if value is None and call.body:
        value = _document(call.body).get("gracePeriodSeconds")
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        raise bad_request(f"invalid gracePeriodSeconds: {value!r}") from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise bad_request("the object provided is unrecognized (must be of type Pod)")
    return document
