"""Generated schedules of changes and faults: at each quiet point the watch shows what a new one shows."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aioresolve import KubernetesClusterResolver
from aioresolve.spec import Observation
from aioresolve.testing import (
    Answer,
    Cut,
    Delay,
    End,
    Hang,
    KubernetesServer,
    Reset,
    Stall,
    Trickle,
    WatchError,
    pod,
)
from tests.conftest import SLOW_CALLBACK

from .loopback import Loopback, client_sockets, run_loopback
from .samples import watch_policy
from .watched_cluster import INDEX, contents

QUICK = watch_policy(
    0.001,
    0.01,
    min_lifetime=1.0,
    max_lifetime=100.0,
    max_silence=0.15,
    response_timeout=0.3,
    max_initial_silence=0.15,
)
BOOKMARKS = 0.03
"""Seconds between two bookmarks: a healthy watch is never silent for long."""

CONVERGING = 60.0
"""Seconds within which a watch agrees with the server once all faults are gone."""

MOST_REFUSALS = 4
"""How many times between two quiet points a query may be refused before it is given up."""

# The jobs, the namespace and the order of a resolver. By index, pods of all namespaces would have no order.
CONFIGS: list[dict[str, Any]] = [
    {"jobs": {"worker": ["app=a"]}, "namespace": "ml"},
    {"jobs": {"worker": ["app=a"]}, "namespace": "ml", "order_by": "index"},
    {"jobs": {"worker": ["app=a", "app=b"]}},
    {"jobs": {"worker": ["app=a"], "ps": ["app=b", "role=ps"]}, "namespace": "ml"},
    {"jobs": {"worker": ["app=b", "app=a"], "ps": ["role=ps"]}, "namespace": "ml", "order_by": "index"},
]


def perform(server: Any, step: tuple[Any, ...]) -> None:
    """Change pods of the server, or have it fail."""
    match step:
        case "put", place, labels, phase, ip, ready, deleting:
            # Create a pod, or change one in one or many ways at once; without a phase, delete it for good.
            known = {(each["metadata"]["name"], each["metadata"]["namespace"]) for each in server.pods}
            if place in known and (phase is None or "deletionTimestamp" in server.pod(*place)["metadata"]):
                server.delete(*place)
            if phase is None:
                return
            index = place[0].rpartition("-")[2]
            labels = {INDEX: index, **dict(each.split("=") for each in labels)}
            ip = None if ip is None else f"10.{len(place[1])}.{index}.{ip}"
            server.add(pod(*place, labels=labels, phase=phase, ip=ip, ready=ready, deleting=deleting))
        case "disturb", fault, selector:
            server.disturb(fault, match=lambda one: selector in (None, one.query["labelSelector"]))
        case "inject", fault, verb, times:
            server.inject(fault, match=lambda one: verb in ("", one.verb), times=times)
        case "outage", meanwhile, is_compacted:
            with server.down():
                for write in meanwhile:
                    perform(server, write)
                if is_compacted:
                    server.compact()
        case "call", method:  # every watch gets a bookmark, or all versions expire
            getattr(server, method)()


def refusals(step: tuple[Any, ...]) -> int:
    """Return how many requests are refused in a way that the client believes at last."""
    is_refusal = step[0] == "inject" and isinstance(step[1], Answer) and step[1].status in (200, 401, 403)
    return int(step[3]) if is_refusal else 0


# Few names and mostly members, so that most writes have an effect.
puts = st.tuples(
    st.just("put"),
    st.tuples(st.sampled_from(["w-0", "w-2", "w-10"]), st.sampled_from(["ml", "ml", "web", "spare"])),
    st.sampled_from([("app=a",), ("app=a", "role=ps"), ("app=b",), ("role=ps",), ()]),
    st.sampled_from([*["Running"] * 6, "Pending", "Failed", "Succeeded", None, None]),
    st.sampled_from([1, 2, 3, None]),
    st.booleans(),
    st.sampled_from([False, False, True]),
)
after = st.integers(0, 300)
broken = st.builds(Cut, after) | st.builds(Reset, st.none() | after) | st.builds(Delay, st.floats(0.0, 0.02))
ends = st.builds(End, st.just(0) | after) | st.builds(Stall, st.just(0) | after)
disturbances = broken | ends | st.builds(WatchError, st.sampled_from([410, 410, 429, 500, 503]))
passing = st.one_of(
    broken,
    st.builds(Answer, st.sampled_from([401, 403, 408, 410, 500, 502, 503, 504])),
    st.just(Answer(429, headers={"Retry-After": "0"})),
)
of_watches = st.one_of(
    ends,
    st.builds(WatchError, st.sampled_from([410, 429, 500])),
    st.just(Hang()),
    st.builds(Trickle, st.integers(20, 200), st.just(0.001)),
    st.just(Answer(200, b"no event\n")),
)
selectors = st.sampled_from([None, None, "app=a", "app=b", "role=ps"])
steps = st.one_of(
    puts,
    puts,
    st.tuples(st.just("disturb"), disturbances, selectors),
    st.tuples(st.just("inject"), passing, st.sampled_from(["list", "watch", ""]), st.integers(1, 3)),
    st.tuples(st.just("inject"), of_watches, st.just("watch"), st.integers(1, 2)),
    st.tuples(st.just("call"), st.sampled_from(["bookmark", "compact"])),
    st.tuples(st.just("outage"), st.lists(puts, max_size=4), st.booleans()),
)
schedules = st.lists(st.lists(steps, min_size=1, max_size=8), min_size=1, max_size=4)
"""The steps between two quiet points."""


class Follower:
    """A watch of the server of one schedule."""

    def __init__(self, loopback: Loopback, config: dict[str, Any], pause: float, *, watch_list: bool) -> None:
        self.loopback, self.config = loopback, config
        self._policy = msgspec.structs.replace(QUICK, watch_list=watch_list)
        self._pause = pause
        self._observation: Observation | None = None
        self._changed = asyncio.Event()

    def observations(self) -> AsyncGenerator[Observation, None]:
        resolver = self.loopback.resolver(**self.config)
        resolver.watch_policy = self._policy
        return resolver.observations()

    async def follow(self) -> None:
        async with aclosing(self.observations()) as observations:
            async for observation in observations:
                self._observation = observation
                self._changed.set()
                await anyio.sleep(self._pause)

    async def settle(self) -> None:
        """Remove all faults, and wait until the watch shows what a new one shows."""
        server, jobs = self.loopback.server, self.config["jobs"]
        server.clear_faults()
        watches = len({each for selectors in jobs.values() for each in selectors})
        await anyio.to_thread.run_sync(server.until, lambda: server.watches == watches, CONVERGING)
        async with aclosing(self.observations()) as fresh:
            while (now := await anext(fresh)).state is None or now.error:
                pass
            wanted = contents(now)
        with anyio.move_on_after(CONVERGING):
            while (seen := self._observation) is None or seen.error or contents(seen) != wanted:
                self._changed.clear()
                await self._changed.wait()
            return
        raise AssertionError(f"{CONVERGING:g} s later the watch shows {self._observation}, not {wanted}")


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
    """A server that sends bookmarks often and has a short history."""
    # pytest keeps all log records, and there are very many faults.
    caplog.set_level(logging.CRITICAL, logger="aioresolve")
    with run_loopback(tmp_path, bookmark_interval=BOOKMARKS, history=64) as loopback:
        yield loopback


@asynccontextmanager
async def followed(
    cluster: Loopback, config: dict[str, Any], *, pause: float = 0.0, watch_list: bool = True
) -> AsyncIterator[Follower]:
    """A watch of a server without pods; everything is closed at the end.

    With `watch_list` the watch begins with the existing pods, otherwise they are listed first.
    """
    tasks = asyncio.all_tasks()
    cluster.server.clear_faults()
    cluster.replace_pods([])
    follower = Follower(cluster, config, pause, watch_list=watch_list)
    async with asyncio.TaskGroup() as group:
        following = group.create_task(follower.follow())
        yield follower
        following.cancel()
    assert asyncio.all_tasks() == tasks


@pytest.mark.timeout(1200)  # it follows dozens of watches
@given(st.sampled_from(CONFIGS), schedules, st.sampled_from([0.0, 0.0, 0.01]), st.booleans())
@settings(
    max_examples=settings().max_examples // 4,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_watch_converges_to_the_state_of_the_server(
    cluster: Loopback, config: dict[str, Any], schedule: list[list[Any]], pause: float, watch_list: bool
) -> None:
    async def run() -> None:
        async with followed(cluster, config, pause=pause, watch_list=watch_list) as follower:
            await follower.settle()  # at first, one refusal would be believed
            for some in schedule:
                refused = 0
                for step in some:
                    refused += refusals(step)
                    if refused <= MOST_REFUSALS:
                        await anyio.to_thread.run_sync(perform, cluster.server, step)
                await follower.settle()

    with asyncio.Runner(debug=True, loop_factory=patient_loop) as runner:
        runner.run(run())
    server = cluster.server
    server.until(lambda: server.connections == server.watches == 0)
    assert client_sockets(cluster) == 0


@pytest.mark.asyncio(loop_factories=["asyncio"])  # see `patient_loop`
@pytest.mark.parametrize("watch_list", [True, False])
async def test_pods_of_a_restored_server_are_listed_again(
    tmp_path: Path, quick_retries: None, watch_list: bool
) -> None:
    """The next server at the same port has the pods, and the versions, of an earlier time."""
    pods = [pod(f"w-{number}", "ml", labels={"app": "a"}) for number in range(3)]

    async def until_there_are(number: int) -> None:
        with anyio.fail_after(CONVERGING):
            async for found in observations:
                if found.state is not None and found.state.spec.num_tasks("worker") == number:
                    return

    async with AsyncExitStack() as stack:
        async with KubernetesServer(pods) as server:
            kubeconfig = server.write_kubeconfig(tmp_path / "config")
            resolver = KubernetesClusterResolver({"worker": "app=a"}, namespace="ml", kubeconfig=kubeconfig)
            resolver.watch_policy = msgspec.structs.replace(QUICK, watch_list=watch_list)
            observations = await stack.enter_async_context(aclosing(resolver.observations()))
            await until_there_are(3)
        async with KubernetesServer(pods[:1], port=server.port, bookmark_interval=BOOKMARKS):
            await until_there_are(1)
