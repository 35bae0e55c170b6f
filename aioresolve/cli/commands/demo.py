"""`aioresolve demo`: a training job and two TPU slices on loopback, resolved and probed for real."""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from aioresolve.cli import streams
from aioresolve.cli.error_messages import error_message, error_report
from aioresolve.cli.formats import Table, TaskName, spec_table, tf_config
from aioresolve.cli.options import parse_selector, verbose_option
from aioresolve.cli.sources import selector_options
from aioresolve.cli.worker_tables import workers_table
from aioresolve.errors import PodNotRunningError, ProbeError, ProtocolError, ResolveError

from .tpu import found_tpus
from .watch import ChangeRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.probe import WorkerProbe
    from aioresolve.spec import ClusterSpec
    from aioresolve.testing import ThreadedKubernetesServer, TPUWorker
    from aioresolve.tpu import TPUClusterResolver, TPUSlice

NAMESPACE = "training"
JOBS = {"worker": ["job-name=train-a", "job-name=train-b"], "ps": ["app=ps"]}
SELECTORS = [parse_selector(f"{job}={each}") for job, selectors in JOBS.items() for each in selectors]
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

WATCH_TIMEOUT = 10.0
"""Seconds after which a watch that has not reported the changes has failed."""

CODE = f"""\
import asyncio
from aioresolve import KubernetesClusterResolver

async def main():
    jobs = {{"worker": ["job-name=train-a", "job-name=train-b"], "ps": ["app=ps"]}}
    async with KubernetesClusterResolver(jobs, namespace="{NAMESPACE}") as resolver:
        print(await resolver.cluster_spec())

asyncio.run(main())
"""

TPUS = ("trainer-0", "trainer-1")
ZONE = "us-central2-b"
PROJECT = "demo-project"
HOSTS = 2
"""Workers of each TPU."""

DEVICES = 4
"""Devices of each worker: a v4 host has four chips, and each is one device."""


Section = tuple[str, "str | Table"]
"""A title above a table or a text."""


@click.command(short_help="A demonstration on a loopback cluster.")
@verbose_option
def demo() -> None:
    """Resolve a training job on a loopback Kubernetes API server, with TLS and a bearer token.

    Then resolve the two slices of a loopback Cloud TPU, and probe their workers over gRPC. The code and the
    protocols are those for a real cluster. Nothing is left behind.
    """
    streams.silence_grpc()
    try:
        sections = [*_kubernetes_sections(), *_tpu_sections()]
    except ResolveError as error:
        raise click.ClickException(f"the demo failed: {error_message(error)}") from error
    except OSError as error:
        raise click.ClickException(f"the demo failed: {error}") from error
    for number, (title, body) in enumerate(sections):
        heading = click.style(f"# {title}", fg="green") if streams.has_colors(sys.stdout) else f"# {title}"
        streams.write_stdout(f"\n{heading}\n" if number else f"{heading}\n")
        streams.write_stdout(body)


def _kubernetes_sections() -> list[Section]:
    """Run the Kubernetes part."""
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
        _check_addresses(spec, {f"{each['status']['podIP']}:8470" for each in cluster.pods})
        cluster.add(pod(STOPPED, NAMESPACE, labels=PODS[STOPPED], phase="Pending", node=None))
        not_running = asyncio.run(_not_running_error(resolver))
        cluster.clear_faults()
        changes, delay = asyncio.run(_watch_and_wait(resolver, cluster))
        return [
            (
                "A Kubernetes API server on loopback",
                (
                    f"{cluster.url}, with a private certificate authority and a bearer token; each response "
                    f"takes {LATENCY * 1000:.0f} ms.\n"
                ),
            ),
            (f"aioresolve kubernetes -n {NAMESPACE} {selector_options(SELECTORS)}", spec_table(spec)),
            (
                f"{len(pods)} tasks in {seconds * 1000:.0f} ms",
                (
                    f"The {len(SELECTORS)} selectors are requested concurrently; one after the other they would "
                    f"take {len(SELECTORS) * LATENCY * 1000:.0f} ms or more.\n"
                ),
            ),
            ("-o tf-config --task worker:0", tf_config(spec, TaskName("worker", 0))),
            (f"If {STOPPED} is not running", error_report(not_running)),
            (f"aioresolve watch kubernetes -n {NAMESPACE} ...: {STOPPED} joins, ps-0 leaves", changes),
            (
                f"aioresolve wait kubernetes ... --count {len(PODS)}",
                f"It waited for {STOPPED}, and ended {delay * 1000:.0f} ms after that pod was ready.\n",
            ),
            ("The same in Python", CODE),
        ]


def _check_addresses(spec: ClusterSpec, expected: set[str]) -> None:
    found = [address for _, _, address in spec_table(spec).rows]
    if sorted(found) != sorted(expected):
        raise ProtocolError(
            f"the server has pods at {sorted(expected)}, but the resolver found {sorted(found)}"
        )


async def _not_running_error(resolver: KubernetesClusterResolver) -> ResolveError:
    try:
        spec = await resolver.cluster_spec()
    except PodNotRunningError as error:
        return error
    raise ProtocolError(f"{STOPPED} is not running, but it was resolved: {spec}")


async def _watch_and_wait(
    resolver: KubernetesClusterResolver, cluster: ThreadedKubernetesServer
) -> tuple[str, float]:
    """Return the rows of a watch while a pod joins and one leaves, and how long a wait took to end.

    The second value is in seconds after the pod that joined was ready.
    """
    import anyio
    import anyio.to_thread

    from aioresolve._core.concurrency import gather
    from aioresolve.spec import ClusterState
    from aioresolve.testing import pod

    complete = anyio.Event()
    joined_at = complete_at = 0.0

    async def wait() -> str:
        nonlocal complete_at
        await resolver.wait(len(PODS))
        complete_at = time.perf_counter()
        complete.set()
        return ""

    async def watch() -> str:
        nonlocal joined_at
        rows = ChangeRows(is_wide=False)
        async with aclosing(resolver.watch()) as states:
            older = await anext(states)
            text = rows.format(older, ClusterState.of({}))
            expected_watches = 2 * len(SELECTORS)  # those of this watch and of the wait
            await anyio.to_thread.run_sync(cluster.until, lambda: cluster.watches == expected_watches)
            joined_at = time.perf_counter()
            cluster.add(pod(STOPPED, NAMESPACE, labels=PODS[STOPPED], ip="10.4.3.7", node="node-3"))
            newer = await anext(states)
            text += rows.format(newer, older)
            await complete.wait()
            cluster.delete("ps-0", NAMESPACE)
            return text + rows.format(await anext(states), newer)

    with anyio.fail_after(WATCH_TIMEOUT):
        async with resolver:
            rows, _ = await gather([watch, wait], limit=2)
    return rows, complete_at - joined_at


def _tpu_sections() -> list[Section]:
    """Run the TPU part."""
    import asyncio

    # Workers and prober share one event loop, because grpc.aio polls only one per process.
    return asyncio.run(_run_tpu_part())


async def _run_tpu_part() -> list[Section]:
    from aioresolve.testing import GoogleServer, TPUWorker
    from aioresolve.tpu import TPUClusterResolver

    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(TPUWorker(DEVICES, task=task))
            for task in range(HOSTS * len(TPUS))
        ]
        cloud = await stack.enter_async_context(GoogleServer(project=PROJECT, zone=ZONE))
        for number, name in enumerate(TPUS):
            cloud.add(_node(name, workers[number * HOSTS : (number + 1) * HOSTS]))
        resolver = await stack.enter_async_context(
            TPUClusterResolver(
                TPUS, ZONE, PROJECT, discovery_url=f"{cloud.url}/$discovery/rest?version={{apiVersion}}"
            )
        )
        slices = await resolver.slices()
        started = time.perf_counter()
        probes = await resolver.probe()
        seconds = time.perf_counter() - started
        _check_probes(slices, probes, workers)
        # Replace the last worker by one at the same address that has lost a chip.
        last = workers[-1]
        await last.__aexit__(None, None, None)
        await stack.enter_async_context(TPUWorker(DEVICES - 1, task=len(workers) - 1, port=last.port))
        uneven = await _uneven_error(resolver)
        found = found_tpus(slices, "worker")
        probed = replace(found, probes={probe.address: probe for probe in probes})
        return [
            (
                "A Cloud TPU API on loopback",
                f"{cloud.url} has {len(TPUS)} slices of {HOSTS} hosts, each with a gRPC server.\n",
            ),
            (f"aioresolve tpu {' '.join(TPUS)} -o wide", workers_table(found, is_wide=True)),
            (
                f"--probe: {len(probes)} workers in {seconds * 1000:.0f} ms",
                workers_table(probed, is_wide=False),
            ),
            ("If a worker has lost a chip", error_report(uneven)),
        ]


def _node(name: str, workers: Sequence[TPUWorker]) -> dict[str, Any]:
    from aioresolve.testing import tpu_node

    node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2")
    endpoints = [{"ipAddress": "127.0.0.1", "port": worker.port, "accessConfig": {}} for worker in workers]
    return node | {"networkEndpoints": endpoints}


def _check_probes(
    slices: Sequence[TPUSlice], probes: Sequence[WorkerProbe], workers: Sequence[TPUWorker]
) -> None:
    expected = [(worker.address, {"TPU": DEVICES}) for worker in workers]
    found = [(probe.address, probe.accelerators) for probe in probes]
    if found != expected or [len(one.endpoints) for one in slices] != [HOSTS] * len(TPUS):
        raise ProtocolError(f"the workers are {expected}, but the resolver found {found} in {slices}")


async def _uneven_error(resolver: TPUClusterResolver) -> ProbeError:
    try:
        cores = await resolver.num_accelerators()
    except ProbeError as error:
        return error
    raise ProtocolError(f"a worker has lost a chip, but the resolver counted {cores}")
