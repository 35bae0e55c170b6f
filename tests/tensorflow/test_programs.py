"""TensorFlow programs that run on the resolvers of `aioresolve.tensorflow`, in processes of their own."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aioresolve.testing import KubernetesServer, pod
from tests.programs import free_ports, last_lines, start

from .serving import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "programs"


@contextmanager
def tensorflow_servers(cluster: dict[str, list[str]]) -> Iterator[None]:
    """Run a `tf.distribute.Server` for each task of the cluster."""
    with ExitStack() as stack:
        servers = [Server(cluster, job, index) for job in cluster for index in range(len(cluster[job]))]
        for server in servers:
            stack.callback(server.kill)
        for server in servers:
            server.wait()
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
