"""Generated schedules of failures: only the deadline ends a call, and none causes a burst of requests.

Time is virtual: an hour of a failing watch is checked in milliseconds.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from yarl import URL

from aioresolve import ClusterResolver, GCEClusterResolver, KubernetesClusterResolver, TPUClusterResolver
from aioresolve._core.deadline import MAX_RETRY_AFTER, RetryPolicy
from aioresolve.errors import ResolveError
from aioresolve.gcp import metadata_server
from tests.kubernetes.kubeconfigs import isolate, kubeconfig, write_file
from tests.virtual_time import Reply, Requests, fake_requests, run

pytestmark = pytest.mark.slow

TIMEOUT = 120.0
WATCHED = 1800.0

LONGEST_PAUSE = 300.0
"""Seconds between two polls that fail; a watch is resumed much sooner."""

MAX_REQUESTS = 6
"""The most requests for the same in a second: a backoff begins with waits of 0.05, 0.1, 0.2 and 0.4 s."""

UNUSED = "127.0.0.1:1"


def retry_after_in_body(status: int, seconds: int) -> Reply:
    details = {"retryAfterSeconds": seconds}
    return Reply(status, body=json.dumps({"kind": "Status", "code": status, "details": details}).encode())


small_waits = st.sampled_from(["0", "-1", "soon", "1"])
huge_waits = st.sampled_from(["60", "100000", "9" * 400])
failures: st.SearchStrategy[Reply] = st.one_of(
    st.builds(Reply, st.sampled_from([408, 425, 429, 500, 502, 503, 504])),
    st.builds(
        lambda status, wait: Reply(status, {"Retry-After": wait}),
        st.sampled_from([429, 500, 503]),
        small_waits | huge_waits,
    ),
    st.builds(
        retry_after_in_body, st.sampled_from([429, 500, 503, 504]), st.sampled_from([-1, 0, 1, 60, 1 << 40])
    ),
    st.sampled_from([Reply(is_lost=True), Reply(body=b'{"kind":', is_cut=True), Reply(503, is_cut=True)]),
)
schedules = st.lists(failures, min_size=1, max_size=6)


def kubernetes(folder: Path, **arguments: Any) -> ClusterResolver:
    path = write_file(folder / "config", kubeconfig({"token": "t"}, server="https://10.0.0.1"))
    return KubernetesClusterResolver(kubeconfig=path, timeout=TIMEOUT, **arguments)


RESOLVERS: dict[str, Callable[[Path], ClusterResolver]] = {
    "pods": partial(kubernetes, job_to_label_mapping={"worker": ["app=x"]}),
    "endpointslices": partial(kubernetes, service="trainer", namespace="ml"),
    "TPU": lambda _: TPUClusterResolver("my-tpu", "us-central2-b", "my-project", timeout=TIMEOUT),
    "instances": lambda _: GCEClusterResolver(
        "my-project", "us-central2-b", "workers", 8470, timeout=TIMEOUT
    ),
}
"""Resolvers whose requests all fail."""


@pytest.fixture(autouse=True)
def _bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)
    monkeypatch.setattr(metadata_server, "DEFAULT_HOST", UNUSED)


@pytest.fixture
def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to an endpoint on this machine without TLS are anonymous."""
    for api in ("TPU", "COMPUTE"):
        monkeypatch.setenv(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}", f"http://{UNUSED}/")


def replies(schedule: list[Reply]) -> Callable[[URL], Reply]:
    """Return what each URL is responded to with: the replies of the schedule in turn, over and over."""
    positions: dict[URL, Iterator[Reply]] = {}
    return lambda url: next(positions.setdefault(url, itertools.cycle(schedule)))


def resolve(resolver: ClusterResolver) -> tuple[ResolveError, float]:
    """Return the error of `cluster_spec()`, and after how many seconds it was raised."""

    async def call() -> tuple[ResolveError, float]:
        with pytest.raises(ResolveError) as caught:
            await resolver.cluster_spec()
        return caught.value, anyio.current_time()

    return run(call())


def watch(resolver: ClusterResolver) -> None:
    async def follow() -> None:
        with anyio.move_on_after(WATCHED) as scope:
            async with aclosing(resolver.observations(sizes=True)) as observations:
                async for _ in observations:
                    pass
        assert scope.cancelled_caught

    run(follow())


def longest_wait(schedule: list[Reply]) -> float:
    """Return the longest wait that a reply of the schedule may cause."""
    requested = [MAX_RETRY_AFTER for reply in schedule if "Retry-After" in reply.headers or reply.body]
    return max([RetryPolicy().longest_wait, *(1.1 * seconds for seconds in requested)])


def assert_few(requests: Requests) -> None:
    assert requests.times
    assert requests.most_in_a_second <= MAX_REQUESTS, requests.times


def check(monkeypatch: pytest.MonkeyPatch, resolver: ClusterResolver, schedule: list[Reply]) -> None:
    with monkeypatch.context() as patch:
        requests = fake_requests(patch, replies(schedule))
        error, seconds = resolve(resolver)
    assert error.retryable
    # A wait that would exceed the deadline is not started.
    assert TIMEOUT - longest_wait(schedule) <= seconds <= TIMEOUT
    assert_few(requests)


examples = settings(
    max_examples=settings().max_examples // 6, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def each_schedule(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test with generated schedules, and with two that have shown defects."""
    refused = example(schedule=[Reply(429, {"Retry-After": "0"})])
    lost = example(schedule=[Reply(503), Reply(is_lost=True)])
    return given(schedule=schedules)(examples(refused(lost(test))))


@pytest.mark.usefixtures("without_credentials")
@pytest.mark.parametrize("name", RESOLVERS)
@each_schedule
def test_only_the_deadline_ends_a_call_and_its_requests_are_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, schedule: list[Reply]
) -> None:
    check(monkeypatch, RESOLVERS[name](tmp_path), schedule)


@pytest.mark.usefixtures("without_credentials")
@pytest.mark.parametrize("name", RESOLVERS)
@each_schedule
def test_failing_watch_sends_few_requests_and_never_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, schedule: list[Reply]
) -> None:
    with monkeypatch.context() as patch:
        requests = fake_requests(patch, replies(schedule))
        watch(RESOLVERS[name](tmp_path))
    assert_few(requests)
    latest = max(times[-1] for times in requests.times.values())
    assert latest > WATCHED - 2 * (longest_wait(schedule) + LONGEST_PAUSE)


def event(code: int) -> Reply:
    failure = {"kind": "Status", "code": code, "message": "x", "details": {"retryAfterSeconds": 0}}
    return Reply(body=json.dumps({"type": "ERROR", "object": failure}).encode() + b"\n")


OWNER = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "1", "controller": True}
OWNED = {"metadata": {"name": "train-0", "ownerReferences": [OWNER]}, "status": {"phase": "Pending"}}
LISTS: dict[str, tuple[str, str, list[Any]]] = {
    "pods": ("v1", "PodList", [OWNED]),
    "endpointslices": ("discovery.k8s.io/v1", "EndpointSliceList", []),
}
watch_ends = st.one_of(
    failures,
    st.just(Reply()),
    st.builds(Reply, st.sampled_from([404, 410, 422])),
    st.builds(event, st.sampled_from([410, 429, 500, 504])),
)


@pytest.mark.parametrize("name", LISTS)
@given(schedule=st.lists(watch_ends, min_size=1, max_size=6))
@examples
@example(schedule=[Reply()])
@example(schedule=[event(410)])
@example(schedule=[Reply(410)])
@example(schedule=[Reply(503, {"Retry-After": "100000"})])
def test_watch_that_ends_at_once_after_each_list_sends_few_requests_and_for_controllers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, schedule: list[Reply]
) -> None:
    version, kind, items = LISTS[name]
    listed = {"kind": kind, "apiVersion": version, "metadata": {"resourceVersion": "5"}, "items": items}
    others = replies(schedule)

    def reply(url: URL) -> Reply:
        is_list = url.name == name and "watch" not in url.query
        return Reply(body=json.dumps(listed).encode()) if is_list else others(url.with_query(None))

    with monkeypatch.context() as patch:
        requests = fake_requests(patch, reply)
        watch(RESOLVERS[name](tmp_path))
    assert_few(requests)
    assert len(requests.times) > 1
