"""The endpoints of Services: members, addresses, ports, order, and watches over real sockets."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import msgspec
import pytest

from aioresolve.errors import (
    ConfigurationError,
    ForbiddenError,
    PodIndexError,
    PodNotRunningError,
)
from aioresolve.kubernetes import CONTEXT_NAMESPACE, KubernetesClusterResolver
from aioresolve.kubernetes.endpoint_slices import name_index
from aioresolve.testing import Cut, endpoint, endpoint_slice, pod, service

from .loopback import Loopback, addresses
from .test_watch import QUICK, names, next_state, with_policy

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from aioresolve import ClusterState

    States: TypeAlias = AsyncGenerator[ClusterState, None]

SLICES = "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices"


def trainer(**options: Any) -> dict[str, Any]:
    """Return the Service of the pods with the label `app=train`."""
    return service("trainer", "ml", selector={"app": "train"}, **options)


def slice_of(*endpoints: dict[str, Any], name: str = "trainer-a", **options: Any) -> dict[str, Any]:
    """Return a slice of the Service `trainer`."""
    return endpoint_slice(name, "ml", service="trainer", endpoints=endpoints, **options)


def of_pod(name: str, address: str, **options: Any) -> dict[str, Any]:
    """Return the endpoint of a pod in the namespace `ml`."""
    return endpoint(address, pod=name, namespace="ml", **options)


def resolver(loopback: Loopback, services: Any = "trainer", **arguments: Any) -> KubernetesClusterResolver:
    """Return a resolver of Services in the namespace `ml`."""
    return KubernetesClusterResolver(
        service=services, **{"kubeconfig": loopback.kubeconfig, "namespace": "ml", **arguments}
    )


async def resolved(loopback: Loopback, services: Any = "trainer", **arguments: Any) -> list[str | None]:
    """Return the addresses of the job `worker`, which both calls agree on."""
    one = resolver(loopback, services, **arguments)
    spec = await one.cluster_spec()
    assert (await one.cluster_state()).spec == spec
    return addresses(spec)


class TestMembers:
    async def test_endpoints_of_the_pods_of_a_service_are_its_tasks(self, loopback: Loopback) -> None:
        loopback.server.add(trainer(ports={"grpc": 9000}))
        loopback.train("train-10", ip="10.8.0.10")
        loopback.train("train-2", ip="10.8.0.2")
        assert await resolved(loopback) == ["10.8.0.2:9000", "10.8.0.10:9000"]

    async def test_state_has_the_identity_of_each_pod(self, loopback: Loopback) -> None:
        loopback.server.add(trainer())
        loopback.train("train-0", ip="10.8.0.1", node="node-7")
        pods = await loopback.resolver(namespace="ml").cluster_state()
        (found,) = (await resolver(loopback).cluster_state()).endpoints["worker"]
        (expected,) = pods.endpoints["worker"]
        assert (found.address, found.name, found.namespace) == ("10.8.0.1:8470", "train-0", "ml")
        assert (found.uid, found.node, found.ready) == (expected.uid, "node-7", True)
        assert found.identity == expected.identity

    async def test_pod_that_is_not_ready_is_a_member_only_if_the_service_publishes_it(
        self, loopback: Loopback
    ) -> None:
        loopback.server.add(trainer())
        loopback.train("train-0", ready=False)
        assert await resolved(loopback, not_running="skip") == []
        with pytest.raises(
            PodNotRunningError, match="1 endpoint is not ready: ml/train-0: not ready"
        ) as caught:
            await resolver(loopback).cluster_spec()
        assert list(caught.value.pods) == ["ml/train-0"]
        loopback.server.add(trainer(publish_not_ready=True))
        (found,) = (await resolver(loopback).cluster_state()).endpoints["worker"]
        assert (found.name, found.ready, found.status) == ("train-0", False, "not ready")

    async def test_pods_that_end_or_have_not_started_are_no_members(self, loopback: Loopback) -> None:
        loopback.server.add(trainer())
        loopback.train("train-0", deleting=True)
        loopback.train("train-1", phase="Succeeded")
        loopback.train("train-2", phase="Pending", ip=None)
        assert await resolved(loopback) == []

    async def test_condition_that_is_not_set_counts_as_ready_and_serving(self, loopback: Loopback) -> None:
        conditions: list[dict[str, bool | None]] = [
            {"ready": None},
            {"ready": True, "serving": True, "terminating": False},
            {"ready": True, "serving": False},
            {"ready": None, "serving": False},
            {"ready": True, "terminating": True},
            {"ready": False, "serving": True, "terminating": True},
            {"ready": False, "serving": True},
        ]
        endpoints = [of_pod(f"w-{n}", f"10.8.0.{n}", **each) for n, each in enumerate(conditions)]
        bare = {"addresses": ["10.8.0.7"], "targetRef": {"kind": "Pod", "name": "w-7"}}
        loopback.server.add(slice_of(*endpoints, bare))
        state = await resolver(loopback, not_running="skip").cluster_state()
        members = {each.full_name: each.ready for each in state.endpoints["worker"]}
        ready, not_ready = ("ml/w-0", "ml/w-1", "ml/w-7"), ("ml/w-2", "ml/w-3")
        assert members == dict.fromkeys(ready, True) | dict.fromkeys(not_ready, False)
        assert state.endpoints["worker"][-1].uid is None

    async def test_endpoints_of_several_slices_are_merged_in_the_order_of_their_names(
        self, loopback: Loopback
    ) -> None:
        loopback.server.max_endpoints = 2
        loopback.server.add(trainer())
        for number in (3, 11, 1, 2, 0):
            loopback.train(f"train-{number}", ip=f"10.8.0.{number}")
        assert len(loopback.server.endpoint_slices) == 3
        assert await resolved(loopback) == [f"10.8.0.{number}:8470" for number in (0, 1, 2, 3, 11)]

    async def test_slices_of_other_services_are_not_used(self, loopback: Loopback) -> None:
        other = endpoint_slice("other-a", "ml", service="other", endpoints=[of_pod("x", "10.8.0.9")])
        loopback.server.add(other)
        assert await resolved(loopback) == []
        loopback.server.forget_requests()
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1")))
        assert await resolved(loopback) == ["10.8.0.1:8470"]
        (request, _) = loopback.requests
        assert request.path == SLICES
        assert request.query["labelSelector"] == "kubernetes.io/service-name=trainer"

    async def test_address_that_is_not_one_is_an_error(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1:80"), address_type="FQDN"))
        with pytest.raises(
            ConfigurationError, match="endpoint ml/train-0 of Service 'trainer' cannot be addr"
        ):
            await resolved(loopback)


class TestJobs:
    async def test_jobs_have_services(self, loopback: Loopback) -> None:
        loopback.server.add(trainer(), service("ps", "ml", selector={"app": "ps"}, ports={"": 2222}))
        loopback.train("train-0", ip="10.8.0.1")
        loopback.server.add(pod("ps-0", "ml", labels={"app": "ps"}, ip="10.8.0.2"))
        spec = await resolver(loopback, {"worker": "trainer", "ps": ["ps"]}).cluster_spec()
        assert spec.as_dict() == {"worker": ["10.8.0.1:8470"], "ps": ["10.8.0.2:2222"]}
        # The tasks of several services of one job follow one another.
        assert await resolved(loopback, {"worker": ["ps", "trainer"]}) == ["10.8.0.2:2222", "10.8.0.1:8470"]

    async def test_namespaces_are_those_of_the_resolver(self, loopback: Loopback) -> None:
        for number, namespace in enumerate(["ml", "web"]):
            found = endpoint(f"10.8.0.{number}", pod="train-0", namespace=namespace)
            loopback.server.add(endpoint_slice("a", namespace, service="trainer", endpoints=[found]))
        first, second = "10.8.0.0:8470", "10.8.0.1:8470"
        assert await resolved(loopback, namespace=None) == [first, second]
        assert await resolved(loopback, namespace=["web", "ml"]) == [second, first]
        loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="web")
        assert await resolved(loopback, namespace=CONTEXT_NAMESPACE) == [second]


class TestPorts:
    async def test_service_without_ports_has_the_port_of_the_resolver(self, loopback: Loopback) -> None:
        for ports in ({}, {"any": None}):
            loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports=ports))
            assert await resolved(loopback, tf_server_port=2222) == ["10.8.0.1:2222"]

    async def test_port_is_named_after_the_service(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"http": 80, "grpc": 8470}))
        assert await resolved(loopback, "trainer:grpc") == ["10.8.0.1:8470"]
        assert await resolved(loopback, "trainer:9999") == ["10.8.0.1:9999"]

    async def test_two_jobs_may_have_two_ports_of_one_service(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"http": 80, "grpc": 8470}))
        services = {"worker": "trainer:grpc", "evaluator": "trainer:http"}
        spec = await resolver(loopback, services).cluster_spec()
        assert spec.as_dict() == {"worker": ["10.8.0.1:8470"], "evaluator": ["10.8.0.1:80"]}

    async def test_port_that_is_ambiguous_or_does_not_exist_is_an_error(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"http": 80, "": 8470}))
        with pytest.raises(
            ConfigurationError, match="Service 'trainer' has several TCP ports: 'http' and one without a name"
        ) as caught:
            await resolved(loopback)
        assert caught.value.argument == "service"
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"http": 80}))
        with pytest.raises(ConfigurationError, match="no TCP port named 'grpc', only 'http'"):
            await resolved(loopback, "trainer:grpc")

    async def test_port_of_another_protocol_is_not_used(self, loopback: Loopback) -> None:
        found = slice_of(of_pod("train-0", "10.8.0.1"), ports={"dns": 53, "grpc": 8470})
        found["ports"][0]["protocol"] = "UDP"
        loopback.server.add(found)
        assert await resolved(loopback) == ["10.8.0.1:8470"]

    async def test_named_port_may_differ_between_pods(self, loopback: Loopback) -> None:
        loopback.server.add(
            slice_of(of_pod("train-1", "10.8.0.1"), ports={"grpc": 8470}),
            slice_of(of_pod("train-0", "10.8.0.2"), name="trainer-b", ports={"grpc": 9000}),
            slice_of(of_pod("train-2", "10.8.0.3"), name="trainer-c"),
        )
        with pytest.raises(PodNotRunningError, match="ml/train-2: no port named 'grpc'"):
            await resolved(loopback, "trainer:grpc")
        found = await resolved(loopback, "trainer:grpc", not_running="skip")
        assert found == ["10.8.0.2:9000", "10.8.0.1:8470"]


class TestAddresses:
    async def test_endpoint_of_a_dual_stack_service_counts_once(self, loopback: Loopback) -> None:
        loopback.server.add(trainer(ip_families=("IPv6", "IPv4")))
        loopback.train("train-0", ip=["10.8.0.1", "fd00::1"])
        assert len(loopback.server.endpoint_slices) == 2
        assert await resolved(loopback, address="pod_ip") == ["10.8.0.1:8470"]
        assert await resolved(loopback, address="pod_ipv4") == ["10.8.0.1:8470"]
        assert await resolved(loopback, address="pod_ipv6") == ["[fd00::1]:8470"]
        loopback.train("train-0", ip="fd00::1")
        assert await resolved(loopback) == ["[fd00::1]:8470"]

    async def test_endpoint_without_the_family_that_was_chosen_is_not_a_member(
        self, loopback: Loopback
    ) -> None:
        loopback.server.add(trainer(ip_families=("IPv4", "IPv6")))
        loopback.train("train-0", ip=["10.8.0.1", "fd00::1"])
        loopback.train("train-1", ip="10.8.0.2")
        with pytest.raises(PodNotRunningError, match="ml/train-1: no IPv6 address yet"):
            await resolved(loopback, address="pod_ipv6")
        assert await resolved(loopback, address="pod_ipv6", not_running="skip") == ["[fd00::1]:8470"]

    async def test_service_without_the_family_that_was_chosen_is_an_error(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1")))
        with pytest.raises(ConfigurationError, match="has no IPv6 addresses, only IPv4") as caught:
            await resolved(loopback, address="pod_ipv6")
        assert caught.value.argument == "address"

    async def test_endpoints_without_pods_are_those_of_one_family(self, loopback: Loopback) -> None:
        loopback.server.add(
            slice_of(endpoint("fd00::1"), endpoint("fd00::2"), name="six", address_type="IPv6"),
            slice_of(endpoint("10.8.0.10"), endpoint("10.8.0.9"), name="four"),
        )
        assert await resolved(loopback) == ["10.8.0.9:8470", "10.8.0.10:8470"]
        state = await resolver(loopback).cluster_state()
        assert [each.name for each in state.endpoints["worker"]] == [None, None]

    async def test_names_of_an_fqdn_slice_are_hosts(self, loopback: Loopback) -> None:
        found = [endpoint(f"db-{number}.example.com") for number in (10, 9)]
        loopback.server.add(slice_of(*found, address_type="FQDN"))
        assert await resolved(loopback) == ["db-9.example.com:8470", "db-10.example.com:8470"]

    async def test_host_name_is_that_of_the_service(self, loopback: Loopback) -> None:
        loopback.server.add(trainer())
        loopback.train("train-0", hostname="zero", subdomain="trainer")
        assert await resolved(loopback, address="hostname") == ["zero.trainer.ml.svc:8470"]
        loopback.train("train-1")
        with pytest.raises(ConfigurationError, match="endpoint ml/train-1 of Service 'trainer' has no host"):
            await resolved(loopback, address="hostname")


class TestOrder:
    def test_index_is_at_the_end_of_a_name(self) -> None:
        indices = {
            (None, "train-3"): 3,
            (None, "train-3-x7k2p"): 3,
            ("train-12", "train-12-x7k2p"): 12,
            ("train-3-24567", "any"): 24567,
            ("zero", "train-3"): None,
            (None, "trainer-7d9c6b5f4d-x7k2p"): None,
            (None, "train"): None,
            (None, "train-0000000001"): None,
        }
        assert {names: name_index(*names) for names in indices} == indices

    async def test_tasks_may_be_ordered_by_the_index_in_their_names(self, loopback: Loopback) -> None:
        found = [("b-x-0", "10.8.0.1"), ("a-x-1", "10.8.0.2")]
        loopback.server.add(slice_of(*[of_pod(name, ip) for name, ip in found]))
        assert await resolved(loopback) == ["10.8.0.2:8470", "10.8.0.1:8470"]
        assert await resolved(loopback, order_by="index") == ["10.8.0.1:8470", "10.8.0.2:8470"]

    async def test_leader_of_a_group_of_a_leader_worker_set_is_the_first(self, loopback: Loopback) -> None:
        found = [("vllm-3-1", "10.8.0.1"), ("vllm-3-2", "10.8.0.2"), ("vllm-3", "10.8.0.3")]
        loopback.server.add(slice_of(*[of_pod(name, ip) for name, ip in found]))
        in_order = [f"10.8.0.{number}:8470" for number in (3, 1, 2)]
        assert await resolved(loopback, order_by="index") == in_order

    async def test_name_without_an_index_is_an_error_if_tasks_are_ordered_by_it(
        self, loopback: Loopback
    ) -> None:
        loopback.server.add(slice_of(of_pod("zero", "10.8.0.1"), of_pod("train-2", "10.8.0.2")))
        with pytest.raises(PodIndexError, match="ml/zero"):
            await resolved(loopback, order_by="index")


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"job_to_label_mapping": {"worker": "app=x"}, "service": "a"}, "exclude each other"),
            ({"service": "Trainer"}, "'Trainer' is not a Service .*: expected NAME or NAME:PORT"),
            ({"service": "a:65536"}, "'a:65536' is not a Service"),
            ({"service": 7}, "int is not a mapping of job names to Services"),
            ({"service": {"worker": []}}, r"\[\] is not a list of Services \(job 'worker'\)"),
            ({"service": {"": "a"}}, "'' is not a valid job name"),
            ({"service": "a", "address": "host_ip"}, "no such address, only 'pod_ip'"),
            ({"service": "a", "order_by": "label:rank"}, "have no labels of pods and nodes"),
            ({"service": "a", "order_by": "x"}, "'x' is not one of 'name', 'index'"),
        ],
    )
    def test_invalid_argument_is_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            KubernetesClusterResolver(**arguments)

    async def test_permission_for_slices_is_sufficient(self, loopback: Loopback) -> None:
        loopback.server.resources = {"alice": ["endpointslices"]}
        loopback.server.add(trainer())
        loopback.train("train-0", ip="10.8.0.1")
        assert await resolved(loopback) == ["10.8.0.1:8470"]
        with pytest.raises(ForbiddenError):
            await loopback.resolver(namespace="ml").cluster_spec()

    async def test_error_has_the_role_to_grant(self, loopback: Loopback) -> None:
        loopback.server.allow = {"alice": ["other"]}
        with pytest.raises(ForbiddenError) as caught:
            await resolver(loopback).cluster_spec()
        error = caught.value
        assert "user 'alice' may not list endpointslices in namespace 'ml'" in error.summary
        assert "Service 'trainer' in namespace 'ml'" in error.summary
        role = 'apiGroups: ["discovery.k8s.io"]\n  resources: [endpointslices]\n  verbs: [list]\n'
        assert role in error.manifest
        assert "name: aioresolve-endpointslices-list, namespace" in error.manifest


@pytest.fixture
async def states(loopback: Loopback) -> AsyncGenerator[AsyncGenerator[ClusterState, None], None]:
    """The states of the watch of a Service that has one pod, after the first."""
    loopback.server.add(trainer())
    loopback.train("train-0", ip="10.8.0.0")
    async with aclosing(with_policy(resolver(loopback)).watch()) as watched:
        assert names(await next_state(watched)) == ["train-0"]
        yield watched


class TestWatch:
    async def test_each_change_gives_a_state(self, loopback: Loopback, states: States) -> None:
        loopback.train("train-1", ip="10.8.0.1")
        assert names(await next_state(states)) == ["train-0", "train-1"]
        not_ready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
        loopback.server.patch("train-0", "ml", patch=not_ready)
        assert names(await next_state(states)) == ["train-1"]
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        loopback.server.patch("train-0", "ml", patch=ready)
        assert names(await next_state(states)) == ["train-0", "train-1"]
        loopback.server.delete("train-1", "ml", grace_period_seconds=30)
        assert names(await next_state(states)) == ["train-0"]
        loopback.server.finish_deletion("train-1", "ml")
        loopback.train("train-2", ip="10.8.0.2")
        assert names(await next_state(states)) == ["train-0", "train-2"]

    async def test_replaced_pod_is_another_member(self, loopback: Loopback, states: States) -> None:
        loopback.server.delete("train-0", "ml")
        assert names(await next_state(states)) == []
        loopback.train("train-0", ip="10.8.0.9")
        assert addresses((await next_state(states)).spec) == ["10.8.0.9:8470"]
        loopback.server.delete("trainer", "ml", kind="Service")  # with its slices
        assert names(await next_state(states)) == []

    @pytest.mark.parametrize("is_added_first", [True, False])
    async def test_endpoint_that_moves_to_another_slice_gives_no_state(
        self, loopback: Loopback, is_added_first: bool
    ) -> None:
        one, two = of_pod("train-1", "10.8.0.1"), of_pod("train-2", "10.8.0.2")
        loopback.server.add(slice_of(one, two))
        patient = msgspec.structs.replace(QUICK, max_transit=60.0)
        async with aclosing(with_policy(resolver(loopback), patient).watch()) as watched:
            await next_state(watched)
            writes = [slice_of(two, name="trainer-b"), slice_of(one)]
            for each in writes if is_added_first else reversed(writes):
                loopback.server.add(each)
            loopback.server.add(slice_of(one, of_pod("train-3", "10.8.0.3")))
            assert names(await next_state(watched)) == ["train-1", "train-2", "train-3"]

    async def test_watch_that_breaks_misses_no_change(
        self, loopback: Loopback, states: AsyncGenerator[ClusterState, None]
    ) -> None:
        loopback.server.disturb(Cut(after=20))
        loopback.train("train-1", ip="10.8.0.1")
        assert names(await next_state(states)) == ["train-0", "train-1"]

    async def test_port_that_is_ambiguous_ends_the_watch(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"grpc": 8470}))
        async with aclosing(with_policy(resolver(loopback)).watch()) as watched:
            await next_state(watched)
            loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"grpc": 8470, "http": 80}))
            with pytest.raises(ConfigurationError, match="several TCP ports"):
                await next_state(watched)
        loopback.server.forget_requests()
        async with aclosing(with_policy(resolver(loopback)).watch()) as watched:
            with pytest.raises(ConfigurationError, match="several TCP ports"):
                await next_state(watched)
        assert len(loopback.requests) == 1


class TestFacades:
    async def test_wait_waits_for_endpoints_that_are_not_ready(self, loopback: Loopback) -> None:
        loopback.server.add(trainer())
        loopback.train("train-0")
        loopback.train("train-1", ready=False)
        one = with_policy(resolver(loopback))
        async with anyio.create_task_group() as group:

            async def become_ready() -> None:
                await anyio.to_thread.run_sync(loopback.server.until, lambda: loopback.server.watches == 1)
                loopback.train("train-1")

            group.start_soon(become_ready)
            state = await one.wait(2, timeout=60)
            assert names(state) == ["train-0", "train-1"]

    async def test_this_task_is_found_by_the_name_of_the_pod(
        self, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loopback.server.add(trainer())
        for number in range(3):
            loopback.train(f"train-{number}")
        monkeypatch.setenv("POD_NAME", "train-1")
        monkeypatch.setenv("POD_NAMESPACE", "ml")
        task = await resolver(loopback).this_task()
        assert (task.index, task.address) == (1, loopback.address("train-1"))
