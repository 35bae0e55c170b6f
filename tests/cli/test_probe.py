"""`aioresolve probe`: its output, streams and exit codes, with workers in another process."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioresolve.cli.commands.probe import probe_cells, probe_document
from aioresolve.probe import WorkerProbe
from aioresolve.testing import Delay, tpu_worker_process

from .process import Run, environment, run_on_terminal, without_colors


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with tpu_worker_process(devices=4, ports=3) as addresses:
        yield addresses


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "none")


def test_each_worker_has_a_row(run: Run, env: dict[str, str], workers: list[str]) -> None:
    result = run(("probe", *workers), env)
    assert (result.code, result.stderr) == (0, "")
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["ADDRESS", "SOURCE", "DEVICES", "CORES", "CHIPS", "LATENCY", "ERROR"]
    assert [[*row.split()[:5], row.split()[6]] for row in rows] == [
        [worker, "tensorflow", "TPU:4", *["<none>"] * 3] for worker in workers
    ]


def test_json_is_one_object_per_line(run: Run, env: dict[str, str], workers: list[str]) -> None:
    result = run(("probe", "-o", "json", f"grpc://{workers[0]}", workers[1]), env)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["address"] for each in found] == workers[:2]
    for each in found:
        assert each["accelerators"] == {"TPU": 4}
        assert [device["type"] for device in each["devices"]] == ["CPU", *["TPU"] * 4]
        assert 0 < each["latency"] < 5
        assert each["error"] is None


def test_a_failing_worker_has_a_row_with_the_reason_and_the_exit_code_is_1(
    run: Run, env: dict[str, str], workers: list[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.9", 0))  # it refuses connections, and no libtpu runs at this address
        closed = f"127.0.0.9:{taken.getsockname()[1]}"
        table = run(("probe", workers[0], closed), env)
        document = run(("probe", "-o", "json", closed), env)
    row = next(line for line in table.stdout.splitlines() if line.startswith(closed))
    assert f"refused: nothing listens at {closed}: connection refused" in row
    assert (table.code, table.stderr) == (1, "error: 1 of 2 workers failed the probe\n")
    error = json.loads(document.stdout)["error"]
    assert (error["code"], error["retryable"]) == ("refused", True)
    assert error["message"].endswith("TPU_RUNTIME_METRICS_PORTS as `libtpu_ports=` (of `aioresolve.probe`).")


def test_cells_and_documents_have_numbers_that_can_be_read() -> None:
    probes = [
        WorkerProbe("10.0.0.1:8431", "libtpu", cores=2, chips=1, latency=seconds)
        for seconds in (0.01234567, 1.0)
    ]
    assert [*map(probe_cells, probes)] == [
        ("TPU:2", "2", "1", latency, "") for latency in ("12.3ms", "1.00s")
    ]
    assert [probe_document(one)["latency"] for one in probes] == [0.012346, 1.0]


@pytest.mark.parametrize("host", ["10.0.0.7:0", "http://10.0.0.7", ""])
def test_an_invalid_host_is_invalid_usage(run: Run, env: dict[str, str], host: str) -> None:
    result = run(("probe", host), env)
    assert (result.code, result.stdout) == (2, "")
    assert repr(host) in result.stderr


@pytest.mark.slow
def test_a_terminal_shows_how_many_workers_have_responded(workers: list[str], env: dict[str, str]) -> None:
    with tpu_worker_process(devices=4, faults=[Delay(1.0)]) as (slow,):
        code, sent = run_on_terminal(("probe", slow, workers[0]), env)
    assert code == 0
    shown = without_colors(sent)
    assert "1 of 2 done" in shown
    # The line is erased before the table is written, whose rows have the order of the arguments.
    assert "\x1b[2K" in shown[shown.rindex("done") :]
    assert [line.split()[0] for line in shown.splitlines()[-2:]] == [slow, workers[0]]
