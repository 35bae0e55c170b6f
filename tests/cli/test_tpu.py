"""`aioresolve tpu`: its answers, its words and its exit codes, against a loopback Google Cloud."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import yaml

from aioresolve.cli import main
from aioresolve.cli.output.probe_rows import PROBE_COLUMNS
from aioresolve.testing import Answer, Delay, GoogleServer, Hang, tpu_node, tpu_vm, tpu_worker_process
from tests.tpu.conftest import VARIABLES

from .process import ESCAPE, Ended, environment, run, without_colours
from .test_process import loaded_by, on_a_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve.testing import ThreadedGoogleServer

PROJECT = "demo-project"
ZONE = "us-central2-b"


class Command(Protocol):
    def __call__(self, *arguments: str) -> Ended: ...


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with tpu_worker_process(devices=4, ports=4) as addresses:
        yield addresses


def node(name: str, addresses: list[str], **told: Any) -> dict[str, Any]:
    """A TPU node whose workers are at these addresses."""
    endpoints = [
        {"ipAddress": host, "port": int(port)}
        for host, _, port in (address.rpartition(":") for address in addresses)
    ]
    return tpu_node(name, accelerator_type="v4-16", topology="2x2x2", **told) | {
        "networkEndpoints": endpoints
    }


@pytest.fixture
def google(workers: list[str]) -> Iterator[ThreadedGoogleServer]:
    nodes = [
        node("slice-0", workers[:2]),
        node("slice-1", workers[2:], health=None),
        tpu_node(
            f"projects/{PROJECT}/locations/europe-west4-a/nodes/far", ips=["10.0.0.9"], state="CREATING"
        ),
    ]
    with GoogleServer(nodes, tls=True, tokens={}).in_thread() as server:
        yield server


@pytest.fixture
def open_google() -> Iterator[ThreadedGoogleServer]:
    """The APIs, open to everybody, with a TPU of five workers."""
    with GoogleServer([tpu_node("my-tpu", ips=[f"10.0.0.{n}" for n in range(1, 6)])]).in_thread() as server:
        yield server


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")


@pytest.fixture
def aioresolve(
    open_google: ThreadedGoogleServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command `aioresolve tpu` on a VM of the open project, with pipes for its streams."""
    for name, value in open_google.environ().items():
        monkeypatch.setenv(name, value)

    def command(*arguments: str) -> Ended:
        code = main(["tpu", *arguments])
        written = capsys.readouterr()
        return Ended(code, written.out, written.err)

    return command


# What it answers


def test_the_table_shows_each_worker_in_the_order_of_its_tasks(aioresolve: Command) -> None:
    answer = aioresolve("my-tpu")
    assert (answer.code, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[:3] == [
        "JOB      TASK   ADDRESS",
        "worker   0      10.0.0.1:8470",
        "worker   1      10.0.0.2:8470",
    ]


def test_wide_adds_the_slice_and_how_it_is(aioresolve: Command) -> None:
    header, *rows = aioresolve("my-tpu", "-o", "wide").stdout.splitlines()
    assert header.split()[3:] == ["SLICE", "WORKER", "STATE", "HEALTH", "TYPE"]
    assert rows[4].split() == ["worker", "4", "10.0.0.5:8470", "my-tpu", "4", "READY", "HEALTHY", "v4-8"]


def test_json_and_yaml_are_one_object(aioresolve: Command) -> None:
    found = json.loads(aioresolve("my-tpu", "-o", "json", "--job-name", "tpu_worker").stdout)
    task = found["jobs"]["tpu_worker"][4]
    assert {
        name: task[name] for name in ("task", "address", "slice", "state", "health", "name", "index")
    } == {
        "task": 4,
        "address": "10.0.0.5:8470",
        "slice": "my-tpu",
        "state": "READY",
        "health": "HEALTHY",
        "name": "my-tpu/worker-4",
        "index": 4,
    }
    assert task["accelerator_type"] == "v4-8"
    as_yaml = yaml.safe_load(aioresolve("my-tpu", "-o", "yaml", "--job-name", "tpu_worker").stdout)
    assert as_yaml["jobs"] == found["jobs"]


def test_name_and_tf_config_are_as_of_kubernetes(aioresolve: Command) -> None:
    addresses = [f"10.0.0.{n}:8470" for n in range(1, 6)]
    assert aioresolve("my-tpu", "-o", "name").stdout.split() == addresses
    config = json.loads(aioresolve("my-tpu", "-o", "tf-config", "--task", "worker:1").stdout)
    assert config == {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 1}}


def test_without_a_name_gkes_variables_say_which(
    aioresolve: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "host-0,host-1")
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    rows = aioresolve("-o", "wide").stdout.splitlines()[1:]
    assert [row.split() for row in rows] == [
        ["worker", str(n), f"host-{n}:8470", "<none>", str(n), "<none>", "<none>", "v5litepod-8"]
        for n in range(2)
    ]


def test_without_a_name_a_tpu_vm_says_which(aioresolve: Command, open_google: ThreadedGoogleServer) -> None:
    open_google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"], worker=1))
    assert aioresolve("-o", "name").stdout.split() == ["10.0.0.1:8470", "10.0.0.2:8470"]


def test_a_tpu_of_this_host_has_no_workers_and_says_so(aioresolve: Command) -> None:
    answer = aioresolve("local")
    assert (answer.code, answer.stdout) == (0, "")
    assert answer.stderr.startswith("No workers: the TPU is this host's own")
    assert aioresolve("local", "-q") == Ended(0, "", "")


# What cannot be answered


def test_a_name_that_nothing_has_is_told_with_the_options_to_correct(aioresolve: Command) -> None:
    answer = aioresolve("another")
    assert (answer.code, answer.stdout) == (1, "")
    assert "there is no TPU projects/demo-project/locations/us-central2-b/nodes/another: " in answer.stderr
    assert ". Correct NAME, --project or --zone.\n" in answer.stderr


def test_a_tpu_that_is_not_ready_is_told_with_its_state(
    aioresolve: Command, open_google: ThreadedGoogleServer
) -> None:
    open_google.patch("my-tpu", state="PREEMPTED")
    answer = aioresolve("my-tpu")
    assert (answer.code, answer.stdout) == (1, "")
    assert "my-tpu: state PREEMPTED" in answer.stderr


def test_off_google_cloud_it_says_which_options_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tpu", "my-tpu", "--project", PROJECT]) == 2
    assert "Pass --zone, or the full name" in capsys.readouterr().err
    assert main(["tpu", "my-tpu"]) == 2
    assert "Pass --project and --zone, or the full name" in capsys.readouterr().err
    assert main(["tpu"]) == 1
    assert "no name or address was given" in capsys.readouterr().err
    assert main(["tpu", "--list"]) == 2
    assert "give --project" in capsys.readouterr().err


def test_a_deadline_has_an_exit_code_of_its_own(
    aioresolve: Command, open_google: ThreadedGoogleServer
) -> None:
    open_google.inject(Hang(), times=None)
    for arguments in (("my-tpu",), ("--list",)):
        answer = aioresolve(*arguments, "--timeout", "300ms")
        assert (answer.code, answer.stdout) == (3, "")
        assert "within 0.3 s" in answer.stderr
        assert "raise --timeout" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "mend"),
    [
        (("--list", "my-tpu"), "leave out NAME"),
        (("--list", "--probe"), "leave out --probe"),
        (("--list", "-o", "tf-config"), "name a TPU"),
        (("my-tpu", "--probe", "-o", "name"), "leave out one"),
        (("my-tpu", "--probe", "-o", "tf-config"), "leave out one"),
        (("my-tpu", "--task", "worker:0"), "-o tf-config"),
        (("my-tpu", "--api-version", "v3"), "v2"),
        (("my-tpu", "my-tpu"), "Name each TPU once"),
    ],
)
def test_what_goes_not_together_is_wrong_usage(
    aioresolve: Command, open_google: ThreadedGoogleServer, arguments: tuple[str, ...], mend: str
) -> None:
    answer = aioresolve(*arguments)
    assert (answer.code, answer.stdout) == (2, "")
    assert mend in answer.stderr
    assert open_google.requests == ()


# The list


@pytest.fixture
def listing(open_google: ThreadedGoogleServer, aioresolve: Command) -> Command:
    """`aioresolve tpu --list`, with a second TPU in another zone that is being created."""
    far = f"projects/{PROJECT}/locations/europe-west4-a/nodes/far"
    open_google.add(tpu_node(far, ips=[], state="CREATING", health=None))

    def command(*arguments: str) -> Ended:
        return aioresolve("--list", *arguments)

    return command


def test_the_list_shows_all_tpus_in_whatever_state(listing: Command) -> None:
    answer = listing()
    assert (answer.code, answer.stderr) == (0, "")
    header, *rows = sorted(map(str.split, answer.stdout.splitlines()), key=lambda cells: cells[0])
    assert header == ["NAME", "ZONE", "TYPE", "STATE", "HEALTH", "ENDPOINTS"]
    assert rows == [
        ["far", "europe-west4-a", "v4-8", "CREATING", "<none>", "<none>"],
        [
            *("my-tpu", ZONE, "v4-8", "READY", "HEALTHY"),
            "10.0.0.1:8470,10.0.0.2:8470,10.0.0.3:8470+2",
        ],
    ]
    assert "10.0.0.5:8470" in listing("-o", "wide").stdout


def test_a_zone_narrows_the_list(listing: Command) -> None:
    assert (
        listing("--zone", ZONE, "-o", "name").stdout == f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu\n"
    )
    assert len(listing("--zone", "-", "-o", "name").stdout.split()) == 2


def test_the_list_as_json_and_yaml_has_every_field(listing: Command) -> None:
    found = json.loads(listing("--zone", ZONE, "-o", "json").stdout)
    (only,) = found["nodes"]
    assert only["endpoints"][4] == {"address": "10.0.0.5:8470", "external_ip": None}
    assert (only["name"], only["zone"], only["project"]) == ("my-tpu", ZONE, PROJECT)
    assert (only["topology"], only["health_description"]) == ("2x2x1", None)
    assert found["unreachable"] == []
    assert yaml.safe_load(listing("--zone", ZONE, "-o", "yaml").stdout) == found


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_locations_that_were_not_reached_are_an_error_beside_the_rest(
    listing: Command, open_google: ThreadedGoogleServer, quiet: tuple[str, ...]
) -> None:
    open_google.unreachable.append("europe-west4-a")
    answer = listing("-o", "name", *quiet)
    assert answer.code == 1
    assert answer.stdout.endswith("/nodes/my-tpu\n")
    assert answer.stderr == "error: not reached, so that their TPUs are missing: europe-west4-a\n"


def test_an_empty_list_is_an_answer(listing: Command) -> None:
    assert listing("--zone", "us-west4-a") == Ended(0, "", "No TPUs found.\n")


# Probing


@pytest.fixture
def of_google(google: ThreadedGoogleServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a VM of a project that wants credentials, which its metadata server has."""
    own = environment(tmp_path / "none")
    return own | google.environ(tmp_path) | {"HOME": str(tmp_path)}


def test_probing_adds_what_each_worker_says(of_google: dict[str, str], workers: list[str]) -> None:
    answer = run(("tpu", "slice-0", "slice-1", "--probe", "-o", "wide"), of_google)
    assert (answer.code, answer.stderr) == (0, "")
    header, *rows = map(str.split, answer.stdout.splitlines())
    assert header == [
        *("JOB", "TASK", "ADDRESS", "SLICE", "WORKER", "STATE", "HEALTH", "TYPE"),
        *PROBE_COLUMNS,
    ]
    assert [row[2] for row in rows] == workers
    assert [row[3:8] for row in rows] == [
        [f"slice-{n // 2}", str(n % 2), "READY", "<none>" if n // 2 else "HEALTHY", "v4-16"] for n in range(4)
    ]
    assert [row[8] for row in rows] == ["TPU:4"] * 4


def test_a_worker_that_does_not_answer_has_its_error_and_the_code_is_1(
    google: ThreadedGoogleServer, of_google: dict[str, str], workers: list[str]
) -> None:
    with tpu_worker_process(devices=4, faults=[Hang()]) as (silent,):
        google.add(node("half", [workers[0], silent]))
        answer = run(("tpu", "half", "--probe", "-o", "json", "--worker-timeout", "300ms"), of_google)
    assert (answer.code, answer.stderr) == (1, "error: 1 of 2 workers did not answer\n")
    first, second = json.loads(answer.stdout)["jobs"]["worker"]
    assert (first["probe"]["accelerators"], first["probe"]["error"]) == ({"TPU": 4}, None)
    assert second["probe"]["error"]["code"] == "deadline"


# Secrets, streams, and what it loads


def secrets_of(env: dict[str, str]) -> list[str]:
    """What the service account's key signs with, and how a token that it signed begins."""
    key = json.loads(Path(env["GOOGLE_APPLICATION_CREDENTIALS"]).read_text())["private_key"]
    return [*key.splitlines(), "Bearer ", "eyJ"]


def test_no_secret_is_in_what_is_logged(of_google: dict[str, str]) -> None:
    answer = run(("tpu", "slice-0", "-vv"), of_google)
    assert answer.code == 0
    assert answer.stdout.startswith("JOB")
    assert "nodes/slice-0" in answer.stderr
    assert not [secret for secret in secrets_of(of_google) if secret in answer.stderr]


def test_no_secret_is_in_a_failure_that_is_logged(
    google: ThreadedGoogleServer, of_google: dict[str, str]
) -> None:
    google.denied.add("tpu.nodes.get")
    answer = run(("tpu", "slice-0", "-vv"), of_google)
    assert (answer.code, answer.stdout) == (1, "")
    assert "where that came from" in answer.stderr
    assert not [secret for secret in secrets_of(of_google) if secret in answer.stderr]


def test_no_secret_of_a_federated_workload_is_logged(
    google: ThreadedGoogleServer, of_google: dict[str, str], tmp_path: Path
) -> None:
    file = google.write_external_account(tmp_path / "workload.json")
    env = of_google | {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    answer = run(("tpu", "--list", "--project", PROJECT, "-vv"), env)
    assert answer.code == 0
    assert "slice-0" in answer.stdout
    secrets = [file.with_suffix(".token").read_text(), "Bearer ", "ya29."]
    assert not [secret for secret in secrets if secret in answer.stderr]


def test_a_pipe_is_told_of_each_failure_that_is_tried_again(
    open_google: ThreadedGoogleServer, tmp_path: Path
) -> None:
    open_google.inject(
        Answer(503, headers={"Retry-After": "1"}), match=lambda request: "/nodes/" in request.path
    )
    done = run(("tpu", "my-tpu", "-o", "name"), environment(tmp_path / "none") | open_google.environ())
    assert (done.code, len(done.stdout.split())) == (0, 5)
    assert done.stderr.startswith("trying again: ")
    assert "503" in done.stderr


def test_a_terminal_gets_colours_and_sees_what_is_waited_for(
    open_google: ThreadedGoogleServer, tmp_path: Path
) -> None:
    open_google.inject(Delay(0.9))
    env = environment(tmp_path / "none") | open_google.environ()
    code, sent = on_a_terminal(("tpu", "my-tpu"), env)
    assert code == 0
    assert ESCAPE in sent
    assert "waiting for metadata project/project-id" in without_colours(sent)
    assert "10.0.0.5:8470" in without_colours(sent)


def test_workers_whose_addresses_are_given_load_neither_http_nor_grpc(tmp_path: Path) -> None:
    loaded = loaded_by(("tpu", "grpc://10.0.0.1", "-o", "name"), environment(tmp_path / "none"))
    assert loaded & {"aiohttp", "grpc", "rich", "trustme", "yaml"} == set()
