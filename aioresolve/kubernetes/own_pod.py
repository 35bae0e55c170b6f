"""The pod that this process runs in, and the workload that the pod belongs to, as its labels describe it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, NamedTuple

import anyio
from yarl import URL

from aioresolve._core.threads import run_in_thread
from aioresolve.errors import TaskIdentityError

from .api.client import open_api
from .api.objects import OwnerReference
from .api.queries import PodQuery
from .auth import ExecutableLocation, ServerSearch, find_connection
from .tasks.controller_kinds import (
    COMPLETION_INDEX,
    KINDS,
    KUBEFLOW_NAME,
    KUBEFLOW_ROLES,
    MPI_LAUNCHER,
    REVISION,
)
from .tasks.pods import ENDED

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress

    from .api.client import ObjectAPI
    from .api.objects import Pod
    from .auth import Connection

KUBEFLOW_OPERATOR = "training.kubeflow.org/operator-name"

LOOKUPS = 15
"""How often the pod is looked up by its address: the kubelet reports the address after containers start."""

LOOKUP_INTERVAL = 1.0
"""Seconds between two of them."""

NAME_THE_POD = "Let the pod's manifest set $POD_NAME (fieldRef: metadata.name)."


class Workload(NamedTuple):
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
    owner = pod.metadata.controller or OwnerReference()
    for kind, keys in ((row.name, keys) for row in KINDS.values() for keys in row.workload):
        if not labels.keys() >= {*keys}:
            continue
        name, selector = labels[keys[0]], ",".join(f"{key}={labels[key]}" for key in keys)
        if keys == (REVISION,):
            if owner.kind != kind:
                continue  # a DaemonSet has the label too
            name = owner.name
        if keys == (KUBEFLOW_NAME,):
            # The launcher belongs to a Job of the MPIJob; its operator is mpi-operator or mpijob-controller.
            is_mpi = labels.get(KUBEFLOW_OPERATOR, "").startswith("mpi")
            if is_mpi:
                selector += "".join(f",{key}!={MPI_LAUNCHER}" for key in KUBEFLOW_ROLES if key in labels)
            is_owned = owner.api_version.startswith("kubeflow.org/")
            kind = owner.kind if is_owned else "MPIJob" if is_mpi else kind
        return Workload(kind, name, selector)
    return None


async def fetch_own_pod(progress: Progress) -> Pod:
    """Return the pod that this process runs in, from the API server of its service account.

    The pod is found by `$POD_NAME`, or else by its IP address: the one from which this process reaches the
    API server. `$POD_UID` and `$JOB_COMPLETION_INDEX` must be those of the pod, if they are set. Needs
    permission to list pods in the namespace of the pod.

    Raises:
        TaskIdentityError: the pod was not found, or several have this address, as with `hostNetwork`.
        ResolveError: the pods could not be listed.
    """
    connection = await find_connection(ServerSearch(location=ExecutableLocation.WITHIN_CLUSTER))
    async with open_api(connection) as api:
        return await request_own_pod(api, connection, progress)


async def request_own_pod(api: ObjectAPI, connection: Connection, progress: Progress) -> Pod:
    """Return the pod that this process runs in, as `fetch_own_pod`; `api` is the server of its cluster."""
    name, uid = os.environ.get("POD_NAME") or None, os.environ.get("POD_UID") or None
    index = os.environ.get("JOB_COMPLETION_INDEX") or None
    ip = None if name is not None else await own_address(connection.server, NAME_THE_POD)
    query = PodQuery("", connection.default_namespace(), name=name, ip=ip)
    found: list[Pod] = []
    for _ in range(LOOKUPS):
        found = [
            pod
            for pod in (await api.objects(query, progress)).items
            if pod.status.phase not in ENDED  # they keep an address that others get
            and uid in (None, pod.metadata.uid)
            # With `hostNetwork` other pods have the same address.
            and (index is None or pod.metadata.annotations.get(COMPLETION_INDEX) in (None, index))
        ]
        if len(found) == 1:
            return found[0]
        if found or name is not None:
            break
        await anyio.sleep(LOOKUP_INTERVAL)
    number = f"{len(found)} pods" if found else "no pod"
    with_identity = "" if uid is None else f" with the uid {uid!r} of $POD_UID"
    if index is not None:
        with_identity += f" with the index {index} of $JOB_COMPLETION_INDEX"
    raise TaskIdentityError(
        f"the pod of this process was not found: {query.scope}{with_identity} matches {number}",
        hint=NAME_THE_POD,
        tried=(query.scope,),
        candidates=[pod.full_name for pod in found],
    )


async def own_address(server: str, hint: str) -> str:
    """Return the IP address of this machine from which it reaches the URL `server`. Sends nothing to it.

    Raises:
        TaskIdentityError: it does not reach the server; with `hint`.
    """
    url = URL(server)

    def find() -> str:
        found = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            source: str = probe.getsockname()[0]
        return source

    try:
        return await run_in_thread(f"look up {url.host}", find)
    except OSError as error:
        raise TaskIdentityError(
            f"the IP address of this machine is not known: {url.host} cannot be reached ({error})",
            hint=hint,
        ) from error
