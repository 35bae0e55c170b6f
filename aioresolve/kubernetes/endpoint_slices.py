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
slice with the newest resourceVersion is used. Nothing shows which endpoints of two families are the same one
if they are not pods: then only those of one family count.

Format: EndpointSlice and EndpointSliceList of `discovery.k8s.io/v1`, as Kubernetes 1.36 writes them.
https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
"""

from __future__ import annotations

import re
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
from .cluster_cache import MemberStore
from .tasks.controller_kinds import IndexLabel
from .tasks.pods import MatchedPod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .api.objects import WatchEvent

SERVICE_NAME = "kubernetes.io/service-name"
"""The label of a slice that names its Service."""

FAMILIES = ("IPv4", "IPv6", "FQDN")
"""The address types, the preferred one first."""

FAMILIES_OF_ADDRESS = {"pod_ip": FAMILIES, "pod_ipv4": ("IPv4",), "pod_ipv6": ("IPv6",), "hostname": FAMILIES}
"""The values of `address` that a Service supports, and the address types that each of them uses."""

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

_SERVICE = re.compile(r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)(?::([0-9]{1,5}))?")
"""NAME or NAME:PORT. The name is a DNS label, RFC 1123."""


class SliceQuery(Query[EndpointSlice], frozen=True, kw_only=True):
    """A request for the slices of a Service.

    Attributes:
        service: the name of the Service.
        port: the number of the port of its endpoints; None for its only port.
    """

    resource = ENDPOINT_SLICES

    service: str = ""
    port: int | None = None

    @property
    def scope(self) -> str:
        return f"Service {self.service!r} in {self.where}"


PUBLISHED_EARLY = "not ready"
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
    if order_by != ("name",):
        raise ConfigurationError(
            "the endpoints of a Service have only names to be ordered by",
            argument="order_by",
            hint="Leave out {order_by}, or select pods.",
        )


class SliceStore(MemberStore[EndpointSlice]):
    """The slices of one Service in one namespace or in all, and the pods that their endpoints describe.

    A controller that moves endpoints writes one slice after another: a member that disappeared from its slice
    is in transit, because it may be about to appear in another one. The endpoint of a pod that is being
    deleted does not simply disappear: it is terminating first.

    Attributes:
        slices: by `namespace/name`, each with the pods that its endpoints describe, in order.
    """

    query: SliceQuery
    noun = "endpoint"
    required_state = "ready"

    @staticmethod
    def new_query(selector: str, namespace: str | None) -> SliceQuery:
        found = _SERVICE.fullmatch(selector)
        port = int(found[2]) if found and found[2] else None
        if found is None or (port is not None and not 0 < port < 65536):
            raise ValueError("expected NAME or NAME:PORT, such as 'trainer' or 'trainer:8470'")
        name = found[1]
        return SliceQuery(f"{SERVICE_NAME}={name}", namespace, service=name, port=port)

    def __init__(self, query: SliceQuery, address: str, port: int, label_keys: Sequence[str]) -> None:
        super().__init__(query, address, port, label_keys)
        self.slices: dict[str, tuple[EndpointSlice, list[MatchedPod]]] = {}
        # The address types that are used, the preferred one first.
        self._families = FAMILIES_OF_ADDRESS[address]

    def _replace(self, listed: Sequence[EndpointSlice], version: str) -> None:
        self._update(listed, ())
        self.in_transit = frozenset()

    def _apply(self, event: WatchEvent[EndpointSlice]) -> bool:
        changed: Any = event.object
        members = {key for key, pod in self.pods.items() if pod.endpoint is not None}
        others = [each for name, (each, _) in self.slices.items() if name != changed.full_name]
        has_changed = self._update(() if isinstance(event, Deleted) else (changed,), others)
        self.in_transit = (self.in_transit | members).difference(self.pods)
        return has_changed

    def _update(self, changed: Sequence[EndpointSlice], kept: Sequence[EndpointSlice]) -> bool:
        """Replace all slices by the `changed` and the `kept` ones; return whether pods have changed."""
        self._validate([*changed, *kept])
        slices = {each.full_name: self.slices[each.full_name] for each in kept}
        slices |= {each.full_name: (each, self._read(each)) for each in changed}
        pods = self._merged(slices.values())
        has_changed = pods != self.pods
        self.slices = slices
        if has_changed:
            self.pods = pods
            self._have_changed()
        return has_changed

    def _validate(self, slices: Sequence[EndpointSlice]) -> None:
        """Raise a ConfigurationError if no endpoint can have the address that was chosen."""
        known = [each for each in slices if each.address_type in FAMILIES]
        used = [each for each in known if each.endpoints]
        if used and not any(each.address_type in self._families for each in known):
            have = " and ".join(dict.fromkeys(each.address_type for each in used))
            raise ConfigurationError(
                f"Service {self.query.service!r} has no {self._families[0]} addresses, only {have}",
                argument="address",
                hint="Choose another {address}.",
            )

    def _port_of(self, slice_: EndpointSlice) -> int:
        """Return the port of the endpoints of a slice.

        Raises:
            ConfigurationError: there are several, and none was chosen.
        """
        if self.query.port is not None:
            return self.query.port
        ports = [each for each in slice_.ports or () if each.protocol in (None, "TCP")]
        if len(ports) > 1:
            listed = " and ".join(f"{each.port} ({each.name or 'no name'})" for each in ports)
            raise ConfigurationError(
                f"Service {self.query.service!r} has several TCP ports: {listed}",
                argument="service",
                hint=Hint("Choose one of them: {service=NAME:PORT}."),
            )
        return next((each.port for each in ports), None) or self._port

    def _read(self, slice_: EndpointSlice) -> list[MatchedPod]:
        """Return the pods that the endpoints of a slice describe, in order."""
        endpoints = [each for each in slice_.endpoints or () if each.addresses]
        if slice_.address_type not in FAMILIES or not endpoints:
            return []
        names = [
            (each.target_ref.name if each.target_ref else each.hostname) or each.addresses[0]
            for each in endpoints
        ]
        port = self._port_of(slice_)
        return [
            self._pod(slice_, endpoint, name, key, port)
            for endpoint, name, key in zip(endpoints, names, natural_keys(names), strict=True)
        ]

    def _pod(
        self, slice_: EndpointSlice, endpoint: SliceEndpoint, name: str, natural_key: str, port: int
    ) -> MatchedPod:
        target = endpoint.target_ref or ObjectReference()
        namespace = target.namespace or slice_.metadata.namespace
        full_name = f"{namespace}/{name}"
        conditions = endpoint.conditions or Conditions()
        fault = unready = member = None
        if conditions.terminating:
            pass  # neither a member nor missing, as a pod that is being deleted
        elif slice_.address_type not in self._families:
            fault = f"no {self._families[0]} address yet"
        elif conditions.ready is False:
            fault = f"not ready (Service {self.query.service!r} publishes it only when it is ready)"
        else:
            unready = PUBLISHED_EARLY if conditions.serving is False else None
            member = Endpoint(
                self._address_of(slice_, endpoint, full_name, port),
                name=target.name or None,
                uid=target.uid or None,
                namespace=namespace or None,
                node=endpoint.node_name,
                ready=unready is None,
                status=unready or "Running",
            )
        # Endpoints without a pod may share a host name.
        address = endpoint.addresses[0] if endpoint.target_ref is None else ""
        return MatchedPod(
            f"{natural_key}\0{name}\0{namespace}/{address}",  # as for pods
            full_name,
            target.uid,
            member,
            fault,
            unready,
            is_final=False,
            is_replaced=False,
            label=IndexLabel(None, None, None),
            node=endpoint.node_name,
        )

    def _address_of(self, slice_: EndpointSlice, endpoint: SliceEndpoint, full_name: str, port: int) -> str:
        host, subject = endpoint.addresses[0], f"endpoint {full_name} of Service {self.query.service!r}"
        if self._address == "hostname":
            if not endpoint.hostname:
                raise ConfigurationError(
                    f"{subject} has no host name",
                    argument="address",
                    hint="Name the Service in spec.subdomain of the pods, or choose another {address}.",
                )
            host = f"{endpoint.hostname}.{self.query.service}.{slice_.metadata.namespace}.svc"
        try:
            return host_port(host, port)
        except ConfigurationError as error:
            raise ConfigurationError(f"{subject} cannot be addressed: {error.summary}") from error

    def _merged(self, slices: Iterable[tuple[EndpointSlice, Sequence[MatchedPod]]]) -> dict[str, MatchedPod]:
        """Return each pod of the Service once: as the preferred slice describes it."""
        candidates = []
        ranks_of_others = set[int]()
        for slice_, pods in slices:
            family = slice_.address_type
            rank = self._families.index(family) if family in self._families else len(self._families)
            newest_first = -(version_number(slice_.metadata.resource_version) or 0)
            for position, pod in enumerate(pods):
                is_terminating = pod.endpoint is None and pod.fault is None
                candidates.append(((rank, newest_first, slice_.full_name, is_terminating, position), pod))
                if not _is_pod(pod):
                    ranks_of_others.add(rank)
        best_of_others = min(ranks_of_others, default=None)
        found: dict[str, MatchedPod] = {}
        for (rank, *_), pod in sorted(candidates):
            if _is_pod(pod) or rank == best_of_others:
                found.setdefault(pod.key, pod)
        return dict(sorted(found.items()))


def _is_pod(endpoint: MatchedPod) -> bool:
    """Whether an endpoint is that of a pod: the key of another one ends with its address."""
    return endpoint.key.endswith("/")
