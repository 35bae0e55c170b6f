"""Parsing of the responses of workers, and rejection of implausible ones. No I/O."""

import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ProbeError
from aioresolve.probe import Device, WorkerProbe
from aioresolve.probe.devices import MAX_DEVICES, parse_memory_metric, parse_runtime_status, parse_status

from .samples import SPARSE_CORE, TENSOR_CORE, TWO_CPUS, memory_metric, runtime_status, status

HOST = "10.0.0.1:8470"


def test_recorded_response_is_parsed() -> None:
    first, second = parse_status(TWO_CPUS, HOST)
    assert first == Device("/job:worker/replica:0/task:0/device:CPU:0", "CPU", 268435456, 9808080448997035081)
    assert (second.name[-6:], second.type, second.memory) == (":CPU:1", "CPU", 268435456)
    assert first.incarnation != second.incarnation


@given(st.lists(st.sampled_from(["CPU", "GPU", "TPU", "XLA_CPU", "XLA_GPU", "TPU_SYSTEM"]), min_size=1))
def test_accelerators_are_counted_by_type_without_devices_of_the_host(types: list[str]) -> None:
    devices = parse_status(status(*(f"{kind}:{n}" for n, kind in enumerate(types))), HOST)
    host = ("CPU", "XLA_CPU", "TPU_SYSTEM")
    expected = Counter(kind for kind in types if kind not in host)
    assert WorkerProbe(HOST, "tensorflow", devices).accelerators == expected


metric = partial(parse_memory_metric, port=8431)


@pytest.mark.parametrize(
    ("parse", "body", "words"),
    [
        (parse_status, b"", "no devices, but"),
        (parse_status, b"\xff\xff\xff", "3 bytes that are not a GetStatusResponse"),
        (parse_status, b"\n\x05\n\x03TPU", "without a name or a type"),
        (parse_status, b"\n\0" * (MAX_DEVICES + 1), "4,097 devices"),
        (parse_status, status("TPU:0", "TPU:0"), "the same device twice"),
        (parse_status, status("T" * 989), "more than 1,024 characters"),
        (parse_runtime_status, runtime_status(*[(0, None)] * (MAX_DEVICES + 1)), "4,097 cores"),
        (metric, b"\xff", "not a MetricResponse"),
        (metric, memory_metric(0, 1, 0), "3 metrics of 2 devices"),
        (metric, memory_metric(*range(MAX_DEVICES + 1)), "4,097 devices"),
    ],
)
def test_implausible_response_is_malformed(
    parse: Callable[[bytes, str], object], body: bytes, words: str
) -> None:
    with pytest.raises(ProbeError, match=words) as caught:
        parse(body, HOST)
    assert (caught.value.address, caught.value.code, caught.value.retryable) == (HOST, "malformed", False)
    assert HOST in str(caught.value)


def test_longest_name_and_longest_list_are_parsed() -> None:
    (device,) = parse_status(status("T" * 988), HOST)
    assert len(device.name) == 1024
    assert len(parse_status(status(*(f"TPU:{number}" for number in range(MAX_DEVICES))), HOST)) == MAX_DEVICES


def test_sparse_cores_are_not_counted_and_chips_that_no_core_names_are_unknown() -> None:
    cores = [(0, TENSOR_CORE), (0, SPARSE_CORE), (0, SPARSE_CORE), (1, TENSOR_CORE), (1, SPARSE_CORE)]
    assert parse_runtime_status(runtime_status(*cores), HOST) == (2, 2)
    assert parse_runtime_status(runtime_status((None, None), (None, None)), HOST) == (2, None)


def test_each_metric_is_a_device_in_the_order_of_device_numbers() -> None:
    assert parse_memory_metric(memory_metric(1, 0, size=95), HOST, 8432) == (
        Device("libtpu:8432/device:TPU:0", "TPU", 95),
        Device("libtpu:8432/device:TPU:1", "TPU", 95),
    )


def test_cores_are_the_accelerators_if_no_devices_are_reported() -> None:
    assert WorkerProbe(HOST, "libtpu", cores=8, chips=4).accelerators == {"TPU": 8}
    assert WorkerProbe(HOST, "libtpu", cores=0, chips=0).accelerators == {}
    device = Device("libtpu:8431/device:TPU:0", "TPU")
    assert WorkerProbe(HOST, "libtpu", (device,), cores=2, chips=1).accelerators == {"TPU": 1}


def test_worker_probe_is_a_value() -> None:
    probe = WorkerProbe(HOST, "tensorflow", parse_status(TWO_CPUS, HOST), latency=0.1)
    assert probe == WorkerProbe(HOST, "tensorflow", parse_status(TWO_CPUS, HOST), latency=0.2)
    assert pickle.loads(pickle.dumps(probe)) == probe
    assert len({probe, probe}) == 1
