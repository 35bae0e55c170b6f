"""`KubernetesServer`: a Kubernetes API server for pods and EndpointSlices on a loopback port, for tests."""

from __future__ import annotations

import base64
import json
import time
import uuid
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDict

from aioresolve.errors import ConfigurationError
from aioresolve.testing.faults import StreamFault, WatchError
from aioresolve.testing.lifecycle import (
    Controls,
    LoopbackServer,
    ThreadedServer,
    certificate_user,
    merge_patch,
    write_private,
)
from aioresolve.testing.replies import JSON_HEADERS, Reply

from .api import Call, Cluster, delete, reply_to
from .requests import RequestRecord, target_of
from .responses import Bookmark, failure_of_watch
from .statuses import failure_of_status
from .store import ENDPOINT_SLICE, KINDS, POD, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from aiohttp import web

    from aioresolve.testing.faults import Fault

    from .store import Kind, StoredObject

_FLOW_CONTROL_HEADERS = {
    "X-Kubernetes-Pf-Flowschema-Uid": "2c05a679-f264-40a1-bda5-c9b8f7198d2e",
    "X-Kubernetes-Pf-Prioritylevel-Uid": "08d4e4e1-d121-4e2e-8f10-9a3c4d436ac1",
}


_KINDS = {kind.name: kind for kind in KINDS}
_UTC_NOW = partial(datetime.now, UTC)


class KubernetesControls(Cluster, Controls[RequestRecord]):
    """The objects, users, watches and credentials of a server; every method may be called from any thread.

    A method that gets the name of an object raises a ConfigurationError if it does not exist.
    """

    # Pods

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The current state of every pod, ordered by namespace and name, as new dicts."""
        return [pod.as_dict() for pod in self._store.objects()]

    @property
    def endpoint_slices(self) -> list[dict[str, Any]]:
        """The current state of every EndpointSlice, ordered by namespace and name, as new dicts."""
        return [each.as_dict() for each in self._store.objects(ENDPOINT_SLICE)]

    @property
    def resource_version(self) -> int:
        """The resourceVersion of the latest write."""
        return self._store.version

    def pod(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """Return the current state of a pod as a new dict."""
        return self._stored(name, namespace).as_dict()

    def add(self, *objects: Mapping[str, Any]) -> None:
        """Write objects as they are; one of the same kind and name is replaced.

        The server has pods, EndpointSlices, Services, nodes, ResourceClaims, ConfigMaps and Leases. From a
        Service with a selector it derives EndpointSlices, and keeps them up to date with its pods, as the
        controller of a cluster does.

        Raises:
            ConfigurationError: an object is of another kind; nothing was written.
        """
        kinds = [each.get("kind", POD.name) for each in objects]
        for name in kinds:
            if name not in _KINDS:
                raise ConfigurationError(f"the server does not have objects of kind {name!r}")
        with self.services.paused():
            for name, each in zip(kinds, objects, strict=True):
                self._store.put(each, _KINDS[name])

    def add_controllers(self, *controllers: Mapping[str, Any]) -> None:
        """Serve controllers, such as Jobs, for GET; one of the same kind and name is replaced.

        They need `apiVersion`, `kind` and `metadata`. They cannot be listed, watched or written by clients.
        """
        for one in controllers:
            metadata, version = one["metadata"], one["apiVersion"]
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            namespace = metadata.get("namespace")
            where = "" if namespace is None else f"/namespaces/{namespace}"
            self._controllers[f"{root}{where}/{one['kind'].lower()}s/{metadata['name']}"] = dict(one)

    def patch(self, name: str, namespace: str = "default", *, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merge `patch` into any part of a pod (RFC 7386: None removes) in one write, and return the pod."""
        with self._store.lock:
            return self._store.put(merge_patch(self._stored(name, namespace).as_dict(), patch)).as_dict()

    def delete(
        self,
        name: str,
        namespace: str = "default",
        *,
        grace_period_seconds: int | None = 0,
        kind: str = "Pod",
    ) -> None:
        """Delete an object as a client would: immediately by default; None uses the pod's own grace period.

        A pod that has finalizers or a grace period remains, with a deletionTimestamp, until `finish_deletion`
        is called or it is deleted again without a grace period. The slices of a Service are deleted with it.
        """
        with self._store.lock:
            self._stored(name, namespace, _KINDS[kind])
            delete(self._store, namespace, name, _KINDS[kind], grace_period_seconds)

    def finish_deletion(self, name: str, namespace: str = "default") -> None:
        """Remove a pod that is being deleted, even if it has finalizers.

        Raises:
            ConfigurationError: the pod is not being deleted.
        """
        with self._store.lock:
            if "deletionTimestamp" not in self._stored(name, namespace).as_dict()["metadata"]:
                raise ConfigurationError(
                    f"pod {namespace}/{name} is not being deleted", hint="Call delete() first."
                )
            self._store.remove(namespace, name)

    def compact(self) -> None:
        """Discard the history: continue tokens and versions issued so far have expired (410)."""
        self._store.compact()

    def _stored(self, name: str, namespace: str, kind: Kind = POD) -> StoredObject:
        stored = self._store.get(namespace, name, kind)
        if stored is None:
            noun = "pod" if kind is POD else kind.name
            raise ConfigurationError(
                f"there is no {noun} {namespace}/{name}", hint="Call add() first, or pass its namespace."
            )
        return stored

    # Watches

    @property
    def watches(self) -> int:
        """The number of connected watches."""
        return len(self._watches)

    def bookmark(self) -> None:
        """Send a bookmark, without delay, to every watch that allows bookmarks; one per call."""
        self._order(Bookmark())

    def disturb(self, fault: Fault, *, match: Callable[[RequestRecord], bool] | None = None) -> int:
        """Apply `fault` to the connected watches whose request `match` accepts, and return their number.

        Earlier writes are sent first. `Cut`, `End`, `Reset` and `Stall` count the bytes from there on:
        `Cut(after=20)` closes the connection within the line of the next event, `Cut(after=0)` immediately.
        `Delay` delays later events, and `WatchError` ends the watch with an ERROR event.

        Raises:
            ConfigurationError: the fault applies only before or in place of a response.
        """
        if not isinstance(fault, StreamFault | WatchError):
            raise ConfigurationError(
                f"{fault!r} cannot apply to a watch that is already connected",
                hint="inject() it, or use one of Cut, Delay, End, Reset, Stall and WatchError.",
            )
        return self._order(fault, match)

    def _order(
        self,
        order: StreamFault | WatchError | Bookmark,
        match: Callable[[RequestRecord], bool] | None = None,
    ) -> int:
        with self._store.lock:
            connected = tuple(self._watches)
            watches = [watch for watch in connected if match is None or match(watch.request)]
            for watch in watches:
                watch.orders.append((order, self._store.version))
        self._notifier.notify()
        return len(watches)

    # Credentials

    def client_certificate(self, user: str) -> tuple[str, str]:
        """Return a certificate chain and its private key (PEM) that authenticate a client as `user`.

        The server has to use TLS, and to have been started.
        """
        return self._get_authority().client_certificate(user)

    def kubeconfig(
        self,
        *,
        token: str | None = None,
        certificate_of: str | None = None,
        namespace: str | None = None,
        context: str = "loopback",
    ) -> dict[str, Any]:
        """Return a kubeconfig with one context for this server, including its CA certificate.

        `write_kubeconfig` writes the file that `kubeconfig=` of a resolver takes.
        Without explicit credentials, the first of `tokens` is used if there is one.

        Args:
            token: a bearer token.
            certificate_of: the name of a user, for whom a client certificate is issued (TLS only).
            namespace: the namespace of the context.
            context: the name of the context, and of its cluster and user.
        """
        cluster: dict[str, Any] = {"server": self.url}
        if self._tls:
            cluster["certificate-authority-data"] = _base64(self.ca_pem)
        user: dict[str, Any] = {}
        if certificate_of is not None:
            chain, key = self.client_certificate(certificate_of)
            user = {"client-certificate-data": _base64(chain), "client-key-data": _base64(key)}
        elif token or self.tokens:
            user = {"token": token or next(iter(self.tokens or ()))}
        named = {"cluster": context, "user": context} | ({"namespace": namespace} if namespace else {})
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": cluster}],
            "users": [{"name": context, "user": user}],
            "contexts": [{"name": context, "context": named}],
            "current-context": context,
        }

    def write_kubeconfig(
        self,
        path: str | Path,
        *,
        token: str | None = None,
        certificate_of: str | None = None,
        namespace: str | None = None,
        context: str = "loopback",
    ) -> Path:
        """Write `kubeconfig(...)` to `path` (as JSON, which is YAML too), readable only by its owner."""
        document = self.kubeconfig(
            token=token, certificate_of=certificate_of, namespace=namespace, context=context
        )
        return write_private(Path(path), json.dumps(document, indent=2))

    def in_cluster(
        self, directory: str | Path, *, token: str | None = None, namespace: str = "default"
    ) -> dict[str, str]:
        """Write the service account files (`token`, `ca.crt`, `namespace`) into `directory`.

        The result is the environment variables of a pod in this cluster. The server has to use TLS, as every
        client in a cluster does.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "ca.crt").write_text(self.ca_pem)
        (directory / "namespace").write_text(namespace)
        write_private(directory / "token", token or next(iter(self.tokens or ("",))))
        return {"KUBERNETES_SERVICE_HOST": self.host, "KUBERNETES_SERVICE_PORT": str(self.port)}


class KubernetesServer(LoopbackServer[RequestRecord], KubernetesControls):
    """A Kubernetes API server for pods and EndpointSlices, on a loopback port, to test clients with.

    >>> async with KubernetesServer([pod("train-0", labels={"app": "trainer"}, ip="10.0.0.1")]) as server:
    ...     path, jobs = server.write_kubeconfig("loopback.yaml"), {"worker": ["app=trainer"]}
    ...     server.inject(Answer(503))  # the next request
    ...     server.disturb(Reset())  # the connected watches
    ...     spec = await KubernetesClusterResolver(jobs, kubeconfig=path).cluster_spec()
    >>> spec, [request.verb for request in server.requests]
    (ClusterSpec({'worker': ['10.0.0.1:8470']}), ['list', 'list'])

    It implements list, watch, get, create, merge patch and delete of pods like Kubernetes 1.36, including the
    bodies of errors; and of EndpointSlices, Services, nodes, ResourceClaims, ConfigMaps and Leases, with
    the check of `resourceVersion` (409); SelfSubjectAccessReviews too. Responses are in JSON; a client that
    accepts only another format gets 406. It does not write `metadata.managedFields`. Its data survives
    restarts, and the end of the `async with` block too. The ages in Tables are those at the time when a pod
    was written, so that equal requests get equal responses.

    Args:
        objects: the initial pods (`pod()` builds them), Services (`service()`), EndpointSlices
            (`endpoint_slice()`), nodes (`node()`) and ResourceClaims (`resource_claim()`); see `add`.
        tls: use TLS, with a certificate from an authority of its own (needs the extra `testing`).
        tokens: bearer token to user name; with None the server needs no credentials.
        allow: user name to the namespaces that the user may access, None for all; other users are denied
            everything. Without it every user may access everything.
        resources: user name to the resources, such as `pods` or `resourceclaims`, that the user may access;
            other users may access all.
        verbs: user name to the RBAC verbs, such as `list`, that the user may use; other users may use all.
        anonymous: respond 403 instead of 401 to requests without credentials, as API servers do by default.
        host: the loopback address to listen on.
        port: the port; 0 takes a free one, which is kept over restarts.
        history: the number of writes that are kept for continue tokens and watches.
        bookmark_interval: seconds between two bookmarks of a watch.
        clock: returns the current time, with a time zone.
    """

    def __init__(
        self,
        objects: Iterable[Mapping[str, Any]] = (),
        *,
        tls: bool = False,
        tokens: Mapping[str, str] | None = None,
        allow: Mapping[str, Collection[str] | None] | None = None,
        resources: Mapping[str, Collection[str]] | None = None,
        verbs: Mapping[str, Collection[str]] | None = None,
        anonymous: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
        history: int = 4096,
        bookmark_interval: float = 60.0,
        clock: Callable[[], datetime] = _UTC_NOW,
    ) -> None:
        LoopbackServer.__init__(self, host, port, tls=tls)
        self.tokens = None if tokens is None else dict(tokens)
        self.allow = None if allow is None else dict(allow)
        self.resources = dict(resources or {})
        self.verbs = dict(verbs or {})
        self._anonymous = anonymous
        Cluster.__init__(self, Store(clock=clock, history=history), bookmark_interval)
        self.add(*objects)

    def in_thread(self) -> ThreadedKubernetesServer:
        """Return the same server for code without an event loop: `with server.in_thread() as server:`."""
        return ThreadedKubernetesServer(self)

    def _record(self, request: web.Request) -> RequestRecord:
        query = dict(request.query)
        target = target_of(request.method, request.path, query)
        authorization = request.headers.get("Authorization", "")
        user, scheme = self.sender(authorization, certificate_user(request))
        return RequestRecord(
            method=request.method,
            path=request.path,
            query=query,
            verb="" if target is None else target.verb,
            resource="" if target is None else target.kind.resource,
            namespace=None if target is None else target.namespace,
            name=None if target is None else target.name,
            user_agent=request.headers.get("User-Agent", ""),
            accept=request.headers.get("Accept", ""),
            scheme=scheme,
            user=user,
            impersonated_user=request.headers.get("Impersonate-User"),
            impersonated_groups=tuple(request.headers.getall("Impersonate-Group", ())),
            time=time.monotonic(),
        )

    async def _reply(self, request: web.Request, record: RequestRecord, faults: Sequence[Fault]) -> Reply:
        error = next((fault for fault in faults if isinstance(fault, WatchError)), None)
        if error is not None:
            return Reply(200, failure_of_watch(error).event, JSON_HEADERS)
        target = target_of(record.method, record.path, record.query)
        user = record.user and (record.impersonated_user or record.user)
        call = Call(record, target, user, request.headers, await request.read())
        return await reply_to(self, call)

    def _complete(self, reply: Reply) -> Reply:
        body = failure_of_status(reply.status).body if reply.body is None else reply.body
        headers = CIMultiDict({"Audit-Id": str(uuid.uuid4()), "Cache-Control": "no-cache, private"})
        if reply.status != 401:
            headers.update(_FLOW_CONTROL_HEADERS)
        headers.update(reply.headers)
        return Reply(reply.status, body, headers)


class ThreadedKubernetesServer(ThreadedServer, KubernetesControls):
    """A `KubernetesServer` in its own thread: `with` instead of `async with`, otherwise the same.

    >>> with KubernetesServer([pod("train-0", labels={"app": "trainer"})]).in_thread() as server:
    ...     path = server.write_kubeconfig("loopback.yaml")
    """


def _base64(pem: str) -> str:
    return base64.b64encode(pem.encode()).decode()
