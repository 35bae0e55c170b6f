"""A state that is shown as current is current: each way in which a source fails is noticed within a bound.

Time is virtual.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from yarl import URL

from aioresolve import (
    ClusterResolver,
    GCEClusterResolver,
    IncompleteClusterError,
    KubernetesClusterResolver,
    Observation,
    TPUClusterResolver,
    UnionClusterResolver,
)
from aioresolve.gcp import metadata_server
from tests.kubernetes.kubeconfigs import isolate, kubeconfig, write_file
from tests.virtual_time import Reply, fake_requests, run

pytestmark = pytest.mark.slow

BOUND = 160.0
"""Seconds after which every failure is noticed: a silent watch after 150 s, a poll after 33 s and 30 s."""

LONGEST_INTERVAL = 5.5
"""Seconds between two polls of a wait, at most: five, and a jitter of 10 %."""

BOOKMARK_INTERVAL = 60.0

POD = {
    "metadata": {"name": "w-0", "namespace": "ml", "uid": "u0", "resourceVersion": "4"},
    "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
}
NODE = {
    "name": "projects/my-project/locations/us-central2-b/nodes/my-tpu",
    "state": "READY",
    "health": "HEALTHY",
    "acceleratorType": "v4-8",
    "networkEndpoints": [{"ipAddress": "10.0.0.1", "port": 8470}],
}
INSTANCE_URL = (
    "https://compute.googleapis.com/compute/v1/projects/my-project/zones/us-central2-b/instances/w-0"
)
MEMBER = {"instance": INSTANCE_URL, "status": "RUNNING"}
INSTANCE = {
    "name": "w-0",
    "id": "1",
    "selfLink": INSTANCE_URL,
    "status": "RUNNING",
    "networkInterfaces": [{"networkIP": "10.0.0.1"}],
}


def objects(url: URL) -> dict[str, Any]:
    """Return what a server that works responds with, to anything but a watch."""
    if url.path.endswith("/pods"):
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": [POD]}
    if url.path.endswith("/nodes/my-tpu"):
        return NODE
    if url.path.endswith("/listInstances"):
        return {"items": [MEMBER]}
    if url.path.endswith("/listManagedInstances"):
        return {}
    return {"items": [INSTANCE]}


def kubernetes(folder: Path, **arguments: Any) -> ClusterResolver:
    path = write_file(folder / "config", kubeconfig({"token": "t"}, server="https://10.0.0.1"))
    return KubernetesClusterResolver(kubeconfig=path, **arguments)


def instances(_: Path) -> ClusterResolver:
    return GCEClusterResolver("my-project", "us-central2-b", "workers", 8470)


RESOLVERS: dict[str, Callable[[Path], ClusterResolver]] = {
    "pods": partial(kubernetes, job_to_label_mapping={"worker": ["app=x"]}),
    "TPU": lambda _: TPUClusterResolver("my-tpu", "us-central2-b", "my-project"),
    "instances": instances,
    "union": lambda folder: UnionClusterResolver(
        kubernetes(folder, job_to_label_mapping={"ps": ["app=x"]}), instances(folder)
    ),
}

FAILURES: dict[str, Reply] = {
    "hangs": Reply(is_hung=True),
    "resets": Reply(is_lost=True),
    "503": Reply(503),
    "429": Reply(429, {"Retry-After": "300"}),
}


@dataclass
class Server:
    """Works until `fails_at`, a time of the event loop; then every request and watch fails in one way."""

    failure: str
    fails_at: float

    @property
    def has_failed(self) -> bool:
        return asyncio.get_running_loop().time() >= self.fails_at

    def reply(self, url: URL) -> Reply:
        if self.has_failed:
            return FAILURES[self.failure]
        if "watch" not in url.query:
            return Reply(body=json.dumps(objects(url)).encode())
        kind = objects(url)["kind"].removesuffix("List")
        bookmark = {"type": "BOOKMARK", "object": {"kind": kind, "metadata": {"resourceVersion": "6"}}}
        return Reply(read=partial(self._next, json.dumps(bookmark).encode() + b"\n"))

    async def _next(self, bookmark: bytes) -> bytes:
        """Return a bookmark once a minute. When the server fails, the watch breaks, ends or is silent."""
        await asyncio.sleep(
            min(BOOKMARK_INTERVAL, max(0.0, self.fails_at - asyncio.get_running_loop().time()))
        )
        if not self.has_failed:
            return bookmark
        if self.failure == "hangs":
            await asyncio.Event().wait()
        if self.failure == "resets":
            raise aiohttp.ClientPayloadError("reset")
        return b""


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setattr(metadata_server, "DEFAULT_HOST", "127.0.0.1:1")
    for api in ("TPU", "COMPUTE"):  # requests to this machine without TLS are anonymous
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", "http://127.0.0.1:1/")


each_failure = given(failure=st.sampled_from(sorted(FAILURES)), fails_at=st.floats(0.5, 400.0))
few = settings(
    max_examples=settings().max_examples // 10, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
each_resolver = pytest.mark.parametrize("name", RESOLVERS)


@each_resolver
@each_failure
@few
@example(failure="hangs", fails_at=100.0)
@example(failure="429", fails_at=100.0)
def test_state_of_a_source_that_fails_is_stale_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, failure: str, fails_at: float
) -> None:
    async def follow() -> None:
        seen: list[tuple[float, Observation]] = []
        with anyio.move_on_after(fails_at + BOUND + 1000.0):
            async with aclosing(RESOLVERS[name](tmp_path).observations()) as observations:
                async for observation in observations:
                    seen += [(anyio.current_time(), observation)]
        first = next(number for number, (_, observation) in enumerate(seen) if observation.error is not None)
        current, stale = seen[:first], seen[first:]
        assert fails_at <= stale[0][0] <= fails_at + BOUND
        # The last state is kept, and is known to be stale.
        last = current[-1][1].state
        assert last is not None
        assert {observation.state and observation.state.spec for _, observation in stale} == {last.spec}
        assert all(observation.error and observation.stale_since for _, observation in stale)

    with monkeypatch.context() as patch:
        fake_requests(patch, Server(failure, fails_at).reply)
        run(follow())


@each_resolver
def test_wait_returns_the_state_of_a_source_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def wait() -> None:
        state = await RESOLVERS[name](tmp_path).wait(stable_for=900.0, timeout=2000.0)
        assert state.spec.num_tasks("worker") == 1
        assert 900.0 <= anyio.current_time() <= 900.0 + LONGEST_INTERVAL

    fake_requests(monkeypatch, Server("hangs", float("inf")).reply)
    run(wait())


@pytest.mark.parametrize("failure", ["hangs", "503"])
def test_wait_does_not_return_objects_that_were_listed_if_their_watch_is_never_established(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    working = Server(failure, float("inf"))

    async def wait() -> None:
        # A list counts for two seconds.
        with pytest.raises(IncompleteClusterError, match="the source: "):
            await RESOLVERS["pods"](tmp_path).wait(1, stable_for=3.0, timeout=900.0)

    fake_requests(monkeypatch, lambda url: FAILURES[failure] if "watch" in url.query else working.reply(url))
    run(wait())


def test_wait_that_has_ended_logs_no_outage_of_its_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    working = Server("hangs", float("inf"))

    async def wait() -> None:
        with pytest.raises(IncompleteClusterError):
            await RESOLVERS["pods"](tmp_path).wait(1, stable_for=3.0, timeout=4.0)
        await anyio.sleep(60.0)

    fake_requests(monkeypatch, lambda url: FAILURES["hangs"] if "watch" in url.query else working.reply(url))
    run(wait())
    assert "unavailable" not in caplog.text
