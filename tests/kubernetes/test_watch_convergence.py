"""Generated schedules of changes and faults: at each quiet point the watch agrees with the server."""

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

from aioresolve.errors import DeadlineExceededError
from aioresolve.testing import Answer, Cut, Delay, End, Hang, Reset, Stall, Trickle, WatchError, pod
from tests.conftest import SLOW_CALLBACK

from .convergence import (
    CONFIGS,
    NAMES,
    NAMESPACES,
    Finish,
    Follower,
    Put,
    Remove,
    ResolverConfig,
    absent,
    is_being_deleted,
    is_subsequence,
    readiness,
    truth,
    truth_of,
    writes,
)
from .loopback import TOKEN, client_sockets, run_loopback
from .samples import watch_policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from aioresolve.spec import Observation
    from aioresolve.testing import Fault

    from .convergence import Truth
    from .loopback import Loopback

QUICK = watch_policy(
    0.001,
    0.01,
    min_lifetime=1.0,
    max_lifetime=100.0,
    max_silence=0.15,
    response_timeout=0.3,
    max_initial_silence=0.15,
    max_transit=0.005,
)
BOOKMARKS = 0.03
"""Seconds between two bookmarks: a healthy watch is never silent for long."""

CONVERGING = 60.0
"""Seconds within which a watch agrees with the server once all faults are gone."""

TIMEOUT = 30.0
"""Seconds that a list may take."""

MOST_REFUSALS = 4
"""How many times in a row a query may be denied before it is given up."""


# The steps of a schedule other than writes


@dataclass(frozen=True)
class Disturb:
    """A fault in the open watches, of one selector or all."""

    fault: Fault
    selector: str | None = None


@dataclass(frozen=True)
class Inject:
    """A fault in the next requests with a verb."""

    fault: Fault
    verb: str
    times: int


@dataclass(frozen=True)
class Bookmarks:
    """Every watch gets this number of bookmarks at once."""

    number: int


@dataclass(frozen=True)
class Outage:
    """The server stops, writes happen, and it starts again, perhaps without its history."""

    meanwhile: list[Any]
    is_compacted: bool


@dataclass(frozen=True)
class Compact:
    """Every version returned so far expires."""


@dataclass(frozen=True)
class RotateToken:
    """The token in the file is replaced, and the old one is rejected soon after."""


@dataclass(frozen=True)
class Pause:
    """Time for the client to run."""

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
"""The steps between two quiet points."""


class World:
    """The server of one schedule, the expected members, and the follower of the watch."""

    def __init__(self, loopback: Loopback, config: ResolverConfig, follower: Follower) -> None:
        self.server = loopback.server
        self.token_file = loopback.kubeconfig.with_name("token")
        self.config = config
        self.follower = follower
        self.history: list[Truth | None] = [self.truth]
        self.refusals = MOST_REFUSALS  # at first, one would be believed

    @property
    def truth(self) -> Truth | None:
        return truth(self.server.pods, self.config)

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
                # Two of them during one request look like a rejection.
                self.refusals += 1
                self.rotate_token()
            case Pause(seconds):
                await anyio.sleep(seconds)
        await anyio.lowlevel.checkpoint()

    def write(self, step: Put | Remove | Finish) -> None:
        """Apply a write, if it is possible."""
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
                if old is not None and is_being_deleted(old):
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
            case Remove(gracefully=True) if old is not None and not is_being_deleted(old):
                server.delete(*place, grace_period_seconds=30)
            case Remove() if old is not None:
                server.delete(*place)
            case Finish() if old is not None and is_being_deleted(old):
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
        # As a kubelet does: a reader gets the complete old token or the complete new one.
        self.token_file.with_suffix(".new").write_text(new)
        self.token_file.with_suffix(".new").replace(self.token_file)
        del tokens[old]

    async def settle(self) -> None:
        """Remove all faults, and wait until every selector is watched and the follower has converged."""
        server, lists = self.server, self.config.lists
        server.clear_faults()
        try:
            await anyio.to_thread.run_sync(server.until, lambda: server.watches == lists, CONVERGING)
        except DeadlineExceededError as error:
            requests = [(each.verb, dict(each.query), each.time) for each in server.requests[-3:]]
            raise AssertionError(
                f"{CONVERGING:g} s later there are {server.watches} watches of {lists};"
                f" last requests: {requests}; last observation: {self.follower.observation}"
            ) from error
        self.refusals = 0
        wanted = self.truth
        if wanted is None:
            return
        held = server.pods
        ready, away = readiness(held), absent(held, self.config)

        def has_converged() -> bool:
            states, observation = self.follower.states, self.follower.observation
            if not states or truth_of(states[-1]) != wanted:
                return False
            return observation is None or is_consistent(observation, ready, away)

        if not await self.follower.until(has_converged, CONVERGING):
            seen = truth_of(self.follower.states[-1]) if self.follower.states else None
            raise AssertionError(
                f"{CONVERGING:g} s later the watch shows {seen}, the server {wanted};"
                f" last observation: {self.follower.observation}"
            )


def is_consistent(observation: Observation, ready: dict[str, bool], away: set[tuple[str, str]]) -> bool:
    """Whether an observation is current and has the right ready, unready and absent pods."""
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
    """An asyncio event loop.

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
    """A server that sends bookmarks often and has a short history; the token is in a file of its own."""
    # pytest keeps all log records, and there are very many faults.
    caplog.set_level(logging.CRITICAL, logger="aioresolve")
    tokens = {f"{TOKEN}-0": "alice"}
    with run_loopback(tmp_path, bookmark_interval=BOOKMARKS, history=64, tokens=tokens) as loopback:
        document = json.loads(loopback.kubeconfig.read_text())
        document["users"][0]["user"] = {"tokenFile": str(tmp_path / "token")}
        loopback.kubeconfig.write_text(json.dumps(document))
        (tmp_path / "token").write_text(f"{TOKEN}-0")
        yield loopback


MARKER = Put("w-2", "ml", "a", "ps", "Running", 99, True)


@asynccontextmanager
async def followed(
    cluster: Loopback,
    config: ResolverConfig,
    before: list[Any],
    *,
    follows: str = "watch",
    pause: float = 0.0,
    is_entered: bool = False,
    watch_list: bool = True,
) -> AsyncIterator[World]:
    """A watch, or observations, of a server that has `before` at first; everything is closed at the end.

    With `watch_list` the watch begins with the existing pods, otherwise they are listed first.
    """
    tasks = asyncio.all_tasks()
    cluster.server.watch_list = watch_list
    cluster.server.clear_faults()
    cluster.replace_pods([])
    follower = Follower(pause)
    world = World(cluster, config, follower)
    for write in before:
        world.write(write)
    world.history = [world.truth]
    resolver = cluster.resolver(
        config.jobs, namespace=config.namespace, order_by=config.order_by, timeout=TIMEOUT
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
    if config.lists == 1:
        assert is_subsequence([truth_of(state) for state in follower.states], world.history)


async def live(world: World, schedule: list[list[Any]]) -> None:
    """Run the schedule; at each quiet point the watch has to converge, and to report one more change."""
    for steps in schedule:
        for step in steps:
            await world.happen(step)
        await world.settle()
    if world.config.order_by == "index":
        # Pods with one index in two namespaces have no order. A single namespace never has two pods with one
        # index.
        for name, namespace in itertools.product(NAMES, NAMESPACES):
            if namespace != MARKER.namespace:
                world.write(Remove(name, namespace, gracefully=False))
    world.write(MARKER)
    await world.settle()


@pytest.mark.timeout(1200)  # it follows a hundred watches
@given(
    config=st.sampled_from(CONFIGS),
    before=st.lists(writes, max_size=8),
    schedule=schedules,
    follows=st.sampled_from(["watch", "observations"]),
    pause=st.sampled_from([0.0, 0.0, 0.01]),
    is_entered=st.booleans(),
    watch_list=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_a_watch_converges_to_the_state_of_the_server(
    cluster: Loopback,
    config: ResolverConfig,
    before: list[Any],
    schedule: list[list[Any]],
    follows: str,
    pause: float,
    is_entered: bool,
    watch_list: bool,
) -> None:
    async def run() -> None:
        async with followed(
            cluster,
            config,
            before,
            follows=follows,
            pause=pause,
            is_entered=is_entered,
            watch_list=watch_list,
        ) as world:
            await live(world, schedule)

    with asyncio.Runner(debug=True, loop_factory=patient_loop) as runner:
        runner.run(run())
    server = cluster.server
    server.until(lambda: server.connections == server.watches == 0)
    assert client_sockets(cluster) == 0


@pytest.mark.asyncio(loop_factories=["asyncio"])  # see `patient_loop`
@pytest.mark.parametrize("watch_list", [True, False])
async def test_the_pods_of_a_restored_server_are_listed_again(cluster: Loopback, watch_list: bool) -> None:
    server = cluster.server

    def restore(version: int) -> None:
        with server.down():
            server.restore(version)

    async with followed(cluster, CONFIGS[0], [MARKER], watch_list=watch_list) as world:
        await world.settle()
        then = server.resource_version
        for name in ("w-0", "w-10"):
            world.write(replace(MARKER, name=name))
        await world.settle()
        await anyio.to_thread.run_sync(restore, then)
        world.history.append(world.truth)
        await world.settle()
        assert len(truth_of(world.follower.states[-1])["worker"]) == 1
