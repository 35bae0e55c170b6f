"""A cluster for tests: an API server whose pods run as processes, and the controllers of its workloads."""

import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import aiohttp
import anyio
import pytest
from anyio import TASK_STATUS_IGNORED
from anyio.abc import TaskGroup, TaskStatus

from aioresolve.testing import KubernetesServer

from .controllers import Controller
from .kubelet import FINISHED, Container, Kubelet, is_active

ControllerT = TypeVar("ControllerT", bound="Controller")

TOKEN = "a-token"
LIMIT = 120.0
"""Seconds that `until` waits at most; on a busy machine a process takes many to start."""
MOMENT = 0.5
"""Seconds without a change after which `settle` returns."""


class Line(NamedTuple):
    """A line that a container printed, and the name of its pod."""

    pod: str
    text: str


class ProcessCluster:
    """The server, the kubelet and the controllers. They run until the end of the block of `run`.

    Attributes:
        server: the API server.
        kubelet: runs its pods.
        log: the lines that the containers printed, in this order.
    """

    def __init__(self, server: KubernetesServer, folder: Path, tasks: TaskGroup) -> None:
        self.server = server
        self.log: list[Line] = []
        self.kubelet = Kubelet(server, folder, tasks, self._on_line)
        self._controllers: list[Controller] = []
        self._changed = anyio.Event()

    @classmethod
    @asynccontextmanager
    async def run(cls, folder: Path) -> AsyncIterator[Self]:
        """Return a running cluster; at the end of the block, all processes are killed."""
        async with (
            KubernetesServer(tls=True, tokens={TOKEN: "trainer"}) as server,
            anyio.create_task_group() as tasks,
        ):
            cluster = cls(server, folder, tasks)
            await tasks.start(cluster._watch)
            try:
                yield cluster
            finally:
                tasks.cancel_scope.cancel()

    def add(self, workload: ControllerT) -> ControllerT:
        """Add a workload, which creates its pods."""
        self._controllers.append(workload)
        workload.sync()
        return workload

    def add_pod(self, name: str, spec: Mapping[str, Any]) -> None:
        """Add a pod without a controller."""
        status = {"phase": "Pending"}
        self.server.add({"kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status})

    def pod(self, host: str) -> str:
        """Return the name of the pod with this host name that has not ended and is not being deleted."""
        pods = (pod for pod in self.server.pods if pod["spec"].get("hostname") == host and is_active(pod))
        return str(next(pods)["metadata"]["name"])

    def container(self, host: str) -> Container:
        """Return the container of that pod."""
        return self.kubelet.container(self.pod(host))

    def exit_code(self, pod: str) -> int | None:
        """Return the exit code of the pod with this name; None if it has not ended."""
        status = self.server.pod(pod)["status"]
        if status["phase"] not in FINISHED:
            return None
        return int(status["containerStatuses"][0]["state"]["terminated"]["exitCode"])

    def output(self, pod: str) -> str:
        """Return what the pod with this name printed."""
        return "\n".join(line.text for line in self.log if line.pod == pod)

    def describe(self) -> str:
        """Return the pods and the log, for the message of a failure."""
        return "\n".join([*map(_summary, self.server.pods), *(f"{pod}: {text}" for pod, text in self.log)])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when `condition` is true, which is checked after every change and every line."""
        with anyio.move_on_after(LIMIT):
            while not condition():
                await self._changed.wait()
            return
        pytest.fail(f"the condition was not true within {LIMIT:g} s\n{self.describe()}")

    async def settle(self) -> None:
        """Return when nothing has happened for a moment: what should not happen would have happened."""
        while True:
            with anyio.move_on_after(MOMENT) as moment:
                await self._changed.wait()
            if moment.cancelled_caught:
                return

    async def _watch(self, *, task_status: TaskStatus[None]) -> None:
        """Call the kubelet and the controllers after every change of a pod."""
        tls = ssl.create_default_context(cadata=self.server.ca_pem)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        start = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        url = f"{self.server.url}/api/v1/pods?watch=true&{start}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while True:  # the server may restart
                with suppress(aiohttp.ClientError):
                    async with session.get(url, ssl=tls) as response:
                        task_status.started()
                        task_status = TASK_STATUS_IGNORED
                        async for line in response.content:
                            self._on_event(json.loads(line))
                await anyio.sleep(0.1)

    def _on_event(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "DELETED":
            self.kubelet.forget(event["object"])
        else:
            self.kubelet.sync(event["object"])
        for controller in self._controllers:
            controller.sync()
        self._notify()

    def _on_line(self, pod: str, text: str) -> None:
        self.log.append(Line(pod, text))
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _summary(pod: dict[str, Any]) -> str:
    states = [(one["state"], one["restartCount"]) for one in pod["status"].get("containerStatuses", ())]
    return f"{pod['metadata']['name']} {pod['status']['phase']} {states}"
