"""A selector, Service or namespace that matches nothing is explained by what exists in its place."""

import json
from typing import Any

import pytest

from aioresolve import (
    ClusterResolver,
    IncompleteClusterError,
    KubernetesClusterResolver,
    Progress,
    UnionClusterResolver,
    Want,
)
from aioresolve.testing import Answer, Hang, pod, service

from .loopback import Loopback


@pytest.fixture
def cluster(loopback: Loopback) -> Loopback:
    loopback.add_trainers("train-0", labels={"app": "train", "tier": "gpu"}, ip="10.0.0.1")
    loopback.add_trainers("web-0", "web-1", labels={"app": "web"})
    loopback.server.add(
        pod("ps-0", "other", labels={"app": "ps"}), service("train", "ml", selector={"app": "train"})
    )
    names = {"items": [{"metadata": {"name": name}} for name in ("ml", "other")]}
    loopback.server.inject(Answer(200, json.dumps(names).encode()), match=is_namespaces, times=None)
    return loopback


def is_namespaces(request: Any) -> bool:
    return bool(request.path == "/api/v1/namespaces")


async def reasons(resolver: ClusterResolver) -> list[str]:
    observation = await resolver._explain(await resolver.observe(Want(), Progress()))
    assert not any(one.tasks for one in observation.unmatched)
    return [one.reason.partition(" (kubeconfig ")[0] for one in observation.unmatched]


@pytest.mark.parametrize(
    ("selector", "namespace", "reason"),
    [
        ("app=trian", "ml", "no pod matches app=trian in namespace 'ml'; values of app there: train, web"),
        ("app in (a,b),tier", "ml", "values of app there: train, web"),
        ("tier,app=x", "ml", "values of app there: train, web"),
        ("aap=train", "ml", "labels there: app, tier"),
        ("app=web,tier=gpu", "ml", "it excludes the 3 pods there, or they are being deleted or have ended"),
        ("app=ps", "ml", "it matches pods in namespace other"),
        ("app=train", "mll", "no pod matches app=train in namespace 'mll'; it matches pods in namespace ml"),
        ("app=x", "mll", "that namespace does not exist; namespaces: ml, other"),
        (
            "app=trian",
            None,
            "no pod matches app=trian in all namespaces; values of app there: ps, train, web",
        ),
    ],
)
async def test_selector_that_matches_nothing(
    cluster: Loopback, selector: str, namespace: str | None, reason: str
) -> None:
    resolver = cluster.resolver({"worker": selector}, namespace=namespace)
    (found,) = await reasons(resolver)
    assert found.endswith(reason)
    assert await reasons(UnionClusterResolver(resolver)) == [found]


@pytest.mark.parametrize(
    ("name", "namespace", "reason"),
    [
        ("trian", "ml", "no endpoint belongs to Service trian in {}; Services there: idle, train"),
        ("train", "other", "no endpoint belongs to Service train in {}; there is one in namespace ml"),
        ("idle", "ml", "Service idle in {} has no endpoints: check that its selector matches pods"),
    ],
)
async def test_service_without_endpoints(cluster: Loopback, name: str, namespace: str, reason: str) -> None:
    cluster.server.add(service("idle", "ml", selector={"app": "nothing"}))
    resolver = KubernetesClusterResolver(kubeconfig=cluster.kubeconfig, service=name, namespace=namespace)
    (found,) = await reasons(resolver)
    assert found.partition(", and that")[0] == reason.format(f"namespace {namespace!r}")


async def test_namespace_without_pods_and_those_that_have_some(cluster: Loopback) -> None:
    cluster.server.delete("ps-0", "other")
    (found,) = await reasons(cluster.resolver({"worker": "app=x"}, namespace="other"))
    assert found.endswith("there are no pods; namespaces: ml, other")
    cluster.server.add(*(pod("a", namespace, labels={"app": "a"}) for namespace in ("one", "two")))
    (found,) = await reasons(cluster.resolver({"worker": "app=a"}, namespace="ml"))
    assert found.endswith("it matches pods in namespaces one, two")
    cluster.server.clear_faults()  # the namespaces cannot be listed
    (found,) = await reasons(cluster.resolver({"worker": "app=x"}, namespace="other"))
    assert found == "no pod matches app=x in namespace 'other'; there are no pods"


@pytest.mark.parametrize("namespace", ["ml", None])
async def test_pods_that_match_but_are_no_members_are_named(cluster: Loopback, namespace: str | None) -> None:
    cluster.add_trainers("old-0", "old-1", labels={"app": "old", "out": ""}, deleting=True)
    (found,) = await reasons(cluster.resolver({"worker": "app=old,out"}, namespace=namespace))
    assert found.startswith("all pods that match app=old,out in ")
    assert found.endswith("have ended or are being deleted: old-0, old-1")


async def test_own_namespace_is_not_named_as_another_one(cluster: Loopback) -> None:
    cluster.add_trainers("old-0", labels={"app": "old"}, deleting=True)
    (found,) = await reasons(cluster.resolver({"worker": "app=old,tier!=gpu"}, namespace="ml"))
    assert found.endswith("it excludes the 4 pods there, or they are being deleted or have ended")


async def test_each_of_several_selectors_of_a_job_is_explained(cluster: Loopback) -> None:
    resolver = cluster.resolver({"worker": ["app=train", "app=trian"]}, namespace="ml")
    (found,) = await reasons(resolver)
    assert found.startswith("no pod matches app=trian in namespace 'ml'; values of app there: ")
    with pytest.raises(IncompleteClusterError, match="1 of 2 tasks in total; no pod matches app=trian"):
        await resolver.wait(2, timeout=1.5)


async def test_requests_are_sent_only_if_a_job_is_empty(cluster: Loopback) -> None:
    assert await reasons(cluster.resolver({"worker": "app=train"}, namespace="ml")) == []
    assert len(cluster.requests) == 1
    cluster.add_trainers("train-1", labels={"app": "late"}, phase="Pending", node=None)
    assert await reasons(cluster.resolver({"worker": "app=late"}, namespace="ml")) == []


@pytest.mark.parametrize("fault", [Answer(403), Answer(200, b"[]")], ids=repr)
async def test_what_may_not_be_listed_is_not_mentioned(cluster: Loopback, fault: Any) -> None:
    cluster.server.clear_faults()
    resolver = cluster.resolver({"worker": "app=trian"}, namespace="ml")
    cluster.server.inject(fault, match=lambda request: "limit" in request.query, times=None)
    assert await reasons(resolver) == ["no pod matches app=trian in namespace 'ml'"]


async def test_a_server_that_does_not_list_in_time_explains_nothing(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.resolver.base.EXISTING_TIMEOUT", 0.05)
    cluster.server.inject(Hang(), match=lambda request: "limit" in request.query, times=None)
    assert await reasons(cluster.resolver({"worker": "app=trian"}, namespace="ml")) == []


async def test_of_many_names_those_most_like_the_typed_one_come_first(cluster: Loopback) -> None:
    names: list[str] = []
    for number, listed in ((6, "{}, train, web"), (7, "train, {} and 1 more")):
        while len(names) < number:
            names.append(f"name-{len(names)}")
            cluster.add_trainers(f"other-{len(names)}", labels={"app": names[-1]})
        (reason,) = await reasons(cluster.resolver({"worker": "app=trian"}, namespace="ml"))
        assert reason.endswith(f"; values of app there: {listed.format(', '.join(names))}")
