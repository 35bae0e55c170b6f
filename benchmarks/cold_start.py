"""Measures new processes: imports, and `aioresolve kubernetes` compared with `kubectl get pods`.

    python benchmarks/cold_start.py [--quick]

The commands take turns. Each run is a separate process whose files are in the page cache. Both commands
request the same pods of one namespace, 2 or 1,000, from the same loopback API server, with TLS and a bearer
token; kubectl may keep its discovery cache between runs. Memory is `ru_maxrss` of the kernel, which is never
less than that of the measuring process, about 27 MB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import chdir
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # The folder of a script comes first in sys.path, and this folder has a module `kubernetes`.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks.measure import Effort
from benchmarks.report import Bar, bar_table, duration, environment, format_table, ratio, size, write_json
from benchmarks.server import running_server, selectors_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FEW, MANY = 2, 1000
"""The numbers of pods that are listed."""

BARE = "python -c pass"
LIBRARIES = "import aiohttp, click"
OURS = "aioresolve kubernetes"
KUBECTL = "kubectl get pods -o wide"
IMPORTS = {
    "aioresolve": "import aioresolve",
    "aiohttp, click": "import aiohttp, click",
    "aioresolve.KubernetesClusterResolver": "from aioresolve import KubernetesClusterResolver",
    "lightkube": "from lightkube import AsyncClient; from lightkube.resources.core_v1 import Pod",
    "kr8s": "import kr8s.asyncio",
    "kubernetes_asyncio": "from kubernetes_asyncio import client, config",
    "tensorflow": "import tensorflow",
}


@dataclass(slots=True)
class Command:
    """One command and the cost of its runs.

    Attributes:
        title: its name in tables.
        words: the path of the program and its arguments.
        wall: the duration of each run, from spawn to exit, in seconds.
        cpu: the user and system time of each run, in seconds.
        peak: the highest peak memory of a run, in bytes.
    """

    title: str
    words: list[str]
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: int = 0

    @property
    def seconds(self) -> float:
        """The median duration of a run, in seconds."""
        return median(self.wall)

    @property
    def cpu_seconds(self) -> float:
        """The median CPU time of a run, in seconds."""
        return median(self.cpu)

    def run(self, environ: Mapping[str, str]) -> None:
        """Run the command once and discard its output.

        Raises:
            RuntimeError: the command failed.
        """
        quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        began = time.perf_counter()
        process = os.posix_spawn(self.words[0], self.words, environ, file_actions=quiet)
        _, status, usage = os.wait4(process, 0)
        took = time.perf_counter() - began
        if status:
            raise RuntimeError(f"{self.title} failed: exit code {os.waitstatus_to_exitcode(status)}")
        self.wall.append(took)
        self.cpu.append(usage.ru_utime + usage.ru_stime)
        self.peak = max(self.peak, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="runs of a fast command (default: 20)")
    parser.add_argument("--quick", action="store_true", help="fewer runs, and none of slow imports")
    parser.add_argument("--kubectl", default="kubectl", help="the kubectl to compare with")
    options = parser.parse_args(arguments)
    effort = Effort(rounds=options.rounds or (6 if options.quick else 20), turn=0.0, budget=15.0)
    about = environment(["aioresolve", "aiohttp", "msgspec", "tensorflow-cpu", "kubernetes-asyncio"])
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, chdir(folder):
        # A separate home directory: the kubeconfig and the caches of the user are not touched.
        environ = {**os.environ, "HOME": folder, "TF_CPP_MIN_LOG_LEVEL": "2"}
        # Compiled, as after an installation: otherwise each run would compile the modules of a source tree.
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        environ["PYTHONPYCACHEPREFIX"] = folder
        with running_server(1, FEW, Path(folder, "few")), running_server(1, MANY, Path(folder, "many")):
            commands = imports(environ, quick=options.quick)
            commands += listings(options.kubectl, environ, Path(folder, "few"), FEW)
            commands += listings(options.kubectl, environ, Path(folder, "many"), MANY)
            take_turns(commands, environ, effort)
    print(f"\n{table(commands)}\n{bar_table(bars_of(commands))}", end="")
    figures = [asdict(command) for command in commands]
    columns = {
        "time": {command.title: command.seconds for command in commands},
        "peak memory": {command.title: command.peak for command in commands},
    }
    published = {"title": "New processes", "columns": columns}
    file = write_json("cold_start", {"environment": about, "figures": figures, "published": published})
    print(f"\nwritten: {file}; for docs/benchmarks.md: python benchmarks/publish.py {file}")
    return 0


def imports(environ: Mapping[str, str], *, quick: bool) -> list[Command]:
    """Return commands that only start the interpreter or import a library that is installed."""
    commands = [Command(BARE, [sys.executable, "-c", "pass"])]
    for name, statement in IMPORTS.items():
        if quick and name == "tensorflow":
            continue
        command = Command(f"import {name}", [sys.executable, "-c", statement])
        if subprocess.run(command.words, env=environ, capture_output=True, check=False).returncode:
            print(f"left out: {command.title}: not installed")
        else:
            commands.append(command)
    return commands


def listings(kubectl: str, environ: Mapping[str, str], kubeconfig: Path, pods: int) -> list[Command]:
    """Return the commands of aioresolve and kubectl, after checking that each prints every pod."""
    (selector,) = selectors_of(1)
    script = shutil.which("aioresolve", path=str(Path(sys.executable).parent))
    ours = [script] if script else [sys.executable, "-m", "aioresolve"]
    config = ["--kubeconfig", str(kubeconfig)]
    commands = [Command(listing(OURS, pods), [*ours, "kubernetes", *config, "-l", f"worker={selector}"])]
    if program := shutil.which(kubectl):
        commands.append(
            Command(listing(KUBECTL, pods), [program, *config, "get", "pods", "-l", selector, "-o", "wide"])
        )
    else:
        print(f"left out: {KUBECTL}: {kubectl} was not found")
    for command in commands:
        printed = subprocess.run(
            command.words, env=environ, stdout=subprocess.PIPE, check=True, text=True
        ).stdout
        if printed.count("\n") != pods + 1:
            raise RuntimeError(f"{command.title} printed {printed.count(chr(10))} lines, not {pods + 1}")
    return commands


def listing(title: str, pods: int) -> str:
    """Return the title of a command that lists pods."""
    return f"{title}, {pods:,} pods"


def take_turns(commands: Sequence[Command], environ: Mapping[str, str], effort: Effort) -> None:
    """Run the commands in turn; a slow command has fewer turns, spread over the rounds."""
    for number in range(effort.rounds):
        for command in commands:
            if effort.is_due(number, len(command.wall), command.wall):
                command.run(environ)


def table(commands: Sequence[Command]) -> str:
    bare = commands[0]
    return format_table(
        ("", "median", f"over {BARE}", "ratio", "CPU", "peak memory", "runs"),
        [
            (
                command.title,
                duration(command.seconds),
                duration(command.seconds - bare.seconds),
                ratio(command.seconds, bare.seconds),
                duration(command.cpu_seconds),
                size(command.peak),
                str(len(command.wall)),
            )
            for command in commands
        ],
    )


def bars_of(commands: Sequence[Command]) -> list[Bar]:
    """Return the limits for new processes, for the figures that were measured."""
    those = {command.title: command for command in commands}
    over = (those["import aioresolve"].seconds - those[BARE].seconds) * 1e3
    few, many, kubectl = listing(OURS, FEW), listing(OURS, MANY), listing(KUBECTL, MANY)
    more = (those[few].seconds - those[LIBRARIES].seconds) * 1e3
    bars = [
        Bar(what=f"import aioresolve over {BARE}", measured=over, most=40, unit=" ms"),
        Bar(what=f"{few}, over {LIBRARIES}", measured=more, most=120, unit=" ms"),
    ]
    if kubectl in those:
        times = those[many].seconds / those[kubectl].seconds
        bars.append(Bar(what=f"{many}, over kubectl", measured=times, most=1, unit="x"))
    return bars


if __name__ == "__main__":
    sys.exit(main())
