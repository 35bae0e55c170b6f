"""Every example in README.md and docs/ runs, and prints the output that the document shows."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from aioresolve.cli import main
from aioresolve.cli.application import application
from aioresolve.kubernetes.api.errors import rbac_manifest
from aioresolve.testing import (
    GoogleServer,
    KubernetesServer,
    instance,
    pod,
    service,
    tpu_node,
    tpu_worker_process,
)

ROOT = Path(__file__).parent.parent
SITE = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [ROOT / "README.md", *(page for page in SITE if page.name != "quickstart.md")]
"""The pages with examples that need nothing else; tests/test_quickstart.py runs those of the quickstart."""
PAGES = [
    *ROOT.glob("*.md"),
    *SITE,
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "examples").rglob("README.md")),
    ROOT / "aioresolve" / "fleet" / "README.md",
]


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
                command, _, output = text.replace("\\\n", "").partition("\n")
                yield pytest.param(command, output, id=f"{document.name}-{command}")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run the Kubernetes cluster of the examples; `$KUBECONFIG` names its kubeconfig."""
    workers = [
        pod(
            f"train-{job}-{number % 2}",
            "training",
            labels={
                "app": "trainer",
                "job-name": f"train-{job}",
                "apps.kubernetes.io/pod-index": str(number),
            },
            ip=f"10.4.{number}.7",
        )
        for number, job in enumerate("aabb")
    ]
    ps = pod("ps-0", "training", labels={"app": "ps"}, ip="10.4.4.7")
    services = [
        service("trainer", "training", selector={"app": "trainer"}),
        service("ps", "training", selector={"app": "ps"}, ports={"grpc": 2222}),
    ]
    with KubernetesServer(
        [*workers, ps, *services], tls=True, tokens={"a-token": "reader"}
    ).in_thread() as server:
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
    nodes += [instance(f"worker-{n}", ip=f"10.128.0.{n + 10}") for n in range(2)]
    with GoogleServer(nodes, project="my-project", zone="us-central2-b").in_thread() as server:
        server.instance_groups["workers"] = ["worker-0", "worker-1"]
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables of the second of two processes that `srun` has started on two nodes."""
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2)")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "1")


@pytest.mark.usefixtures("cluster", "google", "slurm")
@pytest.mark.parametrize("snippet", list(python_snippets()))
def test_python_snippet_runs_and_writes_nothing_to_stderr(snippet: str) -> None:
    program = snippet if "asyncio.run(" in snippet else PROGRAM
    # gRPC's core may log that the worker has closed a connection.
    env = {**os.environ, "GRPC_VERBOSITY": "NONE"}
    done = subprocess.run(
        [sys.executable, "-c", program], input=snippet, env=env, capture_output=True, text=True, check=False
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


def command_lines_of_blocks() -> Iterator[str]:
    """Yield each command line of aioresolve that is shown without its output, or in a manifest."""
    for page in PAGES:
        for language, block in re.findall(
            r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            for line in re.sub(r",\n +", ", ", block).replace("\\\n", " ").splitlines():
                words = line.replace("command: [", "").removesuffix("]").replace(", ", " ").removeprefix("$ ")
                if language in {"sh", "text", "yaml"} and words.startswith("aioresolve "):
                    yield words


def check_command_line(words: list[str]) -> None:
    """Fail if `aioresolve WORDS` is not valid."""
    command: Any = application
    while isinstance(command, click.Group):
        context = command.make_context("aioresolve", [], resilient_parsing=True)
        name, *words = words
        command = command.get_command(context, name)
        assert command is not None, name
    command.make_context("aioresolve", words)


def test_every_command_line_that_is_only_shown_is_valid() -> None:
    lines = list(command_lines_of_blocks())
    assert lines
    for line in lines:
        check_command_line(shlex.split(line.partition(" | ")[0])[1:])


def test_yaml_is_valid() -> None:
    for page in PAGES:
        for block in code_blocks(page, "yaml"):
            assert None not in list(yaml.safe_load_all(block)), page


def test_fleet_file_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    (text,) = code_blocks(ROOT / "docs" / "fleets.md", "yaml")
    file.write_text(text)
    # All of the targets are in other shards, so that none is requested.
    assert main(["poll", str(file), "--once", "--shards", "999/1000"]) == 0
    assert capsys.readouterr().err.startswith("this shard is empty; the fleet has ")


def test_documented_manifest_is_the_one_that_forbidden_error_contains() -> None:
    shown, *_ = code_blocks(ROOT / "docs" / "permissions.md", "yaml")
    assert shown == rbac_manifest("system:serviceaccount:training:trainer", "training")
    assert [document["kind"] for document in yaml.safe_load_all(shown)] == ["Role", "RoleBinding"]


def test_every_error_has_a_section_in_the_guide() -> None:
    from aioresolve import errors

    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    errors_of_module = {kind.__name__ for kind in classes if issubclass(kind, errors.ResolveError)}
    headings = re.findall(r"^#+ (\w+Error)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    assert {name for name in errors_of_module if not name.startswith("_")} == set(headings)
    assert len(headings) == len(set(headings))


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of `page`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_existing_files_and_headings() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if "://" in link or link == "fleet.schema.json":  # which the site makes
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            is_object = target.parent.name == "reference"  # mkdocs --strict checks those
            if not target.exists() or (anchor and not is_object and anchor not in anchors(target)):
                broken.append((page.name, link))
    assert broken == []
