"""The programs of examples/ run on loopback, as processes in pods of an API server."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aioresolve import ClusterSpec, launch
from aioresolve.testing import GoogleServer, KubernetesServer, ThreadedKubernetesServer, instance, pod
from tests.programs import free_port, free_ports, last_lines, start, start_command

from .test_manifests import EXAMPLES, command_lines, documents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def needs(library: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(library) is None
    return pytest.mark.skipif(is_missing, reason=f"{library} is not installed")


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder of the service account."""
    return tmp_path / "serviceaccount"


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    """The API server of the cluster in which the programs run, in the namespace `ml`."""
    with KubernetesServer(tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        yield server


def downward(found: dict[str, Any]) -> dict[str, str]:
    """Return the variables that a manifest sets from the fields of the pod."""
    metadata = found["metadata"]
    return {"POD_NAME": metadata["name"], "POD_UID": metadata["uid"]}


@needs("tensorflow")
def test_tensorflow_worker_trains(server: ThreadedKubernetesServer, account: Path, tmp_path: Path) -> None:
    labels = {"batch.kubernetes.io/job-name": "tensorflow-multiworker"}
    server.add(pod("tensorflow-multiworker-0-x", "ml", labels=labels, index=0, ip="127.0.0.1"))
    environment = {
        **server.in_cluster(account, namespace="ml"),
        **downward(server.pod("tensorflow-multiworker-0-x", "ml")),
        "NUM_WORKERS": "1",
    }
    program = tmp_path / "train.py"
    text = (EXAMPLES / "tensorflow-multiworker" / "train.py").read_text()
    assert text.count("    2222,\n") == 1
    program.write_text(text.replace("    2222,\n", f"    {free_port()},\n"))  # it may be in use here
    lines = last_lines([start(program, service_account=account, environment=environment)])
    assert lines == ["worker 0 of 1 improved True"]


SRUN = """\
#!/bin/sh
# Starts the tasks of a step as srun does on one node: the command, with the variables of each task. If one
# fails, it kills all.
export SLURM_STEP_NODELIST=localhost SLURMD_NODENAME=localhost
export SLURM_STEP_TASKS_PER_NODE=2 SLURM_STEP_NUM_TASKS=2
for rank in 0 1; do
    { SLURM_PROCID=$rank SLURM_LOCALID=$rank "$2" "$3" >"$OUTPUT/$rank" || kill 0; } &
done
wait
"""


@needs("tensorflow")
def test_tensorflow_workers_of_a_slurm_step_train(tmp_path: Path) -> None:
    folder = EXAMPLES / "tensorflow-slurm"
    script = (folder / "train.sbatch").read_text()
    assert "\nsrun --kill-on-bad-exit=1 python train.py\n" in script
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    port = free_ports(2)[0]
    environment = {
        "SLURM_JOB_ID": str(port - 20000),
        "OUTPUT": str(tmp_path),
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    last_lines([start_command(["sh", "-c", f"cd {folder} && sh train.sbatch && echo ended"], environment)])
    for rank in range(2):
        line = (tmp_path / str(rank)).read_text().splitlines()[-1]
        assert line == f"worker {rank} of 2 at localhost:{port + rank} improved True"


@needs("tensorflow")
def test_tensorflow_workers_with_tf_config_train() -> None:
    spec = ClusterSpec({"worker": [f"localhost:{port}" for port in free_ports(2)]})
    program = EXAMPLES / "tensorflow-tf-config" / "train.py"
    processes = [
        start(program, environment=launch.environment("tensorflow", spec, task)) for task in spec.tasks
    ]
    assert last_lines(processes) == [
        f"worker {task.rank} of 2 at {task.address} improved True" for task in spec.tasks
    ]


def test_startup_script_of_an_instance_group_starts_torchrun(tmp_path: Path) -> None:
    commands = {
        "aioresolve": f'exec {sys.executable} -m aioresolve "$@"',
        "torchrun": 'echo "$PET_NNODES $PET_NODE_RANK $PET_MASTER_ADDR $PET_MASTER_PORT" "$@"',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    instances = [instance("trainers-0", ip="10.0.0.1"), instance("trainers-1", ip="127.0.0.1")]
    with GoogleServer(instances).in_thread() as google:
        google.instance_groups["trainers"] = ["trainers-0", "trainers-1"]
        group = "projects/demo-project/zones/us-central2-b/instanceGroupManagers/trainers"
        google.metadata["instance/attributes/created-by"] = group
        environment = {**google.environ(), "PATH": f"{tmp_path}:/usr/bin:/bin"}
        script = EXAMPLES / "torchrun-instance-group" / "start.sh"
        [line] = last_lines([start_command(["sh", str(script)], environment)])
    assert line == "2 1 10.0.0.1 29500 /opt/train.py"


@needs("jax")
def test_jax_processes_of_two_jobs_are_connected(server: ThreadedKubernetesServer, account: Path) -> None:
    variables = server.in_cluster(account, namespace="ml")
    port = str(free_port())
    jobset = documents(EXAMPLES / "jax-jobset" / "jobset.yaml")[-1]
    jobset["spec"]["replicatedJobs"][0]["template"]["spec"] |= {"completions": 1, "parallelism": 1}
    server.add_controllers({**jobset, "metadata": {"name": "jax-example", "namespace": "ml"}})
    environments = []
    for job in range(2):
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "jax-example",
            "jobset.sigs.k8s.io/replicatedjob-name": "workers",
            "jobset.sigs.k8s.io/job-index": str(job),
        }
        name = f"jax-example-workers-{job}-0-x"
        server.add(pod(name, "ml", labels=labels, index=0, ip=f"127.0.0.{job + 1}"))
        own = downward(server.pod(name, "ml"))
        environments.append(
            {
                **variables,
                **own,
                "JAX_COORDINATOR_PORT": port,
                "JAX_PLATFORMS": "cpu",
            }
        )
    program = EXAMPLES / "jax-jobset" / "train.py"
    processes = [start(program, service_account=account, environment=each) for each in environments]
    assert last_lines(processes) == [f"process {rank} of 2 sum 1" for rank in range(2)]


@needs("torch")
def test_torchrun_nodes_are_connected() -> None:
    spec = ClusterSpec({"worker": [f"127.0.0.1:{free_port()}", f"127.0.0.2:{free_port()}"]})
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        str(EXAMPLES / "torchrun-statefulset" / "train.py"),
    ]
    processes = [
        start_command(command, {**launch.environment("torchrun", spec, task), "OMP_NUM_THREADS": "1"})
        for task in spec.tasks
    ]
    assert last_lines(processes) == [f"rank {rank} of 2 sum 1.0" for rank in range(2)]


def test_init_container_waits_for_the_workers(server: ThreadedKubernetesServer, tmp_path: Path) -> None:
    [arguments] = command_lines(EXAMPLES / "init-container" / "job.yaml")
    for index in range(3):
        labels = {"app": "init-container-workers"}
        server.add(pod(f"init-container-workers-{index}", "ml", labels=labels, ip=f"10.0.0.{index + 1}"))
    kubeconfig = server.write_kubeconfig(tmp_path / "config", namespace="ml")
    command = [sys.executable, "-m", "aioresolve", *arguments]
    [line] = last_lines([start_command(command, {"KUBECONFIG": str(kubeconfig)})])
    assert line.split()[:4] == ["worker", "2", "init-container-workers-2", "10.0.0.3:8470"]
