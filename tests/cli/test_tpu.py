"""`aioresolve tpu`: its output, messages and exit codes, with a loopback Google Cloud."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from aioresolve.testing import GoogleServer, Hang, ThreadedGoogleServer, tpu_node, tpu_worker_process

from .process import Result, Run, environment

PROJECT = "demo-project"


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


def test_workers_are_listed_in_the_order_of_tasks(aioresolve: Command) -> None:
    result = aioresolve("my-tpu")
    assert (result.code, result.stderr) == (0, "")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["JOB", "TASK", "NAME", "ADDRESS"],
        *(["worker", str(n), f"my-tpu/worker-{n}", f"10.0.0.{n + 1}:8470"] for n in range(5)),
    ]
    found = json.loads(aioresolve("my-tpu", "-o", "json", "--job-name", "tpu_worker").stdout)
    [*_, last] = found["jobs"]["tpu_worker"]
    assert (last["task"], last["name"], last["address"]) == (4, "my-tpu/worker-4", "10.0.0.5:8470")


def test_a_local_tpu_has_no_workers_which_is_an_error_unless_allowed(aioresolve: Command) -> None:
    result = aioresolve("local", "-o", "tf-config")
    assert (result.code, result.stdout) == (1, "")
    assert aioresolve("local", "--probe") == result
    reason = "left out: local: the TPU of this host has no workers to wait for: name a TPU, or addresses"
    assert result.stderr.startswith(reason)
    assert "\nerror: job 'worker' has no tasks: TPU local; pass --allow-empty if" in result.stderr
    allowed = aioresolve("local", "--allow-empty")
    assert (allowed.code, allowed.stdout) == (0, "")
    assert allowed.stderr.endswith("\njob 'worker' has no tasks: TPU local\n")
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


# Probing


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with tpu_worker_process(devices=4, ports=4) as addresses:
        yield addresses


def slice_of(name: str, addresses: list[str]) -> dict[str, Any]:
    """Return a TPU node with workers at these addresses."""
    parts = [address.rpartition(":") for address in addresses]
    endpoints = [{"ipAddress": host, "port": int(port)} for host, _, port in parts]
    node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2")
    return node | {"networkEndpoints": endpoints}


def test_probing_adds_the_devices_of_each_worker(run: Run, workers: list[str], tmp_path: Path) -> None:
    nodes = [slice_of("slice-0", workers[:2]), slice_of("slice-1", workers[2:])]
    with GoogleServer(nodes, tls=True, tokens={}).in_thread() as google:
        env = environment(tmp_path / "none") | google.environ(tmp_path) | {"HOME": str(tmp_path)}
        result = run(("tpu", "slice-0", "slice-1", "--probe"), env)
    assert (result.code, result.stderr) == (0, "")
    header, *rows = map(str.split, result.stdout.splitlines())
    assert header == ["JOB", "TASK", "NAME", "ADDRESS", "DEVICES", "LATENCY"]
    assert [row[2:5] for row in rows] == [
        [f"slice-{n // 2}/worker-{n % 2}", address, "TPU:4"] for n, address in enumerate(workers)
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
