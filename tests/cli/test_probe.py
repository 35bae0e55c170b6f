"""`aioresolve probe`: its output, streams and exit codes, with workers in another process."""

from __future__ import annotations

import json
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from aioresolve.cli import main
from aioresolve.testing import Delay, Hang, tpu_worker_process

from .process import COMMAND, environment, run_on_terminal, without_colors

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


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A worker that never responds."""
    with tpu_worker_process(devices=4, faults=[Hang()]) as (address,):
        yield address


@pytest.fixture
def closed() -> Iterator[str]:
    """An address that refuses connections; the tests use its port for libtpu as well."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "none")


def libtpu_at(address: str) -> tuple[str, str]:
    return ("--libtpu-port", address.rpartition(":")[2])


# Output


def test_each_worker_has_a_row(workers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", *workers]) == 0
    written = capsys.readouterr()
    header, *rows = written.out.splitlines()
    assert header.split() == ["ADDRESS", "SOURCE", "DEVICES", "CORES", "CHIPS", "LATENCY", "ERROR"]
    assert sorted(row.split()[0] for row in rows) == sorted(workers)
    assert {tuple(row.split()[1:3]) for row in rows} == {("tensorflow", "TPU:4")}
    assert written.err == ""


def test_json_is_one_object_per_line(workers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "-o", "json", f"grpc://{workers[0]}", workers[1]]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(each["address"] for each in found) == sorted(workers[:2])
    for each in found:
        assert each["accelerators"] == {"TPU": 4}
        assert [device["type"] for device in each["devices"]] == ["CPU", *["TPU"] * 4]
        assert 0 < each["latency"] < 5
        assert each["error"] is None


def test_a_failing_worker_has_a_row_with_the_reason_and_the_exit_code_is_1(
    workers: list[str], closed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", workers[0], closed, *libtpu_at(closed)]) == 1
    written = capsys.readouterr()
    row = next(line for line in written.out.splitlines() if line.startswith(closed))
    assert f"refused: nothing listens at {closed}: connection refused" in row
    assert written.err == "error: 1 of 2 workers failed the probe\n"
    assert main(["probe", "-o", "json", closed, *libtpu_at(closed)]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["retryable"]) == ("refused", True)
    assert error["message"].endswith("as --libtpu-port (of `aioresolve probe`).")


@pytest.mark.slow
def test_the_first_response_is_printed_first(workers: list[str], slow: str, env: dict[str, str]) -> None:
    with subprocess.Popen(
        [*COMMAND, "probe", slow, workers[0]], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ADDRESS")
        assert process.stdout.readline().startswith(workers[0])
        assert process.poll() is None
        assert process.stdout.readline().startswith(slow)
    assert process.returncode == 0


@pytest.mark.slow
def test_tls_is_used_with_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with tpu_worker_process(devices=4, tls=True) as (address,):
        assert main(["probe", "-o", "json", address]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "unreachable"
        assert "If the worker uses TLS, enable it with --tls" in error["message"]
        # gRPC does not trust the certificate authority of the worker.
        assert main(["probe", "-o", "json", "--tls", address]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "tls"


@pytest.mark.parametrize("host", ["10.0.0.7:0", "http://10.0.0.7", ""])
def test_an_invalid_host_is_invalid_usage(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", host]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert repr(host) in written.err


# Streams


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
