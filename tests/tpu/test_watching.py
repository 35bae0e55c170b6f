"""Watching TPUs: ready slices, changes, outages, conditional requests, this VM's own metadata."""

from __future__ import annotations

import itertools
import logging
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve import Fleet, TPUClusterResolver
from aioresolve.errors import (
    TPUNotFoundError,
)
from aioresolve.spec import Observation
from aioresolve.testing import Answer, GoogleServer, queued_resource, tpu_node, tpu_vm
from aioresolve.tpu import metadata_source
from aioresolve.tpu.discovery import MetadataSource
from tests.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from aioresolve._core.deadline import Progress
    from aioresolve.spec import ClusterState

PROJECT, ZONE = "demo-project", "us-central2-b"
PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""

QUICK = 0.01
LONG = 1000.0
"""Seconds between two requests: no test waits for the second."""


def resolver(*names: str, **options: Any) -> TPUClusterResolver:
    return TPUClusterResolver(list(names), ZONE, PROJECT, **options)


@asynccontextmanager
async def watch(
    source: TPUClusterResolver, interval: float = QUICK
) -> AsyncIterator[AsyncGenerator[ClusterState, None]]:
    with anyio.fail_after(PATIENCE):
        async with aclosing(source.watch(interval=interval)) as states:
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


async def test_a_watch_leaves_out_or_allows_a_tpu_in_maintenance_if_requested(google: GoogleServer) -> None:
    google.add(tpu_node("a", ips=["10.0.0.1"]), tpu_node("b", ips=["10.0.0.2"], health="TIMEOUT"))
    skipping = await observation(resolver("a", "b", not_healthy="skip"))
    assert addresses(skipping.state) == ["10.0.0.1:8470"]
    assert [one.name for one in skipping.absent] == ["b"]
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


async def test_a_name_that_does_not_exist_is_missing_but_not_for_good(google: GoogleServer) -> None:
    (absent,) = (await observation(resolver("my-tpu"))).absent
    assert (absent.name, absent.is_final, absent.tasks) == ("my-tpu", False, None)
    assert f"projects/{PROJECT}/locations/{ZONE}/nodes/my-tpu does not exist (yet)" in absent.reason
    with pytest.raises(TPUNotFoundError):
        await resolver("my-tpu").cluster_state()


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


@pytest.mark.slow
async def test_an_outage_is_reported_and_the_watch_continues(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["10.0.0.1"]))
    source = resolver("my-tpu", timeout=1.0)
    with anyio.fail_after(PATIENCE):
        async with aclosing(source.observations(interval=QUICK)) as observations:
            before = await anext(observations)
            google.inject(Answer(503), match=is_tpu_request, times=None)
            stale = await _first(observations, lambda seen: seen.error is not None)
            again = await anext(observations)
            google.clear_faults()
            recovered = await _first(observations, lambda seen: seen.error is None)
    # Its deadline may pass during an attempt, or before a wait.
    assert "503" in str(stale.error)
    assert stale.state == before.state
    assert stale.stale_since is not None
    assert again.stale_since == stale.stale_since
    assert (addresses(recovered.state), recovered.stale_since) == (["10.0.0.1:8470"], None)


async def _first(
    observations: AsyncGenerator[Observation, None], condition: Callable[[Observation], bool]
) -> Observation:
    async for seen in observations:
        if condition(seen):
            return seen
    raise AssertionError("the observations ended")


async def test_project_and_zone_are_requested_from_the_metadata_server_once(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu", ips=["10.0.0.1"]))
    async with watch(TPUClusterResolver("my-tpu")) as states:
        await anext(states)
        google.inject(Answer(500), match=lambda request: request.service == "metadata", times=None)
        google.patch("my-tpu", networkEndpoints=[{"ipAddress": "10.0.0.2", "port": 8470}])
        assert addresses(await anext(states)) == ["10.0.0.2:8470"]
    assert sum(request.service == "metadata" for request in google.requests) == 2


async def test_given_addresses_result_in_a_single_state(google: GoogleServer) -> None:
    source = TPUClusterResolver("grpc://10.0.0.1,grpc://10.0.0.2")
    async with watch(source) as states:
        assert addresses(await anext(states)) == ["10.0.0.1:8470", "10.0.0.2:8470"]
        with anyio.move_on_after(0.1):
            raise AssertionError(await anext(states))


# Conditional requests


def statuses(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The status of each response of the API, from the log."""
    return [
        int(getattr(record, "status", 0))
        for record in caplog.records
        if record.name == "aioresolve.gcp" and "/v2/" in record.getMessage()
    ]


@pytest.fixture
async def etag_server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GoogleServer]:
    """Google Cloud with `my-tpu` at 10.0.0.1 and entity tags in its responses."""
    async with GoogleServer([tpu_node("my-tpu", ips=["10.0.0.1"])], etags=True) as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


async def test_an_unchanged_response_is_not_sent_again(
    etag_server: GoogleServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aioresolve.gcp")
    async with watch(resolver("my-tpu")) as states:
        assert addresses(await anext(states)) == ["10.0.0.1:8470"]
        async with anyio.create_task_group() as group:
            group.start_soon(_patch_after, etag_server, 4)
            assert addresses(await anext(states)) == ["10.0.0.2:8470"]
    assert statuses(caplog)[:4] == [200, 304, 304, 304]
    assert statuses(caplog).count(200) == 2


async def _patch_after(server: GoogleServer, requests: int) -> None:
    await server.until(lambda: sum(map(is_tpu_request, server.requests)) >= requests)
    server.patch("my-tpu", networkEndpoints=[{"ipAddress": "10.0.0.2", "port": 8470}])


async def test_a_deleted_tpu_that_returns_unchanged_is_reported(etag_server: GoogleServer) -> None:
    node = tpu_node("my-tpu", ips=["10.0.0.1"])
    async with watch(resolver("my-tpu")) as states:
        await anext(states)
        etag_server.delete("my-tpu")
        assert addresses(await anext(states)) == []
        etag_server.add(node)
        assert addresses(await anext(states)) == ["10.0.0.1:8470"]


# The VM's own metadata


@pytest.fixture
async def vm(google: GoogleServer, monkeypatch: pytest.MonkeyPatch) -> GoogleServer:
    """Google Cloud as the first of two hosts of a TPU VM reaches it."""
    monkeypatch.setattr("aioresolve.tpu.metadata_source.MIN_PAUSE", 0.05)
    google.metadata.update(tpu_vm(hosts=["10.0.0.1", "10.0.0.2"], accelerator_type="v4-16"))
    return google


def set_hosts(server: GoogleServer, *hosts: str) -> None:
    server.metadata.update(tpu_vm(hosts=list(hosts), accelerator_type="v4-16"))


async def test_the_metadata_server_reports_changes_without_polling(vm: GoogleServer) -> None:
    async with watch(TPUClusterResolver(), LONG) as states:
        assert addresses(await anext(states)) == ["10.0.0.1:8470", "10.0.0.2:8470"]
        for last in ("10.0.0.3", "10.0.0.4"):
            vm.forget_requests()
            async with anyio.create_task_group() as group:
                group.start_soon(_change_during_long_poll, vm, last)
                assert addresses(await anext(states)) == ["10.0.0.1:8470", f"{last}:8470"]


async def _change_during_long_poll(server: GoogleServer, last: str) -> None:
    await server.until(lambda: any("wait_for_change" in request.query for request in server.requests))
    set_hosts(server, "10.0.0.1", last)


async def test_a_change_between_the_tag_and_the_values_is_not_missed(vm: GoogleServer) -> None:
    source = TPUClusterResolver()
    async with aclosing(source.observations(interval=LONG)) as observations:
        with anyio.fail_after(PATIENCE):
            await anext(observations)
            set_hosts(vm, "10.0.0.9", "10.0.0.2")  # no request is waiting at this moment
            assert addresses((await anext(observations)).state) == ["10.0.0.9:8470", "10.0.0.2:8470"]


async def test_a_failed_request_for_changes_is_repeated_and_not_reported(vm: GoogleServer) -> None:
    def waits_for_change(request: Any) -> bool:
        return "wait_for_change" in request.query

    async def change() -> None:
        await vm.until(lambda: any(map(waits_for_change, vm.requests)))
        set_hosts(vm, "10.0.0.1", "10.0.0.3")

    vm.inject(Answer(503, headers={"Metadata-Flavor": "Google"}), match=waits_for_change)
    seen: list[Observation] = []
    with anyio.fail_after(PATIENCE):
        async with aclosing(TPUClusterResolver().observations(interval=LONG)) as observations:
            seen.append(await anext(observations))
            async with anyio.create_task_group() as group:
                group.start_soon(change)
                while addresses(seen[-1].state) != ["10.0.0.1:8470", "10.0.0.3:8470"]:
                    seen.append(await anext(observations))
                    assert seen[-1].error is None


class Metadata:
    """A metadata server that responds to each request for changes at once."""

    def __init__(self, tags: Iterator[str]) -> None:
        self._tags = tags

    async def attributes_tag(self, tag: str, seconds: int, progress: Progress) -> str:
        return next(self._tags)


async def follow_attributes(tags: Iterator[str]) -> list[Observation]:
    """Return the observations of ten seconds, with an interval of five seconds."""
    seen: list[Observation] = []

    async def fetch() -> Observation:
        return Observation(None)

    metadata: Any = Metadata(tags)
    watched = metadata_source.watch_attributes(MetadataSource(()), metadata, fetch, 5.0, PATIENCE)
    with anyio.move_on_after(10.0):
        async with aclosing(watched) as observations:
            async for each in observations:
                seen.append(each)  # noqa: PERF401
    return seen


@in_virtual_time
async def test_attributes_that_change_without_pause_are_requested_once_a_second() -> None:
    assert len(await follow_attributes(map(str, range(100)))) == 10 / metadata_source.MIN_PAUSE


@in_virtual_time
async def test_observation_is_polled_if_the_metadata_server_does_not_wait_for_changes() -> None:
    seen = await follow_attributes(itertools.repeat("tag"))
    assert [each.polled_at for each in seen] == [None, 1.0, 6.0]


@in_virtual_time
async def test_observation_is_polled_if_the_metadata_server_has_no_tags() -> None:
    seen = await follow_attributes(itertools.repeat(""))
    assert None not in [each.polled_at for each in seen]


async def test_a_watch_continues_after_an_outage_of_the_metadata_server(vm: GoogleServer) -> None:
    wrong_server = Answer(200, b"<html>")
    with anyio.fail_after(PATIENCE):
        async with aclosing(TPUClusterResolver().observations(interval=QUICK)) as observations:
            before = await anext(observations)
            vm.inject(wrong_server, match=lambda request: request.service == "metadata", times=None)
            set_hosts(vm, "10.0.0.1", "10.0.0.3")
            stale = await anext(observations)
            vm.clear_faults()
            recovered = await _first(observations, lambda seen: seen.error is None)
    assert stale.state == before.state
    assert "is not a metadata server" in str(stale.error)
    assert "no TPU was named" not in str(stale.error)
    assert addresses(recovered.state) == ["10.0.0.1:8470", "10.0.0.3:8470"]


async def test_a_watch_that_starts_during_an_outage_of_the_metadata_server_continues(
    vm: GoogleServer,
) -> None:
    overloaded = Answer(503, b"", {"Metadata-Flavor": "Google"})
    vm.inject(overloaded, match=lambda request: request.service == "metadata", times=None)
    source = TPUClusterResolver(timeout=1.0)
    with anyio.fail_after(PATIENCE):
        async with aclosing(source.observations(interval=QUICK)) as observations:
            first = await anext(observations)
            vm.clear_faults()
            recovered = await _first(observations, lambda seen: seen.error is None)
    assert first.state is None
    assert first.error is not None
    assert addresses(recovered.state) == ["10.0.0.1:8470", "10.0.0.2:8470"]


async def test_on_another_vm_a_watch_ends_at_once(google: GoogleServer) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(TPUNotFoundError, match="it is not a TPU VM"):
        await anext(TPUClusterResolver().watch(interval=QUICK))


# Shared connections


async def test_targets_of_a_fleet_share_connections_and_tokens(tmp_path: Any, monkeypatch: Any) -> None:
    nodes = [tpu_node(name, ips=[f"10.0.0.{number}"]) for number, name in enumerate("abc")]
    async with GoogleServer(nodes, tls=True, tokens={}) as server:
        for name, value in server.environ(tmp_path).items():
            monkeypatch.setenv(name, value)
        targets = {name: resolver(name) for name in "abc"} | {"v1": resolver("a", api_version="v1")}
        async with Fleet(targets) as fleet:
            readings = await fleet.resolve()
        assert [reading.error for reading in readings.values()][:3] == [None] * 3
        assert sum(request.service == "oauth2" for request in server.requests) == 2
