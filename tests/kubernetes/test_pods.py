"""Pods and rows: decoding, the order of names, and the error for pods that are not running."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodNotRunningError
from aioresolve.kubernetes.api.objects import MAX_NAME, Rows, Table, decode_list
from aioresolve.kubernetes.tasks.order_by import natural_keys
from aioresolve.kubernetes.tasks.pods import MAX_SHOWN, raise_not_running

from .samples import COLUMNS, READY, ROWS, pod, table


def decoded_rows(body: bytes) -> list[tuple[str, str, str]]:
    decoded = decode_list(body)
    assert isinstance(decoded, Table)
    rows = Rows.from_table(decoded)
    return list(zip(rows.names, rows.statuses, rows.ips, strict=True))


@given(st.permutations(COLUMNS))
def test_columns_are_found_by_name_never_by_position(columns: list[str]) -> None:
    order = [COLUMNS.index(name) for name in columns]
    shuffled = [[cells[place] for place in order] for cells in ROWS]
    assert decoded_rows(table(shuffled, columns)) == [(cells[0], cells[2], cells[5]) for cells in ROWS]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (table(ROWS, COLUMNS[:4]), "no column Name, Status or IP, only"),
        (table([["train-0", "1/1"]]), "does not have one cell for each of the 9 columns"),
        (table([[*ROWS[0][:5], 4, *ROWS[0][6:]]]), "not all strings"),  # type: ignore[list-item]
        (table([["x" * (MAX_NAME + 1), *ROWS[0][1:]]]), "a name is longer than 253 characters"),
    ],
)
def test_an_invalid_table_is_an_error_that_says_where_it_differs(body: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        decoded_rows(body)


def in_order(names: list[str]) -> list[str]:
    return [name for _, name in sorted(zip(natural_keys(names), names, strict=True))]


def test_parts_of_names_are_ordered_as_numbers_or_as_text() -> None:
    names = ["worker-10", "worker-2", "worker-1", "ps-3", "worker-2-b", "worker-2-a10", "worker-2-a9"]
    assert in_order(names) == [
        *("ps-3", "worker-1", "worker-2", "worker-2-a9", "worker-2-a10", "worker-2-b", "worker-10")
    ]


@given(st.lists(st.integers(0, 10**40), unique=True))
def test_numbered_names_are_in_the_order_of_their_numbers(numbers: list[int]) -> None:
    names = [f"worker-{number}" for number in numbers]
    assert in_order(names) == [f"worker-{number}" for number in sorted(numbers)]


def test_a_pod_is_ready_if_its_ready_condition_is_true() -> None:
    assert pod(status={"conditions": READY}).ready
    assert not pod(status={"conditions": [{"type": "Ready", "status": "False"}]}).ready
    assert not pod(status={"conditions": [{"type": "PodScheduled", "status": "True"}]}).ready
    assert not pod().ready


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (1, "1 matching pod is not running: ml/p-0: Pending. Wait until they run"),
        (MAX_SHOWN, f"ml/p-{MAX_SHOWN - 1}: Pending. Wait"),
        (MAX_SHOWN + 980, f"ml/p-{MAX_SHOWN - 1}: Pending; and 980 more. Wait"),
    ],
)
def test_the_error_shows_at_most_20_pods_and_counts_the_others(number: int, message: str) -> None:
    pods = {f"ml/p-{each}": "Pending" for each in range(number)}
    with pytest.raises(PodNotRunningError) as caught:
        raise_not_running(pods)
    assert message in str(caught.value)
    assert caught.value.pods == pods


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
