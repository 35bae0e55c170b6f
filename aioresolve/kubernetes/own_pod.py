"""The pod that this process runs in, and the workload that the pod belongs to.

Where each controller writes what the pods of one workload have in common:

- LeaderWorkerSet: labels `leaderworkerset.sigs.k8s.io/name` and `.../group-index`.
- JobSet: labels `jobset.sigs.k8s.io/jobset-name` and `.../replicatedjob-name`.
- Kubeflow training operator and MPI operator: label `training.kubeflow.org/job-name`. The launcher of an
  MPIJob is not one of its workers.
- Volcano: label `volcano.sh/job-name`.
- Job: label `batch.kubernetes.io/job-name`, `job-name` before Kubernetes 1.27.
- StatefulSet: label `controller-revision-hash`, which begins with the name of the StatefulSet. It changes
  with the pod template, so that during a rolling update new pods do not join old ones.
- Kueue pod group: label `kueue.x-k8s.io/pod-group-name`.

The order matters: a pod of a JobSet, LeaderWorkerSet or MPIJob has the labels of the inner controller too.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from yarl import URL

from aioresolve._core.deadline import Progress, within_deadline
from aioresolve._core.threads import run_in_thread
from aioresolve.errors import TaskIdentityError

from .api.client import AiohttpTransport, ObjectAPI
from .api.objects import PodQuery
from .auth import CredentialCache, ExecutableLocation, find_connection
from .tasks.pod_labels import (
    COMPLETION_INDEX,
    JOBSET_NAME,
    JOBSET_REPLICATED_JOB,
    KUBEFLOW_ROLES,
    LWS_GROUP,
    LWS_NAME,
    MPI_LAUNCHER,
    POD_GROUP_NAME,
    VOLCANO_JOB,
)

if TYPE_CHECKING:
    from .api.objects import Pod

KUBEFLOW_NAME = "training.kubeflow.org/job-name"
KUBEFLOW_OPERATOR = "training.kubeflow.org/operator-name"
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
    """

    kind: str
    name: str
    selector: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


def workload_of(pod: Pod) -> Workload | None:
    """Return the workload of a pod, as its labels describe it; None if it has none of those known here.

    The workload is one group of a LeaderWorkerSet, or one replicated job of a JobSet; of other controllers it
    is all of their pods.
    """
    labels = pod.metadata.labels
    if LWS_NAME in labels and LWS_GROUP in labels:
        return Workload("LeaderWorkerSet", labels[LWS_NAME], _selector(pod, LWS_NAME, LWS_GROUP))
    if JOBSET_NAME in labels:
        return Workload("JobSet", labels[JOBSET_NAME], _selector(pod, JOBSET_NAME, JOBSET_REPLICATED_JOB))
    if KUBEFLOW_NAME in labels:
        return _kubeflow_workload(pod)
    if VOLCANO_JOB in labels:
        return Workload("Volcano Job", labels[VOLCANO_JOB], _selector(pod, VOLCANO_JOB))
    for key in (JOB_NAME, OLD_JOB_NAME):
        if key in labels:
            return Workload("Job", labels[key], _selector(pod, key))
    for owner in pod.metadata.owner_references or ():
        if owner.controller and owner.kind == "StatefulSet" and REVISION in labels:
            return Workload(owner.kind, owner.name, _selector(pod, REVISION))
    if POD_GROUP_NAME in labels:
        return Workload("pod group", labels[POD_GROUP_NAME], _selector(pod, POD_GROUP_NAME))
    return None


def _kubeflow_workload(pod: Pod) -> Workload:
    labels, selector = pod.metadata.labels, _selector(pod, KUBEFLOW_NAME)
    # The launcher belongs to a Job of the MPIJob; its operator is called mpi-operator or mpijob-controller.
    is_mpi = labels.get(KUBEFLOW_OPERATOR, "").startswith("mpi")
    if is_mpi:
        selector += "".join(f",{key}!={MPI_LAUNCHER}" for key in KUBEFLOW_ROLES if key in labels)
    owner = next((each for each in pod.metadata.owner_references or () if each.controller), None)
    owned = owner.kind if owner is not None and owner.api_version.startswith("kubeflow.org/") else None
    return Workload(owned or ("MPIJob" if is_mpi else "Kubeflow job"), labels[KUBEFLOW_NAME], selector)


def _selector(pod: Pod, *keys: str) -> str:
    labels = pod.metadata.labels
    return ",".join(f"{key}={labels[key]}" for key in keys if key in labels)


async def find_own_pod(*, timeout: float) -> Pod:
    """Return the pod that this process runs in, from the API server of its service account.

    The pod is found by `$POD_NAME`, or else by its IP address: the one from which this process reaches the
    API server. `$POD_UID` and `$JOB_COMPLETION_INDEX` must be those of the pod, if they are set. Needs
    permission to list pods in the namespace of the pod.

    Args:
        timeout: the total deadline, in seconds.

    Raises:
        TaskIdentityError: there is no such pod, or several have this address, as with `hostNetwork`.
        ResolveError: the pods could not be listed.
    """
    return await within_deadline(timeout, "the lookup of the pod of this process", fetch_own_pod)


async def fetch_own_pod(progress: Progress) -> Pod:
    """Return the pod that this process runs in, as `find_own_pod`, without a deadline of its own."""
    connection = await find_connection(
        executable_location=ExecutableLocation.WITHIN_CLUSTER, cache=CredentialCache()
    )
    name, uid = os.environ.get("POD_NAME") or None, os.environ.get("POD_UID") or None
    index = os.environ.get("JOB_COMPLETION_INDEX") or None
    ip = None
    if name is None:
        server = URL(connection.server)
        ip = await run_in_thread(f"look up {server.host}", source_address, server)
    query = PodQuery("", connection.default_namespace(), name=name, ip=ip)
    api = ObjectAPI(AiohttpTransport(connection), max_concurrency=1)
    found: list[Pod] = []
    try:
        for _ in range(LOOKUPS):
            found = [
                pod
                for pod in (await api.objects(query, progress)).items
                if pod.status.phase not in ("Succeeded", "Failed")  # they keep an address that others get
                and uid in (None, pod.metadata.uid)
                # With `hostNetwork` other pods have the same address.
                and (index is None or pod.metadata.annotations.get(COMPLETION_INDEX) in (None, index))
            ]
            if len(found) == 1:
                return found[0]
            if found or name is not None:
                break
            await anyio.sleep(LOOKUP_INTERVAL)
    finally:
        await api.aclose()
    number = f"{len(found)} pods" if found else "no pod"
    with_identity = "" if uid is None else f" with the uid {uid!r} of $POD_UID"
    if index is not None:
        with_identity += f" with the index {index} of $JOB_COMPLETION_INDEX"
    raise TaskIdentityError(
        f"the pod of this process was not found: {query.scope}{with_identity} matches {number}",
        hint="Let the pod's manifest set $POD_NAME (fieldRef: metadata.name).",
        tried=(query.scope,),
        candidates=[pod.full_name for pod in found],
    )


def source_address(server: URL) -> str:
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
