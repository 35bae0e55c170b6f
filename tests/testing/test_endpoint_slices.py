"""The EndpointSlices that the loopback API server derives from Services and pods."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError
from aioresolve.testing import KubernetesServer, pod, service

CHANGES = st.sampled_from(["add", "unready", "delete", "relabel"])


def addresses(server: KubernetesServer) -> list[list[str]]:
    """Return the addresses in each slice."""
    return [[each["addresses"][0] for each in found["endpoints"] or ()] for found in server.endpoint_slices]


def conditions(server: KubernetesServer) -> dict[str, Mapping[str, bool]]:
    """Return the conditions of each endpoint by the name of its pod."""
    return {
        each["targetRef"]["name"]: each["conditions"]
        for found in server.endpoint_slices
        for each in found["endpoints"] or ()
    }


def trainer(**options: Any) -> dict[str, Any]:
    return service("trainer", "ml", selector={"app": "trainer"}, **options)


def train(number: int, **options: Any) -> dict[str, Any]:
    arguments = {"labels": {"app": "trainer"}, "ip": f"10.8.0.{number}"} | options
    return pod(f"train-{number}", "ml", **arguments)


def test_slice_has_the_pods_of_its_service() -> None:
    server = KubernetesServer([trainer(ports={"grpc": 8470}), train(0), pod("other", "ml")])
    (found,) = server.endpoint_slices
    assert found["metadata"]["labels"]["kubernetes.io/service-name"] == "trainer"
    assert found["metadata"]["name"].startswith("trainer-")
    assert found["ports"] == [{"name": "grpc", "protocol": "TCP", "port": 8470}]
    uid = server.pod("train-0", "ml")["metadata"]["uid"]
    assert found["endpoints"] == [
        {
            "addresses": ["10.8.0.0"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "namespace": "ml", "name": "train-0", "uid": uid},
            "nodeName": "node-a",
        }
    ]


@pytest.mark.parametrize(
    ("options", "ready", "serving", "terminating"),
    [
        ({}, True, True, False),
        ({"ready": False}, False, False, False),
        ({"deleting": True}, False, True, True),
    ],
)
def test_conditions_are_those_of_the_pod(
    options: dict[str, Any], ready: bool, serving: bool, terminating: bool
) -> None:
    expected = {"ready": ready, "serving": serving, "terminating": terminating}
    assert conditions(KubernetesServer([trainer(), train(0, **options)])) == {"train-0": expected}
    published = KubernetesServer([trainer(publish_not_ready=True), train(0, **options)])
    assert conditions(published) == {"train-0": expected | {"ready": True}}


@pytest.mark.parametrize(
    "options", [{"phase": "Succeeded"}, {"phase": "Failed"}, {"phase": "Pending", "ip": None}]
)
def test_pod_that_has_ended_or_has_no_address_has_no_endpoint(options: dict[str, Any]) -> None:
    assert addresses(KubernetesServer([trainer(), train(0, **options)])) == [[]]


def test_host_name_is_that_of_a_pod_of_this_service_only() -> None:
    named = train(0, hostname="zero", subdomain="trainer")
    other = train(1, hostname="one", subdomain="elsewhere")
    server = KubernetesServer([trainer(), named, other])
    found = server.endpoint_slices[0]["endpoints"]
    assert [each.get("hostname") for each in found] == ["zero", None]


def test_each_address_family_has_its_own_slices() -> None:
    families = ("IPv6", "IPv4")
    server = KubernetesServer([trainer(ip_families=families), train(0, ip=["10.8.0.1", "fd00::1"])])
    found = {each["addressType"]: each["endpoints"][0]["addresses"] for each in server.endpoint_slices}
    assert found == {"IPv6": ["fd00::1"], "IPv4": ["10.8.0.1"]}


def test_slices_follow_each_change_of_a_pod() -> None:
    server = KubernetesServer([trainer(), train(0)])
    name = server.endpoint_slices[0]["metadata"]["name"]
    server.add(train(1))
    assert addresses(server) == [["10.8.0.0", "10.8.0.1"]]
    server.patch("train-0", "ml", patch={"metadata": {"labels": {"app": "other"}}})
    assert addresses(server) == [["10.8.0.1"]]
    server.delete("train-1", "ml")
    assert addresses(server) == [[]]
    (found,) = server.endpoint_slices
    assert found["metadata"]["name"] == name


def test_slices_follow_the_ports_of_their_service() -> None:
    server = KubernetesServer([trainer(ports={"": 8470}), train(0)])
    server.add(trainer(ports={"": 9000}))
    assert [port["port"] for port in server.endpoint_slices[0]["ports"]] == [9000]


def test_slices_go_with_their_service() -> None:
    server = KubernetesServer([trainer(), service("other", "ml", selector={"app": "trainer"}), train(0)])
    server.delete("trainer", "ml", kind="Service")
    (left,) = server.endpoint_slices
    assert left["metadata"]["labels"]["kubernetes.io/service-name"] == "other"
    with pytest.raises(ConfigurationError, match="there is no Service ml/trainer"):
        server.delete("trainer", "ml", kind="Service")


@given(st.lists(st.tuples(st.integers(0, 9), CHANGES), max_size=30), st.integers(1, 3))
def test_slices_have_each_pod_once(changes: list[tuple[int, str]], max_endpoints: int) -> None:
    server = KubernetesServer([trainer()])
    server.services.max_endpoints = max_endpoints
    for number, change in changes:
        exists = any(each["metadata"]["name"] == f"train-{number}" for each in server.pods)
        match change:
            case "delete" if exists:
                server.delete(f"train-{number}", "ml")
            case "add" | "unready":
                server.add(train(number, ready=change == "add"))
            case "relabel" if exists:
                server.patch(f"train-{number}", "ml", patch={"metadata": {"labels": {"app": "no"}}})
    listed = [address for each in addresses(server) for address in each]
    selected = [each for each in server.pods if each["metadata"]["labels"]["app"] == "trainer"]
    assert sorted(listed) == sorted(each["status"]["podIP"] for each in selected)
    assert all(len(each) <= max_endpoints for each in addresses(server))
    assert addresses(server) == [[]] or [] not in addresses(server)
