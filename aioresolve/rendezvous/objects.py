"""What a rendezvous reads from the API server and writes to it.

`Objects` has the latest ConfigMap, pods and Leases, which watches keep up to date, and decides which nodes
live. `Writer` sends the few requests that change something.
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio
import msgspec

from aioresolve._core.deadline import within_deadline
from aioresolve.errors import ForbiddenError, Hint, ResolveError
from aioresolve.kubernetes.api.errors import rbac_subject
from aioresolve.kubernetes.api.objects import (
    Added,
    Deleted,
    Modified,
    ObjectMeta,
    Pod,
    Struct,
    is_newer,
    version_number,
)
from aioresolve.kubernetes.api.queries import PodQuery, Query, Resource
from aioresolve.kubernetes.cluster_cache import Store
from aioresolve.kubernetes.tasks.pods import (
    not_ready_reason,
    not_running_reason,
    program_end,
    restarts_in_place,
)

from .protocol import Life, decode_state

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime

    from aioresolve._core.deadline import Progress
    from aioresolve._core.http import Response
    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.objects import WatchEvent

    from .protocol import Node, State

T = TypeVar("T")

LABEL = "aioresolve/rendezvous"
"""The label of Leases, whose value is the name of the ConfigMap."""

REQUEST_TIMEOUT = 60.0
"""Seconds that a request may take, with its retries."""

LEASE_DURATION = 40
"""Seconds after which a node outside of pods counts as dead, if its Lease was not renewed."""

VERBS = ("create", "get", "list", "patch", "watch")
"""The verbs of a request for one object, for the error if it is denied."""


def config_map_of(run_id: str) -> str:
    """Return the name of the ConfigMap of the job with this `--rdzv-id`; `/NAME` is the name itself."""
    return run_id[1:] if run_id.startswith("/") else f"torchrun-{run_id.lower()}"


class Rule(NamedTuple):
    """Verbs that a rendezvous needs for a resource."""

    group: str
    resource: str
    verbs: tuple[str, ...]
    is_named: bool = False  # they are needed only for the ConfigMap of the rendezvous
    is_outside: bool = False  # only nodes outside of pods need them


RULES = (
    Rule("", "pods", ("get", "list", "watch")),
    Rule("", "configmaps", ("create",)),
    Rule("", "configmaps", ("get", "list", "patch", "watch"), is_named=True),
    Rule("coordination.k8s.io", "leases", ("create", "delete", "list", "patch", "watch"), is_outside=True),
)
"""What a rendezvous needs. A permission to create cannot be limited to a name."""


def role(namespace: str, name: str, user: str = "") -> str:
    """Return the Role for the ConfigMap `name` as YAML, bound to the user if the name is not empty."""
    lines = [
        f"- {{apiGroups: [{json.dumps(rule.group)}], resources: [{rule.resource}]"
        + (f", resourceNames: [{name}]" if rule.is_named else "")
        + f", verbs: [{', '.join(rule.verbs)}]}}\n"
        for rule in RULES
        if not rule.is_outside
    ]
    rules = f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}, namespace: {namespace}}}
rules:
{"".join(lines)}"""
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


class ConfigMap(Struct, kw_only=True, frozen=True):
    """The fields of a ConfigMap that are read."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None


class LeaseSpec(Struct, kw_only=True, frozen=True):
    renew_time: str = ""


class Lease(Struct, kw_only=True, frozen=True):
    """The fields of a Lease that are read."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()


_config_map_decoder = msgspec.json.Decoder(ConfigMap)


class ConfigMapQuery(Query[ConfigMap], frozen=True, kw_only=True):
    resource = Resource("", "configmaps", "ConfigMap", ConfigMap)

    name: str = ""

    @property
    def scope(self) -> str:
        return f"ConfigMap {self.name!r} in {self.where}"


class LeaseQuery(Query[Lease], frozen=True, kw_only=True):
    resource = Resource("coordination.k8s.io", "leases", "Lease", Lease)

    @property
    def scope(self) -> str:
        return f"Leases with {super().scope}"


class ObjectStore(Store[Any]):
    """The objects that one query of a rendezvous matches.

    Args:
        query: the query.
        on_change: called with each object that is new or has changed.
        on_removal: called with each object that was removed, and the version that is without it.

    Attributes:
        objects: the objects by name.
    """

    def __init__(
        self, query: Query[Any], on_change: Callable[[Any], None], on_removal: Callable[[Any, str], None]
    ) -> None:
        super().__init__(query)
        self.objects: dict[str, Any] = {}
        self._on_change, self._on_removal = on_change, on_removal

    def _replace(self, listed: Sequence[Any], version: str) -> None:
        before, self.objects = self.objects, {each.metadata.name: each for each in listed}
        for name in before.keys() - self.objects.keys():
            self._on_removal(before[name], version)
        for each in listed:
            self._on_change(each)

    def _apply(self, event: WatchEvent[Any]) -> bool:
        match event:
            case Added(object=each) | Modified(object=each):
                self.objects[each.metadata.name] = each
                self._on_change(each)
            case Deleted(object=each):
                self.objects.pop(each.metadata.name, None)
                self._on_removal(each, each.metadata.resource_version)
        return True


class Objects:
    """The latest objects of a rendezvous, as watches and responses reported them. Does no I/O.

    A reflector for each store keeps them up to date.

    Attributes:
        config_maps: the ConfigMap.
        leases: the Leases.
        workload: the pods; None outside of pods, if they are not known.
        version: the resourceVersion of the ConfigMap; None if it does not exist.
    """

    def __init__(self, config_map: ConfigMapQuery, pods: PodQuery | None, leases: LeaseQuery) -> None:
        self._where = config_map.scope
        self.config_maps = ObjectStore(config_map, self.record, self._forget)
        self.leases = ObjectStore(leases, self._record_renewal, lambda lease, version: None)
        self.workload: ObjectStore | None = None
        if pods is not None:
            self.workload = ObjectStore(
                pods,
                on_change=lambda pod: self.record_pod(pod.metadata.uid, pod),
                on_removal=lambda pod, version: self.record_pod(pod.metadata.uid, None),
            )
        # By the uid of a pod: whether its latest process lives, and the restarts of that.
        self._lives: dict[str, tuple[Life, int]] = {}
        # By the name of a Lease: its renewTime, and when that was observed.
        self._renewed: dict[str, tuple[str, float]] = {}
        self._data: Mapping[str, str] = {}
        self._state: State | None = None
        self.version: str | None = None

    @property
    def is_listed(self) -> bool:
        """Whether the ConfigMap, or its absence, and the pods are known."""
        return self.config_maps.is_listed and (self.workload is None or self.workload.is_listed)

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods of the workload, by name."""
        return {} if self.workload is None else self.workload.objects

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
    def world_text(self) -> str:
        """The current world as the ConfigMap has it, which needs no decoding."""
        return self._data.get("world", "")

    def record(self, config_map: ConfigMap) -> None:
        """Store a ConfigMap, unless a newer one is known."""
        version = config_map.metadata.resource_version
        if self._is_newer(version):
            self._data, self._state, self.version = config_map.data or {}, None, version

    def record_pod(self, key: str, pod: Pod | None) -> None:
        """Record whether the process in the pod with this uid lives; None if the pod does not exist."""
        self._lives[key] = (Life.DEAD, 0) if pod is None else latest_process(pod)

    def restarts(self, key: str) -> int:
        """Return the restarts of the latest process in the pod with this uid, as far as they are known."""
        return self._lives.get(key, (Life.UNKNOWN, 0))[1]

    def life(self, node: Node) -> Life:
        """Return whether the process of a node lives, as far as the objects show it."""
        if node.has_lease and not self.leases.is_listed:
            return Life.UNKNOWN
        if node.has_lease:
            renewed_at = self._renewed[node.key][1] if node.key in self.leases.objects else -math.inf
            return Life.DEAD if anyio.current_time() - renewed_at > LEASE_DURATION else Life.ALIVE
        life, restarts = self._lives.get(node.key, (Life.UNKNOWN, 0))
        return Life.DEAD if life is Life.ALIVE and restarts > node.restarts else life

    def _record_renewal(self, lease: Lease) -> None:
        name, renew_time = lease.metadata.name, lease.spec.renew_time
        if self._renewed.get(name, (None, 0.0))[0] != renew_time:
            self._renewed[name] = renew_time, anyio.current_time()

    def _forget(self, config_map: ConfigMap, version: str) -> None:
        if self._is_newer(version):
            self._data, self._state, self.version = {}, None, None

    def _is_newer(self, version: str) -> bool:
        """Whether this version of the ConfigMap is newer than the one that is known, if any."""
        return is_newer(version_number(version), version_number(self.version or ""))


def latest_process(pod: Pod) -> tuple[Life, int]:
    """Return whether the latest process in a pod lives, and its number of restarts: those before it are dead.

    After a crash this is the one that the kubelet is about to start. In a pod that is being deleted, the
    process has been asked to end.
    """
    restarts = restarts_in_place(pod)
    if pod.metadata.deletion_timestamp is not None or pod.status.phase == "Failed":
        return Life.DEAD, restarts
    end = program_end(pod)
    if pod.status.phase == "Succeeded" or (end is not None and not end.exit_code):
        return Life.DONE, restarts
    return Life.ALIVE, restarts if end is None else restarts + 1


def why_missing(pod: Pod) -> str:
    """Return why the process of a pod is not at the barrier."""
    if pod.metadata.deletion_timestamp is not None:
        return "the pod is being deleted"
    reason = not_running_reason(pod, pod.status.pod_ip)
    return reason or not_ready_reason(pod) or "it runs, but has not come to the barrier"


class Writer:
    """Sends the requests of a rendezvous other than watches, and records the responses.

    Each raises a ResolveError if it failed; for a missing permission that names the Role.
    """

    def __init__(
        self, api: ObjectAPI, objects: Objects, config_map: ConfigMapQuery, leases: LeaseQuery
    ) -> None:
        self._api = api
        self._objects = objects
        self._config_map = config_map
        self._leases = leases

    async def list_config_map(self) -> None:
        """Read the ConfigMap, unless it is known."""
        query, store = self._config_map, self._objects.config_maps
        if not store.is_listed:
            found = await self._call(partial(self._api.objects, query, verbs=VERBS), query.scope)
            store.replace(found.items, found.version)

    async def create(self, data: Mapping[str, str], owners: Sequence[Any]) -> bool:
        """Create the ConfigMap; return False if it exists."""
        metadata = {"name": self._config_map.name, "ownerReferences": list(owners)}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        return self._record(await self._send("POST", self._config_map, "", body))

    async def patch(self, data: Mapping[str, str | None], version: str | None = None) -> bool:
        """Change some keys of the ConfigMap; return False in case of a conflict, or if it is gone.

        Args:
            data: the new value of each key; None to remove it.
            version: the resourceVersion that it must still have; None for any.
        """
        metadata = {} if version is None else {"metadata": {"resourceVersion": version}}
        body = {**metadata, "data": data}
        return self._record(await self._send("PATCH", self._config_map, self._config_map.name, body))

    def _record(self, response: Response) -> bool:
        if response.status < 300:
            self._objects.record(_config_map_decoder.decode(response.body))
        return response.status < 300

    async def pod(self, name: str, uid: str) -> Pod | None:
        """Return the pod with this name and uid; None if it does not exist."""
        response = await self._send("GET", PodQuery("", self._config_map.namespace), name)
        found = msgspec.json.decode(response.body, type=Pod) if response.status == 200 else None
        return found if found is not None and found.metadata.uid == uid else None

    async def renew_lease(self, name: str, holder: str, now: datetime) -> None:
        """Create or renew a Lease."""
        time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": LEASE_DURATION, "renewTime": time}
        response = await self._send("PATCH", self._leases, name, {"spec": spec})
        if response.status == 404:
            key, _, value = self._leases.selector.partition("=")
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            metadata = {"name": name, "labels": {key: value}}
            await self._send("POST", self._leases, "", {**kind, "metadata": metadata, "spec": spec})

    async def delete_lease(self, name: str) -> None:
        await self._send("DELETE", self._leases, name)

    def explained(self, error: ResolveError) -> ResolveError:
        """Return an error with the Role that a rendezvous needs, if a permission is missing."""
        if isinstance(error, ForbiddenError):
            error.manifest = role(self._config_map.namespace or "", self._config_map.name, error.user)
            values = {"manifest": error.manifest}
            error.hint = Hint("Have it applied by `kubectl apply -f -`:\n{manifest}", values=values)
        return error

    async def _send(
        self, method: str, query: Query[Any], name: str, body: Mapping[str, Any] | None = None
    ) -> Response:
        """Return the response to a request, also for an object that is missing (404) or has changed (409)."""
        request = partial(
            self._api.request,
            method,
            query,
            name,
            body=None if body is None else json.dumps(body).encode(),
            verbs=VERBS,
            expected=(409,) if method == "POST" else (404, 409),
        )
        return await self._call(request, f"{method} of {query.scope}")

    async def _call(self, function: Callable[[Progress], Awaitable[T]], scope: str) -> T:
        try:
            return await within_deadline(REQUEST_TIMEOUT, scope, function)
        except ResolveError as error:
            raise self.explained(error) from error.__cause__
