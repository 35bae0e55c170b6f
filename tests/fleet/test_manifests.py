"""The page on fleets larger than one machine: its manifests fit together, and its Job works."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import yaml

import aioresolve
from aioresolve.fleet import fleet_of
from tests.programs import ROOT

PAGE = (Path(aioresolve.__file__).parent / "fleet" / "README.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text().splitlines()


def files(language: str) -> dict[str, str]:
    """Return the code blocks of the page that are files, by the names in their first lines."""
    blocks = re.findall(rf"^```{language}\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return dict(blocks)


MANIFESTS = {name: list(yaml.safe_load_all(text)) for name, text in files("yaml").items()}
OBJECTS = [found for documents in MANIFESTS.values() for found in documents]
HERE, WATCHED = MANIFESTS["here.yaml"], MANIFESTS["watched.yaml"]
(CONFIG,), (JOB,) = MANIFESTS["fleet-config.yaml"], MANIFESTS["fleet-job.yaml"]
POD = JOB["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
FOLDER = "/etc/aioresolve"


def of_kind(documents: list[Any], kind: str) -> Any:
    (found,) = (document for document in documents if document["kind"] == kind)
    return found


def unknown_fields(value: Any, model: str) -> list[str]:
    """Return the fields in `value` that the model of the official client lacks, or has with another type."""
    client = importlib.import_module("kubernetes.client")

    if found := re.fullmatch(r"list\[(\w+)\]", model, re.IGNORECASE):
        assert isinstance(value, list)
        return [field for item in value for field in unknown_fields(item, found[1])]
    if not model.startswith("V1"):
        plain = {"str": str, "int": int, "bool": bool}.get(model, dict)
        return [] if isinstance(value, plain) else [f"{value!r} is not a {model}"]
    kind = getattr(client, model)
    types = {written: kind.openapi_types[name] for name, written in kind.attribute_map.items()}
    unknown = [f"{model}.{name}" for name in value if name not in types]
    known = [name for name in value if name in types]
    return unknown + [field for name in known for field in unknown_fields(value[name], types[name])]


def command_line(**variables: str) -> list[str]:
    """Return the arguments of the container, as the kubelet expands them."""
    return [
        re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], argument) for argument in CONTAINER["args"]
    ]


class TestManifests:
    @pytest.mark.real
    def test_kubernetes_knows_each_field(self) -> None:
        assert [unknown_fields(each, f"V1{each['kind']}") for each in OBJECTS] == [[]] * len(OBJECTS)

    def test_number_of_pods_is_the_number_of_shards(self) -> None:
        spec = JOB["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["completions"] == spec["parallelism"] == int(CONFIG["data"]["shards"]) == 4
        assert CONTAINER["env"] == [
            {
                "name": "SHARDS",
                "valueFrom": {"configMapKeyRef": {"name": CONFIG["metadata"]["name"], "key": "shards"}},
            }
        ]
        assert command_line(SHARDS="4") == [
            "poll",
            f"{FOLDER}/fleet.yaml",
            "--shards",
            "4",
            "-o",
            "json",
        ]

    def test_fleet_file_finds_its_kubeconfig_in_the_volume(self) -> None:
        file = fleet_of(CONFIG["data"]["fleet.yaml"], source=f"{FOLDER}/fleet.yaml", environ={})
        paths = {resolver._copied_arguments()[1].get("kubeconfig") for resolver in file.targets.values()}
        (item,) = POD["volumes"][0]["projected"]["sources"][1]["secret"]["items"]
        assert paths == {None, str(PurePosixPath(FOLDER, item["path"]))}

    def test_fleet_uses_the_namespaces_that_it_has_permission_for(self) -> None:
        fleet = yaml.safe_load(CONFIG["data"]["fleet.yaml"])
        assert fleet["defaults"]["kubernetes"]["namespace"] == of_kind(HERE, "Role")["metadata"]["namespace"]
        assert not any("namespace" in target["kubernetes"] for target in fleet["targets"].values())

    def test_each_script_is_valid_shell(self) -> None:
        for script in files("sh").values():
            subprocess.run(["sh", "-n"], input=script, text=True, check=True)

    def test_script_for_a_fifth_shard_changes_both_numbers(self) -> None:
        patches = [json.loads(patch) for patch in re.findall(r"-p '(.*)'", files("sh")["fifth-shard.sh"])]
        assert patches == [{"data": {"shards": "5"}}, {"spec": {"completions": 5, "parallelism": 5}}]


def test_commands_of_the_page_are_valid_shell() -> None:
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        assert shlex.split(block, comments=True)
