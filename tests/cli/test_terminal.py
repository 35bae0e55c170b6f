"""What commands in this process write to a terminal, and to a stdout that is closed, broken or full."""

import io
import json
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from aioresolve.cli import main
from aioresolve.testing import Hang, ThreadedKubernetesServer

from .process import ESCAPE, HIDE_CURSOR, SHOW_CURSOR, Run, displayed, trainer, without_colors

pytest.importorskip("pty", reason="this system has no pseudo-terminals, and thus no POSIX pipes")

FLEET = """
interval: 1h
targets:
  first: {static: {jobs: {worker: ["10.9.0.1:8470"]}}}
  second: {static: {jobs: {worker: ["10.9.0.2:8470", "10.9.0.3:8470"]}}}
"""
SICK = """
  broken: {kubernetes: {kubeconfig: none, jobs: {worker: app=train}}}
  hangs: {kubernetes: {jobs: {worker: app=train}}}
"""


class Screen(io.StringIO):
    """A terminal, whose user presses Ctrl-C as soon as it has shown the text `until`."""

    encoding = "utf-8"

    def __init__(self, until: str = "") -> None:
        super().__init__()
        vars(self)["buffer"] = io.BytesIO()
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


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the working directory; and progress is shown at once."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "sick.yaml").write_text(FLEET + SICK)
    (tmp_path / "wide.yaml").write_text(FLEET.replace("first", "a" * 60))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aioresolve.cli.live.SHOW_AFTER", 0.0)


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
    run: Run, env: dict[str, str], variable: dict[str, str]
) -> None:
    out, err = Screen(), Screen()
    arguments = ("poll", "fleet.yaml", "--once", "-q")
    assert run_on(out, err, arguments, env | variable) == 0
    assert (ESCAPE in out.getvalue()) == (not variable)
    assert without_colors(out.getvalue()) == run(arguments, env).stdout
    assert run_on(out, err, ("poll", "/no/fleet.yaml"), env | variable) == 2
    assert err.getvalue().startswith("error: " if variable else "\x1b[31merror:\x1b[0m ")


def test_a_terminal_of_unknown_width_has_80_columns(env: dict[str, str]) -> None:
    out, err = Screen(), Screen()
    assert run_on(out, err, ("poll", "wide.yaml", "--once", "-q"), env) == 0
    lines = without_colors(out.getvalue()).splitlines()
    assert lines[0].split() == ["TARGET", "STATUS", "REASON"]
    assert max(map(len, lines)) == 59 + 3 + len("Ready 2/2") + 3 + len("<none>") == 80
    assert run_on(out, err, ("poll", "wide.yaml", "--listen", "8080"), env) == 2
    *error, _ = without_colors(err.getvalue()).splitlines()
    assert (len(error), max(map(len, error)) <= 80) == (2, True)
    assert run_on(out, err, ("poll", "no-" * 30), env) == 2
    assert "no-" * 30 in err.getvalue()


@pytest.mark.parametrize(
    ("arguments", "row", "text"),
    [
        ("probe 127.0.0.9:1", "\x1b[1m127.0.0.9:1", "refused: "),
        ("doctor kubernetes -l app=none", "tasks", "context 'here')"),
        ("poll sick.yaml --once", "broken", "Error"),
    ],
)
def test_rows_about_failures_are_red(env: dict[str, str], arguments: str, row: str, text: str) -> None:
    out = Screen()
    assert run_on(out, Screen(), tuple(arguments.split()), env) == 1
    assert f"\x1b[31m{row}" in out.getvalue()
    assert text in " ".join(without_colors(out.getvalue()).split())


# Drawn in place


@pytest.mark.parametrize(
    ("arguments", "until", "row"),
    [
        ("watch kubernetes -l app=train", "33 tasks", ["...", "and", "31"]),
        ("poll fleet.yaml", "2 of 2 targets ready, 3 tasks", ["first", "Ready", "1/1"]),
        ("wait kubernetes -l app=train --count 40", "and 14 more", ["worker", "3", "40"]),
        ("wait kubernetes -l app=none", "'here')", ["MISSING", "REASON"]),
        ("wait kubernetes -l app=hangs", "no response yet", ["no", "response", "yet"]),
        ("kubernetes -l app=hangs", "waiting for selector 'app=hangs' in namespace 'ml': ", None),
        ("watch kubernetes -l app=hangs", "waiting for -l app=hangs: no response yet", None),
        ("poll sick.yaml --once", "3 of 4 done, 1 failed", None),
    ],
)
def test_ctrl_c_keeps_tables_and_removes_progress(
    env: dict[str, str], server: ThreadedKubernetesServer, arguments: str, until: str, row: list[str] | None
) -> None:
    if row is None or "hangs" in arguments:
        server.inject(Hang(), times=None)
    long = "CrashLoopBackOff" * 6  # on two lines
    server.add(*(trainer(each, waiting=long, restarts=each, ready=False) for each in range(30, 60)))
    screen = Screen(until)
    streams = (screen, Screen()) if row and "wait" not in arguments else (Screen(), screen)
    assert run_on(*streams, tuple(arguments.split()), env) == 130
    assert (row is None) or row in [line.split()[:3] for line in screen.lines]
    assert ("\x1b[1m" in screen.getvalue()) == (screen is streams[0])  # the headers of tables
    assert any(until in line for line in screen.lines) == (row is not None)
    assert screen.getvalue().count(HIDE_CURSOR) == screen.getvalue().count(SHOW_CURSOR) == 1


def test_watch_says_that_there_are_no_tasks_yet(env: dict[str, str]) -> None:
    out, err = Screen(), Screen("no tasks yet: no pod matches app=none")
    assert run_on(out, err, ("watch", "kubernetes", "-l", "app=none", "-o", "json"), env) == 130
    assert json.loads(out.getvalue())["jobs"] == {"worker": []}


@pytest.mark.parametrize("option", ["-v", "-q"])
def test_nothing_is_drawn_between_log_lines_or_if_only_errors_are_wanted(
    env: dict[str, str], server: ThreadedKubernetesServer, option: str
) -> None:
    server.inject(Hang(), times=None)
    err = Screen()
    assert run_on(Screen(), err, ("kubernetes", "-l", "app=train", "--timeout", "300ms", option), env) == 3
    assert HIDE_CURSOR not in err.getvalue()
    assert "within 0.3 s to -l app=train; " in " ".join(without_colors(err.getvalue()).split())


# Broken streams


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_broken_stdout_ends_the_command_and_a_broken_stderr_does_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for printed, *arguments in (
        ("before", "poll", "fleet.yaml", "--once", "-q"),
        ("before", "poll", "fleet.yaml"),
        ("", "poll", "fleet.yaml"),
    ):
        monkeypatch.setattr(sys, "stdout", None)
        assert main(arguments) == 1
        assert capsys.readouterr().err == "error: cannot write the result: stdout is closed\n"
        with open("/dev/full", "w") as full:
            full.write(printed)
            monkeypatch.setattr(sys, "stdout", full)
            assert main(arguments) == 1
        assert capsys.readouterr().err == (
            "error: cannot write the result to stdout: No space left on device\n"
        )
        for reader, writer in (os.pipe(), [each.detach() for each in socket.socketpair()]):
            os.close(reader)
            with open(writer, "w") as broken:
                broken.write(printed)
                monkeypatch.setattr(sys, "stdout", broken)
                with pytest.raises(SystemExit, match="141"):
                    main(arguments)
        assert capsys.readouterr().err == ""
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(("--help",)) == 1
    assert capsys.readouterr().err.startswith("error: ")
    # Errors without a reader are not errors of their own.
    monkeypatch.setattr(sys, "stderr", None)
    assert main(("poll", "none.yaml")) == 2
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert main(("poll", "none.yaml")) == 2


def test_a_slow_reader_of_a_pipe_that_is_non_blocking_gets_everything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    addresses = [f"10.{number >> 8}.{number & 255}.1:8470" for number in range(5000)]
    fleet = tmp_path / "many.yaml"
    fleet.write_text(json.dumps({"targets": {"a": {"static": {"jobs": {"worker": addresses}}}}}))
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    received, wait = list[bytes](), select.select

    def read_and_wait(*streams: Any) -> object:
        received.append(os.read(reader, 1 << 20))
        return wait(*streams)

    monkeypatch.setattr(select, "select", read_and_wait)
    with open(reader, "rb") as rest:
        with open(writer, "w") as stdout:
            monkeypatch.setattr(sys, "stdout", stdout)
            assert main(("poll", str(fleet), "--once", "-o", "json", "-q")) == 0
        found = json.loads(b"".join([*received, rest.read()]))
    assert [task["address"] for task in found["jobs"]["worker"]] == addresses


def test_a_poll_ends_as_soon_as_the_reader_of_its_lines_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
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
            main(("poll", "fleet.yaml"))
    thread.join()
    assert sorted(line.split()[0] for line in found) == ["TARGET", "first", "second"]
