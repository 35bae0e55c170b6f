"""`Fleet`: targets, statuses, and the resolvers that are entered."""

import asyncio
import inspect
from collections import Counter
from contextlib import aclosing
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from aioresolve.errors import (
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidClusterError,
)
from aioresolve.fleet import Fleet, TargetStatus
from aioresolve.resolver.union import UnionClusterResolver
from aioresolve.spec import ClusterState, Missing, Observation

from .fleets import (
    Pooled,
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

SHORT = 0.02
"""Seconds; an interval whose length does not matter."""


@each_in_virtual_time
class TestTargets:
    def test_targets_are_a_read_only_view_by_name(self) -> None:
        targets = scripted(3)
        fleet = Fleet(targets)
        assert dict(fleet.targets) == targets
        assert list(fleet.targets) == ["t0", "t1", "t2"]
        view: Any = fleet.targets
        with pytest.raises(TypeError):
            view["t3"] = Scripted()
        assert repr(fleet) == "<Fleet of 3 targets>"

    def test_resolvers_without_names_are_rejected(self) -> None:
        targets: Any
        for targets in ([Scripted()], (), {Scripted()}, Scripted(), "a"):
            expected = f"a mapping of names to resolvers; got {type(targets).__name__}. Give each"
            with pytest.raises(InvalidClusterError, match=expected):
                Fleet(targets)

    def test_name_that_is_in_use_and_invalid_names_and_resolvers_are_rejected(self) -> None:
        with pytest.raises(ConfigurationError, match="there is already a target 't0'"):
            Fleet(scripted(1)).add("t0", Scripted())
        invalid: Any
        for invalid in ("", 7, None):
            with pytest.raises(ConfigurationError, match=f"^{invalid!r} is not a name for a target"):
                Fleet().add(invalid, Scripted())
        invalid = {"a": "b"}
        with pytest.raises(InvalidClusterError, match=r"target 'a' is not an .*: str 'b'\. Pass a resolver"):
            Fleet(invalid)

    def test_removing_an_unknown_target_lists_the_targets(self) -> None:
        with pytest.raises(ConfigurationError, match=r"no target is named 'b'; there are 't0'.*, 't14'$"):
            Fleet(scripted(15)).remove("b")
        with pytest.raises(ConfigurationError, match=r"'t13', 't14', \.\.\.$"):
            Fleet(scripted(16)).remove("b")

    async def test_invalid_number_is_named(self) -> None:
        invalid: Any
        for invalid in (0, -1, True, "4"):
            with pytest.raises(ConfigurationError, match=f"`max_concurrency=`: {invalid!r}"):
                Fleet(max_concurrency=invalid)
        with pytest.raises(ConfigurationError, match="`timeout=`"):
            Fleet(timeout=0)
        for method in (Fleet().poll, Fleet().watch):
            assert inspect.signature(method).parameters["interval"].default == 30.0
            with pytest.raises(ConfigurationError, match="interval="):
                await anext(method(interval=0))


class TestShards:
    def test_new_shard_takes_its_share_from_all_others_and_nothing_else_moves(self) -> None:
        def shard_of(number: int) -> dict[str, int]:
            shards = [Fleet(targets, shard=(index, number)) for index in range(number)]
            assert [shard.shard for shard in shards] == [(index, number) for index in range(number)]
            assert sum(len(shard.targets) for shard in shards) == len(targets)  # none is in two of them
            return {name: index for index, shard in enumerate(shards) for name in shard.targets}

        targets = scripted(1000)
        before, after = shard_of(4), shard_of(5)
        Fleet(targets, shard=(0, 5)).remove("t0")  # a target of another shard is ignored
        assert before.keys() == after.keys() == targets.keys()
        assert all(after[name] in (before[name], 4) for name in targets)
        for counts in (Counter(before.values()), Counter(after.values())):
            assert all(0.8 < count * len(counts) / len(targets) < 1.2 for count in counts.values())
        assert [after[name] for name in ("t0", "t1", "t2", "t3", "t4", "t5")] == [1, 3, 0, 1, 4, 3]

    def test_invalid_shard_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def rejects(shard: Any, problem: str) -> None:
            with pytest.raises(ConfigurationError, match=rf"^`shard=`: {problem}"):
                Fleet(shard=shard)

        for shard in (0, True, "4", 4.0, (4, 4), (-1, 4), (0,), (0, 1, 2), (True, 2), [0, 2]):
            rejects(shard, r".*such as \(0, 4\)")
        assert Fleet(shard=(999, 1000)).shard == (999, 1000)
        rejects((0, 1001), r".*at most 1,000")
        rejects(4, r".*INDEX is not set\. Pass the index as well")
        for index in ("", "one", "-1", "1.0", "²", "4"):
            monkeypatch.setenv("JOB_COMPLETION_INDEX", index)
            rejects(4, f".*INDEX is '{index}'")

    def test_index_is_that_of_the_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "2")
        fleet = Fleet(scripted(50), shard=4)
        assert list(fleet.targets) == list(Fleet(scripted(50), shard=(2, 4)).targets)
        assert repr(fleet) == f"<Fleet of {len(fleet.targets)} targets, shard 2 of 4>"
        monkeypatch.setenv("JOB_COMPLETION_INDEX", "0")
        assert Fleet(shard=1).shard == (0, 1)


@each_in_virtual_time
class TestResolve:
    async def test_each_target_is_requested_once_and_returned_in_order(self) -> None:
        targets = {f"t{n}": Scripted(respond_with(n)) for n in range(20)}
        fleet = Fleet(targets)
        assert await Fleet().resolve() == {}
        readings = await fleet.resolve()
        assert list(readings) == list(targets)
        assert [reading.num_tasks for reading in readings.values()] == list(range(20))
        assert all(reading.error is None for reading in readings.values())
        assert all(target.num_requests == 1 for target in targets.values())
        assert readings["t3"] == fleet.readings["t3"]
        assert readings["t3"].state == workers(3)
        assert readings["t3"].tasks_by_job == {"worker": 3}
        latency = readings["t3"].latency
        assert latency is not None
        assert 0.0 <= latency < 5.0

    async def test_target_that_hangs_has_its_own_deadline(self) -> None:
        fleet = Fleet({"good": Scripted(), "stuck": Scripted(hang)}, timeout=0.5)
        readings = await fleet.resolve()
        error = readings["stuck"].error
        assert isinstance(error, DeadlineExceededError)
        assert "the request to target 'stuck'" in str(error)
        assert error.timeout == 0.5
        assert readings["good"].error is None
        assert readings["stuck"].latency is not None
        assert readings["stuck"].latency > 0.4

    async def test_latency_is_the_duration_of_the_latest_request(self) -> None:
        async def respond() -> ClusterState:
            await anyio.sleep(delay)
            return await fail() if delay < 0.5 else workers(int(4 * delay))

        delay = 0.5
        fleet = Fleet({"a": Scripted(respond)})
        await anyio.sleep(7.0)
        statuses = [(await fleet.resolve())["a"]]
        async with aclosing(fleet.watch()) as readings:
            for delay in (0.5, 0.75):  # noqa: B007 - `respond` reads it
                statuses += await take(readings, 1)
        delay = 0.25
        statuses.append((await fleet.resolve())["a"])
        assert [status.latency for status in statuses] == pytest.approx([0.5, 0.5, 0.75, 0.25])

    async def test_entering_the_resolver_has_the_deadline_and_its_error_is_in_the_status(self) -> None:
        class Slow(Scripted):
            async def __aenter__(self) -> Any:
                await anyio.sleep_forever()

        class Broken(Scripted):
            async def __aenter__(self) -> Any:
                raise ConfigurationError("is entered already")

        targets = {"stuck": Slow(timeout=0.2), "broken": Broken(), "good": Scripted()}
        readings = await Fleet(targets, timeout=0.05).resolve()
        assert isinstance(readings["stuck"].error, DeadlineExceededError)
        assert str(readings["broken"].error) == "is entered already"
        assert readings["good"].error is None

    async def test_targets_are_requested_concurrently_up_to_the_limit(self) -> None:
        targets: dict[str, Scripted] = {}
        most = 0

        async def look() -> ClusterState:
            nonlocal most
            most = max(most, sum(target.num_active for target in targets.values()))
            await anyio.sleep(0.002)
            return workers(1)

        targets |= scripted(40, respond=look)
        await Fleet(targets, max_concurrency=32).resolve()
        assert most == 32

    @pytest.mark.parametrize("bug", [KeyError("WORKERS"), asyncio.CancelledError()], ids=repr)
    async def test_unexpected_exception_of_a_resolver_is_in_its_status_and_logged(
        self, caplog: pytest.LogCaptureFixture, bug: BaseException
    ) -> None:
        async def fail() -> ClusterState:
            raise bug

        readings = await Fleet({**scripted(3), "bug": Scripted(fail)}).resolve()
        assert [name for name, reading in readings.items() if reading.error] == ["bug"]
        error = readings["bug"].error
        assert error is not None
        assert " raised " in str(error)
        cause = error.__cause__
        assert cause is not None
        assert bug in (cause, cause.__cause__)
        [record] = caplog.records
        assert (record.levelname, vars(record)["target"]) == ("ERROR", "bug")
        assert "in fail\n    raise bug" in caplog.text

    async def test_cancelling_resolve_cancels_every_request(self) -> None:
        targets = scripted(5, respond=hang)
        async with anyio.create_task_group() as group:
            group.start_soon(Fleet(targets).resolve)
            await until(lambda: all(target.num_active for target in targets.values()))
            group.cancel_scope.cancel()
        assert [target.num_active for target in targets.values()] == [0] * 5
        assert all(target.history == ["entered", "left"] for target in targets.values())

    async def test_target_removed_during_resolve_has_no_status(self) -> None:
        stuck = Scripted(hang)
        fleet = Fleet({"good": Scripted(), "stuck": stuck})
        async with anyio.create_task_group() as group:

            async def remove() -> None:
                await until(lambda: stuck.num_active)
                fleet.remove("stuck")

            group.start_soon(remove)
            assert list(await fleet.resolve()) == ["good"]
        assert list(fleet.readings) == ["good"]
        assert stuck.history == ["entered", "left"]


@each_in_virtual_time
class TestStaleness:
    async def test_missing_members_are_part_of_the_status(self) -> None:
        missing = Missing("worker", "ml/train-1", "Pending"), Missing("worker", "ml/train-0", "not ready")
        source = Source()
        source.emit(Observation(workers(2), missing[:1], missing[1:]))
        async with aclosing(Fleet({"a": source}).watch()) as readings:
            [reading] = await take(readings, 1)
            assert (reading.absent, reading.unready) == (missing[:1], missing[1:])
            source.emit(ConnectionFailedError("gone"))
            [reading] = await take(readings, 1)
            assert (reading.absent, reading.unready) == (missing[:1], missing[1:])

    async def test_stored_errors_have_no_frames_and_do_not_grow(self) -> None:
        cause = ValueError("first")
        for _ in range(50):
            later = ValueError("later")
            later.__cause__ = later.__context__ = cause
            cause = later
        error = ConnectionFailedError("connection refused")

        async def fail_again() -> ClusterState:
            raise error from cause

        fleet = Fleet({"a": Scripted(fail_again)})
        for _ in range(3):
            await fleet.resolve()
        link: BaseException | None = fleet.readings["a"].error
        assert link is error
        length = 0
        while link is not None:
            assert link.__traceback__ is None
            assert link.__context__ is None
            link, length = link.__cause__, length + 1
        assert length == 8


@each_in_virtual_time
class TestEntering:
    async def test_call_outside_async_with_enters_and_leaves(self) -> None:
        targets = scripted(2)
        fleet = Fleet(targets)
        await fleet.resolve()
        await fleet.resolve()
        assert [target.history for target in targets.values()] == [["entered", "left"] * 2] * 2

    async def test_resolvers_are_entered_once_inside_async_with(self) -> None:
        targets = scripted(2)
        async with Fleet(targets) as fleet:
            await fleet.resolve()
            async with aclosing(fleet.poll(interval=SHORT)) as readings:
                await take(readings, 4)
            assert [target.history for target in targets.values()] == [["entered"]] * 2
            fleet.remove("t0")
            await until(lambda: targets["t0"].history == ["entered", "left"])
        assert [target.history for target in targets.values()] == [["entered", "left"]] * 2

    async def test_resolver_can_be_a_target_and_part_of_unions(self) -> None:
        one, other = Scripted(respond_with(1)), Scripted(respond_with(2))
        inner = UnionClusterResolver(one, other)
        fleet = Fleet(
            {
                "one": one,
                "inner": inner,
                "outer": UnionClusterResolver(inner, other),
                "other": UnionClusterResolver(other),
            }
        )
        async with fleet:
            for _ in range(2):
                readings = await fleet.resolve()
                assert [reading.num_tasks for reading in readings.values()] == [1, 3, 5, 2]
            assert one.history == other.history == ["entered"]
            for name in ("one", "outer", "inner"):
                assert one.history == ["entered"]
                fleet.remove(name)
            await until(lambda: one.history == ["entered", "left"])
            assert other.history == ["entered"]
        assert other.history == ["entered", "left"]

    async def test_fleet_can_be_entered_again_but_not_twice_at_once(self) -> None:
        fleet = Fleet(scripted(1))
        async with fleet:
            with pytest.raises(ConfigurationError, match="is already entered"):
                await fleet.__aenter__()
        async with fleet:
            assert len(await fleet.resolve()) == 1
        await fleet.aclose()


@each_in_virtual_time
class TestSharedClients:
    async def test_client_is_closed_with_its_last_target(self) -> None:
        clients: list[str] = []
        fleet = Fleet({f"{key}{n}": Pooled(key, clients) for key in "ab" for n in range(2)})
        async with aclosing(fleet.poll(interval=SHORT)) as readings:
            await take(readings, 4)
            fleet.remove("a0")
            await take(readings, 4)
            assert sorted(clients) == ["a", "b"]
            fleet.remove("a1")
            await until(lambda: clients == ["b"])
            fleet.add("a2", Pooled("a", clients))
            await until(lambda: "a2" in fleet.readings)
            assert sorted(clients) == ["a", "b"]
        assert clients == []


async def test_fleet_can_be_used_in_one_event_loop_after_another() -> None:
    fleet = Fleet(scripted(3))

    def in_another_loop() -> dict[str, TargetStatus]:
        return asyncio.run(fleet.resolve())

    for _ in range(2):
        readings = await anyio.to_thread.run_sync(in_another_loop)
        assert [reading.error for reading in readings.values()] == [None] * 3
    assert len(await fleet.resolve()) == 3
