"""`aioresolve demo`: its output is correct, and it leaves nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from aioresolve import testing
from aioresolve.cli import main
from aioresolve.cli.commands import demo as demo_module
from aioresolve.testing import KubernetesServer, TPUWorker, pod

from .process import Terminal, environment, run

if TYPE_CHECKING:
    from pathlib import Path

    from .process import Result


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def shown(temporary: Path) -> Result:
    return run(("demo",), environment(temporary.parent / "no-kubeconfig", TMPDIR=str(temporary)))


def test_the_demo_fits_on_two_screens_and_leaves_no_files(shown: Result, temporary: Path) -> None:
    assert (shown.code, shown.stderr) == (0, "")
    lines = shown.stdout.splitlines()
    assert len(lines) <= 66
    assert "\x1b" not in shown.stdout
    assert "worker   3      10.4.3.7:8470" in lines
    assert list(temporary.iterdir()) == []


def test_a_terminal_shows_titles_and_python_code_in_color(tmp_path: Path) -> None:
    with Terminal(("demo",), environment(tmp_path / "no-kubeconfig", TERM="xterm-256color")) as terminal:
        assert terminal.wait_for_exit() == 0
    assert re.search(r"\x1b\[1;32m\S*The same in Python", terminal.sent)
    assert re.search(r"\x1b\[[0-9;]+mimport\x1b\[", terminal.sent)
    assert all(line in terminal.shown for line in demo_module.CODE.splitlines())


def test_the_demo_shows_the_first_workers_tf_config(shown: Result) -> None:
    line = next(line for line in shown.stdout.splitlines() if line.startswith('{"cluster"'))
    assert json.loads(line) == {
        "cluster": {
            "worker": [f"10.4.{number}.7:8470" for number in range(4)],
            "ps": ["10.4.4.7:8470"],
        },
        "task": {"type": "worker", "index": 0},
    }


def test_the_demo_shows_the_error_for_a_pod_that_is_not_running(shown: Result) -> None:
    assert "error: 1 matching pod is not running: training/train-b-1: Pending" in shown.stdout


def test_the_demo_requests_all_selectors_concurrently(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_module, "LATENCY", 0.4)
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    title = next(line for line in lines if line.startswith("# 5 tasks in "))
    assert 400 <= int(title.split()[-2]) < 1200


def test_the_demo_probes_the_workers_of_two_slices(shown: Result) -> None:
    rows = [line.split() for line in shown.stdout.splitlines() if line.startswith("worker")]
    addresses = [row[2] for row in rows if row[3:4] and row[3].startswith("trainer-")]
    assert [row[3:] for row in rows if row[2] in addresses][:4] == [
        [f"trainer-{task // 2}", str(task % 2), "READY", "HEALTHY", "v4-16"] for task in range(4)
    ]
    probed = [row for row in rows if "TPU:4" in row]
    assert [row[2] for row in probed] == addresses
    assert f"trainer-1/worker-1 at {addresses[3]} has 3" in shown.stdout


def test_the_demo_fails_if_workers_report_other_devices(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(testing, "TPUWorker", partial(TPUWorker, device_type="GPU"))
    assert main(["demo"]) == 1
    assert "error: the demo failed: the workers are [" in capsys.readouterr().err


def test_the_python_code_of_the_demo_runs(shown: Result, tmp_path: Path) -> None:
    assert demo_module.CODE in shown.stdout
    pods = [pod(name, demo_module.NAMESPACE, labels=labels) for name, labels in demo_module.PODS.items()]
    with KubernetesServer(pods, tls=True, tokens={"demo-token": "me"}).in_thread() as server:
        env = environment(server.write_kubeconfig(tmp_path / "config"))
        done = subprocess.run(
            [sys.executable, "-c", demo_module.CODE], env=env, capture_output=True, text=True, check=True
        )
    assert done.stdout.startswith("ClusterSpec({'ps': ['10.")


def test_a_demo_that_fails_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    assert main(["demo"]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: the demo failed: ")
    assert "pip install 'aioresolve[testing]'" in written.err


def test_the_demo_fails_if_the_resolver_finds_other_pods(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(demo_module.PODS, "ps-0", {"app": "another"})
    assert main(["demo"]) == 1
    assert "error: the demo failed: the server has pods at" in capsys.readouterr().err
