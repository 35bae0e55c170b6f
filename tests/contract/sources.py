"""A cluster of two workers for each resolver, in the form in which the resolver finds it."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from google.oauth2.credentials import Credentials

import aioresolve
from aioresolve import ClusterSpec, sync
from aioresolve.testing import GoogleServer, KubernetesServer, instance, pod, tpu_node
from aioresolve.testing import service as a_service

SECRET = "hunter22-Zebra7"
"""The token with which the resolvers log in to servers."""


def _cannot_change() -> NoReturn:
    raise NotImplementedError("this cluster never changes")


@dataclass(frozen=True)
class Source:
    """A cluster of two workers, and the resolver that finds it.

    Attributes:
        expression: makes the resolver, from the classes of `aioresolve` or of `aioresolve.sync`; `options`
            are further arguments.
        addresses: those of the two workers.
        environ: the variables with which a process finds the cluster.
        secret: a credential that the resolver uses.
        server: the server that it sends requests to; None if it sends none.
        grow: adds a third worker and returns its address.
        break_down: makes every later call fail for good.
    """

    expression: str
    addresses: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    secret: str | None = None
    server: Any = None
    grow: Callable[[], str] = _cannot_change
    break_down: Callable[[], object] = _cannot_change

    def resolver(self, **options: Any) -> aioresolve.ClusterResolver:
        """Return the async resolver."""
        resolver: aioresolve.ClusterResolver = self._evaluate(aioresolve, options)
        return resolver

    def facade(self, **options: Any) -> sync.ClusterResolver:
        """Return the blocking resolver."""
        facade: sync.ClusterResolver = self._evaluate(sync, options)
        return facade

    def _evaluate(self, module: ModuleType, options: dict[str, Any]) -> Any:
        names = {name: getattr(module, name) for name in dir(module) if name.endswith("Resolver")}
        names |= {"ClusterSpec": ClusterSpec, "Credentials": Credentials, "options": options}
        return eval(self.expression, names)


@contextmanager
def simple(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    spec = {"worker": ["n0:1", "n1:1"]}
    yield Source(f"SimpleClusterResolver(ClusterSpec({spec}), **options)", spec["worker"])


@contextmanager
def union(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    with tf_config(folder, patch) as source:
        # The first resolver decides which task this process is; here, it says nothing.
        first = "SimpleClusterResolver(ClusterSpec({'ps': []}))"
        yield Source(
            f"UnionClusterResolver({first}, TFConfigClusterResolver(), **options)",
            source.addresses,
            source.environ,
            grow=source.grow,
            break_down=source.break_down,
        )


@contextmanager
def kubernetes(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    def add(number: int) -> str:
        server.add(pod(f"n{number}", labels={"app": "train"}, ip=f"10.0.0.{number + 1}"))
        return f"10.0.0.{number + 1}:8470"

    def break_down() -> None:
        server.tokens = {}

    with KubernetesServer(tls=True, tokens={SECRET: "ada"}).in_thread() as server:
        addresses = [add(number) for number in range(2)]
        config = server.write_kubeconfig(folder / "config")
        yield Source(
            f"KubernetesClusterResolver({{'worker': 'app=train'}}, kubeconfig={str(config)!r}, **options)",
            addresses,
            secret=SECRET,
            server=server,
            grow=lambda: add(2),
            break_down=break_down,
        )


@contextmanager
def service(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    with kubernetes(folder, patch) as source:
        source.server.add(a_service("train", selector={"app": "train"}, ports={"": 8470}))
        source.server.resources = {"ada": ["endpointslices"]}
        selector = "{'worker': 'app=train'}"
        assert selector in source.expression
        yield replace(source, expression=source.expression.replace(selector, "service='train'"))


@contextmanager
def tpu(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    def resize(number: int) -> list[str]:
        ips = [f"10.0.0.{index + 1}" for index in range(number)]
        kind, topology = f"v4-{8 * number}", f"2x2x{number}"
        server.add(tpu_node("my-tpu", ips=ips, accelerator_type=kind, topology=topology))
        return [f"{ip}:8470" for ip in ips]

    with _google_cloud(folder, patch) as (server, environ):
        yield Source(
            "TPUClusterResolver('my-tpu', 'us-central2-b', 'demo-project',"
            f" credentials=Credentials({SECRET!r}), **options)",
            resize(2),
            environ,
            secret=SECRET,
            server=server,
            grow=lambda: resize(3)[-1],
            break_down=lambda: server.denied.add("tpu.nodes.get"),
        )


@contextmanager
def gce(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    names: list[str] = []

    def add(number: int) -> str:
        names.append(f"n{number}")
        server.add(instance(f"n{number}", ip=f"10.0.0.{number + 1}"))
        server.instance_groups["workers"] = list(names)
        return f"10.0.0.{number + 1}:8470"

    def break_down() -> None:
        server.denied.update({"compute.instanceGroups.list", "compute.instances.list"})

    with _google_cloud(folder, patch) as (server, environ):
        yield Source(
            "GCEClusterResolver('demo-project', 'us-central2-b', 'workers', 8470,"
            f" credentials=Credentials({SECRET!r}), **options)",
            [add(number) for number in range(2)],
            environ,
            secret=SECRET,
            server=server,
            grow=lambda: add(2),
            break_down=break_down,
        )


@contextmanager
def _google_cloud(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[tuple[Any, dict[str, str]]]:
    # Credentials are sent to https only.
    with GoogleServer(tls=True).in_thread() as server:
        server.tokens = {SECRET: "user:ada@example.com"}
        certificate = folder / "ca.pem"
        certificate.write_text(server.ca_pem)
        environ = {**server.environ(), "SSL_CERT_FILE": str(certificate)}
        for name, value in environ.items():
            patch.setenv(name, value)
        yield server, environ


@contextmanager
def tf_config(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    def write(number: int) -> list[str]:
        addresses = [f"n{index}:1" for index in range(number)]
        document = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 1}}
        environ["TF_CONFIG"] = json.dumps(document)
        patch.setenv("TF_CONFIG", environ["TF_CONFIG"])
        return addresses

    environ: dict[str, str] = {}
    yield Source(
        "TFConfigClusterResolver(**options)",
        write(2),
        environ,
        grow=lambda: write(3)[-1],
        break_down=lambda: patch.setenv("TF_CONFIG", "{"),
    )


@contextmanager
def slurm(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    patch.setattr("aioresolve.environment.slurm.DRIVER_FOLDER", folder / "none")
    environ = {
        "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "SLURMD_NODENAME": "n1",
    }

    def grow() -> str:
        patch.setenv("SLURM_STEP_TASKS_PER_NODE", "1,2")
        return "n1:8889"

    for name, value in environ.items():
        patch.setenv(name, value)
    yield Source(
        "SlurmClusterResolver(**options)",
        ["n0:8888", "n1:8888"],
        environ,
        grow=grow,
        break_down=lambda: patch.setenv("SLURM_STEP_NODELIST", "n[0-"),
    )


@contextmanager
def sagemaker(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Source]:
    def write(hosts: str) -> None:
        environ["SM_HOSTS"] = hosts
        patch.setenv("SM_HOSTS", hosts)

    def grow() -> str:
        write('["n0", "n1", "n2"]')
        return "n2:2223"

    environ = {"SM_CURRENT_HOST": "n1"}
    patch.setenv("SM_CURRENT_HOST", "n1")
    write('["n0", "n1"]')
    yield Source(
        "SageMakerClusterResolver(**options)",
        ["n0:2223", "n1:2223"],
        environ,
        grow=grow,
        break_down=lambda: write("["),
    )


SOURCES: dict[str, Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[Source]]] = {
    "GCEClusterResolver": gce,
    "KubernetesClusterResolver": kubernetes,
    "KubernetesClusterResolver(service=)": service,
    "SageMakerClusterResolver": sagemaker,
    "SimpleClusterResolver": simple,
    "SlurmClusterResolver": slurm,
    "TFConfigClusterResolver": tf_config,
    "TPUClusterResolver": tpu,
    "UnionClusterResolver": union,
}
"""Each resolver class by its name in `aioresolve` and `aioresolve.sync`; twice if it has two sources."""

CHANGING = [name for name in SOURCES if name != "SimpleClusterResolver"]
"""Those whose cluster can change, and whose calls can fail."""

REMOTE = [
    "KubernetesClusterResolver",
    "KubernetesClusterResolver(service=)",
    "GCEClusterResolver",
    "TPUClusterResolver",
]
"""Those that send requests."""
