"""The commands of docs/quickstart.md run in their order, in a copy of the checkout, with the output shown."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "quickstart.md").read_text()
INSTALLED = ("aioresolve", "pyproject.toml", "README.md", "LICENSE")
"""What the installation of a clone reads."""

ENDLESS = re.compile(r".*aioresolve (demo --serve|watch|poll) ?.*")
SETUP = "cd aioresolve-demo && . ./env"
END = "-- end of the command, exit code "

SHOW_CELL = """
import ast
cell = ast.parse(open("cell.py").read())
last = ast.Expression(cell.body.pop().value)
exec(compile(cell, "cell", "exec"))
print(eval(compile(last, "cell", "eval"))._repr_html_())
"""
"""A program that shows the value of the last line of a cell as a notebook does."""


class Terminal:
    """A shell in a folder."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.communicate()  # until every program in the shell has ended

    def run(self, command: str, shown: str) -> None:
        """Run `command`: it succeeds, and prints the text shown."""
        self._write(f"{command}\necho '{END}'$?\n")
        output = ""
        while not (line := self._read_line()).startswith(END):
            output += line
        assert line == f"{END}0\n", (command, output)
        assert re.fullmatch(pattern(shown), output), (command, output)

    def start(self, command: str, shown: str) -> str:
        """Start `command`, and return its output as soon as it is the text shown."""
        self._write(f"{command}\n")
        output = self._read_line()
        while not re.fullmatch(pattern(shown), output):
            output += self._read_line()
        return output

    def _read_line(self) -> str:
        assert self._shell.stdout is not None
        line = self._shell.stdout.readline()
        assert line, "the shell has ended"
        return line

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)


def pattern(shown: str) -> str:
    """Return a pattern of the output that is shown; `...` stands for any text."""
    return re.escape(shown).replace(re.escape("...\n"), "(?s:.*)").replace(re.escape("..."), ".*")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command, with the indented lines that continue it, and its output."""
    for block in blocks("console"):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            found = re.fullmatch(r"(.*\n(?:  .*\n)*)((?s:.*))", step)
            assert found is not None
            yield found[1].rstrip("\n"), found[2]


def test_quickstart_has_ten_commands_with_that_of_the_notebook() -> None:
    assert len(list(steps())) == 9


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip downloads the dependencies
@pytest.mark.skipif(not shutil.which("sh"), reason="the commands are for a POSIX shell")
def test_quickstart_leads_from_a_clone_to_a_page_and_a_notebook(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in INSTALLED:
        path = ROOT / name
        (shutil.copytree if path.is_dir() else shutil.copy)(path, clone / name)
    others = ("KUBECONFIG", "PYTHONPATH", "VIRTUAL_ENV", "POD_NAME")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    with ExitStack() as stack:
        terminal = stack.enter_context(Terminal(clone, environment))
        output, is_set_up = "", False
        for command, shown in steps():
            is_set_up = is_set_up or command == SETUP
            if not ENDLESS.fullmatch(command):
                # pip may warn about the machine.
                terminal.run(command, "...\n" if "pip install" in command else shown)
                continue
            another = stack.enter_context(Terminal(clone, environment))
            if is_set_up:
                another.run(SETUP, "")
            # The port 8080 of this machine may be in use.
            output = another.start(command.replace("8080", "0"), shown.replace("8080", "..."))
        found = re.search(r"http://\S+", output)
        assert found is not None
        with urllib.request.urlopen(found[0]) as response:
            assert "<title>" in response.read().decode()
        (clone / "aioresolve-demo" / "cell.py").write_text(blocks("python")[0])
        terminal.run(f"python -c '{SHOW_CELL}'", "...<table...\n...127.0.0.11:8470...\n")
    assert not (clone / "aioresolve-demo").exists()
