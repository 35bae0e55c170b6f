"""What `aioresolve demo` shows: a training job on a loopback cluster, resolved for real.

What `aioresolve demo` shows of Cloud TPUs: two slices on loopback, their workers probed for real.

`aioresolve demo`: a training job and a TPU on loopback, resolved and probed for real.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.error_messages import error_report
from aioresolve.cli.options import Task, typed, verbose_option
from aioresolve.cli.output.change_lines import ChangeRows
from aioresolve.cli.output.formats import Section, address_lines, spec_table, tf_config
from aioresolve.cli.terminal import streams
from aioresolve.errors import PodNotRunningError, ProbeError, ProtocolError, ResolveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.kubernetes import KubernetesClusterResolver
    from aioresolve.probe import WorkerProbe
    from aioresolve.spec import ClusterSpec
    from aioresolve.testing import ThreadedKubernetesServer, TPUWorker
    from aioresolve.tpu import TPUClusterResolver, TPUSlice

    from .tpu import FoundTPUs

__all__ = ["CODE", "demo", "sections", "tpu_sections"]

NAMESPACE = "training"
JOBS = {"worker": ["job-name=train-a", "job-name=train-b"], "ps": ["app=ps"]}
SELECTORS = [(job, selector) for job, selectors in JOBS.items() for selector in selectors]
PODS = {
    "train-a-0": {"job-name": "train-a"},
    "train-a-1": {"job-name": "train-a"},
    "train-b-0": {"job-name": "train-b"},
    "train-b-1": {"job-name": "train-b"},
    "ps-0": {"app": "ps"},
}
STOPPED = "train-b-1"

LATENCY = 0.1
"""Seconds that the server takes for each answer, so that asking for all at once can be seen."""

PATIENCE = 10.0
"""Seconds after which a watch that does not tell what happens has failed."""

CODE = f"""\
import asyncio
from aioresolve import KubernetesClusterResolver

async def main():
    jobs = {{"worker": ["job-name=train-a", "job-name=train-b"], "ps": ["app=ps"]}}
    async with KubernetesClusterResolver(jobs, namespace="{NAMESPACE}") as resolver:
        print(await resolver.cluster_spec())

asyncio.run(main())
"""


def sections() -> list[Section]:
    """Return what there is to show, from a server that has run and is gone.

    Raises:
        ResolveError: there was no answer, or it was not what the server holds.
        OSError: no server or no file could be made.
    """
    # Imported here, so that `--help` and completion load click only.
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
        _check(spec, {f"{each['status']['podIP']}:8470" for each in cluster.pods})
        cluster.add(pod(STOPPED, NAMESPACE, labels=PODS[STOPPED], phase="Pending", node=None))
        failure = _failure(resolver)
        cluster.clear_faults()
        changes, delay = asyncio.run(_changes(resolver, cluster))
        return [
            Section(
                "A Kubernetes API server on loopback",
                f"{cluster.url}, TLS by an authority of its own, a bearer token; each answer takes it "
                f"{LATENCY * 1000:.0f} ms.\n",
            ),
            Section(f"aioresolve kubernetes -n {NAMESPACE} {typed(SELECTORS)}", spec_table(spec)),
            Section(
                f"{len(pods)} tasks in {seconds * 1000:.0f} ms",
                f"Its {len(SELECTORS)} selectors are asked for at once; one after another they would take "
                f"{len(SELECTORS) * LATENCY * 1000:.0f} ms or more.\n",
            ),
            Section("-o tf-config --task worker:0", tf_config(spec, Task("worker", 0))),
            Section(f"When {STOPPED} does not run", error_report(failure)),
            Section(f"aioresolve watch kubernetes -n {NAMESPACE} ...: {STOPPED} comes, ps-0 goes", changes),
            Section(
                f"aioresolve wait kubernetes ... --count {len(PODS)}",
                f"It has waited for {STOPPED}, and ended {delay * 1000:.0f} ms after that was ready.\n",
            ),
            Section("The same in Python", CODE, is_code=True),
        ]


async def _changes(
    resolver: KubernetesClusterResolver, cluster: ThreadedKubernetesServer
) -> tuple[str, float]:
    """Return what a watch says of a pod that comes and one that goes, and how soon a wait knew the first."""
    import anyio
    import anyio.to_thread

    from aioresolve._core.concurrency import gather
    from aioresolve.spec import ClusterState
    from aioresolve.testing import pod

    complete = anyio.Event()
    came_at = complete_at = 0.0

    async def wait() -> str:
        nonlocal complete_at
        await resolver.wait(len(PODS))
        complete_at = time.perf_counter()
        complete.set()
        return ""

    async def watch() -> str:
        nonlocal came_at
        rows = ChangeRows(is_wide=False)
        async with aclosing(resolver.watch()) as states:
            older = await anext(states)
            said = rows.text(older, ClusterState.of({}))
            both_watch = 2 * len(SELECTORS)
            await anyio.to_thread.run_sync(cluster.until, lambda: cluster.watches == both_watch)
            came_at = time.perf_counter()
            cluster.add(pod(STOPPED, NAMESPACE, labels=PODS[STOPPED], ip="10.4.3.7", node="node-3"))
            newer = await anext(states)
            said += rows.text(newer, older)
            await complete.wait()
            cluster.delete("ps-0", NAMESPACE)
            return said + rows.text(await anext(states), newer)

    with anyio.fail_after(PATIENCE):
        async with resolver:
            said = await gather([watch, wait], limit=2)
    return said[0], complete_at - came_at


def _check(spec: ClusterSpec, expected: set[str]) -> None:
    found = address_lines(spec).split()
    if sorted(found) != sorted(expected):
        raise ProtocolError(f"the server holds pods at {sorted(expected)}, and found were {sorted(found)}")


def _failure(resolver: KubernetesClusterResolver) -> ResolveError:
    import asyncio

    try:
        spec = asyncio.run(resolver.cluster_spec())
    except PodNotRunningError as error:
        return error
    raise ProtocolError(f"{STOPPED} does not run, and was resolved all the same: {spec}")


NAMES = ("trainer-0", "trainer-1")
ZONE = "us-central2-b"
PROJECT = "demo-project"
HOSTS = 2
"""Workers of each slice."""

DEVICES = 4
"""Of each worker: a v4 host has four chips, and each is one device."""


def tpu_sections() -> list[Section]:
    """Return what there is to show, from servers that have run and are gone.

    Raises:
        ResolveError: there was no answer, or it was not what the servers hold.
        OSError: no server could be made.
    """
    import asyncio

    # One loop for workers and prober: grpc.aio polls a single one of a process.
    return asyncio.run(_sections())


async def _sections() -> list[Section]:
    from aioresolve.cli.output.tpu_tables import workers_table
    from aioresolve.testing import GoogleServer, TPUWorker
    from aioresolve.tpu import TPUClusterResolver

    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(TPUWorker(DEVICES, task=task))
            for task in range(HOSTS * len(NAMES))
        ]
        cloud = await stack.enter_async_context(GoogleServer(project=PROJECT, zone=ZONE))
        for number, name in enumerate(NAMES):
            cloud.add(_node(name, workers[number * HOSTS : (number + 1) * HOSTS]))
        resolver = await stack.enter_async_context(
            TPUClusterResolver(
                NAMES,
                ZONE,
                PROJECT,
                discovery_url=f"{cloud.url}/$discovery/rest?version={{apiVersion}}",
            )
        )
        slices = await resolver.slices()
        started = time.perf_counter()
        probes = await resolver.probe()
        seconds = time.perf_counter() - started
        _loopback_tpu_check(slices, probes, workers)
        last = workers[-1]
        await last.__aexit__(None, None, None)
        await stack.enter_async_context(TPUWorker(DEVICES - 1, task=len(workers) - 1, port=last.port))
        return [
            Section(
                "A Cloud TPU API on loopback",
                f"{cloud.url} knows {len(NAMES)} slices of {HOSTS} hosts; at each listens a gRPC server.\n",
            ),
            Section(f"aioresolve tpu {' '.join(NAMES)} -o wide", workers_table(_found(slices), is_wide=True)),
            Section(
                f"--probe: {len(probes)} workers in {seconds * 1000:.0f} ms",
                workers_table(_found(slices, probes), is_wide=False),
            ),
            Section(
                "When a worker comes back with a chip less",
                error_report(await _loopback_tpu_failure(resolver)),
            ),
        ]


def _node(name: str, workers: Sequence[TPUWorker]) -> dict[str, Any]:
    from aioresolve.testing import tpu_node

    node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2")
    endpoints = [{"ipAddress": "127.0.0.1", "port": worker.port, "accessConfig": {}} for worker in workers]
    return node | {"networkEndpoints": endpoints}


def _found(slices: tuple[TPUSlice, ...], probes: Sequence[WorkerProbe] | None = None) -> FoundTPUs:
    from aioresolve.tpu.slices import cluster_of

    from .tpu import FoundTPUs

    answers = None if probes is None else {probe.address: probe for probe in probes}
    return FoundTPUs(slices, cluster_of(slices, "worker", {}, datetime.now(UTC)), answers)


def _loopback_tpu_check(
    slices: Sequence[TPUSlice], probes: Sequence[WorkerProbe], workers: Sequence[TPUWorker]
) -> None:
    held = [(worker.address, {"TPU": DEVICES}) for worker in workers]
    found = [(probe.address, probe.accelerators) for probe in probes]
    if found != held or [len(one.endpoints) for one in slices] != [HOSTS] * len(NAMES):
        raise ProtocolError(f"the workers are {held}, and found were {found} in {slices}")


async def _loopback_tpu_failure(resolver: TPUClusterResolver) -> ProbeError:
    try:
        cores = await resolver.num_accelerators()
    except ProbeError as error:
        return error
    raise ProtocolError(f"a worker has a chip less, and {cores} were counted all the same")


@click.command(short_help="See it work on a loopback cluster; none of your own is needed.")
@verbose_option
def demo() -> None:
    """Resolve a training job on a Kubernetes API server on loopback, with TLS and a bearer token.

    Then resolve the two slices of a Cloud TPU there, and probe their workers over gRPC. It is the code and
    the protocols that a real cluster sees. Nothing is left behind.
    """
    streams.hush_grpc()
    try:
        text = streams.sections_text([*sections(), *tpu_sections()])
    except (ResolveError, OSError) as error:
        raise click.ClickException(f"the demo failed: {error}") from error
    streams.write(text)
