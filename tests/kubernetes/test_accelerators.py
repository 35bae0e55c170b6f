"""The accelerators that pods declare, and what `num_accelerators` returns if no worker can be probed."""

from __future__ import annotations

import logging
import pickle
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve import KubernetesClusterResolver, ProbeError
from aioresolve.kubernetes.tasks.accelerators import declared_accelerators, device_counts
from aioresolve.spec import Endpoint
from aioresolve.testing import KubernetesServer, pod

from . import samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from .loopback import Loopback


def container(limits: Mapping[str, Any] | None = None, **more: str) -> dict[str, Any]:
    return {"name": "main", "resources": {} if limits is None else {"limits": dict(limits)}, **more}


def declared(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, int] | None:
    spec = {"containers": list(containers), "initContainers": list(init)}
    found = declared_accelerators(samples.pod(spec=spec))
    return None if found is None else dict(found)


GPU, MIG, TPU = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "google.com/tpu"


def test_accelerators_are_the_limits_of_known_resources() -> None:
    for limits in (
        {TPU: 4},
        {GPU: 1, MIG: 2},
        {"amd.com/gpu": 8},
        {"aws.amazon.com/neuron": 16},
        {"habana.ai/gaudi": 8},
        {GPU: 999_999},
    ):
        assert declared(container({**{name: str(limit) for name, limit in limits.items()}})) == limits
    assert declared(container({TPU: 4, "cpu": "8", "memory": "16Gi"})) == {TPU: 4}
    for others in ({"nvidia.com/gpumem": "3000", "cpu": "1"}, {}, None):
        assert declared(container(others)) is None


def test_containers_add_up_and_init_containers_run_before_them() -> None:
    one, four = container({GPU: "1"}), container({GPU: "4"})
    sidecar = container({GPU: "2"}, restartPolicy="Always")
    assert declared(one, four, container()) == {GPU: 5}
    assert declared(one, init=(four,)) == {GPU: 4}
    assert declared(one, four, init=(one,)) == {GPU: 5}
    assert declared(one, init=(sidecar,)) == {GPU: 3}
    assert declared(one, init=(sidecar, four)) == {GPU: 6}
    assert declared(one, init=(four, sidecar)) == {GPU: 4}
    assert declared(container(), init=(four,)) == {GPU: 4}


def test_resources_are_counted_by_device_type() -> None:
    assert device_counts({GPU: 1, MIG: 2, TPU: 4}) == {"GPU": 3, "TPU": 4}


def test_accelerators_of_an_endpoint_are_read_only_and_do_not_change_its_identity() -> None:
    found = declared_accelerators(samples.pod(spec={"containers": [container({GPU: "8"})]}))
    endpoint = Endpoint("10.0.0.1:8470", accelerators=found)
    copy = pickle.loads(pickle.dumps(endpoint))
    assert copy == endpoint == Endpoint("10.0.0.1:8470")
    assert hash(copy) == hash(endpoint)
    assert copy.accelerators == {GPU: 8}
    assert "nvidia" not in repr(endpoint)
    with pytest.raises(TypeError):
        endpoint.accelerators[GPU] = 0  # type: ignore[index]


# Over real sockets


async def test_state_and_watch_have_the_accelerators_of_each_pod(loopback: Loopback) -> None:
    loopback.train("train-0")
    (endpoint,) = (await loopback.resolver().cluster_state()).endpoints["worker"]
    assert endpoint.accelerators == {TPU: 4}
    observations = loopback.resolver().observations()
    state = (await anext(observations)).state
    await observations.aclose()
    assert state is not None
    assert state.endpoints["worker"][0].accelerators == {TPU: 4}


@contextmanager
def server_of(folder: Path, *limits: Mapping[str, str]) -> Iterator[KubernetesClusterResolver]:
    """Yield a resolver of pods on this host with these limits; no program listens on their port."""
    pods = []
    for number, each in enumerate(limits):
        one = pod(f"train-{number}", labels={"app": "train"}, ip="127.0.0.1")
        one["spec"]["containers"][0]["resources"] = {"limits": dict(each)}
        pods.append(one)
    with KubernetesServer(pods).in_thread() as server:
        server.write_kubeconfig(folder / "config")
        yield KubernetesClusterResolver({"worker": "app=train"}, 1, kubeconfig=folder / "config")


async def test_declared_accelerators_are_used_if_no_worker_can_be_probed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        server_of(tmp_path, {GPU: "8"}, {GPU: "8"}) as resolver,
        caplog.at_level(logging.INFO, "aioresolve.probe"),
    ):
        assert await resolver.num_accelerators() == {"GPU": 8}
        assert await resolver.num_accelerators("worker", 1) == {"GPU": 8}
    assert "is what its tasks declare, because no worker can be probed: {'GPU': 8}" in caplog.text


@pytest.mark.parametrize("limits", [({GPU: "8"}, {GPU: "4"}), ({GPU: "8"}, {}), ({}, {})])
async def test_pods_that_declare_different_accelerators_or_none_must_be_probed(
    tmp_path: Path, limits: tuple[dict[str, str], ...]
) -> None:
    with server_of(tmp_path, *limits) as resolver, pytest.raises(ProbeError) as caught:
        await resolver.num_accelerators()
    assert caught.value.code == "refused"
