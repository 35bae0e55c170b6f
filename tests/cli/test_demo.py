"""`aioresolve demo`: its output is correct, and it leaves nothing behind."""

from __future__ import annotations

import json
import sys

import pytest

from aioresolve.cli import main

from .process import environment, run_process


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the demo for a user without a kubeconfig."""
    (temporary := tmp_path_factory.mktemp("home") / "tmp").mkdir()
    done = run_process(("demo",), environment(temporary.parent / "no-kubeconfig", TMPDIR=str(temporary)))
    assert (done.code, done.stderr) == (0, "")
    assert list(temporary.iterdir()) == []
    return done.stdout


def test_the_demo_shows_a_cluster_a_tf_config_and_an_error(shown: str) -> None:
    assert "worker   3      10.4.3.7:8470\n" in shown
    workers = [f"10.4.{number}.7:8470" for number in range(4)]
    line = next(line for line in shown.splitlines() if line.startswith('{"cluster"'))
    assert json.loads(line) == {
        "cluster": {"worker": workers, "ps": ["10.4.4.7:8470"]},
        "task": {"type": "worker", "index": 0},
    }
    assert "error: 1 matching pod is not running: training/train-b-1: Pending" in shown


def test_the_demo_probes_the_workers_of_two_slices(shown: str) -> None:
    rows = [line.split() for line in shown.splitlines() if line.startswith("worker")]
    addresses = [row[2] for row in rows if row[3:4] and row[3].startswith("trainer-")]
    assert [row[3:] for row in rows if row[2] in addresses][:4] == [
        [f"trainer-{task // 2}", str(task % 2), "READY", "HEALTHY", "v4-16"] for task in range(4)
    ]
    assert [row[2] for row in rows if "TPU:4" in row] == addresses


def test_a_demo_that_fails_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    assert main(["demo"]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: the demo failed: ")
    assert "pip install 'aioresolve[testing]'" in written.err
