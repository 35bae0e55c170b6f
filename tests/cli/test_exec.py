"""`aioresolve exec`: starts a program once its cluster is complete, as one of its tasks."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from aioresolve.testing import GoogleServer, ThreadedKubernetesServer, pod, tpu_node, tpu_worker_process

from .process import COMMAND, Result, Run, environment, run_process
from .test_program_outputs import uid

pytest.importorskip("pty", reason="this system has no pseudo-terminals, and thus no POSIX processes")

from aioresolve.cli import program

EXEC = ("exec", "kubernetes", "-l", "app=train")
ECHO = ("--", "sh", "-c", "echo started; exit 1")
"""A program that is not started: it would replace the process of the tests, and end it as failed."""
Variables = Callable[[tuple[str, ...], dict[str, str]], dict[str, str]]


@pytest.fixture
def env(kubeconfig: Path, server: ThreadedKubernetesServer) -> dict[str, str]:
    """The environment of a process in the pod `train-2`, which is task 1."""
    return environment(kubeconfig, POD_UID=uid(server, "train-2"))


@pytest.fixture
def variables(run: Run, monkeypatch: pytest.MonkeyPatch) -> Variables:
    """Return a function that runs `aioresolve ARGUMENTS -- true`, and returns the environment of `true`."""
    prepared: list[program.Program] = []
    monkeypatch.setattr(program, "replace_process", prepared.append)

    def variables(arguments: tuple[str, ...], env: dict[str, str]) -> dict[str, str]:
        assert run((*arguments, "-q", "--", "true"), env) == Result(0, "", "")
        return dict(prepared.pop().environ)

    return variables


# The program


def test_program_has_the_variables_of_its_task_and_those_of_its_parent(
    env: dict[str, str], variables: Variables
) -> None:
    assert variables((*EXEC, "--count", "3", "--for", "jax"), env) == env | {
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
@pytest.mark.parametrize("restart", [(), ("--restart-on-change",)])
def test_program_inherits_no_file_descriptors_and_only_the_signals_that_were_ignored_before(
    env: dict[str, str], restart: tuple[str, ...]
) -> None:
    def result(*command: str) -> tuple[int, str, str]:
        nohup = ("sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *command)
        done = subprocess.run(nohup, env=env, capture_output=True, text=True, check=False)
        # posix_spawn of glibc ignores 32 and 33 in the child, the signals that it reserves for itself.
        return done.returncode, done.stdout.replace("0000000180000001", "0000000000000001"), done.stderr

    script = ("sh", "-c", "grep SigIgn /proc/$$/status; ls /proc/$$/fd; exit 7")
    plain = result(*script)
    assert result(*COMMAND, *EXEC, "-q", *restart, "--", *script) == plain
    assert (plain[0], plain[2], "0000000000000001" in plain[1]) == (7, "", True)


def test_deadline_exits_with_3_and_the_reasons(run: Run, env: dict[str, str]) -> None:
    result = run((*EXEC, "--count", "4", "--timeout", "500ms", *ECHO), env)
    assert (result.code, result.stdout) == (3, "")
    assert "error: the cluster was not complete within 500ms." in result.stderr
    assert "worker   3       4" in result.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ("--for", "torchrun", "--processes-per-task", "8"),
            {"PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8"},
        ),
        (("--for", "torch", "--port", "29500"), {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}),
        (("--for", "megascale", "--slices", "3"), {"MEGASCALE_SLICE_ID": "1", "MEGASCALE_NUM_SLICES": "3"}),
        (("--for", "vllm", "--task", "worker:2"), {"LWS_WORKER_INDEX": "2", "AIORESOLVE_RANK": "2"}),
        (
            ("-l", "ps=app=ps", "--allow-unready", "--for", "tensorflow"),
            {
                "TF_CONFIG": '{"cluster":{"worker":["10.0.0.1:8470","10.0.0.2:8470","10.0.0.10:8470"],'
                '"ps":["[fd00::7]:8470"]},"task":{"type":"worker","index":1}}'
            },
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else None,
)
def test_options_change_the_variables(
    env: dict[str, str], variables: Variables, options: tuple[str, ...], expected: dict[str, str]
) -> None:
    assert variables((*EXEC, *options), env).items() >= expected.items()


def test_program_inherits_no_variables_that_it_would_read_instead(
    env: dict[str, str], variables: Variables
) -> None:
    env |= {"RAY_ADDRESS": "other:6379", "MEGASCALE_PORT": "1", "AIORESOLVE_COUNT": "3"}
    ray = variables((*EXEC, "--for", "ray", "--task", "worker:0"), env)
    assert "RAY_ADDRESS" not in ray
    assert (ray["MEGASCALE_PORT"], ray["AIORESOLVE_COUNT"]) == ("1", "3")


# Host files


@pytest.mark.parametrize(
    ("consumer", "separator", "defaults"),
    [
        ("mpi", " slots=", ("OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile")),
        ("mpich", ":", ("HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE")),
    ],
)
def test_launcher_has_a_host_file_by_default_and_is_not_a_task(
    env: dict[str, str],
    variables: Variables,
    tmp_path: Path,
    consumer: str,
    separator: str,
    defaults: tuple[str, ...],
) -> None:
    # The rank is that of an outer program, the other file that of the MPI operator.
    env |= {"POD_UID": "", "AIORESOLVE_RANK": "7", **dict.fromkeys(defaults, "/etc/mpi/hostfile")}
    path, other = tmp_path / "hosts", tmp_path / "other"
    other.write_text("mine")
    path.symlink_to(other)
    found = variables((*EXEC, "--for", consumer, "--slots", "4", "--hostfile", str(path)), env)
    assert {found[name] for name in ("AIORESOLVE_HOSTFILE", *defaults)} == {str(path)}
    assert (found["AIORESOLVE_NUM_TASKS"], found["AIORESOLVE_LEADER_HOST"]) == ("3", "10.0.0.1")
    assert "AIORESOLVE_RANK" not in found
    keeps_domains = [found.get(f"{name}_keep_fqdn_hostnames") for name in ("OMPI_MCA_orte", "PRTE_MCA_prte")]
    assert keeps_domains == ["true" if consumer == "mpi" else None] * 2
    assert path.read_text().splitlines() == [f"10.0.0.{number}{separator}4" for number in (1, 2, 10)]
    # It replaced the link at once: what the link named is unchanged.
    assert (other.read_text(), path.is_symlink(), list(tmp_path.glob(".aioresolve-*"))) == ("mine", False, [])
    assert path.stat().st_mode & 0o777 == 0o644  # also other users start programs with it


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_host_file_that_cannot_be_written_is_one_error(run: Run, env: dict[str, str], tmp_path: Path) -> None:
    # A link to the device, which is written to, and not replaced.
    (full := tmp_path / "full").symlink_to("/dev/full")
    result = run((*EXEC, "--for", "mpi", "--hostfile", str(full), *ECHO), env)
    assert result == Result(1, "", f"error: cannot write the host file {full}: No space left on device\n")
    assert full.is_symlink()
    path = tmp_path / "hosts"
    with mock.patch("os.replace", side_effect=OSError(0, "the folder is read-only")):
        failed = run((*EXEC, "--for", "mpi", "--hostfile", str(path), *ECHO), env)
    assert failed == Result(1, "", f"error: cannot write the host file {path}: the folder is read-only\n")
    assert list(tmp_path.glob(".aioresolve-*")) == []


# Errors


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A program that the system cannot execute."""
    path = tmp_path / "train"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    return path


NOWHERE = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
"""An environment without a cluster: a command that sends a request fails with another error."""


def test_command_that_cannot_be_executed_exits_as_in_a_shell_before_anything_is_waited_for(
    run: Run, broken: Path
) -> None:
    def result(command: str, **variables: str) -> tuple[int, str]:
        found = run((*EXEC, "--", command), NOWHERE | variables)
        return found.code, found.stderr

    broken.chmod(0o644)
    folder = broken.parent
    unknown = f"{folder}/none"
    assert result("no-such-program") == (
        127,
        "error: the command 'no-such-program' does not exist in $PATH\n",
    )
    assert result(unknown) == (127, f"error: the command {unknown!r} does not exist\n")
    assert result("")[0] == 127
    expected = (126, f"error: {broken} is not executable\n")
    assert result(str(broken)) == result("train", PATH=f"/nowhere:{folder}:/bin") == expected
    assert result(str(folder)) == (126, f"error: {folder} is a directory\n")


@pytest.mark.slow
@pytest.mark.parametrize("restart", [(), ("--restart-on-change",)])
def test_file_that_the_system_cannot_execute_exits_with_126(
    env: dict[str, str], broken: Path, restart: tuple[str, ...]
) -> None:
    result = run_process((*EXEC, "-q", *restart, "--", str(broken)), env)
    assert result == Result(126, "", f"error: {broken} cannot be executed: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (EXEC, "no command was passed; write it after --, such as: -- python train.py"),
        ((*EXEC, "--slots", "2", *ECHO), "--slots requires --for mpi or deepspeed or horovod"),
        ((*EXEC, "--for", "jax", "--hostfile", "x", *ECHO), "--hostfile requires --for mpi"),
        ((*EXEC, "--for", "mpi", "--hostfile", "/", *ECHO), "File '/' is a directory"),
        (
            (*EXEC, "--for", "mpi", "--hostfile", "/no/folder/x", *ECHO),
            "--hostfile /no/folder/x: the folder does not exist",
        ),
        ((*EXEC, "--for", "mpi", "--task", "worker:0", *ECHO), "leave out --task"),
        ((*EXEC, "-l", "ps=app=ps", "--for", "jax", *ECHO), "the processes of jax are all alike"),
        (("exec", "tpu", "a", "--port", "1", *ECHO), "--port requires --for jax"),
        (("exec", "tpu", "--jobs", "ps=1", *ECHO), "no job 'ps' is requested; pass --job-name ps"),
    ],
)
def test_wrong_usage_exits_with_2_before_anything_is_waited_for(
    run: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run(arguments, NOWHERE)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


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
    run: Run, env: dict[str, str], variables: dict[str, str], message: str
) -> None:
    result = run((*EXEC, *ECHO), env | variables)
    assert (result.code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert message in result.stderr


def test_missing_index_exits_with_an_error(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.delete("train-1", "ml")
    server.delete("train-10", "ml")
    for index in (0, 2):
        server.add(pod(f"train-{index}", "ml", labels={"app": "train"}, index=index, ip=f"10.0.0.{index}"))
    env["POD_UID"] = uid(server, "train-2")
    assert run((*EXEC, "--order-by", "index", "--for", "jax", "-q", *ECHO), env) == Result(
        2,
        "",
        "error: the ranks of jax have no gaps, but job 'worker' has no task 1. Wait until the cluster is"
        " complete, with --count for the number of its tasks.\n",
    )


def test_process_that_starts_late_has_its_rank_or_an_error_that_names_the_tasks_that_have_ended(
    run: Run, env: dict[str, str], variables: Variables, server: ThreadedKubernetesServer
) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "run", "controller": True}
    for name in ("train-1", "train-2", "train-10"):
        server.patch(name, "ml", patch={"metadata": {"ownerReferences": [job]}})
    server.patch("train-1", "ml", patch={"status": {"phase": "Succeeded"}})
    found = variables(EXEC, env)
    assert (found["AIORESOLVE_RANK"], found["AIORESOLVE_NUM_TASKS"]) == ("1", "3")
    assert "AIORESOLVE_LEADER" not in found
    for consumer in ("jax", "mpi"):
        result = run((*EXEC, "-q", "--for", consumer, *ECHO), env)
        assert (result.code, result.stdout) == (1, "")
        assert "ml/train-1" in result.stderr
        assert "has ended with success, so that the others cannot connect to it" in result.stderr
    waited = run(("wait", "kubernetes", "-l", "app=train", "-o", "env", "--task", "worker:2"), env)
    assert "RANK=2\nAIORESOLVE_NUM_TASKS=3\n" in waited.stdout
    printed = ("kubernetes", "-l", "app=train", "--not-running", "skip", "-o")
    assert "RANK=2\nAIORESOLVE_NUM_TASKS=3\n" in run((*printed, "env", "--task", "worker:2"), env).stdout
    for output in (("torch", "--task", "worker:2"), ("tf-config", "--task", "worker:2"), ("hostfile",)):
        result = run((*printed, *output), env)
        assert (result.code, result.stdout) == (2, "")
        assert "/job:worker/task:0 (ml/train-1) ended with success" in result.stderr


# TPUs and Slurm


@pytest.mark.slow
def test_worker_of_a_tpu_has_the_slices_and_no_variables_of_the_probe(
    variables: Variables, tmp_path: Path
) -> None:
    with tpu_worker_process(devices=4, ports=2) as addresses:
        nodes = [
            tpu_node(f"slice-{number}", accelerator_type="v4-8", topology="2x2x1")
            | {"networkEndpoints": [{"ipAddress": "127.0.0.1", "port": int(address.rpartition(":")[2])}]}
            for number, address in enumerate(addresses)
        ]
        with GoogleServer(nodes).in_thread() as google:
            env = environment(tmp_path / "none", **google.environ())
            where = ("--zone", "us-central2-b", "--project", "demo-project")
            options = ("--reachable", "probe", "--for", "megascale", "--task", "worker:1", "--port", "8080")
            found = variables(("exec", "tpu", "slice-0", "slice-1", *where, *options), env)
    assert (found["MEGASCALE_SLICE_ID"], found["MEGASCALE_NUM_SLICES"]) == ("1", "2")
    assert found["MEGASCALE_PORT"] == "8080"
    assert "GRPC_VERBOSITY" not in found


SLICE = {
    "TPU_WORKER_HOSTNAMES": "w-2,w-3",
    "TPU_WORKER_ID": "1",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "w-0:8080",
}


@pytest.mark.parametrize("source", ["tpu", "here"])
def test_process_of_one_slice_of_several_starts_jax_only(
    run: Run, variables: Variables, source: str, tmp_path: Path
) -> None:
    env = environment(tmp_path / "none", **SLICE)
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    for port in ("8482", "1234"):
        options = () if port == "8482" else ("--port", port)
        found = variables(("exec", source, "--for", "jax", *options), env)
        assert [found[name] for name in names] == [f"w-0:{port}", "4", "3"]
    for arguments in ("jax --restart-on-change", "torch", "mpi"):
        refused = run(("exec", source, "--for", *arguments.split(), *ECHO), env)
        assert (refused.code, refused.stdout) == (2, "")
        assert "slice 1 of 2" in refused.stderr


SLURM = ("exec", "slurm", "--jobs", "ps=1", "--jobs", "worker=3")
STEP = {
    "PATH": os.environ["PATH"],
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_PROCID": "3",
    "SLURM_GPUS_ON_NODE": "2",
    "CUDA_VISIBLE_DEVICES": "0,1",
}
"""The variables of task 3 of a step of Slurm."""


def test_task_of_slurm_has_its_job_and_port(variables: Variables) -> None:
    found = variables((*SLURM, "--port-base", "7000", "--for", "tensorflow"), STEP)
    cluster = '{"ps":["n1:7000"],"worker":["n1:7001","n1:7002","n2:7000"]}'
    assert found["TF_CONFIG"] == f'{{"cluster":{cluster},"task":{{"type":"worker","index":2}}}}'
    assert found["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "ps=2"), "--jobs names a job twice"),
        (("--jobs", "evaluator=1"), "the jobs have 5 tasks together, but Slurm starts 4"),
        (("--for", "jax"), "the processes of jax are all alike, but the cluster has the jobs ps, worker"),
        (("--port-base", "65534"), "--port-base: port 65536 of host 'n1' is not"),
    ],
)
def test_wrong_tasks_of_slurm_exit_with_2(run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run((*SLURM, *arguments, *ECHO), STEP)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr
