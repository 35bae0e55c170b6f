"""The EndpointSlices of Services, as clusters.

Which endpoints are members follows from their conditions:

- terminating: not a member, as a pod that is being deleted.
- not ready: not running. The Service keeps it from its clients, for example because the pod still starts.
- ready but not serving: a member that is not ready. Only a Service with `publishNotReadyAddresses` has such
  endpoints; it names the members before they are ready.
- ready and serving: a member that is ready.

A condition that is not set counts as ready, serving and not terminating.

An endpoint may be in several slices: in one for each address family, and for a moment in two of the same
family, while the controller moves it. It counts once. Of several families, the preferred one is used: IPv4
unless `address` says otherwise, because no slice has the order of the Service's families. In one family, the
slice with the newest resourceVersion is used.

Format: EndpointSlice and EndpointSliceList of `discovery.k8s.io/v1`, as Kubernetes 1.36 writes them.
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from aioresolve._core.natural_order import natural_keys
from aioresolve.errors import ConfigurationError, Hint
from aioresolve.spec import Endpoint, host_port

from .api.objects import (
    MAX_NAME,
    Deleted,
    ObjectMeta,
    Struct,
    version_number,
)
from .api.queries import Query, Resource
from .cluster_cache import ClusterCache, QueryStore
from .tasks.controller_kinds import IndexLabel, PodIndex
from .tasks.order_by import Ordering
from .tasks.pods import MatchedPod, raise_not_running

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from aioresolve.spec import Observation

    from .api.objects import WatchEvent

SERVICE_NAME = "kubernetes.io/service-name"
"""The label of a slice that names its Service."""

FAMILIES = ("IPv4", "IPv6", "FQDN")
"""The address types, the preferred one first."""

FAMILIES_OF_ADDRESS = {"pod_ip": FAMILIES, "pod_ipv4": ("IPv4",), "pod_ipv6": ("IPv6",), "hostname": FAMILIES}
"""The values of `address` that slices have, and the address types that each of them uses."""

Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]


class Conditions(Struct, kw_only=True, frozen=True):
    """The conditions of an endpoint; None if not set."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class ObjectReference(Struct, kw_only=True, frozen=True):
    """The `targetRef` of an endpoint: its pod, or another object."""

    name: Name = ""
    namespace: Name = ""
    uid: str = ""


class SliceEndpoint(Struct, kw_only=True, frozen=True):
    """One endpoint of a slice. Only the first address has a meaning."""

    addresses: list[Name]
    conditions: Conditions | None = None
    hostname: Name | None = None
    target_ref: ObjectReference | None = None
    node_name: str | None = None


class SlicePort(Struct, kw_only=True, frozen=True):
    """One port of a slice; without a number, any port."""

    name: str | None = None
    protocol: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] | None = None


class EndpointSlice(Struct, kw_only=True, frozen=True):
    """The endpoints of a Service that have one address type and the same ports."""

    metadata: ObjectMeta
    address_type: str = ""
    endpoints: list[SliceEndpoint] | None = None
    ports: list[SlicePort] | None = None

    @property
    def full_name(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


ENDPOINT_SLICES = Resource("discovery.k8s.io", "endpointslices", "EndpointSlice", EndpointSlice)

_SERVICE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)(?::([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?))?")
"""NAME or NAME:PORT. Both are DNS labels, RFC 1123; a port may also be a number, which is one too."""


class SliceQuery(Query[EndpointSlice], frozen=True, kw_only=True):
    """A request for the slices of a Service.

    Attributes:
        service: the name of the Service.
        port: the name or the number of the port of its endpoints; None for its only port.
    """

    resource = ENDPOINT_SLICES

    service: str = ""
    port: str | int | None = None

    @classmethod
    def of(cls, service: str, namespace: str | None) -> SliceQuery:
        """Return the request for `NAME` or `NAME:PORT`.

        Raises:
            ValueError: it is neither.
        """
        found = _SERVICE.fullmatch(service)
        port = found and found[3]
        if found is None or (port is not None and port.isdigit() and not 0 < int(port) < 65536):
            raise ValueError("expected NAME or NAME:PORT, such as 'trainer' or 'trainer:grpc'")
        name = found[1]
        return cls(
            f"{SERVICE_NAME}={name}",
            namespace,
            service=name,
            port=int(port) if port is not None and port.isdigit() else port,
        )

    @property
    def scope(self) -> str:
        return f"Service {self.service!r} in {self.where}"


NOT_READY = Hint(
    "Wait until they are ready, let the Service publish them before (spec.publishNotReadyAddresses), or pass"
    " {not_running=skip} to leave them out."
)

NOT_SERVING = "not ready"
"""The status of a member that its Service publishes before it is ready."""


def validate_arguments(selectors: Any, address: Any, order_by: Sequence[str]) -> None:
    """Raise a ConfigurationError if other arguments of the resolver contradict `service`."""
    if selectors is not None:
        raise ConfigurationError(
            "label selectors and Services exclude each other",
            argument="service",
            hint="Leave out {job_to_label_mapping} or {service}.",
        )
    if callable(address) or address not in FAMILIES_OF_ADDRESS:
        known = ", ".join(map(repr, FAMILIES_OF_ADDRESS))
        raise ConfigurationError(
            f"the endpoints of a Service have no such address, only {known}",
            argument="address",
            hint="Choose another {address}, or select pods.",
        )
    if Ordering(order_by).by_labels:
        raise ConfigurationError(
            "the endpoints of a Service have no labels of pods and nodes",
            argument="order_by",
            hint="Pass {order_by=name} or {order_by=index}, or select pods.",
        )


class _SliceStore(QueryStore):
    """The slices of one Service in one namespace or in all.

    Attributes:
        slices: by `namespace/name`, each with the pods that its endpoints describe, in order.
        pods: the pods of the Service, each once, by key, in the order of tasks by name.
    """

    def __init__(self, query: SliceQuery, scope: int, address: str, port: int) -> None:
        super().__init__(query)
        self.slices: dict[str, tuple[EndpointSlice, list[MatchedPod]]] = {}
        self.pods: dict[str, MatchedPod] = {}
        self._scope, self._address, self._default_port = scope, address, port
        self._service: str = query.service
        self._wanted_port: str | int | None = query.port
        # The address types that are used, the preferred one first.
        self._families = FAMILIES_OF_ADDRESS[address]

    def update(self, changed: Iterable[EndpointSlice], kept: Iterable[EndpointSlice]) -> bool:
        """Replace the slices by new ones and those that are kept; return whether pods have changed."""
        changed, kept = list(changed), list(kept)
        self._validate([*changed, *kept])
        slices = {each.full_name: self.slices[each.full_name] for each in kept}
        slices |= {each.full_name: (each, self._read(each)) for each in changed}
        pods = self._merged(slices.values())
        has_changed = list(pods) != list(self.pods) or not all(
            new.equals(self.pods[key]) for key, new in pods.items()
        )
        self.slices = slices
        if has_changed:
            self.pods = pods
            for selector in self.selectors:
                selector.is_stale = True
        return has_changed

    def _validate(self, slices: Sequence[EndpointSlice]) -> None:
        """Raise a ConfigurationError if no endpoint can have the address or port that was chosen."""
        known = [each for each in slices if each.address_type in FAMILIES]
        used = [each for each in known if each.endpoints]
        if used and not any(each.address_type in self._families for each in known):
            have = " and ".join(dict.fromkeys(each.address_type for each in used))
            raise ConfigurationError(
                f"Service {self._service!r} has no {self._families[0]} addresses, only {have}",
                argument="address",
                hint="Choose another {address}.",
            )
        if self._wanted_port is not None and used and all(self._port(each) is None for each in used):
            names = dict.fromkeys(name for each in used for name in _tcp_ports(each))
            raise ConfigurationError(
                f"Service {self._service!r} has no TCP port named {self._wanted_port!r}, only"
                f" {_listed(names)}",
                argument="service",
                hint=Hint("Name one of them after the Service, or a number: {service=NAME:PORT}."),
            )

    def _port(self, slice_: EndpointSlice) -> int | None:
        """Return the port of the endpoints of a slice; None if they do not have the one that was named.

        Raises:
            ConfigurationError: there are several, and none was named.
        """
        wanted = self._wanted_port
        if isinstance(wanted, int):
            return wanted
        ports = _tcp_ports(slice_)
        if wanted is not None:
            return (ports[wanted] or self._default_port) if wanted in ports else None
        if len(ports) > 1:
            raise ConfigurationError(
                f"Service {self._service!r} has several TCP ports: {_listed(ports)}",
                argument="service",
                hint=Hint("Name one of them after the Service: {service=NAME:PORT}."),
            )
        return next(iter(ports.values()), None) or self._default_port

    def _read(self, slice_: EndpointSlice) -> list[MatchedPod]:
        """Return the pods that the endpoints of a slice describe, in order."""
        endpoints = [each for each in slice_.endpoints or () if each.addresses]
        if slice_.address_type not in FAMILIES or not endpoints:
            return []
        names = [_name(each) for each in endpoints]
        port = self._port(slice_)
        return [
            self._pod(slice_, endpoint, name, key, port)
            for endpoint, name, key in zip(endpoints, names, natural_keys(names), strict=True)
        ]

    def _pod(
        self, slice_: EndpointSlice, endpoint: SliceEndpoint, name: str, natural_key: str, port: int | None
    ) -> MatchedPod:
        target = endpoint.target_ref or ObjectReference()
        namespace = target.namespace or slice_.metadata.namespace
        full_name = f"{namespace}/{name}"
        conditions = endpoint.conditions or Conditions()
        index = name_index(endpoint.hostname, name)
        fault = unready = member = None
        if conditions.terminating:
            pass  # as a pod that is being deleted
        elif slice_.address_type not in self._families:
            fault = f"no {self._families[0]} address yet"
        elif port is None:
            fault = f"no port named {self._wanted_port!r}"
        elif conditions.ready is False:
            fault = f"not ready (Service {self._service!r} publishes it only when it is ready)"
        else:
            unready = NOT_SERVING if conditions.serving is False else None
            member = Endpoint(
                self._address_of(slice_, endpoint, full_name, port),
                name=target.name or None,
                uid=target.uid or None,
                namespace=namespace or None,
                node=endpoint.node_name,
                ready=unready is None,
                status=unready or "Running",
                index=index,
            )
        task = None if index is None else PodIndex(0, index)
        # Endpoints without a pod may share a host name.
        address = endpoint.addresses[0] if endpoint.target_ref is None else ""
        return MatchedPod(
            f"{natural_key}\0{name}\0{self._scope:06}{namespace}/{address}",  # as for pods
            full_name,
            target.uid,
            member,
            fault,
            unready,
            is_final=False,
            is_replaced=False,
            label=IndexLabel(task, task, None),
        )

    def _address_of(self, slice_: EndpointSlice, endpoint: SliceEndpoint, full_name: str, port: int) -> str:
        host, subject = endpoint.addresses[0], f"endpoint {full_name} of Service {self._service!r}"
        if self._address == "hostname":
            if not endpoint.hostname:
                raise ConfigurationError(
                    f"{subject} has no host name",
                    argument="address",
                    hint="Name the Service in spec.subdomain of the pods, or choose another {address}.",
                )
            host = f"{endpoint.hostname}.{self._service}.{slice_.metadata.namespace}.svc"
        try:
            return host_port(host, port)
        except ConfigurationError as error:
            raise ConfigurationError(f"{subject} cannot be addressed: {error.summary}") from error

    def _merged(self, slices: Iterable[tuple[EndpointSlice, Sequence[MatchedPod]]]) -> dict[str, MatchedPod]:
        """Return each pod of the Service once: as the preferred slice describes it."""
        candidates = []
        for slice_, pods in slices:
            family = slice_.address_type
            rank = self._families.index(family) if family in self._families else len(self._families)
            newest_first = -(version_number(slice_.metadata.resource_version) or 0)
            for position, pod in enumerate(pods):
                is_terminating = pod.endpoint is None and pod.fault is None
                candidates.append(((rank, newest_first, slice_.full_name, is_terminating, position), pod))
        found: dict[str, MatchedPod] = {}
        for _, pod in sorted(candidates):
            found.setdefault(pod.key, pod)
        # In a LeaderWorkerSet the leader of a group is SET-GROUP, and the others are SET-GROUP-INDEX.
        leaders = {pod.full_name.rpartition("-")[0] for pod in found.values()}
        first = PodIndex(0, 0)
        for key, pod in found.items():
            if pod.full_name in leaders:
                endpoint = pod.endpoint and replace(pod.endpoint, index=0)
                found[key] = msgspec.structs.replace(
                    pod, label=IndexLabel(first, first, None), endpoint=endpoint
                )
        return dict(sorted(found.items()))


class SliceCache(ClusterCache[EndpointSlice, _SliceStore]):
    """The slices of all Services, and the cluster state that follows from them; see `ClusterCache`.

    A controller that moves endpoints writes one slice after another: a member that disappeared from its slice
    is in transit, because it may be about to appear in another one. The endpoint of a pod that is being
    deleted does not simply disappear: it is terminating first.
    """

    # Pairs of a query and the key of a pod that left its slice.
    _unsettled: frozenset[tuple[object, str]] = frozenset()

    @property
    def in_transit(self) -> bool:
        return bool(self._unsettled)

    def observation(self, now: datetime) -> Observation:
        self._unsettled = frozenset()
        return super().observation(now)

    def _new_store(self, query: Any, scope: int) -> _SliceStore:
        return _SliceStore(query, scope, self._address, self._port)

    def _matched(self, store: _SliceStore) -> Iterable[MatchedPod]:
        return store.pods.values()

    def raise_not_running(self) -> None:
        raise_not_running(self._not_running(), "endpoint", "ready", NOT_READY)

    def replace(self, query: Query[EndpointSlice], listed: Sequence[EndpointSlice], version: str) -> None:
        store = self._stores[query]
        store.update(listed, ())
        self._unsettled = frozenset(each for each in self._unsettled if each[0] != query)
        store.list_at(version)

    def _apply(self, store: _SliceStore, event: WatchEvent[EndpointSlice]) -> bool:
        slice_: Any = event.object
        members = {key for key, pod in store.pods.items() if pod.endpoint is not None}
        others = [each for name, (each, _) in store.slices.items() if name != slice_.full_name]
        has_changed = store.update(() if isinstance(event, Deleted) else (slice_,), others)
        self._unsettled |= {(store.query, key) for key in members}
        self._unsettled -= {(store.query, key) for key in store.pods}
        return has_changed


_ORDINAL = re.compile(r"-([0-9]{1,9})$", re.ASCII)
_JOB_POD = re.compile(r"-([0-9]{1,9})-[bcdfghjklmnpqrstvwxz2456789]{5}$", re.ASCII)
"""The name of a pod of an Indexed Job: JOB-INDEX-SUFFIX. The suffix has the letters of `generateName`."""


def name_index(hostname: str | None, name: str) -> int | None:
    """Return the index that the names of a pod carry; None if they carry none.

    The host name of a pod of an Indexed Job or StatefulSet, and the name of a pod of a StatefulSet, end in
    the index. In the name of a pod of an Indexed Job, a random suffix follows.
    """
    found = _ORDINAL.search(hostname) if hostname else _JOB_POD.search(name) or _ORDINAL.search(name)
    return int(found[1]) if found else None


def _name(endpoint: SliceEndpoint) -> str:
    target = endpoint.target_ref
    return (target.name if target else endpoint.hostname) or endpoint.addresses[0]


def _tcp_ports(slice_: EndpointSlice) -> dict[str, int | None]:
    """Return the TCP ports of a slice: name to number, None for any number."""
    return {each.name or "": each.port for each in slice_.ports or () if each.protocol in (None, "TCP")}


def _listed(names: Iterable[str]) -> str:
    return " and ".join(repr(name) if name else "one without a name" for name in names) or "none"
