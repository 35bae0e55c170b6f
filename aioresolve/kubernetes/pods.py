"""What rows and pods mean: which of them are proven members, where a pod is, in which order names stand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from aioresolve.spec import host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .objects import Condition, ContainerStatus, Pod, Table, Terminated

__all__ = [
    "ADDRESSES",
    "Rows",
    "is_final",
    "is_replaced",
    "natural_key",
    "natural_keys",
    "pod_address",
    "rows",
    "why_no_member",
    "why_not_ready",
]

ABSENT = "<none>"
"""What a Table cell holds where the pod has no such value."""

ENDED = frozenset({"Failed", "Succeeded"})
"""The phases in which no container runs, nor will."""

STARTING = frozenset({"ContainerCreating", "PodInitializing"})
"""What a container waits for where nothing is wrong with it."""

MAX_REASON = 1000
"""Characters of a reason at most."""


class Rows(NamedTuple):
    """What the rows of a Table say, by column; an IP is ABSENT where there is none yet."""

    names: list[str]
    statuses: list[str]
    ips: list[str]

    @property
    def unproven(self) -> set[str]:
        """The names of pods that their rows do not prove members.

        The server writes `Running` only for a pod whose phase is Running, that is not being deleted and has
        no container waiting; any other word, or a missing IP, needs the pod itself.
        """
        return {
            name
            for name, status, ip in zip(self.names, self.statuses, self.ips, strict=True)
            if status != "Running" or ip == ABSENT
        }


def rows(table: Table) -> Rows:
    """Return what the rows of `table` say; columns are found by their names.

    Raises:
        ValueError: a column is missing, or a row is too short or holds no strings there.
    """
    columns = [column.name for column in table.column_definitions or ()]
    found = table.rows or ()
    try:
        places = [columns.index(name) for name in ("Name", "Status", "IP")]
    except ValueError:
        raise ValueError(f"the Table has no column Name, Status or IP, only {columns}") from None
    if {len(row.cells) for row in found} - {len(columns)}:
        raise ValueError(f"a row has not as many cells as there are columns, {len(columns)}")
    seen = Rows(*([row.cells[place] for row in found] for place in places))
    if any(set(map(type, column)) - {str} for column in seen):
        raise ValueError("a row's Name, Status and IP are not all strings")
    return seen


MAX_NAME = 253
"""The length of a pod's name at most, RFC 1123: no number in one is wider, whatever a server may say."""

_digits = re.compile("([0-9]+)")


def natural_keys(names: Sequence[str]) -> list[str]:
    """Return a sort key for each name that compares the numbers in it as numbers: worker-2 before worker-10.

    A key is its name with every number padded to the same width.
    """
    if not names:
        return []
    # All names in one text: the regular expression runs once, not once for each of thousands.
    text = "\n".join(names)
    if text.count("\n") != len(names) - 1:  # no pod is called so, but a server may say anything
        text = "\n".join(name.replace("\n", " ") for name in names)
    parts = _digits.split(text)
    width = min(MAX_NAME, max(map(len, parts[1::2]), default=0))
    parts[1::2] = [number.zfill(width) for number in parts[1::2]]
    return "".join(parts).split("\n")


def natural_key(name: str) -> str:
    """Return a sort key that orders names as `natural_keys` does, and needs no other name to be known.

    A number is written as its length and its digits, the length in digits too: `7` is `17`, `10` is `210`.
    """
    parts = _digits.split(name)
    parts[1::2] = [_measured(number) for number in parts[1::2]]
    return "".join(parts)


def _measured(number: str) -> str:
    significant = number.lstrip("0") or "0"
    # 1 to 8, 91 to 98, 991 to 998, ...: ascending, and none begins another.
    nines, rest = divmod(len(significant) - 1, 8)
    return f"{'9' * nines}{rest + 1}{significant}"


def pod_address(pod: Pod, choice: str | Callable[[Pod], Any], port: int) -> str | None:
    """Return the pod's address, `host:port`, or None while it has none.

    Args:
        pod: a pod.
        choice: which address: `pod_ip`, `pod_ipv4`, `pod_ipv6`, `host_ip`, `hostname`
            (`hostname.subdomain.namespace.svc`), or a callable that is given the pod and returns a host, a
            `(host, port)` or None.
        port: the port to put behind a host.

    Raises:
        ValueError: the pod can have no such address, or the callable returned something else.
    """
    if callable(choice):
        return _called_address(choice(pod), port)
    host = _hosts[choice](pod)
    return host_port(host, port) if host else None


def why_no_member(pod: Pod, address: str | None) -> str | None:
    """Return the pod's phase and the reason it is not running, in words; None where it is running.

    A Running pod without an address is not running yet. Pods being deleted are to be left out before.
    """
    if pod.status.phase == "Running":
        return None if address else "Running, but without an address yet"
    phase = pod.status.phase or "Unknown"
    reason = _words(*_cause(pod)) or _trouble(pod) or _words(*_unscheduled(pod))
    return _cut(f"{phase} ({reason})" if reason else phase)


def why_not_ready(pod: Pod) -> str | None:
    """Return why a running pod is not ready, in words; None where it is ready."""
    if pod.ready:
        return None
    trouble = _trouble(pod)
    if trouble:
        return _cut(trouble)
    condition = _condition(pod, "Ready")
    if condition is None:
        return "no Ready condition yet"
    said = _words(condition.reason, condition.message) or f"its Ready condition is {condition.status}"
    histories = [
        _words(place, history) for place, container in _containers(pod) if (history := _history(container))
    ]
    return _cut("; ".join([said, *histories]))


def is_replaced(pod: Pod) -> bool:
    """Whether the pod has ended, and what follows is up to its controller: another pod, or nothing more."""
    return pod.status.phase in ENDED and _has_controller(pod)


def is_final(pod: Pod) -> bool:
    """Whether the pod has ended for good: it will not run again, and no controller replaces it."""
    return pod.status.phase in ENDED and not _has_controller(pod)


def _has_controller(pod: Pod) -> bool:
    return any(owner.controller for owner in pod.metadata.owner_references or ())


def _cause(pod: Pod) -> tuple[str | None, ...]:
    """Return what befell the pod as a whole: `Evicted`, `NodeLost`, `PreemptionByScheduler`."""
    status = pod.status
    if status.reason or status.message:
        return status.reason, status.message
    disruption = _condition(pod, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return disruption.reason, disruption.message
    return ()


def _unscheduled(pod: Pod) -> tuple[str | None, ...]:
    scheduled = _condition(pod, "PodScheduled")
    return () if scheduled is None or scheduled.status == "True" else (scheduled.reason, scheduled.message)


def _trouble(pod: Pod) -> str:
    """Return what the container at fault waits for or ended with; empty where none is."""
    containers = _containers(pod)
    # What went wrong comes before what waits for it to go right.
    for place, container in containers:
        ended = container.state.terminated if container.state else None
        if ended is not None and ended.exit_code:
            return _words(place, ended.reason, _ending(container, ended), ended.message)
    waits = [
        (place, container, container.state.waiting)
        for place, container in containers
        if container.state and container.state.waiting
    ]
    for place, container, waiting in sorted(waits, key=lambda wait: wait[2].reason in STARTING):
        history = _history(container)
        # The message of a crash loop is the pause until the next try, and the pod's uid.
        message = None if history and waiting.reason == "CrashLoopBackOff" else waiting.message
        return _words(place, waiting.reason, message, history)
    return ""


def _containers(pod: Pod) -> list[tuple[str, ContainerStatus]]:
    """Return the containers, those that initialize first, each with its place where that needs telling."""
    init, main = pod.status.init_container_statuses or (), pod.status.container_statuses or ()
    return [
        *((f"init container {container.name!r}", container) for container in init),
        *((f"container {container.name!r}" if len(main) > 1 else "", container) for container in main),
    ]


def _ending(container: ContainerStatus, ended: Terminated) -> str:
    restarts = container.restart_count
    return f"exit code {ended.exit_code}" + (f", {_restarts(restarts)}" if restarts else "")


def _history(container: ContainerStatus) -> str:
    """Return how often the container was restarted and how it ended last; empty where it never did."""
    last = container.last_state.terminated if container.last_state else None
    parts = [_restarts(container.restart_count)] if container.restart_count else []
    if last is not None:
        parts.append(f"last exit code {last.exit_code}" + (f" ({last.reason})" if last.reason else ""))
    return ", ".join(parts)


def _restarts(count: int) -> str:
    return "1 restart" if count == 1 else f"{count} restarts"


def _condition(pod: Pod, type_: str) -> Condition | None:
    return next((found for found in pod.status.conditions or () if found.type == type_), None)


def _words(*texts: str | None) -> str:
    return ": ".join(text for text in texts if text)


def _cut(text: str) -> str:
    """Return `text` on one line: a container may end with a log of 4 KB as its message."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 3]}..."


def _pod_ip(pod: Pod) -> str | None:
    return pod.status.pod_ip


def _pod_ip_of_family(pod: Pod, *, six: bool) -> str | None:
    ips = [entry.ip for entry in pod.status.pod_ips or ()] or [pod.status.pod_ip or ""]
    found = next((ip for ip in ips if ip and (":" in ip) == six), None)
    if found is None and any(ips):
        family = "IPv6" if six else "IPv4"
        raise ValueError(f"it has no {family} address, only {', '.join(ips)}; choose another kind of address")
    return found


def _hostname(pod: Pod) -> str | None:
    if not (pod.spec.hostname and pod.spec.subdomain):
        raise ValueError(
            "it has no DNS name of its own, because its spec.hostname or spec.subdomain is not set; name a"
            " headless Service as the subdomain, or choose another kind of address"
        )
    return f"{pod.spec.hostname}.{pod.spec.subdomain}.{pod.metadata.namespace}.svc"


_hosts: dict[str, Callable[[Pod], str | None]] = {
    "pod_ip": _pod_ip,
    "pod_ipv4": lambda pod: _pod_ip_of_family(pod, six=False),
    "pod_ipv6": lambda pod: _pod_ip_of_family(pod, six=True),
    "host_ip": lambda pod: pod.status.host_ip,
    "hostname": _hostname,
}
ADDRESSES = tuple(_hosts)
"""The names that `address=` takes."""


def _called_address(answer: Any, port: int) -> str | None:
    match answer:
        case None | "":
            return None
        case str():
            address = host_port(answer, port)
        case (str(host), int(own_port)):
            address = host_port(host, own_port)
        case _:
            raise ValueError(
                f"the `address` callable returned {answer!r}; it has to return a host, (host, port) or None"
            )
    address.encode()  # what the API server writes is Unicode; what a callable returns may not be
    return address
