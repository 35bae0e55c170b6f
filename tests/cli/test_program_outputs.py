"""`-o` for programs: the variables and host files of `aioresolve.launch`, with `--task` and `--this-task`."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from aioresolve import ClusterSpec, launch
from aioresolve.testing import GoogleServer, ThreadedKubernetesServer, tpu_node

from .process import Result, Run, environment

TRAIN = ("-l", "app=train")
KUBERNETES = ("kubernetes", *TRAIN)


def uid(server: ThreadedKubernetesServer, name: str) -> str:
    found: str = server.pod(name, "ml")["metadata"]["uid"]
    return found


def variables(text: str) -> dict[str, str]:
    """Return the variables that a shell reads from such lines."""
    script = f"env -i sh -c {shlex.quote(f'set -a; {text} env -0')}"
    shown = subprocess.run(script, shell=True, capture_output=True, text=True, check=True).stdout
    found = dict(line.split("=", 1) for line in shown.split("\0") if line)
    return {name: value for name, value in found.items() if name not in ("PWD", "SHLVL", "_", "OLDPWD")}


@pytest.mark.parametrize("output", ["env", "jax", "tensorflow"])
def test_a_shell_reads_the_variables_of_the_task(run: Run, env: dict[str, str], output: str) -> None:
    result = run((*KUBERNETES, "-o", output, "--task", "worker:2"), env)
    assert (result.code, result.stderr) == (0, "")
    spec = ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.10:8470"]})
    assert variables(result.stdout.replace("\n", "; ")) == launch.environment(
        output, spec, spec.task("worker", 2)
    )


@pytest.mark.parametrize("command", [KUBERNETES, ("wait", *KUBERNETES)])
def test_this_task_is_that_of_the_process(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer, command: tuple[str, ...]
) -> None:
    env |= {"POD_UID": uid(server, "train-2")}
    assert "JAX_PROCESS_ID=1\n" in run((*command, "-o", "jax", "--this-task"), env).stdout
    config = json.loads(run((*command, "-o", "tf-config", "--this-task"), env).stdout)
    assert config["task"] == {"type": "worker", "index": 1}
    unknown = run((*command, "-o", "jax", "--this-task"), env | {"POD_UID": "another"})
    assert (unknown.code, unknown.stdout, unknown.stderr.count("\n")) == (1, "", 1)
    assert "the uid 'another' of $POD_UID: no member" in unknown.stderr
    assert "Set JOB and INDEX of --task JOB:INDEX, or let the pod's manifest set $POD_UID" in unknown.stderr


def test_options_change_the_output(run: Run, env: dict[str, str]) -> None:
    def output(*arguments: str) -> str:
        return run((*KUBERNETES, "-o", *arguments), env).stdout

    assert "PET_NPROC_PER_NODE=8\n" in output("torchrun", "--task", "worker:0", "--processes-per-task", "8")
    assert "JAX_COORDINATOR_ADDRESS=10.0.0.1:1234\n" in output("jax", "--task", "worker:0", "--port", "1234")
    assert "RAY_ADDRESS=10.0.0.1:6379\n" in output("ray", "--task", "worker:1")
    assert "MEGASCALE_SLICE_ID=2\n" in output("megascale", "--task", "worker:2", "--slices", "3")
    assert "MEGASCALE_NUM_SLICES=1\n" in output("megascale", "--task", "worker:2")
    hosts = ("10.0.0.1", "10.0.0.2", "10.0.0.10")
    assert output("hostfile", "--slots", "8") == "".join(f"{host} slots=8\n" for host in hosts)
    assert output("host:slots") == "".join(f"{host}:1\n" for host in hosts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "jax"), "-o jax requires a task; pass --this-task, or --task JOB:INDEX"),
        (("-o", "jax", "--this-task", "--task", "worker:0"), "--task and --this-task exclude each other"),
        (("-o", "hostfile", "--this-task"), "--this-task requires -o tf-config"),
        (
            ("-o", "jax", "--this-task", "--port", "1", "--slots", "2"),
            "--slots requires -o hostfile or host:slots; add it",
        ),
        (("--slices", "2"), "--slices requires -o megascale; add it, or leave out --slices"),
        (("-o", "hostfile", "--address", "pod_ipv6"), "-o hostfile cannot express IPv6 addresses"),
        (("-w", "-o", "jax", "--this-task"), "-o jax cannot show changes; pass -o table"),
        (
            ("-l", "ps=app=ps", "-o", "jax", "--task", "worker:0"),
            "the processes of jax are all alike, but the cluster has the jobs worker, ps",
        ),
    ],
)
def test_options_that_contradict_the_output_are_usage_errors(
    run: Run, env: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    result = run((*KUBERNETES, *arguments), env)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("command", [("tpu",), ("wait", "tpu")])
def test_megascale_has_the_slices_of_the_tpus_and_the_task_at_an_address_of_this_machine(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    nodes = [
        tpu_node("slice-0", ips=["10.0.0.1", "10.0.0.2"]),
        tpu_node("slice-1", ips=["127.0.0.1", "10.0.0.3"]),
    ]
    where = ("--zone", "us-central2-b", "--project", "demo-project")
    with GoogleServer(nodes).in_thread() as google:
        env = environment(tmp_path / "none", **google.environ())
        options = ("-o", "megascale", "--this-task", "--port", "8080")
        result = run((*command, "slice-0", "slice-1", *where, *options), env)
        google.add(tpu_node("slice-1", ips=["127.0.0.1"]))
        unequal = run((*command, "slice-0", "slice-1", *where, *options), env)
    assert result.stderr == ""
    assert unequal == Result(2, "", "error: the slices differ in size. Name TPUs of one size.\n")
    assert (
        variables(result.stdout.replace("\n", "; ")).items()
        >= {
            "AIORESOLVE_INDEX": "2",
            "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": "1",
            "MEGASCALE_PORT": "8080",
        }.items()
    )
