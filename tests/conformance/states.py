"""Every state of a pod: what to write to the API, and the Table row that an API server returns.

The Status column is that of `kubectl get pods`, which the API server computes
(https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/). The values were recorded from API server
1.36.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NODE = "node-a"
HOST_IP = "192.168.0.1"
FINALIZER = "example.com/hold"
GRACE = 30

READY = {"type": "Ready", "status": "True"}
NOT_READY = {"type": "Ready", "status": "False"}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of a pod's Table row that a resolver may read."""

    ready: str
    status: str
    ip: str = "<none>"
    node: str = NODE


@dataclass(frozen=True, slots=True)
class State:
    """A pod: the fields written to the API, and the row that is read.

    Attributes:
        row: the row of API server 1.36.
        deleted: whether the pod is being deleted (with a grace period and a finalizer).
    """

    name: str
    row: Row
    status: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    deleted: bool = False

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", "Pending"))

    @property
    def is_member(self) -> bool:
        return self.phase == "Running" and not self.deleted and "podIP" in self.status

    @property
    def grace(self) -> int | None:
        """The grace period in seconds that the API server sets; a finished pod has none."""
        if not self.deleted:
            return None
        return GRACE if self.completed_reason is None else 0

    @property
    def completed_reason(self) -> str | None:
        """The reason of `Completed`, the only condition that a row can have; None if it has none."""
        return self.phase if self.phase in ("Succeeded", "Failed") else None

    def manifest(self, namespace: str) -> dict[str, Any]:
        labels = {"state": self.name, "member": str(self.is_member).lower()}
        finalizers = [FINALIZER] if self.deleted else []
        return manifest(self.name, namespace, labels=labels, finalizers=finalizers, **self.spec)


def manifest(
    name: str,
    namespace: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod with one container on the node; `spec` overrides fields, and None removes them."""
    fields = {
        "nodeName": NODE,
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "trainer:v1"}],
    } | spec
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
            "finalizers": list(finalizers),
        },
        "spec": {key: value for key, value in fields.items() if value is not None},
    }


def container(state: Mapping[str, Any], *, ready: bool = False, name: str = "main") -> dict[str, Any]:
    """Return the status of a container."""
    return {
        "name": name,
        "state": dict(state),
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "image": "trainer:v1",
        "imageID": "",
    }


def waiting(reason: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason}}


def terminated(exit_code: int, **more: Any) -> dict[str, Any]:
    return {"terminated": {"exitCode": exit_code, **more}}


UP = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
STARTED = container(UP, ready=True)


def status(
    phase: str,
    *containers: Mapping[str, Any],
    ips: Sequence[str] = (),
    init: Sequence[Mapping[str, Any]] = (),
    condition: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> dict[str, Any]:
    """Return the status of a pod as a kubelet writes it."""
    fields = {
        "phase": phase,
        "hostIP": HOST_IP,
        "podIP": ips[0] if ips else None,
        "podIPs": [{"ip": ip} for ip in ips],
        "containerStatuses": list(containers),
        "initContainerStatuses": list(init),
        "conditions": [condition] if condition else [],
        "reason": reason,
    }
    return {key: value for key, value in fields.items() if value}


def running(ip: str) -> dict[str, Any]:
    """Return the status of a running and ready pod."""
    return status("Running", STARTED, ips=[ip], condition=READY)


def pod(
    name: str,
    namespace: str,
    ip: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest and status of a running and ready pod."""
    return manifest(name, namespace, labels=labels, annotations=annotations), running(ip)


INIT = {"initContainers": [{"name": "fetch", "image": "i"}, {"name": "warm", "image": "i"}]}
FETCHED = container(terminated(0, reason="Completed"), ready=True, name="fetch")
NOT_STARTED = container(waiting("PodInitializing"))


def initializing(second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a pod with its second init container in that state."""
    return status("Pending", NOT_STARTED, init=[FETCHED, container(second, name="warm")], condition=NOT_READY)


STATES = (
    # running
    State("train-0", Row("1/1", "Running", "10.8.0.10"), running("10.8.0.10")),
    State(
        "train-2-ipv6",
        Row("1/1", "Running", "fd00::12"),
        status("Running", STARTED, ips=["fd00::12"], condition=READY),
    ),
    State(
        "notready",
        Row("0/1", "Running", "10.8.1.3"),
        status("Running", container(UP), ips=["10.8.1.3"], condition=NOT_READY),
    ),
    State("no-address", Row("1/1", "Running"), status("Running", STARTED, condition=READY)),
    State(
        "crash",
        Row("0/1", "CrashLoopBackOff", "10.8.1.2"),
        status("Running", container(waiting("CrashLoopBackOff")), ips=["10.8.1.2"], condition=NOT_READY),
    ),
    # not running yet
    State("new", Row("0/1", "Pending")),
    State(
        "pending",
        Row("0/1", "Pending", node="<none>"),
        {"phase": "Pending", "conditions": [UNSCHEDULABLE]},
        spec={"nodeName": None},
    ),
    State(
        "gated",
        Row("0/1", "SchedulingGated", node="<none>"),
        spec={"nodeName": None, "schedulingGates": [{"name": "example.com/quota"}]},
    ),
    State(
        "creating",
        Row("0/1", "ContainerCreating"),
        status("Pending", container(waiting("ContainerCreating")), condition=NOT_READY),
    ),
    State(
        "init-crash",
        Row("0/1", "Init:CrashLoopBackOff"),
        initializing(waiting("CrashLoopBackOff")),
        spec=INIT,
    ),
    # finished or lost
    State(
        "done",
        Row("0/1", "Completed", "10.8.1.5"),
        status("Succeeded", container(terminated(0, reason="Completed")), ips=["10.8.1.5"]),
    ),
    State("evicted", Row("0/1", "Evicted", "10.8.1.4"), status("Failed", ips=["10.8.1.4"], reason="Evicted")),
    State("lost", Row("0/1", "NodeLost", "10.8.1.6"), status("Unknown", ips=["10.8.1.6"], reason="NodeLost")),
    # being deleted
    State("leaving", Row("1/1", "Terminating", "10.8.1.7"), running("10.8.1.7"), deleted=True),
    State(
        "leaving-done",
        Row("0/1", "Completed", "10.8.1.16"),
        status("Succeeded", container(terminated(0, reason="Completed")), ips=["10.8.1.16"]),
        deleted=True,
    ),
)
