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
        index_source: what the index was read from, if it was not set for this resolver: the host name and the
            addresses of this machine must not contradict it.
        job_variable: the environment variable that names the job and the index, for messages.
    """

    job: str | None = None
    index: int | None = None
    index_variable: str | None = None
    index_source: str | None = None
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

    The first of these that matches one member decides: the job and index of the claim; the pod's uid; the
    pod's name, which the variables of a LeaderWorkerSet may give; the host name; an address of this machine;
    the node. Where several members match, the claim's
    `index_variable` decides among them; the node never decides without it. A uid or a pod name that the
    process knows must match, if the members have any.

    Raises:
        UnknownTaskError: the cluster does not have the task that the claim names.
        TaskIdentityError: no member or several members match, or the claim's `index_variable` or the launcher
            of the process contradicts.
        EnvironmentVariableError: the variables of the launcher are malformed.
    """
    if claim.job is not None and claim.index is not None:
        task = state.task(claim.job, claim.index)
        member = next(each for each in state.members if (each.job, each.task_index) == (task.job, task.index))
        if claim.index_source is not None:
            _check_machine(member, state, process, claim.index_source)
    else:
        member = _find_member(state, process, claim)
        task = state.task(member.job, member.task_index)
    _check_index(member, process, claim)
    _check_launcher(state, task, member, process, claim)
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


def _check_machine(member: Member, state: ClusterState, process: Process, source: str) -> None:
    """Raise an error if this machine has the host name or an address of another member."""
    for what, matches, _ in _evidence(state.members, process, None):
        if matches and member not in matches:
            raise TaskIdentityError(
                f"{source} is {member.endpoint.index}, which is {member} at {member.endpoint.address}, but"
                f" {what}: {_matched(matches)}",
                hint=Hint("Correct the wrong one, or set {task_type} and {task_id}."),
                tried=(f"{source} is {member.endpoint.index}", f"{what}: {_matched(matches)}"),
                candidates=[f"/job:{each.job}/task:{each.task_index}" for each in (member, *matches)],
            )


def _find_member(state: ClusterState, process: Process, claim: TaskClaim) -> Member:
    members = [member for member in state.members if claim.job in (None, member.job)]
    index = _claimed_index(process, claim)
    tried: list[str] = []  # for example "the host name 'n7': no member"
    for what, matches, is_binding in _evidence(members, process, index):
        tried.append(f"{what}: {_matched(matches)}")
        narrowed = [member for member in matches if str(member.endpoint.index) == index]
        if index is not None and len(narrowed) < len(matches) > 1:
            matches = narrowed
            tried[-1] += f"; of these, index {index} of ${claim.index_variable}: {_matched(matches)}"
        if len(matches) == 1:
            return matches[0]
        if is_binding:
            raise _unidentified(state, tried, matches)
    raise _unidentified(state, tried, ())


def _evidence(
    members: Sequence[Member], process: Process, index: str | None
) -> Iterable[tuple[str, list[Member], bool]]:
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
    if (name := _name_in_group(process.environ)) is not None:
        names = [member for member in members if _is_named(member, name, process.namespace)]
        yield f"the pod name {name!r} that $LWS_LEADER_ADDRESS and $LWS_WORKER_INDEX give", names, False
    if process.hostname is not None:
        hosts = [member for member in members if _is_on_host(member, process, process.hostname, index)]
        yield f"the host name {process.hostname!r}", hosts, False
    local = [member for member in members if _host(member.endpoint.address) in process.local_hosts]
    yield "the addresses of this machine", local, False
    if process.hostname is not None and index is not None:
        # With `hostNetwork`, the host name of a pod is that of its node.
        on_node = [
            member
            for member in members
            if member.endpoint.node == process.hostname and str(member.endpoint.index) == index
        ]
        yield f"the node {process.hostname!r} and index {index}", on_node, False


def _name_in_group(environ: Mapping[str, str]) -> str | None:
    """Return the name of a pod of a LeaderWorkerSet: LEADER, or LEADER-INDEX for the others of its group."""
    leader = environ.get("LWS_LEADER_ADDRESS", "").partition(".")[0]
    index = environ.get("LWS_WORKER_INDEX")
    if not leader or not index:
        return None
    return leader if index == "0" else f"{leader}-{index}"


def _is_named(member: Member, name: str, namespace: str | None) -> bool:
    endpoint = member.endpoint
    return endpoint.name == name and (namespace is None or endpoint.namespace in (None, namespace))


def _is_on_host(member: Member, process: Process, hostname: str, index: str | None) -> bool:
    # The host name of a pod is the pod's name, or the first label of the DNS name of its address. With
    # `setHostnameAsFQDN`, a domain follows.
    endpoint, host = member.endpoint, _host(member.endpoint.address)
    names = {hostname, hostname.partition(".")[0]}
    is_name = not host.rpartition(".")[2].isdigit()  # not 10.0.0.1, which starts with the host name 10
    if host == hostname or (is_name and host.startswith(f"{hostname}.")):
        return True
    # The host name of a pod of an Indexed Job is JOB-INDEX, its name JOB-INDEX-SUFFIX. A pod of a StatefulSet
    # may have the same host name, but it has neither that completion index nor that address.
    job_pod, _, suffix = (endpoint.name or "").rpartition("-")
    is_completion = len(suffix) == 5 and job_pod.endswith(f"-{endpoint.index}")
    if is_completion and (index == str(endpoint.index) if index else host in process.local_hosts):
        names |= {f"{name}-{suffix}" for name in names}
    return any(_is_named(member, name, process.namespace) for name in names)


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


def _claimed_index(process: Process, claim: TaskClaim) -> str | None:
    """Return the index that the source of the cluster gave this process, as text."""
    value = process.environ.get(claim.index_variable) if claim.index_variable else None
    # A pod without a TPU in a LeaderWorkerSet with TPUs has TPU_WORKER_ID=-1.
    return None if value in ("", "-1") else value


def _check_index(member: Member, process: Process, claim: TaskClaim) -> None:
    value, index = _claimed_index(process, claim), member.endpoint.index
    if value is None or index is None or value == str(index):
        return
    raise TaskIdentityError(
        f"${claim.index_variable} is {value!r}, but this process was identified as {member}, which has index"
        f" {index}",
        hint=Hint("Correct the variable, or {task_type} and {task_id} if they are set."),
        tried=(f"${claim.index_variable} is {value!r}",),
        candidates=(f"/job:{member.job}/task:{member.task_index}",),
    )


def _check_launcher(
    state: ClusterState, task: Task, member: Member, process: Process, claim: TaskClaim
) -> None:
    """Raise if several processes of a launcher, such as `torchrun`, would be this one task."""
    launched = launched_process(process.environ)
    if launched is None:
        return
    is_same = launched.has_number(task.rank, task.num_tasks)
    if launched.local_size is not None:
        # A launcher may start the tasks of one job only, or number the tasks as the source does.
        indices = state.spec.task_indices(task.job)
        is_same |= launched.has_number(indices.index(task.index), len(indices))
        is_same |= launched.has_number(member.endpoint.index, task.num_tasks)
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
