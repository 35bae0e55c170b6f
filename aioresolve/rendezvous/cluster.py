"""What a rendezvous reads from the API server and writes to it.

`Objects` has the latest ConfigMap, pods and Leases, which watches keep up to date, and knows from them which
nodes live. `Writer` sends the few requests that change something.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from aioresolve._core.deadline import Progress, RetryPolicy, send_with_retries
from aioresolve._core.telemetry import HTTPCall
from aioresolve.kubernetes.api.client import logger
from aioresolve.kubernetes.api.errors import error_from_response, rbac_subject
from aioresolve.kubernetes.api.objects import (
    Added,
    Deleted,
    Modified,
    ObjectList,
    ObjectMeta,
    Pod,
    PodQuery,
    Query,
    Resource,
    Struct,
    version_number,
)
from aioresolve.kubernetes.tasks.pods import program_status, restarts_in_place
from aioresolve.kubernetes.watch.cluster_cache import QueryStore
from aioresolve.spec import Observation

from .protocol import Life, decode_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from aioresolve._core.http import Response
    from aioresolve.kubernetes.api.client import AiohttpTransport
    from aioresolve.kubernetes.api.objects import WatchEvent

    from .protocol import Node, State

LABEL = "aioresolve/rendezvous"
"""The label of Leases, whose value is the name of the ConfigMap."""

LEASE_DURATION = 40
"""Seconds after which a node outside of pods counts as dead, if its Lease was not renewed."""

VERBS = ("create", "get", "list", "patch", "watch")
EXPECTED = frozenset({200, 201, 404, 409})


class ConfigMap(Struct, kw_only=True, frozen=True):
    """The fields of a ConfigMap that are read."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


class ConfigMapList(ObjectList[ConfigMap], kw_only=True, tag_field="kind", tag="ConfigMapList", frozen=True):
    """One page of ConfigMaps."""


class LeaseSpec(Struct, kw_only=True, frozen=True):
    """The fields of the spec of a Lease that are read."""

    renew_time: str = ""
    lease_duration_seconds: int = LEASE_DURATION


class Lease(Struct, kw_only=True, frozen=True):
    """The fields of a Lease that are read."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


class LeaseList(ObjectList[Lease], kw_only=True, tag_field="kind", tag="LeaseList", frozen=True):
    """One page of Leases."""


CONFIG_MAPS = Resource("", "configmaps", "ConfigMap", ConfigMapList, ConfigMap)
LEASES = Resource("coordination.k8s.io", "leases", "Lease", LeaseList, Lease)
_config_map_decoder = msgspec.json.Decoder(ConfigMap)


class ConfigMapQuery(Query[ConfigMap], frozen=True, kw_only=True):
    """A request for one ConfigMap."""

    name: str

    @property
    def resource(self) -> Resource[ConfigMap]:
        return CONFIG_MAPS

    @property
    def fields(self) -> list[str]:
        return [f"metadata.name={self.name}"]

    @property
    def scope(self) -> str:
        return f"ConfigMap {self.name!r} in {self.where}"


class LeaseQuery(Query[Lease], frozen=True, kw_only=True):
    """A request for the Leases of a rendezvous."""

    @property
    def resource(self) -> Resource[Lease]:
        return LEASES

    @property
    def scope(self) -> str:
        return f"Leases with {self.selection}"


class _Store(QueryStore):
    """The objects that one query matches, by name."""

    def __init__(self, query: Query[Any] | None) -> None:
        super().__init__(query, 0)
        self.objects: dict[str, Any] = {}


class Objects:
    """The latest objects of a rendezvous, as watches and responses reported them. Does no I/O.

    A reflector for each query keeps them up to date.

    Args:
        config_map: the request for the ConfigMap.
        pods: the request for the pods of the workload; None outside of pods.
        leases: the request for the Leases of nodes outside of pods.
    """

    is_complete = True
    in_transit = False

    def __init__(self, config_map: ConfigMapQuery, pods: PodQuery | None, leases: LeaseQuery) -> None:
        self._where = config_map.scope
        self._pods, self._leases, self._config_maps = _Store(pods), _Store(leases), _Store(config_map)
        self._stores: dict[Query[Any], _Store] = {config_map: self._config_maps, leases: self._leases}
        if pods is not None:
            self._stores[pods] = self._pods
        self._lives: dict[
            str, tuple[Life, int]
        ] = {}  # by the uid of pods, with the restarts of the container
        self._renewed: dict[str, tuple[str, float]] = {}  # Lease: its renewTime, and when it was observed
        self._data: Mapping[str, str] = {}
        self._state: State | None = None
        self._version: str | None = None

    @property
    def is_listed(self) -> bool:
        """Whether the ConfigMap, or its absence, and the pods are known."""
        return all(store.is_listed for store in self._stores.values() if store is not self._leases)

    @property
    def state(self) -> State:
        """The state of the rendezvous; an empty one if the ConfigMap does not exist.

        Raises:
            ProtocolError: the data are not those of a rendezvous.
        """
        if self._state is None:  # decoded only here, because changes come in bursts
            self._state = decode_state(self._data, self._where)
        return self._state

    @property
    def state_version(self) -> str | None:
        """The resourceVersion of the ConfigMap; None if it does not exist."""
        return self._version

    @property
    def pods(self) -> list[Pod]:
        """The pods of the workload."""
        return list(self._pods.objects.values())

    def record(self, config_map: ConfigMap) -> None:
        """Store a ConfigMap, unless a newer one is known."""
        new, known = version_number(config_map.metadata.resource_version), version_number(self._version or "")
        if new is None or known is None or new > known:
            self._data, self._state = config_map.data or {}, None
            self._version = config_map.metadata.resource_version

    def record_absence(self, key: str) -> None:
        """Note that there is no pod with this uid."""
        self._lives[key] = Life.DEAD, 0

    def life(self, node: Node) -> Life:
        """Return whether the process of a node lives, as far as the objects show it."""
        if node.has_lease:
            return self._life_by_lease(node)
        life, restarts = self._lives.get(node.key, (Life.UNKNOWN, 0))
        return Life.DEAD if life is Life.ALIVE and restarts > node.restarts else life

    def _life_by_lease(self, node: Node) -> Life:
        if not self._leases.is_listed:
            return Life.UNKNOWN
        lease = self._leases.objects.get(node.key)
        if lease is None:
            return Life.DEAD
        _, seen = self._renewed[node.key]
        is_late = anyio.current_time() - seen > lease.spec.lease_duration_seconds
        return Life.DEAD if is_late else Life.ALIVE

    # What a reflector calls

    def version(self, query: Query[Any]) -> str:
        """Return the resourceVersion to resume the watch of `query` from."""
        return self._stores[query].version

    def version_decreased(self, query: Query[Any]) -> bool:
        """Return whether the watch of `query` reported an older version than before since the last list."""
        return self._stores[query].version_decreased

    def match(self, query: Query[Any], objects: Sequence[Any]) -> list[Any]:
        """Return the objects of a list that are kept: all."""
        return list(objects)

    def replace(self, query: Query[Any], listed: Sequence[Any], version: str) -> None:
        """Apply a list."""
        store = self._stores[query]
        before, store.objects = store.objects, {each.metadata.name: each for each in listed}
        store.list_at(version)
        for name in before.keys() - store.objects.keys():
            self._on_removal(store, before[name], version)
        for each in listed:
            self._on_change(store, each)

    def apply(self, query: Query[Any], events: Iterable[WatchEvent[Any]]) -> bool:
        """Apply the events of a watch."""
        store = self._stores[query]
        for event in events:
            match event:
                case Added(object=each) | Modified(object=each):
                    store.objects[each.metadata.name] = each
                    self._on_change(store, each)
                case Deleted(object=each):
                    store.objects.pop(each.metadata.name, None)
                    self._on_removal(store, each, each.metadata.resource_version)
                case _:
                    continue
            store.advance(each.metadata.resource_version)
        return True

    def observation(self, now: datetime) -> Observation:
        """Return an empty observation; a reflector adds the error of a watch that fails."""
        return Observation(None)

    def _on_change(self, store: _Store, new: Any) -> None:
        if store is self._pods:
            self._lives[new.metadata.uid] = life_of(new), restarts_in_place(new)
        elif store is self._config_maps:
            self.record(new)
        elif self._renewed.get(new.metadata.name, ("", 0.0))[0] != new.spec.renew_time:
            self._renewed[new.metadata.name] = new.spec.renew_time, anyio.current_time()

    def _on_removal(self, store: _Store, old: Any, version: str) -> None:
        if store is self._pods:
            self._lives[old.metadata.uid] = Life.DEAD, 0
        elif store is self._config_maps and self._version is not None and _is_newer(version, self._version):
            self._data, self._state, self._version = {}, None, None


def life_of(pod: Pod) -> Life:
    """Return whether the process in a pod lives. In one that is being deleted, it has been asked to end."""
    container = program_status(pod)
    ended = container.state.terminated if container is not None and container.state is not None else None
    if pod.metadata.deletion_timestamp is not None or pod.status.phase == "Failed":
        return Life.DEAD
    if pod.status.phase == "Succeeded":
        return Life.DONE
    if ended is not None:
        return Life.DEAD if ended.exit_code else Life.DONE
    return Life.ALIVE


def _is_newer(version: str, than: str) -> bool:
    new, old = version_number(version), version_number(than)
    return new is None or old is None or new > old


class Writer:
    """Sends the requests that change the objects of a rendezvous."""

    def __init__(self, transport: AiohttpTransport, policy: RetryPolicy | None = None) -> None:
        self._transport = transport
        self._policy = policy or RetryPolicy()

    async def create(
        self, query: ConfigMapQuery, data: Mapping[str, str], owners: Sequence[Any], progress: Progress
    ) -> ConfigMap | None:
        """Create the ConfigMap and return it; None if it exists."""
        metadata = {"name": query.name, "ownerReferences": list(owners)}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        response = await self._send("POST", query.path, query, progress, body)
        return _config_map(response) if response.status != 409 else None

    async def patch(
        self,
        query: ConfigMapQuery,
        data: Mapping[str, str | None],
        progress: Progress,
        *,
        version: str | None = None,
    ) -> ConfigMap | None:
        """Change some keys of the ConfigMap and return it; None in case of a conflict, or if it is gone.

        Args:
            query: the request for the ConfigMap.
            data: the new value of each key; None to remove it.
            progress: the progress of the call.
            version: the resourceVersion that it must still have; None for any.
        """
        metadata = {} if version is None else {"metadata": {"resourceVersion": version}}
        path = f"{query.path}/{query.name}"
        response = await self._send("PATCH", path, query, progress, {**metadata, "data": data})
        return _config_map(response) if response.status == 200 else None

    async def has_pod(self, name: str, uid: str, query: PodQuery, progress: Progress) -> bool:
        """Return whether there is a pod with this name and uid that has not ended."""
        response = await self._send("GET", f"{query.path}/{name}", query, progress)
        if response.status != 200:
            return False
        pod = msgspec.json.decode(response.body, type=Pod)
        is_active = (
            pod.status.phase not in ("Succeeded", "Failed") and pod.metadata.deletion_timestamp is None
        )
        return pod.metadata.uid == uid and is_active

    async def renew_lease(self, name: str, holder: str, now: datetime, query: LeaseQuery) -> None:
        """Create or renew a Lease."""
        time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_DURATION, "renewTime": time}
        response = await self._send("PATCH", f"{query.path}/{name}", query, Progress(), {"spec": spec})
        if response.status == 404:
            key, _, value = query.selector.partition("=")
            metadata = {"name": name, "labels": {key: value}}
            body = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": metadata,
                "spec": spec,
            }
            await self._send("POST", query.path, query, Progress(), body)

    async def delete_lease(self, name: str, query: LeaseQuery) -> None:
        """Delete a Lease."""
        await self._send("DELETE", f"{query.path}/{name}", query, Progress())

    async def _send(
        self,
        method: str,
        path: str,
        query: Query[Any],
        progress: Progress,
        body: Mapping[str, Any] | None = None,
    ) -> Response:
        """Return the response to a request if its status is one of EXPECTED; raise its error otherwise."""
        transport = self._transport
        scope = f"{method} of {query.scope}"
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"

        async def send(attempts: Iterator[int]) -> Response:
            with HTTPCall(
                logger, method, transport.host, path, scope=scope, attempt=next(attempts), expected=EXPECTED
            ) as call:
                content = None if body is None else json.dumps(body).encode()
                response = await transport.send(method, path, {}, body=content, content_type=content_type)
                call.set_response(response.status, len(response.body))
            if response.status in EXPECTED:
                return response
            raise error_from_response(
                response, query, host=transport.host, source=transport.source, verbs=VERBS
            )

        response = await send_with_retries(
            send, scope=scope, host=transport.host, progress=progress, policy=self._policy
        )
        progress.done(scope, f"status {response.status}")
        return response


def _config_map(response: Response) -> ConfigMap:
    return _config_map_decoder.decode(response.body)


def role(namespace: str, name: str, user: str = "") -> str:
    """Return the Role that a rendezvous needs, as YAML; bound to `user`, if it is known.

    Args:
        namespace: the namespace of the pods.
        name: the name of the ConfigMap.
        user: the user as the API server names it.
    """
    rules = f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}, namespace: {namespace}}}
rules:
- {{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}}
- {{apiGroups: [""], resources: [configmaps], verbs: [create]}}
- {{apiGroups: [""], resources: [configmaps], resourceNames: [{name}], verbs: [get, list, patch, watch]}}
"""
    if not user:
        return rules
    return f"""{rules}---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}}}
subjects:
- {rbac_subject(user)}
"""
