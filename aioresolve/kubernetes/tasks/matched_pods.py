"""The part of a pod that is kept after a selector matched it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.kubernetes.api.objects import Record
from aioresolve.spec import Endpoint

from .accelerators import claims_of, declared_accelerators
from .controllers import PodSet, pod_set, run_of
from .order_by import natural_keys
from .pod_index import IndexLabel, index_label
from .pods import (
    is_final,
    is_replaced,
    membership,
    not_ready_reason,
    not_running_reason,
    restarts_in_place,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioresolve.kubernetes.api.objects import Pod


class MatchedPod(Record, frozen=True):
    """The part of a pod that is kept after a selector matched it.

    Attributes:
        key: the sort key among the pods of one selector.
        full_name: `namespace/name`.
        uid: the pod's uid, which differs from that of an earlier pod with the same name.
        endpoint: the endpoint of a member; None for all other pods.
        fault: why the pod is not running; None for a member and for a pod that is being deleted.
        unready: why a member is not ready; None if it is ready, and for all other pods.
        is_final: whether the pod will never be a member.
        is_replaced: whether the pod has ended and its controller decides what follows.
        label: the index that the pod's labels give it.
        labels: the values of the labels by which the pods are ordered, if they are.
        pod_set: the pods of its controller that have the same template; None if the controller is unknown.
        has_succeeded: whether all containers of the pod have succeeded, and it is not being deleted.
        run: identifies the run of the controller that the pod belongs to: a Job that is created again, or a
            JobSet that is restarted, is another run.
        node: the node of the pod.
        failure: why a pod that `is_replaced` has failed.
        claims: the names of the ResourceClaims of a member whose devices are not among its accelerators yet.
    """

    key: str
    full_name: str
    uid: str
    endpoint: Endpoint | None
    fault: str | None
    unready: str | None
    is_final: bool
    is_replaced: bool
    label: IndexLabel
    labels: tuple[str | None, ...] = ()
    pod_set: PodSet | None = None
    has_succeeded: bool = False
    run: str = ""
    node: str | None = None
    failure: str | None = None
    claims: tuple[str, ...] = ()

    def equals(self, other: MatchedPod) -> bool:
        """Whether both are equal, including node and readiness, which the comparison of endpoints ignores."""
        mine, its = self.endpoint, other.endpoint
        if mine is its:
            return self == other
        return (
            mine is not None
            and its is not None
            and (mine.node, mine.ready) == (its.node, its.ready)
            and self == other
        )


def match_pods(
    pods: Sequence[Pod],
    choice: str | Callable[[Pod], Any],
    port: int,
    *,
    scope: int = 0,
    label_keys: Sequence[str] = (),
) -> list[MatchedPod]:
    """Return the part of each pod that is kept; one selector matched all `pods`.

    Args:
        pods: the pods.
        choice: the kind of address; see `pod_address`.
        port: the port to append to a host.
        scope: the position of the queried namespace among those of the selector. Pods of equal names are in
            the order of these, and within one scope in that of their namespaces, as the server lists them.
        label_keys: the keys of the labels to keep.

    Raises:
        ConfigurationError: a running pod cannot have such an address.
    """
    keys = natural_keys([pod.metadata.name for pod in pods])
    return [_match(pod, key, choice, port, scope, label_keys) for pod, key in zip(pods, keys, strict=True)]


def _match(
    pod: Pod,
    natural_key: str,
    choice: str | Callable[[Pod], Any],
    port: int,
    scope: int,
    label_keys: Sequence[str],
) -> MatchedPod:
    metadata = pod.metadata
    name, namespace = metadata.name, metadata.namespace
    label = index_label(pod)
    address, fault = membership(pod, choice, port)
    endpoint = unready = None
    if address is not None:
        unready = not_ready_reason(pod)
        endpoint = Endpoint(
            address,
            name=name,
            uid=metadata.uid or None,
            namespace=namespace or None,
            node=pod.spec.node_name,
            ready=unready is None,
            status=unready or "Running",
            index=None if label.in_role is None else label.in_role.member,
            restarts=restarts_in_place(pod),
            accelerators=declared_accelerators(pod),
        )
    replaced = endpoint is None and is_replaced(pod)
    failure = not_running_reason(pod, None) if replaced and pod.status.phase == "Failed" else None
    return MatchedPod(
        # The slash is part of the key because the server lists `a-b/name` before `a/name`.
        f"{natural_key}\0{name}\0{scope:06}{namespace}/",
        f"{namespace}/{name}",
        metadata.uid,
        endpoint,
        fault,
        unready,
        endpoint is None and is_final(pod),
        replaced,
        label,
        tuple([metadata.labels.get(label_key) for label_key in label_keys]) if label_keys else (),
        pod_set(pod),
        pod.status.phase == "Succeeded" and metadata.deletion_timestamp is None,
        run_of(pod),
        pod.spec.node_name,
        failure,
        () if endpoint is None else claims_of(pod),
    )
