"""Every example in README.md and docs/ runs, and prints the output that the document shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from aioresolve.kubernetes.api_errors import rbac_manifest
from aioresolve.testing import GoogleServer, KubernetesServer, pod, tpu_node, tpu_worker_process

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [*DOCUMENTS, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]


PROGRAM = """
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "snippet", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

async def main():
    result = eval(code, {"__name__": "__main__"})
    if inspect.isawaitable(result):
        await result

asyncio.run(main())
"""
"""A program that runs a snippet, which may use `await` outside functions, and then ends."""


def code_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


def python_snippets() -> Iterator[object]:
    for document in DOCUMENTS:
        for number, snippet in enumerate(code_blocks(document, "python"), 1):
            yield pytest.param(snippet, id=f"{document.name}-{number}")


def console_commands() -> Iterator[object]:
    for document in DOCUMENTS:
        for block in code_blocks(document, "console"):
            for text in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = text.partition("\n")
                yield pytest.param(command, output, id=f"{document.name}-{command}")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the Kubernetes cluster of the examples; `$KUBECONFIG` names its kubeconfig."""
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
    """Run the workers of `my-tpu` in another process, and return their addresses."""
    with tpu_worker_process(devices=4, ports=2) as addresses:
        yield addresses


@pytest.fixture
def google(workers: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the Google Cloud project of the examples; environment variables lead to it."""
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


def test_first_snippet_is_a_whole_program() -> None:
    first, *_ = code_blocks(ROOT / "README.md", "python")
    compile(first, "snippet", "exec")
    assert "asyncio.run(" in first


@pytest.mark.usefixtures("cluster", "google")
@pytest.mark.parametrize("snippet", list(python_snippets()))
def test_python_snippet_runs_and_writes_nothing_to_stderr(snippet: str) -> None:
    program = snippet if "asyncio.run(" in snippet else PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program], input=snippet, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("cluster", "google")
@pytest.mark.parametrize(("command", "output"), list(console_commands()))
def test_command_prints_the_output_that_is_shown(command: str, output: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "aioresolve"
    completed = subprocess.run(
        [sys.executable, "-m", "aioresolve", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ},
    )
    assert completed.stdout == output


def test_documented_manifest_is_the_one_that_forbidden_error_contains() -> None:
    (shown,) = code_blocks(ROOT / "docs" / "permissions.md", "yaml")
    assert shown == rbac_manifest("system:serviceaccount:training:trainer", "training")
    assert [document["kind"] for document in yaml.safe_load_all(shown)] == ["Role", "RoleBinding"]


def test_set_up_commands_are_one_line_each_and_need_only_python() -> None:
    first_screen = (ROOT / "README.md").read_text().partition("## ")[0]
    for name in ("demo", "tests"):
        (command,) = re.findall(rf"^<!-- the {name} -->\n```sh\n(.*)\n```$", first_screen, re.MULTILINE)
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")


def test_readme_is_at_most_200_lines_long() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_error_guide_lists_every_error() -> None:
    from aioresolve import errors

    text = (ROOT / "docs" / "errors.md").read_text()
    names = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    missing = {name for name in names if issubclass(getattr(errors, name), Exception)} - set(
        re.findall(r"`(\w+)`", text)
    )
    assert missing == set()


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of `page`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []
