"""`aioresolve exec`: starts a program once its cluster is complete, as one of its tasks."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import psutil
import pytest

from aioresolve import ClusterSpec, ClusterState, SimpleClusterResolver
from aioresolve.cli import main
from aioresolve.cli.commands.exec import _Execution, _Launch
from aioresolve.cli.requests import HereRequest
from aioresolve.errors import DeadlineExceededError
from aioresolve.resolver.wait import WaitCondition
from aioresolve.spec import Observation
from aioresolve.testing import Answer, GoogleServer, pod, tpu_node, tpu_worker_process

from .process import COMMAND, TIMEOUT, Result, Running, cluster, environment, run, run_as_first_process
from .test_completion import candidates
from .test_program_outputs import uid

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence

    from aioresolve.testing import RequestRecord, ThreadedKubernetesServer

pytest.importorskip("pty", reason="this system has no pseudo-terminals, and thus no POSIX processes")

from aioresolve.cli.program import FORWARDED, ChildProgram, Program, Supervisor, UnstoppableProgramError

EXEC = ("exec", "kubernetes", "-l", "app=train")
REPORT = ("starting sh as /job:worker/task:1 at 10.0.0.2:8470, rank 1",)


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def env(server: ThreadedKubernetesServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a process in the pod `train-2`, which is task 1."""
    kubeconfig = server.write_kubeconfig(tmp_path / "config", namespace="ml")
    return environment(kubeconfig, POD_UID=uid(server, "train-2"))


def trainer(number: int, **fields: Any) -> dict[str, Any]:
    return pod(f"train-{number}", "ml", labels={"app": "train"}, **{"ip": f"10.0.0.{number}", **fields})


def python(code: str) -> tuple[str, ...]:
    return "--", sys.executable, "-c", code


def shell(code: str) -> tuple[str, ...]:
    return "--", "sh", "-c", code


TF_CONFIG = (
    '{"cluster":{"worker":["10.0.0.1:8470","10.0.0.2:8470","10.0.0.10:8470"],"ps":["[fd00::7]:8470"]},'
    '"task":{"type":"worker","index":1},"rpc_layer":"grpc"}'
)


# The program


@pytest.mark.slow
def test_program_has_the_variables_of_its_task_and_those_of_its_parent(env: dict[str, str]) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    result = run((*EXEC, "--count", "3", "--for", "jax", *python(script)), env)
    assert result.code == 0
    found = json.loads(result.stdout)
    assert found.items() >= env.items()
    new = {name: found[name] for name in found.keys() - env.keys() - {"LC_CTYPE"}}
    assert new == {
        "AIORESOLVE_JOB": "worker",
        "AIORESOLVE_INDEX": "1",
        "AIORESOLVE_ADDRESS": "10.0.0.2:8470",
        "AIORESOLVE_RANK": "1",
        "AIORESOLVE_NUM_TASKS": "3",
        "AIORESOLVE_LEADER": "10.0.0.1:8470",
        "AIORESOLVE_LEADER_HOST": "10.0.0.1",
        "AIORESOLVE_LEADER_PORT": "8470",
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8470",
        "JAX_NUM_PROCESSES": "3",
        "JAX_PROCESS_ID": "1",
    }


@pytest.mark.slow
def test_program_replaces_the_process(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    with Running((*EXEC, *shell("echo $$ $0 $1; exec sleep 60"), "name", "--count"), env) as running:
        assert running.line() == f"{running.process.pid} name --count"
        assert running.stderr_line(REPORT[0]) == REPORT[0]
        server.until(lambda: server.connections == 0, TIMEOUT)
        assert running.wait_for_exit(signal.SIGTERM).code == -signal.SIGTERM


@pytest.mark.slow
def test_exit_code_is_that_of_the_program(env: dict[str, str]) -> None:
    assert run((*EXEC, "-q", *shell("exit 7")), env) == Result(7, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("restart", [(), ("--restart-on-change",)])
def test_program_inherits_no_file_descriptors_and_no_ignored_signals(
    env: dict[str, str], restart: tuple[str, ...]
) -> None:
    script = "grep SigIgn /proc/$$/status; ls /proc/$$/fd; true"
    plain = run_plainly(script, env)
    result = run((*EXEC, *restart, *shell(script)), env)
    assert "0000000000000000" in plain
    # posix_spawn of glibc ignores 32 and 33 in the child, the signals that it reserves for itself.
    assert result.stdout.replace("0000000180000000", "0000000000000000") == plain


def run_plainly(script: str, env: Mapping[str, str]) -> str:
    return subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_it_waits_until_the_cluster_is_complete(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*EXEC, "--count", "4", *shell("echo $AIORESOLVE_NUM_TASKS")), env) as running:
        assert running.stderr_line("3 of 4") == "waiting: job 'worker': 3 tasks, 3 of 4 tasks in total"
        server.add(trainer(20))
        assert running.line() == "4"
        assert running.wait_for_exit().code == 0


@pytest.mark.slow
def test_signal_ends_the_wait(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    with Running((*EXEC, "--count", "4", *shell("echo started")), env) as running:
        assert running.stderr_line("3 of 4").startswith("waiting: ")
        assert running.wait_for_exit(signal.SIGTERM) == Result(143, "", "")


@pytest.mark.slow
def test_deadline_exits_with_3_and_the_reasons(env: dict[str, str]) -> None:
    result = run((*EXEC, "--count", "4", "--timeout", "500ms", *shell("echo started")), env)
    assert (result.code, result.stdout) == (3, "")
    assert "error: the cluster was not complete within 500ms." in result.stderr
    assert "worker   3       4" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "script", "printed"),
    [
        (("--for", "torchrun", "--processes-per-task", "8"), "$PET_NODE_RANK $PET_NPROC_PER_NODE", "1 8"),
        (("--for", "torch", "--port", "29500"), "$RANK $MASTER_ADDR:$MASTER_PORT", "1 10.0.0.1:29500"),
        (("--for", "ray"), "$RAY_ADDRESS", "10.0.0.1:6379"),
        (("--for", "megascale", "--slices", "3"), "$MEGASCALE_SLICE_ID/$MEGASCALE_NUM_SLICES", "1/3"),
        (("--for", "vllm", "--task", "worker:2"), "$LWS_WORKER_INDEX $AIORESOLVE_RANK", "2 2"),
        (
            ("-l", "ps=app=ps", "--allow-unready", "--for", "tensorflow", "--rpc-layer", "grpc"),
            '"$TF_CONFIG"',
            TF_CONFIG,
        ),
    ],
)
def test_each_kind_of_program_has_its_variables(
    env: dict[str, str], options: tuple[str, ...], script: str, printed: str
) -> None:
    result = run((*EXEC, *options, "-q", *shell(f"echo {script}")), env)
    assert result == Result(0, f"{printed}\n", "")


@pytest.mark.slow
def test_program_inherits_no_variables_that_it_would_read_instead(env: dict[str, str]) -> None:
    env |= {"RAY_ADDRESS": "other:6379", "MEGASCALE_PORT": "1", "AIORESOLVE_COUNT": "3"}
    script = "echo ${RAY_ADDRESS-none} ${MEGASCALE_PORT-none} $AIORESOLVE_COUNT"
    for consumer, printed in (("ray", "none 1 3"), ("megascale", "other:6379 none 3")):
        result = run((*EXEC, "--for", consumer, "--task", "worker:0", "-q", *shell(script)), env)
        assert result == Result(0, f"{printed}\n", "")


# Host files


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consumer", "separator"),
    [("mpi", " slots="), ("deepspeed", " slots="), ("horovod", " slots="), ("mpich", ":")],
)
def test_launcher_gets_a_host_file_and_is_not_a_task(
    env: dict[str, str], consumer: str, separator: str
) -> None:
    del env["POD_UID"]
    env["AIORESOLVE_RANK"] = "7"  # of an outer program that is a task
    values = "$AIORESOLVE_NUM_TASKS $AIORESOLVE_LEADER_HOST ${AIORESOLVE_RANK-none}"
    script = f"echo $AIORESOLVE_HOSTFILE {values}; cat $AIORESOLVE_HOSTFILE"
    result = run((*EXEC, "--for", consumer, "--slots", "4", *shell(script)), env)
    first, *lines = result.stdout.splitlines()
    path, *others = first.split()
    try:
        assert others == ["3", "10.0.0.1", "none"]
        assert lines == [f"10.0.0.{number}{separator}4" for number in (1, 2, 10)]
        assert Path(path).is_file()
        assert result.stderr == "starting sh with a host file for 3 tasks\n"
    finally:
        Path(path).unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("consumer", "names", "keeps_domains"),
    [
        ("mpi", ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"), "true true"),
        ("mpich", ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE"), ""),
    ],
)
def test_host_file_is_the_default_of_mpi(
    env: dict[str, str], tmp_path: Path, consumer: str, names: tuple[str, str], keeps_domains: str
) -> None:
    path = tmp_path / "hosts"
    domains = "$OMPI_MCA_orte_keep_fqdn_hostnames $PRTE_MCA_prte_keep_fqdn_hostnames"
    script = f"echo ${names[0]} ${names[1]} {domains}"
    inherited = dict.fromkeys(names, "/etc/mpi/hostfile")  # of the MPI operator
    result = run((*EXEC, "--for", consumer, "--hostfile", str(path), "-q", *shell(script)), env | inherited)
    assert result == Result(0, f"{path} {path} {keeps_domains}".rstrip() + "\n", "")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_host_file_that_cannot_be_written_is_one_error(env: dict[str, str]) -> None:
    result = run((*EXEC, "--for", "mpi", "--hostfile", "/dev/full", *shell("echo started")), env)
    assert result == Result(1, "", "error: cannot write the host file /dev/full: No space left on device\n")


def temporary_folder(folder: Path) -> Path:
    (temporary := folder / "temporary").mkdir()
    return temporary


@pytest.mark.slow
def test_program_that_cannot_be_executed_leaves_no_temporary_host_file(
    env: dict[str, str], not_executable: Path, tmp_path: Path
) -> None:
    not_executable.write_text("#!/no/such/interpreter\n")
    not_executable.chmod(0o755)
    folder = temporary_folder(tmp_path)
    result = run((*EXEC, "--for", "mpi", "-q", "--", str(not_executable)), {**env, "TMPDIR": str(folder)})
    assert result.code == 126
    assert list(folder.iterdir()) == []


INTERRUPTED_EXEC = """
import signal, sys
from pathlib import Path
from aioresolve.cli import main, program

number = signal.Signals[sys.argv.pop(1)]

def interrupt(path, arguments, environ):
    assert Path(environ["AIORESOLVE_HOSTFILE"]).read_text()
    signal.raise_signal(number)

program.Program = interrupt
sys.exit(main())
"""

FAILING_EXEC = """
import errno, sys
from pathlib import Path
from aioresolve.cli import main

def fail(path, text):
    raise OSError(errno.ENOSPC, "No space left on device")

Path.write_text = fail
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ((INTERRUPTED_EXEC, "SIGTERM"), 143),
        ((INTERRUPTED_EXEC, "SIGINT"), 130),
        ((INTERRUPTED_EXEC, "SIGHUP"), 129),
        ((INTERRUPTED_EXEC, "SIGQUIT"), 131),
        ((FAILING_EXEC,), 1),
    ],
    ids=["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "full disk"],
)
def test_temporary_host_file_is_removed_if_the_program_is_not_started(
    env: dict[str, str], tmp_path: Path, script: tuple[str, ...], code: int
) -> None:
    folder = temporary_folder(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", *script, *EXEC, "--for", "mpi", "-q", *shell("echo started")],
        env={**env, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_program_that_cannot_have_the_cluster_is_not_reported_as_started(env: dict[str, str]) -> None:
    result = run((*EXEC, "--for", "megascale", "--slices", "2", *shell("echo started")), env)
    assert result.code == 2
    assert result.stderr.startswith("error: 3 tasks cannot be divided into 2 slices of one size. ")


# Errors


@pytest.fixture
def not_executable(tmp_path: Path) -> Path:
    path = tmp_path / "train"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    return path


def error_of(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Run the command, which ends before it sends a request; return its exit code and the one error."""
    code = main(arguments)
    written = capsys.readouterr()
    assert written.out == ""
    return code, written.err


def test_missing_command_exits_with_127_before_anything_is_waited_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert error_of((*EXEC, "--", "no-such-program"), capsys) == (
        127,
        "error: the command 'no-such-program' does not exist in $PATH\n",
    )
    path = str(tmp_path / "train")
    assert error_of((*EXEC, "--", path), capsys) == (127, f"error: the command {path!r} does not exist\n")
    assert error_of((*EXEC, "--", ""), capsys)[0] == 127


def test_command_that_is_not_executable_exits_with_126_before_anything_is_waited_for(
    capsys: pytest.CaptureFixture[str], not_executable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = 126, f"error: {not_executable} is not executable\n"
    assert error_of((*EXEC, "--", str(not_executable)), capsys) == expected
    folder = not_executable.parent
    assert error_of((*EXEC, "--", str(folder)), capsys) == (126, f"error: {folder} is a directory\n")
    monkeypatch.setenv("PATH", f"/nowhere:{folder}:{os.environ['PATH']}")
    assert error_of((*EXEC, "--", "train"), capsys) == expected


@pytest.mark.slow
@pytest.mark.parametrize("restart", [(), ("--restart-on-change",)])
def test_file_that_the_system_cannot_execute_exits_with_126(
    env: dict[str, str], not_executable: Path, restart: tuple[str, ...]
) -> None:
    not_executable.write_text("#!/no/such/interpreter\n")
    not_executable.chmod(0o755)
    result = run((*EXEC, "-q", *restart, "--", str(not_executable)), env)
    assert result == Result(
        126, "", f"error: {not_executable} cannot be executed: No such file or directory\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (EXEC, "no command was passed; write it after --, such as: -- python train.py"),
        ((*EXEC, "--"), "no command was passed"),
        (("exec", "kubernetes", "--", "true"), "no pods are selected"),
        ((*EXEC, "--for", "mxnet", "--", "true"), "'mxnet' is not one of 'env', 'jax'"),
        ((*EXEC, "--slots", "2", "--", "true"), "--slots requires --for mpi or deepspeed or horovod"),
        ((*EXEC, "--for", "jax", "--hostfile", "x", "--", "true"), "--hostfile requires --for mpi"),
        (
            (*EXEC, "--for", "mpi", "--hostfile", "/no/folder/x", "--", "true"),
            "--hostfile /no/folder/x: the folder does not exist",
        ),
        ((*EXEC, "--for", "mpi", "--task", "worker:0", "--", "true"), "leave out --task"),
        (
            (*EXEC, "--for", "mpi", "--address", "pod_ipv6", "--", "true"),
            "--for mpi cannot express IPv6 addresses; pass --address pod_ipv4, or hostname",
        ),
        ((*EXEC, "--task", "ps:0", "--", "true"), "add -l ps=SELECTOR"),
        ((*EXEC, "--jobs", "ps=1", "--", "true"), "add -l ps=SELECTOR"),
        (("exec", "tpu", "a", "--port", "1", "--", "true"), "--port requires --for jax"),
        (("exec", "tpu", "--jobs", "ps=1", "--", "true"), "the job of the workers is 'worker'"),
    ],
)
def test_wrong_usage_exits_with_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, error = error_of(arguments, capsys)
    assert code == 2
    assert message in error


@pytest.mark.parametrize("consumer", ["jax", "torch", "torchrun", "megascale"])
def test_two_jobs_for_equal_processes_exit_with_2_before_anything_is_waited_for(
    capsys: pytest.CaptureFixture[str], consumer: str
) -> None:
    code, error = error_of((*EXEC, "-l", "ps=app=ps", "--for", consumer, "--", "true"), capsys)
    assert code == 2
    assert error.startswith(f"error: the processes of {consumer} are all alike, but the cluster has the jobs")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"POD_UID": "gone"}, "the uid 'gone' of $POD_UID: no member. Set JOB and INDEX of --task JOB:INDEX"),
        (
            {"POD_UID": "", "POD_NAME": "train-1", "POD_NAMESPACE": "default"},
            "the pod name 'train-1' of $POD_NAME in namespace 'default': no member",
        ),
        ({"JOB_COMPLETION_INDEX": "7"}, "$JOB_COMPLETION_INDEX is '7', but this process was identified as"),
    ],
)
def test_process_that_is_not_known_to_be_a_task_exits_with_1(
    env: dict[str, str], variables: dict[str, str], message: str
) -> None:
    result = run((*EXEC, *shell("echo started")), env | variables)
    assert (result.code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert message in result.stderr


@pytest.mark.slow
def test_two_members_at_the_address_of_this_machine_exit_with_1(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.add(*(trainer(number, ip="127.0.0.1") for number in (1, 2)))
    result = run((*EXEC, *shell("echo started")), {**env, "POD_UID": ""})
    assert (result.code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "the addresses of this machine: 2 members" in result.stderr


@pytest.mark.slow
def test_missing_index_exits_with_an_error(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    server.delete("train-1", "ml")
    server.add(trainer(0, index=0), trainer(2, index=2, ip="10.0.0.2"))
    server.delete("train-10", "ml")
    result = run((*EXEC, "--order-by", "index", "--for", "jax", "-q", *shell("echo started")), env)
    assert result == Result(
        2,
        "",
        "error: the ranks of jax have no gaps, but job 'worker' has no task 1. Wait until the cluster is"
        " complete, with --count for the number of its tasks.\n",
    )


# TPUs


@pytest.mark.slow
def test_worker_of_a_tpu_has_the_slices_and_no_variables_of_the_probe(tmp_path: Path) -> None:
    with tpu_worker_process(devices=4, ports=2) as addresses:
        nodes = [
            tpu_node(f"slice-{number}", accelerator_type="v4-8", topology="2x2x1")
            | {"networkEndpoints": [{"ipAddress": "127.0.0.1", "port": int(address.rpartition(":")[2])}]}
            for number, address in enumerate(addresses)
        ]
        with GoogleServer(nodes).in_thread() as google:
            env = environment(tmp_path / "none", **google.environ())
            arguments: tuple[str, ...] = ("exec", "tpu", "slice-0", "slice-1", "--zone", "us-central2-b")
            arguments += ("--project", "demo-project")
            options = ("--reachable", "probe", "--for", "megascale", "--task", "worker:1", "--port", "8080")
            script = 'echo "$MEGASCALE_SLICE_ID/$MEGASCALE_NUM_SLICES $MEGASCALE_PORT $GRPC_VERBOSITY"'
            result = run((*arguments, *options, "-q", *shell(script)), env)
            assert result == Result(0, "1/2 8080 \n", "")


SLICE = {
    "TPU_WORKER_HOSTNAMES": "w-2,w-3",
    "TPU_WORKER_ID": "1",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "w-0:8080",
}


@pytest.mark.slow
@pytest.mark.parametrize("source", ["tpu", "here"])
@pytest.mark.parametrize(
    ("options", "stdout"),
    [
        (("--for", "jax"), "w-0:8482 4 3\n"),
        (("--for", "jax", "--port", "1234"), "w-0:1234 4 3\n"),
        (("--for", "jax", "--restart-on-change"), None),
        (("--for", "torch"), None),
        (("--for", "mpi"), None),
    ],
)
def test_process_of_one_slice_of_several_starts_jax_only(
    source: str, options: tuple[str, ...], stdout: str | None, tmp_path: Path
) -> None:
    env = environment(tmp_path / "none", **SLICE)
    script = 'echo "$JAX_COORDINATOR_ADDRESS $JAX_NUM_PROCESSES $JAX_PROCESS_ID"'
    result = run(("exec", source, *options, *shell(script)), env)
    assert (result.code, result.stdout) == ((0, stdout) if stdout is not None else (2, ""))
    assert ("slice 1 of 2" in result.stderr) is (stdout is None or source == "here")


SLURM = ("exec", "slurm", "--jobs", "ps=1", "--jobs", "worker=3")


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The variables of task 3 of a step of Slurm; they are set for this process too."""
    nodes = {"NODELIST": "n[1-2]", "TASKS_PER_NODE": "3,1", "NUM_TASKS": "4"}
    variables = {"SLURM_PROCID": "3", "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    variables |= {f"SLURM_STEP_{name}": value for name, value in nodes.items()}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


@pytest.mark.slow
def test_task_of_slurm_has_its_job_port_and_gpus(step: dict[str, str], tmp_path: Path) -> None:
    env = environment(tmp_path / "none", **step)
    options: tuple[str, ...] = ("--port-base", "7000", "--for", "tensorflow", "-q")
    result = run((*SLURM, *options, *shell('echo "$CUDA_VISIBLE_DEVICES $TF_CONFIG"')), env)
    cluster = '{"ps":["n1:7000"],"worker":["n1:7001","n1:7002","n2:7000"]}'
    expected = f'{{"cluster":{cluster},"task":{{"type":"worker","index":2}}}}\n'
    assert result == Result(0, f"0,1 {expected}", "")
    options = (*options, "--gpus-per-task", "1", "--gpus-per-node", "3")
    result = run((*SLURM, *options, *shell('echo "$CUDA_VISIBLE_DEVICES"')), env)
    assert result == Result(0, "0\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "ps=2"), "--jobs names a job twice"),
        (
            ("--jobs", "evaluator=1"),
            "the jobs have 5 tasks together, but Slurm starts 4 ($SLURM_STEP_NODELIST)",
        ),
        (("--for", "jax"), "the processes of jax are all alike, but the cluster has the jobs ps, worker"),
        (
            ("--gpus-per-task", "3"),
            "1 tasks with 3 GPUs each share a node, which has only 2. Request more GPUs",
        ),
        (("--tasks-per-node", "3"), "$SLURM_STEP_NUM_TASKS is 4, but the nodes of the step have 6 tasks"),
        (("--port-base", "65534"), "65534 is too high: the ports end at 65536"),
    ],
)
def test_wrong_tasks_of_slurm_exit_with_2(
    step: dict[str, str], arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error = error_of((*SLURM, *arguments, "--", "true"), capsys)
    assert code == 2
    assert message in error


# Restarts


SLEEP = "i=0; while [ $i -lt 1000 ]; do sleep 0.05; i=$((i + 1)); done"  # it ends even if nothing ends it
LOOP = f'echo "$AIORESOLVE_RANK $JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS"; {SLEEP}'
RESTARTED = (*EXEC, "--count", "3", "--for", "jax", "--restart-on-change")


@pytest.mark.slow
def test_program_is_restarted_once_when_a_pod_is_replaced(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        assert running.line() == "1 3 10.0.0.1:8470"
        assert running.stderr_line(REPORT[0]) == REPORT[0]
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.delete("train-1", "ml")
        assert running.stderr_line() == (
            "the members of the cluster have changed: lost /job:worker/task:0 at 10.0.0.1:8470 (ml/train-1)"
            " and 2 more; stopping sh"
        )
        assert running.stderr_line("2 of 3").startswith("waiting: job 'worker': 2 tasks, 2 of 3")
        server.add(trainer(1, ip="10.0.0.77"))
        # The pod that remained keeps its rank.
        assert running.line() == "1 3 10.0.0.77:8470"
        assert running.stderr_line(REPORT[0]) == REPORT[0]
        assert running.wait_for_exit(signal.SIGTERM) == Result(143, "", "")


@pytest.mark.slow
def test_pod_that_is_replaced_at_the_same_address_restarts_the_program(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        first = running.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        replacement = trainer(1)
        replacement["metadata"]["uid"] = "another"
        server.add(replacement)
        assert running.line() == first
        running.wait_for_exit(signal.SIGTERM)


UNREADY = {
    "status": {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "main", "ready": False, "restartCount": 0}],
    }
}


@pytest.mark.slow
def test_container_of_another_pod_that_was_restarted_in_place_restarts_the_program(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        first = running.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        for name in ("train-2", "train-1"):  # that of the process itself restarts nothing
            status = {"containerStatuses": [{"name": "main", "ready": True, "restartCount": 1}]}
            server.patch(name, "ml", patch={"status": status})
        assert "lost /job:worker/task:0" in running.stderr_line("stopping")
        assert running.line() == first
        running.wait_for_exit(signal.SIGTERM)


SUCCEEDED = {"status": {"phase": "Succeeded"}}


@pytest.mark.slow
def test_program_is_left_alone_once_another_task_has_ended_with_success(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    script = f"trap 'echo usr1; exit 5' USR1; {LOOP}"
    with Running((*RESTARTED, *shell(script)), env) as running:
        running.line()
        running.stderr_line(REPORT[0])
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.patch("train-1", "ml", patch=SUCCEEDED)
        assert running.stderr_line() == (
            "a task has ended with success: sh is not stopped for changes from now on"
        )
        server.delete("train-10", "ml")
        result = running.wait_for_exit(signal.SIGUSR1)
        assert (result.code, result.stdout) == (5, "usr1\n")


@pytest.mark.slow
def test_process_that_starts_late_has_its_rank_or_an_error_that_names_the_tasks_that_have_ended(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.patch("train-1", "ml", patch=SUCCEEDED)
    result = run(
        (*EXEC, "-q", *shell('echo "$AIORESOLVE_RANK $AIORESOLVE_NUM_TASKS $AIORESOLVE_LEADER"')), env
    )
    assert result == Result(0, "1 3 \n", "")
    for consumer in ("jax", "mpi"):
        result = run((*EXEC, "-q", "--for", consumer, *shell("echo started")), env)
        assert (result.code, result.stdout) == (1, "")
        assert "ml/train-1" in result.stderr
        assert "has ended with success, so that the others cannot connect to it" in result.stderr


@pytest.mark.slow
def test_pod_that_only_becomes_unready_restarts_nothing(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    script = f"trap 'echo usr1; exit 5' USR1; {LOOP}"
    with Running((*RESTARTED, *shell(script)), env) as running:
        running.line()
        running.stderr_line(REPORT[0])
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.patch("train-1", "ml", patch=UNREADY)
        # The watch that follows an outage has had the event before the source is up to date again.
        with server.down():
            assert "retrying" in running.stderr_line()
        assert running.stderr_line() == "up to date again"
        result = running.wait_for_exit(signal.SIGUSR1)
        assert result.stdout == "usr1\n"
        assert "stopping" not in result.stderr


# How a supervised program is changed by what the source reports


class ScriptedResolver(SimpleClusterResolver):
    """A resolver that reports given observations, and counts them."""

    def __init__(self, *scripted: Observation) -> None:
        super().__init__(ClusterSpec({"worker": ["10.0.0.1:1"]}))
        self.scripted = list(scripted)

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        while self.scripted:
            yield self.scripted.pop(0)
        await anyio.sleep_forever()


def state_of(*addresses: str) -> ClusterState:
    return ClusterState.from_spec(ClusterSpec({"worker": addresses}), observed_at=datetime.now(UTC))


async def test_state_of_a_source_that_fails_restarts_nothing() -> None:
    changed = Observation(state_of("10.0.0.1:1", "10.0.0.2:1"))
    resolver = ScriptedResolver(
        changed.stale(DeadlineExceededError("no response"), datetime.now(UTC)), changed
    )
    request = HereRequest(timeout=TIMEOUT, quiet=True)
    launch = _Launch(command=("true",), consumer="env", hostfile=None, is_restarted=True, grace=TIMEOUT)
    execution = _Execution(request, WaitCondition(), launch, resolver)
    execution._state = state_of("10.0.0.1:1")
    with anyio.fail_after(TIMEOUT):
        await execution._wait_for_change()
    assert resolver.scripted == []  # it is the second one that restarts the program


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"])
def test_signals_are_sent_on_to_the_program(env: dict[str, str], name: str) -> None:
    script = f"trap 'echo got {name}; exit 5' {name}; {LOOP}"
    with Running((*RESTARTED, *shell(script)), env) as running:
        running.line()
        result = running.wait_for_exit(getattr(signal, f"SIG{name}"))
        assert (result.code, result.stdout) == (5, f"got {name}\n")


@pytest.mark.slow
@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -KILL $$", 137), ("exit 0", 0)])
def test_supervisor_ends_with_the_exit_code_of_the_program(
    env: dict[str, str], script: str, code: int
) -> None:
    assert run((*RESTARTED, "-q", *shell(script)), env) == Result(code, "", "")


@pytest.mark.asyncio(loop_factories=["asyncio"])  # that of the command line; uvloop reserves SIGCHLD
async def test_supervisor_leaves_no_signal_handlers_behind() -> None:
    async def prepare() -> Program:
        return Program("/bin/sh", ("sh", "-c", "exit 3"), os.environ)

    supervisor = Supervisor(prepare, anyio.sleep_forever, grace=TIMEOUT, exit_with=lambda code: None)
    assert await supervisor.run() == 3
    loop = asyncio.get_running_loop()
    assert not any(loop.remove_signal_handler(number) for number in (*FORWARDED, signal.SIGCHLD))


@pytest.mark.slow
def test_program_that_ignores_sigterm_is_killed_after_the_grace_period(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    # Its child ignores the signal as well, and must not outlive it.
    script = f"trap '' TERM; sleep 60 & echo $!; {LOOP}"
    with Running((*RESTARTED, "--grace", "200ms", *shell(script)), env) as running:
        child = psutil.Process(int(running.line()))
        running.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.add(trainer(1, ip="10.0.0.77"))
        assert int(running.line()) != child.pid
        assert running.line() == "1 3 10.0.0.77:8470"
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
        for process in psutil.Process(running.process.pid).children(recursive=True):
            process.kill()
        running.wait_for_exit()


# Two processes. After SIGKILL the second remains in the group, as a zombie, until its parent receives
# SIGTERM. The parent is in a group of its own; its process ID is written to the FIFO.
UNREAPED = """
import os, signal, sys, time
group = os.getpid()
if os.fork() == 0:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    os.setpgid(0, 0)
    parent = os.getpid()
    if member := os.fork():
        signal.sigwait([signal.SIGTERM])
        os.waitpid(member, 0)
        sys.exit()
    os.setpgid(0, group)
    with open(sys.argv[1], "w") as fifo:
        fifo.write(str(parent))
time.sleep(600)
"""


@asynccontextmanager
async def unreaped(folder: Path) -> AsyncIterator[tuple[ChildProgram, psutil.Process]]:
    """A program whose group is not empty after SIGKILL, and the process that empties it after SIGTERM."""
    os.mkfifo(fifo := folder / "fifo")
    loop = asyncio.get_running_loop()
    child = ChildProgram(unreaped_program(fifo))
    loop.add_signal_handler(signal.SIGCHLD, child.reap)
    try:
        parent = psutil.Process(int(await anyio.to_thread.run_sync(fifo.read_text)))
        try:
            yield child, parent
        finally:
            with suppress(psutil.NoSuchProcess):
                parent.terminate()
    finally:
        child.send(signal.SIGKILL)
        loop.remove_signal_handler(signal.SIGCHLD)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_group_has_exited_when_each_of_its_processes_has_been_reaped(tmp_path: Path) -> None:
    async with unreaped(tmp_path) as (child, parent), anyio.create_task_group() as tasks:
        exited = anyio.Event()

        async def wait() -> None:
            await child.wait_for_group()
            exited.set()

        await child.stop(0.1)
        tasks.start_soon(wait)
        with anyio.move_on_after(0.5):
            await exited.wait()
        assert not exited.is_set()
        parent.terminate()
        await exited.wait()
        assert not child.send(0)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_processes_that_remain_after_sigkill_delay_a_restart_for_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.cli.program.KILL_GRACE", 0.1)
    os.mkfifo(fifo := tmp_path / "fifo")
    async with supervised(tmp_path, "exit 3", first=unreaped_program(fifo), grace=0.1) as supervised_run:
        parent = psutil.Process(int(await anyio.to_thread.run_sync(fifo.read_text)))
        supervised_run.changed.set()
        assert await supervised_run.exit_code() == 3
        parent.terminate()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_ends_the_wait_for_processes_that_remain_after_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.cli.program.KILL_GRACE", 10 * TIMEOUT)
    os.mkfifo(fifo := tmp_path / "fifo")
    async with supervised(tmp_path, "exit 3", first=unreaped_program(fifo), grace=0.1) as supervised_run:
        parent = psutil.Process(int(await anyio.to_thread.run_sync(fifo.read_text)))
        (member,) = parent.children()
        supervised_run.changed.set()
        await until(lambda: member.status() == psutil.STATUS_ZOMBIE)
        signal.raise_signal(signal.SIGINT)
        assert await supervised_run.exit_code() == 128 + signal.SIGTERM
        parent.terminate()


# A supervisor in this process


class SupervisedRun:
    """A supervisor that runs scripts of sh in turn; their `$0` is a file to which they append lines.

    Each script ends when `finish` is called, unless it ends on its own.
    """

    def __init__(self, folder: Path, programs: Sequence[Program], grace: float) -> None:
        self.changed = anyio.Event()
        self.starts = 0
        self._programs = programs
        self._grace = grace
        self._log = folder / "log"
        self._log.touch()
        self._codes: list[int] = []
        self._has_ended = anyio.Event()

    async def run(self) -> None:
        async def prepare() -> Program:
            self.starts += 1
            return self._programs[self.starts - 1]

        async def wait_for_change() -> None:
            await self.changed.wait()
            self.changed = anyio.Event()

        supervisor = Supervisor(prepare, wait_for_change, grace=self._grace, exit_with=self._codes.append)
        self._codes.append(await supervisor.run())
        self._has_ended.set()

    async def logged(self, *lines: str) -> None:
        """Wait until exactly these lines have been written."""
        await until(lambda: self._log.read_text().splitlines() == [*lines])

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def finish(self) -> None:
        self._log.with_suffix(".end").touch()

    async def exit_code(self) -> int:
        with anyio.fail_after(TIMEOUT):
            await self._has_ended.wait()
        (code,) = self._codes
        return code


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(TIMEOUT):
        while not condition():  # noqa: ASYNC110 - another process fulfils it
            await anyio.sleep(0.01)


def script_program(folder: Path, script: str) -> Program:
    return Program("/bin/sh", ("sh", "-c", script, str(folder / "log")), os.environ)


def unreaped_program(fifo: Path) -> Program:
    return Program(sys.executable, ("python", "-c", UNREAPED, str(fifo)), os.environ)


@asynccontextmanager
async def supervised(
    folder: Path, *scripts: str, first: Program | None = None, grace: float = TIMEOUT
) -> AsyncIterator[SupervisedRun]:
    """A running supervisor, which is cancelled at the end of the block."""
    programs = [] if first is None else [first]
    programs += [script_program(folder, script) for script in scripts]
    started = SupervisedRun(folder, programs, grace)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(started.run)
        try:
            yield started
        finally:
            started.finish()
            tasks.cancel_scope.cancel()


# Records the signals that it receives, and ends when it is finished.
LASTING = """
for name in HUP INT QUIT TERM USR1; do trap "echo $name >>$0" $name; done
echo started >>$0
until [ -e $0.end ]; do sleep 0.02; done
exit 5
"""


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "QUIT"])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_change_after_a_signal_neither_stops_the_program_nor_starts_it_again(
    tmp_path: Path, name: str
) -> None:
    # `kubectl delete job` sends SIGTERM to all pods, which vanish from the cluster one after another.
    async with supervised(tmp_path, LASTING, "exit 3") as supervised_run:
        await supervised_run.logged("started")
        signal.raise_signal(getattr(signal, f"SIG{name}"))
        await supervised_run.logged("started", name)
        supervised_run.changed.set()
        await anyio.wait_all_tasks_blocked()
        signal.raise_signal(signal.SIGUSR1)  # it arrives after a SIGTERM that the change could cause
        await supervised_run.logged("started", name, "USR1")
        supervised_run.finish()
        assert await supervised_run.exit_code() == 5
        assert supervised_run.lines() == ["started", name, "USR1"]
        assert supervised_run.starts == 1


@pytest.mark.parametrize(
    ("name", "received"), [("TERM", ()), ("INT", ("INT",)), ("HUP", ("HUP",)), ("QUIT", ("QUIT",))]
)
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_while_the_program_is_stopped_prevents_its_restart(
    tmp_path: Path, name: str, received: tuple[str, ...]
) -> None:
    async with supervised(tmp_path, LASTING, "exit 3") as supervised_run:
        await supervised_run.logged("started")
        supervised_run.changed.set()
        await supervised_run.logged("started", "TERM")
        signal.raise_signal(getattr(signal, f"SIG{name}"))
        await until(lambda: supervised_run.lines()[2:] == [*received])
        signal.raise_signal(signal.SIGUSR1)
        # The program has received SIGTERM already; a second one would be sent before SIGUSR1.
        await supervised_run.logged("started", "TERM", *received, "USR1")
        supervised_run.finish()
        assert await supervised_run.exit_code() == 5
        assert supervised_run.lines() == ["started", "TERM", *received, "USR1"]
        assert supervised_run.starts == 1


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_that_the_parent_process_ignores_does_not_prevent_a_restart(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        async with supervised(tmp_path, LASTING, "exit 3") as supervised_run:
            await supervised_run.logged("started")
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGUSR1)
            await supervised_run.logged("started", "USR1")
            supervised_run.changed.set()
            await supervised_run.logged("started", "USR1", "TERM")
            supervised_run.finish()
            assert await supervised_run.exit_code() == 3
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_program_does_not_outlive_a_supervisor_that_fails(tmp_path: Path) -> None:
    run = SupervisedRun(tmp_path, [], TIMEOUT)
    program = script_program(tmp_path, f"trap 'echo TERM >>$0; exit 5' TERM; echo started >>$0; {SLEEP}")

    async def prepare() -> Program:
        return program

    async def fail() -> None:
        await run.logged("started")
        raise RuntimeError("the watch has failed")

    supervisor = Supervisor(prepare, fail, grace=TIMEOUT, exit_with=lambda code: None)
    with pytest.raises(ExceptionGroup) as raised:
        await supervisor.run()
    assert raised.group_contains(RuntimeError, match="the watch has failed")
    assert run.lines() == ["started", "TERM"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_signal_ends_a_program_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    async with supervised(tmp_path, f"echo $$ >>$0; kill -STOP $$; {SLEEP}") as supervised_run:
        await until(lambda: bool(supervised_run.lines()))
        process = psutil.Process(int(supervised_run.lines()[0]))
        await until(lambda: process.status() == psutil.STATUS_STOPPED)
        signal.raise_signal(number)
        assert await supervised_run.exit_code() == 128 + number


@pytest.mark.skipif(sys.platform != "linux", reason="orphans have another parent than PID 1 on Linux only")
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_exit_code_of_an_orphan_is_not_that_of_the_program(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    set_child_subreaper = 36  # PR_SET_CHILD_SUBREAPER: then orphans are children of this process
    libc.prctl(set_child_subreaper, 1, 0, 0, 0)
    try:
        script = "(sh -c 'echo $$ >>$0; exit 9' $0 &); until [ -e $0.end ]; do sleep 0.02; done; exit 7"
        async with supervised(tmp_path, script) as supervised_run:
            await until(lambda: bool(supervised_run.lines()))
            orphan = int(supervised_run.lines()[0])
            await until(lambda: not psutil.pid_exists(orphan))
            supervised_run.finish()
            assert await supervised_run.exit_code() == 7
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


LEAVE_ORPHANS = """
import os, subprocess, sys, time
for number in range(20):
    # Its parent ends first; half of them leave the process group.
    subprocess.run(["sh", "-c", "sleep 0.1 &"], start_new_session=number % 2 == 0, stdout=subprocess.DEVNULL)
while {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getppid(), os.getpid()}:
    time.sleep(0.05)
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code"),
    [(LEAVE_ORPHANS, 7), ("import os, signal; os.kill(1, signal.SIGTERM); signal.pause()", 143)],
)
def test_first_process_of_a_container_reaps_orphans_and_has_the_exit_code_of_the_program(
    env: dict[str, str], script: str, code: int
) -> None:
    done = run_as_first_process([*COMMAND, *RESTARTED, "-q", *python(script)], env)
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_other_child_processes_are_not_reaped(tmp_path: Path) -> None:
    other = ChildProgram(script_program(tmp_path, "exit 4"))
    await until(lambda: psutil.Process(other.group).status() == psutil.STATUS_ZOMBIE)
    assert exited_child(tmp_path).exit_code == 3
    other.reap()
    assert other.exit_code == 4


def exited_child(folder: Path) -> ChildProgram:
    """Return a program that has exited with 3 and was reaped."""
    child = ChildProgram(script_program(folder, "exit 3"))
    os.waitid(os.P_PGID, child.group, os.WEXITED | os.WNOWAIT)
    child.reap()
    return child


# Programs that receive no signals


def deny_signals(_group: int, _number: int) -> None:
    raise PermissionError


def lose_signals(_group: int, _number: int) -> None:
    """Do what the kernel does for a process that hangs in it."""


@pytest.mark.parametrize(
    ("send", "grace", "trigger"),
    [
        (deny_signals, 10 * TIMEOUT, "change"),
        (deny_signals, 10 * TIMEOUT, "signal"),
        (lose_signals, 0.1, "change"),
    ],
)
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_supervisor_ends_if_the_program_cannot_be_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    send: Callable[[int, int], None],
    grace: float,
    trigger: str,
) -> None:
    monkeypatch.setattr("aioresolve.cli.program.KILL_GRACE", 0.1)
    monkeypatch.setattr("aioresolve.cli.program.os.killpg", send)
    run = SupervisedRun(tmp_path, [script_program(tmp_path, LASTING)], grace)

    async def cause_the_end() -> None:
        await run.logged("started")
        if trigger == "change":
            run.changed.set()
        else:
            signal.raise_signal(signal.SIGTERM)

    try:
        with anyio.move_on_after(TIMEOUT) as limit:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cause_the_end)
                with pytest.raises(UnstoppableProgramError) as raised:
                    await run.run()
                run.finish()
                message = re.match(r"/bin/sh cannot be stopped: process (\d+) ", str(raised.value))
                assert message is not None, raised.value
                await anyio.to_thread.run_sync(os.waitpid, int(message[1]), 0)
        assert not limit.cancel_called
    finally:
        run.finish()


@pytest.mark.skipif(sys.platform != "linux", reason="on macOS such a group may have only zombies")
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_group_with_processes_of_another_user_has_not_exited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = exited_child(tmp_path)
    errors: list[OSError] = [PermissionError(), PermissionError(), ProcessLookupError()]

    def probe(_group: int, _number: int) -> None:
        raise errors.pop(0)

    monkeypatch.setattr("aioresolve.cli.program.os.killpg", probe)
    await child.wait_for_group()
    assert errors == []


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_group_that_has_exited_on_sigterm_receives_no_sigkill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = os.killpg

    def record(group: int, number: int) -> None:
        sent.append(number)
        send(group, number)

    monkeypatch.setattr("aioresolve.cli.program.os.killpg", record)
    async with supervised(tmp_path, f"echo started >>$0; {SLEEP}", "exit 3") as supervised_run:
        await supervised_run.logged("started")
        supervised_run.changed.set()
        assert await supervised_run.exit_code() == 3
    assert signal.SIGTERM in sent
    assert signal.SIGKILL not in sent  # the id of a group without processes may be that of another one


# Records the signals that it receives, and ends a while after SIGTERM.
RECORDER = """
import signal, sys, time
received = open(sys.argv[1], "a", buffering=1)
numbers = []
def receive(number, _):
    numbers.append(number)
    print(signal.Signals(number).name, file=received)
for number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, receive)
print("ready", file=received)
while signal.SIGTERM not in numbers:
    time.sleep(0.01)
ends = time.monotonic() + 0.3
while time.monotonic() < ends:
    time.sleep(0.01)
print("end", file=received)
"""


@pytest.mark.slow
def test_program_is_started_again_after_all_its_processes_have_ended_on_sigterm_alone(
    env: dict[str, str], server: ThreadedKubernetesServer, tmp_path: Path
) -> None:
    script, received = tmp_path / "recorder.py", tmp_path / "received"
    script.write_text(RECORDER)
    child = shlex.join([sys.executable, str(script), str(received)])
    run_child = f"if [ ! -e {received} ]; then {child} & until [ -s {received} ]; do sleep 0.01; done; fi"
    with Running((*RESTARTED, *shell(f"{run_child}; cat {received}; {LOOP}")), env) as running:
        assert running.lines(2) == ["ready", "1 3 10.0.0.1:8470"]
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.add(trainer(1, ip="10.0.0.77"))
        assert running.lines(4) == ["ready", "SIGTERM", "end", "1 3 10.0.0.77:8470"]
        running.wait_for_exit(signal.SIGTERM)


@pytest.mark.slow
def test_signal_while_no_program_runs_ends_the_supervisor(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        running.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.delete("train-1", "ml")
        running.stderr_line("stopping sh")
        assert running.stderr_line("2 of 3").startswith("waiting:")
        assert running.wait_for_exit(signal.SIGTERM) == Result(143, "", "")


@pytest.mark.slow
def test_program_continues_while_the_cluster_cannot_be_watched(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*RESTARTED, *shell(LOOP)), env) as running:
        running.line()
        running.stderr_line(REPORT[0])
        server.until(lambda: server.watches == 1, TIMEOUT)
        with server.down():
            assert "retrying" in running.stderr_line()
        assert running.stderr_line() == "up to date again"
        server.add(trainer(1, ip="10.0.0.77"))
        assert running.line() == "1 3 10.0.0.77:8470"
        running.wait_for_exit(signal.SIGTERM)


@pytest.mark.slow
def test_program_continues_if_it_becomes_forbidden_to_watch(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    # The wait watches the cluster until it is complete; then a second watch begins, that of the program.
    watches: list[RequestRecord] = []

    def is_after_the_wait(request: RequestRecord) -> bool:
        if "sendInitialEvents" in request.query:
            watches.append(request)
        return len(watches) > 1

    server.inject(Answer(403), match=is_after_the_wait, times=None)
    script = f"trap 'exit 5' USR1; {LOOP}"
    with Running((*RESTARTED, *shell(script)), env) as running:
        running.line()
        running.stderr_line(REPORT[0])
        assert "cannot watch the cluster, the program continues: " in running.stderr_line()
        assert running.wait_for_exit(signal.SIGUSR1).code == 5


@pytest.mark.slow
def test_temporary_host_file_is_written_again_and_removed(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    script = f'echo $AIORESOLVE_HOSTFILE; head -1 "$AIORESOLVE_HOSTFILE"; {SLEEP}'
    arguments = ("--count", "3", "--for", "mpi", "--restart-on-change")
    with Running((*EXEC, *arguments, *shell(script)), env) as running:
        path, first = running.lines(2)
        assert first == "10.0.0.1 slots=1"
        server.until(lambda: server.watches == 1, TIMEOUT)
        server.add(trainer(1, ip="10.0.0.77"))
        assert running.lines(2) == [path, "10.0.0.77 slots=1"]
        assert running.wait_for_exit(signal.SIGTERM).code == 143
    assert not Path(path).exists()


# Completion


def test_consumers_options_and_files_are_completed() -> None:
    command = ("exec", "kubernetes")
    assert candidates("--for", command=command)[:3] == ["env", "jax", "torch"]
    assert candidates("--for", incomplete="mp", command=command) == ["mpi", "mpich"]
    assert "--restart-on-change" in candidates(incomplete="--rest", command=command)
    assert candidates("-l", "a=b", "--", incomplete="tra", command=command) == ["tra"]
