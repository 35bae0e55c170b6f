"""The pod that this process runs in, and the workload that the pod belongs to.

Where each controller writes what the pods of one workload have in common:

- LeaderWorkerSet: labels `leaderworkerset.sigs.k8s.io/name` and `.../group-index`; the number of pods of a
  group is the annotation `leaderworkerset.sigs.k8s.io/size`.
- JobSet: labels `jobset.sigs.k8s.io/jobset-name` and `.../replicatedjob-name`.
- Job: label `batch.kubernetes.io/job-name`, `job-name` before Kubernetes 1.27.
- StatefulSet: label `controller-revision-hash`, which begins with the name of the StatefulSet. It changes
  with the pod template, so that during a rolling update new pods do not join old ones.

The order matters: a pod of a JobSet or LeaderWorkerSet has the labels of the inner controller too.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from yarl import URL

from aioresolve._core.concurrency import run_in_thread
from aioresolve._core.deadline import Progress, within_deadline
from aioresolve.errors import TaskIdentityError

from .auth import CredentialCache, ExecutableLocation, find_connection
from .client import AiohttpTransport, PodAPI
from .objects import PodQuery
from .pod_index import JOBSET_REPLICATED_JOB, LWS_GROUP

if TYPE_CHECKING:
    from .objects import Pod

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
JOB_NAME = "batch.kubernetes.io/job-name"
OLD_JOB_NAME = "job-name"
REVISION = "controller-revision-hash"

LOOKUPS = 15
"""How often the pod is looked up by its address: the kubelet reports the address after containers start."""

LOOKUP_INTERVAL = 1.0
"""Seconds between two of them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods that work together with one pod.

    Attributes:
        kind: the kind of the controller, such as `JobSet`.
        name: the name of the controller.
        selector: the label selector of the pods.
        count: the number of the pods; None if the pod does not say it.
    """

    kind: str
    name: str
    selector: str
    count: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


def workload_of(pod: Pod) -> Workload | None:
    """Return the workload of a pod, as its labels describe it; None if it has none of those known here.

    The workload is one group of a LeaderWorkerSet, or one replicated job of a JobSet.
    """
    labels = pod.metadata.labels
    if LWS_NAME in labels and LWS_GROUP in labels:
        size = pod.metadata.annotations.get(LWS_SIZE, "")
        return Workload(
            "LeaderWorkerSet",
            labels[LWS_NAME],
            _selector(pod, LWS_NAME, LWS_GROUP),
            int(size) if size.isascii() and size.isdigit() else None,
        )
    if JOBSET_NAME in labels:
        return Workload("JobSet", labels[JOBSET_NAME], _selector(pod, JOBSET_NAME, JOBSET_REPLICATED_JOB))
    for key in (JOB_NAME, OLD_JOB_NAME):
        if key in labels:
            return Workload("Job", labels[key], _selector(pod, key))
    for owner in pod.metadata.owner_references or ():
        if owner.controller and owner.kind == "StatefulSet" and REVISION in labels:
            return Workload(owner.kind, owner.name, _selector(pod, REVISION))
    return None


def _selector(pod: Pod, *keys: str) -> str:
    labels = pod.metadata.labels
    return ",".join(f"{key}={labels[key]}" for key in keys if key in labels)


async def find_own_pod(*, timeout: float) -> Pod:
    """Return the pod that this process runs in, from the API server of its service account.

    The pod is found by `$POD_NAME`, or else by its IP address: the one from which this process reaches the
    API server. Needs permission to list pods in the namespace of the pod.

    Args:
        timeout: the total deadline, in seconds.

    Raises:
        TaskIdentityError: there is no such pod, or several have this address, as with `hostNetwork`.
        ResolveError: the pods could not be listed.
    """
    return await within_deadline(timeout, "the lookup of the pod of this process", _find_own_pod)


async def _find_own_pod(progress: Progress) -> Pod:
    connection = await find_connection(
        executable_location=ExecutableLocation.WITHIN_CLUSTER, cache=CredentialCache()
    )
    name, uid = os.environ.get("POD_NAME") or None, os.environ.get("POD_UID") or None
    ip = None
    if name is None:
        server = URL(connection.server)
        ip = await run_in_thread(f"look up {server.host}", _source_address, server)
    query = PodQuery("", connection.namespace or "default", name, ip)
    api = PodAPI(AiohttpTransport(connection), max_concurrency=1)
    found: list[Pod] = []
    try:
        for _ in range(LOOKUPS):
            found = [
                pod
                for pod in (await api.pods(query, progress)).pods
                if pod.status.phase not in ("Succeeded", "Failed")  # they keep an address that others get
                and uid in (None, pod.metadata.uid)
            ]
            if len(found) == 1:
                return found[0]
            if found or name is not None:
                break
            await anyio.sleep(LOOKUP_INTERVAL)
    finally:
        await api.aclose()
    number = f"{len(found)} pods" if found else "no pod"
    with_uid = "" if uid is None else f" with the uid {uid!r} of $POD_UID"
    raise TaskIdentityError(
        f"the pod of this process was not found: {query.scope}{with_uid} matches {number}",
        hint="Let the pod's manifest set $POD_NAME (fieldRef: metadata.name).",
        tried=(query.scope,),
        candidates=[pod.full_name for pod in found],
    )


def _source_address(server: URL) -> str:
    """Return the IP address of this machine from which it reaches `server`. Sends nothing to it."""
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            source: str = probe.getsockname()[0]
    except OSError as error:
        raise TaskIdentityError(
            f"the IP address of this pod is not known: {server.host} cannot be reached ({error})",
            hint="Let the pod's manifest set $POD_NAME (fieldRef: metadata.name).",
        ) from error
    return source
