"""`aioresolve probe`: rows as they arrive, streams, exit codes, against workers in a process of their own."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from aioresolve.cli import main
from aioresolve.cli.output.probe_rows import PROBE_COLUMNS, Rows, probe_cells, probe_document
from aioresolve.cli.terminal.drawing import drawn_bar
from aioresolve.errors import ProbeError
from aioresolve.probe import Device, WorkerProbe
from aioresolve.testing import Delay, Hang, TPUWorker, tpu_worker_process

from .process import COMMAND, ESCAPE, PATIENCE, environment, run, without_colours
from .test_process import loaded_by, on_a_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def workers() -> Iterator[list[str]]:
    with tpu_worker_process(devices=4, ports=3) as addresses:
        yield addresses


@pytest.fixture(scope="module")
def slow() -> Iterator[str]:
    """A worker that answers after a second."""
    with tpu_worker_process(devices=4, faults=[Delay(1.0)]) as (address,):
        yield address


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A worker that never answers."""
    with tpu_worker_process(devices=4, faults=[Hang()]) as (address,):
        yield address


@pytest.fixture
def closed() -> Iterator[str]:
    """An address that refuses connections, and so does the libtpu port that the tests give."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path / "none")


def libtpu_at(address: str) -> tuple[str, str]:
    return ("--libtpu-port", address.rpartition(":")[2])


# What it answers


def test_each_worker_has_a_row_of_its_own(workers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", *workers]) == 0
    written = capsys.readouterr()
    header, *rows = written.out.splitlines()
    assert header.split() == ["ADDRESS", "SOURCE", *PROBE_COLUMNS]
    assert sorted(row.split()[0] for row in rows) == sorted(workers)
    assert {tuple(row.split()[1:3]) for row in rows} == {("tensorflow", "TPU:4")}
    assert written.err == ""


def test_json_is_an_object_per_line(workers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "-o", "json", f"grpc://{workers[0]}", workers[1]]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted(each["address"] for each in found) == sorted(workers[:2])
    for each in found:
        assert each["accelerators"] == {"TPU": 4}
        assert [device["type"] for device in each["devices"]] == ["CPU", *["TPU"] * 4]
        assert 0 < each["latency"] < 5
        assert each["error"] is None


def test_who_does_not_answer_has_a_row_with_the_reason_and_the_code_is_1(
    workers: list[str], closed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", workers[0], closed, *libtpu_at(closed)]) == 1
    written = capsys.readouterr()
    row = next(line for line in written.out.splitlines() if line.startswith(closed))
    assert f"refused: nothing listens at {closed}: connection refused" in row
    assert written.err == "error: 1 of 2 workers did not answer\n"


def test_an_error_in_json_says_the_mend_as_an_option(closed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "-o", "json", closed, *libtpu_at(closed)]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["retryable"]) == ("refused", True)
    assert error["message"].endswith("as --libtpu-port (of `aioresolve probe`).")


def test_the_first_to_answer_is_printed_first(workers: list[str], slow: str, env: dict[str, str]) -> None:
    with subprocess.Popen(
        [*COMMAND, "probe", slow, workers[0]], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ADDRESS")
        assert process.stdout.readline().startswith(workers[0])
        assert process.poll() is None
        assert process.stdout.readline().startswith(slow)
    assert process.returncode == 0


def test_one_worker_has_its_own_deadline(
    workers: list[str], silent: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "--worker-timeout", "300ms", silent, workers[0]]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert rows[1].startswith(workers[0])
    assert "deadline: " in rows[2]
    assert "within 0.3 s" in rows[2]


def test_all_of_them_have_a_deadline_too(silent: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("probe", "-o", "json", "--timeout", "0.3", "--max-concurrency", "1")
    assert main([*arguments, silent, silent]) == 1
    first, second = (json.loads(line)["error"] for line in capsys.readouterr().out.splitlines())
    assert "when the deadline for all workers (0.3 s) passed" in first["message"]
    assert second["message"].endswith("Raise --timeout or --max-concurrency.")


def test_tls_is_spoken_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with tpu_worker_process(devices=4, tls=True) as (address,):
        assert main(["probe", "-o", "json", address]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["code"] == "tls"
        assert "Enable TLS with --tls" in error["message"]
        # Its authority is nobody's.
        assert main(["probe", "-o", "json", "--tls", address]) == 1
        assert json.loads(capsys.readouterr().out)["error"]["code"] == "tls"


async def test_an_authority_in_grpcs_own_variable_is_trusted(env: dict[str, str], tmp_path: Path) -> None:
    async with TPUWorker(devices=4, tls=True) as worker:
        authority = tmp_path / "authority.pem"
        authority.write_bytes(worker.certificate_authority)
        env |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority)}
        answer = await anyio.to_thread.run_sync(run, ("probe", "--tls", worker.address), env)
    assert (answer.code, answer.stderr) == (0, "")
    assert "TPU:4" in answer.stdout


@pytest.mark.parametrize("host", ["10.0.0.7:0", "10.0.0.7:99999", "a b", "http://10.0.0.7", ""])
def test_what_is_no_host_is_wrong_usage(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", host]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert repr(host) in written.err


def test_without_a_host_it_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe"]) == 2
    assert "Missing argument 'HOST[:PORT]...'" in capsys.readouterr().err


# Its streams


def test_a_pipe_gets_no_bar_however_long_it_takes(slow: str, env: dict[str, str]) -> None:
    answer = run(("probe", slow), env)
    assert (answer.code, answer.stderr) == (0, "")
    assert ESCAPE not in answer.stdout


def test_a_terminal_sees_how_many_have_answered(workers: list[str], slow: str, env: dict[str, str]) -> None:
    code, sent = on_a_terminal(("probe", workers[0], slow), env)
    assert code == 0
    shown = without_colours(sent)
    assert "1 of 2 asked" in shown
    # The bar is gone before the row is there, and for good.
    last = shown.rindex("asked")
    assert "\x1b[2K" in shown[last:]
    assert shown.splitlines()[-1].startswith(slow) or f"\x1b[2K{slow}" in shown


@pytest.mark.parametrize("quiet", ["-q", "-v"])
def test_no_bar_is_drawn_among_log_lines_or_where_nobody_wants_one(
    quiet: str, slow: str, env: dict[str, str]
) -> None:
    code, sent = on_a_terminal(("probe", quiet, slow), env)
    assert code == 0
    assert "of 1 asked" not in without_colours(sent)


def test_a_reader_that_has_gone_ends_it_as_sigpipe_would(
    workers: list[str], silent: str, env: dict[str, str]
) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [*COMMAND, "probe", workers[0], silent],
            env=env,
            stdout=write,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_ends_it_with_130_and_keeps_the_rows_so_far(
    workers: list[str], silent: str, env: dict[str, str]
) -> None:
    with subprocess.Popen(
        [*COMMAND, "probe", "--worker-timeout", "30s", workers[0], silent],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.stdout.readline().startswith(workers[0].encode())
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE) == (b"", b"")
        assert process.returncode == 130


@pytest.mark.parametrize("command", ["probe", "tpu"])
def test_help_loads_nothing_but_click(command: str, env: dict[str, str]) -> None:
    heavy = {"aiohttp", "anyio", "asyncio", "google", "grpc", "msgspec", "rich", "ssl", "tenacity", "yaml"}
    assert loaded_by((command, "--help"), env) & heavy == set()


def test_logging_ends_with_the_command(workers: list[str]) -> None:
    assert main(["probe", "-vv", workers[0]]) == 0
    assert logging.getLogger("aioresolve").level == logging.NOTSET


# The pure parts


def test_rows_are_aligned_before_they_are_all_known() -> None:
    rows = Rows(["10.0.0.7:8470", "[fd00::7]:8470"])
    lines = [
        rows.header(),
        rows.row(
            WorkerProbe("10.0.0.7:8470", "libtpu", (Device("a", "TPU"),), cores=2, chips=1, latency=0.0123)
        ),
        rows.row(
            WorkerProbe("[fd00::7]:8470", latency=5.0, error=ProbeError("gone; try again", code="refused"))
        ),
    ]
    assert lines == [
        "ADDRESS          SOURCE       DEVICES    CORES    CHIPS    LATENCY   ERROR\n",
        "10.0.0.7:8470    libtpu       TPU:1      2        1        12.3ms    <none>\n",
        "[fd00::7]:8470   <none>       <none>     <none>   <none>   5.00s     refused: gone\n",
    ]


def test_what_a_worker_says_cannot_steer_a_terminal() -> None:
    device = Device("a", "TPU\x1b[2J")
    row = Rows(["a:1"]).row(WorkerProbe("a:1", "tensorflow", (device,)))
    assert "\x1b" not in row
    assert "TPU\\x1b[2J:1" in row


def test_an_object_tells_all_that_a_row_does() -> None:
    probe = WorkerProbe("a:1", "libtpu", (), cores=8, chips=4, latency=0.25)
    assert probe_document(probe) == {
        "address": "a:1",
        "source": "libtpu",
        "accelerators": {"TPU": 8},
        "cores": 8,
        "chips": 4,
        "latency": 0.25,
        "devices": [],
        "error": None,
    }
    assert probe_cells(probe) == ("TPU:8", "8", "4", "250.0ms", "")


@pytest.mark.parametrize("columns", [1, 10, 40, 200])
def test_the_bar_is_one_line_that_fits(columns: int) -> None:
    bar = without_colours(drawn_bar(0.5, "3 of 6 asked", columns))
    assert "\n" not in bar
    assert len(bar) <= columns
