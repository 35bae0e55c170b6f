"""The store behind the loopback API server: versions, a bounded past, deletion."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.testing.kubernetes.lists import list_body, page
from aioresolve.testing.kubernetes.options import ListOptions, Representation, Selection
from aioresolve.testing.kubernetes.selectors import label_selector
from aioresolve.testing.kubernetes.statuses import Failure
from aioresolve.testing.kubernetes.store import Expired, Store
from aioresolve.testing.kubernetes.watches import selected_change
from aioresolve.testing.kubernetes.writes import Writer, mark_for_deletion, replace_pod
from aioresolve.testing.lifecycle import merge_patch

NOW = datetime(2026, 11, 20, 15, 39, 21, tzinfo=UTC)
HELD = {"metadata": {"name": "a", "finalizers": ["example.com/hold"]}, "spec": {"nodeName": "node-a"}}


def empty_store(history: int = 100) -> Store:
    return Store(clock=lambda: NOW, history=history)


def small(name: str, namespace: str = "ml", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def placed(name: str = "a", **spec: Any) -> dict[str, Any]:
    return small(name) | {"spec": {"nodeName": "node-a", **spec}, "status": {"phase": "Running"}}


def test_what_the_server_owns_is_filled_in() -> None:
    stored = empty_store().put({"metadata": {"name": "a"}})
    metadata = stored.as_dict()["metadata"]
    assert metadata.pop("uid")
    assert metadata == {
        "name": "a",
        "namespace": "default",
        "resourceVersion": "2",
        "generation": 1,
        "creationTimestamp": "2026-11-20T15:39:21Z",
    }
    assert list(stored.as_dict()) == ["kind", "apiVersion", "metadata", "spec", "status"]


def test_a_pod_written_again_keeps_its_uid() -> None:
    store = empty_store()
    first, second = (store.put(small("a")).as_dict()["metadata"] for _ in range(2))
    assert first["uid"] == second["uid"]
    store.remove("ml", "a")
    assert store.put(small("a")).as_dict()["metadata"]["uid"] != first["uid"]


def test_pods_are_listed_in_the_order_of_their_keys() -> None:
    store = empty_store()
    for key in ("a/z", "a-b/y", "a.c/x", "a/10", "a/2"):
        namespace, _, name = key.partition("/")
        store.put(small(name, namespace))
    assert [pod.key for pod in store.pods_at(store.version)] == ["a-b/y", "a.c/x", "a/10", "a/2", "a/z"]


writes = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["put", "remove"])), max_size=30)


@given(writes, st.integers(min_value=1, max_value=40))
def test_every_version_in_the_past_is_listed_as_it_was(script: list[tuple[str, str]], history: int) -> None:
    store = empty_store(history)
    pasts = {store.version: dict[str, int]()}
    for name, action in script:
        now = dict(pasts[store.version])
        if action == "put":
            now[f"ml/{name}"] = store.put(small(name)).version
        elif store.remove("ml", name) is not None:
            del now[f"ml/{name}"]
        pasts[store.version] = now
    for version, past in pasts.items():
        if version < store.version - history:
            with pytest.raises(Expired):
                store.pods_at(version)
        else:
            assert {pod.key: pod.version for pod in store.pods_at(version)} == past


@given(writes, st.integers(min_value=1, max_value=5))
def test_pages_are_a_snapshot_whatever_happens_in_between(script: list[tuple[str, str]], limit: int) -> None:
    store = empty_store()
    for name in "abcd":
        store.put(small(name))
    before = [(pod.name, pod.version) for pod in store.pods_at(store.version)]
    listed, token = [], ""
    changes = iter(script)
    while True:
        found = page(store, ListOptions(Selection("ml"), limit=limit, continue_token=token))
        listed += [(pod.name, pod.version) for pod in found.pods]
        left = len(before) - len(listed)
        assert found.metadata.get("remainingItemCount", 0) == left
        token = found.metadata.get("continue", "")
        if not token:
            break
        for name, action in [change for _, change in zip(range(3), changes, strict=False)]:
            store.put(small(name)) if action == "put" else store.remove("ml", name)
    assert listed == before


def test_a_page_of_a_selection_counts_no_rest() -> None:
    store = empty_store()
    for number in range(5):
        store.put(small(f"a-{number}", app="x"))
    selection = Selection(None, label_selector("app=x"))
    found = page(store, ListOptions(selection, limit=2))
    assert [pod.name for pod in found.pods] == ["a-0", "a-1"]
    assert sorted(found.metadata) == ["continue", "resourceVersion"]
    last = page(store, ListOptions(selection, limit=5))
    assert list(last.metadata) == ["resourceVersion"]


def test_an_expired_token_comes_with_one_for_the_rest_as_it_is_now() -> None:
    store = empty_store()
    for name in "abcd":
        store.put(small(name))
    token = page(store, ListOptions(Selection("ml"), limit=2)).metadata["continue"]
    store.compact()
    store.put(small("bb"))
    with pytest.raises(Failure) as caught:
        page(store, ListOptions(Selection("ml"), limit=2, continue_token=token))
    assert (caught.value.code, caught.value.status["reason"]) == (410, "Expired")
    rest = caught.value.status["metadata"]["continue"]
    found = page(store, ListOptions(Selection("ml"), limit=2, continue_token=rest))
    assert [pod.name for pod in found.pods] == ["bb", "c"]
    assert found.metadata["resourceVersion"] == str(store.version)
    following = page(store, ListOptions(Selection("ml"), limit=2, continue_token=found.metadata["continue"]))
    assert [pod.name for pod in following.pods] == ["d"]


def test_an_exact_version_is_listed_as_long_as_it_is_known() -> None:
    store = empty_store()
    version = store.put(small("a")).version
    store.put(small("b"))
    exact = ListOptions(Selection(), version=version, exact=True)
    assert [pod.name for pod in page(store, exact).pods] == ["a"]
    assert len(page(store, ListOptions(Selection(), version=version)).pods) == 2
    store.compact()
    with pytest.raises(Failure, match=r"The resourceVersion for the provided list is too old\."):
        page(store, exact)


def test_a_version_yet_to_come_is_a_timeout() -> None:
    with pytest.raises(Failure) as caught:
        page(empty_store(), ListOptions(Selection(), version=99))
    assert (caught.value.code, caught.value.headers) == (504, {"Retry-After": "1"})


def test_a_namespace_is_not_mistaken_for_one_that_starts_alike() -> None:
    store = empty_store()
    for namespace in ("ml", "ml-2", "ml.x", "m"):
        store.put(small("a", namespace))
    assert [pod.key for pod in page(store, ListOptions(Selection("ml"))).pods] == ["ml/a"]
    assert [pod.key for pod in page(store, ListOptions(Selection("ml"), limit=9)).pods] == ["ml/a"]


def test_only_writes_since_a_version_are_told() -> None:
    store = empty_store()
    store.put(small("a"))
    version = store.version
    store.put(small("b"))
    store.remove("ml", "a")
    reached, events = store.changes_after(version)
    assert reached == store.version
    assert [(e.version, e.pod and e.pod.name, e.previous and e.previous.name) for e in events] == [
        (version + 1, "b", None),
        (version + 2, None, "a"),
    ]


def test_a_watch_that_falls_behind_the_past_has_expired() -> None:
    store = empty_store(history=3)
    version = store.version
    for name in "abcd":
        store.put(small(name))
    with pytest.raises(Expired):
        store.changes_after(version)
    assert len(store.changes_after(version + 1)[1]) == 3


def test_compaction_ends_no_watch_that_is_connected() -> None:
    store = empty_store()
    version = store.version
    store.put(small("a"))
    store.compact()
    assert len(store.changes_after(version)[1]) == 1
    with pytest.raises(Expired):
        store.check_watchable(version + 1)
    store.check_watchable(store.version)


def test_a_pod_relabelled_out_of_the_selection_is_deleted_and_back_in_is_added() -> None:
    store = empty_store()
    selection = Selection("ml", label_selector("app=x"))
    for labels in ({"app": "x"}, {"app": "x", "more": "1"}, {"app": "y"}, {"app": "z"}, {"app": "x"}):
        store.put(small("a", **labels))
    store.remove("ml", "a")
    _, events = store.changes_after(1)
    told = [each for event in events if (each := selected_change(event, selection))]
    assert [(kind, pod.version, dict(pod.labels).get("more")) for kind, pod in told] == [
        ("ADDED", 2, None),
        ("MODIFIED", 3, "1"),
        ("DELETED", 4, "1"),
        ("ADDED", 6, None),
        ("DELETED", 7, None),
    ]
    assert [pod.as_dict()["metadata"]["resourceVersion"] for _, pod in told] == ["2", "3", "4", "6", "7"]


def test_what_a_pod_looked_like_is_kept_under_the_version_of_its_end() -> None:
    stored = empty_store().put(small("a", app="x"))
    later = stored.at(1_000_000)
    assert json.loads(later.partial)["metadata"] == {
        **stored.as_dict()["metadata"],
        "resourceVersion": "1000000",
    }
    assert later.as_dict()["spec"] == {}


def test_every_representation_is_the_same_list() -> None:
    store = empty_store()
    store.put(placed("a"))
    found = page(store, ListOptions(Selection()))
    item = json.loads(list_body(found, Representation("object"), "None"))["items"][0]
    partial = json.loads(list_body(found, Representation("metadata"), "None"))["items"][0]
    rows = [
        json.loads(list_body(found, Representation("table"), i))["rows"][0]
        for i in ("None", "Metadata", "Object")
    ]
    assert partial == {"metadata": item["metadata"]}
    assert [row["cells"][0] for row in rows] == ["a", "a", "a"]
    assert rows[0]["object"] is None
    assert rows[1]["object"]["metadata"] == item["metadata"]
    assert rows[2]["object"] == {"kind": "Pod", "apiVersion": "v1", **item}


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b"}, {"b": {"c": None, "d": 1}}, {"a": "b", "b": {"d": 1}}),
        ({"a": [1]}, {"a": [2]}, {"a": [2]}),
        ({"a": {"b": 1}}, {"a": [2]}, {"a": [2]}),
        ({"a": 1}, ["x"], ["x"]),
        ([1], {"a": 1}, {"a": 1}),
    ],
)
def test_a_merge_patch_is_merged_as_the_rfc_says(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


values = st.recursive(
    st.none() | st.integers(), lambda child: st.dictionaries(st.sampled_from("abc"), child), max_leaves=8
)


@given(st.dictionaries(st.sampled_from("abc"), values), st.dictionaries(st.sampled_from("abc"), values))
def test_a_merge_patch_applied_twice_changes_nothing_more(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    before = json.dumps([target, patch])
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert json.dumps([target, patch]) == before


def test_an_update_leaves_the_status_and_what_the_server_owns() -> None:
    old = empty_store().put(placed()).as_dict()
    new = replace_pod(
        old, {"metadata": {"uid": "x", "labels": {"b": "1"}}, "spec": {}, "status": {"phase": "Failed"}}, ""
    )
    assert new["status"] == old["status"]
    assert new["metadata"]["uid"] == old["metadata"]["uid"]
    assert new["metadata"]["labels"] == {"b": "1"}
    assert new["metadata"]["generation"] == 2


def test_an_update_of_the_status_leaves_the_spec() -> None:
    old = empty_store().put(placed()).as_dict()
    new = replace_pod(old, {"metadata": {}, "spec": {}, "status": {"phase": "Failed"}}, "status")
    assert new["spec"] == old["spec"]
    assert new["status"] == {"phase": "Failed"}


@pytest.mark.parametrize(
    ("pod", "grace", "period"),
    [
        (placed(terminationGracePeriodSeconds=30), None, 30),
        (placed(terminationGracePeriodSeconds=30), 5, 5),
        (placed(terminationGracePeriodSeconds=30), 0, 0),
        (placed(nodeName="", terminationGracePeriodSeconds=30), None, 0),
        (placed(terminationGracePeriodSeconds=30) | {"status": {"phase": "Failed"}}, None, 0),
    ],
)
def test_a_pod_gets_the_time_it_is_given_to_go(pod: dict[str, Any], grace: int | None, period: int) -> None:
    leaving = mark_for_deletion(pod, grace, NOW)
    assert leaving is not None
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == period
    assert leaving["metadata"]["deletionTimestamp"] == f"2026-11-20T15:39:{21 + period}Z"


def test_a_second_delete_can_only_shorten_the_time() -> None:
    once = mark_for_deletion(placed(), 30, NOW)
    assert once is not None
    assert mark_for_deletion(once, None, NOW) is None
    assert mark_for_deletion(once, 60, NOW) is None
    sooner = mark_for_deletion(once, 10, NOW)
    assert sooner is not None
    assert sooner["metadata"]["generation"] == once["metadata"]["generation"]
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 10


def test_a_delete_without_grace_is_two_writes() -> None:
    store = empty_store()
    version = store.put(placed()).version
    Writer(store).delete("ml", "a", 0)
    _, events = store.changes_after(version)
    assert [event.pod is None for event in events] == [False, True]
    assert store.get("ml", "a") is None


def test_a_finalizer_holds_a_pod_until_it_is_taken_away() -> None:
    store = empty_store()
    store.put(placed() | HELD)
    writer = Writer(store)
    writer.delete("default", "a", 0)
    assert store.get("default", "a") is not None
    writer.delete("default", "a", 0)
    assert store.get("default", "a") is not None
    writer.patch("default", "a", {"metadata": {"finalizers": None}}, "", "test")
    assert store.get("default", "a") is None


def test_a_pod_with_time_left_stays_until_it_is_deleted_at_once() -> None:
    store = empty_store()
    store.put(placed())
    writer = Writer(store)
    writer.delete("ml", "a", 30)
    version = store.version
    writer.delete("ml", "a", None)
    assert store.version == version
    writer.delete("ml", "a", 0)
    assert store.get("ml", "a") is None


def test_a_patch_that_changes_nothing_writes_nothing() -> None:
    store = empty_store()
    version = store.put(small("a", app="x")).version
    Writer(store).patch("ml", "a", {"metadata": {"labels": {"app": "x"}}}, "", "test")
    assert store.version == version


def test_an_update_of_another_version_is_a_conflict() -> None:
    store = empty_store()
    old = store.put(placed()).as_dict()
    store.put(placed())
    with pytest.raises(Failure, match="the object has been modified") as caught:
        Writer(store).replace("ml", "a", old, "", "test")
    assert caught.value.code == 409
