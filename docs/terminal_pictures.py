"""Makes the pictures of terminals in docs/terminal/: real commands, on the clusters of `aioresolve demo`.

python docs/terminal_pictures.py
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from aioresolve.cli.demo_clusters import running_clusters, story, write_files

FOLDER = Path(__file__).parent / "terminal"
COLUMNS = 80
PICTURES = {
    "overview": (
        (0, "aioresolve kubernetes -l app=trainer"),
        (0, "aioresolve tpu slice-0 slice-1 --probe"),
        (4, "aioresolve poll fleet.yaml --once"),
    ),
    "probe": ((0, "aioresolve tpu slice-0 slice-1 --probe"),),
    "fleet": ((4, "aioresolve poll fleet.yaml --once"),),
}
"""The commands of each picture, and the number of the event of the story after which each is run."""

FORMAT = re.sub(r"@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace"
)
"""The format of rich without its fonts, which are on another server."""


def output_of(command: str, folder: str) -> str:
    """Return what a command line prints on a terminal, in the folder of the demo's files."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    line = f". ./env && {command}"
    with subprocess.Popen(  # noqa: S603 - a constant command
        ["/bin/sh", "-c", line],
        cwd=folder,
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ):
        os.close(theirs)
        chunks = []
        while chunk := _read(ours):
            chunks.append(chunk)
    os.close(ours)
    return b"".join(chunks).decode().replace("\r\n", "\n").rstrip()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # EIO: the command has ended
        return b""


async def picture_of(name: str) -> str:
    """Return a picture as SVG."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        async with running_clusters() as clusters:
            write_files(clusters, Path(folder))
            events, event = story(clusters), -1
            for number, (wanted, command) in enumerate(PICTURES[name]):
                while event < wanted:
                    next(events)
                    event += 1
                console.print(Text("\n" * bool(number) + f"$ {command}", style="bold"))
                console.print(Text.from_ansi(await asyncio.to_thread(output_of, command, folder)))
    return console.export_svg(title="aioresolve", code_format=FORMAT, unique_id=name)


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in PICTURES:
        (FOLDER / f"{name}.svg").write_text(asyncio.run(picture_of(name)))


if __name__ == "__main__":
    main()
