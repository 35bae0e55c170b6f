"""`aioresolve tpu`: its output, messages and exit codes, with a loopback Google Cloud."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import yaml

from aioresolve.testing import GoogleServer, Hang, tpu_node, tpu_worker_process

from .process import Result, Run, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import ThreadedGoogleServer

PROJECT = "demo-project"
ZONE = "us-central2-b"


class Command(Protocol):
    def __call__(self, *arguments: str) -> Result: ...


@pytest.fixture
def google() -> Iterator[ThreadedGoogleServer]:
    """The APIs without authentication, with a TPU of five workers."""
    with GoogleServer([tpu_node("my-tpu", ips=[f"10.0.0.{n}" for n in range(1, 6)])]).in_thread() as server:
        yield server


@pytest.fixture
def aioresolve(run: Run, google: ThreadedGoogleServer, tmp_path: Path) -> Command:
    """Run `aioresolve tpu` on a VM of that project."""
    env = environment(tmp_path / "none", **google.environ())
    return lambda *arguments: run(("tpu", *arguments), env)


# Output


def test_tables_list_workers_in_the_order_of_tasks_and_if_wide_with_their_slices(aioresolve: Command) -> None:
    result = aioresolve("my-tpu")
    assert (result.code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()[:2]] == [
        ["JOB", "TASK", "NAME", "ADDRESS"],
        ["worker", "0", "my-tpu/worker-0", "10.0.0.1:8470"],
    ]
    header, *rows = aioresolve("my-tpu", "-o", "wide").stdout.splitlines()
    assert header.split()[4:] == ["TYPE", "STATE", "HEALTH"]
    assert rows[4].split() == ["worker", "4", "my-tpu/worker-4", "10.0.0.5:8470", "v4-8", "READY", "HEALTHY"]


def test_json_and_yaml_are_one_object(aioresolve: Command) -> None:
    found = json.loads(aioresolve("my-tpu", "-o", "json", "--job-name", "tpu_worker").stdout)
    assert (
        found["jobs"]["tpu_worker"][4].items()
        >= {
            "task": 4,
            "address": "10.0.0.5:8470",
            "slice": "my-tpu",
            "state": "READY",
            "health": "HEALTHY",
            "name": "my-tpu/worker-4",
            "index": 4,
            "accelerator_type": "v4-8",
        }.items()
    )
    from_yaml = yaml.safe_load(aioresolve("my-tpu", "-o", "yaml", "--job-name", "tpu_worker").stdout)
    assert from_yaml["jobs"] == found["jobs"]


def test_a_local_tpu_has_no_workers_which_is_an_error_unless_allowed(aioresolve: Command) -> None:
    result = aioresolve("local", "-o", "tf-config")
    assert (result.code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: TPU local has no workers: it belongs to this host")
    allowed = aioresolve("local", "--allow-empty")
    assert (allowed.code, allowed.stdout) == (0, "")
    assert allowed.stderr.startswith("TPU local has no workers")
    assert aioresolve("local", "--allow-empty", "-q") == Result(0, "", "")


# Errors


def test_a_tpu_that_is_not_ready_or_healthy_is_an_error_with_the_option_that_permits_it(
    aioresolve: Command, google: ThreadedGoogleServer
) -> None:
    google.patch("my-tpu", state="PREEMPTED")
    preempted = aioresolve("my-tpu")
    assert (preempted.code, preempted.stdout) == (1, "")
    assert "my-tpu: state PREEMPTED" in preempted.stderr
    google.add(tpu_node("ill", ips=["10.0.1.1"], external_ips=["203.0.113.1"], health="TIMEOUT"))
    refused = aioresolve("ill", "-o", "name")
    assert refused.code == 1
    assert "Pass --not-healthy allow" in refused.stderr
    allowed = aioresolve("ill", "-o", "name", "--not-healthy", "allow", "--address", "external_ip")
    assert (allowed.code, allowed.stdout) == (0, "203.0.113.1:8470\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("my-tpu", "--project", PROJECT), 2, "Pass --zone, or the full name"),
        (("my-tpu",), 2, "Pass --project and --zone, or the full name"),
        ((), 1, "no name or address was given"),
        (("--list",), 2, "Pass --project."),
    ],
)
def test_missing_options_are_reported_outside_google_cloud(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(("tpu", *arguments), environment(tmp_path / "none", GCE_METADATA_HOST="metadata.invalid"))
    assert result.code == code
    assert message in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (("another",), 1, ". Correct NAME, --project or --zone.\n"),
        (("--list", "my-tpu"), 2, "leave out NAME"),
        (("--list", "--probe"), 2, "leave out --probe"),
        (("--list", "-o", "tf-config"), 2, "pass NAME instead"),
        (("my-tpu", "--probe", "-o", "name"), 2, "leave out one"),
        (("my-tpu", "--not-healthy", "skip"), 2, "allow"),
    ],
)
def test_wrong_names_and_options_are_reported_with_what_to_correct(
    aioresolve: Command, google: ThreadedGoogleServer, arguments: tuple[str, ...], code: int, hint: str
) -> None:
    result = aioresolve(*arguments)
    assert (result.code, result.stdout) == (code, "")
    assert hint in result.stderr
    assert (google.requests == ()) is (code == 2)


# The list


def test_the_list_shows_tpus_in_any_state(aioresolve: Command, google: ThreadedGoogleServer) -> None:
    far = f"projects/{PROJECT}/locations/europe-west4-a/nodes/far"
    google.add(tpu_node(far, ips=[], state="CREATING", health=None))
    result = aioresolve("--list")
    assert (result.code, result.stderr) == (0, "")
    header, *rows = sorted(map(str.split, result.stdout.splitlines()), key=lambda cells: cells[0])
    assert header == ["NAME", "ZONE", "TYPE", "STATE", "HEALTH", "ENDPOINTS"]
    endpoints = "10.0.0.1:8470,10.0.0.2:8470,10.0.0.3:8470+2"
    assert rows == [
        ["far", "europe-west4-a", "v4-8", "CREATING", "<none>", "<none>"],
        ["my-tpu", ZONE, "v4-8", "READY", "HEALTHY", endpoints],
    ]
    assert "10.0.0.5:8470" in aioresolve("--list", "-o", "wide").stdout
    google.unreachable.append("europe-west4-a")
    partial = aioresolve("--list", "-o", "name", "-q")
    assert (partial.code, partial.stdout.rpartition("/")[2]) == (1, "my-tpu\n")
    assert partial.stderr == "error: these locations were not reached: europe-west4-a\n"


def test_the_list_as_json_and_yaml_has_every_field(aioresolve: Command) -> None:
    found = json.loads(aioresolve("--list", "--zone", ZONE, "-o", "json").stdout)
    (only,) = found["nodes"]
    assert only["endpoints"][4] == {"address": "10.0.0.5:8470", "external_ip": None}
    assert (only["name"], only["zone"], only["project"]) == ("my-tpu", ZONE, PROJECT)
    assert (only["topology"], only["health_description"]) == ("2x2x1", None)
    assert found["unreachable"] == []
    assert yaml.safe_load(aioresolve("--list", "--zone", ZONE, "-o", "yaml").stdout) == found


# Probing


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with tpu_worker_process(devices=4, ports=4) as addresses:
        yield addresses


def slice_of(name: str, addresses: list[str], **fields: Any) -> dict[str, Any]:
    """Return a TPU node with workers at these addresses."""
    parts = [address.rpartition(":") for address in addresses]
    endpoints = [{"ipAddress": host, "port": int(port)} for host, _, port in parts]
    node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2", **fields)
    return node | {"networkEndpoints": endpoints}


def test_probing_adds_the_devices_of_each_worker(run: Run, workers: list[str], tmp_path: Path) -> None:
    nodes = [slice_of("slice-0", workers[:2]), slice_of("slice-1", workers[2:], health=None)]
    with GoogleServer(nodes, tls=True, tokens={}).in_thread() as google:
        env = environment(tmp_path / "none") | google.environ(tmp_path) | {"HOME": str(tmp_path)}
        result = run(("tpu", "slice-0", "slice-1", "--probe", "-o", "wide"), env)
    assert (result.code, result.stderr) == (0, "")
    header, *rows = map(str.split, result.stdout.splitlines())
    assert header == [*("JOB", "TASK", "NAME", "ADDRESS", "TYPE", "STATE", "HEALTH", "DEVICES", "LATENCY")]
    assert [row[3] for row in rows] == workers
    assert [[row[2], *row[4:8]] for row in rows] == [
        [f"slice-{n // 2}/worker-{n % 2}", "v4-16", "READY", "<none>" if n // 2 else "HEALTHY", "TPU:4"]
        for n in range(4)
    ]


@pytest.mark.slow
def test_a_worker_that_fails_the_probe_has_its_error_and_the_exit_code_is_1(
    aioresolve: Command, google: ThreadedGoogleServer, workers: list[str]
) -> None:
    with tpu_worker_process(devices=4, faults=[Hang()]) as (silent,):
        google.add(slice_of("half", [workers[0], silent]))
        result = aioresolve("half", "--probe", "-o", "json", "--worker-timeout", "1s")
    assert (result.code, result.stderr) == (1, "error: 1 of 2 workers failed the probe\n")
    first, second = json.loads(result.stdout)["jobs"]["worker"]
    assert (first["probe"]["accelerators"], first["probe"]["error"]) == ({"TPU": 4}, None)
    assert second["probe"]["error"]["code"] == "deadline"
