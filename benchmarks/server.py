"""Runs the API server of `kubernetes.py`: a KubernetesServer with labelled pods, in a separate process.

It uses TLS and requires a bearer token. It caches responses, so that the figures show the cost of the client.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import secrets
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["running_server", "selectors_of"]

ROOT = Path(__file__).resolve().parent.parent

POD_SIZE = 8192
"""Bytes of the JSON of a pod, typical of a training pod with a dozen variables and managedFields."""

CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
"""The conditions that a kubelet sets."""

CONDITIONS_SIZE = 420
"""Bytes of the JSON of all these conditions but Ready."""

SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""The characters of random names in Kubernetes (k8s.io/apimachinery/pkg/util/rand)."""


def selectors_of(count: int) -> list[str]:
    """Return the selectors of the first `count` groups of pods."""
    return [f"app=trainer-{group}" for group in range(count)]


@contextmanager
def running_server(groups: int, pods: int, kubeconfig: Path, *, delay: float = 0.0) -> Iterator[None]:
    """Run a server with `groups` times `pods` pods inside the block, and write a kubeconfig for it.

    It delays each response by `delay` seconds.
    """
    numbers = [str(number) for number in (groups, pods, delay)]
    command = [sys.executable, "-m", "benchmarks.server", *numbers, str(kubeconfig)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the server did not start: exit code {process.wait()}")
        try:
            yield
        finally:
            process.stdin.close()


def create_pods(groups: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the pods of all groups, with the names that an Indexed Job would give them.

    They use the network of their hosts, so that the address of a pod is that of its node: tensorflow's
    resolver returns the addresses of nodes, and this way all peers return the same addresses.
    """
    from aioresolve.testing import pod

    chance = random.Random(count)
    for group in range(groups):
        for number in range(count):
            ip = f"10.{group}.{number >> 8}.{number & 255}"
            made = pod(
                f"trainer-{group}-{number}-{''.join(chance.choices(SUFFIX, k=5))}",
                labels={"app": f"trainer-{group}"},
                index=number,
                ip=ip,
                host_ip=ip,
                node=f"gke-training-pool-{group}-3f9c2a71-{''.join(chance.choices(SUFFIX, k=4))}",
                size=POD_SIZE - CONDITIONS_SIZE,
            )
            yield with_own_times(made, chance)


def with_own_times(pod: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a pod with the conditions that a kubelet sets, each since another time, as its container.

    No client finds the bytes of such a condition in a cache.
    """
    times = [f"2026-11-20T{chance.randrange(24):02}:{chance.randrange(60):02}:00Z" for _ in CONDITIONS]
    conditions = [
        {"type": type_, "status": "True", "lastProbeTime": None, "lastTransitionTime": time}
        for type_, time in zip(CONDITIONS, times, strict=True)
    ]
    containers = [
        container | {"state": {"running": {"startedAt": times[0]}}}
        for container in pod["status"]["containerStatuses"]
    ]
    return pod | {"status": pod["status"] | {"conditions": conditions, "containerStatuses": containers}}


async def serve(groups: int, pods: int, delay: float, kubeconfig: Path) -> None:
    """Serve until stdin is closed."""
    import yaml

    from aioresolve.testing import Delay, KubernetesServer

    tokens = {secrets.token_urlsafe(32): "benchmark"}
    async with KubernetesServer(create_pods(groups, pods), tls=True, tokens=tokens) as server:
        # As YAML, the format of real kubeconfig files, which takes longer to parse than JSON.
        await asyncio.to_thread(kubeconfig.write_text, yaml.safe_dump(server.kubeconfig()))
        if delay:
            server.inject(Delay(delay), times=None)
        gc.freeze()  # or the garbage collector traverses all pods during measurements
        print("serving", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", type=int)
    parser.add_argument("pods", type=int)
    parser.add_argument("delay", type=float)
    parser.add_argument("kubeconfig", type=Path)
    options = parser.parse_args(arguments)
    asyncio.run(serve(options.groups, options.pods, options.delay, options.kubeconfig))


if __name__ == "__main__":
    main()
