"""The commands of docs/quickstart.md run in their order, in a copy of the checkout, with the output shown."""

import os
import re
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .programs import ROOT
from .test_snippets import code_blocks

PAGE = ROOT / "docs" / "quickstart.md"
INSTALLED = ("aioresolve", "pyproject.toml", "README.md", "LICENSE")
"""What the installation of a clone reads."""

ENDLESS = re.compile(r".*aioresolve (demo --serve|watch|poll) ?.*")
SETUP = "cd aioresolve-demo && . ./env"

SHOW_CELL = """
import ast
cell = ast.parse(open("cell.py").read())
last = ast.Expression(cell.body.pop().value)
exec(compile(cell, "cell", "exec"))
print(eval(compile(last, "cell", "eval"))._repr_html_())
"""
"""A program that shows the value of the last line of a cell as a notebook does."""


def steps() -> Iterator[tuple[str, str]]:
    """Yield each command, with the indented lines that continue it, and its output."""
    for block in code_blocks(PAGE, "console"):
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            found = re.fullmatch(r"(.*\n(?:  .*\n)*)((?s:.*))", step)
            assert found is not None
            yield found[1].rstrip("\n"), found[2]


def pattern(shown: str) -> str:
    """Return a pattern of the output that is shown; `...` stands for any text."""
    return re.escape(shown).replace(re.escape("...\n"), "(?s:.*)").replace(re.escape("..."), ".*")


@contextmanager
def running(command: str, folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a shell; after the block, end it and the programs that it has started."""
    shell = subprocess.Popen(
        ["sh", "-c", command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield shell
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGTERM)
        shell.communicate()


def output_of(shell: subprocess.Popen[str], shown: str, *, is_endless: bool) -> str:
    """Return what a command has written when it is the text shown, or when the command has succeeded."""
    assert shell.stdout is not None
    output = ""
    for line in shell.stdout:
        output += line
        if is_endless and re.fullmatch(pattern(shown), output):
            return output
    assert shell.wait() == 0, output
    assert re.fullmatch(pattern(shown), output), output
    return output


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip downloads the dependencies
@pytest.mark.skipif(not shutil.which("sh"), reason="the commands are for a POSIX shell")
def test_quickstart_leads_from_a_clone_to_a_page_and_a_notebook(tmp_path: Path) -> None:
    for name in INSTALLED:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    outer = ("PYTHONPATH", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    commands = list(steps())
    assert len(commands) == 9  # with that of the notebook, ten
    [cell] = code_blocks(PAGE, "python")
    setup = output = ""
    with ExitStack() as endless:
        for command, shown in commands:
            # The port 8080 of this machine may be in use, and pip may warn about the machine.
            line, expected = setup + command.replace("8080", "0"), shown.replace("8080", "...")
            expected = "...\n" if "pip install" in command else expected
            shell = endless.enter_context(running(line, tmp_path, environment))
            output = output_of(shell, expected, is_endless=ENDLESS.fullmatch(command) is not None)
            if command == SETUP:
                setup = f"{SETUP} && "
        found = re.search(r"http://\S+", output)
        assert found is not None
        with urllib.request.urlopen(found[0]) as response:
            assert "<title>" in response.read().decode()
        (tmp_path / "aioresolve-demo" / "cell.py").write_text(cell)
        with running(f"{setup}python -c '{SHOW_CELL}'", tmp_path, environment) as shell:
            output_of(shell, "...<table...\n...127.0.0.11:8470...\n", is_endless=False)
    assert not (tmp_path / "aioresolve-demo").exists()
