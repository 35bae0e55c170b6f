"""The commands of docs/quickstart.md run in their order, in a new environment that has only the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "quickstart.md"

RUNS_UNTIL_INTERRUPTED = "python cluster.py"
"""The command after which the page continues in a second terminal."""

EXIT_CODES = {"aioresolve doctor kubernetes -n training -l app=trainer": 1}
"""The commands that do not succeed, as the page says."""

END = "-- end of the command, exit code "


class Terminal:
    """A shell in a folder, with the environment of this process except its own Python."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["sh"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        os.killpg(self._shell.pid, 15)
        self._shell.communicate()

    def run(self, command: str) -> str:
        """Return the output of `command`."""
        self._write(f"{command}\necho '{END}'$?\n")
        lines = []
        while not (line := self.read_line()).startswith(END):
            lines.append(line)
        assert line == f"{END}{EXIT_CODES.get(command, 0)}\n", (command, lines)
        return "".join(lines)

    def start(self, command: str) -> str:
        """Start `command`, and return its first line of output."""
        self._write(f"{command}\n")
        return self.read_line()

    def read_line(self) -> str:
        assert self._shell.stdout is not None
        line = self._shell.stdout.readline()
        assert line, "the shell has ended"
        return line

    def _write(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)


def steps() -> Iterator[tuple[str, str]]:
    """Yield each file of the page (name, text), and each command with its output (`$ command`, output)."""
    block = r'^```(?:console|python title="(?P<file>[^"]+)")\n(?P<text>.*?)^```$'
    for match in re.finditer(block, PAGE.read_text(), re.MULTILINE | re.DOTALL):
        if match["file"]:
            yield match["file"], match["text"]
            continue
        for each in re.split(r"^(?=\$ )", match["text"], flags=re.MULTILINE)[1:]:
            command, _, output = each.partition("\n")
            yield command, output


def assert_shown(output: str, shown: str) -> None:
    """Compare the output of a command with the page, where `...` stands for any text."""
    pattern = re.escape(shown).replace(re.escape("...\n"), "(?s:.*)").replace(re.escape("..."), ".*")
    assert re.fullmatch(pattern, output), output


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(build, check=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.mark.slow
@pytest.mark.timeout(900)  # pip downloads the dependencies
@pytest.mark.skipif(not shutil.which("sh"), reason="the commands are for a POSIX shell")
def test_quickstart_leads_from_the_wheel_to_a_started_job(wheel: Path, tmp_path: Path) -> None:
    links = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}"
    environment = {**os.environ, "PIP_FIND_LINKS": links.strip()}
    for name in ("KUBECONFIG", "PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    with ExitStack() as stack:
        terminal = stack.enter_context(Terminal(tmp_path, environment))
        for step, expected in steps():
            command = step.removeprefix("$ ")
            if not step.startswith("$ "):
                (tmp_path / step).write_text(expected)
            elif command == RUNS_UNTIL_INTERRUPTED:
                assert terminal.start(command) == expected
                terminal = stack.enter_context(Terminal(tmp_path, environment))
            else:
                assert_shown(terminal.run(command), expected)
        shown = terminal.run(
            "python -c 'import aioresolve; print(aioresolve.__version__, aioresolve.__file__)'"
        )
    version, _, file = shown.strip().partition(" ")
    assert wheel.name.startswith(f"aioresolve-{version}-")
    assert Path(file).is_relative_to(tmp_path / ".venv")
