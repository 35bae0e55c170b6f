"""From a request to its reply: routing, discovery, lists, watches, and the writes of clients."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aioresolve.testing.lifecycle import merge_patch
from aioresolve.testing.replies import JSON_HEADERS, Reply

from .endpoint_slices import EndpointSliceController
from .requests import Access, included_object, list_options, negotiated_form
from .responses import EventEncoder, Notifier, RunningWatch, list_body, object_body, page, watch_pieces
from .statuses import Failure, details_of, invalid_option, object_failure, too_large_version
from .store import KINDS, POD, compact_json, indented_json, timestamp

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from aioresolve.testing.faults import StreamFault

    from .requests import Form, IncludeObject, ListOptions, RequestRecord, Target
    from .store import Kind, Store, StoredObject

_INTERACTIVE_AGENTS = ("curl", "Wget", "Mozilla/5.0")
"""User agents that get indented JSON."""

_HEALTH = frozenset({"/readyz", "/livez", "/healthz"})
_PUBLIC_PATHS = _HEALTH | {"/version"}
"""Paths that need no credentials."""

_VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}
_VERBS = ["create", "delete", "get", "list", "patch", "watch"]
_DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [
            {
                "name": kind.resource,
                "singularName": kind.name.lower(),
                "namespaced": kind.is_namespaced,
                "kind": kind.name,
                "verbs": _VERBS,
            }
            for kind in KINDS
            if not kind.group
        ],
    },
}
"""What kubectl reads to learn which resources the server has, here only the core group."""
_REVIEW = "SelfSubjectAccessReview"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

_GZIP_MINIMUM = 128 * 1024
"""The API server compresses bodies of at least this many bytes."""
_GZIP_HEADERS = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}


class Cluster(Access):
    """Everything that survives a restart of the server.

    Attributes:
        services: the controller that derives EndpointSlices from Services and pods.
        watch_list: whether watches may begin with the existing objects; if not, that is a 422.
    """

    def __init__(self, store: Store, bookmark_interval: float) -> None:
        self.watch_list = True
        self._store = store
        self.services = EndpointSliceController(store)
        self._notifier = Notifier()
        store.listen(lambda _: self._notifier.notify())
        self._bookmark_interval = bookmark_interval
        self._watches: list[RunningWatch] = []
        # Jobs and other objects that can only be read, by the path of their URL.
        self._controllers: dict[str, dict[str, Any]] = {}
        # The bodies of lists at one version, by request: a benchmark measures the client.
        self._lists: dict[tuple[object, ...], bytes] = {}
        self._lists_at = 0


@dataclass(frozen=True, slots=True)
class Call:
    """A request as the API sees it; `user` is None if its credentials are rejected."""

    record: RequestRecord
    target: Target | None
    user: str | None
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The body, an object as JSON; empty without one."""
        document: dict[str, Any] = json.loads(self.body or b"{}")
        return document


async def reply_to(cluster: Cluster, call: Call) -> Reply:
    """Return the reply to `call`, which may be a failure."""
    try:
        if call.target is None:
            reply = _other_reply(cluster, call)
        else:
            _check_access(cluster, call, call.target)
            reply = await _object_reply(cluster, call, call.target)
    except Failure as failure:
        reply = Reply(failure.code, failure.body, JSON_HEADERS | failure.headers)
    is_interactive = call.record.user_agent.startswith(_INTERACTIVE_AGENTS)
    if is_interactive and isinstance(reply.body, bytes) and reply.body.startswith(b"{"):
        return Reply(reply.status, indented_json(reply.body), reply.headers)
    return reply


def _check_access(cluster: Cluster, call: Call, target: Target) -> None:
    if call.user is None:
        raise Failure("Unauthorized")
    kind, name, namespace = target.kind, target.name or "", target.namespace
    if not cluster.may(call.user, target.verb, kind.resource, namespace):
        subject = f'{kind.qualified_resource} "{name}"' if name else kind.qualified_resource
        resource = f"{kind.resource}/{target.subresource}" if target.subresource else kind.resource
        scope = "at the cluster scope" if namespace is None else f'in the namespace "{namespace}"'
        message = (
            f'{subject} is forbidden: User "{call.user}" cannot {target.verb} resource "{resource}"'
            f' in API group "{kind.group}" {scope}'
        )
        headers = {"X-Content-Type-Options": "nosniff"}
        raise Failure("Forbidden", message, details=details_of(kind, name), headers=headers)
    if not target.verb:
        raise Failure("MethodNotAllowed", details={})


async def _object_reply(cluster: Cluster, call: Call, target: Target) -> Reply:
    form = negotiated_form(call.headers.get("Accept"), target.kind)
    include: IncludeObject = included_object(call.record.query) if form == "table" else "None"
    if target.verb in {"list", "watch"}:
        options = list_options(target, call.record.query)
        if target.verb == "watch":
            return _watch(cluster, call, options, EventEncoder(target.kind, form, include))
        return await _list(cluster, call, options, form, include)
    if target.verb == "get":
        stored = existing(cluster._store, target.namespace or "", target.name or "", target.kind)
    else:
        stored = _write(cluster._store, call, target)
        if target.verb == "delete" and target.kind is not POD:
            return _json_reply(200, _deleted(stored))
    return Reply(201 if target.verb == "create" else 200, object_body(stored, form, include), JSON_HEADERS)


def _json_reply(status: int, document: object) -> Reply:
    return Reply(status, compact_json(document) + b"\n", JSON_HEADERS)


# What belongs to no kind of object


def _other_reply(cluster: Cluster, call: Call) -> Reply:
    path = call.record.path.rstrip("/")
    if call.user is None and (call.record.scheme or path not in _PUBLIC_PATHS):
        raise Failure("Unauthorized")
    if path in _HEALTH:
        return Reply(200, b"ok", {"Content-Type": "text/plain; charset=utf-8"})
    if path == "/version":
        return Reply(200, indented_json(compact_json(_VERSION)), JSON_HEADERS)
    if path == _REVIEWS and call.record.method == "POST":
        return _json_reply(201, _review(cluster, call))
    document = cluster._controllers.get(path) or _DISCOVERY.get(path)
    if document is None:
        raise Failure("NotFound", details={})
    return _json_reply(200, document)


def _review(cluster: Cluster, call: Call) -> dict[str, Any]:
    """Return whether the caller may do what its SelfSubjectAccessReview describes."""
    attributes = call.document.get("spec", {}).get("resourceAttributes") or {}
    verb, resource = attributes.get("verb", ""), attributes.get("resource", "")
    allowed = cluster.may(call.user or "", verb, resource, attributes.get("namespace") or None)
    return {
        "kind": _REVIEW,
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
        "status": {"allowed": allowed},
    }


# Lists and watches


async def _list(
    cluster: Cluster, call: Call, options: ListOptions, form: Form, include: IncludeObject
) -> Reply:
    encodings = call.headers.get("Accept-Encoding", "").split(",")
    is_zipped = any(coding.partition(";")[0].strip() == "gzip" for coding in encodings)
    version, key = cluster._store.version, (options, form, include, is_zipped)
    if version != cluster._lists_at:
        cluster._lists.clear()
        cluster._lists_at = version
    body = cluster._lists.get(key)
    if body is None:
        body = list_body(page(cluster._store, options), form, include)
        if is_zipped and len(body) >= _GZIP_MINIMUM:
            # In a thread, so that other requests and watches continue.
            body = await anyio.to_thread.run_sync(partial(gzip.compress, body, compresslevel=1, mtime=0))
        if version == cluster._lists_at:
            cluster._lists[key] = body
    return Reply(200, body, JSON_HEADERS if body.startswith(b"{") else JSON_HEADERS | _GZIP_HEADERS)


def _watch(cluster: Cluster, call: Call, options: ListOptions, encoder: EventEncoder) -> Reply:
    if "sendInitialEvents" in call.record.query and not cluster.watch_list:
        rule = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
        raise invalid_option("sendInitialEvents", rule)
    if options.initial_events and (options.version or 0) > cluster._store.version:
        raise too_large_version(options.version or 0, cluster._store.version)
    return Reply(200, _watch_body(cluster, RunningWatch(call.record), options, encoder), JSON_HEADERS)


async def _watch_body(
    cluster: Cluster, watch: RunningWatch, options: ListOptions, encoder: EventEncoder
) -> AsyncGenerator[bytes | StreamFault, None]:
    """Yield the pieces of a watch, which counts as connected while the generator runs."""
    cluster._notifier.start()
    cluster._watches.append(watch)
    pieces = watch_pieces(
        cluster._store, options, encoder, cluster._notifier, watch, cluster._bookmark_interval
    )
    try:
        async for piece in pieces:
            yield piece
    finally:
        cluster._watches.remove(watch)


# Writes


def existing(store: Store, namespace: str, name: str, kind: Kind) -> StoredObject:
    """Return an object; 404 if it does not exist."""
    found = store.get(namespace, name, kind)
    if found is None:
        raise object_failure("NotFound", kind, name, "not found")
    return found


def _write(store: Store, call: Call, target: Target) -> StoredObject:
    kind, namespace, name = target.kind, target.namespace or "", target.name or ""
    with store.lock:
        if target.verb == "create":
            return _create(store, namespace, call.document, kind)
        if target.verb == "delete":
            seconds = call.record.query.get("gracePeriodSeconds", call.document.get("gracePeriodSeconds"))
            return delete(store, namespace, name, kind, None if seconds is None else int(seconds))
        found = existing(store, namespace, name, kind)
        return _replace(store, found, merge_patch(found.as_dict(), call.document), target.subresource)


def _create(store: Store, namespace: str, body: Mapping[str, Any], kind: Kind) -> StoredObject:
    metadata = {"namespace": namespace, **body["metadata"]}
    if store.get(namespace, metadata["name"], kind) is not None:
        raise object_failure("AlreadyExists", kind, metadata["name"], "already exists")
    created = {**body, "metadata": metadata}
    return store.put(_new_pod(created) if kind is POD else created, kind)


def _new_pod(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod that a client wrote as the API server stores it: phase Pending, with a grace period."""
    spec = {"terminationGracePeriodSeconds": 30, **(body.get("spec") or {})}
    status: dict[str, Any] = {"phase": "Pending"}
    if spec.get("schedulingGates"):
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
    return {**body, "spec": spec, "status": status}


def _replace(store: Store, found: StoredObject, body: Mapping[str, Any], subresource: str) -> StoredObject:
    """Write the object `body` in place of an existing one, unless it is of another version (409).

    An update of a pod's subresource `status` keeps its spec; any other update keeps its status.
    """
    kind, old = found.kind, found.as_dict()
    metadata = dict(body.get("metadata") or {})
    if metadata.get("resourceVersion") not in (None, "", str(found.version)):
        subject = f'Operation cannot be fulfilled on {kind.qualified_resource} "{found.name}"'
        hint = "please apply your changes to the latest version and try again"
        message = f"{subject}: the object has been modified; {hint}"
        raise Failure("Conflict", message, details=details_of(kind, found.name))
    for key in ("resourceVersion", "name", "namespace", "uid", "creationTimestamp", "deletionTimestamp"):
        metadata.pop(key, None)
        if key in old["metadata"]:
            metadata[key] = old["metadata"][key]
    new = {**body, "metadata": metadata}
    if kind is POD:
        kept = "spec" if subresource else "status"
        new[kept] = old[kept]
    if new == old:
        return found
    return _remove_if_done(store, new, kind) or store.put(new, kind)


def delete(store: Store, namespace: str, name: str, kind: Kind, grace: int | None) -> StoredObject:
    """Request the deletion of an object and return it; a pod remains for its grace period, in seconds.

    As in the API server, the default is the pod's own grace period, a pod that does not run anywhere has no
    grace period, and a second request can only shorten it.
    """
    with store.lock:
        found = existing(store, namespace, name, kind)
        if kind is not POD:
            return store.remove(namespace, name, kind) or found
        pod = found.as_dict()
        metadata, spec = pod["metadata"], pod["spec"]
        own = spec.get("terminationGracePeriodSeconds", 0)
        if not spec.get("nodeName") or pod["status"].get("phase") in {"Succeeded", "Failed"}:
            own = grace = 0
        seconds: int = own if grace is None else grace
        if seconds < metadata.get("deletionGracePeriodSeconds", seconds + 1):
            metadata["deletionTimestamp"] = timestamp(store.clock() + timedelta(seconds=seconds))
            metadata["deletionGracePeriodSeconds"] = seconds
            found = store.put(pod, kind)
        return _remove_if_done(store, pod, kind) or found


def _remove_if_done(store: Store, document: Mapping[str, Any], kind: Kind) -> StoredObject | None:
    """Remove an object whose deletion neither a finalizer nor a grace period delays any longer."""
    metadata = document["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers"):
        return None
    if metadata.get("deletionGracePeriodSeconds", 0) > 0:
        return None
    return store.remove(metadata["namespace"], metadata["name"], kind)


def _deleted(stored: StoredObject) -> dict[str, Any]:
    """Return the Status of the deletion of an object other than a pod."""
    details = details_of(stored.kind, stored.name) | {"uid": stored.as_dict()["metadata"]["uid"]}
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    return {**head, "status": "Success", "details": details}
