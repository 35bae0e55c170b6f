"""What commands in this process write to a terminal, and to a stdout that is closed, broken or full."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from aioresolve.cli import main
from aioresolve.testing import Hang

from .process import ESCAPE, HIDE_CURSOR, SHOW_CURSOR, Run, displayed, without_colors

if TYPE_CHECKING:
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

pytest.importorskip("pty", reason="this system has no pseudo-terminals, and thus no POSIX pipes")
needs_full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")

FLEET = """
interval: 1h
targets:
  first: {static: {jobs: {worker: ["10.9.0.1:8470"]}}}
  second: {static: {jobs: {worker: ["10.9.0.2:8470", "10.9.0.3:8470"]}}}
"""


class Screen(io.StringIO):
    """A terminal, whose user presses Ctrl-C as soon as it has shown the text `until`."""

    encoding = "utf-8"
    buffer = io.BytesIO()

    def __init__(self, until: str = "") -> None:
        super().__init__()
        self._until = until

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        if self._until and self._until in without_colors(self.getvalue()):
            self._until = ""
            signal.raise_signal(signal.SIGINT)
        return written

    @property
    def lines(self) -> list[str]:
        """The lines that the user sees, without their trailing spaces."""
        return [line.rstrip() for line in displayed(without_colors(self.getvalue()))]


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    return str(file)


def run_on(out: Screen, err: Screen, arguments: tuple[str, ...], env: dict[str, str]) -> object:
    """Run a command with terminals of 100 columns and 24 lines, and return its exit code."""
    env = env | {"COLUMNS": "100", "LINES": "24"}
    with mock.patch.dict(os.environ, env, clear=True), mock.patch.multiple(sys, stdout=out, stderr=err):
        try:
            return main(arguments)
        except SystemExit as ended:
            return ended.code


# Colors and widths


@pytest.mark.parametrize("variable", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_has_colors_unless_they_are_disabled(
    run: Run, env: dict[str, str], fleet: str, variable: dict[str, str]
) -> None:
    out, err = Screen(), Screen()
    arguments = ("poll", fleet, "--once", "-q")
    assert run_on(out, err, arguments, env | variable) == 0
    assert (ESCAPE in out.getvalue()) == (not variable)
    assert without_colors(out.getvalue()) == run(arguments, env).stdout
    assert run_on(out, err, ("poll", "/no/fleet.yaml"), env | variable) == 2
    assert err.getvalue().startswith("error: " if variable else "\x1b[31merror:\x1b[0m ")


def test_a_terminal_of_unknown_width_has_80_columns(env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.replace("first", "a" * 59))
    out, err = Screen(), Screen()
    assert run_on(out, err, ("poll", str(file), "--once", "-q"), env) == 0
    lines = without_colors(out.getvalue()).splitlines()
    assert lines[0].split() == ["TARGET", "STATUS", "REASON"]
    assert max(map(len, lines)) == 59 + 3 + len("Ready 2/2") + 3 + len("<none>") == 80
    assert run_on(out, err, ("poll", str(file), "--listen", "8080"), env) == 2
    *error, hint = without_colors(err.getvalue()).splitlines()
    assert (len(error), max(map(len, error)) <= 80) == (2, True)
    assert hint == "Try 'aioresolve poll --help'."


# Drawn in place


def test_watch_and_poll_keep_their_tables_after_ctrl_c(env: dict[str, str], fleet: str) -> None:
    for until, arguments, first in (
        ("3 tasks", ("watch", "kubernetes", "-l", "app=train"), ["worker", "0", "train-1"]),
        ("2 of 2 targets ready, 3 tasks", ("poll", fleet), ["first", "Ready", "1/1"]),
    ):
        out, err = Screen(until), Screen()
        assert run_on(out, err, arguments, env) == 130
        assert out.lines[1].split()[:3] == first
        assert any(until in line for line in out.lines)
        assert out.getvalue().count(HIDE_CURSOR) == out.getvalue().count(SHOW_CURSOR) == 1


def test_wait_keeps_the_missing_tasks_after_ctrl_c(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.cli.live.SHOW_AFTER", 0.0)
    err = Screen("stuck-1   Pending")
    assert run_on(Screen(), err, ("wait", "kubernetes", "-l", "app=stuck", "--count", "2"), env) == 130
    assert err.lines[0].startswith("waiting for -l app=stuck: ")
    assert err.lines[0].endswith(" of 10m")
    assert err.lines[1].split() == ["MISSING", "REASON"]
    assert ["worker", "1", "2"] in [line.split() for line in err.lines]


@pytest.mark.parametrize("options", [(), ("-v",), ("-q",)])
def test_progress_is_removed_and_not_drawn_between_log_lines_nor_if_only_errors_are_wanted(
    env: dict[str, str],
    server: ThreadedKubernetesServer,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
) -> None:
    monkeypatch.setattr("aioresolve.cli.live.SHOW_AFTER", 0.0)
    server.inject(Hang(), times=None)
    until = "waiting for selector 'app=train' in namespace 'ml': "
    err = Screen("" if options else until)
    arguments = ("kubernetes", "-l", "app=train", "--timeout", "300ms" if options else "1m", *options)
    assert run_on(Screen(), err, arguments, env) == (3 if options else 130)
    assert err.getvalue().count(HIDE_CURSOR) == err.getvalue().count(SHOW_CURSOR) == (not options)
    assert (until in without_colors(err.getvalue())) == (not options)
    assert not any(until in line for line in err.lines)


def test_a_round_on_a_terminal_shows_how_many_targets_are_done(
    fleet: str, env: dict[str, str], server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.cli.live.SHOW_AFTER", 0.0)
    server.inject(Hang(), times=None)
    with open(fleet, "a") as file:
        file.write("  east: {kubernetes: {namespace: ml, jobs: {worker: app=train}}}\n")
    err = Screen("2 of 3 done")
    assert run_on(Screen(), err, ("poll", fleet, "--once"), env) == 130


# Broken streams


@needs_full
def test_a_stdout_that_is_closed_or_full_or_has_no_reader_ends_the_command(
    fleet: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (("poll", fleet, "--once", "-q"), ("poll", fleet)):
        monkeypatch.setattr(sys, "stdout", None)
        assert main(arguments) == 1
        assert capsys.readouterr().err == "error: cannot write the result: stdout is closed\n"
        with open("/dev/full", "w") as full:
            monkeypatch.setattr(sys, "stdout", full)
            assert main(arguments) == 1
        assert capsys.readouterr().err == (
            "error: cannot write the result to stdout: No space left on device\n"
        )
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "w") as broken:
            monkeypatch.setattr(sys, "stdout", broken)
            with pytest.raises(SystemExit, match="141"):
                main(arguments)
        assert capsys.readouterr().err == ""


@needs_full
def test_a_stderr_that_is_closed_or_full_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(("poll", "/no/fleet.yaml")) == 2
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main(("poll", "/no/fleet.yaml")) == 2


def test_a_poll_ends_as_soon_as_the_reader_of_its_lines_is_gone(
    fleet: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    found: list[str] = []

    def read() -> None:
        with open(reader) as lines:
            found.extend(lines.readline() for _ in range(3))

    thread = threading.Thread(target=read)
    thread.start()
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit, match="141"):
            main(("poll", fleet))
    thread.join()
    assert sorted(line.split()[0] for line in found) == ["TARGET", "first", "second"]
    assert capsys.readouterr().err == ""
