"""The processes of `rendezvous.py`: the server of a back end, and some of the agents that use it."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import anyio

from benchmarks.child_process import serve_requests

JOB = "batch.kubernetes.io/job-name"
POD_SIZE = 8192
"""Bytes of the JSON of a pod, typical of a training pod."""

POD_NAME: ContextVar[str] = ContextVar("POD_NAME")
"""The name of the pod of an agent, of which a process has many."""


# Servers


async def serve_kubernetes(size: int) -> None:
    """Serve the pods of an Indexed Job."""
    from aioresolve.testing import KubernetesServer, pod

    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job", "controller": True}
    pods = [
        pod(
            f"train-{index}",
            "ml",
            labels={JOB: "train"},
            index=index,
            ip=f"10.0.{index >> 8}.{index & 255}",
            size=POD_SIZE,
        )
        for index in range(size)
    ]
    for each in pods:
        each["metadata"]["ownerReferences"] = [owner]
    with tempfile.TemporaryDirectory() as folder:
        async with KubernetesServer(pods, tls=True, tokens={secrets.token_urlsafe(): "trainer"}) as server:

            async def start() -> dict[str, Any]:
                return {"folder": folder, "environ": server.in_cluster(folder, namespace="ml")}

            async def count() -> dict[str, float]:
                methods = Counter(request.method for request in server.requests)
                writes = methods["POST"] + methods["PATCH"]
                return {"requests": methods.total(), "writes": writes, "cpu": time.process_time()}

            await serve_requests({"start": start, "count": count})


async def serve_c10d(_: int) -> None:
    """Serve a TCPStore."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    async def start() -> list[Any]:
        return ["127.0.0.1", store.port]

    async def count() -> dict[str, float]:
        return {"cpu": time.process_time()}

    await serve_requests({"start": start, "count": count})


async def serve_etcd(_: int) -> None:
    """Run etcd with its API of version 2, which torch's back end uses."""
    import psutil

    with tempfile.TemporaryDirectory() as folder:
        ports = [free_port(), free_port()]
        client, peer = (f"http://127.0.0.1:{port}" for port in ports)
        options = {
            "data-dir": folder,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        # It ends with this process, which is killed.
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "etcd",
            "--enable-v2",
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: ASYNC220 - it only starts it

        async def start() -> list[Any]:
            with anyio.fail_after(30):
                while True:
                    try:
                        socket.create_connection(("127.0.0.1", ports[0])).close()
                        return ["127.0.0.1", ports[0]]
                    except ConnectionRefusedError:
                        await anyio.sleep(0.1)

        async def count() -> dict[str, float]:
            times = psutil.Process(process.pid).cpu_times()
            return {"cpu": times.user + times.system}

        try:
            await serve_requests({"start": start, "count": count})
        finally:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


# Agents


class KubernetesAgents:
    """Agents in one event loop."""

    def __init__(self, size: int) -> None:
        self._size = size

    async def prepare(self, endpoint: Any) -> None:
        """Act as the pods of the cluster. Each agent finds its own pod by its name."""
        from aioresolve._core import service_account
        from aioresolve.kubernetes import own_pod

        class Environ(dict[str, str]):
            def get(self, key: str, default: Any = None) -> Any:
                return POD_NAME.get() if key == "POD_NAME" else super().get(key, default)

        os.environ.update(endpoint["environ"])
        service_account.FOLDER = endpoint["folder"]
        setattr(own_pod, "os", SimpleNamespace(environ=Environ(os.environ)))  # noqa: B010 - an import

    async def join(self, first: int, last: int, at: float, spread: float) -> dict[str, float]:
        from aioresolve.rendezvous.agent import Agent
        from aioresolve.rendezvous.protocol import Limits

        started, ended = [], []
        cpu = time.process_time()
        self._tasks: list[asyncio.Task[None]] = []  # they run until the process is killed

        async def one(index: int) -> None:
            POD_NAME.set(f"train-{index}")
            await anyio.sleep_until(at + spread * index / self._size)
            started.append(time.monotonic())
            agent = Agent("torchrun-train", Limits(self._size, self._size))
            await agent.open()
            self._tasks.append(asyncio.create_task(agent.run()))
            found = await agent.join(port=1, timeout=600, last_call=30)
            ended.append(time.monotonic())
            assert found.rank == index

        async with anyio.create_task_group() as tasks:
            for index in range(first, last):
                tasks.start_soon(one, index)
        return {"started": max(started), "ended": max(ended), "cpu": time.process_time() - cpu}


class TorchAgents:
    """Agents of torch's own back ends, each in a thread."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind = kind
        self._size = size
        self._calls: Counter[str] = Counter()

    async def prepare(self, endpoint: Any) -> None:
        """Import torch, which takes seconds, before the time is taken."""
        import_module("torch.distributed.elastic.rendezvous.dynamic_rendezvous")
        self._host, self._port = endpoint

    def _connect(self) -> tuple[Any, Any]:
        """Return the store and the back end of one agent."""
        if self._kind == "c10d":
            from torch.distributed import TCPStore
            from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

            store: Any = TCPStore(self._host, self._port, is_master=False, wait_for_workers=False)
            backend: Any = C10dRendezvousBackend(store, "train")
        else:
            import etcd  # type: ignore[import-not-found]
            from torch.distributed.elastic.rendezvous.etcd_rendezvous_backend import EtcdRendezvousBackend
            from torch.distributed.elastic.rendezvous.etcd_store import EtcdStore

            client = etcd.Client(self._host, self._port, allow_reconnect=True)
            store = EtcdStore(client, "/torch/elastic/store")
            backend = EtcdRendezvousBackend(client, "train", key_prefix="/torch/elastic/rendezvous")
        for name in ("get_state", "set_state"):
            setattr(backend, name, self._counted(name, getattr(backend, name)))
        return store, backend

    def _counted(self, name: str, function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            self._calls[name] += 1
            return function(*arguments)

        return call

    async def join(self, first: int, last: int, at: float, spread: float) -> dict[str, float]:
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

        started, ended, handlers = [], [], []
        cpu = time.process_time()

        def one(index: int) -> None:
            time.sleep(max(at + spread * index / self._size - time.monotonic(), 0))
            started.append(time.monotonic())
            store, backend = self._connect()
            handler = DynamicRendezvousHandler.from_backend(
                "train", store, backend, self._size, self._size, local_addr="127.0.0.1"
            )
            handlers.append((handler, handler.next_rendezvous()))
            ended.append(time.monotonic())

        def all_of_them() -> None:
            with ThreadPoolExecutor(last - first) as threads:
                list(threads.map(one, range(first, last)))

        await asyncio.to_thread(all_of_them)
        self._handlers = handlers  # rank 0 has the store of the round
        calls = self._calls
        return {
            "started": max(started),
            "ended": max(ended),
            "cpu": time.process_time() - cpu,
            "requests": calls.total(),
            "writes": calls["set_state"],
        }


async def run_agents(backend: str, size: int) -> None:
    agents = KubernetesAgents(size) if backend == "kubernetes" else TorchAgents(backend, size)
    await serve_requests({"prepare": agents.prepare, "join": agents.join})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("server", "agents"))
    parser.add_argument("backend")
    parser.add_argument("size", type=int)
    options = parser.parse_args()
    servers = {"kubernetes": serve_kubernetes, "c10d": serve_c10d, "etcd-v2": serve_etcd}
    if options.role == "server":
        asyncio.run(servers[options.backend](options.size))
        return
    # Agents have threads that would delay the end.
    try:
        asyncio.run(run_agents(options.backend, options.size))
    finally:
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
