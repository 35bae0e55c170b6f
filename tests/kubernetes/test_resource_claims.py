"""The devices that pods get by Dynamic Resource Allocation, and the reports of unknown ones."""

from __future__ import annotations

import json
import logging
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import KubernetesClusterResolver, ProbeError
from aioresolve.kubernetes.api.objects import Added, Deleted, PodQuery
from aioresolve.kubernetes.tasks.accelerators import claims_of, declared_accelerators, device_counts
from aioresolve.kubernetes.tasks.resource_claims import VERSIONS, ResourceClaim, claimed_devices
from aioresolve.testing import Answer, Hang, pod, resource_claim

from . import samples
from .loopback import TRAIN, disable_retries
from .watched_cluster import new_cache

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve import ClusterState
    from aioresolve.kubernetes.tasks.pods import MatchedPod
    from aioresolve.testing import RequestRecord

    from .loopback import Loopback

GPU, MIG, TPU = "gpu.nvidia.com", "mig.nvidia.com", "tpu.google.com"
LIMIT = "nvidia.com/gpu"


def exactly(class_name: str, **fields: Any) -> dict[str, Any]:
    return {"name": "main", "exactly": {"deviceClassName": class_name, **fields}}


def device(driver: str, name: str, request: str = "main", **fields: Any) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": "node-a", "device": name, **fields}


def devices_of(
    *requests: dict[str, Any], results: list[dict[str, Any]] | None = None
) -> dict[str, int] | None:
    status = {} if results is None else {"allocation": {"devices": {"results": results}}}
    claim = {"metadata": {"name": "one"}, "spec": {"devices": {"requests": list(requests)}}, "status": status}
    return claimed_devices(msgspec.convert(claim, ResourceClaim))


# What a claim says


PARTS = {"name": "parts", "deviceClassName": MIG, "count": 2}
EITHER = {"name": "gpu", "firstAvailable": [{"name": "whole", "deviceClassName": GPU, "count": 1}, PARTS]}


def test_allocated_devices_are_counted_one_by_one() -> None:
    everything = exactly(TPU, allocationMode="All")
    assert devices_of(everything, results=[device(TPU, f"chip-{n}") for n in range(4)]) == {TPU: 4}
    # A class of the administrator has the name of its driver.
    large = exactly("large-gpu", count=2)
    assert devices_of(large, results=[device(GPU, "gpu-0"), device(GPU, "gpu-1")]) == {GPU: 2}
    # Parts of a GPU have the name of their class.
    assert devices_of(exactly(MIG), results=[device(GPU, "gpu-0-mig-1g10gb-0")]) == {MIG: 1}
    # The alternative that was allocated.
    parts = [device(GPU, f"mig-{n}", "gpu/parts") for n in range(2)]
    assert devices_of(EITHER, results=parts) == {MIG: 2}
    # Shares of one device are one device.
    shares = [device(GPU, "gpu-0", shareID="a"), device(GPU, "gpu-0", "other", shareID="b")]
    assert devices_of(exactly(GPU), results=shares) == {GPU: 1}


def test_devices_for_monitoring_and_other_kinds_of_devices_do_not_count() -> None:
    results = [
        device(GPU, "gpu-0"),
        device(GPU, "gpu-1", adminAccess=True),
        device("compute-domain.nvidia.com", "channel-0", "channel"),
        device("dra.net", "eth1", "network"),
    ]
    assert devices_of(exactly(GPU), results=results) == {GPU: 1}


def test_claim_that_is_not_allocated_has_the_number_that_it_requests() -> None:
    assert devices_of(exactly(GPU)) == {GPU: 1}
    assert devices_of(exactly(GPU, allocationMode="ExactCount", count=8)) == {GPU: 8}
    assert devices_of({"name": "v1beta1", "deviceClassName": GPU, "count": 4}) == {GPU: 4}
    assert devices_of(exactly(GPU, count=999_999)) == {GPU: 999_999}
    monitoring, network = exactly(GPU, adminAccess=True), exactly("dra.net", count=2)
    assert devices_of(monitoring) == devices_of(network) == {}
    several = monitoring, exactly(GPU, count=2), network, exactly(GPU), exactly(TPU)
    assert devices_of(*several) == {GPU: 3, TPU: 1}


def test_number_of_a_claim_that_is_not_allocated_may_be_unknown() -> None:
    for fields in ({"allocationMode": "All"}, {"allocationMode": "Later"}):
        assert devices_of(exactly(GPU, **fields)) is None
    assert devices_of(EITHER) is None


def test_claims_of_a_pod_are_named_by_it_or_made_from_templates() -> None:
    named = [
        {"name": "shared", "resourceClaimName": "all-gpus"},
        {"name": "own", "resourceClaimTemplateName": "one-gpu"},
        {"name": "again", "resourceClaimName": "all-gpus"},
        {"name": "none", "resourceClaimTemplateName": "not-needed"},
    ]
    statuses = [{"name": "own", "resourceClaimName": "train-0-own-x2k4f"}, {"name": "none"}]
    one = samples.pod(spec={"resourceClaims": named}, status={"resourceClaimStatuses": statuses})
    assert claims_of(one) == ("all-gpus", "train-0-own-x2k4f")
    assert claims_of(samples.pod()) == ()


def test_devices_of_extended_resources_are_counted_by_their_limits_only() -> None:
    limits = {
        LIMIT: "2",
        f"deviceclass.resource.kubernetes.io/{TPU}": "4",
        "deviceclass.resource.kubernetes.io/x": "1",
    }
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "train-0-extended-resources-x2k4f"}}
    one = samples.pod(spec={"containers": [{"resources": {"limits": limits}}]}, status=status)
    assert claims_of(one) == ()
    declared = declared_accelerators(one)
    assert declared is not None
    assert device_counts(declared) == {"GPU": 2, "TPU": 4}


def test_classes_and_drivers_have_types() -> None:
    assert device_counts({GPU: 1, MIG: 2, TPU: 4, "neuron.aws.com": 8}) == {"GPU": 3, "TPU": 4, "NEURON": 8}


# Over real sockets


def of_claims(request: RequestRecord) -> bool:
    return "/resourceclaims" in request.path


def claim_requests(loopback: Loopback) -> list[str]:
    """Return the requests for claims: their paths, with the name after `?` if it is for one claim."""
    requests = [request for request in loopback.requests if of_claims(request)]
    return [
        each.path + each.query.get("fieldSelector", "").replace("metadata.name=", "?") for each in requests
    ]


LIST = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaims"


def train(loopback: Loopback, *numbers: int, claims: int = 4, **more: Any) -> None:
    """Add pods `train-N` with one claim `gpus-N` each."""
    for number in numbers:
        loopback.server.add(resource_claim(f"gpus-{number}", "ml", devices=claims))
        loopback.train(f"train-{number}", resource_claims=[f"gpus-{number}"], **more)


def accelerators(state: ClusterState | None) -> list[dict[str, int] | None]:
    assert state is not None
    endpoints = state.endpoints["worker"]
    return [None if each.accelerators is None else dict(each.accelerators) for each in endpoints]


async def test_state_wait_and_watch_have_the_devices_of_claims(loopback: Loopback) -> None:
    train(loopback, 0, 1)
    resolver = loopback.resolver()
    expected = [{GPU: 4}, {GPU: 4}]
    assert accelerators(await resolver.cluster_state()) == expected
    assert claim_requests(loopback) == [LIST]
    assert accelerators(await resolver.wait(2)) == expected
    async with aclosing(resolver.watch()) as states:
        assert accelerators(await anext(states)) == expected


async def test_addresses_and_pods_without_claims_need_no_request(loopback: Loopback) -> None:
    loopback.server.add(resource_claim("of-others", "ml"))
    loopback.train("train-0")
    await loopback.resolver().cluster_state()
    train(loopback, 0)
    await loopback.resolver().cluster_spec()
    await loopback.resolver(order_by="label:app").cluster_spec()
    assert claim_requests(loopback) == []


async def test_limits_and_claims_add_up(loopback: Loopback) -> None:
    loopback.server.add(resource_claim("one", "ml"), resource_claim("two", "ml", driver=TPU, devices=2))
    both = pod("train-0", "ml", labels=TRAIN, resource_claims=["one", "two"])
    both["spec"]["containers"][0]["resources"] = {"limits": {LIMIT: "8"}}
    loopback.server.add(both)
    assert accelerators(await loopback.resolver().cluster_state()) == [{LIMIT: 8, GPU: 1, TPU: 2}]
    # A shared claim counts for each of its pods.
    loopback.train("train-1", resource_claims=["two"])
    assert accelerators(await loopback.resolver().cluster_state()) == [{LIMIT: 8, GPU: 1, TPU: 2}, {TPU: 2}]


async def test_claims_are_listed_once_in_each_namespace(loopback: Loopback) -> None:
    train(loopback, 0, 1)
    for number in range(2):
        loopback.server.add(resource_claim(f"gpus-{number}", "other", devices=1))
        loopback.train(f"train-{number}", namespace="other", resource_claims=[f"gpus-{number}"])
    state = await loopback.resolver().cluster_state()
    assert [each.accelerators for each in state.endpoints["worker"]] == [{GPU: 4}, {GPU: 1}] * 2
    assert sorted(claim_requests(loopback)) == [LIST, LIST.replace("/ml/", "/other/")]


async def test_watch_reads_the_claims_of_new_pods_only(loopback: Loopback) -> None:
    train(loopback, *range(20))
    async with aclosing(loopback.resolver().observations()) as observations:
        assert accelerators((await anext(observations)).state) == [{GPU: 4}] * 20
        train(loopback, 20, claims=2)
        state = (await anext(observations)).state
        assert accelerators(state) == [*([{GPU: 4}] * 20), {GPU: 2}]
        loopback.server.patch("train-0", "ml", patch={"metadata": {"labels": {"changed": "yes"}}})
        loopback.server.patch("train-1", "ml", patch={"spec": {"nodeName": "node-z"}})
        state = (await anext(observations)).state
        assert accelerators(state) == [*([{GPU: 4}] * 20), {GPU: 2}]
    assert claim_requests(loopback) == [LIST, f"{LIST}?gpus-20"]


async def test_pod_that_replaces_another_one_gets_its_own_devices(loopback: Loopback) -> None:
    train(loopback, 0)
    async with aclosing(loopback.resolver().watch()) as states:
        assert accelerators(await anext(states)) == [{GPU: 4}]
        loopback.server.delete("train-0", "ml")
        assert accelerators(await anext(states)) == []
        train(loopback, 0, claims=1)
        assert accelerators(await anext(states)) == [{GPU: 1}]


async def test_job_of_two_overlapping_selectors_agrees_in_watch_and_state(loopback: Loopback) -> None:
    train(loopback, 0)
    resolver = loopback.resolver({"worker": ["app=train", "app"]})
    expected = [{GPU: 4}, {GPU: 4}]
    assert accelerators(await resolver.cluster_state()) == expected
    async with aclosing(resolver.watch()) as states:
        assert accelerators(await anext(states)) == expected
        train(loopback, 1)
        # The watches of the two selectors report the pod one after the other.
        while len(found := accelerators(await anext(states))) < 4:
            pass
        assert found == [{GPU: 4}] * 4


# Claims that cannot be read


async def test_user_without_the_right_to_list_claims_gets_the_state_without_them(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    train(loopback, 0)
    limits = {"containers": [{"name": "main", "resources": {"limits": {LIMIT: "8"}}}]}
    loopback.server.patch("train-0", "ml", patch={"spec": limits})
    loopback.server.resources = {"alice": ["pods"]}
    with caplog.at_level(logging.INFO, "aioresolve.kubernetes"):
        state = await loopback.resolver().cluster_state()
    assert accelerators(state) == [{LIMIT: 8}]
    assert "'ml' are not known: user 'alice' may not list resourceclaims in namespace 'ml'" in caplog.text
    assert accelerators(await loopback.resolver().wait(1)) == [{LIMIT: 8}]
    async with aclosing(loopback.resolver().watch()) as states:
        assert accelerators(await anext(states)) == [{LIMIT: 8}]


@pytest.mark.parametrize("version", VERSIONS)
async def test_older_versions_of_the_api_are_tried(loopback: Loopback, version: str) -> None:
    train(loopback, 0, 1)
    claims = [
        {"metadata": {"name": f"gpus-{number}"}, "spec": {"devices": {"requests": [exactly(GPU, count=2)]}}}
        for number in range(2)
    ]
    body = json.dumps({"kind": "ResourceClaimList", "metadata": {}, "items": claims}).encode()

    def of_version(version: str) -> Callable[[RequestRecord], bool]:
        return lambda request: f"/resource.k8s.io/{version}/" in request.path

    for each in VERSIONS:
        fault = Answer(200, body=body) if each == version else Answer(404)
        loopback.server.inject(fault, times=None, match=of_version(each))
    async with loopback.resolver() as resolver:
        assert accelerators(await resolver.cluster_state()) == [{GPU: 2}] * 2
        number = len(claim_requests(loopback))
        assert number == 1 + VERSIONS.index(version)
        await resolver.cluster_state()
        assert len(claim_requests(loopback)) == number + 1


async def test_server_that_gets_the_api_later_gets_a_request_for_the_newest_version_again(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    train(loopback, 0)
    loopback.server.inject(Answer(404), times=len(VERSIONS), match=of_claims)
    with caplog.at_level(logging.INFO, "aioresolve.kubernetes"):
        async with loopback.resolver() as resolver:
            assert accelerators(await resolver.cluster_state()) == [None]
            assert accelerators(await resolver.cluster_state()) == [{GPU: 4}]
    assert "has none of the versions v1, v1beta2, v1beta1 of resource.k8s.io" in caplog.text
    assert claim_requests(loopback)[len(VERSIONS) :] == [f"{LIST}?gpus-0"]


@pytest.mark.parametrize("fault", [Hang(), Answer(503), Answer(200, body=b'{"kind":"PodList"}')])
async def test_claims_that_cannot_be_read_in_time_are_given_up(
    loopback: Loopback, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.tasks.resource_claims.READ_TIMEOUT", 0.1)
    disable_retries(monkeypatch)
    train(loopback, 0)
    loopback.server.inject(fault, times=None, match=of_claims)
    assert accelerators(await loopback.resolver().cluster_state()) == [None]
    loopback.server.clear_faults()
    assert accelerators(await loopback.resolver().cluster_state()) == [{GPU: 4}]


@pytest.mark.slow
async def test_claims_are_read_again_for_at_most_half_of_the_time_that_the_call_has_left(
    loopback: Loopback,
) -> None:
    train(loopback, 0)
    loopback.server.inject(Answer(503), match=of_claims)
    assert accelerators(await loopback.resolver().cluster_state()) == [{GPU: 4}]
    loopback.server.inject(Hang(), times=None, match=of_claims)
    assert accelerators(await loopback.resolver(timeout=4.0).cluster_state()) == [None]


@pytest.mark.parametrize("state", ["does not exist", "is not allocated"])
async def test_claim_without_devices_is_explained(
    loopback: Loopback, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    train(loopback, 0)
    if state == "does not exist":
        loopback.server.delete("gpus-0", "ml", kind="ResourceClaim")
    else:
        everything = resource_claim("gpus-0", "ml")
        everything["spec"]["devices"]["requests"][0]["exactly"]["allocationMode"] = "All"
        loopback.server.add({**everything, "status": {}})
    with caplog.at_level(logging.INFO, "aioresolve.kubernetes"):
        assert accelerators(await loopback.resolver().cluster_state()) == [None]
    assert f"ResourceClaim ml/gpus-0 {state}" in caplog.text


# What uses the devices


def unreachable(loopback: Loopback) -> KubernetesClusterResolver:
    """Return a resolver of two pods on this host; no program listens on their port."""
    train(loopback, 0, 1, ip="127.0.0.1")
    return KubernetesClusterResolver({"worker": "app=train"}, 1, kubeconfig=loopback.kubeconfig)


async def test_error_of_num_accelerators_says_why_claims_are_not_known(loopback: Loopback) -> None:
    resolver = unreachable(loopback)
    assert await resolver.num_accelerators() == {"GPU": 4}
    loopback.server.resources = {"alice": ["pods"]}
    with pytest.raises(ProbeError) as caught:
        await resolver.num_accelerators()
    assert caught.value.code == "refused"
    assert "/job:worker/task:0 declares none: ResourceClaims were not read (user 'alice' may not list" in str(
        caught.value
    )


# Properties

QUERIES = [PodQuery("a=1", "ml"), PodQuery("b=1", "ml")]

CHANGES = st.tuples(
    st.sampled_from(["x", "y"]),
    st.sampled_from(["Running", "Running", "Pending", "replaced", "deleted"]),
    st.sets(st.sampled_from("ab"), min_size=1),
    st.booleans(),  # whether the claims are read after it
)


def count(pod: MatchedPod) -> MatchedPod:
    """Return a member with as many devices as its uid says."""
    assert pod.endpoint is not None
    endpoint = replace(pod.endpoint, accelerators={GPU: int(pod.uid)})
    return msgspec.structs.replace(pod, endpoint=endpoint, claims=())


@given(st.lists(CHANGES, max_size=15))
def test_members_have_the_devices_of_their_own_claims(
    changes: list[tuple[str, str, set[str], bool]],
) -> None:
    cache = new_cache({"worker": [[query] for query in QUERIES]})
    for query in QUERIES:
        cache.replace(query, [], "1")
    uids = {"x": 1, "y": 2}
    for version, (name, change, labels, is_read) in enumerate(changes, 2):
        if change == "replaced":
            uids[name] = 2 * version
        metadata: dict[str, Any] = {"uid": str(uids[name]), "resourceVersion": str(version)}
        metadata |= {"labels": dict.fromkeys(sorted(labels), "1")}
        if change == "deleted":
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        one = samples.pod(
            name,
            phase="Pending" if change == "Pending" else "Running",
            metadata=metadata,
            spec={"resourceClaims": [{"name": "gpus", "resourceClaimName": "some"}]},
        )
        for query in QUERIES:
            matches = query.selector[0] in labels and change != "deleted"
            cache.apply(query, [Added(one) if matches else Deleted(one)])
        if is_read:
            cache.set_devices([count(each) for each in cache.with_claims])
    cache.set_devices([count(each) for each in cache.with_claims])
    assert cache.with_claims == []
    for endpoint in cache.state(datetime.now(UTC)).endpoints["worker"]:
        assert endpoint.uid is not None
        assert endpoint.accelerators == {GPU: int(endpoint.uid)}
