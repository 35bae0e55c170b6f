"""The cluster that is asked: pods with labels in a KubernetesServer, in a process of its own.

It speaks TLS and wants a bearer token. A question asked before is answered from memory, so that what is timed
is the client.
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
"""Bytes of a pod's JSON: what a training pod with a dozen variables and its managedFields comes to."""

SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
"""What Kubernetes makes random names of: k8s.io/apimachinery/pkg/util/rand."""


def selectors_of(count: int) -> list[str]:
    """Return the selectors of the first `count` groups of pods."""
    return [f"app=trainer-{group}" for group in range(count)]


@contextmanager
def running_server(groups: int, pods: int, kubeconfig: Path, *, delay: float = 0.0) -> Iterator[None]:
    """Run a server of `groups` times `pods` pods inside the block, and write a kubeconfig for it.

    Each of its answers comes `delay` seconds late.
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


def made_pods(groups: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the pods of all groups, named as an Indexed Job names them.

    They are on their hosts' network, where a pod's address is its node's: tensorflow's resolver answers with
    nodes' addresses, and like this they are everybody's.
    """
    from aioresolve.testing import pod

    chance = random.Random(count)
    for group in range(groups):
        for number in range(count):
            ip = f"10.{group}.{number >> 8}.{number & 255}"
            yield pod(
                f"trainer-{group}-{number}-{''.join(chance.choices(SUFFIX, k=5))}",
                labels={"app": f"trainer-{group}"},
                index=number,
                ip=ip,
                host_ip=ip,
                node=f"gke-training-pool-{group}-3f9c2a71-{''.join(chance.choices(SUFFIX, k=4))}",
                size=POD_SIZE,
            )


async def serve(groups: int, pods: int, delay: float, kubeconfig: Path) -> None:
    """Serve until stdin is closed."""
    import yaml

    from aioresolve.testing import Delay, KubernetesServer

    tokens = {secrets.token_urlsafe(32): "benchmark"}
    async with KubernetesServer(made_pods(groups, pods), tls=True, tokens=tokens) as server:
        # As YAML, which people have, and not as JSON.
        await asyncio.to_thread(kubeconfig.write_text, yaml.safe_dump(server.kubeconfig()))
        if delay:
            server.inject(Delay(delay), times=None)
        gc.freeze()  # or the collector walks through every pod, now and then, while a client is timed
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
