"""A resolver is its arguments: copies of subclasses and fleets; `tests/contract` copies each class."""

import copy
import multiprocessing
import os
import pickle
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import aioresolve
from aioresolve import ClusterSpec, ClusterState, Observation, Want, sync
from aioresolve.testing import KubernetesServer, pod

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
}

SPEC = ClusterSpec({"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]})


def all_copies(value: Any) -> list[Any]:
    return [make_copy(value) for make_copy in WAYS.values()]


def resolved(resolver: Any) -> Any:
    return repr(resolver), resolver.timeout, resolver.task_id, resolver.cluster_spec()


@pytest.mark.slow
def test_resolver_that_was_used_reaches_a_spawned_process() -> None:
    with sync.SimpleClusterResolver(SPEC, "m:1", "worker", 1, timeout=7.0) as resolver:
        expected = resolved(resolver)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(resolved, (resolver,)) == expected


async def test_fleet_is_copied_with_its_current_targets() -> None:
    resolver = aioresolve.SimpleClusterResolver(SPEC)
    fleet = aioresolve.Fleet({"a": resolver}, timeout=7.0, shard=(0, 1))
    fleet.add("b", aioresolve.UnionClusterResolver(resolver), expected=9)
    for copied in all_copies(fleet):
        assert (list(copied.targets), copied.timeout, copied.shard) == (["a", "b"], 7.0, (0, 1))
        statuses = await copied.resolve()
        assert [status.num_wanted for status in statuses.values()] == [SPEC.num_tasks("worker"), 9]
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
    resolver.task_id, resolver.rpc_layer = 0, "grpcs"
    for facade in all_copies(sync.ClusterResolver(resolver)):
        assert (facade.task_id, facade.cluster_spec().num_tasks("worker")) == (0, 2)
        assert facade.rpc_layer == "grpcs"


@pytest.fixture
async def kubeconfig(tmp_path: Path) -> AsyncIterator[Path]:
    """The kubeconfig of a server with a pod for each of the labels `app=a` and `app=b`."""
    pods = [pod(app, ip=f"10.0.0.{number}", labels={"app": app}) for number, app in enumerate("ab", 1)]
    async with KubernetesServer(pods) as server:
        yield server.write_kubeconfig(tmp_path / "kubeconfig")


async def test_cloudpickle_copies_a_local_function(kubeconfig: Path) -> None:
    resolver = aioresolve.KubernetesClusterResolver(
        {"worker": ["app"]}, kubeconfig=kubeconfig, address=lambda pod: f"{pod.metadata.name}.example"
    )
    copied = pickle.loads(cloudpickle.dumps(resolver))
    assert (await copied.cluster_spec()).job_tasks("worker") == ["a.example:8470", "b.example:8470"]


async def test_later_changes_of_an_argument_are_not_copied(kubeconfig: Path) -> None:
    mapping = {"worker": ["app=a"]}
    resolver = aioresolve.KubernetesClusterResolver(mapping, kubeconfig=kubeconfig)
    mapping["worker"].append("app=b")
    assert (await copy.deepcopy(resolver).cluster_spec()).job_tasks("worker") == ["10.0.0.1:8470"]
