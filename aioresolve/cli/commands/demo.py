"""`aioresolve demo`: commands on clusters of loopback servers, which can also be kept running."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aioresolve.cli import options, streams
from aioresolve.cli.application import run_async
from aioresolve.errors import ResolveError

if TYPE_CHECKING:
    from collections.abc import Mapping

JOBS = "kubernetes -l worker=app=trainer -l ps=app=ps"
READY = (JOBS, f"{JOBS} -o tf-config --task worker:0", "tpu slice-0 slice-1 --probe")
DEGRADED = ("poll fleet.yaml --once", JOBS)
"""The commands that are shown before and after `trainer-3` is stopped; not all of the latter succeed."""


@click.command(short_help="A demonstration on loopback clusters.")
@click.option(
    "--serve",
    "folder",
    metavar="[FOLDER]",
    is_flag=False,
    flag_value="aioresolve-demo",
    type=click.Path(path_type=Path),
    help="Keep the clusters running until Ctrl-C, and change them every few seconds. FOLDER, by default"
    " aioresolve-demo, gets a kubeconfig and a fleet.yaml for other commands, and is removed at the end.",
)
@options.verbose_option
def demo(folder: Path | None) -> None:
    """Run commands on loopback clusters: a training job, two TPU slices, and a fleet of five targets.

    The servers are Kubernetes API servers with TLS and a bearer token, Google Cloud, and TPU workers with
    gRPC. The code and the protocols are those for a real cluster. Nothing is left behind.
    """
    try:
        if folder is not None:
            run_async(lambda _: _serve(folder.absolute()))
            return
        with tempfile.TemporaryDirectory(prefix="aioresolve-") as temporary:
            run_async(lambda _: _show(Path(temporary)))
    except (ResolveError, OSError) as error:
        raise click.ClickException(f"the demo failed: {error}") from error


async def _serve(folder: Path) -> None:
    """Run the clusters and their story until cancelled; the files are in `folder` meanwhile."""
    import anyio

    from aioresolve.cli.demo_clusters import COMMANDS, running_clusters, story, write_files

    try:
        folder.mkdir(mode=0o700)  # noqa: ASYNC240 - nothing else runs yet
    except FileExistsError:
        raise click.ClickException(
            f"{folder} exists: end the demo that uses it, remove it, or pass another folder: --serve FOLDER"
        ) from None
    try:
        async with running_clusters() as running:
            write_files(running, folder)
            lines = [f"cd {shlex.quote(str(folder))} && . ./env", *COMMANDS]
            text = "".join(f"  {line}\n" for line in lines)
            streams.write_stdout(f"The clusters run until Ctrl-C. Try in another terminal:\n\n{text}\n")
            for event, seconds in story(running):
                streams.write_stdout(f"{time.strftime('%H:%M:%S')} {event}\n")
                await anyio.sleep(seconds)
    finally:
        shutil.rmtree(folder)


async def _show(folder: Path) -> None:
    """Run commands on the clusters, before and after a pod is stopped."""
    from aioresolve.cli.demo_clusters import NAMESPACE, running_clusters, trainer, write_files

    async with running_clusters() as running:
        environ = write_files(running, folder)
        streams.write_stdout(
            f"Kubernetes API servers at {running.east.url} and {running.west.url}, Google Cloud at"
            f" {running.cloud.url},\nand the gRPC servers of four TPU workers, all on loopback.\n"
        )
        for command in READY:
            if code := await _run(command, folder, environ):
                raise click.ClickException(f"the demo failed: {command!r} has ended with exit code {code}")
        running.east.add(trainer(3, phase="Pending", node=None))
        streams.write_stdout(f"\nThen the pod {NAMESPACE}/trainer-3 is stopped:\n")
        for command in DEGRADED:
            await _run(command, folder, environ)
    streams.write_stdout("\nTo try other commands on these clusters: aioresolve demo --serve\n")


async def _run(command: str, folder: Path, environ: Mapping[str, str]) -> int:
    """Run a command of aioresolve as a shell does, and return its exit code."""
    import anyio

    line = f"$ aioresolve {command}"
    streams.write_stdout(f"\n{click.style(line, fg='green') if streams.has_colors(sys.stdout) else line}\n")
    is_verbose = logging.getLogger("aioresolve").isEnabledFor(logging.INFO)
    done = await anyio.run_process(
        [sys.executable, "-m", "aioresolve", *command.split(), *["-v"] * is_verbose],
        stdout=None,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**os.environ, **environ},
        check=False,
    )
    if done.returncode == streams.OUTPUT_CLOSED:
        raise SystemExit(done.returncode)
    return done.returncode
