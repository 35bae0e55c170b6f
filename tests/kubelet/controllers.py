"""The controllers of Indexed Jobs and StatefulSets, for pods of a loopback API server.

A failed pod of a Job is replaced at once, without a back-off. Sources:
https://kubernetes.io/docs/concepts/workloads/controllers/job/ and `.../statefulset/`.
"""

import abc
import secrets
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from aioresolve.testing import KubernetesServer

from .kubelet import FINISHED, is_active, now

JOB = "batch.kubernetes.io/"
INDEX = f"{JOB}job-completion-index"
FINALIZER = f"{JOB}job-tracking"


class Controller(abc.ABC):
    """An object of the server, and what its controller does for it.

    Attributes:
        spec: its `spec`.
        status: its `status`.
    """

    api_version: ClassVar[str]
    kind: ClassVar[str]

    def __init__(self, server: KubernetesServer, name: str, spec: Mapping[str, Any]) -> None:
        self.name = name
        self.spec = dict(spec)
        self.status: dict[str, Any] = {}
        self._server = server
        self._uid = str(uuid.uuid4())

    @property
    def pods(self) -> list[dict[str, Any]]:
        """The pods of this controller that exist."""
        return [
            pod
            for pod in self._server.pods
            if any(owner["uid"] == self._uid for owner in pod["metadata"].get("ownerReferences", ()))
        ]

    def change(self, **spec: Any) -> None:
        """Change fields of `spec`, as a user does, and then what follows from it."""
        self.spec.update(spec)
        self._write()
        self.sync()

    def sync(self) -> None:
        """Create and delete pods as the object wants them, and write its status."""
        self._sync()
        self._write()

    def _write(self) -> None:
        metadata = {"name": self.name, "namespace": "default", "uid": self._uid}
        document = {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata}
        self._server.add_controllers({**document, "spec": dict(self.spec), "status": dict(self.status)})

    @abc.abstractmethod
    def _sync(self) -> None: ...

    def _create(
        self, name: str, labels: Mapping[str, str], finalizers: Sequence[str] = (), **spec: Any
    ) -> None:
        template = self.spec["template"]
        owner = {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self._uid}
        metadata = {
            "name": name,
            "labels": {**template.get("metadata", {}).get("labels", {}), **labels},
            "annotations": {INDEX: labels[INDEX]} if INDEX in labels else {},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
            "finalizers": finalizers,
        }
        pod = {"kind": "Pod", "metadata": metadata, "spec": {**template["spec"], **spec}}
        self._server.add({**pod, "status": {"phase": "Pending"}})


class IndexedJob(Controller):
    """A Job with `completionMode: Indexed`."""

    api_version = "batch/v1"
    kind = "Job"

    def __init__(self, server: KubernetesServer, name: str, spec: Mapping[str, Any]) -> None:
        super().__init__(server, name, {"completionMode": "Indexed", "backoffLimit": 6, **spec})
        self._succeeded: set[int] = set()
        self._failed = 0
        self._conditions: dict[str, dict[str, str]] = {}

    def has(self, condition: str) -> bool:
        """Whether the Job has the condition, such as `Complete`."""
        return self._conditions.get(condition, {}).get("status") == "True"

    def _sync(self) -> None:
        for pod in self.pods:
            self._count(pod)
        size, is_suspended = self.spec["completions"], bool(self.spec.get("suspend"))
        self._succeeded = {index for index in self._succeeded if index < size}
        if self._failed > self.spec["backoffLimit"]:
            self._set("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
        elif len(self._succeeded) == size and not self.has("FailureTarget"):
            for condition in ("SuccessCriteriaMet", "Complete"):
                self._set(condition, "CompletionsReached", "Reached expected number of succeeded pods")
        if is_suspended:
            self._set("Suspended", "JobSuspended", "Job suspended")
        elif self.has("Suspended"):
            self._conditions.pop("Suspended")
            self._set("Suspended", "JobResumed", "Job resumed", "False")
        is_over = self.has("FailureTarget") or self.has("Complete")
        self._delete_pods(from_index=0 if is_over or is_suspended else size)
        if not is_over and not is_suspended:
            self._create_pods()
        running = [pod for pod in self.pods if pod["status"]["phase"] not in FINISHED]
        if self.has("FailureTarget") and not running:
            self._set("Failed", *(self._conditions["FailureTarget"][key] for key in ("reason", "message")))
        status = {
            "active": sum(map(is_active, running)),
            "terminating": len(running) - sum(map(is_active, running)),
            "succeeded": len(self._succeeded),
            "failed": self._failed,
            "completedIndexes": _intervals(self._succeeded),
            "conditions": list(self._conditions.values()),
        }
        self.status = {key: value for key, value in status.items() if value}

    def _count(self, pod: Mapping[str, Any]) -> None:
        """Count a pod that has ended or is being deleted, once: the finalizer marks those not counted yet."""
        if is_active(pod) or FINALIZER not in pod["metadata"].get("finalizers", ()):
            return
        if pod["status"]["phase"] == "Succeeded":
            self._succeeded.add(_index(pod))
        else:
            self._failed += 1
        self._release(pod)

    def _release(self, pod: Mapping[str, Any]) -> None:
        """Remove the finalizer, and the pod if only that has delayed its deletion."""
        metadata = pod["metadata"]
        self._server.patch(metadata["name"], patch={"metadata": {"finalizers": None}})
        if metadata.get("deletionGracePeriodSeconds") == 0:
            self._server.finish_deletion(metadata["name"])

    def _delete_pods(self, *, from_index: int) -> None:
        """Delete the active pods from that index on, which then count neither as succeeded nor as failed."""
        for pod in filter(is_active, self.pods):
            if _index(pod) >= from_index:
                self._release(pod)
                self._server.delete(pod["metadata"]["name"], grace_period_seconds=None)

    def _create_pods(self) -> None:
        active = {_index(pod) for pod in self.pods if is_active(pod)}
        missing = [each for each in range(self.spec["completions"]) if each not in self._succeeded | active]
        for index in missing[: max(self.spec["parallelism"] - len(active), 0)]:
            host = f"{self.name}-{index}"
            labels = {f"{JOB}job-name": self.name, f"{JOB}controller-uid": self._uid, INDEX: str(index)}
            field = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
            variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}
            containers = [
                {**one, "env": [*one.get("env", ()), variable]}
                for one in self.spec["template"]["spec"]["containers"]
            ]
            name = f"{host}-{secrets.token_hex(3)[:5]}"
            self._create(name, labels, finalizers=[FINALIZER], hostname=host, containers=containers)

    def _set(self, condition: str, reason: str, message: str, status: str = "True") -> None:
        values = {"type": condition, "status": status, "reason": reason, "message": message}
        self._conditions.setdefault(condition, {**values, "lastTransitionTime": now()})


class StatefulSet(Controller):
    """A StatefulSet with `podManagementPolicy: Parallel`."""

    api_version = "apps/v1"
    kind = "StatefulSet"

    def _sync(self) -> None:
        pods = {pod["metadata"]["name"]: pod for pod in self.pods}
        wanted = {f"{self.name}-{index}": str(index) for index in range(self.spec["replicas"])}
        for name, pod in pods.items():
            is_ended = pod["status"]["phase"] in FINISHED
            if (is_ended or name not in wanted) and "deletionTimestamp" not in pod["metadata"]:
                self._server.delete(name, grace_period_seconds=None)
        for name in wanted.keys() - pods.keys():
            labels = {
                "apps.kubernetes.io/pod-index": wanted[name],
                "statefulset.kubernetes.io/pod-name": name,
                "controller-revision-hash": f"{self.name}-5d4f8b7c9",
            }
            self._create(name, labels, hostname=name, subdomain=self.spec["serviceName"])
        self.status = {"replicas": len(pods)}


def _index(pod: Mapping[str, Any]) -> int:
    return int(pod["metadata"]["labels"][INDEX])


def _intervals(indexes: Iterable[int]) -> str:
    """Return `0,2-4`: three or more consecutive numbers as the first and the last one."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
    return ",".join(texts)
