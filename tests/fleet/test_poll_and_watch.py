"""`Fleet.poll` and `Fleet.watch`: when targets are requested, and that a bad one delays no other."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import anyio
import anyio.lowlevel
import pytest

from aioresolve import Want
from aioresolve.errors import APIError, ConnectionFailedError, DeadlineExceededError, ResolveError
from aioresolve.fleet import Fleet, poller
from aioresolve.resolver import ClusterResolver
from aioresolve.resolver.union import UnionClusterResolver
from aioresolve.spec import ClusterState, Missing, Observation

from .fleets import (
    Scripted,
    Source,
    each_in_virtual_time,
    fail,
    hang,
    respond_with,
    scripted,
    take,
    until,
    workers,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SHORT = 0.02
"""Seconds; an interval whose length does not matter."""


@each_in_virtual_time
class TestPoll:
    async def test_three_hanging_and_three_failing_targets_do_not_delay_the_other_94(self) -> None:
        alone, together = scripted(94), scripted(94)
        bad = {f"stuck{n}": Scripted(hang) for n in range(3)} | {f"bad{n}": Scripted(fail) for n in range(3)}
        fleet = Fleet({**together, **bad}, timeout=1.0)
        counts: list[int] = []
        async with anyio.create_task_group() as group:
            for one in (Fleet(alone), fleet):
                group.start_soon(exhausted, one, 0.1)
            await until(lambda: min(target.num_requests for target in alone.values()) >= 12)
            await until(lambda: set(bad) <= set(fleet.readings))
            counts += [
                sum(target.num_requests for target in targets.values()) for targets in (alone, together)
            ]
            counts.append(min(target.num_requests for target in together.values()))
            group.cancel_scope.cancel()
        without, with_bad, fewest = counts
        # One fleet may be ahead of the other by one of the twelve rounds.
        assert with_bad > 0.9 * without
        assert fewest >= 9
        for name in bad:
            error = fleet.readings[name].error
            assert isinstance(error, DeadlineExceededError if "stuck" in name else ConnectionFailedError)
        assert all(fleet.readings[name].error is None for name in together)

    async def test_failing_target_is_polled_less_and_less_often(self) -> None:
        async def forbidden() -> ClusterState:
            raise APIError("403: no", status=403)

        targets = {"good": Scripted(), "bad": Scripted(forbidden), "stuck": Scripted(hang)}
        async with anyio.create_task_group() as group:
            group.start_soon(exhausted, Fleet(targets, timeout=0.01), 0.01)
            await until(lambda: targets["good"].num_requests >= 100)
            group.cancel_scope.cancel()
        assert 1 < targets["bad"].num_requests < 30
        assert 1 < targets["stuck"].num_requests < 30

    @pytest.mark.parametrize("method", ["poll", "watch"])
    async def test_more_hanging_targets_than_max_concurrency_do_not_delay_the_others(
        self, method: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def respond_late() -> ClusterState:
            await anyio.sleep(2 * poller.GRACE)
            return workers(1)

        monkeypatch.setattr(poller, "GRACE", 0.05)
        four = [Source() if method == "watch" else Scripted(hang) for _ in range(4)]
        first = {"a": Scripted(), "b": Scripted(respond_late), "c": Scripted(respond_late)}
        fleet = Fleet(first, timeout=600.0, max_concurrency=2)
        async with aclosing(getattr(fleet, method)(interval=600.0)) as readings:
            await take(readings, 3)
            await anyio.sleep(2 * poller.GRACE)  # a request that has ended needs no slot for slow ones
            three = {f"stuck{number}": stuck for number, stuck in enumerate(four[:3])}
            for name, resolver in {**three, **scripted(7)}.items():
                fleet.add(name, resolver)
            assert {reading.name for reading in await take(readings, 7)} == set(scripted(7))
            # The fourth takes the last slot, until one of the slow requests ends.
            fleet.add("stuck3", four[3])
            await until(lambda: sum(stuck.num_active for stuck in four) == 4)
            fleet.add("late", Scripted())
            fleet.remove("stuck0")
            assert {reading.name for reading in await take(readings, 1)} == {"late"}

    @pytest.mark.parametrize("method", ["poll", "watch"])
    async def test_failing_target_gets_its_turn_with_one_slot(self, method: str) -> None:
        targets = {"bad": Scripted(fail), "good": Scripted()}
        fleet = Fleet(targets, max_concurrency=1)
        async with aclosing(getattr(fleet, method)(interval=0.01)) as readings:
            await take(readings, 2)
            await until(lambda: targets["bad"].num_requests >= 4)

    async def test_hanging_targets_use_at_most_half_of_the_slots(self) -> None:
        concurrent: list[int] = []

        async def counted() -> ClusterState:
            concurrent.append(sum(target.num_active for target in stuck.values()))
            return await hang()

        stuck = scripted(8, respond=counted)
        fleet = Fleet(stuck, timeout=0.05, max_concurrency=4)
        await fleet.resolve()
        concurrent.clear()  # none of them had failed before
        fleet.add("good", Scripted())
        async with aclosing(Fleet.poll(fleet, interval=SHORT)) as readings:
            count = 0
            while count < 20:
                [reading] = await take(readings, 1)
                count += reading.name == "good"
        assert max(concurrent) == 2

    async def test_slow_consumer_gets_the_latest_status_of_each_target_the_oldest_first(self) -> None:
        counts: Counter[str] = Counter()

        def counting(name: str) -> Scripted:
            async def count() -> ClusterState:
                counts[name] += 1
                return workers(counts[name])

            return Scripted(count)

        fleet = Fleet({f"t{n}": counting(f"t{n}") for n in range(3)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            [first] = await take(readings, 1)
            await until(lambda: min(counts.values()) >= 5)
            seen = dict(fleet.readings)
            late = await take(readings, 3)
        assert [reading.name for reading in late] == ["t1", "t2", "t0"]
        assert (first.name, first.state, first.error) == ("t0", workers(1), None)
        assert {reading.name: reading for reading in late} == seen

    async def test_no_status_follows_the_removal_of_a_target(self) -> None:
        targets = scripted(2)
        fleet = Fleet(targets)
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await take(readings, 1)
            await until(lambda: targets["t1"].num_requests > 2)
            fleet.remove("t1")
            assert {reading.name for reading in await take(readings, 5)} == {"t0"}
            assert targets["t1"].history == ["entered", "left"]
            num_requests = targets["t1"].num_requests
            assert list(fleet.readings) == ["t0"]
            fleet.add("t1", targets["t1"])
            await until(lambda: targets["t1"].num_requests > num_requests)
        assert targets["t1"].history == ["entered", "left"] * 2

    async def test_target_removed_before_its_task_starts_is_never_requested(self) -> None:
        old, new = Scripted(), Scripted()
        fleet = Fleet(scripted(1))
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await take(readings, 1)
            fleet.add("a", old)
            fleet.remove("a")
            fleet.add("a", new)
            await until(lambda: new.num_requests >= 3)
        assert old.history == []

    async def test_resolver_with_two_names_is_closed_when_both_are_removed(self) -> None:
        resolver = Scripted()
        fleet = Fleet({"a": resolver, "b": resolver, **scripted(1)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await take(readings, 3)
            fleet.remove("a")
            await take(readings, 5)
            assert resolver.history == ["entered"]
            fleet.remove("b")
            await take(readings, 2)
            assert resolver.history == ["entered", "left"]


async def exhausted(fleet: Fleet, interval: float) -> None:
    async with aclosing(fleet.poll(interval=interval)) as readings:
        async for _ in readings:
            pass


@each_in_virtual_time
class TestWatch:
    async def test_first_state_and_then_each_change_is_reported(self) -> None:
        source, other = Source(), Source()
        other.emit(Observation(workers(0)))  # a union has no state until each of its parts has one
        fleet = Fleet({"a": UnionClusterResolver(source, other)})
        await anyio.sleep(7.0)
        asyncio.get_running_loop().call_later(0.5, source.emit, Observation(workers(1)))
        async with aclosing(fleet.watch()) as readings:
            [first] = await take(readings, 1)
            assert (first.num_tasks, first.error) == (1, None)
            assert first.latency == pytest.approx(0.5)
            await anyio.sleep(1.0)
            source.emit(Observation(workers(1)), Observation(workers(2)))
            [second] = await take(readings, 1)
            assert (second.num_tasks, second.latency) == (2, first.latency)
            await anyio.sleep(2 * fleet.timeout)
            assert fleet.readings["a"] == second
        assert (source.num_started, source.num_active) == (1, 0)

    async def test_change_of_the_health_only_is_reported(self) -> None:
        source = Source()
        missing = Missing("worker", "ml/train-1", "Pending")
        source.emit(Observation(workers(1)))
        async with aclosing(Fleet({"a": source}).watch()) as readings:
            [ready] = await take(readings, 1)
            source.emit(Observation(workers(1), (missing,)))
            [degraded] = await take(readings, 1)
            assert (degraded.health, degraded.reason) == ("degraded", "ml/train-1: Pending")
            assert degraded.since >= ready.since
            source.emit(Observation(workers(2), (missing,)))
            [still_degraded] = await take(readings, 1)
            assert still_degraded.since == degraded.since

    async def test_failure_and_recovery_of_a_source_are_reported_once(self) -> None:
        source = Source()
        source.emit(Observation(workers(1)))
        async with aclosing(Fleet({"a": source}).watch()) as readings:
            await take(readings, 1)
            for attempt in range(3):
                error = ConnectionFailedError("connection refused")
                source.emit(Observation(workers(1), error=error, stale_since=NOON + attempt * timedelta(1)))
            [stale] = await take(readings, 1)
            assert (stale.state, stale.stale_since, stale.health) == (workers(1), NOON, "stale")
            assert isinstance(stale.error, ConnectionFailedError)
            source.emit(Observation(workers(1)))
            [well] = await take(readings, 1)
            assert (well.state, well.error, well.stale_since) == (workers(1), None, None)

    async def test_watch_that_ends_with_an_error_is_restarted_and_the_state_is_kept(self) -> None:
        source = Source()
        source.emit(Observation(workers(1)))
        fleet = Fleet({"a": source})
        async with aclosing(fleet.watch(interval=SHORT)) as readings:
            await take(readings, 1)
            source.emit(APIError("403: no", status=403), APIError("403: no", status=403))
            [stale] = await take(readings, 1)
            assert stale.state == workers(1)
            assert stale.health == "stale"
            assert stale.stale_since is not None
            await until(lambda: source.num_started >= 3)
            source.emit(Observation(workers(4)))
            [well] = await take(readings, 1)
            assert (well.num_tasks, well.error) == (4, None)
            await anyio.sleep(2 * fleet.timeout)
            assert fleet.readings["a"] == well

    async def test_backoff_of_a_watch_starts_again_after_a_healthy_one(self) -> None:
        times: list[float] = []

        class Breaking(Source):
            async def changes(self, want: Want, interval: float) -> AsyncGenerator[Observation, None]:
                times.append(anyio.current_time())
                if len(times) == 12:
                    group.cancel_scope.cancel()
                if len(times) > 8:
                    yield Observation(workers(1))
                raise ConnectionFailedError("gone")

        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for _ in Fleet({"a": Breaking()}).watch(interval=0.01):
                    pass

            group.start_soon(watch)
        waits = [later - earlier for earlier, later in pairwise(times)]
        assert max(waits[8:]) < 0.1
        assert waits[7] > 1.0

    async def test_watch_that_starts_late_is_reported_and_continues_while_others_start(self) -> None:
        source = Source()
        fleet = Fleet({"a": source, "b": Source(), "c": Source()}, timeout=0.05, max_concurrency=1)
        async with aclosing(fleet.watch()) as readings:
            late, *others = await take(readings, 3)
            assert (late.name, [other.name for other in others]) == ("a", ["b", "c"])
            assert isinstance(late.error, DeadlineExceededError)
            assert (late.state, late.error.timeout, [*late.error.missing]) == (None, 0.05, ["a"])
            source.emit(Observation(workers(1)))
            [well] = await take(readings, 1)
            assert (well.num_tasks, well.error) == (1, None)
        assert source.num_started == 1

    async def test_number_of_starting_watches_is_limited(self) -> None:
        sources = {f"s{n}": Source() for n in range(10)}
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for _ in Fleet(sources, max_concurrency=3).watch():
                    pass

            group.start_soon(watch)
            for num_responses in range(8):
                await anyio.wait_all_tasks_blocked()
                assert sum(source.num_started for source in sources.values()) == 3 + num_responses
                sources[f"s{num_responses}"].emit(Observation(workers(1)))
            group.cancel_scope.cancel()

    async def test_source_without_a_watch_is_polled(self) -> None:
        resolver = Scripted(respond_with(1))
        async with aclosing(Fleet({"a": resolver}).watch(interval=SHORT)) as readings:
            await take(readings, 1)
            await until(lambda: resolver.num_requests >= 4)
            resolver.respond = respond_with(2)
            assert (await take(readings, 1))[0].num_tasks == 2
            resolver.respond = fail
            [stale] = await take(readings, 1)
            assert (stale.num_tasks, stale.health) == (2, "stale")

    async def test_unexpected_exception_of_a_target_does_not_end_the_watch(self) -> None:
        source = Source()
        source.emit(Observation(workers(1)))
        async with aclosing(Fleet({"a": source, "b": Source()}).watch(interval=SHORT)) as readings:
            await take(readings, 1)
            source.emit(ZeroDivisionError("a bug"))
            [stale] = await take(readings, 1)
            assert (stale.num_tasks, stale.health) == (1, "stale")
            assert "Source.changes() raised ZeroDivisionError: a bug" in str(stale.error)
            source.emit(Observation(workers(2)))
            assert [(status.num_tasks, status.error) for status in await take(readings, 1)] == [(2, None)]


@each_in_virtual_time
class TestTelemetry:
    async def test_outage_is_logged_when_it_starts_and_when_it_ends(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "aioresolve.fleet")
        resolver = Scripted(fail)
        async with aclosing(Fleet({"us-east": resolver}).poll(interval=SHORT)) as readings:
            await take(readings, 3)
            resolver.respond = respond_with(1)
            await until(lambda: len(caplog.records) == 2)
            await take(readings, 3)
            resolver.respond = fail
            await until(lambda: len(caplog.records) == 3)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
        assert "target 'us-east' is unavailable: connection refused" in caplog.text
        assert [vars(record)["target"] for record in caplog.records] == ["us-east"] * 3
        assert 0 <= vars(caplog.records[1])["seconds"] < 10


@each_in_virtual_time
class TestClosing:
    async def test_loop_can_be_left_at_any_point(self) -> None:
        for method, number in [*(("poll", n) for n in (0, 1, 3, 7)), *(("watch", n) for n in (0, 1, 3))]:
            targets: dict[str, Scripted] = {**scripted(3), "stuck": Scripted(hang), "bad": Scripted(fail)}
            fleet = Fleet(targets)
            readings = getattr(fleet, method)(interval=SHORT)
            await take(readings, number)
            await readings.aclose()
            fleet.add("late", Scripted())  # starts no task
            assert all(target.num_active == 0 for target in targets.values())
            assert all(target.history in ([], ["entered", "left"]) for target in targets.values())

    async def test_resolver_that_fails_to_close_does_not_affect_the_others(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Scripted):
            async def aclose(self) -> None:
                raise ResolveError("broken pipe")

        targets: dict[str, ClusterResolver] = {"broken": Broken(), **scripted(2)}
        assert len(await Fleet(targets).resolve()) == 3
        assert [record.name for record in caplog.records] == ["aioresolve.fleet"]
        assert "broken pipe" in caplog.text
