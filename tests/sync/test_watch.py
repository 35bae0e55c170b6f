"""Iterators that go on in the loop thread: `watch()` of the blocking facade."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from aioresolve import sync
from aioresolve._core.concurrency import Newest, newest_of
from aioresolve.errors import APIError, ConfigurationError, ConnectionFailedError, IncompleteClusterError
from aioresolve.resolver.base import ClusterResolver
from aioresolve.spec import ClusterSpec, Observation
from aioresolve.sync import loop_thread
from aioresolve.sync.loop_thread import get_loop_thread
from aioresolve.testing import KubernetesServer, pod
from tests.fleet.fleets import Scripted, workers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator
    from pathlib import Path

    from aioresolve._core.retry import Progress
    from aioresolve.spec import ClusterState
    from aioresolve.testing import ThreadedKubernetesServer

JOBS = {"worker": ["app=train"]}
REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST")


class Source(ClusterResolver):
    """Has a watch that tells what the test shows, from any thread; counts the watches that go on."""

    def __init__(self) -> None:
        super().__init__(timeout=5.0)
        self.watches = 0
        self.told = 0
        self.requests: list[str] = []
        self._shown: list[ClusterState | BaseException] = []
        self._stirred = asyncio.Event()

    def show(self, *shown: ClusterState | BaseException) -> None:
        """Let the watches tell this."""

        async def show() -> None:
            self._shown += shown
            self._stirred.set()

        get_loop_thread().run(show)

    async def fetch_state(self, progress: Progress) -> ClusterState:
        return workers(1)

    async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
        self.watches += 1
        self.requests.append(REQUEST.get("none"))
        try:
            while True:
                while self._shown:
                    shown = self._shown.pop(0)
                    if isinstance(shown, BaseException):
                        raise shown
                    self.told += 1
                    yield Observation(shown)
                self._stirred.clear()
                await self._stirred.wait()
        finally:
            self.watches -= 1


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    settle()
    assert source.watches == 0


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def settle() -> None:
    """Wait until the loop has nothing left to do."""
    get_loop_thread().run(anyio.wait_all_tasks_blocked)


def test_each_change_is_told(source: Source) -> None:
    resolver = sync.ClusterResolver(source)
    source.show(workers(1))
    told = []
    for state in resolver.watch():
        told.append(state)
        if len(told) == 3:
            break
        source.show(state, workers(len(told) + 1))
    assert told == [workers(1), workers(2), workers(3)]


def test_nothing_begins_before_the_first_next(source: Source) -> None:
    watch = sync.ClusterResolver(source).watch()
    settle()
    assert source.watches == 0
    assert iter(watch) is watch


def test_a_slow_consumer_is_told_the_newest_state() -> None:
    class Eager(Source):
        async def observations(self, *, interval: float = 30.0) -> AsyncGenerator[Observation, None]:
            async def work(newest: Newest[Observation]) -> None:
                async for observation in super(Eager, self).observations():
                    newest.put(observation)

            async with aclosing(newest_of(work)) as observations:
                async for observation in observations:
                    yield observation

    source = Eager()
    source.show(workers(1))
    with closing(sync.ClusterResolver(source).watch()) as watch:
        next(watch)
        source.show(*map(workers, range(2, 9)))
        settle()
        assert next(watch) == workers(8)


async def until(condition: Any) -> None:
    with anyio.fail_after(10.0):
        while not condition():  # noqa: ASYNC110 - a condition on anything has no event of its own
            await anyio.sleep(0.001)


# Leaving


def test_leaving_a_loop_ends_the_watch_soon(source: Source) -> None:
    resolver = sync.ClusterResolver(source)
    source.show(workers(1))
    for _ in resolver.watch():
        assert source.watches == 1
        break
    settle()
    assert source.watches == 0
    assert resolver.cluster_spec() == workers(1).spec


def test_closing_ends_the_watch_at_once(source: Source) -> None:
    source.show(workers(1))
    with closing(sync.ClusterResolver(source).watch()) as watch:
        next(watch)
        assert source.watches == 1
    assert source.watches == 0
    watch.close()
    assert list(watch) == []


def test_a_watch_closed_before_it_began_never_begins(source: Source) -> None:
    watch = sync.ClusterResolver(source).watch()
    watch.close()
    assert list(watch) == []
    assert source.requests == []


def test_a_watch_in_a_circle_ends_when_the_collector_comes(source: Source) -> None:
    source.show(workers(1))
    watch: Any = sync.ClusterResolver(source).watch()
    next(watch)
    watch.itself = watch
    del watch
    gc.collect()
    settle()
    assert source.watches == 0


def test_a_watch_that_is_let_go_in_the_loop_thread_ends(source: Source) -> None:
    source.show(workers(1))
    held = [sync.ClusterResolver(source).watch()]
    next(held[0])

    async def let_go() -> None:
        held.clear()

    get_loop_thread().run(let_go)
    settle()
    assert source.watches == 0


def test_a_watch_keeps_its_resolver(source: Source) -> None:
    source.show(workers(1))
    watch = sync.ClusterResolver(source).watch()
    gc.collect()
    assert next(watch) == workers(1)
    watch.close()


def test_closing_the_resolver_ends_its_watches(source: Source, threads: ThreadPoolExecutor) -> None:
    resolver = sync.ClusterResolver(source)
    source.show(workers(1))
    watch, begun = resolver.watch(), threading.Event()

    def follow() -> list[ClusterState]:
        told = []
        for state in watch:
            told.append(state)
            begun.set()
        return told

    following = threads.submit(follow)
    begun.wait()
    resolver.close()
    assert following.result() == [workers(1)]
    assert list(watch) == []
    source.show(workers(2))
    assert next(resolver.watch()) == workers(2)


def test_closing_a_watch_ends_the_next_of_another_thread(source: Source, threads: ThreadPoolExecutor) -> None:
    watch = sync.ClusterResolver(source).watch()
    following = threads.submit(list, watch)
    get_loop_thread().run(partial(until, lambda: source.watches == 1))
    watch.close()
    assert following.result() == []


# Errors


def test_an_error_is_raised_once_and_ends_the_watch(source: Source) -> None:
    source.show(workers(1), APIError("403: no", status=403))
    watch = sync.ClusterResolver(source).watch()
    assert next(watch) == workers(1)
    with pytest.raises(APIError, match="403: no"):
        next(watch)
    assert list(watch) == []
    assert source.watches == 0


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_would_end_a_loop_reaches_the_caller_and_spares_the_loop(
    source: Source, kind: type[BaseException]
) -> None:
    source.show(workers(1), kind())
    watch = sync.ClusterResolver(source).watch()
    next(watch)
    with pytest.raises(kind):
        next(watch)
    settle()


def test_an_error_that_was_dealt_with_is_held_by_nothing(source: Source) -> None:
    source.show(workers(1), APIError("403: no", status=403))
    watch = sync.ClusterResolver(source).watch()
    next(watch)

    def dealt_with() -> weakref.ref[APIError]:
        try:
            next(watch)
        except APIError as error:
            return weakref.ref(error)
        raise AssertionError

    reference = dealt_with()
    gc.collect()
    assert reference() is None


def test_a_wrong_argument_is_told_by_the_first_next(source: Source) -> None:
    resolver: Any = sync.ClusterResolver(source)
    with pytest.raises(TypeError, match="unexpected keyword argument 'intervall'"):
        next(resolver.watch(intervall=1.0))
    with pytest.raises(ConfigurationError, match="interval=0"):
        next(sync.ClusterResolver(Scripted()).watch(interval=0))


def test_a_watch_that_cannot_enter_its_resolver_says_why() -> None:
    class Broken(Source):
        async def __aenter__(self) -> Any:
            raise ConnectionFailedError("nobody there")

    with pytest.raises(ConnectionFailedError, match="nobody there"):
        next(sync.ClusterResolver(Broken()).watch())


def test_a_next_in_the_loop_thread_is_refused(source: Source) -> None:
    watch = sync.ClusterResolver(source).watch()

    async def ask() -> None:
        next(watch)

    with pytest.raises(ConfigurationError, match="would wait for itself"):
        get_loop_thread().run(ask)


# Threads and contexts


def test_many_threads_may_share_a_watch(source: Source, threads: ThreadPoolExecutor) -> None:
    watch = sync.ClusterResolver(source).watch()
    calls = [threads.submit(next, watch) for _ in range(8)]
    for number in range(8):
        source.show(workers(number + 1))
        get_loop_thread().run(partial(until, lambda number=number: source.told == number + 1))
        settle()
    assert sorted(len(call.result().members) for call in calls) == list(range(1, 9))
    watch.close()


def test_a_watch_sees_the_context_variables_of_its_first_next(source: Source) -> None:
    source.show(workers(1))
    watch = sync.ClusterResolver(source).watch()
    contextvars.copy_context().run(lambda: (REQUEST.set("7"), next(watch)))
    assert source.requests == ["7"]
    watch.close()


async def test_a_watch_may_be_followed_inside_a_running_loop(source: Source) -> None:
    source.show(workers(1))
    with closing(sync.ClusterResolver(source).watch()) as watch:
        assert next(watch) == workers(1)


class Interrupted(BaseException):
    """What the signal handler raises, as that of SIGINT raises KeyboardInterrupt."""


def test_an_interrupt_ends_the_next_that_it_interrupts_and_no_more(source: Source) -> None:
    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        source.show(workers(1))
        watch = sync.ClusterResolver(source).watch()
        next(watch)
        timer = threading.Timer(0.05, signal.pthread_kill, (main, signal.SIGUSR1))
        timer.start()
        with pytest.raises(Interrupted):
            next(watch)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    source.show(workers(2))
    assert next(watch) == workers(2)
    assert len(source.requests) == 1
    watch.close()


def test_what_came_for_an_interrupted_next_is_there_for_the_next_one(source: Source) -> None:
    watch: Any = sync.ClusterResolver(source).watch()

    async def interrupted() -> None:
        with anyio.move_on_after(0.01):
            await watch._next(get_loop_thread())

    watch._thread = get_loop_thread()
    get_loop_thread().run(interrupted)
    source.show(workers(1))
    settle()
    source.show(workers(2))
    settle()
    assert [next(watch), next(watch)] == [workers(1), workers(2)]
    watch.close()


def test_watch_of_another_loop_thread_raises_an_error(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.show(workers(1))
    watch = sync.ClusterResolver(source).watch()
    next(watch)
    first = get_loop_thread()
    with monkeypatch.context() as patch:
        patch.setattr(loop_thread, "_current", None)
        other = get_loop_thread()
        with pytest.raises(ConfigurationError, match="started before this process was forked"):
            next(watch)
        watch.close()
        other.close()
    assert get_loop_thread() is first
    del watch


# What is built upon it


def test_a_union_watches_its_resolvers(source: Source) -> None:
    evaluators = sync.SimpleClusterResolver(ClusterSpec({"evaluator": ["e:1"]}))
    source.show(workers(1))
    union = sync.UnionClusterResolver(sync.ClusterResolver(source), evaluators)
    with closing(union.watch(interval=3600.0)) as watch:
        assert next(watch).spec == ClusterSpec({**workers(1).spec.as_dict(), "evaluator": ["e:1"]})
        source.show(workers(2))
        assert next(watch).spec.num_tasks("worker") == 2
        assert source.watches == 1


def test_a_resolver_that_is_closed_under_its_union_is_told(source: Source) -> None:
    resolver = sync.ClusterResolver(source)
    source.show(workers(1))
    with closing(sync.UnionClusterResolver(resolver).watch()) as watch:
        next(watch)
        resolver.close()
        with pytest.raises(ConnectionFailedError, match="was closed while it was watched"):
            next(watch)


def test_waiting_follows_the_watch(source: Source, threads: ThreadPoolExecutor) -> None:
    resolver = sync.ClusterResolver(source)
    waiting = threads.submit(resolver.wait, 2)
    source.show(workers(1))
    settle()
    assert not waiting.done()
    source.show(workers(2))
    assert waiting.result() == workers(2)
    source.show(workers(1))
    with pytest.raises(IncompleteClusterError, match="2 tasks"):
        resolver.wait(2, timeout=0.05)


# Over real sockets


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    with KubernetesServer([pod("train-0", labels={"app": "train"}, ip="10.0.0.1")]).in_thread() as server:
        yield server
        server.until(lambda: server.connections == server.watches == 0)


def test_pods_are_watched_and_leaving_closes_the_connections(
    server: ThreadedKubernetesServer, tmp_path: Path
) -> None:
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    resolver = sync.KubernetesClusterResolver(JOBS, kubeconfig=kubeconfig)
    seen = []
    for state in resolver.watch():
        seen.append(state.spec.job_tasks("worker"))
        if len(seen) == 2:
            break
        server.until(lambda: server.watches == 1)
        server.add(pod("train-1", labels={"app": "train"}, ip="10.0.0.2"))
    assert seen == [["10.0.0.1:8470"], ["10.0.0.1:8470", "10.0.0.2:8470"]]
    server.until(lambda: server.watches == 0)
    assert resolver.wait(2).spec.job_tasks("worker") == seen[1]
