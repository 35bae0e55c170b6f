"""What an operator learns about a rendezvous: its round, nodes and missing pods, and the permissions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from aioresolve.errors import ConfigurationError, Hint
from aioresolve.kubernetes.api.client import AS_JSON
from aioresolve.kubernetes.api.errors import error_from_response
from aioresolve.kubernetes.api.queries import PodQuery
from aioresolve.kubernetes.api.transport import Request
from aioresolve.kubernetes.checks import SERVER
from aioresolve.kubernetes.tasks.controller_kinds import run_of
from aioresolve.kubernetes.tasks.pods import ENDED
from aioresolve.resolver.checks import Finding, PlannedCheck
from aioresolve.spec import host_port

from .objects import LABEL, RULES, ConfigMapQuery, LeaseQuery, Objects, role, why_missing
from .protocol import Life, View

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.api.client import ObjectAPI
    from aioresolve.kubernetes.api.objects import Pod
    from aioresolve.kubernetes.checks import ServerChecks

    from .objects import Rule

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class NodeStatus(msgspec.Struct, frozen=True):
    """A process that takes part in a rendezvous, or a pod that does not.

    Attributes:
        rank: its rank in the current round; None if it is not part of the round.
        pod: the name of its pod, or of its host outside of pods.
        node: the Kubernetes node of the pod.
        address: the address for the others.
        state: `running` in the round, `waiting` at the barrier, `ended` with success, `lost` since the round
            began, or `missing`.
        reason: why it is lost or missing.
    """

    rank: int | None
    pod: str
    node: str | None
    address: str | None
    state: Literal["running", "waiting", "ended", "lost", "missing"]
    reason: str = ""


class RendezvousStatus(msgspec.Struct, frozen=True):
    """The state of a rendezvous: its nodes in the order of their ranks, those that wait, and missing pods."""

    name: str
    namespace: str
    round: int
    store: str | None
    closed: str | None
    nodes: list[NodeStatus]


async def fetch_status(api: ObjectAPI, namespace: str, name: str, progress: Progress) -> RendezvousStatus:
    """Return the state of a rendezvous.

    Raises:
        ConfigurationError: the ConfigMap does not exist.
        ResolveError: an object could not be read.
    """
    config_map = ConfigMapQuery("", namespace, name=name)
    all_pods, leases = PodQuery("", namespace), LeaseQuery(f"{LABEL}={name}", namespace)
    objects = Objects(config_map, all_pods, leases)
    found = await api.objects(config_map, progress)
    if not found.items:
        raise ConfigurationError(
            f"namespace {namespace!r} has no ConfigMap {name!r}, so that no node has come to this rendezvous",
            hint="Compare {namespace} and the job with --rdzv-id and --rdzv-endpoint of torchrun.",
        )
    objects.config_maps.replace(found.items, found.version)
    state = objects.state
    listed = await api.objects(all_pods, progress)
    pods = [
        pod for pod in listed.items if pod.metadata.uid in state.nodes or run_of(pod) == state.owner != ""
    ]
    assert objects.workload is not None
    objects.workload.replace(pods, listed.version)
    if any(node.has_lease for node in state.nodes.values()):
        renewed = await api.objects(leases, progress)
        objects.leases.replace(renewed.items, renewed.version)
    for node in state.nodes.values():
        if objects.life(node) is Life.UNKNOWN:
            objects.record_pod(node.key, None)
    view = View(state, objects.life)
    end = view.closed
    closed = None if end is None else f"{'failed' if end.failed else 'ended'} on {end.by}"
    store = host_port(state.world.host, state.world.port) if state.world.nodes else None
    nodes = list(_nodes(view, {pod.metadata.uid: pod for pod in pods}))
    return RendezvousStatus(name, namespace, state.world.round, store, closed, nodes)


def _nodes(view: View, pods: dict[str, Pod]) -> Iterator[NodeStatus]:
    entries = {node.identity: node for node in view.state.nodes.values()}
    waiting = [node.identity for node in view.waiting if not view.state.has(node)]
    ranked = [*enumerate(view.state.world.nodes), *((None, identity) for identity in waiting)]
    for rank, identity in ranked:
        key = identity.partition("/")[0]
        pod, entry = pods.pop(key, None), entries.get(identity)
        name = entry.name if entry is not None else pod.metadata.name if pod is not None else key
        place = (name, None if pod is None else pod.spec.node_name)
        if entry is not None and view.lives(entry):
            state: Literal["running", "waiting"] = "waiting" if view.state.waits(entry) else "running"
            yield NodeStatus(rank, *place, host_port(entry.host, entry.port), state)
        elif entry is not None and view.life(entry) is Life.DONE:
            yield NodeStatus(rank, *place, entry.host, "ended")
        else:
            is_leased = entry is not None and entry.has_lease
            gone = "its Lease has expired" if is_leased else "the pod does not exist"
            reason = (
                gone if pod is None else why_missing(pod) if entry is not None else "its process has ended"
            )
            yield NodeStatus(rank, *place, None, "lost", reason)
    for pod in pods.values():
        if pod.status.phase not in ENDED:
            place = (pod.metadata.name, pod.spec.node_name)
            yield NodeStatus(None, *place, None, "missing", why_missing(pod))


@dataclass
class PermissionChecks:
    """The checks of a rendezvous for `aioresolve doctor`; without a namespace, in that of the context."""

    server: ServerChecks
    name: str
    namespace: str | None

    def plan(self) -> list[PlannedCheck]:
        return [
            *self.server.plan(),
            *(
                PlannedCheck(
                    f"{', '.join(rule.verbs)} {rule.resource}", partial(self._check, rule), (SERVER,)
                )
                for rule in RULES
            ),
        ]

    async def _check(self, rule: Rule, _: Progress) -> Finding:
        namespace = self.namespace or self.server.connection.default_namespace()
        denied = [verb for verb in rule.verbs if not await self._may(verb, rule, namespace)]
        if not denied:
            return Finding(f"may {', '.join(rule.verbs)} in namespace {namespace!r}")
        found = f"may not {', '.join(denied)} in namespace {namespace!r}"
        if rule.is_outside:
            return Finding(f"{found}; only nodes outside of pods have to", "warning")
        text = "Have this Role applied and bound to the service account of the pods:\n{manifest}"
        hint = Hint(text, values={"manifest": role(namespace, self.name)})
        return Finding(found, "failed", hint)

    async def _may(self, verb: str, rule: Rule, namespace: str) -> bool:
        attributes = {"namespace": namespace, "verb": verb, "group": rule.group, "resource": rule.resource}
        if rule.is_named:
            attributes["name"] = self.name
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        api = self.server.api
        headers = {"Accept": AS_JSON, "Content-Type": AS_JSON}
        response = await api.send(Request("POST", REVIEWS, {}, headers, json.dumps(body).encode()))
        if response.status != 201:
            query = PodQuery("", namespace)
            raise error_from_response(response, query, host=api.host, source=api.source, verbs=(verb,))
        return bool(json.loads(response.body)["status"]["allowed"])
