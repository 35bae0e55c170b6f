"""`aioresolve kubernetes`: its output, messages and exit codes, with a loopback cluster."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Protocol

import pytest
import yaml

from aioresolve._core import service_account
from aioresolve.cli import main
from aioresolve.cli.options import ADDRESSES as ADDRESS_CHOICES
from aioresolve.cli.output.formats import OUTPUTS, WITH_IDENTITIES
from aioresolve.kubernetes.tasks.pods import ADDRESSES
from aioresolve.testing import Answer, Hang, KubernetesServer, pod, service

from .process import TOKEN, Result, cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import RequestRecord, ThreadedKubernetesServer

TRAIN = ("-l", "worker=app=train")
TRAIN_AND_PS = (*TRAIN, "-l", "ps=app=ps")


class Command(Protocol):
    def __call__(self, *arguments: str) -> Result: ...


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    """A cluster of its own for each test: a server may read the last requests of a call after its end."""
    with cluster() as server:
        yield server


@pytest.fixture
def kubeconfig(server: ThreadedKubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return server.write_kubeconfig(tmp_path / "config", namespace="ml", context="here")


@pytest.fixture
def aioresolve(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run `aioresolve kubernetes` with captured streams."""

    def command(*arguments: str) -> Result:
        code = main(["kubernetes", *arguments])
        written = capsys.readouterr()
        return Result(code, written.out, written.err)

    return command


NOT_RUNNING = "status.phase!=Running"


def requests_for_members(server: ThreadedKubernetesServer) -> list[RequestRecord]:
    """Return the requests without those for pods that are not running, which are whole in any case."""
    return [each for each in server.requests if each.query.get("fieldSelector") != NOT_RUNNING]


# Services


@pytest.fixture
def services(server: ThreadedKubernetesServer) -> Iterator[None]:
    """Add the Services `train` and `ps`, and let users read EndpointSlices only."""
    server.add(
        service("train", "ml", selector={"app": "train"}, ports={"grpc": 9000, "http": 80}),
        service("ps", "ml", selector={"app": "ps"}, ip_families=("IPv6",)),
    )
    server.resources = {"alice": ["endpointslices"]}
    yield
    for name in ("train", "ps"):
        server.delete(name, "ml", kind="Service")


@pytest.mark.usefixtures("services")
def test_services_are_resolved_in_place_of_selectors(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    result = aioresolve("--service", "train:grpc", "-o", "wide")
    assert (result.code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()[1:]]
    assert [row[2:7] for row in rows] == [
        [f"10.0.0.{number}:9000", f"train-{number}", "ml", "node-a", "true"] for number in (1, 2, 10)
    ]
    assert {request.resource for request in server.requests} == {"endpointslices"}


@pytest.mark.usefixtures("services")
def test_port_option_is_in_place_of_the_port_of_a_service(aioresolve: Command) -> None:
    services = ("--service", "train", "--service", "ps=train:http")
    result = aioresolve(*services, "--port", "29500", "-o", "name")
    ports = [line.rpartition(":")[2] for line in result.stdout.splitlines()]
    assert ports == ["29500"] * 3 + ["80"] * 3


@pytest.mark.usefixtures("services")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--service", "train"), 2, "several TCP ports: 'grpc' and 'http'. Name one of them after the"),
        (("--service", "train"), 2, "--service NAME:PORT"),
        (("--service", "train:x"), 2, "has no TCP port named 'x', only 'grpc' and 'http'"),
        (("--service", "ps"), 1, "1 endpoint is not ready: ml/ps-0: not ready (Service 'ps'"),
        (("--service", "ps"), 1, "pass --not-running skip to leave them out"),
        (("--service", "other"), 1, "no ready endpoint belongs to --service other in namespace ml"),
        (("--service", "other"), 1, "check with `kubectl get endpointslices`"),
        (("--service", "A"), 2, "'A' is not a Service; write NAME or NAME:PORT"),
        (("--service", "train", *TRAIN), 2, "-l and --service exclude each other"),
        (("--service", "train", "--address", "host_ip"), 2, "Choose another --address"),
        (
            ("--service", "train:http", "-o", "tf-config", "--task", "ps:0"),
            2,
            "no --service selects the job 'ps'; add --service ps=NAME",
        ),
    ],
)
def test_error_about_services_is_explained(
    aioresolve: Command, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = aioresolve(*arguments)
    assert result.code == code
    assert message in result.stderr


@pytest.mark.usefixtures("services")
def test_denied_services_have_a_manifest_to_apply(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    server.resources = {"alice": ["pods"]}
    result = aioresolve("--service", "train:http")
    assert result.code == 1
    assert result.stderr.startswith("# error: user 'alice' may not list endpointslices in namespace 'ml'")
    role, _ = yaml.safe_load_all(result.stderr)
    assert role["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}
    ]


# Output


def test_the_table_lists_jobs_and_tasks_in_order(aioresolve: Command) -> None:
    assert aioresolve(*TRAIN_AND_PS) == Result(
        0,
        "JOB      TASK   ADDRESS\n"
        "worker   0      10.0.0.1:8470\n"
        "worker   1      10.0.0.2:8470\n"
        "worker   2      10.0.0.10:8470\n"
        "ps       0      [fd00::7]:8470\n",
        "",
    )


def test_wide_adds_the_identity_of_each_pod(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    result = aioresolve(*TRAIN_AND_PS, "-o", "wide")
    uid = server.pod("ps-0", "ml")["metadata"]["uid"]
    assert result.stdout.splitlines()[-1].split() == [
        *("ps", "0", "[fd00::7]:8470", "ps-0", "ml", "node-a", "false", uid, "google.com/tpu=4"),
        *("its", "Ready", "condition", "is", "False"),
    ]


def test_wide_shows_why_a_pod_is_not_ready(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    server.add(
        pod("loop-0", "ml", labels={"app": "loop"}, waiting="CrashLoopBackOff", restarts=7, ready=False)
    )
    result = aioresolve("-l", "app=loop", "-o", "wide")
    server.delete("loop-0", "ml")
    header, row = result.stdout.splitlines()
    assert header.endswith("STATUS")
    assert row[header.index("STATUS") :] == "CrashLoopBackOff: 7 restarts"


def test_json_and_yaml_are_one_object(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    found = json.loads(aioresolve(*TRAIN, "-o", "json").stdout)
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
        "accelerators": {"google.com/tpu": 4},
    }
    assert found["version"] == str(server.resource_version)
    from_yaml = yaml.safe_load(aioresolve(*TRAIN, "-o", "yaml").stdout)
    assert from_yaml["jobs"] == found["jobs"]


def test_name_prints_only_addresses(aioresolve: Command) -> None:
    assert aioresolve(*TRAIN_AND_PS, "-o", "name", "--port", "80").stdout.split() == [
        *("10.0.0.1:80", "10.0.0.2:80", "10.0.0.10:80", "[fd00::7]:80")
    ]


def test_tf_config_has_the_cluster_and_the_task(aioresolve: Command) -> None:
    result = aioresolve(*TRAIN_AND_PS, "-o", "tf-config", "--task", "worker:1")
    assert json.loads(result.stdout) == {
        "cluster": {
            "worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.10:8470"],
            "ps": ["[fd00::7]:8470"],
        },
        "task": {"type": "worker", "index": 1},
    }


@pytest.mark.parametrize("output", OUTPUTS)
def test_whole_pods_are_requested_only_for_outputs_with_identities(
    aioresolve: Command, server: ThreadedKubernetesServer, output: str
) -> None:
    assert aioresolve(*TRAIN_AND_PS, "-o", output).code == 0
    requests = requests_for_members(server)
    assert len(requests) == 2
    assert {"as=Table" not in request.accept for request in requests} == {output in WITH_IDENTITIES}


def test_selectors_of_one_job_follow_each_other(aioresolve: Command) -> None:
    assert aioresolve("-l", "all=app=ps", "-l", "all=app=train", "-o", "name").stdout.split() == [
        *("[fd00::7]:8470", "10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.10:8470")
    ]


def test_addresses_and_orders_are_those_of_the_resolver(aioresolve: Command) -> None:
    assert ADDRESS_CHOICES == ADDRESSES
    assert aioresolve(*TRAIN, "--address", "host_ip", "-o", "name").stdout.split() == ["192.168.0.1:8470"] * 3
    by_index = aioresolve(*TRAIN, "--order-by", "index")
    assert by_index.code == 1
    assert "no pod has index 3, 4" in by_index.stderr
    assert by_index.stderr.endswith("or pass --order-by name.\n")


def test_tasks_are_ordered_by_labels(aioresolve: Command) -> None:
    lacking = aioresolve(*TRAIN, "--order-by", "label:rank", "--order-by", "label:app")
    assert "cannot be ordered by label 'rank' and label 'app': it is missing for" in lacking.stderr
    invalid = aioresolve(*TRAIN, "--order-by", "age")
    assert invalid.code == 2
    assert "'age' is not one of 'name', 'index', 'label:KEY' and 'node-label:KEY'" in invalid.stderr


def test_templates_format_the_tasks(aioresolve: Command) -> None:
    pytest.importorskip("jsonpath_ng")
    template = '{range .jobs.worker[*]}{.name} {.address}{"\\n"}{end}'
    assert aioresolve(*TRAIN, "-o", f"jsonpath={template}").stdout.split() == [
        *("train-1", "10.0.0.1:8470", "train-2", "10.0.0.2:8470", "train-10", "10.0.0.10:8470")
    ]
    columns = ("-o", "custom-columns=POD:.name,NODE:.node")
    assert aioresolve("-l", "app=ps", *columns).stdout == "POD    NODE\nps-0   node-a\n"
    assert aioresolve("-l", "app=ps", *columns, "--no-headers").stdout == "ps-0   node-a\n"
    invalid = aioresolve(*TRAIN, "-o", "jsonpath={range .jobs}")
    assert (invalid.code, invalid.stdout) == (2, "")
    assert "{range} has no {end}" in invalid.stderr


def test_a_template_without_its_library_names_the_extra_to_install(
    aioresolve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jsonpath_ng.ext", None)
    result = aioresolve(*TRAIN, "-o", "jsonpath={.version}")
    assert result.code == 2
    assert "pip install 'aioresolve[cli]'" in result.stderr


def test_tables_can_be_printed_without_headers(aioresolve: Command) -> None:
    for output in ("table", "wide"):
        with_headers = aioresolve(*TRAIN, "-o", output).stdout
        assert aioresolve(*TRAIN, "-o", output, "--no-headers").stdout == with_headers.partition("\n")[2]


def test_k8s_is_a_short_name(aioresolve: Command, capsys: pytest.CaptureFixture[str]) -> None:
    expected = aioresolve(*TRAIN, "-o", "name").stdout
    assert main(["k8s", *TRAIN, "-o", "name"]) == 0
    assert main(["wait", "k8s", *TRAIN, "-o", "name"]) == 0
    assert capsys.readouterr().out == expected * 2


# Namespaces and contexts


def test_the_default_namespace_is_that_of_the_context(
    aioresolve: Command, server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    aioresolve(*TRAIN)
    server.write_kubeconfig(kubeconfig)
    assert aioresolve(*TRAIN, "-o", "name").stdout == "10.0.9.9:8470\n"
    assert [request.namespace for request in requests_for_members(server)] == ["ml", "default"]


def test_in_a_pod_the_default_namespace_is_that_of_the_pod(
    aioresolve: Command, server: ThreadedKubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.in_cluster(tmp_path / "account", namespace="ml").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(service_account, "FOLDER", str(tmp_path / "account"))
    monkeypatch.delenv("KUBECONFIG")
    assert aioresolve(*TRAIN).code == 0
    assert [request.namespace for request in requests_for_members(server)] == ["ml"]


def test_namespaces_can_be_selected(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    aioresolve(*TRAIN, "-n", "default", "-n", "ml")
    aioresolve(*TRAIN, "-A")
    requests = requests_for_members(server)
    assert [request.namespace for request in requests[2:]] == [None]
    assert {request.namespace for request in requests[:2]} == {"default", "ml"}


def test_a_context_and_kubeconfigs_can_be_selected(
    aioresolve: Command, server: ThreadedKubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    server.write_kubeconfig(tmp_path / "one", context="one", namespace="ml")
    server.write_kubeconfig(tmp_path / "two", context="two", namespace="default")
    files = ("--kubeconfig", str(tmp_path / "one"), "--kubeconfig", str(tmp_path / "two"))
    assert aioresolve(*TRAIN, *files).code == 0
    assert aioresolve(*TRAIN, *files, "--context", "two").code == 0
    assert [request.namespace for request in requests_for_members(server)] == ["ml", "default"]


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
    assert "with the given server and token file); use -n or -A" in empty.stderr
    server.allow = {"ada": ()}
    assert "user 'ada' may not list pods" in aioresolve(*TRAIN, *options, "--as", "ada").stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--server", "ftp://host"), "error: --server: 'ftp://host' does not start with https://"),
        (("--token-file", ""), "error: --token-file: '' is not a path"),
        (("--token-file", "missing/token"), "missing/token cannot be read"),
        (("--as", " "), "error: --as: ' ' is not the name"),
        (
            ("--as-group", "math"),
            "error: --as-group: groups can only be impersonated together with a user. Pass --as too.",
        ),
    ],
)
def test_an_option_that_replaces_part_of_the_kubeconfig_is_validated(
    aioresolve: Command, options: tuple[str, ...], message: str
) -> None:
    result = aioresolve(*TRAIN, *options)
    assert result.code == 2
    assert message in result.stderr


# Notes and errors


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_empty_result_is_an_error_that_says_what_was_looked_for_and_where(
    aioresolve: Command, kubeconfig: Path, output: str
) -> None:
    assert aioresolve("-l", "app=none", "-o", output) == Result(
        1,
        "",
        "error: no running pod matches -l app=none in namespace ml"
        f" (kubeconfig {kubeconfig}, context 'here'); use -n or -A to select other namespaces;"
        " pass --allow-empty if this is expected\n",
    )


def test_an_empty_result_can_be_allowed(aioresolve: Command) -> None:
    result = aioresolve("-l", "worker=app=none", "--allow-empty", "-o", "tf-config")
    assert (result.code, json.loads(result.stdout)) == (0, {"cluster": {"worker": {}}})
    assert result.stderr.startswith("no running pod matches -l worker=app=none in namespace ml")
    assert "--allow-empty" not in result.stderr


def test_a_job_without_pods_is_an_error_after_the_pods_of_others(aioresolve: Command) -> None:
    result = aioresolve(*TRAIN, "-l", "ps=app=none", "-A", "-o", "json")
    assert result.code == 1
    assert result.stderr.startswith("error: no running pod matches -l ps=app=none in any namespace")
    assert {job: len(tasks) for job, tasks in json.loads(result.stdout)["jobs"].items()} == {
        "worker": 4,
        "ps": 0,
    }


def test_a_selector_in_kubectls_syntax_is_that_of_the_workers(aioresolve: Command) -> None:
    assert aioresolve("-l", "app=train").stdout == aioresolve(*TRAIN).stdout
    assert aioresolve("-l", "app in (train, none)").stdout == aioresolve(*TRAIN).stdout


def test_a_label_that_looks_like_a_job_is_explained(aioresolve: Command) -> None:
    result = aioresolve("-l", "ps=app")
    assert result.code == 1
    assert "for the job 'ps' write -l ps=SELECTOR, such as -l ps=app=app" in result.stderr


def test_quiet_writes_only_errors(aioresolve: Command) -> None:
    assert aioresolve("-l", "worker=app=none", "-q", "--allow-empty") == Result(0, "", "")
    assert aioresolve("-l", "worker=app=none", "-q").stderr.startswith("error: ")
    assert aioresolve("-l", "worker=app=stuck", "-q").stderr.startswith("error: ")


def test_pods_that_are_not_running_are_an_error_or_left_out(aioresolve: Command) -> None:
    result = aioresolve("-l", "worker=app=stuck")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: 1 matching pod is not running: ml/stuck-1: Pending")
    assert result.stderr.endswith("or pass --not-running skip to leave them out.\n")
    skipped = aioresolve("-l", "worker=app=stuck", "--not-running", "skip", "-o", "name")
    assert skipped == Result(0, "10.0.8.1:8470\n", "")


def test_a_missing_task_is_an_error(aioresolve: Command) -> None:
    result = aioresolve(*TRAIN, "-o", "tf-config", "--task", "worker:7")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr == "error: no task 7 in job 'worker', which has tasks 0 to 2\n"


def test_a_forbidden_request_prints_the_required_role(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    server.allow = {"alice": ["ml"]}
    result = aioresolve(*TRAIN, "-A")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("# error: user 'alice' may not list pods in all namespaces")
    assert "or pass -n, for which a Role is sufficient" in result.stderr
    kinds = [document["kind"] for document in yaml.safe_load_all(result.stderr)]
    assert kinds == ["ClusterRole", "ClusterRoleBinding"]


def test_a_retry_is_reported_once(aioresolve: Command, server: ThreadedKubernetesServer) -> None:
    server.inject(Answer(503, headers={"Retry-After": "1"}))
    result = aioresolve(*TRAIN, "-o", "name")
    assert (result.code, len(result.stdout.split())) == (0, 3)
    assert result.stderr.startswith(f"retrying: {server.url} returned 503 for selector 'app=train'")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "no pods are selected: pass -l SELECTOR at least once, such as -l app=trainer, or --service",
        ),
        (("-l", "worker=a=b=c"), "such as -l app=trainer, or JOB=SELECTOR, such as -l worker=app=trainer"),
        ((*TRAIN, "-n", "ml", "-A"), "-n and -A exclude each other"),
        ((*TRAIN, "-n", "No_Name"), "-n: 'No_Name' is not a valid namespace name"),
        ((*TRAIN, "--timeout", "soon"), "is not a duration; write one such as 30s"),
        ((*TRAIN, "--port", "0"), "--port"),
        ((*TRAIN, "--max-concurrency", "0"), "--max-concurrency"),
        ((*TRAIN, "-o", "xml"), "'xml'"),
        ((*TRAIN, "--task", "worker:0"), "--task requires -o tf-config"),
        ((*TRAIN, "-o", "tf-config", "--task", "worker"), "such as worker:0"),
        ((*TRAIN, "-o", "tf-config", "--task", "chief:0"), "add -l chief=SELECTOR"),
        ((*TRAIN, "--context", "nowhere"), "there is no context 'nowhere'; there are: 'here'"),
        ((*TRAIN, "--kubeconfig", "/nowhere/config"), "/nowhere/config"),
        (("-l", "worker=app in"), "'worker=app in' is not a label selector"),
        (("-l", "worker=-x=y"), "Correct the selector '-x=y'"),
        ((*TRAIN, "--address", "pod_ipv6"), "Choose another --address."),
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


def test_a_missing_file_exits_with_2_however_it_is_named(
    aioresolve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = aioresolve(*TRAIN, "--kubeconfig", "/nowhere/config")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    assert named.code == aioresolve(*TRAIN).code == 2


def test_the_deadline_names_a_server_only_if_one_was_reached(
    aioresolve: Command, server: ThreadedKubernetesServer
) -> None:
    server.inject(Hang(), times=None)
    late = aioresolve(*TRAIN, "--timeout", "3s")
    assert late.code == 3
    assert late.stderr.endswith("or check the server named above.\n")
    early = aioresolve(*TRAIN, "--timeout", "0.1ms")
    assert early.code == 3
    assert early.stderr.endswith("Try again, or raise --timeout.\n")


# Logging


def test_verbose_logs_each_request_with_its_duration(aioresolve: Command) -> None:
    result = aioresolve(*TRAIN_AND_PS, "-v")
    lines = [line for line in result.stderr.splitlines() if NOT_RUNNING not in line]
    assert len(lines) == 2
    assert all("/api/v1/namespaces/ml/pods" in line and line.endswith(" s") for line in lines)
    assert result.stdout.startswith("JOB")


def test_verbose_logs_the_traceback_of_an_error(aioresolve: Command) -> None:
    assert "Traceback" not in aioresolve("-l", "worker=app=stuck").stderr
    result = aioresolve("-l", "worker=app=stuck", "-v")
    assert "Traceback" in result.stderr
    assert "PodNotRunningError" in result.stderr


def test_logging_is_reset_afterwards(aioresolve: Command) -> None:
    logger = logging.getLogger("aioresolve")
    before = (logger.level, list(logger.handlers))
    aioresolve(*TRAIN, "-vv")
    assert (logger.level, list(logger.handlers)) == before


def test_no_output_contains_a_secret(
    aioresolve: Command, server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    outputs = [aioresolve(*TRAIN, "-vv", "-o", "json")]
    server.allow = {}
    outputs.append(aioresolve(*TRAIN, "-vv"))
    server.inject(Answer(401, body=f"Bearer {TOKEN} is not known".encode()), times=None)
    outputs.append(aioresolve(*TRAIN, "-vv"))
    server.clear_faults()
    document = json.loads(kubeconfig.read_text())
    with KubernetesServer().in_thread() as no_proxy:
        document["clusters"][0]["cluster"]["proxy-url"] = f"http://alice:{TOKEN}@127.0.0.1:{no_proxy.port}"
        kubeconfig.write_text(json.dumps(document))
        outputs.append(aioresolve(*TRAIN, "-vv", "--timeout", "4s"))
    assert [output.code for output in outputs] == [0, 1, 1, 1]
    assert "through the proxy" in outputs[3].stderr
    for output in outputs:
        assert TOKEN not in output.stdout + output.stderr
