"""How checks run: concurrently, each after those that it needs and within its deadline."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

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
from aioresolve.errors import ConnectionFailedError, Hint
from aioresolve.resolver import Check
from aioresolve.resolver.checks import MAX_TASKS, Finding, PlannedCheck, run_checks
from aioresolve.testing import TPUWorker
from tests.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Iterator


def check(name: str, *after: str, result: Finding | Exception | None = None) -> PlannedCheck:
    async def run(_: Progress) -> Finding:
        if isinstance(result, Exception):
            raise result
        return result or Finding("fine")

    return PlannedCheck(name, run, after)


def hanging(name: str, *after: str) -> PlannedCheck:
    async def run(progress: Progress) -> Finding:
        progress.waiting("http://example", "it has not responded")
        await anyio.sleep_forever()
        raise AssertionError

    return PlannedCheck(name, run, after)


async def run(
    *plan: PlannedCheck, timeout: float = 60.0, check_timeout: float = 30.0
) -> dict[str, tuple[str, str]]:
    checks = await run_checks(plan, timeout=timeout, check_timeout=check_timeout, progress=Progress())
    assert [each.name for each in checks] == [each.name for each in plan]
    return {each.name: (each.result, each.found) for each in checks}


async def test_check_after_one_that_raised_is_skipped_and_names_the_first_cause() -> None:
    error = ConnectionFailedError("no route")
    found = await run(check("name", result=error), check("TCP", "name"), check("TLS", "TCP"), check("other"))
    assert found == {
        "name": ("failed", "no route"),
        "TCP": ("skipped", "not checked, because 'name' failed"),
        "TLS": ("skipped", "not checked, because 'name' failed"),
        "other": ("ok", "fine"),
    }


async def test_check_after_a_failed_finding_runs() -> None:
    found = await run(check("pods", result=Finding("one is pending", "failed")), check("tasks", "pods"))
    assert found == {"pods": ("failed", "one is pending"), "tasks": ("ok", "fine")}


@in_virtual_time
async def test_check_that_hangs_fails_at_its_deadline_and_delays_no_other() -> None:
    found = await run(hanging("slow"), check("next", "slow"), check("other"), check_timeout=0.2)
    assert found["slow"] == ("failed", "no result within 0.2 s; http://example: it has not responded")
    assert found["next"] == ("skipped", "not checked, because 'slow' failed")
    assert found["other"] == ("ok", "fine")


@in_virtual_time
async def test_deadline_of_all_checks_ends_them_and_keeps_the_results_so_far() -> None:
    found = await run(check("a"), hanging("slow"), check("next", "slow"), timeout=0.2)
    passed = "the deadline of all checks (0.2 s) passed"
    assert found == {"a": ("ok", "fine"), "slow": ("failed", passed), "next": ("skipped", passed)}


async def test_exception_of_a_users_resolver_is_a_result_without_its_text() -> None:
    found = await run(check("mine", result=LookupError("password=hunter22")), check("next", "mine"))
    assert found["mine"] == ("failed", "it raised LookupError")
    assert found["next"][0] == "skipped"


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


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


async def diagnose(*addresses: str, timeout: float = 30.0) -> dict[str, Check]:
    resolver = SimpleClusterResolver(ClusterSpec({"worker": list(addresses)}))
    return {each.name: each for each in await aioresolve.doctor(resolver, check_timeout=timeout)}


async def test_healthy_cluster_has_only_ok_results() -> None:
    async with TPUWorker(devices=4) as worker:
        checks = await diagnose(worker.address)
    assert {name: (each.result, each.found) for name, each in checks.items()} == {
        "tasks": ("ok", "worker: 1"),
        "addresses": ("ok", "1 of 1 tasks accept a TCP connection"),
        "devices": ("ok", "1 of 1 tasks have 4 TPU"),
        "this task": ("ok", "/job:worker/task:0, rank 0 of 1"),
    }


async def test_tasks_that_refuse_connections_are_named_and_the_others_are_probed(closed_port: str) -> None:
    async with TPUWorker(devices=4) as worker:
        checks = await diagnose(worker.address, closed_port)
    addresses = checks["addresses"]
    assert addresses.result == "failed"
    assert (
        f"1 of 2 tasks accept no TCP connection: /job:worker/task:1: no TCP connection to {closed_port}"
        in (addresses.found)
    )
    assert addresses.remedy is not None
    assert "program" in addresses.remedy.render()
    assert checks["devices"].found == "1 of 1 tasks have 4 TPU"


@pytest.mark.slow
async def test_task_that_reports_no_devices_is_a_warning(listener: str) -> None:
    checks = await diagnose(listener, timeout=5.0)
    assert (checks["addresses"].result, checks["devices"].result) == ("ok", "warning")
    assert "1 of 1 tasks report no devices" in checks["devices"].found


async def test_different_devices_are_a_warning() -> None:
    async with TPUWorker(devices=4) as first, TPUWorker(devices=8) as second:
        checks = await diagnose(first.address, second.address)
    assert checks["devices"].found == "1 of 2 tasks have 4 TPU; 1 of 2 tasks have 8 TPU"
    assert checks["devices"].result == "warning"


async def test_number_of_connections_is_limited(closed_port: str) -> None:
    host = closed_port.rpartition(":")[0]
    checks = await diagnose(*(f"{host}:{port}" for port in range(2, 2 * MAX_TASKS)))
    assert f"{MAX_TASKS} of {MAX_TASKS} tasks accept no TCP connection" in checks["addresses"].found
    assert checks["addresses"].found.endswith(f"; and 125 more; {MAX_TASKS - 2} more were not tried")


async def test_cluster_without_tasks_has_nothing_to_connect_to() -> None:
    checks = await diagnose()
    assert {name: each.result for name, each in checks.items()} == {
        "tasks": "ok",
        "addresses": "skipped",
        "devices": "skipped",
        "this task": "skipped",
    }


async def test_process_that_should_know_its_task_but_does_not_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pods(ClusterResolver):
        async def observe(self, want: Want, progress: Progress) -> Observation:
            return Observation(
                ClusterState.of({"worker": [Endpoint("127.0.0.1:1", name="train-0", uid="u0")]})
            )

    async def this_task() -> Check:
        return next(
            each for each in await aioresolve.doctor(Pods(), check_timeout=1) if each.name == "this task"
        )

    assert (await this_task()).result == "ok"
    monkeypatch.setenv("POD_NAME", "train-7")
    found = await this_task()
    assert found.result == "warning"
    assert "the pod name 'train-7' of $POD_NAME: no member" in found.found


async def test_doctor_rejects_invalid_arguments() -> None:
    with pytest.raises(ConfigurationError, match="check_timeout"):
        await aioresolve.doctor(check_timeout=0)
    with pytest.raises(InvalidClusterError, match=r"aioresolve\.sync\.doctor"):
        await aioresolve.doctor("worker")  # type: ignore[arg-type]


async def test_union_has_the_checks_of_each_of_its_resolvers() -> None:
    class Broken(ClusterResolver):
        async def observe(self, want: Want, progress: Progress) -> Observation:
            raise ConfigurationError("WORKERS is not set")

    async with TPUWorker(devices=4) as worker:
        healthy = SimpleClusterResolver(ClusterSpec({"worker": [worker.address]}))
        checks = await aioresolve.doctor(UnionClusterResolver(healthy, Broken()), check_timeout=20.0)
    found = {check.name: check.result for check in checks}
    assert [name for name in found if name.startswith("1: ")] == [
        f"1: {name}" for name in ("tasks", "addresses", "devices", "this task")
    ]
    assert (found["1: devices"], found["2: tasks"], found["2: devices"]) == ("ok", "failed", "skipped")
    assert checks[-1] == Check("tasks", "failed", "WORKERS is not set")
    skipped = next(check for check in checks if check.name == "2: devices")
    assert skipped.found == "not checked, because '2: tasks' failed"
