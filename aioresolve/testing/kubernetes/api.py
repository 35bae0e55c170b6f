"""From a request to its reply: routing, discovery, representation, lists, watches and writes."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aioresolve.testing.replies import JSON_HEADERS, Reply

from .endpoint_slices import EndpointSliceController, EndpointSliceWriter
from .kinds import ENDPOINT_SLICE, NODE, POD, RESOURCE_CLAIM, SERVICE
from .lists import ResponseCache, endless_page, list_body, object_body, page
from .options import (
    ListOptions,
    Representation,
    accepts_gzip,
    included_object,
    list_options,
    negotiate_representation,
)
from .statuses import (
    Failure,
    bad_request,
    compact_json,
    indented_json,
    method_not_allowed,
    no_such_resource,
    not_found,
    success,
    unauthorized,
    unsupported_media_type,
    watch_list_disabled,
)
from .store import timestamp
from .watches import EventEncoder, Notifier, RunningWatch, check_watch, watch_pieces
from .writes import PodWriter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from aioresolve.testing.faults import StreamFault

    from .access import Access, Caller, RequestInfo, RequestRecord
    from .kinds import Kind
    from .lists import EndlessPages
    from .options import IncludeObject
    from .store import Store, StoredObject
    from .writes import Writer

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
_REVIEW = "SelfSubjectAccessReview"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _resource(kind: Kind, verbs: list[str], *, name: str = "", **more: Any) -> dict[str, Any]:
    head = {"name": name or kind.resource, "singularName": "", "namespaced": True, "kind": kind.name}
    return {**head, "verbs": verbs, **more}


def _group(kind: Kind) -> dict[str, Any]:
    version = {"groupVersion": kind.api_version, "version": "v1"}
    return {"name": kind.group, "versions": [version], "preferredVersion": version}


_DOCUMENTS: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(ENDPOINT_SLICE), _group(RESOURCE_CLAIM)],
    },
    f"/apis/{ENDPOINT_SLICE.group}": {"kind": "APIGroup", "apiVersion": "v1", **_group(ENDPOINT_SLICE)},
    f"/apis/{RESOURCE_CLAIM.group}": {"kind": "APIGroup", "apiVersion": "v1", **_group(RESOURCE_CLAIM)},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            _resource(NODE, ["list"], singularName="node", shortNames=["no"], namespaced=False),
            _resource(POD, _VERBS, singularName="pod", shortNames=["po"], categories=["all"]),
            _resource(POD, ["get", "patch", "update"], name="pods/status"),
        ],
    },
    f"/apis/{ENDPOINT_SLICE.api_version}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": ENDPOINT_SLICE.api_version,
        "resources": [_resource(ENDPOINT_SLICE, _VERBS, singularName="endpointslice")],
    },
    f"/apis/{RESOURCE_CLAIM.api_version}": {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": RESOURCE_CLAIM.api_version,
        "resources": [
            _resource(RESOURCE_CLAIM, ["get", "list", "watch"], singularName="resourceclaim"),
        ],
    },
}

_GZIP_MINIMUM = 128 * 1024
"""The API server compresses bodies of at least this many bytes."""
_GZIP_HEADERS = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
_PATCH_TYPES = ("application/merge-patch+json", "application/strategic-merge-patch+json")


@dataclass(slots=True)
class Cluster:
    """Everything that survives a restart of the server.

    `writers` apply the writes of clients, and `services` derives EndpointSlices from pods. `watches` are
    those that are connected; each sends a bookmark every `bookmark_interval` seconds, and with `watch_list`
    they may begin with the existing objects. `controllers` are Jobs and other objects that can only be read,
    by the path of their URL.
    """

    store: Store
    access: Access
    bookmark_interval: float
    notifier: Notifier = field(default_factory=Notifier)
    responses: ResponseCache = field(default_factory=ResponseCache)
    writers: Mapping[Kind, Writer] = field(init=False)
    services: EndpointSliceController = field(init=False)
    watches: list[RunningWatch] = field(default_factory=list)
    controllers: dict[str, dict[str, Any]] = field(default_factory=dict)
    watch_list: bool = True

    def __post_init__(self) -> None:
        self.writers = {POD: PodWriter(self.store), ENDPOINT_SLICE: EndpointSliceWriter(self.store)}
        self.services = EndpointSliceController(self.store)
        self.store.listen(self.services.sync)
        self.store.listen(self.notifier.notify)


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
        if call.record.path.rstrip("/") == _REVIEWS and call.record.method == "POST":
            return _review_access(cluster, call)
        if call.info is None:
            return _other_object(cluster, call)
        cluster.access.check(call.caller, call.info)
        if not call.info.verb:
            raise method_not_allowed()
        representation = _representation(call)
        if call.info.kind is SERVICE:
            return _service(cluster, call.info, representation)
        match call.info.verb:
            case "list" if endless_pages is not None:
                return _endless_list(cluster, call, representation, endless_pages)
            case "list":
                return await _list(cluster, call, representation)
            case "watch":
                return _watch(cluster, call, representation)
            case _:
                status, stored = _single_object(cluster, call, call.info)
                if call.info.verb == "delete" and call.info.kind is not POD:
                    deleted = success(stored.name, stored.as_dict()["metadata"]["uid"], stored.kind)
                    return Reply(200, compact_json(deleted) + b"\n", JSON_HEADERS)
                body = object_body(stored, representation.kind, _include(call, representation))
                body = indented_json(body) if representation.indent else body
                return Reply(status, body, JSON_HEADERS)
    except Failure as failure:
        return Reply(failure.code, failure.body, JSON_HEADERS | failure.headers)


def _representation(call: Call) -> Representation:
    accept, agent = call.headers.get("Accept"), call.headers.get("User-Agent", "")
    only_objects = call.info is not None and call.info.kind is not POD
    pretty = call.record.query.get("pretty")
    return negotiate_representation(accept, agent, pretty, only_objects=only_objects)


def _other_object(cluster: Cluster, call: Call) -> Reply:
    path = call.record.path.rstrip("/")
    if call.caller.user is None and (call.caller.scheme or path not in _PUBLIC_PATHS):
        raise unauthorized()
    if path in _HEALTH:
        return Reply(200, b"ok", {"Content-Type": "text/plain; charset=utf-8"})
    if path == "/version":
        return Reply(200, indented_json(compact_json(_VERSION)), JSON_HEADERS)
    document = _DOCUMENTS.get(path) or cluster.controllers.get(path)
    if document is None:
        raise no_such_resource()
    return Reply(200, compact_json(document) + b"\n", JSON_HEADERS)


def _review_access(cluster: Cluster, call: Call) -> Reply:
    """Return whether the caller may do what its SelfSubjectAccessReview describes."""
    if call.caller.user is None:
        raise unauthorized()
    attributes = _document(call.body, _REVIEW).get("spec", {}).get("resourceAttributes") or {}
    verb, resource = attributes.get("verb", ""), attributes.get("resource", "")
    version = "authorization.k8s.io/v1"
    managed = {
        "manager": call.headers.get("User-Agent", "").partition("/")[0] or "unknown",
        "operation": "Update",
        "apiVersion": version,
        "time": timestamp(cluster.store.clock()),
        "fieldsType": "FieldsV1",
        "fieldsV1": {
            "f:spec": {"f:resourceAttributes": {".": {}, **{f"f:{name}": {} for name in sorted(attributes)}}}
        },
    }
    allowed = cluster.access.may(call.caller.user, verb, resource, attributes.get("namespace") or None)
    body = compact_json(
        {
            "kind": _REVIEW,
            "apiVersion": version,
            "metadata": {"managedFields": [managed]},
            "spec": {"resourceAttributes": attributes},
            "status": {"allowed": allowed},
        }
    )
    return _json_reply(201, body, _representation(call))


def _service(cluster: Cluster, info: RequestInfo, representation: Representation) -> Reply:
    if info.verb != "get":
        raise method_not_allowed()
    service = cluster.services.get(info.namespace or "", info.name or "")
    if service is None:
        raise not_found(info.name or "", SERVICE)
    return _json_reply(200, compact_json(service), representation)


def _json_reply(status: int, body: bytes, representation: Representation) -> Reply:
    return Reply(status, indented_json(body) if representation.indent else body + b"\n", JSON_HEADERS)


async def _list(cluster: Cluster, call: Call, representation: Representation) -> Reply:
    options = list_options(call.record.namespace, call.record.query, watch=False, kind=_kind(call))
    include = _include(call, representation)
    version = cluster.store.version
    zipped = accepts_gzip(call.headers.get("Accept-Encoding", ""))
    key = (options, representation, include, zipped)
    body = cluster.responses.get(version, key)
    if body is None:
        body = list_body(page(cluster.store, options), representation.kind, include)
        if representation.indent:
            body = indented_json(body)
        if zipped and len(body) >= _GZIP_MINIMUM:
            # In a thread, so that other requests and watches continue.
            body = await anyio.to_thread.run_sync(partial(gzip.compress, body, compresslevel=1, mtime=0))
        cluster.responses.put(version, key, body)
    zip_headers = _GZIP_HEADERS if body.startswith(b"\x1f\x8b") else {}
    return Reply(200, body, JSON_HEADERS | zip_headers)


def _endless_list(cluster: Cluster, call: Call, representation: Representation, fault: EndlessPages) -> Reply:
    options = list_options(call.record.namespace, call.record.query, watch=False)
    listed = endless_page(fault, options, cluster.store.clock())
    return Reply(200, list_body(listed, representation.kind, _include(call, representation)), JSON_HEADERS)


def _kind(call: Call) -> Kind:
    return POD if call.info is None else call.info.kind


def _include(call: Call, representation: Representation) -> IncludeObject:
    return included_object(call.record.query) if representation.kind == "table" else "None"


def _watch(cluster: Cluster, call: Call, representation: Representation) -> Reply:
    kind = _kind(call)
    options = list_options(call.record.namespace, call.record.query, watch=True, kind=kind)
    include = _include(call, representation)
    if "sendInitialEvents" in call.record.query and not cluster.watch_list:
        raise watch_list_disabled()
    check_watch(cluster.store, options)
    encoder = EventEncoder(kind, representation.kind, include)
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


def _single_object(cluster: Cluster, call: Call, info: RequestInfo) -> tuple[int, StoredObject]:
    """Read or write one object; return the HTTP status and the object."""
    namespace, name = info.namespace or "", info.name or ""
    manager = call.headers.get("User-Agent", "").partition("/")[0] or "unknown"
    kind = info.kind
    if info.verb == "get":
        stored = cluster.store.get(namespace, name, kind)
        if stored is None:
            raise not_found(name, kind)
        return 200, stored
    writer = cluster.writers.get(kind)
    if writer is None:
        raise method_not_allowed()
    match info.verb:
        case "create":
            return 201, writer.create(namespace, _document(call.body, kind.name), manager)
        case "update":
            return 200, writer.replace(
                namespace, name, _document(call.body, kind.name), info.subresource, manager
            )
        case "patch":
            media_type = call.headers.get("Content-Type", "").partition(";")[0].strip()
            if media_type not in _PATCH_TYPES:
                raise unsupported_media_type(*_PATCH_TYPES)
            return 200, writer.patch(
                namespace, name, _document(call.body, kind.name), info.subresource, manager
            )
        case "delete" if not info.subresource:
            return 200, writer.delete(namespace, name, _grace_period(call, kind))
        case _:
            raise method_not_allowed()


def _grace_period(call: Call, kind: Kind) -> int | None:
    value = call.record.query.get("gracePeriodSeconds")
    if value is None and call.body:
        value = _document(call.body, kind.name).get("gracePeriodSeconds")
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        raise bad_request(f"invalid gracePeriodSeconds: {value!r}") from None


def _document(body: bytes, kind: str) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise bad_request(f"the object provided is unrecognized (must be of type {kind})")
    return document
