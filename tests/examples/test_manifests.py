"""The manifests of examples/ are complete, and their command lines are valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aioresolve.cli.application import COMMANDS, application
from tests.programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*/*.yaml"))

each_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.parent.name)


def documents(manifest: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(manifest.read_text()))


def pod_templates(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every pod template in a manifest, however deep it is in its controller."""
    if isinstance(value, Mapping):
        if "containers" in value.get("spec", {}) and value.get("kind") != "Pod":
            yield dict(value)
        for inner in value.values():
            yield from pod_templates(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_templates(inner)


def containers(manifest: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each container with its pod's spec."""
    for template in pod_templates(documents(manifest)):
        spec = template["spec"]
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            yield spec, container


def command_lines(manifest: Path) -> Iterator[list[str]]:
    """Yield the arguments of each container that runs aioresolve, with numbers for variables."""
    for _, container in containers(manifest):
        program, *arguments = container.get("command", [""])
        if program == "aioresolve":
            yield [each.replace("$(GROUP)", "0").replace("$(LWS_GROUP_SIZE)", "2") for each in arguments]


@pytest.mark.parametrize("folder", sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir()))
def test_folder_is_complete_and_listed(folder: str) -> None:
    assert f"]({folder})" in (EXAMPLES / "README.md").read_text()
    lines = (EXAMPLES / folder / "README.md").read_text().splitlines()
    assert 10 <= len(lines) <= 25
    [manifest] = (EXAMPLES / folder).glob("*.yaml")
    assert f"kubectl apply -f {manifest.name}" in "\n".join(lines)


@each_manifest
def test_objects_have_different_names_and_no_namespace(manifest: Path) -> None:
    found = [(each["kind"], each["metadata"]["name"]) for each in documents(manifest)]
    assert len(set(found)) == len(found)
    assert all("namespace" not in each["metadata"] for each in documents(manifest))


@each_manifest
def test_selectors_match_the_labels_of_pod_templates(manifest: Path) -> None:
    labels = [each.get("metadata", {}).get("labels", {}) for each in pod_templates(documents(manifest))]
    for document in documents(manifest):
        spec = document.get("spec", {})
        if document["kind"] == "StatefulSet":
            assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        if document["kind"] == "Service":
            assert any(spec["selector"].items() <= each.items() for each in labels)


@each_manifest
def test_stateful_sets_have_their_headless_service(manifest: Path) -> None:
    services = {
        each["metadata"]["name"]: each["spec"] for each in documents(manifest) if each["kind"] == "Service"
    }
    for document in documents(manifest):
        if document["kind"] == "StatefulSet":
            assert services[document["spec"]["serviceName"]]["clusterIP"] == "None"


@each_manifest
def test_service_account_exists_and_may_list_and_watch_pods(manifest: Path) -> None:
    by_kind: dict[str, dict[str, Any]] = {}
    for document in documents(manifest):
        by_kind.setdefault(document["kind"], {})[document["metadata"]["name"]] = document
    used = {spec["serviceAccountName"] for spec, _ in containers(manifest) if "serviceAccountName" in spec}
    assert used == set(by_kind["ServiceAccount"])
    granted = set()
    for binding in by_kind["RoleBinding"].values():
        assert by_kind["Role"][binding["roleRef"]["name"]]["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
        ]
        granted |= {each["name"] for each in binding["subjects"] if each["kind"] == "ServiceAccount"}
    assert granted == used


@each_manifest
def test_every_program_of_a_command_is_in_the_folder(manifest: Path) -> None:
    programs = {path.name for path in manifest.parent.iterdir() if path.suffix in {".py", ".sh"}}
    started = {
        word
        for _, container in containers(manifest)
        for word in container.get("command", ())
        if word.endswith((".py", ".sh")) and word != "program.py"
    }
    assert started == programs


COMMAND_LINES = [line for manifest in MANIFESTS for line in command_lines(manifest)]


@pytest.mark.parametrize("line", [line for line in COMMAND_LINES if line[0] in COMMANDS], ids=" ".join)
def test_command_line_is_accepted(line: list[str]) -> None:
    command: Any = application
    for word in line[:2]:
        context = command.make_context(word, [], resilient_parsing=True)
        command = command.get_command(context, word)
    command.make_context(line[1], line[2:])


def test_selectors_of_command_lines_are_labels_of_the_pods() -> None:
    for manifest in MANIFESTS:
        text = manifest.read_text()
        for line in command_lines(manifest):
            selector = line[line.index("-l") + 1] if "-l" in line else line[2].removeprefix("--selector=")
            if selector.startswith("app="):
                assert f"labels: {{app: {selector.removeprefix('app=')}}}" in text
