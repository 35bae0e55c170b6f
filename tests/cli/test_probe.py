"""`aioresolve probe`: its output, streams and exit codes, with workers in another process."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import Delay, tpu_worker_process

from .process import Run, Running, environment, run_on_terminal, without_colors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with tpu_worker_process(devices=4, ports=3) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """A worker that responds after a second."""
    with tpu_worker_process(devices=4, faults=[Delay(1.0)]) as (address,):
        yield address


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "none")


def test_each_worker_has_a_row(run: Run, env: dict[str, str], workers: list[str]) -> None:
    result = run(("probe", *workers), env)
    assert (result.code, result.stderr) == (0, "")
    header, *rows = result.stdout.splitlines()
    assert header.split() == ["ADDRESS", "SOURCE", "DEVICES", "CORES", "CHIPS", "LATENCY", "ERROR"]
    assert sorted(row.split()[0] for row in rows) == sorted(workers)
    assert {tuple(row.split()[1:3]) for row in rows} == {("tensorflow", "TPU:4")}
    # They are aligned although they are printed one by one.
    assert {row.index("TPU:4") for row in rows} == {header.index("DEVICES")}


def test_json_is_one_object_per_line(run: Run, env: dict[str, str], workers: list[str]) -> None:
    result = run(("probe", "-o", "json", f"grpc://{workers[0]}", workers[1]), env)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted(each["address"] for each in found) == sorted(workers[:2])
    for each in found:
        assert each["accelerators"] == {"TPU": 4}
        assert [device["type"] for device in each["devices"]] == ["CPU", *["TPU"] * 4]
        assert 0 < each["latency"] < 5
        assert each["error"] is None


def test_a_failing_worker_has_a_row_with_the_reason_and_the_exit_code_is_1(
    run: Run, env: dict[str, str], workers: list[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it refuses connections, also those to libtpu
        port = str(taken.getsockname()[1])
        closed = f"127.0.0.1:{port}"
        table = run(("probe", workers[0], closed, "--libtpu-port", port), env)
        document = run(("probe", "-o", "json", closed, "--libtpu-port", port), env)
    row = next(line for line in table.stdout.splitlines() if line.startswith(closed))
    assert f"refused: nothing listens at {closed}: connection refused" in row
    assert (table.code, table.stderr) == (1, "error: 1 of 2 workers failed the probe\n")
    error = json.loads(document.stdout)["error"]
    assert (error["code"], error["retryable"]) == ("refused", True)
    assert error["message"].endswith("as --libtpu-port (of `aioresolve probe`).")


@pytest.mark.slow
def test_the_first_response_is_printed_first(workers: list[str], slow: str, env: dict[str, str]) -> None:
    with Running(("probe", slow, workers[0]), env) as running:
        assert running.line().startswith("ADDRESS")
        assert running.line().startswith(workers[0])
        assert running.process.poll() is None
        assert running.line().startswith(slow)
        assert running.wait_for_exit().code == 0


@pytest.mark.slow
def test_tls_is_used_with_the_option(run: Run, env: dict[str, str]) -> None:
    with tpu_worker_process(devices=4, tls=True) as (address,):
        plain, trusting = (run(("probe", "-o", "json", *tls, address), env) for tls in ((), ("--tls",)))
    error = json.loads(plain.stdout)["error"]
    assert (plain.code, error["code"]) == (1, "unreachable")
    assert "If the worker uses TLS, enable it with --tls" in error["message"]
    # gRPC does not trust the certificate authority of the worker.
    assert (trusting.code, json.loads(trusting.stdout)["error"]["code"]) == (1, "tls")


@pytest.mark.parametrize("host", ["10.0.0.7:0", "http://10.0.0.7", ""])
def test_an_invalid_host_is_invalid_usage(run: Run, env: dict[str, str], host: str) -> None:
    result = run(("probe", host), env)
    assert (result.code, result.stdout) == (2, "")
    assert repr(host) in result.stderr


@pytest.mark.slow
def test_a_terminal_shows_how_many_workers_have_responded(
    workers: list[str], slow: str, env: dict[str, str]
) -> None:
    code, sent = run_on_terminal(("probe", workers[0], slow), env)
    assert code == 0
    shown = without_colors(sent)
    assert "1 of 2 done" in shown
    # The line is erased before the row is written, and not drawn after it.
    last = shown.rindex("done")
    assert "\x1b[2K" in shown[last:]
    assert shown.splitlines()[-1].startswith(slow) or f"\x1b[2K{slow}" in shown
