"""A fleet that is polled or watched: who is asked how often, and what a bad one costs the others."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest

from aioresolve._core.telemetry.otel import stale_since, task_counts
from aioresolve.errors import APIError, ConnectionFailedError, DeadlineExceededError, ResolveError
from aioresolve.fleet import Fleet, Reading
from aioresolve.fleet.connections import Connections
from aioresolve.spec import Missing, Observation

from .fleets import Scripted, Source, answer_of, fail, hang, no_task_left, scripted, taken, until, workers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.spec import ClusterState

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SHORT = 0.02
"""Seconds of an interval, where its length is no matter."""


@pytest.fixture(autouse=True)
async def _nothing_goes_on() -> AsyncIterator[None]:
    async with no_task_left():
        yield


class TestPoll:
    async def test_each_target_is_asked_again_and_again(self) -> None:
        targets = scripted(5)
        async with aclosing(Fleet(targets).poll(interval=SHORT)) as readings:
            names = Counter(reading.name for reading in await taken(readings, 50))
        assert set(names) == set(targets)
        assert all(5 <= count <= 15 for count in names.values())

    async def test_all_are_asked_at_once_at_first(self) -> None:
        targets = scripted(30)
        async with aclosing(Fleet(targets).poll(interval=3600.0)) as readings:
            assert {reading.name for reading in await taken(readings, 30)} == set(targets)

    async def test_three_that_hang_and_three_that_fail_cost_the_other_94_nothing(self) -> None:
        alone, beside = scripted(94), scripted(94)
        bad = {f"stuck{n}": Scripted(hang) for n in range(3)} | {f"bad{n}": Scripted(fail) for n in range(3)}
        fleet = Fleet({**beside, **bad}, timeout=1.0)
        asked: list[int] = []
        async with anyio.create_task_group() as group:
            # Both at the same time in the same loop, so that what else the machine does is no matter.
            for one in (Fleet(alone), fleet):
                group.start_soon(exhausted, one, 0.1)
            await until(lambda: min(target.asked for target in alone.values()) >= 12)
            await until(lambda: set(bad) <= set(fleet.readings))
            asked += [sum(target.asked for target in targets.values()) for targets in (alone, beside)]
            asked.append(min(target.asked for target in beside.values()))
            group.cancel_scope.cancel()
        without, with_them, fewest = asked
        # One may be ahead of the other by a round, of which there are twelve.
        assert with_them > 0.9 * without
        assert fewest >= 9
        for name in bad:
            error = fleet.readings[name].error
            assert isinstance(error, DeadlineExceededError if "stuck" in name else ConnectionFailedError)
        assert all(fleet.readings[name].error is None for name in beside)

    async def test_a_target_that_fails_is_asked_more_and_more_rarely(self) -> None:
        targets = {"good": Scripted(), "bad": Scripted(fail), "stuck": Scripted(hang)}
        async with anyio.create_task_group() as group:
            group.start_soon(exhausted, Fleet(targets, timeout=0.01), 0.01)
            await until(lambda: targets["good"].asked >= 100)
            group.cancel_scope.cancel()
        assert 1 < targets["bad"].asked < 30
        assert 1 < targets["stuck"].asked < 30

    async def test_a_target_that_recovers_is_asked_as_often_as_before(self) -> None:
        resolver = Scripted(fail)
        async with aclosing(Fleet({"a": resolver}).poll(interval=0.01)) as readings:
            await taken(readings, 4)
            resolver.answer = answer_of(1)
            with anyio.fail_after(10.0):
                async for reading in readings:
                    if reading.error is None:
                        break
            began = anyio.current_time()
            await taken(readings, 10)
            assert anyio.current_time() - began < 5.0

    async def test_what_an_answer_takes_makes_the_period_no_longer(self) -> None:
        async def slow() -> ClusterState:
            await anyio.sleep(0.1)
            return workers(1)

        async with aclosing(Fleet({"a": Scripted(slow)}).poll(interval=0.1)) as readings:
            await taken(readings, 1)
            began = anyio.current_time()
            await taken(readings, 5)
            assert anyio.current_time() - began < 0.8

    async def test_those_that_hang_keep_half_of_the_turns_at_most(self) -> None:
        stuck, good = scripted(8, answer=hang), {"good": Scripted()}
        fleet = Fleet(stuck, timeout=0.05, max_concurrency=4)
        await fleet.resolve()
        fleet.add("good", good["good"])
        async with aclosing(Fleet.poll(fleet, interval=SHORT)) as readings:
            most, count = 0, 0
            while count < 20:
                [reading] = await taken(readings, 1)
                count += reading.name == "good"
                most = max(most, sum(target.asking for target in stuck.values()))
        assert 1 <= most <= 2

    async def test_a_slow_consumer_gets_the_newest_of_each_target_and_who_waits_longest_first(self) -> None:
        counts: Counter[str] = Counter()

        def counting(name: str) -> Scripted:
            async def count() -> ClusterState:
                counts[name] += 1
                return workers(counts[name])

            return Scripted(count)

        fleet = Fleet({f"t{n}": counting(f"t{n}") for n in range(3)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            [first] = await taken(readings, 1)
            await until(lambda: min(counts.values()) >= 5)
            seen = dict(fleet.readings)
            late = await taken(readings, 3)
        assert [reading.name for reading in late] == ["t1", "t2", "t0"]
        assert first == Reading("t0", workers(1), latency=first.latency)
        assert {reading.name: reading for reading in late} == seen

    async def test_a_fault_that_does_not_pass_is_told_and_asked_again(self) -> None:
        async def forbidden() -> ClusterState:
            raise APIError("403: no", status=403)

        async with aclosing(Fleet({"a": Scripted(forbidden)}).poll(interval=SHORT)) as readings:
            for reading in await taken(readings, 3):
                assert isinstance(reading.error, APIError)

    async def test_a_bug_in_a_resolver_is_raised(self) -> None:
        async def bug() -> ClusterState:
            raise ZeroDivisionError("a bug")

        targets = {"good": Scripted(), "bug": Scripted(bug)}
        with pytest.raises(ZeroDivisionError, match="a bug"):
            await exhausted(Fleet(targets), SHORT)
        assert targets["good"].history == ["entered", "left"]

    async def test_a_target_may_be_added_meanwhile(self) -> None:
        fleet = Fleet(scripted(1))
        async with aclosing(fleet.poll(interval=3600.0)) as readings:
            await taken(readings, 1)
            fleet.add("new", Scripted(answer_of(7)))
            [reading] = await taken(readings, 1)
            assert (reading.name, reading.num_tasks) == ("new", 7)

    async def test_a_fleet_of_none_waits_for_its_first_target(self) -> None:
        fleet = Fleet()
        async with aclosing(fleet.poll()) as readings, anyio.create_task_group() as group:

            async def add() -> None:
                await anyio.wait_all_tasks_blocked()
                fleet.add("first", Scripted())

            group.start_soon(add)
            assert (await taken(readings, 1))[0].name == "first"

    async def test_of_a_target_removed_meanwhile_nothing_follows(self) -> None:
        targets = scripted(2)
        fleet = Fleet(targets)
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await taken(readings, 1)
            await until(lambda: targets["t1"].asked > 2)
            fleet.remove("t1")
            assert {reading.name for reading in await taken(readings, 5)} == {"t0"}
            assert targets["t1"].history == ["entered", "left"]
            asked = targets["t1"].asked
            assert list(fleet.readings) == ["t0"]
            fleet.add("t1", targets["t1"])
            await until(lambda: targets["t1"].asked > asked)
        assert targets["t1"].history == ["entered", "left"] * 2

    async def test_a_target_removed_while_it_is_asked_is_asked_no_longer(self) -> None:
        stuck = Scripted(hang)
        fleet = Fleet({"stuck": stuck, **scripted(1)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await taken(readings, 1)
            assert stuck.asking == 1
            fleet.remove("stuck")
            await taken(readings, 2)
            assert stuck.asking == 0
            assert stuck.history == ["entered", "left"]

    async def test_a_resolver_of_two_names_stays_open_until_both_are_removed(self) -> None:
        resolver = Scripted()
        fleet = Fleet({"a": resolver, "b": resolver, **scripted(1)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await taken(readings, 3)
            fleet.remove("a")
            await taken(readings, 5)
            assert resolver.history == ["entered"]
            fleet.remove("b")
            await taken(readings, 2)
            assert resolver.history == ["entered", "left"]

    async def test_who_is_removed_as_its_turn_comes_opens_nothing(self) -> None:
        resolver, connections = Scripted(), Connections()
        async with connections.kept():
            with anyio.CancelScope() as removed:
                removed.cancel()
                async with connections.visit(resolver):
                    raise AssertionError
            await anyio.wait_all_tasks_blocked()
            assert resolver.history == []

    async def test_a_poll_and_a_watch_and_a_question_may_go_on_at_a_time(self) -> None:
        targets = scripted(3)
        fleet = Fleet(targets)
        async with (
            aclosing(fleet.poll(interval=SHORT)) as polled,
            aclosing(fleet.watch(interval=SHORT)) as watched,
        ):
            assert len(await taken(polled, 3)) == len(await taken(watched, 3)) == len(await fleet.resolve())
            assert [target.history for target in targets.values()] == [["entered"]] * 3
            await polled.aclose()
            assert [target.history for target in targets.values()] == [["entered"]] * 3
        assert [target.history for target in targets.values()] == [["entered", "left"]] * 3


async def exhausted(fleet: Fleet, interval: float) -> None:
    async with aclosing(fleet.poll(interval=interval)) as readings:
        async for _ in readings:
            pass


class TestWatch:
    async def test_the_state_is_told_at_first_and_then_each_change(self) -> None:
        source = Source()
        source.show(Observation(workers(1)))
        async with aclosing(Fleet({"a": source}).watch()) as readings:
            [first] = await taken(readings, 1)
            assert (first.num_tasks, first.error) == (1, None)
            assert first.latency is not None
            source.show(Observation(workers(1)), Observation(workers(2)))
            [second] = await taken(readings, 1)
            assert (second.num_tasks, second.latency) == (2, None)
        assert (source.begun, source.watches) == (1, 0)

    async def test_a_change_of_who_is_missing_alone_is_not_told_but_known(self) -> None:
        source = Source()
        fleet = Fleet({"a": source})
        missing = Missing("worker", "ml/train-1", "Pending")
        source.show(Observation(workers(1)))
        async with aclosing(fleet.watch()) as readings:
            await taken(readings, 1)
            source.show(Observation(workers(1), (missing,)))
            await until(lambda: fleet.readings["a"].absent == (missing,))
            source.show(Observation(workers(2)))
            assert (await taken(readings, 1))[0].num_tasks == 2

    async def test_a_source_that_cannot_be_asked_is_told_once_and_so_is_its_recovery(self) -> None:
        source = Source()
        source.show(Observation(workers(1)))
        async with aclosing(Fleet({"a": source}).watch()) as readings:
            await taken(readings, 1)
            for attempt in range(3):
                error = ConnectionFailedError("nobody there")
                source.show(Observation(workers(1), error=error, stale_since=NOON + attempt * timedelta(1)))
            [stale] = await taken(readings, 1)
            assert (stale.state, stale.stale_since, stale.is_stale) == (workers(1), NOON, True)
            assert isinstance(stale.error, ConnectionFailedError)
            source.show(Observation(workers(1)))
            [well] = await taken(readings, 1)
            assert (well.state, well.error, well.stale_since) == (workers(1), None, None)

    async def test_a_state_that_changes_while_a_part_of_the_source_fails_is_told(self) -> None:
        source = Source()
        error = ConnectionFailedError("nobody there")
        source.show(Observation(workers(1), error=error, stale_since=NOON))
        async with aclosing(Fleet({"a": source}).watch()) as readings:
            await taken(readings, 1)
            source.show(Observation(workers(2), error=error, stale_since=NOON))
            [reading] = await taken(readings, 1)
            assert (reading.num_tasks, reading.error, reading.stale_since) == (2, error, NOON)

    async def test_a_watch_that_ends_with_an_error_is_told_and_begun_again_with_the_state_kept(self) -> None:
        source = Source()
        source.show(Observation(workers(1)))
        async with aclosing(Fleet({"a": source}).watch(interval=SHORT)) as readings:
            await taken(readings, 1)
            source.show(APIError("403: no", status=403), APIError("403: no", status=403))
            [stale] = await taken(readings, 1)
            assert stale.state == workers(1)
            assert stale.is_stale
            assert stale.stale_since is not None
            await until(lambda: source.begun >= 3)
            source.show(Observation(workers(4)))
            [well] = await taken(readings, 1)
            assert (well.num_tasks, well.error) == (4, None)

    async def test_a_watch_that_fails_again_and_again_is_begun_more_and_more_rarely(self) -> None:
        class Refused(Source):
            async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
                self.begun += 1
                self.show(APIError("403: no", status=403))
                async for observation in super().observations():
                    yield observation

        source, good = Refused(), Scripted()
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for _ in Fleet({"bad": source, "good": good}).watch(interval=0.01):
                    pass

            group.start_soon(watch)
            await until(lambda: good.asked >= 100)
            group.cancel_scope.cancel()
        assert 1 < source.begun < 30

    async def test_a_watch_that_does_not_begin_in_time_is_told_and_still_waited_for(self) -> None:
        source = Source()
        async with aclosing(Fleet({"a": source}, timeout=0.05).watch()) as readings:
            [late] = await taken(readings, 1)
            assert isinstance(late.error, DeadlineExceededError)
            assert late.state is None
            source.show(Observation(workers(1)))
            [well] = await taken(readings, 1)
            assert (well.num_tasks, well.error) == (1, None)
        assert source.begun == 1

    async def test_watches_that_have_not_begun_are_bounded_in_number(self) -> None:
        sources = {f"s{n}": Source() for n in range(10)}
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for _ in Fleet(sources, max_concurrency=3).watch():
                    pass

            group.start_soon(watch)
            for answered in range(8):
                await anyio.wait_all_tasks_blocked()
                assert sum(source.begun for source in sources.values()) == 3 + answered
                sources[f"s{answered}"].show(Observation(workers(1)))
            group.cancel_scope.cancel()

    async def test_a_source_without_a_watch_is_polled(self) -> None:
        resolver = Scripted(answer_of(1))
        async with aclosing(Fleet({"a": resolver}).watch(interval=SHORT)) as readings:
            await taken(readings, 1)
            await until(lambda: resolver.asked >= 4)
            resolver.answer = answer_of(2)
            assert (await taken(readings, 1))[0].num_tasks == 2
            resolver.answer = fail
            [stale] = await taken(readings, 1)
            assert (stale.num_tasks, stale.is_stale) == (2, True)

    async def test_observations_that_end_are_the_resolvers_fault(self) -> None:
        class Ending(Source):
            async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
                yield Observation(workers(1))

        async with aclosing(Fleet({"a": Ending()}).watch()) as readings:
            assert not (await taken(readings, 1))[0].is_stale
            [stale] = await taken(readings, 1)
            assert stale.is_stale
            assert "they have to go on" in str(stale.error)

    async def test_a_bug_in_a_resolver_is_raised(self) -> None:
        source = Source()
        source.show(Observation(workers(1)))
        async with aclosing(Fleet({"a": source, "b": Source()}).watch()) as readings:
            await taken(readings, 1)
            source.show(ZeroDivisionError("a bug"))
            with pytest.raises(ZeroDivisionError, match="a bug"):
                await taken(readings, 1)

    async def test_targets_may_be_added_and_removed_meanwhile(self) -> None:
        old, new = Source(), Source()
        fleet = Fleet({"old": old})
        old.show(Observation(workers(1)))
        new.show(Observation(workers(2)))
        async with aclosing(fleet.watch()) as readings:
            await taken(readings, 1)
            fleet.add("new", new)
            assert (await taken(readings, 1))[0].name == "new"
            old.show(Observation(workers(5)))
            await until(lambda: fleet.readings["old"].num_tasks == 5)
            fleet.remove("old")
            await until(lambda: old.watches == 0)
            new.show(Observation(workers(3)))
            [reading] = await taken(readings, 1)
            assert (reading.name, reading.num_tasks) == ("new", 3)


class TestTelling:
    async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "aioresolve.fleet")
        resolver = Scripted(fail)
        async with aclosing(Fleet({"us-east": resolver}).poll(interval=SHORT)) as readings:
            await taken(readings, 3)
            resolver.answer = answer_of(1)
            await until(lambda: len(caplog.records) == 2)
        assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
        assert "target 'us-east' cannot be asked: nobody there" in caplog.text
        assert [vars(record)["target"] for record in caplog.records] == ["us-east"] * 2

    async def test_gauges_show_a_target_for_as_long_as_it_is_followed(self) -> None:
        resolver = Scripted(answer_of(3))
        fleet = Fleet({"us-east": resolver, **scripted(1)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await taken(readings, 2)
            assert task_counts["us-east"] == {"worker": 3}
            assert stale_since["us-east"] is None
            resolver.answer = fail
            await until(lambda: stale_since["us-east"])
            assert stale_since["us-east"] == fleet.readings["us-east"].stale_since
            fleet.remove("us-east")
            await until(lambda: "us-east" not in task_counts)
            assert "us-east" not in stale_since
        assert "t0" not in task_counts

    async def test_a_target_that_never_answered_is_stale_since_it_was_asked(self) -> None:
        fleet = Fleet({"us-east": Scripted(fail)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await taken(readings, 1)
            assert stale_since["us-east"] is not None
            assert fleet.readings["us-east"].stale_since is None


class TestLeaving:
    @pytest.mark.parametrize("number", [0, 1, 3, 7])
    @pytest.mark.parametrize("goes_on", ["poll", "watch"])
    async def test_the_loop_may_be_left_at_any_point(self, goes_on: str, number: int) -> None:
        targets: dict[str, Scripted] = {**scripted(3), "stuck": Scripted(hang), "bad": Scripted(fail)}
        readings = getattr(Fleet(targets), goes_on)(interval=SHORT)
        if goes_on == "watch":
            number = min(number, 3)
        await taken(readings, number)
        await readings.aclose()
        assert all(target.asking == 0 for target in targets.values())
        assert all(target.history in ([], ["entered", "left"]) for target in targets.values())

    async def test_a_loop_that_was_dropped_is_closed_by_the_event_loop(self) -> None:
        targets = scripted(3)
        async for _ in Fleet(targets).poll(interval=SHORT):
            break
        gc.collect()
        await until(lambda: all(target.history == ["entered", "left"] for target in targets.values()))

    async def test_cancelling_the_consumer_ends_everything(self) -> None:
        targets = scripted(3, answer=hang)
        with anyio.move_on_after(0.05):
            await exhausted(Fleet(targets), SHORT)
        assert all(target.history == ["entered", "left"] for target in targets.values())

    async def test_a_second_native_cancel_while_it_closes_leaves_nothing(self) -> None:
        class Slow(Scripted):
            async def aclose(self) -> None:
                self.history.append("leaving")
                await anyio.sleep(0.05)
                await super().aclose()

        targets = {f"t{n}": Slow() for n in range(3)}
        task = asyncio.create_task(exhausted(Fleet(targets), SHORT))
        await until(lambda: all(target.asked for target in targets.values()))
        task.cancel()
        await until(lambda: targets["t2"].history[-1] == "leaving")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert all(target.history[-1] == "left" for target in targets.values())

    async def test_a_resolver_that_fails_to_close_harms_nobody(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Broken(Scripted):
            async def aclose(self) -> None:
                raise ResolveError("broken pipe")

        targets: dict[str, ClusterResolver] = {"broken": Broken(), **scripted(2)}
        assert len(await Fleet(targets).resolve()) == 3
        assert [record.name for record in caplog.records] == ["aioresolve.fleet"]
        assert "broken pipe" in caplog.text
