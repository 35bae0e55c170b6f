"""Targets that are sick, each in one way that kubelet, controllers and cloud APIs report."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aioresolve.testing import Answer, Fault, GoogleServer, Hang, KubernetesServer, Reset, pod, tpu_node

LABELS = {"app": "train"}
HEALTHY = [pod(f"train-{number}", "ml", labels=LABELS) for number in range(2)]
KUBERNETES: dict[str, Any] = {"jobs": {"worker": "app=train"}, "namespace": "ml"}
TPU: dict[str, Any] = {"name": "slice", "project": "demo-project", "zone": "us-central2-b"}


@dataclass(frozen=True)
class Sickness:
    """A sick target: what its servers have, how it is configured, and how it has to be shown."""

    health: str
    reason: str
    pods: tuple[dict[str, Any], ...] = ()
    controllers: tuple[dict[str, Any], ...] = ()
    fault: Fault | None = None
    nodes: tuple[dict[str, Any], ...] | None = None  # of Google; None for a target on Kubernetes
    fields: Mapping[str, Any] | None = None
    expected: Any = None
    timeout: float = 20.0  # of each request, in seconds


def with_pod(shown: str, /, **arguments: Any) -> Sickness:
    """Return a degraded target, with two healthy pods and a sick one."""
    return Sickness("degraded", shown, (*HEALTHY, pod("train-2", "ml", labels=LABELS, **arguments)))


def with_node(shown_as: str, shown: str, /, **arguments: Any) -> Sickness:
    return Sickness(shown_as, shown, nodes=(tpu_node("slice", **arguments),))


def owned(kind: str, number: int) -> tuple[dict[str, Any], ...]:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    owner = {"apiVersion": version, "kind": kind, "name": "train", "uid": "1", "controller": True}
    pods = [pod(f"train-{index}", "ml", labels=LABELS, index=index) for index in range(number)]
    for each in pods:
        each["metadata"]["ownerReferences"] = [owner]
    return tuple(pods)


def controller(kind: str, spec: Mapping[str, Any], **status: Any) -> tuple[dict[str, Any], ...]:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    metadata = {"name": "train", "namespace": "ml"}
    return ({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec, "status": status},)


SICKNESSES = {
    # The four with which an operator tried the first version.
    "tpu-does-not-exist": Sickness("degraded", "exist (yet); TPUs in us-central2-b: none", nodes=()),
    "mistyped-selector": Sickness(
        "empty", "values of app there: train", (*HEALTHY,), fields={"jobs": {"worker": "app=trian"}}
    ),
    "mistyped-namespace": Sickness(
        "empty", "it matches pods in namespace ml", (*HEALTHY,), fields={"namespace": "lm"}
    ),
    "pending-and-crashing": Sickness(
        "degraded",
        "ml/bad-0: Pending (Unschedulable",
        (
            pod("bad-0", "ml", labels=LABELS, phase="Pending", node=None),
            pod("bad-1", "ml", labels=LABELS, waiting="CrashLoopBackOff", restarts=7),
        ),
    ),
    # Pods
    "unschedulable": with_pod("ml/train-2: Pending (Unschedulable", phase="Pending", node=None),
    "image": with_pod("ImagePullBackOff", phase="Pending", waiting="ImagePullBackOff"),
    "config": with_pod("CreateContainerConfigError", phase="Pending", waiting="CreateContainerConfigError"),
    "creating": with_pod("ContainerCreating", phase="Pending", waiting="ContainerCreating"),
    "crashing": with_pod("CrashLoopBackOff", waiting="CrashLoopBackOff", restarts=7),
    "not-ready": with_pod("its Ready condition is False", ready=False),
    "evicted": with_pod("Evicted", phase="Failed", reason="Evicted", message="low on memory"),
    "failed": with_pod("Failed", phase="Failed", exit_code=1),
    "node-lost": with_pod("Unknown", phase="Unknown", reason="NodeLost", ready=False),
    "out-of-memory": with_pod("137", phase="Failed", exit_code=137),
    # Numbers
    "replica-missing": Sickness(
        "degraded",
        "job 'worker': 2 of 5 tasks (spec.replicas of StatefulSet ml/train)",
        owned("StatefulSet", 2),
        controller("StatefulSet", {"replicas": 5}),
    ),
    "fewer-than-expected": Sickness("degraded", "2 of 3 tasks", (*HEALTHY,), expected=3),
    "more-than-expected": Sickness(
        "degraded", "there are 2 instead of 1", (*HEALTHY,), expected={"worker": 1}
    ),
    "job-without-tasks": Sickness(
        "degraded",
        "values of app there: train",
        (*HEALTHY,),
        fields={"jobs": {"worker": "app=train", "ps": "app=sp"}},
    ),
    # API servers
    "forbidden": Sickness("error", "403", fault=Answer(403)),
    "unauthorized": Sickness("error", "401", fault=Answer(401)),
    "unavailable": Sickness("error", "503", fault=Answer(503), timeout=0.5),
    "not-an-api-server": Sickness("error", "JSON", fault=Answer(200, b"<html>")),
    "hanging": Sickness("error", "no complete response", fault=Hang(), timeout=0.5),
    "closing-connections": Sickness("error", "onnection reset", fault=Reset(), timeout=0.5),
    # TPUs
    "tpu-creating": with_node("degraded", "CREATING", state="CREATING", health=None),
    "tpu-preempted": with_node("degraded", "PREEMPTED", state="PREEMPTED", health=None),
    "tpu-unhealthy": with_node("degraded", "UNHEALTHY", health="UNHEALTHY_TPU"),
}


@contextmanager
def sick_target(sickness: Sickness, folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield the target of a fleet file, and the environment for it; its server runs in a thread."""
    with ExitStack() as stack:
        if sickness.nodes is not None:
            google = stack.enter_context(GoogleServer(list(sickness.nodes)).in_thread())
            target: dict[str, Any] = {"tpu": {**TPU, **(sickness.fields or {})}}
            yield target, google.environ(folder / "google")
            return
        server = stack.enter_context(KubernetesServer(list(sickness.pods)).in_thread())
        server.add_controllers(*sickness.controllers)
        if sickness.fault is not None:
            server.inject(sickness.fault, times=None)
        config = str(server.write_kubeconfig(folder / "config"))
        target = {"kubernetes": {"kubeconfig": config, **KUBERNETES, **(sickness.fields or {})}}
        if sickness.expected is not None:
            target["expected"] = sickness.expected
        yield target, {}
