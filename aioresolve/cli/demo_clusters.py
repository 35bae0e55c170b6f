"""The clusters of `aioresolve demo`: loopback servers, the files that lead to them, and a story."""

from __future__ import annotations

import itertools
import json
import secrets
import shlex
import sysconfig
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aioresolve.testing import (
    End,
    GoogleServer,
    KubernetesServer,
    TPUWorker,
    instance,
    pod,
    service,
    tpu_node,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

NAMESPACE = "training"
SLICES = ("slice-0", "slice-1")
HOSTS = 2
"""Workers of each slice."""

DEVICES = 4
"""Devices of each worker: a v4 host has four chips, and each is one device."""

COMMANDS = (
    "aioresolve kubernetes -l app=trainer",
    "aioresolve kubernetes -n evaluation --service evaluator",
    "aioresolve tpu slice-0 slice-1 --probe",
    "aioresolve watch kubernetes -l app=trainer",
    "aioresolve wait kubernetes -l app=trainer --count 4",
    "POD_NAME=trainer-1 aioresolve exec kubernetes -l app=trainer --for torch -- printenv RANK MASTER_ADDR",
    "aioresolve doctor tpu slice-0",
    "aioresolve poll fleet.yaml",
    "aioresolve poll fleet.yaml -w --listen 127.0.0.1:8080",
)
"""What to try in the folder of the files, with the variables of its file `env`."""

FLEET = """\
interval: 2s
defaults:
  kubernetes: {namespace: training, kubeconfig: kubeconfig}
targets:
  east-trainer:
    expected: {worker: 4, ps: 2}
    kubernetes: {context: east, jobs: {worker: app=trainer, ps: app=ps}}
  east-evaluator:
    expected: 2
    kubernetes: {context: east, namespace: evaluation, service: evaluator}
  west-trainer:
    expected: 2
    kubernetes: {context: west, jobs: {worker: app=trainer}}
  slices:
    tpu: {name: [slice-0, slice-1]}
  machines:
    gce: {group: machines, project: demo-project, zone: us-central2-b}
"""


@dataclass(frozen=True, slots=True)
class DemoClusters:
    """Two Kubernetes clusters, and a project of Google Cloud with TPU slices and an instance group."""

    east: KubernetesServer
    west: KubernetesServer
    cloud: GoogleServer


@asynccontextmanager
async def running_clusters() -> AsyncIterator[DemoClusters]:
    """Run the servers on free ports of 127.0.0.1; the workers of the slices are gRPC servers."""
    async with AsyncExitStack() as stack:
        tokens = {secrets.token_urlsafe(): "demo"}
        trainers = [trainer(number) for number in range(4)]
        ps = [pod(f"ps-{n}", NAMESPACE, labels={"app": "ps"}, ip=f"127.0.0.{n + 31}") for n in range(2)]
        app = {"app": "evaluator"}
        others = [pod(f"evaluator-{n}", "evaluation", labels=app, ip=f"127.0.0.{n + 41}") for n in range(2)]
        others.append(service("evaluator", "evaluation", selector=app, ports={"grpc": 9000}))
        east = KubernetesServer([*trainers, *ps, *others], tls=True, tokens=tokens)
        west = KubernetesServer(trainers[:2], tls=True, tokens=tokens)
        cloud = GoogleServer(instance(f"machine-{n}", ip=f"127.0.0.{n + 51}") for n in range(2))
        cloud.instance_groups["machines"] = ["machine-0", "machine-1"]
        for number, name in enumerate(SLICES):
            tasks = range(number * HOSTS, (number + 1) * HOSTS)
            workers = [await stack.enter_async_context(TPUWorker(DEVICES, task=task)) for task in tasks]
            endpoints = [{"ipAddress": "127.0.0.1", "port": worker.port} for worker in workers]
            node = tpu_node(name, accelerator_type="v4-16", topology="2x2x2")
            cloud.add(node | {"networkEndpoints": endpoints})
        for server in (east, west, cloud):
            await stack.enter_async_context(server)
        yield DemoClusters(east, west, cloud)


def trainer(number: int, **state: Any) -> dict[str, Any]:
    """Return the pod `trainer-NUMBER` in a state; the arguments are those of `aioresolve.testing.pod`."""
    placed: dict[str, Any] = {"ip": f"127.0.0.{number + 11}", "node": f"node-{number}", **state}
    return pod(f"trainer-{number}", NAMESPACE, labels={"app": "trainer"}, **placed)


def write_files(clusters: DemoClusters, folder: Path) -> dict[str, str]:
    """Write `kubeconfig`, with the contexts `east` and `west`, `fleet.yaml`, and `env` for a shell.

    The result is the variables of `env`, other than `PATH`.
    """
    kubeconfig = clusters.east.kubeconfig(context="east", namespace=NAMESPACE)
    for key, entries in clusters.west.kubeconfig(context="west", namespace=NAMESPACE).items():
        if isinstance(entries, list):
            kubeconfig[key] += entries
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig, indent=2))
    (folder / "fleet.yaml").write_text(FLEET)
    # Credentials of their own: no token of the user is sent to these servers.
    variables = {"KUBECONFIG": str(folder / "kubeconfig"), **clusters.cloud.environ(folder / "google")}
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    lines.append(f'export PATH={shlex.quote(sysconfig.get_path("scripts"))}:"$PATH"\n')
    (folder / "env").write_text("".join(lines))
    return variables


def story(clusters: DemoClusters) -> Iterator[tuple[str, float]]:
    """Change the clusters; yield after each change what has happened, and for how many seconds it lasts.

    A pod crashes, a node is lost, a TPU is repaired, a token is rejected; then everything is ready again, and
    the story starts again.
    """
    east, west, cloud = clusters.east, clusters.west, clusters.cloud
    places = itertools.cycle([("node-3", "127.0.0.14"), ("node-4", "127.0.0.15")])
    node, _ = next(places)
    for restarts in itertools.count(1):
        yield "all clusters are ready", 10
        east.add(trainer(2, waiting="CrashLoopBackOff", restarts=restarts))
        yield "trainer-2 in context east has crashed", 8
        east.add(trainer(2, restarts=restarts))
        yield "trainer-2 runs again", 4
        east.patch("trainer-3", NAMESPACE, patch=_NOT_READY)
        yield f"{node} is lost, with trainer-3 on it", 4
        east.delete("trainer-3", NAMESPACE)
        east.add(trainer(3, phase="Pending", node=None))
        yield "trainer-3 waits for another node", 8
        node, ip = next(places)
        east.add(trainer(3, node=node, ip=ip))
        yield f"trainer-3 runs on {node}", 4
        cloud.patch("slice-1", state="REPAIRING", health="UNHEALTHY_MAINTENANCE")
        yield "the TPU slice-1 is being repaired", 8
        cloud.patch("slice-1", state="READY", health="HEALTHY")
        yield "slice-1 is repaired", 4
        tokens, west.tokens = west.tokens, {}
        west.disturb(End())
        yield "context west rejects the token", 8
        west.tokens = tokens


_NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
