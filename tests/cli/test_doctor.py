"""`aioresolve doctor`: a row for each check, remedies, exit codes."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioresolve.testing import ThreadedKubernetesServer, pod

from .process import TOKEN, Run, environment

TRAIN = ("doctor", "kubernetes", "-n", "ml", "-l", "app=here")


@pytest.fixture
def env(kubeconfig: Path) -> dict[str, str]:
    return environment(kubeconfig, NO_GCE_CHECK="true")


@pytest.fixture
def here(server: ThreadedKubernetesServer) -> Iterator[tuple[str, ...]]:
    """The command for a pod that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.add(pod("here-0", "ml", labels={"app": "here"}, ip="127.0.0.1", index=0))
        yield (*TRAIN, "--port", str(listener.getsockname()[1]))


def rows(text: str) -> dict[str, str]:
    """Return the result of each check in a table."""
    lines = text.partition("\n\n")[0].splitlines()
    results = {"ok", "warning", "failed", "skipped"}
    found = [line.split("   ") for line in lines[1:]]
    cells = [[cell.strip() for cell in each if cell.strip()] for each in found]
    assert {each[1] for each in cells} <= results
    return {each[0]: each[1] for each in cells}


def test_checks_that_one_failure_prevents_share_a_row(
    run: Run, env: dict[str, str], kubeconfig: Path
) -> None:
    text = kubeconfig.read_text()
    kubeconfig.write_text(re.sub("https://[0-9.:]*", "https://127.0.0.1:1", text))
    done = run(TRAIN, env)
    assert rows(done.stdout)["API server"] == "failed"
    checks = json.loads(run((*TRAIN, "-o", "json"), env).stdout)["checks"]
    skipped = [check["name"] for check in checks if check["result"] == "skipped"]
    assert f"{skipped[0]} and {len(skipped) - 1} more   skipped   not checked, because 'API s" in done.stdout


@pytest.mark.slow
def test_healthy_cluster_exits_with_0(run: Run, env: dict[str, str], here: tuple[str, ...]) -> None:
    done = run((*here, "--check-timeout", "20s"), env)
    assert (done.code, done.stderr) == (0, "")
    table = rows(done.stdout)
    assert done.stdout.splitlines()[0].split() == ["CHECK", "RESULT", "FOUND"]
    assert table["API server"] == table["tasks"] == table["addresses"] == "ok"
    assert "failed" not in table.values()


def test_failure_exits_with_1_and_has_a_remedy_spelled_as_an_option(run: Run, env: dict[str, str]) -> None:
    done = run(("doctor", "kubernetes", "-n", "ml", "-l", "app=none"), env)
    assert (done.code, done.stderr) == (1, "error: 1 of 8 checks failed\n")
    assert rows(done.stdout)["tasks"] == "failed"
    _, _, remedies = done.stdout.partition("\n\n")
    assert "values of app there: ps, stuck, train" in done.stdout
    assert remedies == "tasks: Correct what selects the tasks, or wait for them: `aioresolve wait`.\n"


def test_manifest_of_a_denial_can_be_copied(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.verbs["alice"] = {"list", "get"}
    done = run((*TRAIN, "-o", "json"), env)
    assert done.code == 1
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert "\nkind: Role\n" in checks["watch pods"]["remedy"]
    table = run(TRAIN, env).stdout
    assert "\nkind: Role\n" in table
    assert TOKEN not in table + done.stdout


def test_without_a_source_this_machine_is_checked(run: Run, env: dict[str, str]) -> None:
    done = run(("doctor",), env)
    assert (done.code, done.stderr) == (0, "")
    assert rows(done.stdout) == {"versions": "ok", "this process": "ok"}


def test_tpu_is_checked(run: Run, env: dict[str, str]) -> None:
    done = run(("doctor", "tpu", "grpc://127.0.0.1:1", "-o", "json"), env)
    checks = {check["name"]: check["result"] for check in json.loads(done.stdout)["checks"]}
    assert (done.code, checks["source"], checks["addresses"]) == (0, "ok", "warning")


def test_cluster_of_this_process_is_checked(run: Run, env: dict[str, str]) -> None:
    config = '{"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}'
    done = run(("doctor", "here"), env | {"TF_CONFIG": config})
    assert done.code == 1
    assert rows(done.stdout)["this task"] == "ok"
    assert done.stderr.startswith("the cluster is that of TF_CONFIG: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "json", "kubernetes", "-l", "a=b"), "options come after the source: aioresolve doctor kub"),
        (("here",), "nothing describes the cluster of this process"),
    ],
)
def test_invalid_usage_exits_with_2(
    run: Run, env: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    done = run(("doctor", *arguments), env)
    assert done.code == 2
    assert message in done.stderr
