"""Rows and pods give the same members, which agree with an independent oracle."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from aioresolve.errors import PodNotRunningError
from aioresolve.kubernetes.resolver import MAX_NAMED_REQUESTS
from aioresolve.spec import ClusterState
from aioresolve.testing import pod

from .loopback import request_kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .loopback import Loopback

NAMES = ["w-0", "w-1", "w-01", "w-2", "w-10", "w-9a", "v", "v-1-2", "v-1-10"]
NAMESPACES = ["a", "b", "c"]
SELECTORS: dict[str, Callable[[dict[str, str]], bool]] = {
    "app=x": lambda labels: labels.get("app") == "x",
    "app in (x,y)": lambda labels: labels.get("app") in ("x", "y"),
    "app!=x": lambda labels: labels.get("app") != "x",
    "tier": lambda labels: "tier" in labels,
    "app=none": lambda labels: False,
}


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod as a kubelet might report it: usually running, sometimes in another state."""
    fields: dict[str, Any] = draw(
        st.sampled_from([{"phase": "Running"}] * 5)
        | st.fixed_dictionaries(
            {"phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"])},
            optional={
                "waiting": st.sampled_from(["CrashLoopBackOff", "ContainerCreating", "ErrImagePull"]),
                "reason": st.sampled_from(["Evicted", "NodeLost", "OOMKilled"]),
                "exit_code": st.sampled_from([0, 1, 137]),
                "deleting": st.booleans(),
                "ready": st.booleans(),
                "node": st.none(),
                "containers": st.just(("main", "sidecar")),
            },
        )
    )
    return pod(
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(NAMESPACES)),
        ip=draw(st.sampled_from(["auto", "auto", "auto", None, "fd00::7", ["10.0.0.7", "fd00::8"]])),
        labels=draw(
            st.fixed_dictionaries({"app": st.sampled_from(["x", "y"])}, optional={"tier": st.just("front")})
        ),
        **fields,
    )


def by_name(pod: Mapping[str, Any]) -> tuple[list[Any], str]:
    name = pod["metadata"]["name"]
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)]
    return parts, name


def oracle(
    pods: Sequence[Mapping[str, Any]], jobs: Mapping[str, Sequence[str]], namespaces: Sequence[str | None]
) -> tuple[dict[str, list[str]], set[str]]:
    """Return the addresses of each job, and `namespace/name` of the pods that are not running."""
    addresses: dict[str, list[str]] = {}
    faults: set[str] = set()
    for job, selectors in jobs.items():
        addresses[job] = []
        for selector in selectors:
            found = [
                held
                for namespace in namespaces
                for held in pods
                if namespace in (None, held["metadata"]["namespace"])
                and SELECTORS[selector](held["metadata"]["labels"])
                and "deletionTimestamp" not in held["metadata"]
            ]
            for held in sorted(found, key=by_name):
                ip = held["status"].get("podIP")
                if held["status"]["phase"] == "Running" and ip:
                    addresses[job].append(f"[{ip}]:8470" if ":" in ip else f"{ip}:8470")
                else:
                    faults.add(f"{held['metadata']['namespace']}/{held['metadata']['name']}")
    return addresses, faults


@given(
    st.lists(pods(), max_size=25),
    st.dictionaries(
        st.sampled_from(["worker", "ps"]),
        st.lists(st.sampled_from(sorted(SELECTORS)), min_size=1, max_size=3),
        min_size=1,
    ),
    st.sampled_from([[None], ["a"], ["b", "a"]]),
)
@settings(
    max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_both_paths_agree_with_each_other_and_with_the_pods(
    loopback: Loopback,
    held: list[dict[str, Any]],
    jobs: dict[str, list[str]],
    namespaces: list[str | None],
) -> None:
    loopback.replace_pods(held)
    known = loopback.server.pods
    expected, faults = oracle(known, jobs, namespaces)
    where: Any = None if namespaces == [None] else namespaces

    async def resolve_by_both_paths() -> list[Any]:
        results: list[Any] = []
        for not_running in ("skip", "raise"):
            resolver = loopback.resolver(jobs, namespace=where, not_running=not_running)
            async with resolver:
                for call in (resolver.cluster_spec, resolver.cluster_state):
                    try:
                        results.append(await call())
                    except PodNotRunningError as error:
                        results.append(error.pods)
        return results

    spec, state, strict_spec, strict_state = asyncio.run(resolve_by_both_paths())
    assert {job: spec.job_tasks(job) for job in jobs} == expected
    assert state.spec == spec
    if faults:
        assert strict_spec == strict_state
        assert set(strict_spec) == faults
    else:
        assert strict_spec == spec
        assert strict_state == state
    for kind in {request_kind(request) for request in loopback.requests}:
        event(f"a request for {kind}")
    uids = {pod["metadata"]["uid"]: pod["metadata"] for pod in known}
    for endpoints in state.endpoints.values():
        for endpoint in endpoints:
            assert uids[endpoint.uid]["name"] == endpoint.name
            assert uids[endpoint.uid]["namespace"] == endpoint.namespace


# Every state of a pod that the printer of the API server knows

WORDS = ["Running", "Completed", "Terminating", "NodeLost", "Evicted", "CrashLoopBackOff", "Pending", ""]
"""Reasons: the API accepts any word, including those that the Status column uses for something else."""

words = st.sampled_from(WORDS)
states = st.one_of(
    st.just({"running": {"startedAt": "2026-11-20T00:00:00Z"}}),
    st.builds(lambda reason: {"waiting": {"reason": reason}}, words),
    st.builds(
        lambda code, reason, signal: {"terminated": {"exitCode": code, "reason": reason, "signal": signal}},
        st.sampled_from([0, 1, 137]),
        words,
        st.sampled_from([0, 9]),
    ),
    st.just({}),
)
conditions = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["Ready", "Initialized", "PodScheduled", "example.com/gate"]),
            "status": st.sampled_from(["True", "False", "Unknown"]),
        },
        optional={"reason": st.sampled_from(["SchedulingGated", "Running"])},
    ),
    max_size=4,
    unique_by=lambda condition: condition["type"],
)


def containers(*names: str) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.tuples(
        *(
            st.builds(
                lambda name, state, ready, started: {
                    "name": name,
                    "state": state,
                    "ready": ready,
                    "started": started,
                    "restartCount": 0,
                },
                st.just(name),
                states,
                st.booleans(),
                st.booleans(),
            )
            for name in names
        )
    ).map(list)


@st.composite
def odd_pods(draw: st.DrawFn) -> dict[str, Any]:
    """A pod in any state that the API accepts, however unlikely."""
    built = pod(
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(NAMESPACES)),
        labels={"app": "x"},
        deleting=draw(st.sampled_from([False, False, True])),
    )
    phase = draw(
        st.sampled_from(["Running", "Running", "Running", "Pending", "Succeeded", "Failed", "Unknown"])
    )
    status: dict[str, Any] = {
        "phase": phase,
        "reason": draw(st.none() | words | st.text(st.characters(exclude_categories=["Cs"]))),
        "conditions": draw(conditions),
        "containerStatuses": draw(containers("main", "log") | containers("main") | st.just([])),
        "initContainerStatuses": draw(containers("fetch", "proxy") | st.just([])),
        "hostIP": "192.168.0.1",
    }
    ips = draw(st.sampled_from([["10.0.0.7"], ["10.0.0.8", "fd00::8"], ["fd00::9"], ["192.168.0.1"], []]))
    if ips:
        status["podIP"] = ips[0]
        if draw(st.sampled_from([True, True, False])):
            status["podIPs"] = [{"ip": ip} for ip in ips]
    built["status"] = {key: value for key, value in status.items() if value not in (None, [])}
    built["spec"] |= {
        "initContainers": [{"name": "fetch"}, {"name": "proxy", "restartPolicy": "Always"}],
        "readinessGates": [{"conditionType": "example.com/gate"}],
        "hostNetwork": ips == ["192.168.0.1"],
    }
    is_gated = any(
        (each["type"], each.get("reason")) == ("PodScheduled", "SchedulingGated")
        for each in status["conditions"]
    )
    if is_gated and draw(st.booleans()):
        built["spec"]["schedulingGates"] = [{"name": "example.com/gate"}]
    if draw(st.booleans()):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "1", "controller": True}
        built["metadata"]["ownerReferences"] = [owner]
    return built


def is_odd_member(held: Mapping[str, Any]) -> bool:
    is_running = held["status"]["phase"] == "Running" and held["status"].get("podIP")
    return bool(is_running) and "deletionTimestamp" not in held["metadata"]


INCONCLUSIVE = [
    pod(f"w-{number}", "a", labels={"app": "x"}, phase="Running", reason="Evicted", ip=f"10.0.0.{number}")
    for number in range(1, MAX_NAMED_REQUESTS + 2)
]
"""More pods with rows that do not show whether they are members than are requested by name."""


@given(st.lists(odd_pods(), max_size=MAX_NAMED_REQUESTS + 4), st.sampled_from([None, ["b", "a", "c"]]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(INCONCLUSIVE, None)
@example([pod("w-0", "a", labels={"app": "x"}, phase="Failed", reason="Running", ip="10.0.0.7")], None)
@example([pod("w-0", "a", labels={"app": "x"}, phase="Failed", reason="Running", deleting=True)], None)
def test_rows_pods_and_watches_agree_in_every_state_of_a_pod(
    loopback: Loopback, held: list[dict[str, Any]], namespaces: list[str] | None
) -> None:
    loopback.replace_pods(held)
    expected = sorted(
        f"[{ip}]:8470" if ":" in (ip := each["status"]["podIP"]) else f"{ip}:8470"
        for each in loopback.server.pods
        if is_odd_member(each)
    )

    async def resolve() -> None:
        resolver = loopback.resolver({"worker": "app=x"}, namespace=namespaces, not_running="skip")
        strict = loopback.resolver({"worker": "app=x"}, namespace=namespaces)
        async with resolver, strict:
            spec, state = await resolver.cluster_spec(), await resolver.cluster_state()
            async with aclosing(resolver.watch()) as watched:
                first = await anext(watched)
            assert sorted(map(str, spec.job_tasks("worker"))) == expected
            assert spec == state.spec == first.spec
            outcomes: list[Any] = []
            for call in (strict.cluster_spec, strict.cluster_state):
                try:
                    result = await call()
                except PodNotRunningError as error:
                    outcomes.append(dict(error.pods))
                else:
                    outcomes.append(result.spec if isinstance(result, ClusterState) else result)
            assert outcomes[0] == outcomes[1]

    asyncio.run(resolve())
