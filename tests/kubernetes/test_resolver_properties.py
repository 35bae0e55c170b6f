"""Rows, pods and watches give the same members, which agree with an independent oracle."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from aioresolve.errors import PodNotRunningError
from aioresolve.testing import pod

from .loopback import Loopback, request_kind

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
    made = pod(
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(NAMESPACES)),
        ip=draw(st.sampled_from(["auto", "auto", "auto", None, "fd00::7", ["10.0.0.7", "fd00::8"]])),
        labels=draw(
            st.fixed_dictionaries({"app": st.sampled_from(["x", "y"])}, optional={"tier": st.just("front")})
        ),
        **fields,
    )
    if draw(st.booleans()):
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "run", "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
    return made


def by_name(pod: Mapping[str, Any]) -> tuple[list[Any], str]:
    name = pod["metadata"]["name"]
    parts = [(int(part), "") if part.isdigit() else (-1, part) for part in re.findall(r"\d+|\D+", name)]
    return parts, name


def oracle(
    pods: Sequence[Mapping[str, Any]], jobs: Mapping[str, Sequence[str]], namespace: str | None
) -> tuple[dict[str, list[str | None]], set[str]]:
    """Return the addresses of each job, and `namespace/name` of the pods that are not running.

    A pod that has succeeded while others of its Job run, or may run, keeps its number, without an address.
    """
    addresses: dict[str, list[str | None]] = {}
    faults: set[str] = set()
    for job, selectors in jobs.items():
        addresses[job] = []
        for selector in selectors:
            found = [
                held
                for held in pods
                if namespace in (None, held["metadata"]["namespace"])
                and SELECTORS[selector](held["metadata"]["labels"])
                and "deletionTimestamp" not in held["metadata"]
            ]
            of_job = [held["status"]["phase"] for held in found if "ownerReferences" in held["metadata"]]
            has_ended = not {*of_job} - {"Succeeded", "Failed"}
            for held in sorted(found, key=by_name):
                ip = held["status"].get("podIP")
                if held["status"]["phase"] == "Running" and ip:
                    addresses[job].append(f"[{ip}]:8470" if ":" in ip else f"{ip}:8470")
                    continue
                phase, is_owned = held["status"]["phase"], "ownerReferences" in held["metadata"]
                if phase != "Failed" or not is_owned:  # its Job replaces it
                    faults.add(f"{held['metadata']['namespace']}/{held['metadata']['name']}")
                if phase == "Succeeded" and is_owned and not has_ended:
                    addresses[job].append(None)
        while addresses[job] and addresses[job][-1] is None:
            addresses[job].pop()
    return addresses, faults


class Results(NamedTuple):
    """What a resolver read in three ways, or the pods that its errors named."""

    rows: Any
    whole_pods: Any
    watch: Any = None


async def result_or_pods(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except PodNotRunningError as error:
        return error.pods


@given(
    st.lists(pods(), max_size=14),
    st.dictionaries(
        st.sampled_from(["worker", "ps"]),
        st.lists(st.sampled_from(sorted(SELECTORS)), min_size=1, max_size=3),
        min_size=1,
    ),
    st.sampled_from([None, "a"]),
)
@settings(
    max_examples=settings().max_examples // 2, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_whole_pods_and_watch_return_the_members_of_the_oracle(
    loopback: Loopback,
    held: list[dict[str, Any]],
    jobs: dict[str, list[str]],
    namespace: str | None,
) -> None:
    loopback.replace_pods(held)
    known = loopback.server.pods
    expected, faults = oracle(known, jobs, namespace)

    async def resolve(not_running: str) -> Results:
        async with loopback.resolver(jobs, namespace=namespace, not_running=not_running) as resolver:
            rows = await result_or_pods(resolver.cluster_spec())
            whole_pods = await result_or_pods(resolver.cluster_state())
            if not_running == "raise":
                return Results(rows, whole_pods)
            async with aclosing(resolver.watch()) as watched:
                return Results(rows, whole_pods, await anext(watched))

    members, strict = asyncio.run(resolve("skip")), asyncio.run(resolve("raise"))
    state = members.whole_pods
    assert {job: members.rows.job_tasks(job) for job in jobs} == expected
    assert state.spec == members.rows
    assert state == members.watch
    if faults:
        assert set(strict.rows) == faults
        assert strict.rows == strict.whole_pods
    else:
        assert strict == Results(members.rows, state)
    for kind in {request_kind(request) for request in loopback.requests}:
        event(f"a request for {kind}")
    uids = {pod["metadata"]["uid"]: pod["metadata"] for pod in known}
    for endpoints in state.endpoints.values():
        for endpoint in endpoints:
            assert uids[endpoint.uid]["name"] == endpoint.name
            assert uids[endpoint.uid]["namespace"] == endpoint.namespace
