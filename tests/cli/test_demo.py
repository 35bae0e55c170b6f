"""`aioresolve demo`: its output is correct, its clusters serve other commands, and nothing is left."""

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from aioresolve.cli import main
from aioresolve.cli.demo_clusters import COMMANDS, DemoClusters, running_clusters, story, write_files

from .process import COMMAND, environment, run_process

QUIET = """
import sys
from aioresolve.cli import demo_clusters, main
demo_clusters.story = lambda clusters: iter([("nothing happens", 3600)])
sys.exit(main())
"""
"""The command with clusters that do not change, however long a busy machine takes."""


def test_the_demo_shows_a_tf_config_tpu_workers_a_fleet_and_an_error(tmp_path: Path) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    done = run_process(("demo",), environment(tmp_path / "no-kubeconfig", TMPDIR=str(temporary)))
    assert (done.code, done.stderr) == (0, "")
    assert list(temporary.iterdir()) == []
    line = next(line for line in done.stdout.splitlines() if line.startswith('{"cluster"'))
    assert json.loads(line) == {
        "cluster": {
            "worker": [f"127.0.0.{number}:8470" for number in range(11, 15)],
            "ps": ["127.0.0.31:8470", "127.0.0.32:8470"],
        },
        "task": {"type": "worker", "index": 0},
    }
    assert "error: 1 matching pod is not running: training/trainer-3: Pending" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[1] for row in rows if "TPU:4" in row] == ["0", "1", "2", "3"]
    assert [row[0] for row in rows if row[1:2] == ["Degraded"]] == ["east-trainer"]


def test_a_demo_that_fails_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "trustme", None)
    assert main(["demo"]) == 1
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: the demo failed: ")
    assert "pip install 'aioresolve[testing]'" in written.err


async def test_in_the_story_targets_become_sick_and_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sick = []
    async with running_clusters() as clusters:
        for name, value in write_files(clusters, tmp_path).items():
            monkeypatch.setenv(name, value)
        assert f'PATH={shlex.quote(sysconfig.get_path("scripts"))}:"$PATH"' in (tmp_path / "env").read_text()
        for _ in islice(story(clusters), 11):
            # In a thread, because the servers are in this one.
            await asyncio.to_thread(main, ["poll", str(tmp_path / "fleet.yaml"), "--once", "-o", "json"])
            statuses = map(json.loads, capsys.readouterr().out.splitlines())
            sick.append({one["name"]: one["health"] for one in statuses if one["health"] != "ready"})
    degraded, recovered = {"east-trainer": "degraded"}, dict[str, str]()
    tpu, server = {"slices": "degraded"}, {"west-trainer": "error"}
    assert sick == [
        *(recovered, degraded, recovered, degraded, degraded, recovered, tpu, recovered, server),
        *(recovered, degraded),
    ]


def test_folder_of_the_demo_exists_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, seen = tmp_path / "demo", list[str]()

    def play(clusters: DemoClusters) -> Iterator[tuple[str, float]]:
        seen.extend(sorted(each.name for each in folder.iterdir()))
        assert folder.stat().st_mode & 0o777 == 0o700
        yield "something happens", 0.0

    monkeypatch.setattr("aioresolve.cli.demo_clusters.story", play)
    assert main(["demo", "--serve", str(folder)]) == 0
    assert seen == ["env", "fleet.yaml", "google", "kubeconfig"]
    assert not folder.exists()
    shown = capsys.readouterr().out
    assert f"cd {folder} && . ./env\n  {COMMANDS[0]}\n" in shown
    assert shown.endswith(" something happens\n")


def test_folder_of_another_demo_is_not_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--serve", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(f"error: {tmp_path} exists: end the demo that uses it")
    assert tmp_path.exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_commands_that_the_demo_prints_work_until_it_ends(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = tmp_path / "files of the demo"
    variables = environment(tmp_path / "no-kubeconfig")
    demo = subprocess.Popen(
        [sys.executable, "-c", QUIET, "demo", "--serve", str(folder)],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    with demo:
        assert demo.stdout is not None
        lines = [demo.stdout.readline().strip() for _ in range(len(COMMANDS) + 4)]
        first, *commands = lines[2:-1]
        assert first == f"cd {shlex.quote(str(folder))} && . ./env"
        assert commands == list(COMMANDS)
        if number == signal.SIGTERM:
            for command in commands:
                assert_works(f"{first} && {command}", variables)
        demo.send_signal(number)
        assert demo.wait() == code
    assert not folder.exists()


def assert_works(command: str, variables: dict[str, str]) -> None:
    """Run a command line in a shell: it succeeds, or, if it is endless, it prints something."""
    command = command.replace("aioresolve ", f"exec {shlex.join(COMMAND)} ").replace(":8080", ":0")
    is_endless = " watch " in command or " poll " in command
    with subprocess.Popen(["sh", "-c", command], env=variables, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline(), command
        if is_endless:
            shell.terminate()
        else:
            shell.stdout.read()
        assert shell.wait() == (143 if is_endless else 0), command
