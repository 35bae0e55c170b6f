"""TensorFlow programs that run on the resolvers of `aioresolve.tensorflow`, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import KubernetesServer, pod
from tests.programs import free_ports, last_lines, start

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"


@contextmanager
def tensorflow_servers(cluster: dict[str, list[str]]) -> Iterator[None]:
    """Run a `tf.distribute.Server` for each task of the cluster."""
    serve = (
        "import sys, json, tensorflow as tf; job, index = sys.argv[2], int(sys.argv[3]);"
        "tf.distribute.Server(json.loads(sys.argv[1]), job_name=job, task_index=index, protocol='grpc');"
        "print('serving', flush=True); sys.stdin.read()"
    )
    with ExitStack() as stack:
        servers = []
        for job, addresses in cluster.items():
            for index in range(len(addresses)):
                server = subprocess.Popen(
                    [sys.executable, "-c", serve, json.dumps(cluster), job, str(index)],
                    env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                stack.enter_context(server)
                stack.callback(server.kill)
                servers.append(server)
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "serving\n"
        yield


@pytest.mark.parametrize(("number", "loss"), [(1, 4.0), (2, 2.5)])
def test_workers_on_kubernetes_train_together(number: int, loss: float, tmp_path: Path) -> None:
    ports = free_ports(number)
    pods = [
        pod(
            f"worker-{index}",
            ip="127.0.0.1",
            labels={"job-name": f"worker-cluster-{'ab'[index]}"},
            annotations={"port": str(port)},
        )
        for index, port in enumerate(ports)
    ]
    with KubernetesServer(pods).in_thread() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "config")
        port = ports[0] if number == 1 else 0
        processes = [
            start(PROGRAMS / "multi_worker.py", index, port, environment={"KUBECONFIG": str(kubeconfig)})
            for index in range(number)
        ]
        lines = last_lines(processes)
    # The loss is (2 - 0)^2 on the first worker, and (2 - 1)^2 on the second.
    assert lines == [f"replicas {number} loss {loss}"] * number


@pytest.mark.parametrize("union", ["ours", "theirs"])
def test_parameter_servers_and_workers_of_a_union_train(union: str) -> None:
    first, second, third = (f"127.0.0.1:{port}" for port in free_ports(3))
    cluster = {"worker": [first, second], "ps": [third]}
    with tensorflow_servers(cluster):
        program = start(
            PROGRAMS / "parameter_server.py", ",".join(cluster["worker"]), ",".join(cluster["ps"]), union
        )
        [line] = last_lines([program])
    assert line == "device /job:ps/replica:0/task:0/device:CPU:0 total 2.0"


def test_operations_run_on_every_task_after_connecting_to_the_cluster() -> None:
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    with tensorflow_servers(cluster):
        [line] = last_lines([start(PROGRAMS / "connect.py", ",".join(cluster["worker"]))])
    assert line == "task 1 42"
