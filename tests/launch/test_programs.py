"""Real programs, started by `aioresolve exec` in the pods of a loopback cluster.

Each process is a pod because of its `$POD_UID`. Their libraries are in the extras `test` and `programs`.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import KubernetesServer, pod
from tests.cli.process import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has 127.0.0.2 without configuration"),
]

ADDRESSES = ("127.0.0.1", "127.0.0.2")
TIMEOUT = 110
"""Seconds that the programs have to import their libraries, connect, and end."""

JAX_PROGRAM = """
import os
import jax
jax.distributed.initialize(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
rank = jax.process_index()
mine = jax.numpy.full((jax.local_device_count(),), rank + 1.0)
total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(mine)
print("RESULT", rank, jax.process_count(), float(total[0]))
"""

TORCH_PROGRAM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print("RESULT", dist.get_rank(), dist.get_world_size(), value.item())
dist.destroy_process_group()
"""


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    """A cluster with two trainers, whose addresses are those of this machine."""
    pods = [
        pod(f"train-{number}", "ml", labels={"app": "train"}, ip=address)
        for number, address in enumerate(ADDRESSES)
    ]
    with KubernetesServer(pods).in_thread() as running:
        yield running


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((ADDRESSES[0], 0))
        port: int = listener.getsockname()[1]
    return port


def run_in_pods(server: ThreadedKubernetesServer, tmp_path: Path, *arguments: str) -> list[str]:
    """Run `aioresolve exec ARGUMENTS` in both pods, and return the lines `RESULT` of both, sorted."""
    kubeconfig = server.write_kubeconfig(tmp_path / "config", namespace="ml")
    port = str(free_port())
    command = [*COMMAND, "exec", "kubernetes", "-l", "app=train", "--count", "2", "--port", port, *arguments]
    with ExitStack() as stack:
        processes = []
        for number in range(2):
            env = environment(
                kubeconfig,
                POD_UID=server.pod(f"train-{number}", "ml")["metadata"]["uid"],
                JAX_PLATFORMS="cpu",
                OMP_NUM_THREADS="1",
                GLOO_SOCKET_IFNAME="lo",
            )
            process = subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            stack.callback(process.kill)
            processes.append(stack.enter_context(process))
        outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    lines = [line for output in outputs for line in output.splitlines()]
    return sorted(line for line in lines if line.startswith("RESULT"))


@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed (extra test)")
def test_jax_processes_find_each_other(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    lines = run_in_pods(server, tmp_path, "--for", "jax", "--", sys.executable, "-c", JAX_PROGRAM)
    assert lines == ["RESULT 0 2 3.0", "RESULT 1 2 3.0"]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed (extra programs)")
def test_torch_processes_find_each_other(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    lines = run_in_pods(server, tmp_path, "--for", "torch", "--", sys.executable, "-c", TORCH_PROGRAM)
    assert lines == ["RESULT 0 2 3.0", "RESULT 1 2 3.0"]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed (extra programs)")
def test_torchrun_nodes_find_each_other(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TORCH_PROGRAM)
    torchrun = ("--", sys.executable, "-m", "torch.distributed.run", str(program))
    lines = run_in_pods(server, tmp_path, "--for", "torchrun", "--processes-per-task", "1", *torchrun)
    assert lines == ["RESULT 0 2 3.0", "RESULT 1 2 3.0"]


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (Debian: openmpi-bin)")
def test_mpirun_reads_the_host_file(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    if "Open MPI" not in version:
        pytest.skip(f"mpirun is not that of Open MPI: {version.splitlines()[0]}")
    server.delete("train-1", "ml")  # mpirun would start the processes of another host over SSH
    env = environment(
        server.write_kubeconfig(tmp_path / "config", namespace="ml"),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_ALLOW_RUN_AS_ROOT="1",
        PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1",
    )
    arguments = ("exec", "kubernetes", "-l", "app=train", "--for", "mpi", "--slots", "3")
    # Without -np and a host file, mpirun starts one process for each core.
    program = ("--", "mpirun", "sh", "-c", "echo RESULT $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE")
    done = subprocess.run(
        [*COMMAND, *arguments, "--hostfile", str(tmp_path / "hosts"), *program],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["RESULT 0 3", "RESULT 1 3", "RESULT 2 3"]
