"""A kubelet: it runs the pods of a loopback API server as processes of this machine.

Each pod has an address, the environment of its manifest and the files of its service account. Its container
is restarted in place as `restartPolicy` says, a deleted pod has its grace period to end, and the status has
phases, exit codes and restarts as a kubelet reports them:
https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/

A pod has one container, which is ready while it runs, and is restarted without a back-off.
"""

import asyncio
import itertools
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

import anyio
import psutil
from anyio.abc import TaskGroup

from aioresolve.testing import KubernetesServer
from tests.programs import ROOT

NODE = "node-a"
FINISHED = ("Succeeded", "Failed")
"""The phases of a pod that never runs again."""

CONTAINER_ID = "CONTAINER_ID"
"""The variable by which the processes of a container are recognised, in place of a cgroup."""

_KEPT = ("LANG", "LD_LIBRARY_PATH", "COVERAGE_PROCESS_START")
_MOUNT = """\
from aioresolve._core import service_account
service_account.FOLDER = {!r}
"""
"""Runs first in each Python process of a pod, in place of a mount at the folder of the service account."""


def now() -> str:
    """Return the current time in the format of the API."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has neither ended nor is being deleted."""
    return pod["status"]["phase"] not in FINISHED and "deletionTimestamp" not in pod["metadata"]


class Container(asyncio.SubprocessProtocol):
    """The process of a container, and everything that it starts, which ends with it.

    Attributes:
        id: its containerID.
        started_at: when it was started.
        reason: why it was killed, such as `OOMKilled`.
        exit_code: its exit code, once it has exited; 128 + N if signal N ended it.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self.id = f"containerd://{secrets.token_hex(32)}"
        self.started_at = now()
        self.reason: str | None = None
        self.exit_code = 0
        self._on_line = on_line
        self._partial = b""
        self._ended = anyio.Event()
        self._transport: asyncio.SubprocessTransport

    @classmethod
    async def start(
        cls, command: Sequence[str], environ: Mapping[str, str], on_line: Callable[[str], None]
    ) -> Self:
        """Start `command`; `on_line` is called with each line of its output."""
        container = cls(on_line)
        environ = {**environ, CONTAINER_ID: container.id}
        await asyncio.get_running_loop().subprocess_exec(
            lambda: container, *command, env=environ, stderr=subprocess.STDOUT, start_new_session=True
        )
        return container

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._on_line(line.decode())

    def process_exited(self) -> None:
        code = self._transport.get_returncode() or 0
        self.exit_code = 128 - code if code < 0 else code
        self.kill()

    def connection_lost(self, exc: Exception | None) -> None:
        # After the output has been read to its end.
        self._transport.close()
        self._ended.set()

    async def wait(self) -> None:
        """Return when all processes have ended."""
        await self._ended.wait()

    def write(self, text: str) -> None:
        """Write to the standard input, as `kubectl attach`."""
        cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0)).write(text.encode())

    def kill(self, reason: str | None = None) -> None:
        """Kill all processes, as the kernel does when the container exceeds its memory or ends."""
        if self._ended.is_set():
            return
        self.reason = self.reason or reason
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(CONTAINER_ID) == self.id:
                    process.kill()

    async def terminate(self, grace: float) -> None:
        """Send SIGTERM to the first process, and SIGKILL to all after `grace` seconds."""
        with suppress(ProcessLookupError):
            self._transport.send_signal(signal.SIGTERM)
        await anyio.sleep(grace)
        self.kill()

    def terminated(self) -> dict[str, Any]:
        """Return the state of a container that has exited."""
        reason = self.reason or ("Error" if self.exit_code else "Completed")
        times = {"startedAt": self.started_at, "finishedAt": now()}
        return {"terminated": {"exitCode": self.exit_code, "reason": reason, **times, "containerID": self.id}}


class Kubelet:
    """The kubelet of the only node; `sync` and `forget` are called after changes of pods.

    Args:
        server: the API server.
        folder: for the files of the service account.
        tasks: runs the pods; when it is cancelled, all processes are killed.
        on_line: is called with the name of a pod and each line that it prints.
    """

    def __init__(
        self, server: KubernetesServer, folder: Path, tasks: TaskGroup, on_line: Callable[[str, str], None]
    ) -> None:
        self.unschedulable: set[str] = set()
        """The host names of pods that remain Pending; `sync` schedules one that was removed."""
        self._server = server
        self._tasks = tasks
        self._on_line = on_line
        self._numbers = itertools.count(2)
        self._pods: dict[str, _Pod] = {}  # by uid, also those that have ended
        account = folder / "serviceaccount"
        (folder / "site").mkdir()
        (folder / "site" / "sitecustomize.py").write_text(_MOUNT.format(str(account)))
        self._environ = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            **server.in_cluster(account),
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": f"{folder / 'site'}:{ROOT}",
        }

    def sync(self, document: Mapping[str, Any]) -> None:
        """Start a new pod, or end one that is being deleted."""
        metadata, uid = document["metadata"], document["metadata"]["uid"]
        if uid in self._pods:
            if "deletionTimestamp" in metadata:
                self._pods[uid].end(metadata["deletionGracePeriodSeconds"])
        elif is_active(document) and document["spec"].get("hostname") not in self.unschedulable:
            address = f"127.0.1.{next(self._numbers)}"
            self._pods[uid] = _Pod(self._server, document, address, self._environ, self._on_line)
            self._tasks.start_soon(self._pods[uid].run)

    def forget(self, document: Mapping[str, Any]) -> None:
        """Kill a pod that does not exist any longer, if it still runs: it was deleted by force."""
        if document["metadata"]["uid"] in self._pods:
            self._pods[document["metadata"]["uid"]].scope.cancel()

    def container(self, name: str) -> Container:
        """Return the current container of the pod with that name."""
        return self._pods[self._server.pod(name)["metadata"]["uid"]].container


class _Pod:
    """A pod that runs on the node, or has ended there.

    Attributes:
        container: its current container, or the last one.
        scope: kills the pod when it is cancelled.
    """

    container: Container

    def __init__(
        self,
        server: KubernetesServer,
        document: Mapping[str, Any],
        address: str,
        environ: Mapping[str, str],
        on_line: Callable[[str, str], None],
    ) -> None:
        self.scope = anyio.CancelScope()
        self._server = server
        self._document = document
        self._name: str = document["metadata"]["name"]
        self._address = address
        self._on_line = on_line
        self._spec = document["spec"]["containers"][0]
        named = {one["name"]: self._value(one) for one in self._spec.get("env", ())}
        self._environ = {**environ, "HOSTNAME": document["spec"].get("hostname", self._name), **named}
        self._grace = 0.0
        self._deleted = anyio.Event()
        self._restarts = 0
        self._last_state: dict[str, Any] = {}

    def _value(self, variable: Mapping[str, Any]) -> str:
        if "valueFrom" not in variable:
            return str(variable["value"])
        path, _, key = variable["valueFrom"]["fieldRef"]["fieldPath"].partition("['")
        value: Any = {**self._document, "status": {"podIP": self._address}}
        for name in path.split("."):
            value = value[name]
        return str(value[key.removesuffix("']")] if key else value)

    def end(self, grace: float) -> None:
        """End the pod within `grace` seconds, and do not restart its container."""
        self._grace = grace
        self._deleted.set()

    async def run(self) -> None:
        """Run the container as often as it has to be restarted."""
        self._report("Pending", {"waiting": {"reason": "ContainerCreating"}})
        phase = "Running"
        with self.scope:
            while phase == "Running":
                await self._run_container()
                phase = self._phase_after(self.container.exit_code)
                self._report(phase, self.container.terminated())
                self._restarts += 1
                self._last_state = self.container.terminated()
        if self._deleted.is_set() and self._exists():
            self._server.delete(self._name)

    async def _run_container(self) -> None:
        """Return when the container has ended, which it does when the pod is deleted."""

        async def terminate() -> None:
            await self._deleted.wait()
            await self.container.terminate(self._grace)

        command = (*self._spec["command"], *self._spec.get("args", ()))
        self.container = await Container.start(command, self._environ, partial(self._on_line, self._name))
        self._report("Running", {"running": {"startedAt": self.container.started_at}})
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(terminate)
                await self.container.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.container.kill()
            with anyio.CancelScope(shield=True):
                await self.container.wait()

    def _phase_after(self, exit_code: int) -> str:
        if not self._deleted.is_set():
            match self._document["spec"].get("restartPolicy", "Always"):
                case "Always":
                    return "Running"
                case "OnFailure" if exit_code:
                    return "Running"
        return "Failed" if exit_code else "Succeeded"

    def _report(self, phase: str, state: Mapping[str, Any]) -> None:
        """Write the status, unless the pod does not exist any longer."""
        is_running = "running" in state
        container = {
            "name": self._spec["name"],
            "state": dict(state),
            "lastState": self._last_state,
            "ready": is_running,
            "restartCount": self._restarts,
            "image": self._spec["image"],
            "imageID": "sha256:abc",
        }
        ready = {"type": "Ready", "status": str(is_running), "lastTransitionTime": now()}
        status = {"phase": phase, "conditions": [ready], "containerStatuses": [container]}
        if "waiting" not in state:
            container["containerID"] = self.container.id
            status |= {"podIP": self._address, "podIPs": [{"ip": self._address}]}
        if self._exists():
            self._server.patch(self._name, patch={"spec": {"nodeName": NODE}, "status": status})

    def _exists(self) -> bool:
        """Whether the pod has not been deleted by force, and perhaps replaced by one of the same name."""
        uid = self._document["metadata"]["uid"]
        return any(one["metadata"]["uid"] == uid for one in self._server.pods)
