"""`aioresolve kubernetes`: its output, messages and exit codes, with a loopback cluster."""

import json
import re
from pathlib import Path
from typing import Protocol
from unittest.mock import AsyncMock

import pytest
import yaml

from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.testing import Hang, ThreadedKubernetesServer, service

from .process import TOKEN, Result, Run

TRAIN = ("-l", "worker=app=train")
TRAIN_AND_PS = (*TRAIN, "-l", "ps=app=ps")


class Command(Protocol):
    def __call__(self, *arguments: str) -> Result: ...


@pytest.fixture
def aioresolve(run: Run, env: dict[str, str]) -> Command:
    """Run `aioresolve kubernetes` in the environment `env`."""
    return lambda *arguments: run(("kubernetes", *arguments), env)


# Services


@pytest.fixture
def services(server: ThreadedKubernetesServer) -> None:
    """Add the Services `train` and `ps`, and let users read EndpointSlices only."""
    server.add(
        service("train", "ml", selector={"app": "train"}, ports={"grpc": 9000, "http": 80}),
        service("ps", "ml", selector={"app": "ps"}, ip_families=("IPv6",)),
    )
    server.resources = {"alice": ["endpointslices"]}


@pytest.mark.usefixtures("services")
def test_services_are_resolved_in_place_of_selectors(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    result = aioresolve("--service", "train:9000", "-o", "wide")
    assert (result.code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[2:] for row in rows] == [
        [f"train-{number}", f"10.0.0.{number}:9000", "node-a", "ml", "true", "Running"]
        for number in (1, 2, 10)
    ]
    assert {request.resource for request in server.requests} == {"endpointslices"}
    both = aioresolve("--service", "a=train", "--service", "b=train:80", "--port", "9000", "-o", "name")
    assert both.stdout.split() == [f"10.0.0.{number}:{port}" for port in (9000, 80) for number in (1, 2, 10)]


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--service", "train"), 2, "several TCP ports: 9000 (grpc) and 80 (http). Choose one of them"),
        (("--service", "ps"), 1, "1 endpoint is not ready: ml/ps-0: not ready (Service 'ps'"),
        (
            ("--service", "other"),
            1,
            "no endpoint belongs to Service other in namespace 'ml'; Services there: ps, train (",
        ),
        (("--service", "train", *TRAIN), 2, "-l and --service exclude each other"),
        (
            ("--service", "train:80", "-o", "tf-config", "--task", "ps:0"),
            2,
            "no job 'ps' is requested; add -l ps=SELECTOR, or --service ps=NAME",
        ),
    ],
)
def test_error_about_services_is_explained(
    aioresolve: Command, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = aioresolve(*arguments)
    assert result.code == code
    assert message in result.stderr


# Output


def test_the_table_lists_jobs_and_tasks_in_order(aioresolve: Command) -> None:
    assert aioresolve(*TRAIN_AND_PS, "--allow-empty") == Result(
        0,
        "JOB      TASK   NAME       ADDRESS          NODE     STATUS\n"
        "worker   0      train-1    10.0.0.1:8470    node-a   Running\n"
        "worker   1      train-2    10.0.0.2:8470    node-a   Running\n"
        "worker   2      train-10   10.0.0.10:8470   node-a   Running\n"
        "ps       0      ps-0       [fd00::7]:8470   node-a   its Ready condition is False\n",
        "",
    )


def test_wide_adds_columns(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    restarted = {"containerStatuses": [{"name": "main", "ready": True, "restartCount": 2}]}
    server.patch("train-1", "ml", patch={"status": restarted})
    header, first, *_, last = aioresolve(*TRAIN_AND_PS, "-o", "wide").stdout.splitlines()
    assert header.split()[5:] == ["NAMESPACE", "READY", "RESTARTS", "ACCELERATORS", "STATUS"]
    assert first.split()[6:8] == ["true", "2"]
    assert last.split() == [
        *("ps", "0", "ps-0", "[fd00::7]:8470", "node-a", "ml", "false", "<none>", "google.com/tpu=4"),
        *("its", "Ready", "condition", "is", "False"),
    ]


def test_json_and_yaml_are_one_object(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    shown = aioresolve(*TRAIN, "-o", "json").stdout
    found = json.loads(shown)
    assert shown == json.dumps(found, indent=2) + "\n"
    assert found["jobs"]["worker"][2] == {
        "task": 2,
        "address": "10.0.0.10:8470",
        "name": "train-10",
        "namespace": "ml",
        "uid": server.pod("train-10", "ml")["metadata"]["uid"],
        "node": "node-a",
        "ready": True,
        "status": "Running",
        "index": 10,
        "restarts": 0,
        "accelerators": {"google.com/tpu": 4},
    }
    assert found["version"] == str(server.resource_version)
    from_yaml = aioresolve("-l", "wörker=app=train", "-o", "yaml").stdout
    jobs = json.dumps(yaml.safe_load(from_yaml.replace("wörker:", "worker:"))["jobs"])
    assert jobs == json.dumps(found["jobs"])  # in the same order


def test_other_outputs_have_the_same_tasks(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    names = aioresolve(*TRAIN_AND_PS, "-o", "name", "--port", "80").stdout
    assert names.split() == ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.10:80", "[fd00::7]:80"]
    config = json.loads(aioresolve(*TRAIN_AND_PS, "-o", "tf-config", "--task", "worker:1").stdout)
    assert config["cluster"]["ps"] == ["[fd00::7]:8470"]
    assert config["task"] == {"type": "worker", "index": 1}
    evaluator = aioresolve(*TRAIN, "-o", "tf-config", "--task", "evaluator:7").stdout
    assert json.loads(evaluator)["task"] == {"type": "evaluator", "index": 7}
    # Whole pods are requested only for outputs with identities.
    assert all("as=Table" in request.accept for request in server.requests)


def test_custom_columns_have_a_row_for_each_task(aioresolve: Command) -> None:
    columns = r"custom-columns=ID:job,ID:.name,PORT:.port.number,TPUS:.accelerators.google\.com/tpu"
    output = ("-o", columns)
    assert [line.split() for line in aioresolve(*TRAIN_AND_PS, *output).stdout.splitlines()] == [
        ["ID", "ID", "PORT", "TPUS"],
        *(["worker", f"train-{number}", "<none>", "4"] for number in (1, 2, 10)),
        ["ps", "ps-0", "<none>", "4"],
    ]
    assert aioresolve("-l", "app=ps", *output, "--no-headers").stdout == "worker   ps-0   <none>   4\n"


# Namespaces and contexts


def test_the_default_namespace_is_that_of_the_context_and_others_can_be_selected(
    aioresolve: Command, server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    def namespaces(*arguments: str) -> set[str | None]:
        server.forget_requests()
        assert aioresolve(*TRAIN, *arguments).code == 0
        return {request.namespace for request in server.requests}

    assert namespaces() == {"ml"}
    assert namespaces("-n", "default") == {"default"}
    assert namespaces("-n", "", "-A") == {None}
    server.write_kubeconfig(kubeconfig)
    assert namespaces() == {"default"}


def test_server_credentials_and_impersonation_of_the_kubeconfig_can_be_replaced(
    aioresolve: Command, server: ThreadedKubernetesServer, tmp_path: Path
) -> None:
    config = yaml.safe_load((tmp_path / "config").read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    config["users"][0]["user"]["token"] = "unknown"
    (tmp_path / "config").write_text(yaml.safe_dump(config))
    (tmp_path / "token").write_text(TOKEN)
    options = ("--server", server.url, "--token-file", str(tmp_path / "token"))
    impersonation = ("--as", "ada", "--as-group", "math", "--as-group", "logic")
    assert aioresolve(*TRAIN, *options, *impersonation).code == 0
    assert {(each.user, each.impersonated_user, each.impersonated_groups) for each in server.requests} == {
        ("alice", "ada", ("math", "logic"))
    }
    empty = aioresolve("-l", "app=none", *options)
    assert "values of app there: ps, stuck, train (" in empty.stderr
    assert "with the given server and token file); pass --allow-empty" in empty.stderr
    server.allow = {"ada": ()}
    assert "user 'ada' may not list pods" in aioresolve(*TRAIN, *options, "--as", "ada").stderr


# Notes and errors


@pytest.mark.parametrize("output", [("json",), ("jax", "--task", "worker:0")])
def test_an_empty_result_is_an_error_that_says_what_was_looked_for_and_where(
    aioresolve: Command, kubeconfig: Path, output: tuple[str, ...]
) -> None:
    assert aioresolve("-l", "app=none", "-o", *output) == Result(
        1,
        "",
        "error: no pod matches app=none in namespace 'ml'; values of app there: ps, stuck, train"
        f" (kubeconfig {kubeconfig}, context 'here'); pass --allow-empty if this is expected\n",
    )


def test_an_empty_result_can_be_allowed(aioresolve: Command) -> None:
    result = aioresolve("-l", "worker=app=none", "--allow-empty", "-o", "tf-config")
    assert (result.code, json.loads(result.stdout)) == (0, {"cluster": {"worker": {}}})
    assert result.stderr == "job 'worker' has no tasks: -l worker=app=none\n"
    assert aioresolve("-l", "worker=app=none", "-q", "--allow-empty") == Result(0, "", "")
    # The pods of other jobs are printed all the same.
    partial = aioresolve(*TRAIN, "-l", "ps=app=none", "-A", "-o", "name", "-q")
    assert (partial.code, len(partial.stdout.split())) == (1, 4)
    assert partial.stderr.startswith(
        "error: no pod matches app=none in all namespaces; values of app there: "
    )


def test_pods_that_are_not_running_are_an_error_or_left_out(aioresolve: Command) -> None:
    result = aioresolve("-l", "worker=app=stuck")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: 1 matching pod is not running: ml/stuck-1: Pending")
    assert result.stderr.endswith("or pass --not-running skip to leave them out.\n")
    skipped = aioresolve("-l", "worker=app=stuck", "--not-running", "skip", "-o", "name")
    reason = "ml/stuck-1: Pending (Unschedulable: 0/1 nodes are available)"
    assert skipped == Result(0, "10.0.8.1:8470\n", f"left out: {reason}\n")


def test_a_forbidden_request_prints_the_required_role(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    server.allow = {"alice": ["ml"]}
    result = aioresolve(*TRAIN, "-A")
    assert result.code == 1
    assert result.stderr.startswith("error: user 'alice' may not list pods in all namespaces")
    assert result.stderr.endswith("or pass -n, for which a Role is sufficient:\n")
    kinds = [document["kind"] for document in yaml.safe_load_all(result.stdout)]
    assert kinds == ["ClusterRole", "ClusterRoleBinding"]
    # What a program reads from stdout is never a manifest.
    for_programs = aioresolve(*TRAIN, "-A", "-o", "name")
    assert for_programs.stdout == ""
    assert for_programs.stderr == f"{result.stderr}\n{result.stdout}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no pods are selected: pass -l SELECTOR at least once, such as -l app=trainer, or --service"),
        ((*TRAIN, "-n", "ml", "-A"), "-n and -A exclude each other"),
        ((*TRAIN, "-n", "No_Name"), "-n: 'No_Name' is not a namespace"),
        ((*TRAIN, "--timeout", "soon"), "is not a duration; write one such as 30s"),
        ((*TRAIN, "-o", "tf-config", "--task", "chief:0"), "add -l chief=SELECTOR"),
        ((*TRAIN, "--address", "pod_ipv6"), "Choose another --address."),
        ((*TRAIN, "--server", "ftp://host"), "--server: 'ftp://host' is not"),
        ((*TRAIN, "--order-by", "age"), "is not one of 'name', 'index', 'label:KEY' and 'node-label:KEY'"),
        ((*TRAIN, "--order-by", "name", "--order-by", "index"), "'name' is not one of 'label:KEY'"),
        *(
            ((*TRAIN, "-o", f"custom-columns={columns}"), "is not a column; write NAME:PATH, such as NODE:")
            for columns in ("", "NAME", ":.a", "NAME:", "NAME:.a..b", "A:.a,,B:.b", "NAME:.a[0]")
        ),
    ],
)
def test_invalid_usage_and_configuration_exit_with_2_and_a_hint(
    aioresolve: Command, arguments: tuple[str, ...], message: str
) -> None:
    result = aioresolve(*arguments)
    assert (result.code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_deadline_exits_with_3_and_names_the_server(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    server.inject(Hang(), times=None)
    late = aioresolve(*TRAIN, "--timeout", "3s")
    assert (late.code, late.stdout) == (3, "")
    assert "within 3 s" in late.stderr
    assert server.url in late.stderr
    assert late.stderr.endswith("or check the server named above.\n")
    # Nothing was sent before this deadline passes.
    assert aioresolve(*TRAIN, "--timeout", "0.1ms").stderr.endswith("Try again, or raise --timeout.\n")


# Logging


def test_verbose_logs_each_request_and_the_traceback_of_an_error(aioresolve: Command) -> None:
    result = aioresolve(*TRAIN_AND_PS, "-v")
    lines = result.stderr.splitlines()
    assert len(lines) == 3  # why ps-0 is not ready, its row does not say
    logged = re.compile(r"[0-9:]{8}\.[0-9]{3} .*/api/v1/namespaces/ml/pods.* s")
    assert all(map(logged.fullmatch, lines))
    assert result.stdout.startswith("JOB")
    assert "Traceback" not in aioresolve("-l", "worker=app=stuck").stderr
    assert "Traceback" in aioresolve("-l", "worker=app=stuck", "-v").stderr


def test_exception_of_a_resolver_is_an_error_with_its_cause(
    aioresolve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KubernetesClusterResolver, "observe", AsyncMock(side_effect=KeyError("x")))
    failed = aioresolve(*TRAIN)
    assert (failed.code, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: KubernetesClusterResolver.observe() raised KeyError: 'x'")
