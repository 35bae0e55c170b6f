"""From the pods that selectors matched to the tasks of each job: who is a member, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError, PodNotRunningError
from aioresolve.spec import Endpoint

from .objects import Pod, Record
from .pod_index import Claim, index_order, pod_claim, pod_index
from .pods import (
    Rows,
    is_final,
    is_replaced,
    natural_key,
    natural_keys,
    pod_address,
    why_no_member,
    why_not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

__all__ = ["Candidate", "Sighting", "endpoint", "pod_candidates", "row_candidates", "sighting", "tasks"]


class Candidate(Record, frozen=True):
    """A pod that a selector matched and that is not being deleted.

    Attributes:
        name: the pod's name.
        address: `host:port`; empty while it has none.
        fault: why it is not running, in words; None for a member.
        pod: the pod, unless a row was enough.
    """

    name: str
    address: str
    fault: str | None = None
    pod: Pod | None = None


class Sighting(Record, frozen=True):
    """What is kept of a pod that a watch told of: a member, or absent, or neither.

    Neither, and without endpoint and reason, is a pod being deleted, and one that has ended and whose
    controller takes it from there.

    Attributes:
        key: the pod's place among the pods of one selector; keys of several selectors do not compare.
        full_name: `namespace/name`.
        uid: the identity of this very incarnation of the name.
        endpoint: the endpoint of a member; None for all others.
        reason: why it is absent, or, of a member, why it is not ready; in words.
        is_final: whether it will never be a member.
        claim: what it says of its index.
    """

    key: str
    full_name: str
    uid: str
    endpoint: Endpoint | None
    reason: str | None
    is_final: bool
    claim: Claim

    def tells(self, other: Sighting) -> bool:
        """Whether `other` tells the same, nodes and readiness included, which endpoints do not compare."""
        mine, its = self.endpoint, other.endpoint
        if mine is its:
            return self == other
        return (
            mine is not None
            and its is not None
            and (mine.node, mine.ready) == (its.node, its.ready)
            and self == other
        )


def sighting(pod: Pod, address: str | Callable[[Pod], Any], port: int, *, scope: int = 0) -> Sighting:
    """Return what there is to keep of `pod`.

    Args:
        pod: a pod.
        address: which address of it; see `pod_address`.
        port: the port to put behind a host.
        scope: the number of the namespace it was looked for in, of those one selector names: equal names
            stand in the order of these, and inside one in the server's (by namespace).

    Raises:
        ConfigurationError: a running pod can have no address of that kind.
    """
    name, full_name = pod.metadata.name, pod.full_name
    seen: Endpoint | None = None
    reason: str | None = None
    if pod.metadata.deletion_timestamp is None:
        candidate = _candidate(pod, address, port)
        if candidate.fault is None:
            seen, reason = endpoint(candidate), why_not_ready(pod)
        elif not is_replaced(pod):
            reason = candidate.fault
    return Sighting(
        # With its slash: the server lists `a-b/name` before `a/name`.
        f"{natural_key(name)}\0{name}\0{scope:06}{pod.metadata.namespace}/",
        full_name,
        pod.metadata.uid,
        seen,
        reason,
        is_final(pod),
        pod_claim(pod),
    )


def row_candidates(rows: Rows, unproven: Container[str], port: int) -> list[Candidate]:
    """Return the candidates of `rows` but for the names that are `unproven`."""
    return [
        Candidate(name, f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")
        for name, ip in zip(rows.names, rows.ips, strict=True)
        if name not in unproven
    ]


def pod_candidates(pods: Iterable[Pod], address: str | Callable[[Pod], Any], port: int) -> list[Candidate]:
    """Return the candidates among `pods`: all that are not being deleted.

    Raises:
        ConfigurationError: a running pod can have no address of that kind.
    """
    return [_candidate(pod, address, port) for pod in pods if pod.metadata.deletion_timestamp is None]


def tasks(
    jobs: Mapping[str, Sequence[Sequence[Candidate]]], *, order_by: str, not_running: str
) -> dict[str, list[Candidate]]:
    """Return each job's members in task order.

    Args:
        jobs: job to the candidates of each of its selectors, in the order the selectors were given.
        order_by: `name` or `index`, inside one selector.
        not_running: `raise` or `skip`.

    Raises:
        PodNotRunningError: candidates are not running, and `not_running` is `raise`; it lists all of them.
        PodIndexError: with `order_by="index"`, the indices are not 0, 1, 2, ... each once.
    """
    if not_running == "raise":
        _raise_not_running(
            candidate for selectors in jobs.values() for found in selectors for candidate in found
        )
    in_order = in_index_order if order_by == "index" else in_name_order
    return {
        job: [
            member
            for found in selectors
            for member in in_order(job, [candidate for candidate in found if candidate.fault is None])
        ]
        for job, selectors in jobs.items()
    }


def in_name_order(job: str, members: list[Candidate]) -> list[Candidate]:
    """Return `members` by name, numbers compared as numbers; equal names keep the server's order.

    Of names that differ in leading zeros alone (worker-01, worker-1) the one with more zeros comes first,
    whichever way they were fetched.
    """
    names = [member.name for member in members]
    decorated = sorted(zip(natural_keys(names), names, range(len(names)), strict=True))
    return [members[place] for _, _, place in decorated]


def in_index_order(job: str, members: list[Candidate]) -> list[Candidate]:
    """Return `members` so that each stands at the task index its controller gave it.

    Raises:
        PodIndexError: an index is absent, missing or taken twice.
    """
    return [members[place] for place in index_order(job, [_pod(member) for member in members])]


def endpoint(member: Candidate) -> Endpoint:
    """Return the endpoint of a member whose pod is known."""
    pod = _pod(member)
    index = pod_index(pod)
    return Endpoint(
        member.address,
        name=pod.metadata.name,
        uid=pod.metadata.uid or None,
        namespace=pod.metadata.namespace or None,
        node=pod.spec.node_name,
        ready=pod.ready,
        index=None if index is None else index.member,
    )


def _candidate(pod: Pod, address: str | Callable[[Pod], Any], port: int) -> Candidate:
    found = ""
    if pod.status.phase == "Running":
        try:
            found = pod_address(pod, address, port) or ""
        except Exception as error:  # the callable is the user's, and may raise anything
            raise ConfigurationError(f"pod {pod.full_name} cannot be addressed: {error}") from error
    return Candidate(pod.metadata.name, found, why_no_member(pod, found), pod)


def _pod(member: Candidate) -> Pod:
    assert member.pod is not None
    return member.pod


def _raise_not_running(candidates: Iterable[Candidate]) -> None:
    faults = {
        _pod(candidate).full_name: candidate.fault for candidate in candidates if candidate.fault is not None
    }
    if not faults:
        return
    shown = [f"{name}: {fault}" for name, fault in list(faults.items())[:20]]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    what = "1 pod that matches is" if len(faults) == 1 else f"{len(faults)} pods that match are"
    raise PodNotRunningError(
        f"{what} not running: {'; '.join(shown)}",
        hint="Wait for them, or pass {not_running=skip} to leave them out.",
        pods=faults,
    )
