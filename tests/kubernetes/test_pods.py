"""Pods and rows: decoding, membership and addresses."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, PodNotRunningError
from aioresolve.kubernetes.api.objects import MAX_NAME, PodList, Rows, Table, decode_list
from aioresolve.kubernetes.tasks.pods import (
    MAX_SHOWN,
    ListedMembers,
    membership,
    pod_address,
    raise_not_running,
)
from aioresolve.kubernetes.tasks.task_order import BATCH, natural_keys

from .samples import COLUMNS, READY, ROWS, pod, pod_json, table


def decoded_rows(body: bytes) -> list[tuple[str, str, str]]:
    decoded = decode_list(body)
    assert isinstance(decoded, Table)
    rows = Rows.from_table(decoded)
    return list(zip(rows.names, rows.statuses, rows.ips, strict=True))


def test_a_table_has_name_status_and_ip() -> None:
    assert decoded_rows(table(ROWS))[:2] == [
        ("crash-0", "CrashLoopBackOff", "10.8.1.2"),
        ("creating-0", "ContainerCreating", "<none>"),
    ]


@given(st.permutations(COLUMNS))
def test_columns_are_found_by_name_never_by_position(columns: list[str]) -> None:
    order = [COLUMNS.index(name) for name in columns]
    shuffled = [[cells[place] for place in order] for cells in ROWS]
    assert decoded_rows(table(shuffled, columns)) == decoded_rows(table(ROWS))


def test_only_running_rows_with_an_ip_prove_a_member() -> None:
    decoded = decode_list(table([*ROWS, ["new-0", "0/1", "Running", "0", "1s", "<none>", "a", "", ""]]))
    assert isinstance(decoded, Table)
    rows = Rows.from_table(decoded)
    proven = [name for name in rows.names if name not in rows.inconclusive]
    assert proven == ["notready-0", "train-0", "train-1", "train-10", "train-2"]


def test_an_empty_table_has_no_rows() -> None:
    assert decoded_rows(table([])) == []
    assert decoded_rows(table([]).replace(b'"rows": []', b'"rows": null')) == []


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (table(ROWS, COLUMNS[:4]), "no column Name, Status or IP, only"),
        (table([["train-0", "1/1"]]), "does not have one cell for each of the 9 columns"),
        (table([[*ROWS[0][:5], 4, *ROWS[0][6:]]]), "not all strings"),  # type: ignore[list-item]
    ],
)
def test_an_invalid_table_is_an_error_that_says_where_it_differs(body: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        decoded_rows(body)


def test_a_pod_list_is_decoded_into_the_fields_that_are_read() -> None:
    body = json.dumps({"kind": "PodList", "metadata": {"continue": "token"}, "items": [pod_json("train-0")]})
    decoded = decode_list(body.encode())
    assert isinstance(decoded, PodList)
    assert decoded.metadata.continue_ == "token"
    assert decoded.items == [pod("train-0")]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"kind":"Status"}',
        b'{"kind":"PodList","items":7}',
        b'{"kind":"PodList","items":[{}]}',
        b'{"kind":"PodList","items":[{"metadata":{"name":null}}]}',
        b'{"kind":"Table","rows":[{"cells":"x"}]}',
        b'{"kind":"PodList","items":' + b"[" * 100_000,
        b'{"kind":"PodList","items":[\xff]}',
    ],
)
def test_a_body_of_another_type_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_list(body)


@given(st.binary())
def test_arbitrary_bytes_are_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_list(body)


def in_order(names: list[str]) -> list[str]:
    return [name for _, name in sorted(zip(natural_keys(names), names, strict=True))]


def test_numbers_in_names_are_ordered_as_numbers() -> None:
    names = ["worker-10", "worker-2", "worker-1", "ps-3", "worker-2-b", "worker-2-a10", "worker-2-a9"]
    assert in_order(names) == [
        "ps-3",
        "worker-1",
        "worker-2",
        "worker-2-a9",
        "worker-2-a10",
        "worker-2-b",
        "worker-10",
    ]


@given(st.lists(st.text("abz019-.\n", max_size=12)))
def test_every_name_gets_a_key(names: list[str]) -> None:
    assert sorted(in_order(names)) == sorted(names)


@given(st.lists(st.integers(0, 10**20), unique=True))
def test_numbered_names_are_in_the_order_of_their_numbers(numbers: list[int]) -> None:
    names = [f"worker-{number}" for number in numbers]
    assert in_order(names) == [f"worker-{number}" for number in sorted(numbers)]


@given(st.lists(st.text("abz019-.", max_size=12)))
def test_the_key_of_a_name_does_not_depend_on_other_names(names: list[str]) -> None:
    assert natural_keys(names) == [key for name in names for key in natural_keys([name])]


def test_keys_of_many_names_are_those_of_each_name() -> None:
    names = [f"worker-{number % 13}-{number:05}" for number in range(2 * BATCH + 1)]
    assert natural_keys(names) == [key for name in names for key in natural_keys([name])]


def test_keys_of_names_with_many_numbers_need_little_more_memory_than_the_keys() -> None:
    names = ["a0" * (MAX_NAME // 2)] * 16_000
    tracemalloc.start()
    try:
        keys = natural_keys(names)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * sum(map(len, keys))


@given(st.lists(st.integers(0, 10**40), unique=True))
def test_numbers_of_any_length_are_ordered(numbers: list[int]) -> None:
    names = [f"worker-{number}" for number in numbers]
    assert in_order(names) == [f"worker-{number}" for number in sorted(numbers)]


@pytest.mark.parametrize(
    ("choice", "address"),
    [
        ("pod_ip", "10.8.0.11:8470"),
        ("pod_ipv4", "10.8.0.11:8470"),
        ("pod_ipv6", "[fd00::11]:8470"),
        ("host_ip", "192.168.0.1:8470"),
        ("hostname", "train-1.train.ml.svc:8470"),
        (lambda pod: pod.metadata.name, "train-1:8470"),
        (lambda pod: (pod.status.pod_ip, 2222), "10.8.0.11:2222"),
        (lambda pod: "fd00::1", "[fd00::1]:8470"),
        (lambda pod: None, None),
    ],
)
def test_each_kind_of_address(choice: Any, address: str | None) -> None:
    dual_stack = pod(
        "train-1",
        ip="10.8.0.11",
        status={"podIPs": [{"ip": "10.8.0.11"}, {"ip": "fd00::11"}]},
        spec={"hostname": "train-1", "subdomain": "train"},
    )
    assert pod_address(dual_stack, choice, 8470) == address


@pytest.mark.parametrize("choice", ["pod_ip", "pod_ipv4", "pod_ipv6", "host_ip"])
def test_a_pod_without_an_ip_has_no_address_yet(choice: str) -> None:
    assert pod_address(pod(ip=None), choice, 8470) is None


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ("pod_ipv6", "no IPv6 address, only 10.8.0.10"),
        ("hostname", "spec.subdomain is not set"),
        (lambda pod: 7, "returned 7; it has to return a host"),
        (lambda pod: ("host", "port"), "it has to return a host"),
        (lambda pod: "host:1", "Leave out the port"),
        (lambda pod: "\ud800", "is not a host name"),
    ],
)
def test_an_impossible_address_is_an_error_with_the_reason(choice: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        pod_address(pod(), choice, 8470)


@pytest.mark.parametrize("spec", [{"hostname": "train-0"}, {"subdomain": "train"}])
def test_a_pod_with_only_one_part_of_a_dns_name_has_none(spec: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"spec\.hostname or spec\.subdomain is not set"):
        pod_address(pod(spec=spec), "hostname", 8470)


def test_a_pod_is_ready_if_its_ready_condition_is_true() -> None:
    assert pod(status={"conditions": READY}).ready
    assert not pod(status={"conditions": [{"type": "Ready", "status": "False"}]}).ready
    assert not pod(status={"conditions": [{"type": "PodScheduled", "status": "True"}]}).ready
    assert not pod().ready


def test_rows_and_pods_give_the_same_members() -> None:
    from_rows, from_pods = ListedMembers(), ListedMembers()
    from_rows.add_rows(Rows(["train-0"], ["Running"], ["10.8.0.10"], "7"), set(), 8470)
    from_pods.add_pods([pod("train-0", ip="10.8.0.10")], "pod_ip", 8470)
    assert from_rows == from_pods == ListedMembers(["train-0"], ["10.8.0.10:8470"])


@pytest.mark.parametrize("ip", ["10.8.0.1\n10.8.0.2", "10.8.0.1 slots=9", "<none>"])
def test_value_that_is_no_address_is_refused_in_rows_as_in_pods(ip: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a host name or IP address"):
        ListedMembers().add_rows(Rows(["a", "b"], ["Running"] * 2, ["10.8.0.9", ip], "7"), set(), 8470)
    with pytest.raises(ConfigurationError, match="is not a host name or IP address"):
        ListedMembers().add_pods([pod("a", ip=ip)], "pod_ip", 8470)


def test_rows_with_a_name_that_is_too_long_are_invalid() -> None:
    assert Rows.from_table(decoded_table("x" * MAX_NAME)).names == ["x" * MAX_NAME]
    with pytest.raises(ValueError, match="a name is longer than 253 characters"):
        Rows.from_table(decoded_table("x" * (MAX_NAME + 1)))


def decoded_table(name: str) -> Table:
    cells = [name, "1/1", "Running", "0", "5d", "10.0.0.7", "node-a", "<none>", "<none>"]
    decoded = decode_list(table([cells], COLUMNS))
    assert isinstance(decoded, Table)
    return decoded


def test_a_pod_with_a_name_that_is_too_long_is_invalid() -> None:
    body = json.dumps({"kind": "PodList", "items": [pod_json("x" * (MAX_NAME + 1))]}).encode()
    with pytest.raises(ValueError, match="length <= 253"):
        decode_list(body)


def test_inconclusive_rows_add_no_members() -> None:
    rows = Rows(["a", "b", "b"], ["Running", "Running", "Pending"], ["10.8.0.1", "fd00::1", "<none>"], "7")
    members = ListedMembers()
    members.add_rows(rows, rows.inconclusive, 8470)
    assert members == ListedMembers(["a"], ["10.8.0.1:8470"])
    members.add_rows(Rows(["c"], ["Running"], ["fd00::1"], "7"), set(), 8470)
    assert members.addresses[1] == "[fd00::1]:8470"


def test_a_pod_being_deleted_is_not_a_member() -> None:
    deleting = pod("deleting-0", metadata={"deletionTimestamp": "2026-11-20T15:39:51Z"})
    assert membership(deleting, "pod_ip", 8470) == (None, None)
    members = ListedMembers()
    members.add_pods([pod("train-0"), deleting], "pod_ip", 8470)
    assert members == ListedMembers(["train-0"], ["10.8.0.10:8470"])


def test_every_pod_that_is_not_running_is_reported_with_its_phase_and_reason() -> None:
    members = ListedMembers()
    pods = [
        pod("train-0"),
        pod("failed-0", phase="Failed", status={"reason": "Evicted"}),
        pod("pending-0", phase="Pending", ip=None),
    ]
    members.add_pods(pods, "pod_ip", 8470)
    assert members.not_running == {"ml/failed-0": "Failed (Evicted)", "ml/pending-0": "Pending"}
    with pytest.raises(PodNotRunningError) as caught:
        raise_not_running(members.not_running)
    error = caught.value
    assert error.pods == members.not_running
    assert "2 matching pods are not running: ml/failed-0: Failed (Evicted); ml/pending-0" in str(error)
    assert "not_running='skip'" in str(error)
    assert isinstance(error, RuntimeError)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (1, "1 matching pod is not running: ml/p-0: Pending. Wait"),
        (2, "2 matching pods are not running: ml/p-0: Pending; ml/p-1: Pending. Wait"),
        (MAX_SHOWN, f"ml/p-{MAX_SHOWN - 1}: Pending. Wait"),
        (MAX_SHOWN + 1, f"ml/p-{MAX_SHOWN - 1}: Pending; and 1 more. Wait"),
    ],
)
def test_the_error_names_at_most_20_pods_and_counts_the_others(number: int, end: str) -> None:
    with pytest.raises(PodNotRunningError) as caught:
        raise_not_running({f"ml/p-{each}": "Pending" for each in range(number)})
    assert end in str(caught.value)


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("Pending (Unschedulable: no nodes)", "Wait until they run"),
        ("Running, but without an address yet", "Wait until they run"),
        ("Failed (Error: exit code 1)", "do not run again: create new ones"),
        ("Succeeded", "do not run again: create new ones"),
    ],
)
def test_the_hint_is_to_wait_only_for_pods_that_may_still_run(reason: str, hint: str) -> None:
    with pytest.raises(PodNotRunningError, match=hint):
        raise_not_running({"ml/train-0": reason})


def test_a_failing_address_callable_is_an_error_that_names_the_pod() -> None:
    def fail(pod: object) -> str:
        raise LookupError("no such annotation")

    with pytest.raises(ConfigurationError, match="pod ml/train-0 cannot be addressed: no such annotation"):
        membership(pod("train-0"), fail, 8470)


@pytest.mark.parametrize(
    ("choice", "hint"),
    [
        ("hostname", "Name a headless Service in spec.subdomain of the pods, or choose another `address=`."),
        ("pod_ipv6", "Choose another `address=`."),
        (lambda pod: 7, "Correct the callable that is passed as `address=`."),
    ],
)
def test_the_error_for_an_impossible_address_has_a_hint_for_its_kind(choice: Any, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        membership(pod("train-0"), choice, 8470)
    assert str(caught.value).endswith(hint)


def test_the_address_of_a_pod_that_is_not_running_is_not_requested() -> None:
    def fail(pod: object) -> str:
        raise AssertionError("must not be called")

    assert membership(pod("p", phase="Pending"), fail, 8470) == (None, "Pending")
