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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import msgspec

from aioresolve.errors import ConfigurationError, Hint
from aioresolve.spec import Endpoint, host_port

from .api.objects import (
    MAX_NAME,
    Added,
    Bookmark,
    Deleted,
    Failed,
    Modified,
    ObjectList,
    ObjectMeta,
    Query,
    Resource,
    Struct,
    is_newer,
    json_resource,
    version_number,
)
from .tasks.matched_pods import MatchedPod
from .tasks.order_by import natural_keys, validate_order_by
from .tasks.pod_index import IndexLabel, PodIndex
from .tasks.pods import raise_not_running
from .watch.cluster_cache import ClusterCache, QueryStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from aioresolve.kubernetes.api.objects import WatchEvent
    from aioresolve.spec import Observation

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


class EndpointSliceList(
    ObjectList[EndpointSlice], kw_only=True, tag_field="kind", tag="EndpointSliceList", frozen=True
):
    """One page of slices."""


ENDPOINT_SLICES: Resource[EndpointSlice] = json_resource(
    "discovery.k8s.io", "endpointslices", "EndpointSlice", EndpointSliceList, EndpointSlice
)

_SERVICE = re.compile(r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)(?::([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?))?")
"""NAME or NAME:PORT. Both are DNS labels, RFC 1123; a port may also be a number, which is one too."""


class SliceQuery(Query[EndpointSlice], frozen=True, kw_only=True):
    """A request for the slices of a Service.

    Attributes:
        service: the name of the Service.
        port: the name or the number of the port of its endpoints; None for its only port.
    """

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
            raise ValueError(f"{service!r} is not a Service, or a Service and a port")
        name = found[1]
        return cls(
            f"{SERVICE_NAME}={name}",
            namespace,
            service=name,
            port=int(port) if port is not None and port.isdigit() else port,
        )

    @property
    def resource(self) -> Resource[EndpointSlice]:
        return ENDPOINT_SLICES

    @property
    def selection(self) -> str:
        return f"Service {self.service!r} in {self.where}"


NOT_READY = Hint(
    "Wait until they are ready, let the Service publish them before (spec.publishNotReadyAddresses), or pass"
    " {not_running=skip} to leave them out."
)

NOT_SERVING = "not ready"
"""The status of a member that its Service publishes before it is ready."""


def validate_services(
    service: Any, selectors: Any, address: Any, order_by: Any
) -> Mapping[str, tuple[str, ...]]:
    """Return the Services of each job, each as `NAME` or `NAME:PORT`.

    Args:
        service: the argument `service` of the resolver.
        selectors: its `job_to_label_mapping`, which the Services exclude.
        address: its `address`.
        order_by: its `order_by`.

    Raises:
        ConfigurationError: `service` is invalid, or one of the others contradicts it.
    """
    if selectors is not None:
        raise ConfigurationError(
            "label selectors and Services exclude each other",
            argument="service",
            hint="Leave out {job_to_label_mapping} or {service}.",
        )
    if callable(address) or address == "host_ip":
        known = ", ".join(map(repr, FAMILIES_OF_ADDRESS))
        raise ConfigurationError(
            f"the endpoints of a Service have no such address, only {known}",
            argument="address",
            hint="Choose another {address}, or select pods.",
        )
    if isinstance(validate_order_by(order_by), tuple):
        raise ConfigurationError(
            "the endpoints of a Service have no labels of pods and nodes",
            argument="order_by",
            hint="Pass {order_by=name} or {order_by=index}, or select pods.",
        )
    jobs = {"worker": service} if isinstance(service, str) else service
    if not isinstance(jobs, Mapping) or not jobs:
        raise ConfigurationError(
            f"{service!r} is not a Service, or a mapping of job names to Services",
            argument="service",
            hint="Pass a name, or a mapping such as `{'worker': 'trainer', 'ps': 'ps'}`.",
        )
    return MappingProxyType({job: _validate_names(job, given) for job, given in jobs.items()})


def _validate_names(job: Any, given: Any) -> tuple[str, ...]:
    if not isinstance(job, str) or not job:
        raise ConfigurationError(
            f"{job!r} is not a valid job name",
            argument="service",
            hint="Use a string that is not empty.",
        )
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not names:
        names = [given]
    for name in names:
        try:
            SliceQuery.of(name, None)
        except (TypeError, ValueError):
            raise ConfigurationError(
                f"{name!r} is not the name of a Service (job {job!r})",
                argument="service",
                hint="Pass NAME or NAME:PORT, such as 'trainer' or 'trainer:grpc'.",
            ) from None
    return tuple(names)


class ServicePod(NamedTuple):
    """A pod of a Service, or another endpoint, as one slice describes it.

    Attributes:
        identity: `namespace/name` of the pod, or the address of an endpoint without a `targetRef`.
        is_anonymous: whether the endpoint has no `targetRef`.
        is_terminating: whether it is terminating.
        pod: what the order of tasks is made from.
    """

    identity: str
    is_anonymous: bool
    is_terminating: bool
    pod: MatchedPod


class _SliceStore(QueryStore):
    """The slices of one Service in one namespace or in all.

    Attributes:
        query: the query.
        scope: the position of the namespace among those of the resolver.
        slices: by `namespace/name`.
        pods: the pods of the Service, by identity.
        unsettled: the members that were in a slice before, and are in none now.
    """

    def __init__(self, query: SliceQuery, scope: int) -> None:
        super().__init__()
        self.query = query
        self.scope = scope
        self.slices: dict[str, EndpointSlice] = {}
        self.pods: dict[str, MatchedPod] = {}
        self.unsettled: set[str] = set()

    @property
    def matched(self) -> Iterable[MatchedPod]:
        return self.pods.values()

    def update(self, slices: dict[str, EndpointSlice], pods: dict[str, MatchedPod]) -> bool:
        """Set the slices and the pods that follow from them; return whether an observation would differ."""
        has_changed = False
        for identity, old in self.pods.items():
            new = pods.get(identity)
            if new is not None and new.equals(old):
                pods[identity] = old
                continue
            has_changed = True
            for selector in self.selectors:
                selector.discard(old)
        for identity, new in pods.items():
            if self.pods.get(identity) is new:
                continue
            has_changed = True
            for selector in self.selectors:
                selector.put(new)
        self.slices, self.pods = slices, pods
        return has_changed


class SliceCache(ClusterCache[EndpointSlice, _SliceStore]):
    """The slices of all queries, and the cluster state that follows from them.

    Args:
        jobs: job to its Services in order, each as its queries, one for each namespace.
        address: the kind of address; one of `FAMILIES_OF_ADDRESS`.
        port: the port of endpoints whose Service names none.
        order_by: `name` or `index`: how the endpoints of one Service become tasks.
        allow_gaps: with `order_by="index"`, whether a task index between two others may be missing.
    """

    def __init__(
        self,
        jobs: Mapping[str, Sequence[Sequence[SliceQuery]]],
        *,
        address: str,
        port: int,
        order_by: str,
        allow_gaps: bool,
    ) -> None:
        self._address, self._port = address, port
        queries = dict.fromkeys(query for services in jobs.values() for each in services for query in each)
        namespaces = list(dict.fromkeys(query.namespace for query in queries))
        scopes = {name: 0 if None in namespaces else at for at, name in enumerate(namespaces)}
        stores = {query: _SliceStore(query, scopes[query.namespace]) for query in queries}
        super().__init__(jobs, stores, order_by=order_by, allow_gaps=allow_gaps)

    @property
    def in_transit(self) -> bool:
        """Whether a member disappeared from its slice and may be about to appear in another one.

        A controller that moves endpoints writes one slice after another. The endpoint of a pod that is being
        deleted does not simply disappear: it is terminating first.
        """
        return any(store.unsettled for store in self._stores.values())

    def observation(self, now: datetime) -> Observation:
        for store in self._stores.values():
            store.unsettled.clear()
        return super().observation(now)

    def raise_not_running(self) -> None:
        raise_not_running(self._not_running(), "endpoint", "ready", NOT_READY)

    def replace(self, query: Query[EndpointSlice], listed: Sequence[EndpointSlice], version: str) -> None:
        store = self._stores[query]
        self._update(store, {each.full_name: each for each in listed})
        store.unsettled.clear()
        store.list_at(version)

    def apply(self, query: Query[EndpointSlice], events: Iterable[WatchEvent[EndpointSlice]]) -> bool:
        store = self._stores[query]
        slices = dict(store.slices)
        has_events = False
        for event in events:
            match event:
                case Added(object=changed) | Modified(object=changed) | Deleted(object=changed):
                    version = changed.metadata.resource_version
                    if is_newer(version_number(version), store.version_number):
                        has_events = True
                        slices.pop(changed.full_name, None)
                        if not isinstance(event, Deleted):
                            slices[changed.full_name] = changed
                    store.advance(version)
                case Bookmark(object=bookmark):
                    store.advance(bookmark.metadata.resource_version)
                case Failed():
                    pass
        if not has_events:
            return False
        members = {identity for identity, pod in store.pods.items() if pod.endpoint is not None}
        has_changed = self._update(store, slices)
        store.unsettled |= members
        store.unsettled -= store.pods.keys()
        return has_changed

    def _update(self, store: _SliceStore, slices: dict[str, EndpointSlice]) -> bool:
        reader = _Reader(store.query, store.scope, self._address, self._port)
        reader.validate(slices.values())
        pods = [(each, reader.pods(each)) for each in slices.values()]
        return store.update(slices, merged_pods(pods, reader.families))


class _Reader(msgspec.Struct, frozen=True):
    """Reads the slices of one Service.

    Attributes:
        query: the query that the slices match.
        scope: the position of the namespace among those of the resolver.
        address: the kind of address.
        default_port: the port of endpoints whose Service names none.
    """

    query: SliceQuery
    scope: int
    address: str
    default_port: int

    @property
    def families(self) -> tuple[str, ...]:
        """The address types that are used, the preferred one first."""
        return FAMILIES_OF_ADDRESS[self.address]

    def validate(self, slices: Iterable[EndpointSlice]) -> None:
        """Raise a ConfigurationError if no endpoint can have the address or port that was chosen."""
        known = [each for each in slices if each.address_type in FAMILIES]
        used = [each for each in known if each.endpoints]
        if used and not any(each.address_type in self.families for each in known):
            have = " and ".join(dict.fromkeys(each.address_type for each in used))
            raise ConfigurationError(
                f"Service {self.query.service!r} has no {self.families[0]} addresses, only {have}",
                argument="address",
                hint="Choose another {address}.",
            )
        port = self.query.port
        if isinstance(port, str) and used and all(self.port(each) is None for each in used):
            names = dict.fromkeys(name for each in used for name in _tcp_ports(each))
            raise ConfigurationError(
                f"Service {self.query.service!r} has no TCP port named {port!r}, only {_listed(names)}",
                argument="service",
                hint=Hint("Name one of them after the Service, or a number: {service=NAME:PORT}."),
            )

    def port(self, slice_: EndpointSlice) -> int | None:
        """Return the port of the endpoints of a slice; None if they do not have the one that was named.

        Raises:
            ConfigurationError: there are several, and none was named.
        """
        wanted = self.query.port
        if isinstance(wanted, int):
            return wanted
        ports = _tcp_ports(slice_)
        if wanted is not None:
            return (ports[wanted] or self.default_port) if wanted in ports else None
        if len(ports) > 1:
            raise ConfigurationError(
                f"Service {self.query.service!r} has several TCP ports: {_listed(ports)}",
                argument="service",
                hint=Hint("Name one of them after the Service: {service=NAME:PORT}."),
            )
        return next(iter(ports.values()), None) or self.default_port

    def pods(self, slice_: EndpointSlice) -> list[ServicePod]:
        """Return what the endpoints of a slice describe, in order."""
        if slice_.address_type not in FAMILIES:
            return []
        endpoints = [each for each in slice_.endpoints or () if each.addresses]
        names = [_name(each) for each in endpoints]
        port = self.port(slice_) if endpoints else None
        return [
            self._pod(slice_, endpoint, name, key, port)
            for endpoint, name, key in zip(endpoints, names, natural_keys(names), strict=True)
        ]

    def _pod(
        self, slice_: EndpointSlice, endpoint: SliceEndpoint, name: str, natural_key: str, port: int | None
    ) -> ServicePod:
        target = endpoint.target_ref
        namespace = (target.namespace if target else "") or slice_.metadata.namespace
        full_name, uid = f"{namespace}/{name}", target.uid if target else ""
        fault = unready = member = None
        conditions = endpoint.conditions or Conditions()
        if not conditions.terminating:
            fault = self._fault(slice_, conditions, port)
        index = name_index(endpoint.hostname, name)
        if not conditions.terminating and fault is None:
            assert port is not None
            unready = NOT_SERVING if conditions.serving is False else None
            member = Endpoint(
                self._address_of(slice_, endpoint, full_name, port),
                name=target.name if target else None,
                uid=uid or None,
                namespace=namespace or None,
                node=endpoint.node_name,
                ready=unready is None,
                status=unready or "Running",
                index=index,
            )
        task = None if index is None else PodIndex(0, index)
        anonymous = "" if target else endpoint.addresses[0]
        return ServicePod(
            full_name if target else f"{namespace}/{anonymous}",
            target is None,
            bool(conditions.terminating),
            MatchedPod(
                # As for pods; endpoints without a pod may share a host name.
                f"{natural_key}\0{name}\0{self.scope:06}{namespace}/{anonymous}",
                full_name,
                uid,
                member,
                fault,
                unready,
                is_final=False,
                is_replaced=False,
                label=IndexLabel(task, task, None),
            ),
        )

    def _fault(self, slice_: EndpointSlice, conditions: Conditions, port: int | None) -> str | None:
        """Return why an endpoint is not a member; None if it is one."""
        if slice_.address_type not in self.families:
            return f"no {self.families[0]} address yet"
        if port is None:
            return f"no port named {self.query.port!r}"
        if conditions.ready is False:
            return f"not ready (Service {self.query.service!r} publishes it only when it is ready)"
        return None

    def _address_of(self, slice_: EndpointSlice, endpoint: SliceEndpoint, full_name: str, port: int) -> str:
        host = endpoint.addresses[0]
        if self.address == "hostname":
            if not endpoint.hostname:
                raise ConfigurationError(
                    f"endpoint {full_name} of Service {self.query.service!r} has no host name",
                    argument="address",
                    hint="Name the Service in spec.subdomain of the pods, or choose another {address}.",
                )
            host = f"{endpoint.hostname}.{self.query.service}.{slice_.metadata.namespace}.svc"
        try:
            return host_port(host, port)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"endpoint {full_name} of Service {self.query.service!r} cannot be addressed: {error.summary}"
            ) from error


def merged_pods(
    slices: Iterable[tuple[EndpointSlice, Sequence[ServicePod]]], families: Sequence[str]
) -> dict[str, MatchedPod]:
    """Return each pod of a Service once, by identity, in the order of tasks by name.

    Args:
        slices: all slices of the Service, and what their endpoints describe.
        families: the address types that are used, the preferred one first.
    """

    def rank(slice_: EndpointSlice) -> int:
        return families.index(slice_.address_type) if slice_.address_type in families else len(families)

    def preference(read: tuple[EndpointSlice, Sequence[ServicePod]]) -> tuple[int, int, str]:
        version = version_number(read[0].metadata.resource_version)
        return rank(read[0]), -(version or 0), read[0].full_name

    found: dict[str, ServicePod] = {}
    ranks: dict[str, int] = {}  # namespace to the address type of its endpoints without a pod
    for slice_, pods in sorted(slices, key=preference):
        of_slice: dict[str, ServicePod] = {}
        for each in pods:
            known = of_slice.get(each.identity)
            if known is None or (known.is_terminating and not each.is_terminating):
                of_slice[each.identity] = each
        own_rank, namespace = rank(slice_), slice_.metadata.namespace
        for identity, each in of_slice.items():
            # Without a pod, nothing shows that endpoints of two address types are the same.
            if not each.is_anonymous or ranks.setdefault(namespace, own_rank) == own_rank:
                found.setdefault(identity, each)
    # In a LeaderWorkerSet the leader of a group is SET-GROUP, and the others are SET-GROUP-INDEX.
    leaders = {each.pod.full_name.rpartition("-")[0] for each in found.values()}
    return {
        each.identity: _with_index_0(each.pod) if each.pod.full_name in leaders else each.pod
        for each in sorted(found.values(), key=lambda each: each.pod.key)
    }


def _with_index_0(pod: MatchedPod) -> MatchedPod:
    first = PodIndex(0, 0)
    endpoint = pod.endpoint and replace(pod.endpoint, index=0)
    return msgspec.structs.replace(pod, label=IndexLabel(first, first, None), endpoint=endpoint)


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
