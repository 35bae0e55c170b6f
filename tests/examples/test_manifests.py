"""The manifests of examples/, and of the page on large fleets, are complete; their commands are valid."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from aioresolve.fleet import fleet_of, read_fleet
from tests.programs import ROOT
from tests.test_snippets import check_command_line, code_blocks

EXAMPLES = ROOT / "examples"
LARGE_FLEET = ROOT / "aioresolve" / "fleet" / "README.md"
"""The page on fleets larger than one machine."""

KUSTOMIZED = {"fleet.yaml", "kustomization.yaml", "service-monitor.yaml"}
"""Other files of the example that is applied with kustomize."""

MANIFESTS = sorted(path for path in EXAMPLES.glob("*/*.yaml") if path.name not in KUSTOMIZED)

WITHOUT_MANIFEST = ("tensorflow-sagemaker", "tensorflow-tf-config", "torchrun-instance-group")
"""Examples for platforms whose jobs are not described by a file."""


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


def test_each_folder_is_complete_and_listed() -> None:
    for folder in (path.name for path in EXAMPLES.iterdir() if path.is_dir()):
        assert f"]({folder})" in (EXAMPLES / "README.md").read_text()
        page = (EXAMPLES / folder / "README.md").read_text()
        assert len(page.splitlines()) <= 25
        files = {path.name for path in (EXAMPLES / folder).iterdir()} - {"README.md"}
        manifests = {name for name in files - KUSTOMIZED if name.endswith((".yaml", ".sbatch"))}
        assert len(manifests) == (0 if folder in WITHOUT_MANIFEST else 1)
        for name in manifests:
            command = f"{'sbatch' if name.endswith('.sbatch') else 'kubectl apply -f'} {name}"
            assert (command if KUSTOMIZED.isdisjoint(files) else "kubectl apply -k .") in page
        for name in files if folder in WITHOUT_MANIFEST else ():
            assert name in page


def test_kustomization_has_the_fleet_that_the_server_reads() -> None:
    folder = EXAMPLES / "fleet-server"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    [fleet] = kustomization["configMapGenerator"]
    assert kustomization["resources"] == ["fleet-server.yaml"]
    [(pod, container)] = containers(folder / "fleet-server.yaml")
    assert pod["volumes"] == [{"name": "config", "configMap": {"name": fleet["name"]}}]
    [mount] = container["volumeMounts"]
    assert f"{mount['mountPath']}/{fleet['files'][0]}" in container["command"]
    assert container["image"] == kustomization["images"][0]["name"]
    assert [*read_fleet(folder / fleet["files"][0]).targets] == ["trainers", "servers"]


def test_selectors_match_the_labels_of_pod_templates() -> None:
    for manifest in MANIFESTS:
        labels = [each.get("metadata", {}).get("labels", {}) for each in pod_templates(documents(manifest))]
        for document in documents(manifest):
            spec = document.get("spec", {})
            if document["kind"] == "StatefulSet":
                assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
            if document["kind"] == "Service":
                assert any(spec["selector"].items() <= each.items() for each in labels)
            assert "namespace" not in document["metadata"]


def test_service_account_exists_and_may_list_and_watch_what_is_resolved() -> None:
    for manifest in MANIFESTS:
        by_kind: dict[str, dict[str, Any]] = {}
        for document in documents(manifest):
            by_kind.setdefault(document["kind"], {})[document["metadata"]["name"]] = document
        used = {
            spec["serviceAccountName"] for spec, _ in containers(manifest) if "serviceAccountName" in spec
        }
        assert used == set(by_kind["ServiceAccount"])
        by_service = any(word.startswith("--service") for line in command_lines(manifest) for word in line)
        group, resource = ("discovery.k8s.io", "endpointslices") if by_service else ("", "pods")
        granted = set()
        for binding in by_kind["RoleBinding"].values():
            first, *others = by_kind["Role"][binding["roleRef"]["name"]]["rules"]
            assert first == {"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}
            assert all(rule["verbs"] == ["get"] for rule in others)  # of controllers
            granted |= {each["name"] for each in binding["subjects"] if each["kind"] == "ServiceAccount"}
        assert granted == used


def test_command_lines_are_accepted() -> None:
    for line in (line for manifest in MANIFESTS for line in command_lines(manifest)):
        check_command_line(line)


POD_TEMPLATE = "V1PodTemplateSpec"

CUSTOM_FIELDS: dict[str, Any] = {
    # https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
    "jobset.x-k8s.io/v1alpha2/JobSet": {
        "failurePolicy": {"maxRestarts": "int"},
        "replicatedJobs": [{"name": "str", "replicas": "int", "template": "V1JobTemplateSpec"}],
    },
    # https://www.kubeflow.org/docs/components/trainer/
    "trainer.kubeflow.org/v1alpha1/TrainJob": {
        "runtimeRef": {"name": "str"},
        "trainer": {"numNodes": "int", "image": "str", "command": ["str"], "env": ["V1EnvVar"]},
    },
    # https://lws.sigs.k8s.io/docs/reference/leaderworkerset.v1/
    "leaderworkerset.x-k8s.io/v1/LeaderWorkerSet": {
        "replicas": "int",
        "leaderWorkerTemplate": {
            "size": "int",
            "restartPolicy": "str",
            "leaderTemplate": POD_TEMPLATE,
            "workerTemplate": POD_TEMPLATE,
        },
    },
    # https://ray-project.github.io/kuberay/reference/api/
    "ray.io/v1/RayCluster": {
        "rayVersion": "str",
        "headGroupSpec": {"rayStartParams": "Dict[str, str]", "template": POD_TEMPLATE},
        "workerGroupSpecs": [
            {
                "groupName": "str",
                "replicas": "int",
                "minReplicas": "int",
                "maxReplicas": "int",
                "rayStartParams": "Dict[str, str]",
                "template": POD_TEMPLATE,
            }
        ],
    },
    # https://prometheus-operator.dev/docs/api-reference/api/
    "monitoring.coreos.com/v1/ServiceMonitor": {
        "selector": "V1LabelSelector",
        "endpoints": [{"port": "str", "interval": "str"}],
    },
    # https://volcano.sh/en/docs/vcjob/
    "batch.volcano.sh/v1alpha1/Job": {
        "schedulerName": "str",
        "minAvailable": "int",
        "tasks": [{"name": "str", "replicas": "int", "template": POD_TEMPLATE}],
    },
}
"""The fields of the custom resources in examples/ and docs/torchrun.md, of the many that they have."""


def unknown_fields(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Yield each field of `value` that its type does not have, and each value of another type.

    Args:
        value: a part of a manifest.
        kind: its type: the name of a model of the Kubernetes client (`V1PodSpec`, `List[V1EnvVar]`, `str`),
            or the types of the fields of a custom resource.
        where: its place in the manifest.
    """
    client = pytest.importorskip("kubernetes.client")
    if isinstance(kind, str) and (model := getattr(client, kind, None)):
        kind = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    elif isinstance(kind, str) and (items := re.fullmatch(r"[Ll]ist\[(.*)\]", kind)):
        kind = [items[1]]
    match kind:
        case dict() if isinstance(value, dict):
            for name, inner in value.items():
                if name in kind:
                    yield from unknown_fields(inner, kind[name], f"{where}.{name}")
                else:
                    yield f"{where}.{name}"
        case list() if isinstance(value, list):
            for number, inner in enumerate(value):
                yield from unknown_fields(inner, kind[0], f"{where}[{number}]")
        case "str" | "int" | "bool" if type(value).__name__ == kind:
            pass
        case "object":
            pass
        case str() if kind.lower().startswith("dict") and isinstance(value, dict):
            yield from (
                f"{where}.{name}" for name, inner in value.items() if not isinstance(inner, str | int)
            )
        case _:
            yield f"{where}: {value!r} is not {kind}"


def unknown_fields_of(document: dict[str, Any]) -> Iterator[str]:
    """Yield each field of an object that its kind does not have, and each value of another type."""
    kind, where = f"{document['apiVersion']}/{document['kind']}", document["kind"]
    if kind not in CUSTOM_FIELDS:
        yield from unknown_fields(document, f"V1{where}", where)
        return
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    yield from unknown_fields(document["metadata"], "V1ObjectMeta", f"{where}.metadata")
    yield from unknown_fields(document["spec"], CUSTOM_FIELDS[kind], f"{where}.spec")


def test_every_field_exists_and_has_its_type() -> None:
    texts = [manifest.read_text() for manifest in MANIFESTS]
    texts += [*code_blocks(ROOT / "docs" / "torchrun.md", "yaml"), *code_blocks(LARGE_FLEET, "yaml")]
    found = [document for text in texts for document in yaml.safe_load_all(text)]
    assert [fault for document in found for fault in unknown_fields_of(document)] == []
    (recipe,) = code_blocks(ROOT / "docs" / "recipes.md", "yaml")
    assert list(unknown_fields(yaml.safe_load(recipe), "V1PodSpec", "recipes")) == []


# A fleet larger than one machine


def test_job_of_a_large_fleet_has_a_pod_for_each_shard() -> None:
    config, job = large_fleet("ConfigMap"), large_fleet("Job")
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(config["data"]["shards"]) == 4
    [container] = job["spec"]["template"]["spec"]["containers"]
    [shards] = container["env"]
    key = {"name": config["metadata"]["name"], "key": "shards"}
    assert shards == {"name": "SHARDS", "valueFrom": {"configMapKeyRef": key}}
    assert "--shards $(SHARDS)" in " ".join(container["args"])
    patches = re.findall(r"-p '(.*)'", LARGE_FLEET.read_text())
    assert [json.loads(patch) for patch in patches] == [  # for a fifth shard
        {"data": {"shards": "5"}},
        {"spec": {"completions": 5, "parallelism": 5}},
    ]


def test_large_fleet_reads_its_kubeconfig_from_the_volume_and_its_namespace_may_be_read() -> None:
    text = large_fleet("ConfigMap")["data"]["fleet.yaml"]
    file = fleet_of(text, source="/etc/aioresolve/fleet.yaml", environ={})
    paths = {resolver._copied_arguments()[1].get("kubeconfig") for resolver in file.targets.values()}
    volumes = large_fleet("Job")["spec"]["template"]["spec"]["volumes"]
    (item,) = volumes[0]["projected"]["sources"][1]["secret"]["items"]
    assert paths == {None, f"/etc/aioresolve/{item['path']}"}
    fleet = yaml.safe_load(text)
    assert fleet["defaults"]["kubernetes"]["namespace"] == large_fleet("Role")["metadata"]["namespace"]
    assert not any("namespace" in target["kubernetes"] for target in fleet["targets"].values())


def large_fleet(kind: str) -> dict[str, Any]:
    """Return the first object of this kind on the page on fleets larger than one machine."""
    found = [document for text in code_blocks(LARGE_FLEET, "yaml") for document in yaml.safe_load_all(text)]
    return next(document for document in found if document["kind"] == kind)


def test_commands_for_a_large_fleet_are_valid_shell() -> None:
    for script in code_blocks(LARGE_FLEET, "sh"):
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)
