"""`aioresolve demo`: clusters on loopback servers, resolved and probed for real, or kept running."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aioresolve.cli import clusters, formats, options, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import error_message, error_report
from aioresolve.errors import PodNotRunningError, ResolveError

from .tpu import find_slices, workers_table

if TYPE_CHECKING:
    from aioresolve.cli.demo_clusters import DemoClusters

JOBS = {"worker": ["app=trainer"], "ps": ["app=ps"]}
STOPPED = "trainer-3"

LATENCY = 0.1
"""Seconds that the server takes for each response, so that it is visible that requests are concurrent."""


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
    """Resolve a training job on a loopback Kubernetes API server, with TLS and a bearer token.

    Then resolve the two slices of a loopback Cloud TPU, and probe their workers over gRPC. The code and the
    protocols are those for a real cluster. Nothing is left behind.
    """
    streams.silence_grpc()
    try:
        if folder is not None:
            run_async(lambda _: _serve(folder.absolute()))
        else:
            _print_sections(run_async(lambda _: _sections()))
    except (ResolveError, OSError) as error:
        message = error_message(error) if isinstance(error, ResolveError) else str(error)
        raise click.ClickException(f"the demo failed: {message}") from error


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
            streams.write_stdout("The clusters run until Ctrl-C. Try in another terminal:\n\n")
            streams.write_stdout("".join(f"  {line}\n" for line in lines) + "\n")
            for event, seconds in story(running):
                streams.write_stdout(f"{time.strftime('%H:%M:%S')} {event}\n")
                await anyio.sleep(seconds)
    finally:
        shutil.rmtree(folder)


def _print_sections(sections: dict[str, str | formats.Table]) -> None:
    for number, (title, body) in enumerate(sections.items()):
        heading = click.style(f"# {title}", fg="green") if streams.has_colors(sys.stdout) else f"# {title}"
        streams.write_stdout(f"\n{heading}\n" if number else f"{heading}\n")
        streams.write_stdout(body)
    streams.write_stdout("\nTo try the other commands on these clusters: aioresolve demo --serve\n")


async def _sections() -> dict[str, str | formats.Table]:
    """Return tables and texts by their titles."""
    from aioresolve.cli.demo_clusters import running_clusters

    async with running_clusters() as running:
        return await _kubernetes_sections(running) | await _tpu_sections(running)


async def _kubernetes_sections(running: DemoClusters) -> dict[str, str | formats.Table]:
    from aioresolve.cli.demo_clusters import NAMESPACE, trainer
    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.testing import Delay

    server = running.east
    with tempfile.TemporaryDirectory(prefix="aioresolve-") as folder:
        kubeconfig = server.write_kubeconfig(Path(folder) / "kubeconfig")
        async with KubernetesClusterResolver(JOBS, namespace=NAMESPACE, kubeconfig=kubeconfig) as resolver:
            server.inject(Delay(LATENCY), times=None)
            started = time.perf_counter()
            spec = await resolver.cluster_spec()
            milliseconds = (time.perf_counter() - started) * 1000
            server.add(trainer(3, phase="Pending", node=None))
            not_running = ""
            try:
                await resolver.cluster_spec()
            except PodNotRunningError as error:
                not_running = error_report(error)
    delay = LATENCY * 1000
    return {
        "A Kubernetes API server on loopback": f"{server.url}, with a private certificate authority and"
        f" a bearer token; each response takes {delay:.0f} ms.\n",
        "aioresolve kubernetes -n training -l worker=app=trainer -l ps=app=ps": clusters.spec_table(spec),
        f"6 tasks in {milliseconds:.0f} ms": "Both selectors are requested at once; one after the other they"
        f" would take {2 * delay:.0f} ms or more.\n",
        "-o tf-config --task worker:0": clusters.tf_config(spec, clusters.TaskName("worker", 0)),
        f"If {STOPPED} is not running": not_running,
    }


async def _tpu_sections(running: DemoClusters) -> dict[str, str | formats.Table]:
    from aioresolve.cli.demo_clusters import HOSTS, SLICES
    from aioresolve.tpu import TPUClusterResolver

    cloud = running.cloud
    discovery = f"{cloud.url}/$discovery/rest?version={{apiVersion}}"
    zone, project = "us-central2-b", "demo-project"
    async with TPUClusterResolver(SLICES, zone, project, discovery_url=discovery) as resolver:
        slices, state = await find_slices(resolver, resolver.timeout)
        started = time.perf_counter()
        probes = {probe.address: probe for probe in await resolver.probe()}
        milliseconds = (time.perf_counter() - started) * 1000
    return {
        "A Cloud TPU API on loopback": f"{cloud.url} has {len(SLICES)} slices of {HOSTS} hosts, each with a"
        " gRPC server.\n",
        f"aioresolve tpu {' '.join(SLICES)} -o wide": workers_table(slices, state, {}, is_wide=True),
        f"--probe: {len(probes)} workers in {milliseconds:.0f} ms": workers_table(
            slices, state, probes, is_wide=False
        ),
    }
