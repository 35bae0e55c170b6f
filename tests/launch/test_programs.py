"""Real programs, started by `aioresolve exec` in the pods of a loopback cluster.

Each process is a pod because of its `$POD_UID`. Their libraries are in the extras `test` and `programs`.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer, pod
from tests.cli.process import COMMAND, environment
from tests.programs import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has 127.0.0.2 without configuration"),
]

ADDRESSES = ("127.0.0.1", "127.0.0.2")
ELASTIC_JOB = {
    "PET_NNODES": "1:8",
    "PET_RDZV_BACKEND": "c10d",
    "PET_RDZV_ENDPOINT": "127.0.0.9:23456",
    "PET_STANDALONE": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "MASTER_ADDR": "127.0.0.9",
    "RANK": "5",
    "LOCAL_RANK": "5",
    "NODE_RANK": "5",
    "GROUP_RANK": "5",
}
"""What a pod of an elastic job has in its environment."""
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


LIGHTNING_PROGRAM = """
import torch
from lightning_fabric import Fabric
fabric = Fabric(accelerator="cpu", devices=1, num_nodes=2, strategy="ddp")
fabric.launch()
total = fabric.all_reduce(torch.tensor([fabric.global_rank + 1.0]), reduce_op="sum")
print("RESULT", fabric.global_rank, fabric.world_size, total.item())
"""

ACCELERATE_PROGRAM = """
import torch
from accelerate import Accelerator
one = Accelerator(cpu=True)
total = one.reduce(torch.tensor([one.process_index + 1.0]), "sum")
print("RESULT", one.process_index, one.num_processes, total.item())
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


def run_in_pods(
    server: ThreadedKubernetesServer, tmp_path: Path, *arguments: str, port: int | None = None
) -> list[str]:
    """Run `aioresolve exec ARGUMENTS` in both pods, and return the lines `RESULT` of both, sorted."""
    kubeconfig = server.write_kubeconfig(tmp_path / "config", namespace="ml")
    options = ("-l", "app=train", "--count", "2", "--port", str(port or free_port()))
    command = [*COMMAND, "exec", "kubernetes", *options, *arguments]
    with ExitStack() as stack:
        processes = []
        for number in range(2):
            env = environment(
                kubeconfig,
                POD_UID=server.pod(f"train-{number}", "ml")["metadata"]["uid"],
                JAX_PLATFORMS="cpu",
                OMP_NUM_THREADS="1",
                GLOO_SOCKET_IFNAME="lo",
                **ELASTIC_JOB,
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


@pytest.mark.parametrize(
    ("consumer", "library", "program"),
    [
        ("jax", "jax", JAX_PROGRAM),
        ("torch", "torch", TORCH_PROGRAM),
        ("torch", "lightning_fabric", LIGHTNING_PROGRAM),
    ],
    ids=["jax", "torch", "lightning"],
)
def test_processes_find_each_other(
    server: ThreadedKubernetesServer, tmp_path: Path, consumer: str, library: str, program: str
) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed (extras test and programs)")
    lines = run_in_pods(server, tmp_path, "--for", consumer, "--", sys.executable, "-c", program)
    assert lines == ["RESULT 0 2 3.0", "RESULT 1 2 3.0"]


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed (extra programs)")
def test_torchrun_nodes_find_each_other(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TORCH_PROGRAM)
    torchrun = ("--", sys.executable, "-m", "torch.distributed.run", str(program))
    lines = run_in_pods(server, tmp_path, "--for", "torchrun", "--processes-per-task", "1", *torchrun)
    assert lines == ["RESULT 0 2 3.0", "RESULT 1 2 3.0"]


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
@pytest.mark.parametrize(
    ("options", "processes"), [(("--cpu",), 2), (("--multi_gpu", "--num_processes", "2"), 4)]
)
def test_machines_of_accelerate_find_each_other(
    server: ThreadedKubernetesServer, tmp_path: Path, options: tuple[str, ...], processes: int
) -> None:
    (program := tmp_path / "train.py").write_text(ACCELERATE_PROGRAM)
    port = free_port()
    launcher = ("accelerate.commands.launch", "--main_process_port", str(port), *options, str(program))
    command = ("--for", "accelerate", "--", sys.executable, "-m", *launcher)
    lines = run_in_pods(server, tmp_path, *command, port=port)
    total = float(sum(range(processes + 1)))
    assert lines == [f"RESULT {rank} {processes} {total}" for rank in range(processes)]


def run_launcher(
    server: ThreadedKubernetesServer, tmp_path: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `aioresolve exec ARGUMENTS` with a host file; log in to other hosts by printing their names."""
    if not shutil.which(program := arguments[arguments.index("--") + 1]):
        pytest.skip(f"{program} is not installed (Debian: openmpi-bin, mpich)")
    (agent := tmp_path / "agent").write_text(
        '#!/bin/sh\nfor each; do echo "AGENT $each" >&2; done; sleep 1; kill $PPID\n'
    )
    agent.chmod(0o755)
    env = environment(
        server.write_kubeconfig(tmp_path / "config", namespace="ml"),
        OMPI_ALLOW_RUN_AS_ROOT="1",
        OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        PRTE_ALLOW_RUN_AS_ROOT="1",
        PRTE_ALLOW_RUN_AS_ROOT_CONFIRM="1",
        OMPI_MCA_plm_rsh_agent=str(agent),
        PRTE_MCA_plm_ssh_agent=str(agent),
        HYDRA_LAUNCHER_EXEC=str(agent),
        **variables,
    )
    hosts = ("-l", "app=train", "--hostfile", str(tmp_path / "hosts"))
    command = [*COMMAND, "exec", "kubernetes", *hosts, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT, check=False)


def test_mpirun_reads_the_host_file(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    server.delete("train-1", "ml")  # mpirun would start the processes of another host over SSH
    # Without -np and a host file, mpirun starts one process for each core.
    program = ("--", "mpirun", "sh", "-c", "echo RESULT $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE")
    done = run_launcher(server, tmp_path, "--for", "mpi", "--slots", "3", *program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["RESULT 0 3", "RESULT 1 3", "RESULT 2 3"]


@pytest.mark.parametrize("launcher", [("mpi", "mpirun"), ("mpich", "mpiexec.hydra")])
def test_launchers_log_in_to_whole_host_names(
    server: ThreadedKubernetesServer, tmp_path: Path, launcher: tuple[str, str]
) -> None:
    for name in ("train-0", "train-1"):
        found = server.pod(name, "ml")
        found["spec"] |= {"hostname": name, "subdomain": "trainers"}
        server.add(found)
    consumer, command = launcher
    other = tmp_path / "other"  # that of the pod, such as of the MPI operator
    other.write_text("elsewhere\n")
    inherited = {"OMPI_MCA_orte_default_hostfile": str(other), "HYDRA_HOST_FILE": str(other)}
    arguments = ("--address", "hostname", "--for", consumer, "--", command, "true")
    done = run_launcher(server, tmp_path, *arguments, **inherited)
    logins = [line for line in done.stderr.splitlines() if line.startswith("AGENT train-")]
    assert sorted(logins) == [f"AGENT train-{number}.trainers.ml.svc" for number in range(2)], done.stderr
