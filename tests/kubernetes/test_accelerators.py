"""The accelerators of pods, in limits and ResourceClaims, and what `num_accelerators` derives from them."""

import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from aioresolve import ClusterState, Endpoint, KubernetesClusterResolver, ProbeError
from aioresolve.errors import APIError
from aioresolve.testing import Answer, RequestRecord, TPUWorker, pod, resource_claim

from . import samples
from .loopback import TRAIN, Loopback
from .watched_cluster import listed_cache, state

GPU, MIG, TPU = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "google.com/tpu"
DRA_GPU, DRA_TPU = "gpu.nvidia.com", "tpu.google.com"


# Limits


def container(limits: Mapping[str, Any] | None = None, **more: str) -> dict[str, Any]:
    return {"name": "main", "resources": {} if limits is None else {"limits": dict(limits)}, **more}


def endpoint_of(spec: dict[str, Any]) -> Endpoint:
    (endpoint,) = state(listed_cache(samples.pod(spec=spec))).endpoints["worker"]
    return endpoint


def declared(*containers: dict[str, Any], init: tuple[dict[str, Any], ...] = ()) -> dict[str, int] | None:
    found = endpoint_of({"containers": list(containers), "initContainers": list(init)}).accelerators
    return None if found is None else dict(found)


def test_accelerators_are_the_limits_of_known_resources() -> None:
    for limits in ({TPU: 4}, {GPU: 1, MIG: 2}, {"amd.com/gpu": 8, "habana.ai/gaudi": 8}, {GPU: 999_999}):
        assert declared(container({name: str(limit) for name, limit in limits.items()})) == limits
    assert declared(container({TPU: 4, "cpu": "8", "memory": "16Gi"})) == {TPU: 4}
    for others in ({"nvidia.com/gpumem": "3000", "cpu": "1"}, {GPU: "0"}, {}, None):
        assert declared(container(others)) is None


def test_containers_and_sidecars_add_up() -> None:
    one, four = container({GPU: "1"}), container({GPU: "4"})
    sidecar = container({GPU: "2"}, restartPolicy="Always")
    assert declared(one, four, container()) == {GPU: 5}
    assert declared(one, init=(sidecar, four)) == {GPU: 3}
    assert declared(container(), init=(four,)) is None


# ResourceClaims


def of_claims(request: RequestRecord) -> bool:
    return "/resourceclaims" in request.path


def claim_requests(loopback: Loopback) -> list[str]:
    """Return the paths of the requests for claims."""
    return [request.path for request in loopback.requests if of_claims(request)]


LIST = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims"


def train(loopback: Loopback, *numbers: int, claims: int = 4, **more: Any) -> None:
    """Add pods `train-N` with one claim `gpus-N` each."""
    for number in numbers:
        loopback.server.add(resource_claim(f"gpus-{number}", "ml", devices=claims))
        loopback.add_trainers(f"train-{number}", resource_claims=[f"gpus-{number}"], **more)


def accelerators(state: ClusterState | None) -> list[dict[str, int] | None]:
    assert state is not None
    endpoints = state.endpoints["worker"]
    return [None if each.accelerators is None else dict(each.accelerators) for each in endpoints]


def device(driver: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"request": "main", "driver": driver, "pool": "node-a", "device": name, **fields}


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([device(DRA_TPU, f"chip-{n}") for n in range(4)], {DRA_TPU: 4}),
        # Shares of one device are one device.
        ([device(DRA_GPU, "gpu-0", shareID=each) for each in "ab"], {DRA_GPU: 1}),
        # Devices for monitoring and other kinds of devices do not count.
        (
            [
                device(DRA_GPU, "gpu-0"),
                device(DRA_GPU, "gpu-1", adminAccess=True),
                device("compute-domain.nvidia.com", "channel-0"),
                device("dra.net", "eth1"),
            ],
            {DRA_GPU: 1},
        ),
        ([{"driver": 7}], None),
    ],
)
async def test_allocated_devices_are_counted_one_by_one(
    loopback: Loopback, results: list[Any], expected: dict[str, int] | None
) -> None:
    claim = resource_claim("one", "ml")
    claim["status"]["allocation"]["devices"]["results"] = results
    loopback.server.add(claim)
    loopback.add_trainers("train-0", resource_claims=["one"])
    assert accelerators(await loopback.resolver().cluster_state()) == [expected]


async def test_claims_of_a_pod_are_named_by_it_or_made_from_templates(loopback: Loopback) -> None:
    for number, name in enumerate(["all-gpus", "train-0-own-x2k4f", "train-0-extended-resources-x2k4f"]):
        loopback.server.add(resource_claim(name, "ml", devices=10**number))
    one = pod("train-0", "ml", labels=TRAIN)
    one["spec"]["containers"][0]["resources"] = {"limits": {GPU: "8"}}
    one["spec"]["resourceClaims"] = [
        {"name": "shared", "resourceClaimName": "all-gpus"},
        {"name": "own", "resourceClaimTemplateName": "one-gpu"},
        {"name": "again", "resourceClaimName": "all-gpus"},
        {"name": "none", "resourceClaimTemplateName": "not-needed"},
    ]
    one["status"]["resourceClaimStatuses"] = [
        {"name": "own", "resourceClaimName": "train-0-own-x2k4f"},
        {"name": "none"},
    ]
    # Its devices are in the limits.
    one["status"]["extendedResourceClaimStatus"] = {"resourceClaimName": "train-0-extended-resources-x2k4f"}
    loopback.server.add(one)
    assert accelerators(await loopback.resolver().cluster_state()) == [{GPU: 8, DRA_GPU: 11}]
    # A shared claim counts for each of its pods.
    loopback.add_trainers("train-1", resource_claims=["all-gpus"])
    assert accelerators(await loopback.resolver().cluster_state()) == [{GPU: 8, DRA_GPU: 11}, {DRA_GPU: 1}]


async def test_claims_are_listed_once_in_each_namespace_for_states_wait_and_watch(loopback: Loopback) -> None:
    train(loopback, 0, 1)
    for number in range(2):
        loopback.server.add(resource_claim(f"gpus-{number}", "other", devices=1))
        loopback.add_trainers(f"train-{number}", namespace="other", resource_claims=[f"gpus-{number}"])
    expected = [{DRA_GPU: 4}, {DRA_GPU: 1}] * 2
    resolver = loopback.resolver()
    assert accelerators(await resolver.cluster_state()) == expected
    assert sorted(claim_requests(loopback)) == [LIST, LIST.replace("/ml/", "/other/")]
    assert accelerators(await resolver.wait(4)) == expected
    async with aclosing(resolver.watch()) as states:
        assert accelerators(await anext(states)) == expected


async def test_addresses_and_pods_without_claims_need_no_request(loopback: Loopback) -> None:
    loopback.server.add(resource_claim("of-others", "ml"))
    loopback.add_trainers("train-0")
    await loopback.resolver().cluster_state()
    train(loopback, 0)
    await loopback.resolver().cluster_spec()
    await loopback.resolver(order_by="label:app").cluster_spec()
    assert claim_requests(loopback) == []


async def test_watch_reads_the_claims_of_new_pods_only(loopback: Loopback) -> None:
    train(loopback, *range(20))
    async with aclosing(loopback.resolver().observations()) as observations:
        assert accelerators((await anext(observations)).state) == [{DRA_GPU: 4}] * 20
        train(loopback, 20, claims=2)
        expected = [*([{DRA_GPU: 4}] * 20), {DRA_GPU: 2}]
        assert accelerators((await anext(observations)).state) == expected
        loopback.server.patch("train-0", "ml", patch={"metadata": {"labels": {"changed": "yes"}}})
        loopback.server.patch("train-1", "ml", patch={"spec": {"nodeName": "node-z"}})
        assert accelerators((await anext(observations)).state) == expected
    assert claim_requests(loopback) == [LIST, LIST]


# Claims that cannot be read


async def test_user_without_the_right_to_list_claims_gets_the_state_without_them(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    train(loopback, 0)
    limits = {"containers": [{"name": "main", "resources": {"limits": {GPU: "8"}}}]}
    loopback.server.patch("train-0", "ml", patch={"spec": limits})
    loopback.server.resources = {"alice": ["pods"]}
    with caplog.at_level(logging.INFO, "aioresolve.kubernetes"):
        assert accelerators(await loopback.resolver().cluster_state()) == [{GPU: 8}]
    assert "'ml' are not known: user 'alice' may not list resourceclaims in namespace 'ml'" in caplog.text
    async with aclosing(loopback.resolver().watch()) as states:
        assert accelerators(await anext(states)) == [{GPU: 8}]


async def test_server_without_claims_returns_the_state_without_devices(loopback: Loopback) -> None:
    train(loopback, 0)
    for fault in (Answer(404), Answer(200, body=b'{"kind":"PodList"}')):
        loopback.server.inject(fault, match=of_claims)
        assert accelerators(await loopback.resolver().cluster_state()) == [None]
    loopback.server.inject(Answer(503), match=of_claims)
    assert accelerators(await loopback.resolver().cluster_state()) == [{DRA_GPU: 4}]
    loopback.server.inject(Answer(503, headers={"Retry-After": "3600"}), match=of_claims)
    with pytest.raises(APIError, match="503 for the ResourceClaims in namespace 'ml'"):
        await loopback.resolver().cluster_state()


async def test_claim_without_devices_adds_none(loopback: Loopback) -> None:
    train(loopback, 0)
    loopback.server.add({**resource_claim("gpus-0", "ml"), "status": {}})
    assert accelerators(await loopback.resolver().cluster_state()) == [None]
    loopback.server.delete("gpus-0", "ml", kind="ResourceClaim")
    assert accelerators(await loopback.resolver().cluster_state()) == [None]


# What uses the devices


def unreachable(loopback: Loopback, port: int = 1) -> KubernetesClusterResolver:
    """Return a resolver of pods on this host; no program listens on their port."""
    return KubernetesClusterResolver({"worker": "app=train"}, port, kubeconfig=loopback.kubeconfig)


def limit(loopback: Loopback, *limits: Mapping[str, str]) -> None:
    for number, each in enumerate(limits):
        one = pod(f"train-{number}", "ml", labels=TRAIN, ip="127.0.0.1")
        one["spec"]["containers"][0]["resources"] = {"limits": dict(each)}
        loopback.server.add(one)


async def test_declared_accelerators_are_used_if_no_worker_can_be_probed(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    every = {GPU: "1", MIG: "2", TPU: "4", "aws.amazon.com/neuron": "8"}
    limit(loopback, every, every)
    counts = {"GPU": 3, "TPU": 4, "NEURON": 8}
    with caplog.at_level(logging.INFO, "aioresolve.probe"):
        assert await unreachable(loopback).num_accelerators() == counts
        assert await unreachable(loopback).num_accelerators("worker", 1) == counts
    assert "is what its tasks declare, because no worker can be probed: {" in caplog.text
    async with TPUWorker(faults=[Answer(body=b"")]) as worker:
        with pytest.raises(ProbeError, match="returned no devices"):
            await unreachable(loopback, worker.port).num_accelerators()


@pytest.mark.parametrize("limits", [({GPU: "8"}, {GPU: "4"}), ({GPU: "8"}, {}), ({}, {})])
async def test_pods_that_declare_different_accelerators_or_none_must_be_probed(
    loopback: Loopback, limits: tuple[dict[str, str], ...]
) -> None:
    limit(loopback, *limits)
    with pytest.raises(ProbeError) as caught:
        await unreachable(loopback).num_accelerators()
    assert caught.value.code == "refused"


async def test_error_of_num_accelerators_says_why_claims_are_not_known(loopback: Loopback) -> None:
    train(loopback, 0, 1, ip="127.0.0.1")
    assert await unreachable(loopback).num_accelerators() == {"GPU": 4}
    loopback.server.resources = {"alice": ["pods"]}
    with pytest.raises(ProbeError) as caught:
        await unreachable(loopback).num_accelerators()
    assert caught.value.code == "refused"
    message = "/job:worker/task:0 declares none: ResourceClaims were not read (user 'alice' may not list"
    assert message in str(caught.value)
