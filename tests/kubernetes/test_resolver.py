"""KubernetesClusterResolver over real sockets: requests, members, addresses, connections and deadlines."""

import asyncio
import base64
import json
import math
import socket
from collections import Counter
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioresolve import Progress, Want
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    PodIndexError,
    PodNotRunningError,
    ResolveError,
    TaskIdentityError,
)
from aioresolve.kubernetes import CONTEXT_NAMESPACE, KubernetesClusterResolver, Pod
from aioresolve.spec import ClusterSpec
from aioresolve.testing import Answer, Cut, Delay, Fault, Hang, RequestRecord, lifecycle, pod

from .loopback import TOKEN, TRAIN, Loopback, addresses, request_kind
from .samples import table

MAX_NAMED_REQUESTS, PAGE = 8, 250  # docs/limits.md
CRASHED = "CrashLoopBackOff"
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}


async def resolved(resolver: KubernetesClusterResolver) -> ClusterSpec:
    """Return the spec, which is the same from rows and from whole pods."""
    spec = await resolver.cluster_spec()
    assert (await resolver.cluster_state()).spec == spec
    return spec


async def refused(resolver: KubernetesClusterResolver) -> ResolveError:
    """Return the error, which is the same from rows and from whole pods."""
    errors = []
    for call in (resolver.cluster_spec, resolver.cluster_state):
        with pytest.raises((PodNotRunningError, PodIndexError, ConfigurationError)) as caught:
            await call()
        errors.append(caught.value)
    first, second = errors
    assert (type(first), str(first)) == (type(second), str(second))
    return first


def kinds(loopback: Loopback) -> Counter[str]:
    return Counter(request_kind(request) for request in loopback.requests)


def is_for_rows(request: RequestRecord) -> bool:
    return request_kind(request) == "rows"


def is_named(request: RequestRecord) -> bool:
    return request_kind(request) == "named"


def pod_list(loopback: Loopback, **metadata: str) -> bytes:
    version = str(loopback.server.resource_version)
    return json.dumps(
        {
            "kind": "PodList",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": version, **metadata},
            "items": loopback.server.pods,
        }
    ).encode()


class TestRequests:
    async def test_one_request_for_rows_is_enough_while_all_pods_run(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0", "train-1")
        spec = await loopback.resolver(namespace="ml").cluster_spec()
        assert addresses(spec) == [loopback.address("train-0"), loopback.address("train-1")]
        (rows,) = loopback.requests
        assert rows.accept == "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
        assert rows.query == {"labelSelector": "app=train", "includeObject": "None"}
        assert rows.path == "/api/v1/namespaces/ml/pods"
        assert (rows.scheme, rows.user) == ("Bearer", "alice")
        assert rows.user_agent.startswith("aioresolve/")

    async def test_only_running_pods_are_requested_if_all_others_are_skipped(
        self, loopback: Loopback
    ) -> None:
        loopback.add_trainers("train-0")
        loopback.add_trainers("train-1", phase="Pending")
        spec = await loopback.resolver(not_running="skip").cluster_spec()
        assert addresses(spec) == [loopback.address("train-0")]
        assert kinds(loopback) == {"rows": 1}

    async def test_process_in_a_pod_is_identified_by_its_uid(
        self, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loopback.add_trainers("train-0")
        loopback.add_trainers("train-1", index=1)
        monkeypatch.setenv("POD_UID", loopback.server.pod("train-1", "ml")["metadata"]["uid"])
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
        task = await loopback.resolver(namespace="ml").this_task()
        assert (task.rank, task.num_tasks, task.address) == (1, 2, loopback.address("train-1"))
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
        with pytest.raises(TaskIdentityError, match="has index 1"):
            await loopback.resolver(namespace="ml").this_task()

    async def test_pods_of_an_indexed_job_that_share_an_address_are_identified_by_their_index(
        self, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(2):
            loopback.add_trainers(f"train-{number}-x7k2p", ip="127.0.0.1", node="n1", index=number)
        monkeypatch.setattr(socket, "gethostname", lambda: "n1")
        for number in range(2):
            monkeypatch.setenv("JOB_COMPLETION_INDEX", str(number))
            assert (await loopback.resolver(namespace="ml").this_task()).rank == number

    async def test_each_distinct_selector_is_requested_once(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0")
        jobs = {"worker": ["app=train", "app=none"], "ps": "app=train", "chief": ["app=train", "app=train"]}
        spec = await loopback.resolver(jobs, namespace="ml").cluster_spec()
        one = [loopback.address("train-0")]
        assert spec.as_dict() == {"worker": one, "ps": one, "chief": one + one}
        requested = [request.query["labelSelector"] for request in loopback.requests]
        assert sorted(requested) == ["app=none", "app=train"]

    @pytest.mark.parametrize("of_context", ["lab", None])
    async def test_context_namespace_is_that_of_the_kubeconfig(
        self, loopback: Loopback, of_context: str | None
    ) -> None:
        name = of_context or "default"
        loopback.add_trainers("train-0", namespace=name)
        loopback.add_trainers("train-1")
        loopback.server.write_kubeconfig(loopback.kubeconfig, namespace=of_context)
        resolver = loopback.resolver(namespace=CONTEXT_NAMESPACE)
        spec = await resolved(resolver)
        assert resolver.known_jobs == ("worker",)
        async with aclosing(resolver.watch()) as states:
            assert (await anext(states)).spec == spec
        assert {request.namespace for request in loopback.requests} == {name}
        assert addresses(spec) == [loopback.address("train-0", name)]

    async def test_invalid_namespace_of_the_context_is_an_error_unless_another_one_is_given(
        self, loopback: Loopback
    ) -> None:
        loopback.server.write_kubeconfig(loopback.kubeconfig, namespace="../lab")
        resolver = loopback.resolver(namespace=CONTEXT_NAMESPACE)
        async with aclosing(resolver.watch()) as states:
            for call in (resolver.cluster_spec, partial(anext, states)):
                with pytest.raises(ConfigurationError, match=r"context '.*': '.*' is not a valid namespace"):
                    await call()
        assert not loopback.requests
        await loopback.resolver(namespace="lab").cluster_spec()

    async def test_few_pods_with_inconclusive_rows_are_requested_by_name(self, loopback: Loopback) -> None:
        names = [f"train-{number}" for number in range(20)]
        loopback.add_trainers(*names)
        odd = names[:MAX_NAMED_REQUESTS]
        loopback.add_trainers(*odd, waiting=CRASHED)
        spec = await loopback.resolver().cluster_spec()
        assert addresses(spec) == [loopback.address(name) for name in names]
        rows, *named = loopback.requests
        assert request_kind(rows) == "rows"
        assert [request.accept for request in named] == ["application/json"] * MAX_NAMED_REQUESTS
        assert {request.query["fieldSelector"] for request in named} == {
            f"metadata.name={name}" for name in odd
        }
        # As of the version of the rows, so that all are from one moment.
        version = {request.query["resourceVersion"] for request in named}
        assert version == {str(loopback.server.resource_version)}
        assert {request.query["resourceVersionMatch"] for request in named} == {"Exact"}
        assert {request.query["labelSelector"] for request in named} == {"app=train"}
        assert {request.path for request in named} == {"/api/v1/pods"}

    async def test_many_pods_with_inconclusive_rows_are_requested_in_one_list(
        self, loopback: Loopback
    ) -> None:
        names = [f"train-{number}" for number in range(MAX_NAMED_REQUESTS + 1)]
        loopback.add_trainers(*names, waiting=CRASHED)
        spec = await loopback.resolver().cluster_spec()
        assert addresses(spec) == [loopback.address(name) for name in names]
        assert kinds(loopback) == {"rows": 1, "others": 1, "whole list": 1}
        assert loopback.requests[-1].query == {"labelSelector": "app=train"}

    async def test_many_pods_that_are_not_running_are_requested_in_one_list(self, loopback: Loopback) -> None:
        names = [f"train-{number}" for number in range(MAX_NAMED_REQUESTS + 1)]
        for name in names:  # equal names in other namespaces are distinguished
            loopback.add_trainers(name, phase="Pending")
            loopback.add_trainers(name, namespace="lab")
        loopback.add_trainers("train-0", namespace="a", waiting=CRASHED)
        error = await refused(loopback.resolver())
        assert vars(error)["pods"] == {f"ml/{name}": "Pending" for name in names}
        loopback.server.forget_requests()
        for name in names:
            replaced = pod(name, "ml", labels=TRAIN, phase="Failed")
            replaced["metadata"]["ownerReferences"] = [JOB]
            loopback.server.add(replaced)
        spec = await loopback.resolver().cluster_spec()
        assert kinds(loopback) == {"rows": 1, "others": 1, "named": 1}
        assert addresses(spec) == [
            loopback.address("train-0", "a"),
            *(loopback.address(name, "lab") for name in names),
        ]
        found = await loopback.resolver().observe(Want(complete=True, identities=False), Progress())
        assert found.state is not None
        assert found.state.spec == spec
        assert {member.endpoint.node for member in found.state.members} == {"node-a"}
        assert [
            member.endpoint.status for member in found.state.members if member.endpoint.status != "Running"
        ]

    async def test_pods_are_listed_if_the_server_does_not_return_all_rows(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0", "train-1")
        token: dict[str, Any] = {"continue": "t"}
        for instead in (
            Answer(406),
            Answer(200, pod_list(loopback)),
            Answer(200, pod_list(loopback, **token)),
            Answer(200, table([], **token)),
        ):
            loopback.server.forget_requests()
            loopback.server.inject(instead, match=is_for_rows)
            spec = await loopback.resolver().cluster_spec()
            assert addresses(spec) == [loopback.address("train-0"), loopback.address("train-1")]
            assert kinds(loopback) == {"rows": 1, "whole list": 1}

    async def test_whole_pods_are_requested_if_rows_do_not_have_the_needed_fields(
        self, loopback: Loopback
    ) -> None:
        loopback.add_trainers("train-0", index=0)
        await loopback.resolver(address="host_ip").cluster_spec()
        await loopback.resolver(order_by="index").cluster_spec()
        await loopback.resolver(address=lambda pod: "host").cluster_spec()
        await loopback.resolver().cluster_state()
        assert kinds(loopback) == {"whole list": 4}


class TestMembers:
    async def test_one_error_lists_all_pods_that_are_not_running_with_phase_and_reason(
        self, loopback: Loopback
    ) -> None:
        faults: list[tuple[dict[str, Any], str]] = [
            ({"phase": "Pending", "node": None}, "Pending (Unschedulable: 0/1 nodes are available)"),
            ({"phase": "Succeeded"}, "Succeeded"),
            ({"phase": "Unknown", "reason": "NodeLost"}, "Unknown (NodeLost)"),
            ({"phase": "Running", "ip": None}, "Running, but without an address yet"),
        ]
        loopback.add_trainers("train-0")
        for number, (fields, _) in enumerate(faults, 1):
            loopback.add_trainers(
                f"train-{number}", labels={"app": "eval" if number == 4 else "train"}, **fields
            )
        error = await refused(loopback.resolver({"worker": "app=train", "evaluator": "app=eval"}))
        assert isinstance(error, PodNotRunningError)
        assert isinstance(error, RuntimeError)
        assert error.pods == {f"ml/train-{number}": reason for number, (_, reason) in enumerate(faults, 1)}
        assert "4 matching pods are not running: ml/train-1: Pending (Unschedulable: 0/1 nod" in str(error)
        assert "not_running='skip'" in str(error)
        spec = await resolved(loopback.resolver(not_running="skip"))
        assert addresses(spec) == [loopback.address("train-0")]

    async def test_all_requests_of_a_call_show_the_same_moment(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0", ip="10.0.0.1")
        loopback.add_trainers("train-1", ip="10.0.0.2", waiting=CRASHED)

        def swap(request: RequestRecord) -> bool:
            if is_named(request):
                # With the old row of train-0 and the new train-1, one address would be two tasks.
                loopback.add_trainers("train-0", ip="10.0.0.2")
                loopback.add_trainers("train-1", ip="10.0.0.1", waiting=CRASHED)
            return False

        loopback.server.inject(Delay(0), match=swap, times=None)
        spec = await loopback.resolver().cluster_spec()
        assert addresses(spec) == ["10.0.0.1:8470", "10.0.0.2:8470"]

    async def test_pods_are_listed_again_if_the_version_of_the_rows_has_expired_or_is_not_exact(
        self, loopback: Loopback
    ) -> None:
        loopback.add_trainers("train-0")
        loopback.add_trainers("train-1", waiting=CRASHED)

        def expire(request: RequestRecord) -> bool:
            if is_named(request):
                loopback.add_trainers("train-2")
                loopback.server.compact()
            return False

        loopback.server.inject(Delay(0), match=expire, times=None)
        spec = await loopback.resolver().cluster_spec()
        assert addresses(spec) == [loopback.address(f"train-{number}") for number in range(3)]
        assert kinds(loopback) == {"rows": 1, "named": 1, "whole list": 1}
        loopback.server.clear_faults()
        loopback.server.inject(Answer(200, pod_list(loopback, resourceVersion="1")), match=is_named)
        assert await loopback.resolver().cluster_spec() == spec
        assert kinds(loopback) == {"rows": 2, "named": 2, "whole list": 2}
        loopback.server.inject(Answer(404), match=is_named)
        with pytest.raises(APIError, match="404"):
            await loopback.resolver().cluster_spec()


class TestAddresses:
    @pytest.mark.parametrize(
        ("choice", "expected"),
        [
            ("pod_ip", "10.0.0.7:2222"),
            ("pod_ipv4", "10.0.0.7:2222"),
            ("pod_ipv6", "[fd00::7]:2222"),
            ("host_ip", "192.168.0.1:2222"),
            ("hostname", "train-0.trainer.ml.svc:2222"),
            (lambda pod: f"{pod.metadata.name}.example", "train-0.example:2222"),
            (lambda pod: (pod.status.pod_ip, 9000), "10.0.0.7:9000"),
            (lambda pod: "fd00::1", "[fd00::1]:2222"),
        ],
    )
    async def test_each_kind_of_address(self, loopback: Loopback, choice: Any, expected: str) -> None:
        loopback.add_trainers("train-0", ip=["10.0.0.7", "fd00::7"], hostname="train-0", subdomain="trainer")
        spec = await resolved(loopback.resolver(address=choice, tf_server_port=2222))
        assert addresses(spec) == [expected]

    @pytest.mark.parametrize("choice", ["pod_ip", "pod_ipv4", "pod_ipv6", lambda pod: None])
    async def test_a_pod_without_the_address_yet_is_not_running(
        self, loopback: Loopback, choice: Any
    ) -> None:
        loopback.add_trainers("train-0", ip="auto" if callable(choice) else None)
        error = await refused(loopback.resolver(address=choice))
        assert vars(error)["pods"] == {"ml/train-0": "Running, but without an address yet"}

    async def test_a_callable_gets_the_running_pods(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0", index=3)
        loopback.add_trainers("train-1", phase="Pending")
        given: list[Pod] = []

        def address(pod: Pod) -> str:
            given.append(pod)
            return "host"

        await loopback.resolver(address=address, not_running="skip").cluster_spec()
        assert [pod.full_name for pod in given] == ["ml/train-0"]
        assert given[0].metadata.labels == {"app": "train", "batch.kubernetes.io/job-completion-index": "3"}

    @pytest.mark.parametrize(
        ("choice", "fields", "complaint"),
        [
            ("pod_ipv6", {}, "it has no IPv6 address, only 10.0.0.7. Choose another `address=`."),
            (
                "hostname",
                {"hostname": "train-0"},
                "Name a headless Service in spec.subdomain of the pods, or choose another `address=`.",
            ),
            ("hostname", {"subdomain": "train"}, "spec.hostname or spec.subdomain is not set. Name a"),
            (
                lambda pod: 7,
                {},
                "returned 7; it has to return a host, (host, port) or None. Correct the callable",
            ),
            (lambda pod: ("host", "port"), {}, "it has to return a host"),
            (lambda pod: "host:1", {}, "'host:1' is not a host name or IP address"),
            (lambda pod: str(1 // 0), {}, "integer division"),
        ],
    )
    async def test_the_error_for_an_impossible_address_names_pod_reason_and_remedy(
        self, loopback: Loopback, choice: Any, fields: dict[str, Any], complaint: str
    ) -> None:
        loopback.add_trainers("train-0", **{"ip": "10.0.0.7", **fields})
        error = await refused(loopback.resolver(address=choice))
        assert isinstance(error, ConfigurationError)
        assert complaint in str(error)
        assert "ml/train-0 cannot be addressed: " in str(error)

    @pytest.mark.parametrize("ip", ["10.8.0.1\n10.8.0.2", "10.8.0.1 slots=9"])
    async def test_an_ip_that_is_no_address_is_refused_in_rows_as_in_pods(
        self, loopback: Loopback, ip: str
    ) -> None:
        loopback.add_trainers("train-0")
        loopback.add_trainers("train-1", ip=ip)
        for call in (loopback.resolver().cluster_spec, loopback.resolver().cluster_state):
            with pytest.raises(ConfigurationError, match="is not a host name or IP address"):
                await call()


class TestPages:
    @pytest.mark.parametrize("fault", [Cut(after=20_000), *map(Answer, (413, 500, 504))], ids=repr)
    @pytest.mark.usefixtures("quick_retries")
    async def test_pods_are_read_in_pages_if_one_response_fails(
        self, loopback: Loopback, fault: Fault
    ) -> None:
        names = [f"train-{number}" for number in range(1200)]
        loopback.add_trainers(*names)
        loopback.server.inject(fault, match=lambda request: "limit" not in request.query, times=None)
        state = await loopback.resolver().cluster_state()
        assert addresses(state.spec) == [loopback.address(name) for name in names]
        pages = math.ceil(1200 / PAGE)
        assert pages > 1
        assert kinds(loopback) == {"whole list": 1, "first page": 1, "next page": pages - 1}
        limits = {request.query.get("limit") for request in loopback.requests}
        assert limits == {None, str(PAGE)}

    async def test_pods_are_read_in_pages_if_one_response_is_too_long(
        self, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("aioresolve.kubernetes.api.client.MAX_LIST", 1 << 20)
        names = [f"train-{number}" for number in range(20)]
        loopback.add_trainers(*names, size=100_000)
        state = await loopback.resolver().cluster_state()
        assert addresses(state.spec) == [loopback.address(name) for name in names]
        assert kinds(loopback) == {"whole list": 1, "first page": 1}

    async def test_the_rest_is_read_in_pages_if_the_server_splits_the_list_itself(
        self, loopback: Loopback
    ) -> None:
        loopback.add_trainers("train-0", "train-1", "train-2")
        version = loopback.server.resource_version
        token = json.dumps({"v": "meta.k8s.io/v1", "rv": version, "start": "/train-0\0"}).encode()
        metadata = {"resourceVersion": str(version), "continue": base64.urlsafe_b64encode(token).decode()}
        first = {"kind": "PodList", "metadata": metadata, "items": loopback.server.pods[:1]}
        loopback.server.inject(Answer(200, json.dumps(first).encode()))
        state = await loopback.resolver(namespace="ml").cluster_state()
        assert addresses(state.spec) == [loopback.address(f"train-{number}") for number in range(3)]
        assert kinds(loopback) == {"whole list": 1, "next page": 1}

    @pytest.mark.parametrize("page", [2, 3])
    @pytest.mark.usefixtures("small_pages")
    async def test_a_list_whose_pages_expire_is_restarted(self, loopback: Loopback, page: int) -> None:
        names = [f"train-{number}" for number in range(6)]
        loopback.add_trainers(*names)

        def expire(request: RequestRecord) -> bool:
            if len(loopback.requests) == page:
                loopback.add_trainers("train-6")
                loopback.server.compact()
            return False

        loopback.server.inject(Delay(0), match=expire, times=None)
        found = await loopback.resolver().observe(Want(complete=True), progress := Progress())
        assert isinstance(progress.last_error, APIError)
        assert found.state is not None
        # No pod of the first attempt is kept, and no pod appears twice.
        assert addresses(found.state.spec) == [loopback.address(f"train-{number}") for number in range(7)]
        assert kinds(loopback)["first page"] == 2


class TestState:
    async def test_each_endpoint_has_the_identity_of_its_pod(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0", index=0, node="node-b", ready=False)
        state = await loopback.resolver().cluster_state()
        [endpoint] = state.endpoints["worker"]
        metadata = loopback.server.pod("train-0", "ml")["metadata"]
        assert endpoint.address == loopback.address("train-0")
        assert (endpoint.name, endpoint.namespace, endpoint.uid) == ("train-0", "ml", metadata["uid"])
        assert (endpoint.node, endpoint.ready, endpoint.index) == ("node-b", False, 0)
        assert state.version == str(loopback.server.resource_version)

    async def test_the_version_of_several_lists_is_the_oldest_one(self, loopback: Loopback) -> None:
        loopback.add_trainers("train-0")
        oldest = loopback.server.resource_version

        def write(request: RequestRecord) -> bool:
            if len(loopback.requests) == 2:
                loopback.add_trainers("train-1")
            return False

        loopback.server.inject(Delay(0), match=write, times=None)
        resolver = loopback.resolver({"worker": ["app=train", "app=eval"]}, max_concurrency=1)
        state = await resolver.cluster_state()
        assert state.version == str(oldest)
        assert loopback.server.resource_version > oldest


class TestConnections:
    async def test_inside_async_with_calls_share_one_connection_until_its_end(
        self, loopback: Loopback
    ) -> None:
        seen: list[int] = []

        def look(request: RequestRecord) -> bool:
            seen.append(loopback.server.connections)
            return False

        loopback.server.inject(Delay(0), match=look, times=None)
        async with loopback.resolver(not_running="skip") as resolver:
            await resolver.cluster_spec()
            await resolver.cluster_state()
            assert loopback.server.connections == 1
        assert seen == [1, 1]
        loopback.server.until(lambda: loopback.server.connections == 0)

    async def test_the_number_of_concurrent_requests_is_limited(
        self, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for job in range(6):
            loopback.add_trainers(f"{job}-a", f"{job}-b", labels={"job": str(job)}, waiting=CRASHED)
        running: Counter[str] = Counter()
        numbers: list[int] = []
        at_limit = asyncio.Event()

        async def hold(*_: object) -> None:
            """Count a request until just before its response; hold the first ones until all have arrived."""
            running["requests"] += 1
            numbers.append(running["requests"])
            if len(numbers) == 3:
                at_limit.set()
            await at_limit.wait()
            await anyio.sleep(0.005)  # for a request too many to arrive
            running["requests"] -= 1

        monkeypatch.setattr(lifecycle, "early_reply", hold)
        resolver = loopback.resolver({f"job{job}": f"job={job}" for job in range(6)}, max_concurrency=3)
        async with resolver:
            spec = await resolver.cluster_spec()
            assert [spec.num_tasks(f"job{job}") for job in range(6)] == [2] * 6
        assert max(numbers) == 3
        assert kinds(loopback) == {"rows": 6, "named": 12}

    async def test_calls_in_progress_or_queued_at_the_end_of_async_with_fail_with_one_error(
        self, loopback: Loopback, quick_retries: None
    ) -> None:
        loopback.server.inject(Hang(), times=None)
        resolver = loopback.resolver({"worker": "app=train", "ps": "app=ps"}, max_concurrency=1)
        async with resolver:
            calls = [asyncio.ensure_future(resolver.cluster_spec(timeout=5)) for _ in range(3)]
            await asyncio.to_thread(loopback.server.until, lambda: len(loopback.requests) == 1)
            # One iteration of the loop, in which the other requests queue behind the one that hangs.
            await anyio.sleep(0.05)
        for call in calls:
            with pytest.raises(ConnectionFailedError, match="was closed") as caught:
                await call
            assert not caught.value.retryable


def test_the_repr_has_the_selectors_and_no_secret(loopback: Loopback) -> None:
    assert repr(loopback.resolver()) == (
        "<KubernetesClusterResolver {'worker': ('app=train',)} in all namespaces>"
    )
    assert "in namespace 'ml'" in repr(loopback.resolver(namespace="ml"))
    assert TOKEN not in repr(vars(loopback.resolver()))


async def test_a_table_of_members_needs_whole_pods_only_of_those_that_are_not_ready(
    loopback: Loopback,
) -> None:
    for number in range(3):
        loopback.add_trainers(f"train-{number}", ip=f"10.0.0.{number + 1}", node=f"node-{number}")
    loopback.add_trainers("train-3", ip="10.0.0.4", ready=False, waiting="CrashLoopBackOff", restarts=2)
    loopback.add_trainers("train-4", ip="10.0.0.5", ready=False)
    resolver = loopback.resolver(namespace="ml")
    names = await resolver.observe(Want(complete=True, identities=False), progress := Progress())
    assert progress.missing == {}
    listed, *named = loopback.requests
    assert "as=Table" in listed.accept
    assert len(named) == 2
    members = await resolver.observe(Want(complete=True), Progress())
    assert names.state is not None
    assert members.state is not None
    assert [(one.address, one.name, one.node, one.status) for one in names.state.endpoints["worker"]] == [
        (one.address, one.name, one.node, one.status) for one in members.state.endpoints["worker"]
    ]
