"""What rows and pods mean: which of them are proven members, where a pod is, in which order names stand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from aioresolve.spec import host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .messages import Pod, Table

__all__ = ["ADDRESSES", "Rows", "natural_keys", "pod_address", "rows", "why_no_member"]

ABSENT = "<none>"
"""What a Table cell holds where the pod has no such value."""


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
    reason = ": ".join(text for text in _reason(pod) if text)
    phase = pod.status.phase or "Unknown"
    return f"{phase} ({reason})" if reason else phase


def _reason(pod: Pod) -> Iterable[str | None]:
    status = pod.status
    if status.reason or status.message:
        return status.reason, status.message
    states = [
        container.state
        for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        if container.state
    ]
    # What went wrong comes before what waits for it to go right.
    for state in states:
        if state.terminated and state.terminated.exit_code:
            ended = state.terminated
            return ended.reason, f"exit code {ended.exit_code}", ended.message
    for state in states:
        if state.waiting:
            return state.waiting.reason, state.waiting.message
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status != "True":
            return condition.reason, condition.message
    return ()


def _pod_ip(pod: Pod) -> str | None:
    return pod.status.pod_ip


def _pod_ip_of_family(pod: Pod, *, six: bool) -> str | None:
    ips = [entry.ip for entry in pod.status.pod_ips or ()] or [pod.status.pod_ip or ""]
    found = next((ip for ip in ips if ip and (":" in ip) == six), None)
    if found is None and any(ips):
        family = "IPv6" if six else "IPv4"
        raise ValueError(f"it has no {family} address, only {', '.join(ips)}; use another `address`")
    return found


def _hostname(pod: Pod) -> str | None:
    if not (pod.spec.hostname and pod.spec.subdomain):
        raise ValueError(
            "it has no DNS name of its own, because its spec.hostname or spec.subdomain is not set; name a"
            " headless Service as the subdomain, or use another `address`"
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
            return host_port(answer, port)
        case (str(host), int(own_port)):
            return host_port(host, own_port)
    raise ValueError(
        f"the `address` callable returned {answer!r}; it has to return a host, (host, port) or None"
    )
