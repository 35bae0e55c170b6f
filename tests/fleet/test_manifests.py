"""The page on fleets larger than one machine: its manifests fit together, and its Job works."""

from __future__ import annotations

import importlib
import json
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import pytest
import yaml

import aioresolve
from aioresolve.fleet.config import fleet_of
from aioresolve.kubernetes.api.errors import rbac_manifest
from aioresolve.testing import KubernetesServer, pod
from tests.programs import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from aioresolve.testing import ThreadedKubernetesServer

PAGE = (Path(aioresolve.__file__).parent / "fleet" / "README.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text().splitlines()
TIMEOUT = 60
"""Seconds after which a process without output, or one that does not exit, counts as hung."""


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
    def test_kubernetes_knows_each_field(self) -> None:
        assert [unknown_fields(each, f"V1{each['kind']}") for each in OBJECTS] == [[]] * len(OBJECTS)

    @pytest.mark.parametrize(
        ("documents", "user"),
        [(HERE, "system:serviceaccount:fleet:fleet"), (WATCHED, "system:serviceaccount:training:fleet")],
    )
    def test_fleet_may_list_and_watch_pods_and_nothing_else(self, documents: list[Any], user: str) -> None:
        expected = list(yaml.safe_load_all(rbac_manifest(user, "training", ("list", "watch"))))
        assert [found for found in documents if found["apiVersion"].startswith("rbac")] == expected
        assert expected[0]["rules"] == [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}
        ]
        account = of_kind(documents, "ServiceAccount")["metadata"]
        assert of_kind(documents, "RoleBinding")["subjects"] == [{"kind": "ServiceAccount", **account}]

    def test_token_in_another_cluster_belongs_to_the_account(self) -> None:
        secret, account = of_kind(WATCHED, "Secret"), of_kind(WATCHED, "ServiceAccount")
        assert secret["type"] == "kubernetes.io/service-account-token"
        assert secret["metadata"]["annotations"] == {
            "kubernetes.io/service-account.name": account["metadata"]["name"]
        }
        assert secret["metadata"]["namespace"] == account["metadata"]["namespace"]

    def test_objects_of_the_fleet_are_in_its_namespace(self) -> None:
        namespace = of_kind(HERE, "Namespace")["metadata"]["name"]
        account = of_kind(HERE, "ServiceAccount")["metadata"]
        assert {namespace} == {
            account["namespace"],
            CONFIG["metadata"]["namespace"],
            JOB["metadata"]["namespace"],
        }
        assert POD["serviceAccountName"] == account["name"]

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

    def test_failing_container_does_not_end_the_job(self) -> None:
        assert JOB["spec"]["backoffLimit"] == 2**31 - 1
        assert POD["restartPolicy"] == "OnFailure"

    def test_each_volume_is_mounted_and_its_sources_exist(self) -> None:
        assert {volume["name"] for volume in POD["volumes"]} == {
            mount["name"] for mount in CONTAINER["volumeMounts"]
        }
        config, _ = POD["volumes"]
        (in_map, in_secret) = config["projected"]["sources"]
        assert in_map["configMap"]["name"] == CONFIG["metadata"]["name"]
        assert in_map["configMap"]["items"] == [{"key": "fleet.yaml", "path": "fleet.yaml"}]
        (created,) = re.findall(r"create secret generic (\S+) --from-file=(\S+)", PAGE)
        assert (in_secret["secret"]["name"], in_secret["secret"]["items"][0]["key"]) == created
        assert CONTAINER["volumeMounts"][0] == {"name": "config", "mountPath": FOLDER, "readOnly": True}

    def test_fleet_file_finds_its_kubeconfig_in_the_volume(self) -> None:
        file = fleet_of(CONFIG["data"]["fleet.yaml"], source=f"{FOLDER}/fleet.yaml", environ={})
        paths = {vars(resolver)["_kubeconfig"] for resolver in file.targets.values()}
        (item,) = POD["volumes"][0]["projected"]["sources"][1]["secret"]["items"]
        assert paths == {None, (str(PurePosixPath(FOLDER, item["path"])),)}

    def test_fleet_uses_the_namespaces_that_it_has_permission_for(self) -> None:
        fleet = yaml.safe_load(CONFIG["data"]["fleet.yaml"])
        assert fleet["defaults"]["kubernetes"]["namespace"] == of_kind(HERE, "Role")["metadata"]["namespace"]
        assert not any("namespace" in target["kubernetes"] for target in fleet["targets"].values())

    def test_set_up_makes_each_context_of_the_fleet(self) -> None:
        fleet = yaml.safe_load(CONFIG["data"]["fleet.yaml"])
        contexts = {target["kubernetes"].get("context") for target in fleet["targets"].values()} - {None}
        (made,) = re.findall(r"^for context in (.*); do$", files("sh")["set-up.sh"], re.MULTILINE)
        assert contexts == set(made.split())

    def test_container_has_minimal_privileges(self) -> None:
        assert POD["securityContext"]["runAsNonRoot"]
        assert POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert CONTAINER["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        user = POD["securityContext"]["runAsUser"]
        assert f"USER {user}:{POD['securityContext']['runAsGroup']}" in DOCKERFILE
        assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsGroup"]
        assert POD["volumes"][0]["projected"]["defaultMode"] == 0o440

    def test_image_is_the_one_that_the_page_builds(self) -> None:
        assert f"-t {CONTAINER['image']} " in PAGE
        assert 'ENTRYPOINT ["aioresolve"]' in DOCKERFILE

    def test_each_script_is_valid_shell(self) -> None:
        for script in files("sh").values():
            subprocess.run(["sh", "-n"], input=script, text=True, check=True)

    def test_each_manifest_is_applied(self) -> None:
        applied = set(re.findall(r"-f (\S+\.yaml)", PAGE))
        assert applied == set(MANIFESTS)

    def test_script_for_a_fifth_shard_changes_both_numbers(self) -> None:
        patches = [json.loads(patch) for patch in re.findall(r"-p '(.*)'", files("sh")["fifth-shard.sh"])]
        assert patches == [{"data": {"shards": "5"}}, {"spec": {"completions": 5, "parallelism": 5}}]


NAMES = [f"target-{number:02}" for number in range(60)]
"""Enough targets for each of four shards."""

RUN_IN_POD = """\
import sys
from aioresolve._core import service_account
service_account.FOLDER = sys.argv.pop(1)
from aioresolve.cli import main
sys.exit(main())
"""
"""The command with the service account in the folder of its first argument."""


class Cluster(NamedTuple):
    """The surroundings of a pod of the Job: volume, service account, environment, servers."""

    volume: Path
    service_account: Path
    environ: Mapping[str, str]
    servers: tuple[ThreadedKubernetesServer, ...]


def granted(documents: list[Any]) -> tuple[str, dict[str, set[str]]]:
    """Return the user of these manifests, and the namespaces in which it has permissions."""
    binding = of_kind(documents, "RoleBinding")
    (subject,) = binding["subjects"]
    user = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    return user, {user: {binding["metadata"]["namespace"]}}


def serving(documents: list[Any]) -> ThreadedKubernetesServer:
    """Return a server with a pod for each target, and with the permissions of the manifests."""
    user, allow = granted(documents)
    trainers = [pod(name, "training", labels={"app": name}) for name in NAMES]
    return KubernetesServer(trainers, tls=True, tokens={f"token-of-{user}": user}, allow=allow).in_thread()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The clusters of the page, with more targets."""
    folder = tmp_path_factory.mktemp("pod")
    with ExitStack() as stack:
        here, us_east, eu_west = (
            stack.enter_context(serving(documents)) for documents in (HERE, WATCHED, WATCHED)
        )
        service_account = folder / "serviceaccount"
        environ = here.in_cluster(service_account, namespace="fleet")
        volume = folder / "etc"
        volume.mkdir()
        kubeconfig = us_east.kubeconfig(context="us-east")
        for kind in ("clusters", "contexts", "users"):
            kubeconfig[kind] += eu_west.kubeconfig(context="eu-west")[kind]
        (volume / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        fleet = yaml.safe_load(CONFIG["data"]["fleet.yaml"])
        kinds = [fleet["targets"][name]["kubernetes"] for name in ("here", "us-east", "eu-west")]
        fleet["interval"] = "200ms"
        fleet["targets"] = {
            name: {"kubernetes": {**kinds[number % 3], "jobs": {"worker": f"app={name}"}}}
            for number, name in enumerate(NAMES)
        }
        (volume / "fleet.yaml").write_text(yaml.safe_dump(fleet))
        yield Cluster(volume, service_account, environ, (here, us_east, eu_west))


class Pods:
    """The pods of the Job, as processes that run its command line; killed at the end of the block.

    Args:
        cluster: their surroundings.
        shards: the number of pods.
    """

    def __init__(self, cluster: Cluster, shards: int) -> None:
        self._cluster = cluster
        self._shards = shards
        self._lines: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        self.processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        arguments = command_line(SHARDS=str(self._shards))
        arguments = [argument.replace(FOLDER, str(self._cluster.volume)) for argument in arguments]
        command = [sys.executable, "-c", RUN_IN_POD, str(self._cluster.service_account), *arguments]
        for index in range(self._shards):
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": "/",
                **self._cluster.environ,
                "JOB_COMPLETION_INDEX": str(index),
            }
            process = subprocess.Popen(
                command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            self.processes.append(process)
            thread = threading.Thread(target=self._read, args=(index, process), daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for process, thread in zip(self.processes, self._threads, strict=True):
            thread.join(TIMEOUT)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()

    def next_status(self) -> tuple[int, dict[str, Any]]:
        """Return the index of a pod and the next status that it writes."""
        index, line = self._lines.get(timeout=TIMEOUT)
        return index, json.loads(line)

    def stop(self, number: signal.Signals) -> list[tuple[int, str]]:
        """Send the signal to each process; return its exit code and standard error."""
        for process in self.processes:
            process.send_signal(number)
        errors = [process.stderr.read() for process in self.processes if process.stderr]
        return [(process.wait(TIMEOUT), error) for process, error in zip(self.processes, errors, strict=True)]

    def _read(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put((index, line))


def poll_with(cluster: Cluster, shards: int) -> dict[str, set[int]]:
    """Return which pods polled each target in three rounds, and check that no status has an error."""
    by: dict[str, set[int]] = {name: set() for name in NAMES}
    rounds: Counter[str] = Counter()
    with Pods(cluster, shards) as pods:
        while len(rounds) < len(NAMES) or min(rounds.values()) < 3:
            index, status = pods.next_status()
            assert status["error"] is None, status
            assert status["tasks"] == {"worker": 1}
            by[status["name"]].add(index)
            rounds[status["name"]] += 1
        assert pods.stop(signal.SIGTERM) == [(143, "")] * shards
    return by


def test_each_target_is_polled_by_exactly_one_of_four_processes(cluster: Cluster) -> None:
    by_four = poll_with(cluster, 4)
    assert {name: len(pods) for name, pods in by_four.items()} == dict.fromkeys(NAMES, 1)
    assert set.union(*by_four.values()) == {0, 1, 2, 3}
    verbs = Counter(request.verb for server in cluster.servers for request in server.requests)
    assert set(verbs) == {"list"}


def test_error_of_a_target_without_permission_has_the_manifest(cluster: Cluster) -> None:
    arguments = ["poll", str(cluster.volume / "elsewhere.yaml"), "--once", "-o", "json"]
    (cluster.volume / "elsewhere.yaml").write_text(
        "targets: {a: {kubernetes: {namespace: other, kubeconfig: kubeconfig, context: us-east,"
        " jobs: {worker: app=a}}}}"
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN_IN_POD, str(cluster.service_account), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": "/"},
    )
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["type"]) == (1, "ForbiddenError"), error
    wanted = rbac_manifest("system:serviceaccount:training:fleet", "other")
    assert wanted in error["message"]


def test_commands_of_the_page_are_valid_shell() -> None:
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        assert shlex.split(block, comments=True)
