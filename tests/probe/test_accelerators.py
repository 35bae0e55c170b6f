"""The number of accelerators per worker of a cluster."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, DeadlineExceededError, ProbeError, UnknownTaskError
from aioresolve.probe import Device, WorkerProbe
from aioresolve.probe.workers import common_accelerators, operation_timeout, tasks_to_probe
from aioresolve.spec import ClusterSpec

TRAINING = ClusterSpec({"ps": ["a:1"], "worker": {0: "b:1", 3: "c:1"}})


def probe_with(**counts: int) -> WorkerProbe:
    devices = tuple(Device(f"{kind}:{n}", kind) for kind, count in counts.items() for n in range(count))
    return WorkerProbe("a:1", "tensorflow", devices)


def failed_probe(address: str, code: str) -> WorkerProbe:
    error = ProbeError(
        f"{address} is {code}", hint=f"Remedy {code}.", address=address, code=code, retryable=code != "tls"
    )
    return WorkerProbe(address, error=error)


@pytest.mark.parametrize(
    ("task_type", "task_id", "tasks"),
    [
        (None, None, {"/job:worker/task:0": "b:1", "/job:worker/task:3": "c:1"}),
        ("worker", 3, {"/job:worker/task:3": "c:1"}),
        (None, 3, {"/job:worker/task:3": "c:1"}),
        ("ps", None, {"/job:ps/task:0": "a:1"}),
    ],
)
def test_task_type_and_task_id_select_the_tasks(
    task_type: str | None, task_id: int | None, tasks: Mapping[str, str]
) -> None:
    assert tasks_to_probe(TRAINING, task_type, task_id) == tasks


def test_all_tasks_are_probed_if_there_is_no_job_worker() -> None:
    spec = ClusterSpec({"chief": ["a:1"], "evaluator": ["b:1"]})
    assert list(tasks_to_probe(spec, None, None).values()) == ["a:1", "b:1"]
    with pytest.raises(ConfigurationError, match="is ambiguous"):
        tasks_to_probe(spec, None, 0)


def test_missing_task_is_named() -> None:
    for task_type, task_id in (("chief", None), ("worker", 1), ("ps", 7)):
        with pytest.raises(UnknownTaskError, match=task_type):
            tasks_to_probe(TRAINING, task_type, task_id)
    with pytest.raises(UnknownTaskError, match="no task to probe"):
        tasks_to_probe(ClusterSpec({"worker": []}), None, None)


def test_operation_timeout_is_in_milliseconds_and_zero_means_none() -> None:
    assert operation_timeout(SimpleNamespace(operation_timeout_in_ms=2500)) == 2.5
    assert operation_timeout(SimpleNamespace(operation_timeout_in_ms=0)) is None
    assert operation_timeout(None) is None
    for config in (*(SimpleNamespace(operation_timeout_in_ms=value) for value in ("1", -1)), 5):
        with pytest.raises(ConfigurationError, match="config_proto"):
            operation_timeout(config)


@given(st.dictionaries(st.sampled_from(["GPU", "TPU", "XLA_GPU"]), st.integers(1, 8)), st.integers(1, 5))
def test_accelerators_of_equal_workers_are_returned(counts: dict[str, int], workers: int) -> None:
    probes = {f"/task:{n}": probe_with(CPU=1, **counts) for n in range(workers)}
    assert common_accelerators(probes, 1.0) == counts


def test_workers_with_different_accelerators_are_listed() -> None:
    probes = {"/task:0": probe_with(TPU=8), "/task:1": probe_with(TPU=4), "/task:2": probe_with(CPU=1)}
    with pytest.raises(ProbeError, match=r"8 TPU.*4 TPU.*none.*task_type") as caught:
        common_accelerators(probes, 1.0)
    assert caught.value.code == "uneven"
    assert caught.value.failures == {"/task:0": "8 TPU", "/task:1": "4 TPU", "/task:2": "none"}
    assert isinstance(caught.value, RuntimeError)
    assert not caught.value.retryable


def test_failed_workers_are_listed_with_the_reasons() -> None:
    probes = {
        "/task:0": probe_with(TPU=8),
        "/task:1": failed_probe("b:1", "refused"),
        "/task:2": failed_probe("c:1", "tls"),
    }
    with pytest.raises(ProbeError, match="2 of 3 workers") as caught:
        common_accelerators(probes, 1.0)
    assert caught.value.failures == {"/task:1": "b:1 is refused", "/task:2": "c:1 is tls"}
    assert (caught.value.code, caught.value.address, caught.value.retryable) == ("failed", None, False)
    assert "Remedy" not in str(caught.value)
    del probes["/task:2"]
    with pytest.raises(ProbeError) as caught:
        common_accelerators(probes, 1.0)
    assert (caught.value.code, caught.value.address, caught.value.retryable) == ("refused", "b:1", True)
    assert "Remedy refused." in str(caught.value)


def test_deadline_error_lists_the_reached_and_the_missing_workers() -> None:
    probes = {"/task:0": probe_with(TPU=8), "/task:1": failed_probe("b:1", "deadline")}
    with pytest.raises(DeadlineExceededError) as caught:
        common_accelerators(probes, 1.5)
    assert caught.value.timeout == 1.5
    assert caught.value.reached == {"/task:0": "8 TPU"}
    assert caught.value.missing == {"/task:1": "b:1 is deadline"}
    assert "Remedy deadline." in str(caught.value)
