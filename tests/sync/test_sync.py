"""The blocking facade: signatures, attributes, shared connections, errors and unions."""

import asyncio
import contextvars
import inspect
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

import aioresolve
from aioresolve import ClusterSpec, ClusterState, Observation, Progress, Want, sync
from aioresolve.errors import ConfigurationError, DeadlineExceededError, InvalidClusterError, ProbeError
from aioresolve.sync import probe
from aioresolve.sync.loop_thread import current_loop_thread, get_loop_thread
from aioresolve.testing import KubernetesServer, ThreadedKubernetesServer, pod

JOBS = {"worker": ["app=train"]}
WORKERS = ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]})
REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("REQUEST")


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    pods = [pod(f"train-{n}", labels={"app": "train"}, ip=f"10.0.0.{n}") for n in (1, 2)]
    with KubernetesServer(pods).in_thread() as server:
        yield server
        server.until(lambda: server.connections == 0)


@pytest.fixture
def kubeconfig(server: ThreadedKubernetesServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def resolver(kubeconfig: Path) -> Iterator[sync.KubernetesClusterResolver]:
    with sync.KubernetesClusterResolver(JOBS, kubeconfig=kubeconfig, max_concurrency=1) as resolver:
        yield resolver


def simple(**arguments: Any) -> sync.SimpleClusterResolver:
    return sync.SimpleClusterResolver(WORKERS, **arguments)


# Signatures

NAMES = sorted(
    {name for name in sync.__all__ if isinstance(getattr(sync, name), type)} & {*aioresolve.__all__}
)
FOR_IMPLEMENTORS = {"changes", "fetch_slices", "known_jobs", "observations", "observe", "watch_policy"}
LIFETIME = {"aclose": "close"}


def public(cls: type) -> dict[str, Any]:
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


def is_async(member: object) -> bool:
    return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)


@pytest.mark.parametrize("name", NAMES)
def test_facade_has_the_members_of_the_async_class_with_their_signatures(name: str) -> None:
    ours, original = getattr(sync, name), getattr(aioresolve, name)
    facade, members = public(ours), public(original)
    assert set(facade) == {LIFETIME.get(member, member) for member in members} - FOR_IMPLEMENTORS
    assert not any(map(is_async, facade.values()))
    if name != "ClusterResolver":  # which wraps an async one
        assert inspect.signature(ours) == inspect.signature(original)
    for member in members.keys() - FOR_IMPLEMENTORS - LIFETIME.keys():
        if is_async(members[member]):
            assert inspect.signature(facade[member]) == inspect.signature(members[member]), member
        if isinstance(members[member], property):
            assert (facade[member].fset is None) == (members[member].fset is None), member


def test_documentation_of_blocking_calls_does_not_await() -> None:
    assert ">>> with KubernetesClusterResolver(" in (sync.KubernetesClusterResolver.__doc__ or "")
    assert "`contextlib.closing`" in (sync.ClusterResolver.watch.__doc__ or "")


# Resolvers of users


class Own(aioresolve.ClusterResolver):
    async def observe(self, want: Want, progress: Progress) -> Observation:
        return Observation(ClusterState.from_spec(WORKERS))

    async def master(self, *arguments: Any, timeout: float | None = None, **more: Any) -> str:
        return REQUEST.get("no request")


class Implementor(sync.ClusterResolver):
    """The contract of TensorFlow's base class: `tests/tensorflow/test_cluster_resolver_page.py`."""

    def __init__(self) -> None:
        self.task_type, self.task_id = "worker", 1

    def cluster_spec(self) -> ClusterSpec:  # type: ignore[override]
        return WORKERS

    def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:  # type: ignore[override]
        return "its own"


def test_subclass_that_implements_cluster_spec_needs_no_async_resolver() -> None:
    with Implementor() as resolver:
        assert (resolver.cluster_spec(), resolver.master()) == (WORKERS, "its own")
        assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, None)
        assert resolver.this_task().address == "10.0.0.2:8470"
        assert resolver.wait(2) == resolver.cluster_state() == next(resolver.watch())
        with sync.UnionClusterResolver(resolver) as union:
            assert (union.cluster_spec(), union.task_id, union.master()) == (WORKERS, 1, "its own")
        copied = pickle.loads(pickle.dumps(resolver))
        assert (copied.cluster_spec(), copied.task_id) == (WORKERS, 1)
    without_master = type("WithoutMaster", (sync.ClusterResolver,), {"cluster_spec": lambda _: WORKERS})()
    assert without_master.master("worker", 1, "grpc") == "grpc://10.0.0.2:8470"


def test_cluster_spec_of_a_subclass_that_does_not_return_is_named_in_the_deadline_error() -> None:
    returned = threading.Event()
    hanging = type("Hanging", (sync.ClusterResolver,), {"cluster_spec": lambda _: returned.wait()})()
    with pytest.raises(DeadlineExceededError) as caught:
        hanging.cluster_state(timeout=0.01)
    assert caught.value.missing == {"cluster_spec()": "it has not returned"}
    returned.set()


def test_error_of_a_subclass_without_cluster_spec_says_what_to_implement() -> None:
    class Incomplete(sync.ClusterResolver):
        def __init__(self) -> None:
            pass

    for use in (Incomplete().cluster_spec, lambda: Incomplete().task_type, sync.ClusterResolver):
        with pytest.raises(InvalidClusterError, match="implement `cluster_spec` and `master` in"):
            use()


def test_override_of_a_user_is_called_with_the_context_variables_of_the_caller() -> None:
    resolver = sync.ClusterResolver(Own())
    assert resolver.cluster_state().spec == WORKERS

    def call(request: str) -> str:
        REQUEST.set(request)
        return resolver.master()

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(call, "abcdefgh")) == list("abcdefgh")


# Connections


async def test_call_can_be_made_inside_a_running_loop(resolver: sync.KubernetesClusterResolver) -> None:
    assert resolver.cluster_spec() == WORKERS
    assert await anyio.to_thread.run_sync(resolver.cluster_spec) == WORKERS
    assert asyncio.get_running_loop() is not get_loop_thread().run(running_loop)


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_resolver_collected_in_the_loop_thread_closes_its_connection(
    server: ThreadedKubernetesServer, kubeconfig: Path
) -> None:
    references = [sync.KubernetesClusterResolver(JOBS, kubeconfig=kubeconfig, max_concurrency=1)]
    references[0].cluster_spec()
    assert server.connections > 0

    async def drop() -> None:
        references.clear()

    get_loop_thread().run(drop)
    server.until(lambda: server.connections == 0)


def test_unused_resolver_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.sync.loop_thread._current", None)
    with sync.KubernetesClusterResolver(JOBS) as resolver:
        resolver.close()
    del resolver
    assert current_loop_thread() is None


# Errors


def test_blocking_probe_raises_the_error_of_the_async_one() -> None:
    with pytest.raises(ProbeError, match="connection refused"):
        probe.probe_worker("127.0.0.1:1", libtpu_ports=())


def test_callback_that_calls_a_facade_in_the_loop_thread_raises_an_error(kubeconfig: Path) -> None:
    inner = simple()

    def address(pod: object) -> str:
        return inner.cluster_spec().task_address("worker", 0)

    with (
        sync.KubernetesClusterResolver(JOBS, kubeconfig=kubeconfig, address=address) as resolver,
        pytest.raises(ConfigurationError, match="would wait for itself"),
    ):
        resolver.cluster_spec()


# Unions


def test_union_has_connections_of_its_own_and_the_resolver_can_still_be_used(
    server: ThreadedKubernetesServer, resolver: sync.KubernetesClusterResolver
) -> None:
    evaluators = sync.SimpleClusterResolver(ClusterSpec({"evaluator": ["e:1"]}))
    with sync.UnionClusterResolver(resolver, evaluators) as union:
        assert [resolver.cluster_spec() for _ in range(3)] == [WORKERS] * 3
        assert union.cluster_spec() == ClusterSpec({**WORKERS.as_dict(), "evaluator": ["e:1"]})
        assert union.master("worker", 1, "grpc") == "grpc://10.0.0.2:8470"
        assert server.connections == 2
    server.until(lambda: server.connections == 1)
    assert resolver.cluster_spec() == WORKERS


def test_union_has_the_attributes_of_its_first_resolver_until_they_are_set() -> None:
    first = simple(master="m:1", task_type="worker", rpc_layer="grpc", environment="google")
    first.task_id = 7
    union = sync.UnionClusterResolver(first, simple())
    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 7, "grpc")
    assert union.environment == "google"
    assert union.master() == "grpc://m:1"
    union.task_id = 1
    assert (union.task_id, first.task_id) == (1, 7)


def test_union_takes_resolvers_and_facades() -> None:
    resolver: Any = Own()
    facade: Any = simple()
    with pytest.raises(InvalidClusterError, match=r"takes an async .*; got SimpleClusterResolver"):
        sync.ClusterResolver(facade)
    for member in (resolver, sync.ClusterResolver(resolver)):
        assert sync.UnionClusterResolver(member).cluster_spec() == WORKERS
    with pytest.raises(InvalidClusterError, match="takes resolvers of aioresolve; got str"):
        sync.UnionClusterResolver("a")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="at least one resolver"):
        sync.UnionClusterResolver()
