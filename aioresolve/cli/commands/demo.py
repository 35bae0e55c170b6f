"""`aioresolve demo`: a training job and two TPU slices on loopback, resolved and probed for real."""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import click

from aioresolve.cli import clusters, formats, options, streams
from aioresolve.cli.error_messages import error_message, error_report
from aioresolve.errors import PodNotRunningError, ResolveError

from .tpu import find_slices, workers_table

NAMESPACE = "training"
JOBS = {"worker": ["job-name=train-a", "job-name=train-b"], "ps": ["app=ps"]}
SELECTORS = " ".join(f"-l {job}={each}" for job, selectors in JOBS.items() for each in selectors)
PODS = {
    "train-a-0": {"job-name": "train-a"},
    "train-a-1": {"job-name": "train-a"},
    "train-b-0": {"job-name": "train-b"},
    "train-b-1": {"job-name": "train-b"},
    "ps-0": {"app": "ps"},
}
STOPPED = "train-b-1"

LATENCY = 0.1
"""Seconds that the server takes for each response, so that it is visible that requests are concurrent."""

TPUS = ("trainer-0", "trainer-1")
ZONE = "us-central2-b"
PROJECT = "demo-project"
HOSTS = 2
"""Workers of each TPU."""

DEVICES = 4
"""Devices of each worker: a v4 host has four chips, and each is one device."""


@click.command(short_help="A demonstration on a loopback cluster.")
@options.verbose_option
def demo() -> None:
    """Resolve a training job on a loopback Kubernetes API server, with TLS and a bearer token.

    Then resolve the two slices of a loopback Cloud TPU, and probe their workers over gRPC. The code and the
    protocols are those for a real cluster. Nothing is left behind.
    """
    streams.silence_grpc()
    import asyncio

    try:
        # Workers and prober share one event loop, because grpc.aio polls only one per process.
        sections = {**_kubernetes_sections(), **asyncio.run(_tpu_sections())}
    except (ResolveError, OSError) as error:
        message = error_message(error) if isinstance(error, ResolveError) else str(error)
        raise click.ClickException(f"the demo failed: {message}") from error
    for number, (title, body) in enumerate(sections.items()):
        heading = click.style(f"# {title}", fg="green") if streams.has_colors(sys.stdout) else f"# {title}"
        streams.write_stdout(f"\n{heading}\n" if number else f"{heading}\n")
        streams.write_stdout(body)


def _kubernetes_sections() -> dict[str, str | formats.Table]:
    """Return tables and texts by their titles."""
    import asyncio
    import secrets
    import tempfile

    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.testing import Delay, KubernetesServer, pod

    pods = [
        pod(name, NAMESPACE, labels=labels, ip=f"10.4.{number}.7", node=f"node-{number}")
        for number, (name, labels) in enumerate(PODS.items())
    ]
    server = KubernetesServer(pods, tls=True, tokens={secrets.token_urlsafe(): "demo"})
    with server.in_thread() as cluster, tempfile.TemporaryDirectory(prefix="aioresolve-") as folder:
        kubeconfig = cluster.write_kubeconfig(Path(folder) / "kubeconfig")
        resolver = KubernetesClusterResolver(JOBS, namespace=NAMESPACE, kubeconfig=kubeconfig)
        cluster.inject(Delay(LATENCY), times=None)
        started = time.perf_counter()
        spec = asyncio.run(resolver.cluster_spec())
        seconds = time.perf_counter() - started
        cluster.add(pod(STOPPED, NAMESPACE, labels=PODS[STOPPED], phase="Pending", node=None))
        not_running = ""
        try:
            asyncio.run(resolver.cluster_spec())
        except PodNotRunningError as error:
            not_running = error_report(error)
        milliseconds = LATENCY * 1000
        return {
            "A Kubernetes API server on loopback": f"{cluster.url}, with a private certificate authority and"
            f" a bearer token; each response takes {milliseconds:.0f} ms.\n",
            f"aioresolve kubernetes -n {NAMESPACE} {SELECTORS}": clusters.spec_table(spec),
            f"{len(pods)} tasks in {seconds * 1000:.0f} ms": "The 3 selectors are requested concurrently; one"
            f" after the other they would take {3 * milliseconds:.0f} ms or more.\n",
            "-o tf-config --task worker:0": clusters.tf_config(spec, clusters.TaskName("worker", 0)),
            f"If {STOPPED} is not running": not_running,
        }


async def _tpu_sections() -> dict[str, str | formats.Table]:
    """Return tables and texts by their titles."""
    from aioresolve.testing import GoogleServer, TPUWorker, tpu_node
    from aioresolve.tpu import TPUClusterResolver

    async with AsyncExitStack() as stack:
        cloud = await stack.enter_async_context(GoogleServer(project=PROJECT, zone=ZONE))
        for number, name in enumerate(TPUS):
            workers = [
                await stack.enter_async_context(TPUWorker(DEVICES, task=number * HOSTS + host))
                for host in range(HOSTS)
            ]
            endpoints = [{"ipAddress": "127.0.0.1", "port": worker.port} for worker in workers]
            node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2")
            cloud.add(node | {"networkEndpoints": endpoints})
        discovery = f"{cloud.url}/$discovery/rest?version={{apiVersion}}"
        resolver = await stack.enter_async_context(
            TPUClusterResolver(TPUS, ZONE, PROJECT, discovery_url=discovery)
        )
        slices, state = await find_slices(resolver, resolver.timeout)
        started = time.perf_counter()
        probes = {probe.address: probe for probe in await resolver.probe()}
        seconds = time.perf_counter() - started
        return {
            "A Cloud TPU API on loopback": f"{cloud.url} has {len(TPUS)} slices of {HOSTS} hosts, each with a"
            " gRPC server.\n",
            f"aioresolve tpu {' '.join(TPUS)} -o wide": workers_table(slices, state, {}, is_wide=True),
            f"--probe: {len(probes)} workers in {seconds * 1000:.0f} ms": workers_table(
                slices, state, probes, is_wide=False
            ),
        }
