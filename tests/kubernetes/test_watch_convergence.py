"""Generated schedules of changes and faults: after each quiet point a watch shows what the server holds."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve._core.retry import RetryPolicy
from aioresolve.errors import DeadlineExceededError
from aioresolve.kubernetes.reflector import WatchPolicy
from aioresolve.testing import Answer, Cut, Delay, End, Hang, Reset, Stall, Trickle, WatchError, pod
from tests.conftest import SLOW_CALLBACK

from .convergence import (
    NAMES,
    NAMESPACES,
    QUESTIONS,
    Finish,
    Follower,
    Put,
    Question,
    Remove,
    absent,
    is_leaving,
    is_subsequence,
    readiness,
    shown,
    truth,
    writes,
)
from .loopback import TOKEN, client_sockets, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aioresolve.spec import Observation
    from aioresolve.testing import Fault

    from .convergence import Truth
    from .loopback import Loopback

QUICK = WatchPolicy(
    shortest=1.0,
    longest=100.0,
    silence=0.15,
    answering=0.3,
    transit=0.005,
    waits=RetryPolicy(first_wait=0.001, longest_wait=0.01),
)
BOOKMARKS = 0.03
"""Seconds between two bookmarks: a watch that is well is never silent for long."""

CONVERGING = 20.0
"""Seconds within which a watch shows what there is once everything is well again."""

TIMEOUT = 10.0
"""Seconds that a list may take; none is held up for long."""

MOST_REFUSALS = 4
"""How often in a row a query may be refused before that is believed."""


# What happens besides writes


@dataclass(frozen=True)
class Disturb:
    """A fault befalls the watches under way, of one selector or all."""

    fault: Fault
    selector: str | None = None


@dataclass(frozen=True)
class Inject:
    """A fault befalls the next requests with a verb."""

    fault: Fault
    verb: str
    times: int


@dataclass(frozen=True)
class Bookmarks:
    """Every watch is sent so many bookmarks at once."""

    number: int


@dataclass(frozen=True)
class Outage:
    """The server is gone, writes happen, and it is there again; it may have forgotten the past meanwhile."""

    meanwhile: list[Any]
    is_compacted: bool


@dataclass(frozen=True)
class Compact:
    """Every version handed out so far expires."""


@dataclass(frozen=True)
class RotateToken:
    """The token in the file is another one, and soon nobody knows the old one."""


@dataclass(frozen=True)
class Pause:
    """The client has a moment to itself."""

    seconds: float


after = st.integers(0, 300)
disturbances = st.one_of(
    st.builds(Cut, after),
    st.builds(Reset, st.none() | after),
    st.builds(Stall, st.just(0) | after),
    st.builds(End, st.just(0) | after),
    st.builds(Delay, st.floats(0.0, 0.02)),
    st.builds(WatchError, st.sampled_from([410, 410, 429, 500, 503])),
)
passing = st.one_of(
    st.just(Reset()),
    st.builds(Reset, after),
    st.builds(Cut, after),
    st.builds(Answer, st.sampled_from([408, 410, 500, 502, 503, 504])),
    st.just(Answer(429, headers={"Retry-After": "0"})),
    st.builds(Delay, st.floats(0.0, 0.02)),
)
refusing = st.builds(Answer, st.sampled_from([401, 403]))
other_steps = st.one_of(
    st.builds(Disturb, disturbances, st.sampled_from([None, None, "app=a", "app=b", "role=ps"])),
    st.builds(Disturb, disturbances),
    st.builds(Inject, passing, st.sampled_from(["list", "watch", ""]), st.integers(1, 3)),
    st.builds(Inject, refusing, st.sampled_from(["list", "watch", ""]), st.integers(1, 2)),
    st.builds(
        Inject,
        st.one_of(
            st.builds(WatchError, st.sampled_from([410, 429, 500])),
            st.builds(End, after),
            st.builds(Stall, after),
            st.just(Hang()),
            st.builds(Trickle, st.integers(20, 200), st.just(0.001)),
            st.just(Answer(200, b"no event\n")),
        ),
        st.just("watch"),
        st.integers(1, 2),
    ),
    st.builds(Bookmarks, st.integers(1, 3)),
    st.builds(Outage, st.lists(writes, max_size=4), st.booleans()),
    st.just(Compact()),
    st.just(RotateToken()),
    st.builds(Pause, st.floats(0.0, 0.02)),
)
schedules = st.lists(st.lists(writes | other_steps, min_size=1, max_size=8), min_size=1, max_size=8)
"""What happens between one quiet point and the next."""


class World:
    """The server of one schedule, the truth of it, and who follows."""

    def __init__(self, loopback: Loopback, question: Question, follower: Follower) -> None:
        self.server = loopback.server
        self.token_file = loopback.kubeconfig.with_name("token")
        self.question = question
        self.follower = follower
        self.history: list[Truth | None] = [self.truth]
        self.refusals = MOST_REFUSALS  # at first, one would be believed

    @property
    def truth(self) -> Truth | None:
        return truth(self.server.pods, self.question)

    async def happen(self, step: Any) -> None:
        server = self.server
        match step:
            case Put() | Remove() | Finish():
                self.write(step)
            case Disturb(fault, selector):
                server.disturb(
                    fault, match=lambda request: selector in (None, request.query["labelSelector"])
                )
            case Inject(Answer(200 | 401 | 403), _, times) if self.refusals + times > MOST_REFUSALS:
                pass
            case Inject(fault, verb, times):
                if isinstance(fault, Answer) and fault.status in (200, 401, 403):
                    self.refusals += times
                server.inject(fault, match=lambda request: verb in ("", request.verb), times=times)
            case Bookmarks(number):
                for _ in range(number):
                    server.bookmark()
            case Outage(meanwhile, is_compacted):
                with ExitStack() as stack:
                    await anyio.to_thread.run_sync(stack.enter_context, server.down())
                    for write in meanwhile:
                        self.write(write)
                    if is_compacted:
                        server.compact()
                    await anyio.to_thread.run_sync(stack.close)
            case Compact():
                server.compact()
            case RotateToken() if self.refusals < MOST_REFUSALS:
                # Two of them while a request is on its way look like a refusal.
                self.refusals += 1
                self.rotate_token()
            case Pause(seconds):
                await anyio.sleep(seconds)
        await anyio.lowlevel.checkpoint()

    def write(self, step: Put | Remove | Finish) -> None:
        """Let a write happen, if it can."""
        server = self.server
        place = (step.name, step.namespace)
        old = next(
            (
                each
                for each in server.pods
                if (each["metadata"]["name"], each["metadata"]["namespace"]) == place
            ),
            None,
        )
        match step:
            case Put():
                if old is not None and is_leaving(old):
                    server.finish_deletion(*place)
                    self.history.append(self.truth)
                server.add(
                    pod(
                        *place,
                        labels=step.labels,
                        phase=step.phase,  # type: ignore[arg-type]
                        ip=step.address,
                        ready=step.ready,
                    )
                )
            case Remove(gracefully=True) if old is not None and not is_leaving(old):
                server.delete(*place, grace_period_seconds=30)
            case Remove() if old is not None:
                server.delete(*place)
            case Finish() if old is not None and is_leaving(old):
                server.finish_deletion(*place)
            case _:
                return
        self.history.append(self.truth)

    def rotate_token(self) -> None:
        tokens = self.server.tokens
        assert tokens is not None
        (old,) = tokens
        new = f"{TOKEN}-{int(old.rpartition('-')[2]) + 1}"
        tokens[new] = tokens[old]
        # As a kubelet does: whoever reads finds the old one or the new one, whole.
        self.token_file.with_suffix(".new").write_text(new)
        self.token_file.with_suffix(".new").replace(self.token_file)
        del tokens[old]

    async def settle(self) -> None:
        """Let all be well, and wait until every selector is watched and the follower sees what there is."""
        server, lists = self.server, self.question.lists
        server.clear_faults()
        try:
            await anyio.to_thread.run_sync(server.until, lambda: server.watches == lists, CONVERGING)
        except DeadlineExceededError as error:
            asked = [(each.verb, dict(each.query), each.time) for each in server.requests[-3:]]
            raise AssertionError(
                f"{CONVERGING:g} s later there are {server.watches} watches of {lists};"
                f" last requests: {asked}; last observation: {self.follower.observation}"
            ) from error
        self.refusals = 0
        wanted = self.truth
        if wanted is None:
            return
        held = server.pods
        ready, away = readiness(held), absent(held, self.question)

        def has_converged() -> bool:
            states, observation = self.follower.states, self.follower.observation
            if not states or shown(states[-1]) != wanted:
                return False
            return observation is None or tells(observation, ready, away)

        if not await self.follower.until(has_converged, CONVERGING):
            seen = shown(self.follower.states[-1]) if self.follower.states else None
            raise AssertionError(
                f"{CONVERGING:g} s later the watch shows {seen}, the server {wanted};"
                f" last observation: {self.follower.observation}"
            )


def tells(observation: Observation, ready: dict[str, bool], away: set[tuple[str, str]]) -> bool:
    """Whether an observation tells who is ready, who is not, and who is absent; and that it is fresh."""
    assert observation.state is not None
    members = observation.state.members
    unready = {
        (each.job, str(each.endpoint.full_name))
        for each in members
        if not ready[str(each.endpoint.full_name)]
    }
    return (
        observation.error is None
        and all(each.endpoint.ready == ready[str(each.endpoint.full_name)] for each in members)
        and {(each.job, each.name) for each in observation.unready} == unready
        and {(each.job, each.name) for each in observation.absent} == away
    )


def patient_loop() -> asyncio.AbstractEventLoop:
    """A loop of asyncio.

    uvloop aborts the process, now and then, when aiohttp closes a socket that could not be connected:
    https://github.com/libuv/libuv/pull/5129
    """
    loop = asyncio.new_event_loop()
    loop.slow_callback_duration = SLOW_CALLBACK
    return loop


@pytest.fixture
def cluster(
    no_leak: None, tmp_path: Path, quick_retries: None, caplog: pytest.LogCaptureFixture
) -> Iterator[Loopback]:
    """A server that sends bookmarks often and remembers little; the token stands in a file of its own."""
    # pytest keeps what is logged, and there is a fault a moment.
    caplog.set_level(logging.CRITICAL, logger="aioresolve")
    tokens = {f"{TOKEN}-0": "alice"}
    with running(tmp_path, bookmark_interval=BOOKMARKS, history=64, tokens=tokens) as loopback:
        document = json.loads(loopback.kubeconfig.read_text())
        document["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
        loopback.kubeconfig.write_text(json.dumps(document))
        (tmp_path / "token").write_text(f"{TOKEN}-0")
        yield loopback


MARKER = Put("w-2", "ml", "a", "ps", "Running", 99, True)


@asynccontextmanager
async def followed(
    cluster: Loopback,
    question: Question,
    before: list[Any],
    *,
    follows: str = "watch",
    pause: float = 0.0,
    is_entered: bool = False,
) -> AsyncIterator[World]:
    """A watch, or observations, of a server that holds `before` at first; nothing is left of it."""
    tasks = asyncio.all_tasks()
    cluster.server.clear_faults()
    cluster.hold([])
    follower = Follower(pause)
    world = World(cluster, question, follower)
    for write in before:
        world.write(write)
    world.history = [world.truth]
    resolver = cluster.resolver(
        question.jobs, namespace=question.namespace, order_by=question.order_by, timeout=TIMEOUT
    )
    resolver.watch_policy = QUICK
    async with AsyncExitStack() as stack:
        if is_entered:
            await stack.enter_async_context(resolver)
        async with asyncio.TaskGroup() as group:
            following = group.create_task(follower.follow(getattr(resolver, follows)()))
            yield world
            following.cancel()
    assert asyncio.all_tasks() == tasks
    if question.lists == 1:
        assert is_subsequence([shown(state) for state in follower.states], world.history)


async def live(world: World, schedule: list[list[Any]]) -> None:
    """Let everything happen; at each quiet point the watch has to show what there is, and one change more."""
    for steps in schedule:
        for step in steps:
            await world.happen(step)
        await world.settle()
    if world.question.order_by == "index":
        # Pods of one index in two namespaces have no order; a single namespace has no two of one index.
        for name, namespace in itertools.product(NAMES, NAMESPACES):
            if namespace != MARKER.namespace:
                world.write(Remove(name, namespace, gracefully=False))
    world.write(MARKER)
    await world.settle()


@given(
    question=st.sampled_from(QUESTIONS),
    before=st.lists(writes, max_size=8),
    schedule=schedules,
    follows=st.sampled_from(["watch", "observations"]),
    pause=st.sampled_from([0.0, 0.0, 0.01]),
    is_entered=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_watch_converges_to_what_the_server_holds(
    cluster: Loopback,
    question: Question,
    before: list[Any],
    schedule: list[list[Any]],
    follows: str,
    pause: float,
    is_entered: bool,
) -> None:
    async def run() -> None:
        async with followed(
            cluster, question, before, follows=follows, pause=pause, is_entered=is_entered
        ) as world:
            await live(world, schedule)

    with asyncio.Runner(debug=True, loop_factory=patient_loop) as runner:
        runner.run(run())
    server = cluster.server
    server.until(lambda: server.connections == server.watches == 0)
    assert client_sockets(cluster) == 0


@pytest.mark.asyncio(loop_factories=["asyncio"])  # see `patient_loop`
async def test_a_server_that_was_restored_from_a_backup_is_listed_anew(cluster: Loopback) -> None:
    server = cluster.server

    def restore(version: int) -> None:
        with server.down():
            server.restore(version)

    async with followed(cluster, QUESTIONS[0], [MARKER]) as world:
        await world.settle()
        then = server.resource_version
        for name in ("w-0", "w-10"):
            world.write(replace(MARKER, name=name))
        await world.settle()
        await anyio.to_thread.run_sync(restore, then)
        world.history.append(world.truth)
        await world.settle()
        assert len(shown(world.follower.states[-1])["worker"]) == 1
