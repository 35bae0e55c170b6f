"""The endpoints of Services: members, addresses, ports, order, and watches over real sockets."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import ClusterState, Progress, Want
from aioresolve.errors import ConfigurationError, ForbiddenError, PodNotRunningError
from aioresolve.kubernetes import CONTEXT_NAMESPACE, KubernetesClusterResolver
from aioresolve.kubernetes.api.objects import (
    Added,
    Bookmark,
    BookmarkMeta,
    BookmarkObject,
    Deleted,
    Modified,
    WatchEvent,
)
from aioresolve.kubernetes.cluster_cache import ClusterCache, Selection
from aioresolve.kubernetes.endpoint_slices import EndpointSlice, SliceStore
from aioresolve.spec import Observation
from aioresolve.testing import endpoint, endpoint_slice, pod, service

from .loopback import Loopback, addresses
from .test_watch import QUICK, names, next_state, with_policy

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
        loopback.add_trainers("train-10", ip="10.8.0.10")
        loopback.add_trainers("train-2", ip="10.8.0.2")
        assert await resolved(loopback) == ["10.8.0.2:9000", "10.8.0.10:9000"]
        other = endpoint_slice("other-a", "ml", service="other", endpoints=[of_pod("x", "10.8.0.9")])
        loopback.server.add(other)
        assert await resolved(loopback) == ["10.8.0.2:9000", "10.8.0.10:9000"]
        assert {request.path for request in loopback.requests} == {SLICES}

    async def test_state_has_the_identity_of_each_pod(self, loopback: Loopback) -> None:
        loopback.server.add(trainer())
        loopback.add_trainers("train-0", ip="10.8.0.1", node="node-7")
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
        loopback.add_trainers("train-0", ready=False)
        assert await resolved(loopback, not_running="skip") == []
        with pytest.raises(
            PodNotRunningError, match="1 endpoint is not ready: ml/train-0: not ready"
        ) as caught:
            await resolver(loopback).cluster_spec()
        assert list(caught.value.pods) == ["ml/train-0"]
        (absent,) = (await resolver(loopback).observe(Want(), Progress())).absent
        assert (absent.is_final, absent.has_succeeded) == (False, False)
        loopback.server.add(trainer(publish_not_ready=True))
        (found,) = (await resolver(loopback).cluster_state()).endpoints["worker"]
        assert (found.name, found.ready, found.status) == ("train-0", False, "not ready")

    async def test_address_that_is_not_one_is_an_error(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1:80"), address_type="FQDN"))
        with pytest.raises(
            ConfigurationError, match="endpoint ml/train-0 of Service 'trainer' cannot be addr"
        ):
            await resolved(loopback)


class TestJobs:
    async def test_jobs_have_services(self, loopback: Loopback) -> None:
        loopback.server.add(trainer(), service("ps", "ml", selector={"app": "ps"}, ports={"": 2222}))
        loopback.add_trainers("train-0", ip="10.8.0.1")
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
        assert await resolved(loopback) == [first]
        loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="web")
        assert await resolved(loopback, namespace=CONTEXT_NAMESPACE) == [second]


class TestPorts:
    async def test_service_without_ports_has_the_port_of_the_resolver(self, loopback: Loopback) -> None:
        for ports in ({}, {"any": None}):
            loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports=ports))
            assert await resolved(loopback, tf_server_port=2222) == ["10.8.0.1:2222"]

    async def test_port_is_the_only_tcp_port_or_the_chosen_one(self, loopback: Loopback) -> None:
        found = slice_of(of_pod("train-0", "10.8.0.1"), ports={"dns": 53, "grpc": 9000})
        found["ports"][0]["protocol"] = "UDP"
        loopback.server.add(found)
        assert await resolved(loopback) == ["10.8.0.1:9000"]
        assert await resolved(loopback, "trainer:9999") == ["10.8.0.1:9999"]
        loopback.server.add(slice_of(ports={"http": 80, "": 8470}))
        assert await resolved(loopback) == []
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1"), ports={"http": 80, "": 8470}))
        message = r"Service 'trainer' has several TCP ports: 80 \(http\) and 8470 \(no name\)"
        with pytest.raises(ConfigurationError, match=message) as caught:
            await resolved(loopback)
        assert caught.value.argument == "service"
        assert await resolved(loopback, "trainer:8470") == ["10.8.0.1:8470"]


class TestAddresses:
    async def test_endpoint_of_a_dual_stack_service_counts_once(self, loopback: Loopback) -> None:
        loopback.server.add(trainer(ip_families=("IPv6", "IPv4")))
        loopback.add_trainers("train-0", ip=["10.8.0.1", "fd00::1"])
        assert len(loopback.server.endpoint_slices) == 2
        assert await resolved(loopback, address="pod_ip") == ["10.8.0.1:8470"]
        assert await resolved(loopback, address="pod_ipv4") == ["10.8.0.1:8470"]
        assert await resolved(loopback, address="pod_ipv6") == ["[fd00::1]:8470"]
        loopback.add_trainers("train-0", ip="fd00::1")
        assert await resolved(loopback) == ["[fd00::1]:8470"]

    async def test_endpoint_without_the_family_that_was_chosen_is_not_a_member(
        self, loopback: Loopback
    ) -> None:
        loopback.server.add(trainer(ip_families=("IPv4", "IPv6")))
        loopback.add_trainers("train-0", ip=["10.8.0.1", "fd00::1"])
        loopback.add_trainers("train-1", ip="10.8.0.2")
        with pytest.raises(PodNotRunningError, match="ml/train-1: no IPv6 address yet"):
            await resolved(loopback, address="pod_ipv6")
        assert await resolved(loopback, address="pod_ipv6", not_running="skip") == ["[fd00::1]:8470"]

    async def test_service_without_the_family_that_was_chosen_is_an_error(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.1")))
        with pytest.raises(ConfigurationError, match="has no IPv6 addresses, only IPv4") as caught:
            await resolved(loopback, address="pod_ipv6")
        assert caught.value.argument == "address"

    async def test_endpoint_in_two_slices_is_as_the_newer_one_describes_it(self, loopback: Loopback) -> None:
        older, newer = of_pod("train-0", "10.8.0.1", ready=False), of_pod("train-0", "10.8.0.1")
        loopback.server.add(slice_of(older), slice_of(newer, name="trainer-b"))
        assert await resolved(loopback) == ["10.8.0.1:8470"]
        loopback.server.add(slice_of(older))
        assert await resolved(loopback, not_running="skip") == []
        # In one slice, the pod that replaces one of the same name counts.
        loopback.server.add(slice_of(of_pod("train-0", "10.8.0.9", terminating=True), newer))
        assert await resolved(loopback) == ["10.8.0.1:8470"]

    async def test_endpoints_without_pods_are_members(self, loopback: Loopback) -> None:
        loopback.server.add(slice_of(endpoint("10.8.0.10"), endpoint("10.8.0.9")))
        assert await resolved(loopback) == ["10.8.0.9:8470", "10.8.0.10:8470"]
        state = await resolver(loopback).cluster_state()
        assert [each.name for each in state.endpoints["worker"]] == [None, None]
        others = slice_of(endpoint("fd00::9"), endpoint("fd00::10"), name="trainer-b", address_type="IPv6")
        loopback.server.add(others)
        assert await resolved(loopback) == ["10.8.0.9:8470", "10.8.0.10:8470"]
        assert await resolved(loopback, address="pod_ipv6") == ["[fd00::9]:8470", "[fd00::10]:8470"]

    async def test_host_name_is_that_of_the_service(self, loopback: Loopback) -> None:
        loopback.server.add(trainer())
        loopback.add_trainers("train-0", hostname="zero", subdomain="trainer")
        assert await resolved(loopback, address="hostname") == ["zero.trainer.ml.svc:8470"]
        loopback.add_trainers("train-1")
        with pytest.raises(ConfigurationError, match="endpoint ml/train-1 of Service 'trainer' has no host"):
            await resolved(loopback, address="hostname")


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"job_to_label_mapping": {"worker": "app=x"}, "service": "a"}, "exclude each other"),
            ({"service": "Trainer"}, "'Trainer' is not a Service .*: expected NAME or NAME:PORT"),
            ({"service": "a:65536"}, "'a:65536' is not a Service"),
            ({"service": "a:0"}, "'a:0' is not a Service"),
            ({"service": "a:grpc"}, "'a:grpc' is not a Service"),
            ({"service": 7}, "int is not a mapping of job names to Services.*{'worker': 'trainer'}"),
            ({"service": {"worker": []}}, r"\[\] is not a list of Services \(job 'worker'\)"),
            ({"service": {"": "a"}}, "'' is not a valid job name"),
            ({"service": "a", "address": "host_ip"}, "no such address, only 'pod_ip'"),
            ({"service": "a", "order_by": "index"}, "have only names to be ordered by"),
            ({"service": "a", "order_by": "x"}, "'x' is not one of 'name', 'index'"),
        ],
    )
    def test_invalid_argument_is_named(self, arguments: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            KubernetesClusterResolver(**arguments)

    async def test_permission_for_slices_is_sufficient(self, loopback: Loopback) -> None:
        loopback.server.resources = {"alice": ["endpointslices"]}
        loopback.server.add(trainer())
        loopback.add_trainers("train-0", ip="10.8.0.1")
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
    loopback.add_trainers("train-0", ip="10.8.0.0")
    async with aclosing(with_policy(resolver(loopback)).watch()) as watched:
        assert names(await next_state(watched)) == ["train-0"]
        yield watched


class TestWatch:
    async def test_each_change_gives_a_state(self, loopback: Loopback, states: States) -> None:
        loopback.add_trainers("train-1", ip="10.8.0.1")
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
        loopback.add_trainers("train-2", ip="10.8.0.2")
        assert names(await next_state(states)) == ["train-0", "train-2"]

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

    async def test_endpoint_that_leaves_its_slice_is_not_waited_for(self, loopback: Loopback) -> None:
        one, two = of_pod("train-1", "10.8.0.1"), of_pod("train-2", "10.8.0.2")
        loopback.server.add(slice_of(one, two))
        async with aclosing(with_policy(resolver(loopback)).watch()) as watched:
            await next_state(watched)
            loopback.server.add(slice_of(one))
            assert names(await next_state(watched)) == ["train-1"]

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


# Properties

NOW = datetime(2026, 11, 22, tzinfo=UTC)
QUERY = SliceStore.new_query("trainer", "ml")
NAMES = ["w-0", "w-1", "w-2", "w-10", "v"]
ADDRESSES = {"IPv4": ["10.8.0.1", "10.8.0.2", "10.8.0.3"], "IPv6": ["fd00::1", "fd00::2", "fd00::3"]}
CONDITIONS = st.sampled_from([None, True, True, False])


@st.composite
def slices(draw: st.DrawFn) -> dict[str, Any]:
    """A slice of the Service `trainer`, as a controller that moves endpoints might write it."""
    family: Any = draw(st.sampled_from(["IPv4", "IPv4", "IPv6"]))
    endpoints = [
        endpoint(
            draw(st.sampled_from(ADDRESSES[family])),
            pod=draw(st.sampled_from([*NAMES, *NAMES, None])),
            namespace="ml",
            uid=draw(st.sampled_from(["u1", "u2"])),
            ready=draw(CONDITIONS),
            serving=draw(CONDITIONS),
            terminating=draw(st.sampled_from([None, False, False, True])),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]
    name = draw(st.sampled_from(["trainer-a", "trainer-b", "trainer-c"]))
    return endpoint_slice(name, "ml", service="trainer", endpoints=endpoints, address_type=family)


def parse(document: Mapping[str, Any], version: int) -> EndpointSlice:
    metadata = {**document["metadata"], "resourceVersion": str(version)}
    return msgspec.convert({**document, "metadata": metadata}, EndpointSlice)


def new_cache() -> ClusterCache:
    selection = Selection(
        jobs={"worker": ["trainer"]},
        namespace="ml",
        store_type=SliceStore,
        address="pod_ip",
        port=8470,
        order_by=("name",),
        not_running="skip",
    )
    return ClusterCache(selection, "")


def contents(observation: Observation) -> tuple[Any, ...]:
    """Return everything in an observation except for its time and version."""
    state = observation.state
    assert state is not None
    assert state.spec.job_tasks("worker") == [each.address for each in state.endpoints["worker"]]
    return repr(dict(state.endpoints)), observation.absent, observation.unready


def test_member_that_left_its_slice_is_in_transit_until_it_is_in_another_one() -> None:
    cache = new_cache()
    store = cache.stores[QUERY]
    one, two = of_pod("train-1", "10.8.0.1"), of_pod("train-2", "10.8.0.2")
    listed = partial(store.replace, [parse(slice_of(one, two), 1)], "1")
    moved = partial(store.apply, [Added(parse(slice_of(one, name="trainer-b"), 4))])
    for end in (moved, listed, partial(cache.observation, NOW)):
        listed()
        store.apply([Modified(parse(slice_of(two), 2)), Modified(parse(slice_of(two), 3))])
        assert cache.in_transit
        end()
        assert not cache.in_transit
    ended = slice_of(of_pod("train-2", "10.8.0.2", terminating=True))
    store.apply([Modified(parse(ended, 5)), Deleted(parse(ended, 6))])
    assert not cache.in_transit


@given(st.lists(slices(), max_size=12), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_watch_ends_with_the_pods_that_a_list_has(written: list[dict[str, Any]], choices: list[int]) -> None:
    cache, held = new_cache(), dict[str, EndpointSlice]()
    cache.stores[QUERY].replace([], "1")
    before = contents(cache.observation(NOW))
    for version, (document, choice) in enumerate(zip(written, choices, strict=False), 2):
        new = parse(document, version)
        old = held.pop(new.full_name, None)
        events: list[WatchEvent[EndpointSlice]]
        if choice == 0 and old is not None:
            events = [Deleted(parse(document, version))]
        else:
            held[new.full_name] = new
            events = [Added(new) if old is None else Modified(new)]
        if choice == 1:
            # What was reported before has no effect.
            events += [*events, Bookmark(BookmarkObject(BookmarkMeta(resource_version=str(version))))]
        has_changed = cache.stores[QUERY].apply(events)
        after = contents(cache.observation(NOW))
        assert has_changed or after == before
        before = after
    listed = new_cache()
    listed.stores[QUERY].replace(list(held.values()), "99")
    assert contents(listed.observation(NOW)) == before
