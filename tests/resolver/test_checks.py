"""`doctor`: checks run concurrently, each after those that it needs and within its deadline."""

import re
import socket
from collections.abc import Iterator
from typing import Any, NoReturn

import anyio
import pytest

import aioresolve
from aioresolve import (
    ClusterResolver,
    ClusterSpec,
    ClusterState,
    ConfigurationError,
    Endpoint,
    InvalidClusterError,
    Observation,
    Progress,
    SimpleClusterResolver,
    UnionClusterResolver,
    Want,
)
from aioresolve.errors import ConnectionFailedError, Hint, ResolveError
from aioresolve.resolver.checks import Check
from aioresolve.spec import Missing
from tests.resolver.shown import Shown
from tests.virtual_time import in_virtual_time

ONE = SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"]}))


class Failing(ClusterResolver):
    """Raises an error; hangs without one."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self._error = error

    async def observe(self, want: Want, progress: Progress) -> Observation:
        progress.waiting("http://example", "it has not responded")
        if self._error is None:
            await anyio.sleep_forever()
        raise self._error or AssertionError


async def check(
    *resolvers: ClusterResolver, timeout: float = 60.0, **more: Any
) -> dict[str, tuple[str, str]]:
    """Return the results of the checks of each resolver, numbered from 1."""
    union = UnionClusterResolver(*resolvers)
    checks = await aioresolve.doctor(union, timeout=timeout, check_timeout=30.0, **more)
    return {each.name: (each.result, each.found) for each in checks}


async def test_checks_after_one_that_failed_are_skipped_and_name_the_first_cause() -> None:
    found = await check(ONE, Failing(ConnectionFailedError("no route")))
    assert found["1: tasks"] == ("ok", "job 'worker': 1 task")
    assert found["2: tasks"] == ("failed", "no route")
    skipped = ("skipped", "not checked, because '2: tasks' failed")
    assert found["2: addresses"] == found["2: this task"] == skipped
    assert found["tasks"] == ("failed", "no route")


@in_virtual_time
async def test_check_that_hangs_fails_at_its_deadline_and_delays_no_other() -> None:
    found = await check(ONE, Failing())
    assert found["2: tasks"] == ("failed", "no result within 30 s; http://example: it has not responded")
    assert found["2: addresses"] == ("skipped", "not checked, because '2: tasks' failed")
    assert found["1: tasks"][0] == "ok"
    assert anyio.current_time() == 30.0


class Retrying(Failing):
    """Tries again after an error, without end."""

    async def observe(self, want: Want, progress: Progress) -> Observation:
        assert isinstance(self._error, ResolveError)
        progress.failed("http://example", self._error)
        await anyio.sleep_forever()
        raise AssertionError


@in_virtual_time
async def test_check_that_is_late_has_the_remedy_of_its_last_error() -> None:
    refused = ConnectionFailedError("no route", hint="Open the firewall.")
    for resolver, remedy in (
        (Failing(), "Check the server and the network, or raise `check_timeout=`."),
        (Retrying(refused), "Open the firewall."),
    ):
        (late, *_) = await aioresolve.doctor(resolver, timeout=60.0, check_timeout=30.0)
        assert late.found.startswith("no result within 30 s; http://example: ")
        assert str(late).endswith(f". {remedy}")


@in_virtual_time
async def test_deadline_of_all_checks_ends_them_and_keeps_the_results_so_far() -> None:
    progress = Progress()
    found = await check(ONE, Failing(), timeout=10.0, progress=progress)
    passed = "the deadline of all checks (10 s) passed"
    assert found["1: tasks"] == ("ok", "job 'worker': 1 task")
    assert found["2: tasks"] == ("failed", passed)
    assert found["2: addresses"] == ("skipped", passed)
    assert progress.reached["1: tasks"] == "ok"
    states = [progress.missing[name] for name in ("2: tasks", "2: addresses")]
    assert states == ["in progress", "not checked yet"]


async def test_exception_of_a_users_resolver_is_a_result() -> None:
    found = await check(Failing(LookupError("a bug")))
    assert found["1: tasks"] == ("failed", "Failing.observe() raised LookupError: a bug")
    assert found["1: addresses"][0] == "skipped"

    class Lost(SimpleClusterResolver):
        async def this_task(self, *_: Any, **__: Any) -> NoReturn:
            raise LookupError("a bug")

    found = await check(Lost(ClusterSpec({"worker": ["127.0.0.1:1"]})))
    assert found["1: this task"] == ("failed", "it raised LookupError")


async def test_error_that_names_the_missing_tasks_does_not_repeat_them() -> None:
    class Pending(Failing):
        async def observe(self, want: Want, progress: Progress) -> Observation:
            if want.complete:
                return await super().observe(want, progress)
            return Observation(ClusterState.of({"worker": []}), (Missing("worker", "a", "new"),))

    for error, more in (("a is new", ""), ("no route", "; no route")):
        found = await check(Pending(ConnectionFailedError(error)))
        assert found["1: tasks"] == ("failed", f"job 'worker': 0 tasks; a: new{more}")


def test_check_as_text_has_the_remedy() -> None:
    assert str(Check("TCP", "ok", "connected")) == "TCP: ok: connected"
    remedy = Hint("Raise {timeout}.")
    assert str(Check("TCP", "failed", "too late", remedy)) == "TCP: failed: too late. Raise `timeout=`."


# The checks of every resolver


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of a port that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def diagnose(*addresses: str, timeout: float = 30.0) -> dict[str, Check]:
    resolver = SimpleClusterResolver(ClusterSpec({"worker": list(addresses)}))
    return {each.name: each for each in await aioresolve.doctor(resolver, check_timeout=timeout)}


async def test_healthy_cluster_has_only_ok_results(listener: str) -> None:
    checks = await diagnose(listener)
    assert {name: (each.result, each.found) for name, each in checks.items()} == {
        "tasks": ("ok", "job 'worker': 1 task"),
        "addresses": ("ok", "1 of 1 tasks accept a TCP connection"),
        "this task": ("ok", "/job:worker/task:0, rank 0 of 1"),
    }


async def test_tasks_that_refuse_connections_are_named(listener: str, closed_address: str) -> None:
    checks = await diagnose(listener, closed_address, "name.invalid:1")
    addresses = checks["addresses"]
    assert addresses.result == "failed"
    assert addresses.found.startswith(
        f"2 of 3 tasks accept no TCP connection: /job:worker/task:1: no TCP connection to {closed_address}:"
        " Connection refused; /job:worker/task:2: no TCP connection to name.invalid:1: RFC 6761 reserves"
    )
    assert addresses.remedy is not None
    assert "program" in addresses.remedy.render()


@in_virtual_time
async def test_task_that_does_not_respond_is_named_within_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(host: str, port: int) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr("aioresolve.resolver.wait.connect", hang)
    await anyio.sleep(100.0)
    found = (await diagnose("10.0.0.1:1"))["addresses"].found
    assert re.fullmatch(r"1 of 1 tasks .*task:0: no TCP connection to 10.0.0.1:1 within \d+ s", found)


async def test_number_of_connections_is_limited(closed_address: str) -> None:
    host = closed_address.rpartition(":")[0]
    assert "more" not in (await diagnose(*[closed_address] * 3))["addresses"].found
    checks = await diagnose(*(f"{host}:{port}" for port in range(2, 256)))
    assert "128 of 128 tasks accept no TCP connection" in checks["addresses"].found
    assert checks["addresses"].found.endswith("; and 125 more; 126 more were not tried")


async def test_cluster_without_tasks_has_a_remedy_and_nothing_to_connect_to() -> None:
    checks = await diagnose()
    assert {name: (each.result, each.found) for name, each in checks.items()} == {
        "tasks": ("failed", "job 'worker': 0 tasks"),
        "addresses": ("skipped", "there is no task to connect to"),
        "this task": ("skipped", "the cluster has no tasks"),
    }
    assert "Correct what selects the tasks" in str(checks["tasks"])


async def test_process_that_should_know_its_task_but_does_not_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = ClusterState.of({"worker": [Endpoint("127.0.0.1:1", name="train-0", uid="u0")]})
    for result, found in (("ok", ""), ("warning", "the pod name 'train-7' of $POD_NAME: no member")):
        checks = await aioresolve.doctor(Shown(Observation(state)), check_timeout=1)
        (check,) = (each for each in checks if each.name == "this task")
        assert (check.result, found in check.found) == (result, True)
        monkeypatch.setenv("POD_NAME", "train-7")


async def test_doctor_rejects_invalid_arguments() -> None:
    with pytest.raises(ConfigurationError, match="check_timeout"):
        await aioresolve.doctor(check_timeout=0)
    with pytest.raises(InvalidClusterError, match="takes an async resolver; got str"):
        await aioresolve.doctor("worker")  # type: ignore[arg-type]
