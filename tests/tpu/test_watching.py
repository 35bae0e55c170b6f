"""Watching TPUs: ready slices, changes, outages, this VM's own metadata."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio

from aioresolve import Fleet, TPUClusterResolver
from aioresolve.spec import ClusterState, Observation
from aioresolve.testing import Answer, GoogleServer, queued_resource, tpu_node, tpu_vm

PROJECT, ZONE = "demo-project", "us-central2-b"
PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""

QUICK = 0.01
"""Seconds between two requests."""


def resolver(*names: str, **options: Any) -> TPUClusterResolver:
    return TPUClusterResolver(list(names), ZONE, PROJECT, **options)


@asynccontextmanager
async def watch(source: TPUClusterResolver) -> AsyncIterator[AsyncGenerator[ClusterState, None]]:
    with anyio.fail_after(PATIENCE):
        async with aclosing(source.watch(interval=QUICK)) as states:
            yield states


async def observation(source: TPUClusterResolver) -> Observation:
    async with aclosing(source.observations()) as observations:
        return await anext(observations)


def addresses(state: ClusterState | None) -> list[str]:
    assert state is not None
    return [endpoint.address for endpoint in state.endpoints["worker"]]


def is_tpu_request(request: Any) -> bool:
    return bool(request.service == "tpu")


# Observations


async def test_the_state_has_the_ready_slices_with_consecutive_tasks(
    google: GoogleServer,
) -> None:
    google.add(
        tpu_node("a", ips=["10.0.0.1", "10.0.0.2"]),
        tpu_node("b", workers=4, state="REPAIRING", health_description="soon"),
        tpu_node("c", ips=["10.0.0.3"]),
    )
    seen = await observation(resolver("a", "b", "c"))
    assert addresses(seen.state) == ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"]
    (absent,) = seen.absent
    assert (absent.job, absent.name, absent.is_final, absent.tasks) == ("worker", "b", False, 4)
    assert "state REPAIRING; 'soon'" in absent.reason
    assert (seen.unready, seen.error) == ((), None)


async def test_workers_of_a_tpu_in_maintenance_remain_members_that_are_not_ready(
    google: GoogleServer,
) -> None:
    google.add(tpu_node("a", ips=["10.0.0.1"]), tpu_node("b", ips=["10.0.0.2", "10.0.0.3"]))
    google.patch("b", health="UNHEALTHY_MAINTENANCE", healthDescription="soon")
    seen = await observation(resolver("a", "b"))
    assert addresses(seen.state) == ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"]
    assert seen.state is not None
    assert [endpoint.ready for endpoint in seen.state.endpoints["worker"]] == [True, False, False]
    assert [(one.job, one.name, one.is_final) for one in seen.unready] == [
        ("worker", "b/worker-0", False),
        ("worker", "b/worker-1", False),
    ]
    assert "health UNHEALTHY_MAINTENANCE; 'soon'" in seen.unready[0].reason
    assert seen.absent == ()


async def test_a_watch_allows_a_tpu_in_maintenance_if_requested(google: GoogleServer) -> None:
    google.add(tpu_node("a", ips=["10.0.0.1"]), tpu_node("b", ips=["10.0.0.2"], health="TIMEOUT"))
    allowing = await observation(resolver("a", "b", not_healthy="allow"))
    assert addresses(allowing.state) == ["10.0.0.1:8470", "10.0.0.2:8470"]
    assert (allowing.unready, allowing.absent) == ((), ())


async def test_a_coordinator_is_a_member_if_a_slice_is_ready(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["10.0.0.1"]))
    source = resolver("my-tpu", coordinator_name="chief", coordinator_address="h:1")
    seen = await observation(source)
    assert seen.state is not None
    assert seen.state.spec.as_dict() == {"worker": ["10.0.0.1:8470"], "chief": ["h:1"]}
    google.patch("my-tpu", state="CREATING", networkEndpoints=None)
    seen = await observation(source)
    assert seen.state is not None
    assert seen.state.spec.as_dict() == {"worker": {}}
    (absent,) = seen.absent
    assert (absent.reason, absent.is_final, absent.tasks) == ("state CREATING", False, None)


async def test_what_is_lost_is_missing_for_good_but_not_what_may_be_created_again(
    google: GoogleServer,
) -> None:
    symptom = {"symptomType": "OUT_OF_MEMORY", "workerId": "3", "createTime": "2026-11-20T11:00:00Z"}
    google.add(tpu_node("a", workers=2, state="STOPPED", symptoms=[symptom]))
    google.add(tpu_node("b", workers=2, state="DELETING"), tpu_node("c", ips=["10.0.0.1"]))
    for state in ("WAITING_FOR_RESOURCES", "SUSPENDED", "DELETING"):
        google.add(queued_resource(state.lower()[:4], nodes=2, state=state))
    seen = await observation(resolver("a", "b", "c", "wait", "susp", "dele"))
    assert addresses(seen.state) == ["10.0.0.1:8470"]
    assert [(tpu.name, tpu.is_final, tpu.tasks) for tpu in seen.absent] == [
        ("a", True, 2),
        ("b", False, None),
        ("wait", False, None),
        ("susp", True, None),
        ("dele", False, None),
    ]
    assert seen.absent[0].reason.startswith("state STOPPED; symptoms: OUT_OF_MEMORY on worker 3")
    assert seen.absent[1].reason == "state DELETING; create it again when it is deleted"
    assert "queued resource in state WAITING_FOR_RESOURCES" in seen.absent[2].reason


# Watching


async def test_each_appearance_and_loss_of_a_tpu_is_one_state(google: GoogleServer) -> None:
    source = resolver("my-tpu")
    async with watch(source) as states:
        assert addresses(await anext(states)) == []
        google.add(tpu_node("my-tpu", ips=["10.0.0.1"], state="CREATING"))
        google.script("my-tpu", "CREATING", "CREATING", "READY")
        assert addresses(await anext(states)) == ["10.0.0.1:8470"]
        google.patch("my-tpu", state="PREEMPTED")
        assert addresses(await anext(states)) == []
        google.delete("my-tpu")
        google.add(tpu_node("my-tpu", ips=["10.0.0.9"]))
        assert addresses(await anext(states)) == ["10.0.0.9:8470"]


async def test_a_recreated_tpu_with_the_same_address_is_a_new_member(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["10.0.0.1"]))
    google.patch("my-tpu", id="1")
    async with watch(resolver("my-tpu")) as states:
        before = await anext(states)
        google.patch("my-tpu", id="2")
        after = await anext(states)
    assert after.spec == before.spec
    assert [member.endpoint.uid for member in after.diff(before).joined] == ["2/0"]


async def _first(
    observations: AsyncGenerator[Observation, None], condition: Callable[[Observation], bool]
) -> Observation:
    async for seen in observations:
        if condition(seen):
            return seen
    raise AssertionError("the observations ended")


# The VM's own metadata


async def test_the_metadata_of_the_vm_is_watched_also_during_an_outage(google: GoogleServer) -> None:
    overloaded = Answer(503, b"", {"Metadata-Flavor": "Google"})
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"]))
    source = TPUClusterResolver(timeout=0.1)
    with anyio.fail_after(PATIENCE):
        async with aclosing(source.observations(interval=QUICK)) as observations:
            google.inject(overloaded, match=lambda request: request.service == "metadata", times=None)
            seen = await anext(observations)
            assert (seen.state, seen.error is None) == (None, False)
            google.clear_faults()
            before = await _first(observations, lambda seen: seen.error is None)
            assert addresses(before.state) == ["10.0.0.1:8470", "10.0.0.2:8470"]
            google.inject(overloaded, match=lambda request: request.service == "metadata", times=None)
            stale = await _first(observations, lambda seen: seen.error is not None)
            assert stale.state == before.state
            google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.3"]))
            google.clear_faults()
            recovered = await _first(observations, lambda seen: seen.error is None)
            assert addresses(recovered.state) == ["10.0.0.1:8470", "10.0.0.3:8470"]


# Shared connections


async def test_targets_of_a_fleet_share_connections_and_tokens(tmp_path: Any, monkeypatch: Any) -> None:
    nodes = [tpu_node(name, ips=[f"10.0.0.{number}"]) for number, name in enumerate("abc")]
    async with GoogleServer(nodes, tls=True, tokens={}) as server:
        for name, value in server.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        other = f"{server.url}/$discovery/rest?version={{apiVersion}}"
        targets = {name: resolver(name) for name in "abc"} | {"d": resolver("a", discovery_url=other)}
        async with Fleet(targets) as fleet:
            readings = await fleet.resolve()
        assert [reading.error for reading in readings.values()] == [None] * 4
        # The credentials of another server are not shared.
        assert sum(request.service == "oauth2" for request in server.requests) == 2
