"""A resolver is its arguments: copies and pickles of each class, in any state, are unopened resolvers."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

import aioresolve
from aioresolve import ClusterSpec, ClusterState, Observation, Want, sync
from aioresolve.testing import KubernetesServer, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
}

SPEC = ClusterSpec({"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]})

ARGUMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "GCEClusterResolver": (("project", "us-east1-d", "group", 8470, "worker", 1), {"timeout": 7.0}),
    "KubernetesClusterResolver": (({"worker": ["job-name=train"]}, 2222), {"timeout": 7.0}),
    "SageMakerClusterResolver": ((2222,), {"rpc_layer": "grpc", "timeout": 7.0}),
    "SimpleClusterResolver": ((SPEC, "m:1", "worker", 1), {"timeout": 7.0}),
    "SlurmClusterResolver": (({"worker": 2}, 2222), {"auto_set_gpu": False, "timeout": 7.0}),
    "TFConfigClusterResolver": (("worker",), {"rpc_layer": "grpc", "timeout": 7.0}),
    "TPUClusterResolver": (("grpc://10.0.0.1:2222,10.0.0.2:2222",), {"timeout": 7.0}),
}
"""The arguments of the resolver of each class in `variables`; `GCEClusterResolver` is not resolved."""


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    pods = [pod(f"train-{i}", ip=f"10.0.0.{i + 1}", labels={"job-name": "train"}) for i in range(2)]
    with KubernetesServer(pods).in_thread() as server:
        yield server.write_kubeconfig(tmp_path_factory.mktemp("kubernetes") / "config")


@pytest.fixture(autouse=True)
def variables(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe `SPEC` to each class."""
    cluster = {"cluster": SPEC.as_dict(), "task": {"type": "worker", "index": 1}}
    for name, value in {
        "KUBECONFIG": str(kubeconfig),
        "TF_CONFIG": json.dumps(cluster),
        "SM_HOSTS": '["10.0.0.1", "10.0.0.2"]',
        "SM_CURRENT_HOST": "10.0.0.2",
        "SLURM_STEP_NODELIST": "10.0.0.[1-2]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "SLURM_JOB_ID": "1",
    }.items():
        monkeypatch.setenv(name, value)


def new(module: Any, name: str) -> Any:
    if name == "UnionClusterResolver":
        members = [new(module, "KubernetesClusterResolver"), new(module, "SimpleClusterResolver")]
        return module.UnionClusterResolver(members[0], task_type="worker", timeout=7.0, rpc_layer="grpc")
    args, kwargs = ARGUMENTS[name]
    return getattr(module, name)(*args, **kwargs)


def described(resolver: Any) -> tuple[Any, ...]:
    return (
        type(resolver),
        repr(resolver),
        resolver.timeout,
        resolver.task_type,
        resolver.task_id,
        resolver.rpc_layer,
        resolver.environment,
    )


def resolved(resolver: Any) -> Any:
    """Return the description of a blocking resolver, and its cluster."""
    with resolver:
        return *described(resolver), resolver.cluster_spec()


def all_copies(value: Any) -> list[Any]:
    return [make_copy(value) for make_copy in WAYS.values()]


NAMES = [*ARGUMENTS, "UnionClusterResolver"]
RESOLVED = [name for name in NAMES if name != "GCEClusterResolver"]


@pytest.mark.parametrize("name", NAMES)
async def test_copy_of_an_async_resolver_is_unopened_and_equal(name: str) -> None:
    resolver = new(aioresolve, name)
    unused = all_copies(resolver)
    async with resolver, AsyncExitStack() as stack:
        if name in RESOLVED:
            await resolver.cluster_spec()
        for each in [*unused, *all_copies(resolver)]:
            await stack.enter_async_context(each)  # an entered resolver cannot be entered again
            assert described(each) == described(resolver)
            if name in RESOLVED:
                assert await each.cluster_spec() == SPEC
        resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 7, "http"
        for each in all_copies(resolver):
            assert described(each) == described(resolver)


@pytest.mark.slow
def test_resolvers_reach_a_spawned_process() -> None:
    resolvers = [new(sync, name) for name in RESOLVED]
    expected = [resolved(resolver) for resolver in resolvers]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(resolved, resolvers) == expected


async def test_fleet_is_copied_with_its_current_targets() -> None:
    for module in (aioresolve, sync):
        fleet = module.Fleet({"a": new(module, "KubernetesClusterResolver")}, timeout=7.0, shard=(0, 1))
        fleet.add("b", new(module, "SimpleClusterResolver"))
        for copied in all_copies(fleet):
            assert (list(copied.targets), copied.timeout, copied.shard) == (["a", "b"], 7.0, (0, 1))
            copied.remove("a")
        assert list(fleet.targets) == ["a", "b"]


class Ranked(aioresolve.ClusterResolver):
    """A resolver of a user whose constructor sets attributes."""

    def __init__(self, path: str, *, timeout: float = 5.0) -> None:
        super().__init__(timeout=timeout)
        self.path = path
        self.task_type = "worker"
        self.task_id = int(os.environ["RANK"])
        self._generator = (line for line in path)  # cannot be pickled

    async def observe(self, want: Want, progress: Any) -> Observation:
        return Observation(
            ClusterState.from_spec(ClusterSpec({"worker": [f"{self.path}:1", f"{self.path}:2"]}))
        )


async def test_subclass_of_a_user_is_copied_without_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    resolver = Ranked("host", timeout=3.0)
    monkeypatch.setenv("RANK", "1")  # as in another process
    for copied in all_copies(resolver):
        assert (copied.path, copied.timeout, copied.task_id) == ("host", 3.0, 1)
        assert (await copied.this_task()).address == "host:2"
    resolver.task_id = 0
    for facade in all_copies(sync.ClusterResolver(resolver)):
        assert (facade.task_id, facade.cluster_spec().num_tasks("worker")) == (0, 2)


def test_argument_that_cannot_be_pickled_is_the_error() -> None:
    def address(pod: Any) -> str:
        return str(pod.ip)

    resolver = aioresolve.KubernetesClusterResolver(address=address)
    with pytest.raises((pickle.PicklingError, AttributeError), match=r"<locals>\.address"):
        pickle.dumps(resolver)
    assert repr(pickle.loads(cloudpickle.dumps(resolver))) == repr(resolver)


def test_later_changes_of_an_argument_are_not_copied() -> None:
    mapping = {"worker": ["app=a"]}
    resolver = aioresolve.KubernetesClusterResolver(mapping)
    mapping["worker"].append("app=b")
    assert repr(copy.deepcopy(resolver)) == repr(resolver)
