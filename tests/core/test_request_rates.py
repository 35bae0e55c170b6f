"""Generated schedules of failures: only the deadline ends a call, and none causes a burst of requests."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve.errors import ResolveError
from aioresolve.testing import Answer, Cut, Reset
from tests.kubernetes.loopback import request_kind, run_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import Fault
    from tests.kubernetes.loopback import Loopback

pytestmark = pytest.mark.slow

PAST = "Fri, 01 Jan 2021 00:00:00 GMT"
SECONDS = 1.0
MAX_REQUESTS = 12
"""The most requests of one kind in a second: six attempts, each over one or two connections."""


def retry_after_in_body(seconds: int) -> bytes:
    return json.dumps({"kind": "Status", "code": 429, "details": {"retryAfterSeconds": seconds}}).encode()


failures: st.SearchStrategy[Fault] = st.one_of(
    st.builds(Answer, st.sampled_from([408, 429, 500, 502, 503, 504])),
    st.builds(
        lambda status, value: Answer(status, headers={"Retry-After": value}),
        st.sampled_from([429, 503]),
        st.sampled_from(["0", "-1", PAST, "soon"]),
    ),
    st.builds(lambda seconds: Answer(429, retry_after_in_body(seconds)), st.sampled_from([-1, 0])),
    st.sampled_from([Reset(), Reset(after=10), Cut(after=0), Cut(after=10)]),
)
schedules = st.tuples(st.lists(failures, max_size=4), failures)


@pytest.fixture(scope="module")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    folder: Path = tmp_path_factory.mktemp("loopback")
    with run_loopback(folder) as loopback:
        loopback.train("train-0")
        yield loopback


def inject(loopback: Loopback, schedule: tuple[list[Fault], Fault]) -> None:
    """Let each request fail: first with the faults of a list in turn, then always with the last one."""
    first, last = schedule
    loopback.server.clear_faults()
    loopback.server.forget_requests()
    for fault in first:
        loopback.server.inject(fault)
    loopback.server.inject(last, times=None)


def assert_no_burst(loopback: Loopback) -> None:
    kinds = Counter((request.verb, request_kind(request)) for request in loopback.requests)
    assert kinds
    assert max(kinds.values()) <= MAX_REQUESTS, kinds


@given(schedules)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_only_the_deadline_ends_a_call_and_its_requests_are_few(
    loopback: Loopback, schedule: tuple[list[Fault], Fault]
) -> None:
    inject(loopback, schedule)

    async def run() -> tuple[ResolveError, float]:
        started = anyio.current_time()
        with pytest.raises(ResolveError) as caught:
            await loopback.resolver(timeout=SECONDS).cluster_spec()
        return caught.value, anyio.current_time() - started

    error, seconds = asyncio.run(run())
    assert error.retryable
    # A wait is at most twice as long as everything before it, and is not started if it exceeds the deadline.
    assert seconds > SECONDS / 5.0
    assert_no_burst(loopback)


@given(schedules)
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_failing_watch_sends_few_requests_and_never_ends(
    loopback: Loopback, schedule: tuple[list[Fault], Fault]
) -> None:
    inject(loopback, schedule)

    async def run() -> None:
        with anyio.move_on_after(SECONDS) as scope:
            async with aclosing(loopback.resolver().observations()) as observations:
                async for _ in observations:
                    pass
        assert scope.cancelled_caught

    asyncio.run(run())
    assert_no_burst(loopback)
