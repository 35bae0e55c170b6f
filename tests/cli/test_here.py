"""`aioresolve here`, and `here` as the source of other commands: output, messages and exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer, pod

from .process import Result, Run, environment

TWO_WORKERS = json.dumps(
    {
        "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
        "task": {"type": "worker", "index": 1},
    }
)


class Here(Protocol):
    def __call__(self, *arguments: str, **variables: str) -> Result: ...


@pytest.fixture
def here(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Run a command with these variables on a machine that has nothing else."""
    monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(tmp_path / "serviceaccount"))
    monkeypatch.setattr("aioresolve.kubernetes.own_pod.LOOKUP_INTERVAL", 0.01)
    monkeypatch.setattr("aioresolve.environment.detection.PRODUCT_FILE", tmp_path / "product_name")
    return lambda *arguments, **variables: run(arguments, environment(tmp_path / "none", **variables))


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[tuple[ThreadedKubernetesServer, dict[str, str]]]:
    """The cluster of the pod in which this process runs, one of two of an Indexed Job, and its variables."""
    job = "batch.kubernetes.io/job-name"
    index = "batch.kubernetes.io/job-completion-index"
    with KubernetesServer(tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        for number in range(2):
            labels = {job: "train", index: str(number)}
            server.add(pod(f"train-{number}", "ml", labels=labels, ip=f"127.0.0.{number + 1}"))
        yield server, server.in_cluster(tmp_path / "serviceaccount", namespace="ml")


def columns(output: str) -> dict[str, list[str]]:
    """Return the columns FOUND and USED by source."""
    header, *rows = output.splitlines()
    starts = [header.index(name) for name in ("SOURCE", "FOUND", "USED", "REASON")]
    return {row[: starts[1]].strip(): row[starts[1] : starts[3]].split() for row in rows}


def test_table_has_the_evidence_for_and_against_each_source(here: Here) -> None:
    result = here("here", TF_CONFIG=TWO_WORKERS, SM_HOSTS='["algo-1"]')
    assert (result.code, result.stderr) == (0, "")
    table = columns(result.stdout)
    assert table["TF_CONFIG"] == ["yes", "yes"]
    assert table["SageMaker"] == ["yes", "no"]
    assert table["Slurm"] == ["no", "no"]
    assert table["Kubernetes"] == ["unknown", "no"]
    assert "$TF_CONFIG has 2 tasks of worker" in result.stdout


def test_nothing_found_or_a_malformed_variable_exits_with_2_after_the_table(here: Here) -> None:
    nothing = here("here")
    assert nothing.code == 2
    assert {tuple(cells) for cells in columns(nothing.stdout).values()} == {("no", "no")}
    assert nothing.stderr == (
        "error: nothing describes the cluster of this process; resolve it by its source, such as"
        " `aioresolve kubernetes -l SELECTOR`\n"
    )
    assert here("here", "--this-task").stderr.startswith("error: --this-task requires -o tf-config")
    document = here("here", "-o", "json")
    assert (document.code, document.stdout) == (2, "")
    assert "TF_CONFIG: $TF_CONFIG is not set; " in document.stderr
    malformed = here("here", TF_CONFIG="{")
    assert (malformed.code, columns(malformed.stdout)["TF_CONFIG"]) == (2, ["yes", "yes"])
    assert "error: $TF_CONFIG is not JSON" in malformed.stderr


def test_outputs_have_the_evidence_and_the_tasks(here: Here) -> None:
    def output(*arguments: str) -> str:
        return here("here", "-o", *arguments, TF_CONFIG=TWO_WORKERS).stdout

    document = json.loads(output("json"))
    assert document["source"] == "TF_CONFIG"
    found = {each["source"]: each["found"] for each in document["evidence"]}
    assert (found["TF_CONFIG"], found["Slurm"], found["Kubernetes"]) == (True, False, None)
    assert [task["address"] for task in document["jobs"]["worker"]] == ["10.0.0.1:2222", "10.0.0.2:2222"]
    assert yaml.safe_load(output("yaml"))["jobs"] == document["jobs"]
    assert "JAX_PROCESS_ID=1\n" in output("jax", "--this-task")


def test_pods_of_the_same_workload_are_the_cluster_of_a_pod(
    here: Here, pods: tuple[ThreadedKubernetesServer, dict[str, str]]
) -> None:
    server, variables = pods
    output = here("here", **variables).stdout
    assert columns(output)["Kubernetes"] == ["yes", "yes"]
    assert "pod ml/train-0 belongs to Job 'train'" in output
    rows = here("here", "-o", "wide", **variables).stdout.splitlines()[1:]
    assert [row.split()[2] for row in rows] == ["train-0", "train-1"]
    waited = here("wait", "here", "--count", "2", "--timeout", "60", "-o", "name", **variables)
    assert (waited.code, waited.stdout) == (0, "127.0.0.1:8470\n127.0.0.2:8470\n")
    assert "the cluster is that of Kubernetes: pod ml/train-0 belongs to Job 'train'" in waited.stderr
    assert here("wait", "here", "--count", "3", "--timeout", "0.5", "-q", **variables).code == 3
    server.add(pod("train-2", "ml", labels={"batch.kubernetes.io/job-name": "train"}, phase="Pending"))
    pending = here("here", "-o", "table", **variables)  # has no option --not-running
    assert pending.stderr.endswith("or pass `not_running='skip'` to leave them out.\n")
    server.allow = {}
    denied = here("here", **variables)
    assert (denied.code, columns(denied.stdout)["Kubernetes"]) == (1, ["yes", "yes"])
    assert "kind: Role" in denied.stderr
