"""`-o` for programs: the variables and host files of `aioresolve.launch`, with `--task` and `--this-task`."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

from aioresolve import ClusterSpec, launch
from aioresolve.cli import main
from aioresolve.cli.output.formats import HOST_FILES, PROGRAM_OUTPUTS
from aioresolve.cli.requests import LAUNCHERS, PROGRAM_OPTIONS
from aioresolve.gcp import metadata_server
from aioresolve.testing import GoogleServer, tpu_node
from tests.tpu.conftest import VARIABLES

from .process import Result, Running, cluster, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

TRAIN = ("-l", "app=train")
FILES = ("hostfile", "host:slots")


class Command(Protocol):
    def __call__(self, *arguments: str) -> Result: ...


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedKubernetesServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def kubeconfig(server: ThreadedKubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(metadata_server, "DEFAULT_HOST", "metadata.invalid")
    for name in (*VARIABLES, "POD_UID", "POD_NAME", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return server.write_kubeconfig(tmp_path / "config", namespace="ml")


@pytest.fixture
def aioresolve(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `aioresolve` with captured streams."""

    def command(*arguments: str) -> Result:
        code = main(arguments)
        written = capsys.readouterr()
        return Result(code, written.out, written.err)

    return command


def uid(server: ThreadedKubernetesServer, name: str) -> str:
    found: str = server.pod(name, "ml")["metadata"]["uid"]
    return found


def variables(text: str) -> dict[str, str]:
    """Return the variables that a shell reads from such lines."""
    script = f"env -i sh -c {shlex.quote(f'set -a; {text} env -0')}"
    shown = subprocess.run(script, shell=True, capture_output=True, text=True, check=True).stdout
    found = dict(line.split("=", 1) for line in shown.split("\0") if line)
    return {name: value for name, value in found.items() if name not in ("PWD", "SHLVL", "_", "OLDPWD")}


def test_outputs_are_the_consumers_of_launch_and_the_host_files() -> None:
    assert set(PROGRAM_OUTPUTS) == {*launch.CONSUMERS, *HOST_FILES}


def test_options_are_those_of_the_functions_of_launch() -> None:
    functions = {**launch.CONSUMERS, "hostfile": launch.hostfile, "host:slots": launch.host_slots}
    found: dict[str, set[str]] = {}
    for consumer, function in functions.items():
        for option in function.__kwdefaults__ or {}:
            found.setdefault(option, set()).add(consumer)
    known = {option: set(each) - {*LAUNCHERS, "tf-config"} for option, each in PROGRAM_OPTIONS.items()}
    assert known == found


@pytest.mark.parametrize("output", sorted(set(PROGRAM_OUTPUTS) - set(FILES)))
@pytest.mark.parametrize("command", ["kubernetes", "wait kubernetes"])
def test_a_shell_reads_the_variables_of_the_task(aioresolve: Command, output: str, command: str) -> None:
    result = aioresolve(*command.split(), *TRAIN, "-o", output, "--task", "worker:2")
    assert (result.code, result.stderr) == (0, "")
    spec = ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.10:8470"]})
    assert variables(result.stdout.replace("\n", "; ")) == launch.environment(
        output, spec, spec.task("worker", 2)
    )


@pytest.mark.parametrize("command", ["kubernetes", "wait kubernetes"])
def test_this_task_is_that_of_the_process(
    aioresolve: Command,
    server: ThreadedKubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("POD_UID", uid(server, "train-2"))
    result = aioresolve(*command.split(), *TRAIN, "-o", "jax", "--this-task")
    assert "JAX_PROCESS_ID=1\n" in result.stdout
    config = json.loads(aioresolve(*command.split(), *TRAIN, "-o", "tf-config", "--this-task").stdout)
    assert config["task"] == {"type": "worker", "index": 1}


def test_options_change_the_variables(aioresolve: Command) -> None:
    shown = aioresolve(
        "kubernetes", *TRAIN, "-o", "torchrun", "--task", "worker:0", "--processes-per-task", "8"
    )
    assert "PET_NPROC_PER_NODE=8\n" in shown.stdout
    shown = aioresolve("kubernetes", *TRAIN, "-o", "jax", "--task", "worker:0", "--port", "1234")
    assert "JAX_COORDINATOR_ADDRESS=10.0.0.1:1234\n" in shown.stdout
    shown = aioresolve("kubernetes", *TRAIN, "-o", "ray", "--task", "worker:1")
    assert "RAY_ADDRESS=10.0.0.1:6379\n" in shown.stdout
    shown = aioresolve("kubernetes", *TRAIN, "-o", "tf-config", "--rpc-layer", "grpc")
    assert json.loads(shown.stdout)["rpc_layer"] == "grpc"
    shown = aioresolve("kubernetes", *TRAIN, "-o", "megascale", "--task", "worker:2", "--slices", "3")
    assert "MEGASCALE_SLICE_ID=2\n" in shown.stdout


def test_host_files_need_no_task(aioresolve: Command) -> None:
    shown = aioresolve("kubernetes", *TRAIN, "-o", "hostfile", "--slots", "8")
    assert shown.stdout == "10.0.0.1 slots=8\n10.0.0.2 slots=8\n10.0.0.10 slots=8\n"
    shown = aioresolve("wait", "kubernetes", *TRAIN, "-o", "host:slots")
    assert shown.stdout == "10.0.0.1:1\n10.0.0.2:1\n10.0.0.10:1\n"


def test_unknown_process_is_one_error_with_the_option_that_names_the_task(
    aioresolve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_UID", "another")
    result = aioresolve("kubernetes", *TRAIN, "-o", "jax", "--this-task")
    assert (result.code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "the uid 'another' of $POD_UID: no member" in result.stderr
    assert "Set JOB and INDEX of --task JOB:INDEX, or let the pod's manifest set $POD_UID" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "jax"), "-o jax requires a task; pass --this-task, or --task JOB:INDEX"),
        (("-o", "jax", "--this-task", "--task", "worker:0"), "--task and --this-task exclude each other"),
        (("-o", "name", "--this-task"), "--this-task requires -o tf-config"),
        (("-o", "hostfile", "--this-task"), "--this-task requires -o tf-config"),
        (("-o", "jax", "--this-task", "--slots", "2"), "--slots requires -o hostfile or host:slots; add it"),
        (("--slices", "2"), "--slices requires -o megascale; add it, or leave out --slices"),
        (("-o", "torchrun", "--this-task", "--processes-per-task", "0"), "write one, such as 8, or auto"),
        (("-o", "jax", "--task", "ps:0"), "add -l ps=SELECTOR"),
        (
            ("-o", "hostfile", "--address", "pod_ipv6"),
            "-o hostfile cannot express IPv6 addresses",
        ),
        (("-w", "-o", "jax", "--this-task"), "-o jax cannot show changes"),
    ],
)
def test_options_that_contradict_the_output_are_usage_errors(
    aioresolve: Command, arguments: tuple[str, ...], message: str
) -> None:
    result = aioresolve("kubernetes", *TRAIN, *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


def test_two_jobs_for_jax_are_a_usage_error(aioresolve: Command) -> None:
    arguments = ("-l", "worker=app=train", "-l", "ps=app=ps", "-o", "jax", "--task", "worker:0")
    result = aioresolve("kubernetes", *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert "the processes of jax are all alike, but the cluster has the jobs worker, ps" in result.stderr


@pytest.fixture
def tpus(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, ...]]:
    nodes = [tpu_node(f"slice-{n}", ips=[f"10.0.{n}.1", f"10.0.{n}.2"]) for n in range(2)]
    with GoogleServer(nodes).in_thread() as google:
        for name, value in google.environ().items():
            monkeypatch.setenv(name, value)
        yield "slice-0", "slice-1", "--zone", "us-central2-b", "--project", "demo-project"


@pytest.mark.parametrize("command", ["tpu", "wait tpu"])
def test_megascale_has_the_slices_of_the_tpus(
    aioresolve: Command, tpus: tuple[str, ...], command: str
) -> None:
    result = aioresolve(*command.split(), *tpus, "-o", "megascale", "--task", "worker:3", "--port", "8080")
    assert result.stderr == ""
    assert (
        variables(result.stdout.replace("\n", "; ")).items()
        >= {
            "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.1",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": "1",
            "MEGASCALE_PORT": "8080",
        }.items()
    )


def test_this_task_of_a_tpu_is_found_by_its_address(
    aioresolve: Command, tpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with GoogleServer([tpu_node("here", ips=["10.0.0.1", "127.0.0.1"])]).in_thread() as google:
        for name, value in google.environ().items():
            monkeypatch.setenv(name, value)
        result = aioresolve("tpu", "here", *tpus[2:], "-o", "jax", "--this-task")
    assert "JAX_PROCESS_ID=1\n" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--list", "-o", "jax", "--this-task"), "--list has no -o jax"),
        (("slice-0", "--probe", "-o", "hostfile"), "-o hostfile cannot show the result of --probe"),
        (("slice-0", "--port", "1"), "--port requires -o jax or megascale or ray or torch or torchrun"),
    ],
)
def test_outputs_for_programs_exclude_lists_and_probes(
    aioresolve: Command, arguments: tuple[str, ...], message: str
) -> None:
    result = aioresolve("tpu", *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.slow
def test_watch_prints_tf_config_with_the_current_index_of_this_task(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    env = environment(kubeconfig, POD_UID=uid(server, "train-10"))
    with Running(("watch", "kubernetes", *TRAIN, "-o", "tf-config", "--this-task"), env) as watch:
        assert json.loads(watch.line())["task"]["index"] == 2
        removed = server.pod("train-1", "ml")
        server.delete("train-1", "ml")
        assert json.loads(watch.line())["task"]["index"] == 1
        server.add(removed)
