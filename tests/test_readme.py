"""Every snippet of the README runs, and says what it shows."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from aioresolve.kubernetes.api_errors import manifest
from aioresolve.testing import GoogleServer, KubernetesServer, pod, tpu_node, tpu_worker_process

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The cluster the README speaks of, found through $KUBECONFIG as a reader's own would be."""
    workers = [
        pod(
            f"train-{job}-{index}",
            "training",
            labels={
                "app": "trainer",
                "job-name": f"train-{job}",
                "apps.kubernetes.io/pod-index": str(index + 2 * (job == "b")),
            },
            ip=f"10.4.{index + 2 * (job == 'b')}.7",
        )
        for job in "ab"
        for index in range(2)
    ]
    ps = pod("ps-0", "training", labels={"app": "ps"}, ip="10.4.4.7")
    with KubernetesServer([*workers, ps], tls=True, tokens={"a-token": "reader"}).in_thread() as server:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config")))
        yield


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    """The workers of `my-tpu`."""
    with tpu_worker_process(devices=4, ports=2) as addresses:
        yield addresses


@pytest.fixture
def google(workers: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The TPUs the README speaks of, found at the API's address as gcloud would find it."""
    endpoints = [
        {"ipAddress": host, "port": int(port)} for host, port in (each.split(":") for each in workers)
    ]
    nodes = [
        tpu_node("my-tpu", accelerator_type="v4-16", topology="2x2x2") | {"networkEndpoints": endpoints},
        *(
            tpu_node(f"slice-{n}", ips=ips, accelerator_type="v4-16", topology="2x2x2")
            for n, ips in enumerate([["10.130.0.2", "10.130.0.3"], ["10.130.0.10", "10.130.0.11"]])
        ),
        tpu_node(
            "projects/my-project/locations/europe-west4-a/nodes/spare",
            ips=[],
            accelerator_type="v5litepod-16",
            state="CREATING",
            health=None,
        ),
    ]
    with GoogleServer(nodes, project="my-project", zone="us-central2-b").in_thread() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.usefixtures("cluster", "google")
@pytest.mark.parametrize("snippet", blocks("python"))
async def test_a_python_snippet_runs(snippet: str) -> None:
    code = compile(snippet, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    running = eval(code, {})
    if inspect.isawaitable(running):
        await running


def commands() -> Iterator[tuple[str, str]]:
    for block in blocks("console"):
        for command in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = command.partition("\n")
            yield line, output


@pytest.mark.usefixtures("cluster", "google")
@pytest.mark.parametrize(("command", "output"), list(commands()))
def test_a_command_prints_what_the_readme_shows(command: str, output: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "aioresolve"
    done = subprocess.run(
        [sys.executable, "-m", "aioresolve", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    assert done.stdout == output


def test_the_manifest_is_the_one_an_error_would_carry() -> None:
    shown = blocks("yaml")[0]
    assert shown == manifest("system:serviceaccount:training:trainer", "training")
    assert [document["kind"] for document in yaml.safe_load_all(shown)] == ["Role", "RoleBinding"]


def test_each_set_up_command_is_one_line_that_needs_python_only() -> None:
    first_screen = README.partition("## ")[0]
    for name in ("demo", "tests"):
        (command,) = re.findall(rf"^<!-- the {name} -->\n```sh\n(.*)\n```$", first_screen, re.MULTILINE)
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_every_error_is_in_the_table() -> None:
    from aioresolve import errors

    table = README.partition("## Errors")[2].partition("## ")[0]
    assert {name for name in errors.__all__ if f"`{name}`" not in table} == set()


def test_every_link_leads_to_a_file_that_is_there() -> None:
    root = Path(__file__).parent.parent
    links = [
        link
        for link in re.findall(r"\]\(([^)]+)\)", README)
        if "://" not in link and not link.startswith("#")
    ]
    assert [link for link in links if not (root / link).exists()] == []
