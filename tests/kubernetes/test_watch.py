"""Watching pods over real sockets: each change is reported once, despite failures."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from itertools import pairwise
from typing import Any

import anyio
import pytest

from aioresolve import (
    APIError,
    ClusterState,
    KubernetesClusterResolver,
    PodIndexError,
    ResolveError,
    UnauthorizedError,
)
from aioresolve.testing import Answer, Cut, Delay, End, Hang, RequestRecord, Stall, WatchError, pod

from .loopback import JOBS, TOKEN, TRAIN, Loopback, client_sockets, is_list
from .samples import watch_policy

QUICK = watch_policy()
WATCH_LIST = watch_policy(watch_list=True)


def with_policy(resolver: KubernetesClusterResolver, policy: Any = QUICK) -> KubernetesClusterResolver:
    resolver.watch_policy = policy
    return resolver


def names(state: ClusterState, job: str = "worker") -> list[str | None]:
    return [endpoint.name for endpoint in state.endpoints[job]]


async def next_state(states: AsyncGenerator[ClusterState, None]) -> ClusterState:
    with anyio.fail_after(60):
        return await anext(states)


def is_watch(request: RequestRecord) -> bool:
    return request.verb == "watch"


def resume_versions(loopback: Loopback) -> list[str]:
    """Return the versions from which watches were requested, oldest first."""
    return [
        request.query["resourceVersion"]
        for request in loopback.requests
        if "resourceVersion" in request.query
    ]


async def until(loopback: Loopback, condition: Callable[[], bool]) -> None:
    """Return once `condition` holds."""
    await anyio.to_thread.run_sync(loopback.server.until, condition)


def has_requested(loopback: Loopback, number: int) -> bool:
    """Whether this number of watches was requested."""
    return sum(map(is_watch, loopback.requests)) >= number


async def until_everything_is_closed(loopback: Loopback) -> None:
    """Return once there is no other task and no socket to the server."""
    with anyio.fail_after(60):
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - no event reports the end of a task
            await anyio.sleep(0.001)
    assert client_sockets(loopback) == 0


async def until_connected(loopback: Loopback, number: int = 1) -> None:
    """Return once this number of watches is connected."""
    await until(loopback, lambda: loopback.server.watches == number)


async def test_the_first_state_is_immediate_and_each_change_gives_another(loopback: Loopback) -> None:
    loopback.add_trainers("train-0", "train-10", "train-2")
    async with aclosing(with_policy(loopback.resolver()).watch()) as states:
        assert names(await next_state(states)) == ["train-0", "train-2", "train-10"]
        loopback.add_trainers("train-1")
        assert names(await next_state(states)) == ["train-0", "train-1", "train-2", "train-10"]
        loopback.server.delete("train-0", "ml")
        assert names(await next_state(states)) == ["train-1", "train-2", "train-10"]
        loopback.server.patch("train-1", "ml", patch={"status": {"podIP": "10.9.9.9"}})
        state = await next_state(states)
        assert state.spec.task_address("worker", 0) == "10.9.9.9:8470"
        assert state.version == str(loopback.server.resource_version)
    assert [request.verb for request in loopback.requests] == ["list", "watch"]


async def test_a_change_that_affects_no_member_gives_no_state(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    async with aclosing(with_policy(loopback.resolver()).watch()) as states:
        await next_state(states)
        loopback.server.patch("train-0", "ml", patch={"metadata": {"annotations": {"a": "b"}}})
        loopback.server.add(pod("other", "ml", labels={"app": "other"}))
        loopback.add_trainers("train-0", ready=False, ip=loopback.address("train-0").split(":")[0])
        loopback.server.bookmark()
        loopback.add_trainers("train-1", phase="Pending")
        loopback.add_trainers("train-2")
        assert names(await next_state(states)) == ["train-0", "train-2"]


async def test_the_state_is_kept_while_two_pods_have_one_index(loopback: Loopback) -> None:
    loopback.add_trainers("train-0", index=0)
    resolver = with_policy(loopback.resolver(order_by="index"))
    async with aclosing(resolver.observations()) as observations, aclosing(resolver.watch()) as states:
        before = await next_state(states)
        assert (await anext(observations)).error is None
        loopback.add_trainers("twin-0", index=0)
        with anyio.fail_after(60):
            observation = await anext(observations)
        assert (type(observation.error), observation.state) == (PodIndexError, before)
        loopback.server.delete("train-0", "ml")
        assert names(await next_state(states)) == ["twin-0"]


@pytest.mark.parametrize(
    "fault",
    [Cut(after=40), End(after=0), WatchError(429, retry_after=0), WatchError(410)],
    ids=repr,
)
async def test_a_watch_that_ends_is_resumed_without_missing_or_repeating_a_change(
    loopback: Loopback, fault: Any
) -> None:
    loopback.add_trainers("train-0")
    async with aclosing(with_policy(loopback.resolver()).watch()) as states:
        await next_state(states)
        for round_ in range(1, 4):
            await until_connected(loopback)
            loopback.server.disturb(fault)
            loopback.add_trainers(f"train-{round_}")
            assert names(await next_state(states)) == [f"train-{n}" for n in range(round_ + 1)]
    lists = sum(map(is_list, loopback.requests))
    assert lists == (4 if fault == WatchError(410) else 1)


async def test_a_watch_is_resumed_from_the_version_of_a_bookmark(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    async with aclosing(with_policy(loopback.resolver()).watch()) as states:
        await next_state(states)
        loopback.server.add(pod("other", "ml", labels={"app": "other"}))
        version = str(loopback.server.resource_version)
        # Whether the bookmark is read before the end depends on the network, so try until it is.
        with anyio.fail_after(60):
            number = 1
            while resume_versions(loopback)[-1:] != [version]:
                await until_connected(loopback)
                loopback.server.bookmark()
                loopback.server.disturb(End())
                number += 1
                await until(loopback, partial(has_requested, loopback, number))
        loopback.add_trainers("train-1")
        assert names(await next_state(states)) == ["train-0", "train-1"]
    assert sum(map(is_list, loopback.requests)) == 1


@pytest.mark.parametrize(
    "fault", [Answer(404), Answer(302, headers={"Location": "/login"}), Answer(503)], ids=repr
)
async def test_a_running_watch_survives_an_outage_and_then_reports_the_changes_since_it_began(
    loopback: Loopback, fault: Any
) -> None:
    loopback.add_trainers("train-0", "train-2")
    async with aclosing(with_policy(loopback.resolver()).observations()) as observations:
        await anext(observations)
        await until_connected(loopback)
        number = len(loopback.requests)
        loopback.server.inject(fault, times=None)
        loopback.server.disturb(End())
        loopback.add_trainers("train-1")
        loopback.server.delete("train-2", "ml")
        with anyio.fail_after(60):
            failing = await anext(observations)
            await until(loopback, lambda: len(loopback.requests) > number + 20)
            assert failing.error is not None
            assert failing.error.retryable == (fault == Answer(503))
            loopback.server.clear_faults()
            async for observation in observations:
                if observation.error is None:
                    assert observation.state is not None
                    assert names(observation.state) == ["train-0", "train-1"]
                    break


async def test_the_pods_are_listed_again_if_the_version_may_be_why_a_watch_fails(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    async with aclosing(with_policy(loopback.resolver()).observations()) as observations:
        await anext(observations)
        for code, verb in (
            (401, "watch"),
            (403, "watch"),
            (404, "list"),
            (500, "list"),
            (503, "watch"),
            (504, "list"),
        ):
            await until_connected(loopback)
            loopback.server.inject(Answer(code), match=is_watch)
            loopback.server.forget_requests()
            loopback.server.disturb(End())
            await until(loopback, lambda: len(loopback.requests) > 1)
            assert (code, [request.verb for request in loopback.requests[:2]]) == (code, ["watch", verb])


async def test_a_rejected_token_is_reported_until_it_is_replaced(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    async with aclosing(with_policy(loopback.resolver()).observations()) as observations:
        await anext(observations)
        await until_connected(loopback)
        loopback.server.tokens = {"a-newer-token": "alice"}
        loopback.server.disturb(End())
        with anyio.fail_after(60):
            observation = await anext(observations)
            assert isinstance(observation.error, UnauthorizedError)
            assert TOKEN not in str(observation.error)
            loopback.server.write_kubeconfig(loopback.kubeconfig, token="a-newer-token")
            async for observation in observations:
                if observation.error is None:
                    break


@pytest.mark.parametrize("entered", [False, True], ids=["alone", "entered"])
async def test_breaking_out_of_the_loop_closes_the_watch(loopback: Loopback, entered: bool) -> None:
    loopback.add_trainers("train-0")
    resolver = with_policy(loopback.resolver())

    async def leave() -> None:
        async for _ in resolver.watch():
            break
        gc.collect()
        await until_connected(loopback, 0)

    if entered:
        async with resolver:
            await leave()
            assert (await resolver.cluster_spec()).num_tasks("worker") == 1
    else:
        await leave()
    await until_everything_is_closed(loopback)


async def test_leaving_the_resolver_ends_a_watch_that_is_backing_off(
    loopback: Loopback, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "aioresolve")
    loopback.add_trainers("train-0")
    loopback.server.inject(Answer(503), match=is_watch, times=None)
    patient = watch_policy(600.0, 600.0)
    async with with_policy(loopback.resolver(), patient) as resolver:
        states = resolver.watch()
        await next_state(states)
        with anyio.fail_after(60):
            while "retrying in" not in caplog.text:  # noqa: ASYNC110 - no event reports a log record
                await anyio.sleep(0.001)
        await resolver.cluster_spec()
    with pytest.raises(ResolveError, match="was closed"):
        await next_state(states)
    assert sum(map(is_watch, loopback.requests)) == 1


def begins_with_pods(request: RequestRecord) -> bool:
    return "sendInitialEvents" in request.query


@pytest.mark.parametrize(
    ("policy", "is_supported", "verbs"),
    [
        (QUICK, True, ["list", "watch"]),
        (WATCH_LIST, True, ["watch"]),
        (WATCH_LIST, False, ["watch", "list", "watch"]),
    ],
)
async def test_the_first_state_is_the_same_from_a_watch_and_from_a_list(
    loopback: Loopback, policy: Any, is_supported: bool, verbs: list[str]
) -> None:
    loopback.add_trainers(*(f"train-{number}" for number in range(300)))
    loopback.add_trainers("train-7", ready=False)
    loopback.add_trainers("train-8", phase="Pending")
    loopback.server.watch_list = is_supported
    resolver = with_policy(loopback.resolver(JOBS, not_running="skip"), policy)
    expected = await resolver.cluster_state()
    loopback.server.forget_requests()
    async with aclosing(resolver.observations()) as observations:
        with anyio.fail_after(60):
            observation = await anext(observations)
        assert observation.error is None
        assert observation.state is not None
        assert repr(observation.state.endpoints) == repr(expected.endpoints)
        assert (observation.state.spec, observation.state.version) == (expected.spec, expected.version)
        assert [missing.name for missing in observation.absent] == ["ml/train-8"]
        await until_connected(loopback)
        assert client_sockets(loopback) == 1  # that of the watch
    assert [request.verb for request in loopback.requests] == verbs


async def test_a_first_list_that_fails_is_reported_until_it_succeeds(loopback: Loopback) -> None:
    loopback.server.inject(Answer(503), times=None)
    async with aclosing(with_policy(loopback.resolver()).observations()) as observations:
        with anyio.fail_after(60):
            first = await anext(observations)
            loopback.server.clear_faults()
            while (await anext(observations)).error is not None:
                pass
    assert (first.state, type(first.error)) == (None, APIError)


async def test_pods_are_reported_as_out_of_date_until_a_watch_has_begun(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    loopback.server.inject(Delay(0.5), match=is_watch)
    policy = watch_policy(max_initial_silence=0.05, max_gap=0.05)
    async with aclosing(with_policy(loopback.resolver(), policy).observations()) as observations:
        with anyio.fail_after(60):
            late = observation = await anext(observations)
            while observation.error is not None:
                observation = await anext(observations)
            await until_connected(loopback)
            loopback.server.inject(Hang(), match=is_watch)
            loopback.server.disturb(End())
            gap = await anext(observations)
    assert "it is not established after 0.05 s" in str(late.error)
    assert gap.error is not None
    assert late.state == observation.state
    assert observation.state is not None
    assert names(observation.state) == ["train-0"]


async def test_a_server_that_refuses_to_begin_with_the_pods_gets_one_such_request(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    for status in (405, 406, 415, 422, 501):
        loopback.server.clear_faults()
        loopback.server.forget_requests()
        loopback.server.inject(Answer(status), match=begins_with_pods, times=None)
        async with with_policy(loopback.resolver(), WATCH_LIST) as resolver:
            for _ in range(2):
                async with aclosing(resolver.watch()) as states:
                    await next_state(states)
        verbs = [request.verb for request in loopback.requests if is_list(request)]
        assert verbs == ["watch", "list", "list"]


async def test_the_pods_are_not_listed_before_the_time_that_the_server_requests(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    loopback.server.inject(Answer(429, headers={"Retry-After": "1"}), match=begins_with_pods)
    async with aclosing(with_policy(loopback.resolver(), WATCH_LIST).watch()) as states:
        await next_state(states)
    first, second = filter(is_list, loopback.requests)
    assert second.time - first.time >= 1


async def test_an_address_that_cannot_be_determined_ends_the_watch(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    addresses = {"train-0": "a"}
    resolver = loopback.resolver(address=lambda pod: addresses[pod.metadata.name])
    async with aclosing(with_policy(resolver).watch()) as states:
        await next_state(states)
        loopback.add_trainers("train-1")
        with pytest.raises(ResolveError, match="train-1"):
            await next_state(states)


async def test_a_slow_response_does_not_decide_how_the_next_watch_begins(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    loopback.server.inject(Hang(), match=begins_with_pods)
    async with loopback.resolver() as resolver:
        for policy in (watch_policy(watch_list=True, max_initial_silence=0.05), WATCH_LIST):
            async with aclosing(with_policy(resolver, policy).watch()) as states:
                await next_state(states)
    assert [request.verb for request in loopback.requests if is_list(request)] == ["watch", "list", "watch"]


async def test_the_first_state_is_not_awaited_if_the_server_requests_a_longer_wait(
    loopback: Loopback,
) -> None:
    loopback.server.inject(Answer(429, headers={"Retry-After": "3600"}), times=None)
    async with aclosing(with_policy(loopback.resolver(timeout=10)).watch()) as states:
        with pytest.raises(APIError) as caught:
            await next_state(states)
    assert caught.value.status == 429


ENDS_INITIAL_EVENTS = {"k8s.io/initial-events-end": "true"}


def event_line(kind: str, found: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def bookmark_line(loopback: Loopback, **annotations: str) -> bytes:
    metadata = {"resourceVersion": str(loopback.server.resource_version), "annotations": annotations}
    return event_line("BOOKMARK", {"metadata": metadata})


@pytest.mark.parametrize("fault", [Hang(), Stall(1000), Answer(404), Answer(200), WatchError(410)], ids=repr)
async def test_the_pods_are_listed_if_a_watch_does_not_report_them(loopback: Loopback, fault: Any) -> None:
    loopback.add_trainers("train-0")
    loopback.server.inject(fault, match=begins_with_pods, times=None)
    policy = watch_policy(watch_list=True, max_initial_silence=0.2)
    async with aclosing(with_policy(loopback.resolver(), policy).observations()) as observations:
        with anyio.fail_after(60):
            observation = await anext(observations)
        assert observation.state is not None
        assert (names(observation.state), observation.error) == (["train-0"], None)
        # The watch from the version of the list. On a busy machine, the first may end without a request.
        await until(loopback, lambda: bool(resume_versions(loopback)))
        loopback.add_trainers("train-1")
        with anyio.fail_after(60):
            observation = await anext(observations)
        assert observation.state is not None
        assert (names(observation.state), observation.error) == (["train-0", "train-1"], None)


async def test_the_pods_are_listed_if_the_end_of_the_initial_events_is_not_marked(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    body = event_line("ADDED", pod("other", "ml", labels=TRAIN)) + bookmark_line(loopback)
    loopback.server.inject(Answer(200, body), match=begins_with_pods)
    async with with_policy(loopback.resolver(), WATCH_LIST) as resolver:
        for _ in range(2):
            async with aclosing(resolver.watch()) as states:
                assert names(await next_state(states)) == ["train-0"]
    assert sum(map(begins_with_pods, loopback.requests)) == 1


async def test_the_pods_are_listed_if_a_watch_reports_more_than_a_cluster_can_have(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.kubernetes.reflector.MAX_OBJECTS", 1)
    for number, verbs in enumerate((["watch"], ["watch", "list"])):
        loopback.add_trainers(f"train-{number}")
        loopback.server.forget_requests()
        async with aclosing(with_policy(loopback.resolver(), WATCH_LIST).watch()) as states:
            assert len(names(await next_state(states))) == number + 1
        assert [request.verb for request in loopback.requests if is_list(request)] == verbs


async def test_changes_before_the_end_of_the_initial_events_count(loopback: Loopback) -> None:
    loopback.add_trainers("train-0", "train-1", "train-2", "train-3")
    first, second, third, fourth = loopback.server.pods
    long = second | {"metadata": second["metadata"] | {"annotations": {"a": "x" * 1_000_000}}}
    lines = [
        event_line("ADDED", third),
        event_line("ADDED", fourth),
        event_line("DELETED", fourth),
        event_line("ADDED", first | {"status": first["status"] | {"podIP": "10.9.9.9"}}),
        event_line("ADDED", long),  # what follows is read later
        event_line("MODIFIED", first),
        event_line("DELETED", third),
        bookmark_line(loopback, **ENDS_INITIAL_EVENTS),
    ]
    loopback.server.inject(Answer(200, b"".join(lines)), match=begins_with_pods)
    async with aclosing(with_policy(loopback.resolver(), WATCH_LIST).watch()) as states:
        state = await next_state(states)
    assert names(state) == ["train-0", "train-1"]
    assert state.spec.task_address("worker", 0) == loopback.address("train-0")


async def test_changes_that_arrive_with_the_end_of_the_initial_events_count(loopback: Loopback) -> None:
    loopback.add_trainers("train-0", "train-1")
    version = loopback.server.resource_version
    mark = {"resourceVersion": str(version - 2), "annotations": ENDS_INITIAL_EVENTS}
    lines = [event_line("ADDED", found) for found in loopback.server.pods]
    lines.insert(0, event_line("BOOKMARK", {"metadata": mark}))
    loopback.server.inject(Answer(200, b"".join(lines)), match=begins_with_pods)
    async with aclosing(with_policy(loopback.resolver(), WATCH_LIST).watch()) as states:
        while names(await next_state(states)) != ["train-0", "train-1"]:
            pass
        await until(loopback, lambda: has_requested(loopback, 2))
    assert set(resume_versions(loopback)) == {str(version)}


async def test_watches_that_begin_with_the_pods_are_limited_like_lists(loopback: Loopback) -> None:
    jobs = {f"job{number}": f"app={number}" for number in range(6)}
    loopback.server.inject(Delay(0.05), match=begins_with_pods, times=None)
    resolver = with_policy(loopback.resolver(jobs, max_concurrency=1), WATCH_LIST)
    async with aclosing(resolver.watch()) as states:
        await next_state(states)
    times = [request.time for request in loopback.requests if begins_with_pods(request)]
    assert len(times) == 6
    assert min(later - earlier for earlier, later in pairwise(times)) > 0.04
