"""Runs the workers of `probe.py`: loopback workers, dead workers, and TensorFlow servers."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aioresolve.testing import tpu_worker_process

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["dead_workers", "loopback_workers", "tensorflow_servers"]

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def loopback_workers(count: int) -> Iterator[list[str]]:
    """Run `count` workers with eight TPUs each in one process; yield their addresses."""
    with tpu_worker_process(devices=8, ports=count) as addresses:
        yield addresses


@contextmanager
def dead_workers(count: int) -> Iterator[list[str]]:
    """Yield `count` addresses at which the kernel accepts connections and no process responds."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield [f"127.0.0.1:{each.getsockname()[1]}" for each in listening]


@contextmanager
def tensorflow_servers(count: int) -> Iterator[list[str]]:
    """Run `count` TensorFlow servers of one cluster in one process; yield their addresses."""
    with ExitStack() as stack:
        free = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in free]
    command = [sys.executable, "-m", "benchmarks.probe_servers", *addresses]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            if not process.stdout.readline():
                raise RuntimeError(f"the TensorFlow servers did not start: exit code {process.wait()}")
            yield addresses
        finally:
            process.kill()


def main(addresses: list[str]) -> None:
    """Serve every task of one cluster until stdin is closed."""
    import tensorflow as tf

    cluster = tf.train.ClusterSpec({"worker": addresses})
    servers = [
        tf.distribute.Server(cluster, job_name="worker", task_index=index, protocol="grpc")
        for index in range(len(addresses))
    ]
    print(len(servers), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])
