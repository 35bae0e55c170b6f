"""Finds out which task of a cluster the calling process is.

`read_process` collects what the process knows about itself; `identify_task` compares that with the members of
a cluster. Kubernetes' documentation of the sources: https://kubernetes.io/docs/concepts/workloads/pods/downward-api/
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aioresolve._core.service_account import pod_namespace
from aioresolve.errors import Hint, TaskIdentityError
from aioresolve.spec import split_host_port

from .launchers import launched_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve.spec import ClusterState, Member, Task

UNASSIGNED = "240.0.0.1"
"""An address that no machine has: reserved, RFC 1112 section 4."""


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """What a resolver knows about the task of this process, before the cluster is resolved.

    Attributes:
        job: the job, if it is known.
        index: the task index in that job, if it is known.
        index_variable: the environment variable in which the source of the cluster writes the index that it
            gave this process; it has to equal `Endpoint.index`.
        job_variable: the environment variable that names the job and the index, for messages.
    """

    job: str | None = None
    index: int | None = None
    index_variable: str | None = None
    job_variable: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """What the calling process knows about itself. Attributes that it does not know are None or empty.

    Attributes:
        uid: the uid of its pod (`$POD_UID`).
        name: the name of its pod (`$POD_NAME`).
        namespace: the namespace of its pod (`$POD_NAMESPACE`, or the file that the kubelet mounts).
        hostname: its host name.
        local_hosts: those hosts of the cluster's addresses that are addresses of this machine.
        environ: its environment variables.
    """

    uid: str | None = None
    name: str | None = None
    namespace: str | None = None
    hostname: str | None = None
    local_hosts: frozenset[str] = frozenset()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_process(state: ClusterState) -> Process:
    """Return what this process knows about itself, as far as it can identify a member of `state`.

    Reads a small file and binds a socket for each host, so it should run in a thread.
    """
    environ = dict(os.environ)
    hosts = {_host(member.endpoint.address) for member in state.members}
    return Process(
        uid=environ.get("POD_UID") or None,
        name=environ.get("POD_NAME") or None,
        namespace=pod_namespace(environ),
        hostname=socket.gethostname() or None,
        local_hosts=local_addresses(hosts),
        environ=environ,
    )


def identify_task(state: ClusterState, process: Process, claim: TaskClaim) -> Task:
    """Return the task of `process` among the members of `state`.

    The first of these that matches a member decides: the job and index of the claim; the pod's uid; the
    pod's name; the host name; an address of this machine. A uid or a pod name that the process knows must
    match, if the members have any.

    Raises:
        UnknownTaskError: the cluster does not have the task that the claim names.
        TaskIdentityError: no member or several members match, or the claim's `index_variable` or the launcher
            of the process contradicts.
        EnvironmentVariableError: the variables of the launcher are malformed.
    """
    if claim.job is not None and claim.index is not None:
        task = state.task(claim.job, claim.index)
        member = next(each for each in state.members if (each.job, each.task_index) == (task.job, task.index))
    else:
        member = _find_member(state, process, claim.job)
        task = state.task(member.job, member.task_index)
    _check_index(member, process, claim.index_variable)
    _check_launcher(state, task, process, claim)
    return task


def local_addresses(hosts: Iterable[str]) -> frozenset[str]:
    """Return those IP addresses among `hosts` that belong to this machine.

    A socket can be bound to these only. Empty if the system permits other addresses too (Linux:
    `net.ipv4.ip_nonlocal_bind`), because then nothing can be concluded.
    """
    if _is_local(UNASSIGNED):
        return frozenset()
    return frozenset(host for host in hosts if _is_local(host))


def _is_local(host: str) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        # EMFILE and the like say nothing about the address, and must not look like "no task of mine".
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            raise
        return False
    return True


def _find_member(state: ClusterState, process: Process, job: str | None) -> Member:
    members = [member for member in state.members if job is None or member.job == job]
    tried: list[str] = []  # for example "the host name 'n7': no member"
    for what, matches, is_binding in _evidence(members, process):
        tried.append(f"{what}: {_matched(matches)}")
        if len(matches) == 1:
            return matches[0]
        if is_binding:
            raise _unidentified(state, tried, matches)
    raise _unidentified(state, tried, ())


def _evidence(members: Sequence[Member], process: Process) -> Iterable[tuple[str, list[Member], bool]]:
    """Yield each kind of evidence as text, the members it matches, and whether it alone must decide."""
    if process.uid is None:
        yield "$POD_UID, which is not set", [], False
    else:
        uids = [member for member in members if member.endpoint.uid == process.uid]
        yield f"the uid {process.uid!r} of $POD_UID", uids, any(member.endpoint.uid for member in members)
    if process.name is None:
        yield "$POD_NAME, which is not set", [], False
    else:
        names = [member for member in members if _is_named(member, process.name, process.namespace)]
        where = f" in namespace {process.namespace!r}" if process.namespace else ""
        known = any(member.endpoint.name for member in members)
        yield f"the pod name {process.name!r} of $POD_NAME{where}", names, known
    if process.hostname is not None:
        hosts = [member for member in members if _is_on_host(member, process.hostname, process.namespace)]
        yield f"the host name {process.hostname!r}", hosts, False
    local = [member for member in members if _host(member.endpoint.address) in process.local_hosts]
    yield "the addresses of this machine", local, False


def _is_named(member: Member, name: str, namespace: str | None) -> bool:
    endpoint = member.endpoint
    return endpoint.name == name and (namespace is None or endpoint.namespace in (None, namespace))


def _is_on_host(member: Member, hostname: str, namespace: str | None) -> bool:
    # The host name of a pod is the pod's name, or the first label of the DNS name of its address.
    host = _host(member.endpoint.address)
    return _is_named(member, hostname, namespace) or host == hostname or host.startswith(f"{hostname}.")


def _host(address: str) -> str:
    try:
        return split_host_port(address)[0]
    except ValueError:  # a spec may have addresses without a port
        return address


def _matched(matches: Sequence[Member]) -> str:
    if not matches:
        return "no member"
    shown = ", ".join(map(str, matches[:4])) + (", ..." if len(matches) > 4 else "")
    return shown if len(matches) == 1 else f"{len(matches)} members, {shown}"


def _unidentified(state: ClusterState, tried: Sequence[str], matches: Sequence[Member]) -> TaskIdentityError:
    num_tasks = len(state.members)
    what = "could be several" if matches else "is not known to be one"
    return TaskIdentityError(
        f"this process {what} of the {num_tasks} tasks of the cluster; {'; '.join(tried)}",
        hint=Hint(
            "Set {task_type} and {task_id}, or let the pod's manifest set $POD_UID (fieldRef: metadata.uid)."
        ),
        tried=tried,
        candidates=[f"/job:{member.job}/task:{member.task_index}" for member in matches],
    )


def _check_index(member: Member, process: Process, variable: str | None) -> None:
    value = process.environ.get(variable) if variable else None
    index = member.endpoint.index
    # A pod without a TPU in a LeaderWorkerSet with TPUs has TPU_WORKER_ID=-1.
    if not value or value == "-1" or index is None or value == str(index):
        return
    raise TaskIdentityError(
        f"${variable} is {value!r}, but this process was identified as {member}, which has index {index}",
        hint=Hint("Correct the variable, or {task_type} and {task_id} if they are set."),
        tried=(f"${variable} is {value!r}",),
        candidates=(f"/job:{member.job}/task:{member.task_index}",),
    )


def _check_launcher(state: ClusterState, task: Task, process: Process, claim: TaskClaim) -> None:
    """Raise if several processes of a launcher, such as `torchrun`, would be this one task."""
    launched = launched_process(process.environ)
    if launched is None:
        return
    indices = state.spec.task_indices(task.job)  # a launcher may start the tasks of one job only
    is_same = launched.has_number(task.rank, task.num_tasks) or launched.has_number(
        indices.index(task.index), len(indices)
    )
    host = _host(task.address)
    on_host = sum(_host(other.address) == host for other in state.tasks)
    if is_same and (launched.local_size or 1) <= on_host:
        return
    variable = claim.index_variable if claim.index_variable in process.environ else claim.job_variable
    source = "" if variable is None else f" (${variable})"
    raise TaskIdentityError(
        f"this is {launched}, but it was identified as {task}, rank {task.rank} of {task.num_tasks}{source},"
        f" which other processes of {launched.launcher.name} may be too",
        hint=Hint(
            "Identify the task before the launcher starts (`aioresolve exec`), or use the launcher's number."
            f" Unset ${launched.launcher.rank} if the launcher did not start this process."
        ),
        tried=(str(launched),),
        candidates=(str(task),),
    )
