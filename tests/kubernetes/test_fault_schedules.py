"""Generated schedules of faults: calls end in time, in the right result or one error, without leaks."""

from __future__ import annotations

import asyncio
import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from aioresolve.errors import ResolveError
from aioresolve.testing import Answer, Cut, Delay, Endless, EndlessPages, Hang, Redirect, Reset, Trickle, pod

from .loopback import TOKEN, all_text, outcome, request_kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve.testing import Fault, RequestRecord

    from .loopback import Loopback

KINDS = ["rows", "named", "whole list", "first page", "next page"]
SELECTORS = ["app=a", "app=b", "app=c", "app=d"]
RETRYABLE_STATUSES = [408, 429, 500, 502, 503, 504]
SLACK = 20.0
AT_ONCE = Trickle(1 << 16, 0.0)

transient = st.one_of(
    st.just(Reset()),
    st.builds(Reset, after=st.integers(1, 400)),
    st.builds(Cut, after=st.integers(0, 400)),
    st.builds(Answer, st.sampled_from(RETRYABLE_STATUSES)),
    st.just(Answer(429, headers={"Retry-After": "0"})),
    st.just(Answer(200, b"no gzip", {"Content-Encoding": "gzip"})),
)
slow = st.one_of(
    st.builds(Delay, st.floats(0.0, 0.004)), st.builds(Trickle, st.integers(500, 5000), st.just(0.0005))
)
permanent = st.one_of(
    st.builds(Answer, st.sampled_from([204, 302, 400, 401, 403, 404, 406, 410, 418])),
    st.builds(Answer, st.just(200), st.sampled_from([b"", b"[]", b"<html>", b'{"kind":"Status"}'])),
    st.just(Answer(429, headers={"Retry-After": "3600"})),
    st.just(Answer(200, gzip.compress(bytes(1 << 20)), {"Content-Encoding": "gzip"})),
    st.just(Redirect("https://elsewhere.example/")),
    st.just(EndlessPages(2)),
    st.just(Endless()),
)  # fmt: skip
endless = st.sampled_from([Hang(), Delay(60.0), Trickle(1, 1.0)])


@dataclass(frozen=True)
class Step:
    """Faults of the next `times` requests of a kind (None: of any kind)."""

    faults: tuple[Fault, ...]
    kind: str | None
    times: int

    def matches(self, request: RequestRecord) -> bool:
        return self.kind is None or request_kind(request) == self.kind


def steps(faults: st.SearchStrategy[Fault]) -> st.SearchStrategy[Step]:
    together = st.tuples(faults) | st.tuples(slow, faults) | st.tuples(faults, st.just(AT_ONCE))
    return st.builds(
        Step, together.map(with_small_chunks), st.none() | st.sampled_from(KINDS), st.integers(1, 3)
    )


def with_small_chunks(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
    """Send an endless body in small chunks: a single piece would block the event loop of the server."""
    is_endless = any(isinstance(fault, Endless) for fault in faults)
    return (AT_ONCE, *faults) if is_endless else faults


schedules = st.one_of(
    st.lists(steps(transient | slow), min_size=1, max_size=3),
    st.lists(steps(transient | slow | permanent), min_size=1, max_size=6),
    st.lists(steps(transient | slow | endless), min_size=1, max_size=4),
)


def can_hang(schedule: list[Step]) -> bool:
    return any(
        isinstance(fault, Hang) or getattr(fault, "seconds", 0.0) >= 1.0
        for step in schedule
        for fault in step.faults
    )


def timeout_for(schedule: list[Step]) -> float:
    """Return the deadline of the call in seconds: short only if a fault would use all of it."""
    if can_hang(schedule):
        return 0.08
    # For the token of a page that does not exist, the server requests a wait of one second, again and again.
    has_false_pages = any(isinstance(fault, EndlessPages) for step in schedule for fault in step.faults)
    return 0.9 if has_false_pages else 10.0


def must_succeed(schedule: list[Step]) -> bool:
    """Return whether every fault is transient, and there are few enough to end before the deadline."""
    faults = [fault for step in schedule for fault in step.faults]
    return (
        not can_hang(schedule)
        and sum(step.times for step in schedule) < 10
        and all(map(is_transient, faults))
    )


def is_transient(fault: Fault) -> bool:
    if isinstance(fault, Answer):
        is_retryable = fault.status in RETRYABLE_STATUSES or fault.body == b"no gzip"
        return is_retryable and fault.headers.get("Retry-After") != "3600"
    return isinstance(fault, Reset | Cut | Trickle | Delay)


@pytest.fixture
def cluster(loopback: Loopback, quick_retries: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """Pods of four selectors, in pages of two. Two of the rows do not prove that their pod is a member."""
    monkeypatch.setattr("aioresolve.kubernetes.api.client.PAGE", 2)
    monkeypatch.setattr("aioresolve.kubernetes.api.client.MAX_PAGES", 5)
    monkeypatch.setattr("aioresolve._core.http.response.MAX_BODY", 1 << 18)
    for selector in SELECTORS:
        label = selector.partition("=")[2]
        for number in range(3):
            waiting = "CrashLoopBackOff" if label in "bd" and number == 1 else None
            loopback.server.add(pod(f"{label}-{number}", "ml", labels={"app": label}, waiting=waiting))
    yield loopback
    loopback.server.clear_faults()


@given(
    schedules,
    st.lists(st.sampled_from(SELECTORS), min_size=1, max_size=4, unique=True),
    st.sampled_from(["cluster_spec", "cluster_state"]),
    st.booleans(),
)
@settings(
    max_examples=5 * settings().max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_schedule_of_faults_ends_in_the_right_result_or_in_one_typed_error(
    cluster: Loopback, schedule: list[Step], selectors: list[str], method: str, entered: bool
) -> None:
    server = cluster.server
    server.clear_faults()
    for step in schedule:
        server.inject(*step.faults, match=step.matches, times=step.times)
    timeout = timeout_for(schedule)
    resolver = cluster.resolver({"worker": selectors}, timeout=timeout)

    async def call() -> Any:
        if not entered:
            return await getattr(resolver, method)()
        async with resolver:
            return await getattr(resolver, method)()

    async def run() -> Any:
        return await outcome(call(), within=timeout + SLACK)

    result = asyncio.run(run())
    if isinstance(result, ResolveError):
        assert not must_succeed(schedule), result
        assert TOKEN not in all_text(result)
        event(type(result).__name__)
    else:
        spec = result if method == "cluster_spec" else result.spec
        assert spec.job_tasks("worker") == [
            cluster.address(f"{selector.partition('=')[2]}-{number}")
            for selector in selectors
            for number in range(3)
        ]
        event("the right result")
    server.until(lambda: server.connections == 0)
