"""`aioresolve here`, and `here` as the source of other commands: output, messages and exit codes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import yaml

from aioresolve.cli import main
from aioresolve.testing import KubernetesServer, pod
from tests.environment.evidence import SOURCES

from .process import Running, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

TWO_WORKERS = json.dumps(
    {
        "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
        "task": {"type": "worker", "index": 1},
    }
)


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = ("SLURM", "SM_", "TF_CONFIG", "TPU", "KUBE", "MEGASCALE", "GCE_", "POD_", "AIORESOLVE")
    for name in list(os.environ):
        if name.startswith(prefixes) or name.upper() in {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"}:
            monkeypatch.delenv(name)
    monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(tmp_path / "serviceaccount"))
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", "metadata.invalid")
    monkeypatch.setattr("aioresolve.kubernetes.own_pod.LOOKUP_INTERVAL", 0.01)
    monkeypatch.setattr("aioresolve.environment.detection.PRODUCT_FILE", tmp_path / "product_name")


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedKubernetesServer]:
    """The cluster of the pod in which this process runs: one of two of an Indexed Job."""
    job = "batch.kubernetes.io/job-name"
    index = "batch.kubernetes.io/job-completion-index"
    with KubernetesServer(tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        for number in range(2):
            labels = {job: "train", index: str(number)}
            server.add(pod(f"train-{number}", "ml", labels=labels, ip=f"127.0.0.{number + 1}"))
        for name, value in server.in_cluster(tmp_path / "serviceaccount", namespace="ml").items():
            monkeypatch.setenv(name, value)
        yield server


def columns(output: str) -> dict[str, list[str]]:
    """Return the columns FOUND and USED by source."""
    header, *rows = output.splitlines()
    starts = [header.index(name) for name in ("SOURCE", "FOUND", "USED", "REASON")]
    return {row[: starts[1]].strip(): row[starts[1] : starts[3]].split() for row in rows}


def test_table_has_the_evidence_for_and_against_each_source(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", TWO_WORKERS)
    monkeypatch.setenv("SM_HOSTS", '["algo-1"]')
    assert main(["here"]) == 0
    output = capsys.readouterr()
    table = columns(output.out)
    assert list(table) == SOURCES
    assert table["TF_CONFIG"] == ["yes", "yes"]
    assert table["SageMaker"] == ["yes", "no"]
    assert table["Slurm"] == ["no", "no"]
    assert table["Kubernetes"] == ["unknown", "no"]
    assert "$TF_CONFIG has 2 tasks of worker" in output.out
    assert output.err == ""


def test_nothing_found_exits_with_2_after_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["here"]) == 2
    output = capsys.readouterr()
    assert {tuple(cells) for cells in columns(output.out).values()} == {("no", "no")}
    assert "error: nothing describes the cluster of this process; " in output.err
    assert main(["here", "-o", "json"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "TF_CONFIG: $TF_CONFIG is not set; " in output.err


def test_malformed_variable_is_in_the_table_and_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", "{")
    assert main(["here"]) == 2
    output = capsys.readouterr()
    assert columns(output.out)["TF_CONFIG"] == ["yes", "yes"]
    assert "error: $TF_CONFIG is not JSON" in output.err


def test_documents_have_the_evidence_and_the_tasks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", TWO_WORKERS)
    assert main(["here", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["source"] == "TF_CONFIG"
    assert [each["source"] for each in document["evidence"]] == SOURCES
    assert document["evidence"][0]["found"] is True
    assert document["evidence"][SOURCES.index("Kubernetes")]["found"] is None
    assert [task["address"] for task in document["jobs"]["worker"]] == ["10.0.0.1:2222", "10.0.0.2:2222"]
    assert main(["here", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["jobs"] == document["jobs"]
    assert main(["here", "-o", "jsonpath={.source} {.jobs.worker[*].address}"]) == 0
    assert capsys.readouterr().out.strip() == "TF_CONFIG 10.0.0.1:2222 10.0.0.2:2222"
    assert main(["here", "-o", "jax", "--this-task"]) == 0
    assert "JAX_PROCESS_ID=1\n" in capsys.readouterr().out


def test_pods_of_the_same_workload_are_the_cluster_of_a_pod(
    pods: ThreadedKubernetesServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["here"]) == 0
    output = capsys.readouterr().out
    assert columns(output)["Kubernetes"] == ["yes", "yes"]
    assert "pod ml/train-0 belongs to Job 'train'" in output
    assert main(["here", "-o", "wide"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[3] for row in rows] == ["train-0", "train-1"]


def test_pod_that_may_not_list_pods_exits_with_1_and_the_role(
    pods: ThreadedKubernetesServer, capsys: pytest.CaptureFixture[str]
) -> None:
    pods.allow = {}
    assert main(["here"]) == 1
    output = capsys.readouterr()
    assert columns(output.out)["Kubernetes"] == ["yes", "yes"]
    assert "kind: Role" in output.err


def test_wait_prints_the_cluster_of_this_process(
    pods: ThreadedKubernetesServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["wait", "here", "--count", "2", "--timeout", "60", "-o", "name"]) == 0
    output = capsys.readouterr()
    assert output.out == "127.0.0.1:8470\n127.0.0.2:8470\n"
    assert "the cluster is that of Kubernetes: pod ml/train-0 belongs to Job 'train'" in output.err
    assert main(["wait", "here", "--count", "3", "--timeout", "0.5", "-q"]) == 3
    assert "3" in capsys.readouterr().err


def test_watch_prints_the_tasks_and_continues(tmp_path: Path) -> None:
    with Running(("here", "-w"), environment(tmp_path / "config", TF_CONFIG=TWO_WORKERS)) as running:
        assert running.line().split()[:3] == ["EVENT", "JOB", "TASK"]
        assert [line.split()[:3] for line in running.lines(2)] == [
            ["JOINED", "worker", "0"],
            ["JOINED", "worker", "1"],
        ]
        assert running.process.poll() is None
