"""What one selector brings to its job, kept in order pod by pod."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.kubernetes.ordering import Selection, Shelf
from aioresolve.kubernetes.tasks import Sighting, sighting

from .samples import READY, pod


def seen(name: str, **more: Any) -> Sighting:
    label = {"batch.kubernetes.io/job-completion-index": name.rpartition("-")[2]}
    metadata = {"labels": label, **more.pop("metadata", {})}
    return sighting(pod(name, metadata=metadata, **more), "pod_ip", 8470)


def filled(*pods: Sighting, order_by: str) -> Selection:
    selection = Selection("worker", order_by=order_by)
    selection.fill(pods)
    return selection


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.integers())))
def test_a_shelf_holds_what_a_sorted_dict_would(writes: list[tuple[str, int | None]]) -> None:
    shelf: Shelf[str, int] = Shelf()
    expected: dict[str, int] = {}
    for key, value in writes:
        before = shelf.drop(key) if value is None else shelf.put(key, value)
        assert before == expected.get(key)
        if value is None:
            expected.pop(key, None)
        else:
            expected[key] = value
        assert shelf.keys == sorted(expected)
        assert shelf.values == tuple(expected[key] for key in sorted(expected))
        assert shelf.values is shelf.values


@pytest.mark.parametrize("order_by", ["name", "index"])
def test_what_did_not_change_is_the_same_object(order_by: str) -> None:
    selection = filled(seen("w-0"), seen("w-1", phase="Pending"), order_by=order_by)
    before = selection.endpoints, selection.numbering, selection.absent, selection.unready
    selection.put(seen("w-0", status={"conditions": READY}))
    assert selection.numbering is before[1]
    assert selection.absent is before[2]
    assert selection.endpoints is not before[0]
    assert selection.unready == ()


@pytest.mark.parametrize("order_by", ["name", "index"])
def test_another_address_is_another_numbering(order_by: str) -> None:
    selection = filled(seen("w-0"), order_by=order_by)
    assert selection.numbering == ({0: "10.8.0.10:8470"}, 1)
    selection.put(seen("w-0", ip="10.8.0.99"))
    assert selection.numbering == ({0: "10.8.0.99:8470"}, 1)


WRITES = st.tuples(
    st.sampled_from(["w-0", "w-1", "w-2", "w-3"]),
    st.none() | st.sampled_from(["10.8.1.1", "10.8.1.2", "10.8.1.3"]),
    st.booleans(),
)


@given(st.sampled_from(["name", "index"]), st.lists(WRITES))
def test_the_numbering_is_that_of_the_pods_whichever_way_they_came(
    order_by: str, writes: list[tuple[str, str | None, bool]]
) -> None:
    selection = filled(order_by=order_by)
    pods: dict[str, Sighting] = {}
    shown: list[tuple[dict[int, str], dict[int, str]]] = []
    for name, ip, is_looked_at in writes:
        if ip is None:
            selection.drop(seen(name))
            pods.pop(name, None)
        else:
            pods[name] = seen(name, ip=ip)
            selection.put(pods[name])
        if is_looked_at:
            found = selection.numbering
            assert found == filled(*pods.values(), order_by=order_by).numbering
            assert list(found.addresses) == sorted(found.addresses)
            shown.append((found.addresses, dict(found.addresses)))
    assert all(addresses == then for addresses, then in shown), "what was shown before has changed"


def test_by_name_tasks_follow_without_gaps_and_by_index_with_them() -> None:
    pods = seen("w-0"), seen("w-2"), seen("w-3", phase="Pending")
    assert list(filled(*pods, order_by="name").numbering.addresses) == [0, 1]
    by_index = filled(*pods, order_by="index").numbering
    assert (list(by_index.addresses), by_index.end) == ([0, 2], 4)


@pytest.mark.parametrize("order_by", ["name", "index"])
def test_a_stale_selection_passes_over_what_comes_until_it_is_filled(order_by: str) -> None:
    selection = Selection("worker", order_by=order_by)
    selection.put(seen("w-0"))
    assert (selection.is_stale, selection.endpoints) == (True, ())
    selection.fill([seen("w-1"), seen("w-0")])
    assert (selection.is_stale, [each.name for each in selection.endpoints]) == (False, ["w-0", "w-1"])
    selection.drop(seen("w-1"))
    assert [each.name for each in selection.endpoints] == ["w-0"]
