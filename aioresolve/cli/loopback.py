"""What `aioresolve demo` shows: a training job on a loopback cluster, resolved for real."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from aioresolve.concurrency import gather
from aioresolve.errors import PodNotRunningError, ProtocolError
from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.spec import ClusterState
from aioresolve.testing import Delay, KubernetesServer, pod

from .arguments import Task, typed
from .failures import as_text
from .output import Section, address_lines, spec_table, tf_config
from .watch_output import ChangeRows

if TYPE_CHECKING:
    from aioresolve.errors import ResolveError
    from aioresolve.spec import ClusterSpec
    from aioresolve.testing import ThreadedKubernetesServer

__all__ = ["CODE", "sections"]

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
            Section(f"When {STOPPED} does not run", as_text(failure)),
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
    try:
        spec = asyncio.run(resolver.cluster_spec())
    except PodNotRunningError as error:
        return error
    raise ProtocolError(f"{STOPPED} does not run, and was resolved all the same: {spec}")
