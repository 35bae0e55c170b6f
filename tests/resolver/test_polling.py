"""Polling of a source: how often, and the observations while it fails."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve import ClusterResolver, Progress, TPUClusterResolver, UnionClusterResolver, Want
from aioresolve.errors import APIError, ConnectionFailedError, ForbiddenError, ResolveError
from aioresolve.spec import ClusterSpec, ClusterState, Missing, Observation
from tests.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable


def busy(retry_after: float | None = None) -> APIError:
    return APIError("busy", status=429, retry_after=retry_after, retryable=True)


def observation(address: str) -> Observation:
    return Observation(ClusterState.from_spec(ClusterSpec({"worker": [address]})))


class Source(ClusterResolver):
    """Returns or raises one response after another, each after `seconds`, and records when it was polled."""

    def __init__(self, responses: Iterable[Observation | Exception], seconds: float = 0.0) -> None:
        super().__init__()
        self._responses = iter(responses)
        self._seconds = seconds
        self.polled_at: list[float] = []

    async def observe(self, want: Want, progress: Progress) -> Observation:
        self.polled_at.append(anyio.current_time())
        await anyio.sleep(self._seconds)
        response = next(self._responses)
        if isinstance(response, Exception):
            raise response
        return response


async def collect(source: Source, number: int, interval: float = 0.001) -> list[Observation]:
    found: list[Observation] = []
    async with aclosing(source.observations(interval=interval)) as observations:
        while len(found) < number:
            found.append(await anext(observations))
    return found


def gaps(source: Source) -> list[float]:
    return [later - sooner for sooner, later in zip(source.polled_at, source.polled_at[1:], strict=False)]


@in_virtual_time
async def test_interval_counts_from_the_start_of_the_poll_and_is_jittered() -> None:
    source = Source([observation("a:1")] * 100, seconds=3.0)
    await collect(source, 100, interval=10.0)
    assert all(9.0 <= gap <= 11.0 for gap in gaps(source))
    assert max(gaps(source)) - min(gaps(source)) > 0.5


@in_virtual_time
async def test_waits_after_failures_grow_up_to_a_limit_until_a_poll_succeeds() -> None:
    source = Source([busy()] * 20 + [observation("a:1"), busy(), busy()], seconds=3.0)
    await collect(source, 23, interval=1.0)
    waits = [gap - 3.0 for gap in gaps(source)]  # a wait counts from the failure
    assert 0.85 <= waits[0] <= 2.0
    assert all(0.85 <= wait <= 300.0 for wait in waits[:20])
    assert waits[19] >= 135.0
    assert waits[21] <= 2.0


@in_virtual_time
async def test_wait_after_a_failure_is_at_least_the_interval_and_that_requested_by_the_server() -> None:
    source = Source([busy()] * 20)
    await collect(source, 20, interval=10_000.0)
    assert all(8_999.0 <= gap <= 11_001.0 for gap in gaps(source))
    source = Source([busy(retry_after=60.0), observation("a:1")])
    await collect(source, 2)
    assert gaps(source)[0] >= 60.0


@in_virtual_time
async def test_source_is_polled_at_once_for_a_slow_consumer() -> None:
    source = Source([observation("a:1")] * 2)
    async with aclosing(source.observations(interval=3600.0)) as observations:
        await anext(observations)
        await anyio.sleep(7200.0)
        await anext(observations)
    assert gaps(source) == [7200.0]


@in_virtual_time
async def test_retryable_failure_is_yielded_with_the_previous_observation() -> None:
    failures = [ConnectionFailedError("gone"), busy()]
    absent = Observation(observation("a:1").state, (Missing("worker", "x", "Pending"),))
    before, gone, again, after = await collect(Source([absent, *failures, observation("b:2")]), 4)
    assert (before.error, before.stale_since) == (None, None)
    assert (gone.state, gone.absent, gone.error) == (before.state, before.absent, failures[0])
    assert (again.error, again.stale_since) == (failures[1], gone.stale_since)
    assert gone.stale_since is not None
    assert (after.state, after.error, after.stale_since) == (observation("b:2").state, None, None)


@in_virtual_time
async def test_failure_that_is_not_retryable_is_raised() -> None:
    error = ForbiddenError("no", status=403)
    with pytest.raises(ForbiddenError) as caught:
        await collect(Source([observation("a:1"), error]), 2)
    assert caught.value is error


async def test_exception_of_a_users_source_is_the_cause_of_a_resolve_error() -> None:
    bug = KeyError("WORKERS")
    for call in (
        lambda: Source([bug]).cluster_spec(),
        lambda: Source([bug]).wait(1),
        lambda: collect(Source([bug]), 1),
        lambda: UnionClusterResolver(Source([bug])).cluster_state(),
        lambda: anext(UnionClusterResolver(Source([bug])).watch()),
    ):
        with pytest.raises(ResolveError) as caught:
            await call()
        assert str(caught.value).startswith("Source.observe() raised KeyError: 'WORKERS'. ")
        assert caught.value.__cause__ is bug


async def test_changes_that_raise_or_end_name_the_class() -> None:
    class Ending(Source):
        async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
            for response in self._responses:
                if isinstance(response, Exception):
                    raise response
                yield response

    cases: list[tuple[list[Observation | Exception], str]] = [
        ([observation("a:1"), ValueError("a bug")], r"Ending\.changes\(\) raised ValueError: a bug"),
        ([observation("a:1")], r"Ending\.changes\(\) has ended"),
    ]
    for responses, problem in cases:
        with pytest.raises(ResolveError, match=problem):
            await Ending(responses).wait(2)


def test_completion_shows_no_hooks_of_writers() -> None:
    assert {"wait", "watch", "cluster_spec", "known_jobs"} < set(dir(Source([])))
    assert not {"observe", "changes", "_parts", "_timeout"} & set(dir(Source([])))
    assert not {"fetch_slices", "_fetch_nodes"} & set(dir(TPUClusterResolver("grpc://a:1")))
