"""The store of the loopback API server: versions, bounded history, deletion."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.testing.kubernetes.lists import list_body, page
from aioresolve.testing.kubernetes.options import ListOptions, Selection
from aioresolve.testing.kubernetes.selectors import label_selector
from aioresolve.testing.kubernetes.statuses import Failure
from aioresolve.testing.kubernetes.store import Expired, Store
from aioresolve.testing.kubernetes.watches import selected_change
from aioresolve.testing.kubernetes.writes import PodWriter, mark_for_deletion, replace_pod
from aioresolve.testing.lifecycle import merge_patch

NOW = datetime(2026, 11, 20, 15, 39, 21, tzinfo=UTC)
WITH_FINALIZER = {
    "metadata": {"name": "a", "finalizers": ["example.com/hold"]},
    "spec": {"nodeName": "node-a"},
}


def empty_store(history: int = 100) -> Store:
    return Store(clock=lambda: NOW, history=history)


def small_pod(name: str, namespace: str = "ml", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def scheduled_pod(name: str = "a", **spec: Any) -> dict[str, Any]:
    return small_pod(name) | {"spec": {"nodeName": "node-a", **spec}, "status": {"phase": "Running"}}


def test_store_fills_in_fields_that_the_server_owns() -> None:
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


def test_replaced_pod_keeps_its_uid() -> None:
    store = empty_store()
    first, second = (store.put(small_pod("a")).as_dict()["metadata"] for _ in range(2))
    assert first["uid"] == second["uid"]
    store.remove("ml", "a")
    assert store.put(small_pod("a")).as_dict()["metadata"]["uid"] != first["uid"]


def test_pods_are_listed_in_key_order() -> None:
    store = empty_store()
    for key in ("a/z", "a-b/y", "a.c/x", "a/10", "a/2"):
        namespace, _, name = key.partition("/")
        store.put(small_pod(name, namespace))
    assert [pod.key for pod in store.objects_at(store.version)] == ["a-b/y", "a.c/x", "a/10", "a/2", "a/z"]


writes = st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from(["put", "remove"])), max_size=30)


@given(writes, st.integers(min_value=1, max_value=40))
def test_every_version_in_the_history_can_be_listed(script: list[tuple[str, str]], history: int) -> None:
    store = empty_store(history)
    versions = {store.version: dict[str, int]()}
    for name, action in script:
        now = dict(versions[store.version])
        if action == "put":
            now[f"ml/{name}"] = store.put(small_pod(name)).version
        elif store.remove("ml", name) is not None:
            del now[f"ml/{name}"]
        versions[store.version] = now
    for version, pods in versions.items():
        if version < store.version - history:
            with pytest.raises(Expired):
                store.objects_at(version)
        else:
            assert {pod.key: pod.version for pod in store.objects_at(version)} == pods


@given(writes, st.integers(min_value=1, max_value=5))
def test_pages_are_a_snapshot_despite_writes_in_between(script: list[tuple[str, str]], limit: int) -> None:
    store = empty_store()
    for name in "abcd":
        store.put(small_pod(name))
    before = [(pod.name, pod.version) for pod in store.objects_at(store.version)]
    listed, token = [], ""
    changes = iter(script)
    while True:
        found = page(store, ListOptions(Selection("ml"), limit=limit, continue_token=token))
        listed += [(pod.name, pod.version) for pod in found.objects]
        left = len(before) - len(listed)
        assert found.metadata.get("remainingItemCount", 0) == left
        token = found.metadata.get("continue", "")
        if not token:
            break
        for name, action in [change for _, change in zip(range(3), changes, strict=False)]:
            store.put(small_pod(name)) if action == "put" else store.remove("ml", name)
    assert listed == before


def test_page_of_a_selection_has_no_remaining_item_count() -> None:
    store = empty_store()
    for number in range(5):
        store.put(small_pod(f"a-{number}", app="x"))
    selection = Selection(None, label_selector("app=x"))
    found = page(store, ListOptions(selection, limit=2))
    assert [pod.name for pod in found.objects] == ["a-0", "a-1"]
    assert sorted(found.metadata) == ["continue", "resourceVersion"]
    last = page(store, ListOptions(selection, limit=5))
    assert list(last.metadata) == ["resourceVersion"]


def test_expired_token_comes_with_a_token_for_the_current_rest() -> None:
    store = empty_store()
    for name in "abcd":
        store.put(small_pod(name))
    token = page(store, ListOptions(Selection("ml"), limit=2)).metadata["continue"]
    store.compact()
    store.put(small_pod("bb"))
    with pytest.raises(Failure) as caught:
        page(store, ListOptions(Selection("ml"), limit=2, continue_token=token))
    assert (caught.value.code, caught.value.status["reason"]) == (410, "Expired")
    rest = caught.value.status["metadata"]["continue"]
    found = page(store, ListOptions(Selection("ml"), limit=2, continue_token=rest))
    assert [pod.name for pod in found.objects] == ["bb", "c"]
    assert found.metadata["resourceVersion"] == str(store.version)
    following = page(store, ListOptions(Selection("ml"), limit=2, continue_token=found.metadata["continue"]))
    assert [pod.name for pod in following.objects] == ["d"]


def test_exact_version_can_be_listed_until_it_expires() -> None:
    store = empty_store()
    version = store.put(small_pod("a")).version
    store.put(small_pod("b"))
    exact = ListOptions(Selection(), version=version, exact=True)
    assert [pod.name for pod in page(store, exact).objects] == ["a"]
    assert len(page(store, ListOptions(Selection(), version=version)).objects) == 2
    store.compact()
    with pytest.raises(Failure, match=r"The resourceVersion for the provided list is too old\."):
        page(store, exact)


def test_listing_a_future_version_times_out() -> None:
    with pytest.raises(Failure) as caught:
        page(empty_store(), ListOptions(Selection(), version=99))
    assert (caught.value.code, caught.value.headers) == (504, {"Retry-After": "1"})


def test_namespaces_with_a_common_prefix_are_separate() -> None:
    store = empty_store()
    for namespace in ("ml", "ml-2", "ml.x", "m"):
        store.put(small_pod("a", namespace))
    assert [pod.key for pod in page(store, ListOptions(Selection("ml"))).objects] == ["ml/a"]
    assert [pod.key for pod in page(store, ListOptions(Selection("ml"), limit=9)).objects] == ["ml/a"]


def test_changes_after_a_version_are_the_later_writes() -> None:
    store = empty_store()
    store.put(small_pod("a"))
    version = store.version
    store.put(small_pod("b"))
    store.remove("ml", "a")
    reached, events = store.changes_after(version)
    assert reached == store.version
    assert [(e.version, e.object and e.object.name, e.previous and e.previous.name) for e in events] == [
        (version + 1, "b", None),
        (version + 2, None, "a"),
    ]


def test_changes_older_than_the_history_have_expired() -> None:
    store = empty_store(history=3)
    version = store.version
    for name in "abcd":
        store.put(small_pod(name))
    with pytest.raises(Expired):
        store.changes_after(version)
    assert len(store.changes_after(version + 1)[1]) == 3


def test_compaction_does_not_expire_connected_watches() -> None:
    store = empty_store()
    version = store.version
    store.put(small_pod("a"))
    store.compact()
    assert len(store.changes_after(version)[1]) == 1
    with pytest.raises(Expired):
        store.check_known(version + 1)
    store.check_known(store.version)


def test_pod_leaving_the_selection_is_deleted_and_one_entering_is_added() -> None:
    store = empty_store()
    selection = Selection("ml", label_selector("app=x"))
    for labels in ({"app": "x"}, {"app": "x", "more": "1"}, {"app": "y"}, {"app": "z"}, {"app": "x"}):
        store.put(small_pod("a", **labels))
    store.remove("ml", "a")
    _, events = store.changes_after(1)
    changes = [each for event in events if (each := selected_change(event, selection))]
    assert [(kind, pod.version, dict(pod.labels).get("more")) for kind, pod in changes] == [
        ("ADDED", 2, None),
        ("MODIFIED", 3, "1"),
        ("DELETED", 4, "1"),
        ("ADDED", 6, None),
        ("DELETED", 7, None),
    ]
    assert [pod.as_dict()["metadata"]["resourceVersion"] for _, pod in changes] == ["2", "3", "4", "6", "7"]


def test_deleted_pod_keeps_its_state_with_the_version_of_the_removal() -> None:
    stored = empty_store().put(small_pod("a", app="x"))
    later = stored.at(1_000_000)
    assert json.loads(later.partial)["metadata"] == {
        **stored.as_dict()["metadata"],
        "resourceVersion": "1000000",
    }
    assert later.as_dict()["spec"] == {}


def test_every_representation_contains_the_same_pods() -> None:
    store = empty_store()
    store.put(scheduled_pod("a"))
    found = page(store, ListOptions(Selection()))
    item = json.loads(list_body(found, "object", "None"))["items"][0]
    partial = json.loads(list_body(found, "metadata", "None"))["items"][0]
    rows = [json.loads(list_body(found, "table", i))["rows"][0] for i in ("None", "Metadata", "Object")]
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
def test_merge_patch_follows_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


values = st.recursive(
    st.none() | st.integers(), lambda child: st.dictionaries(st.sampled_from("abc"), child), max_leaves=8
)


@given(st.dictionaries(st.sampled_from("abc"), values), st.dictionaries(st.sampled_from("abc"), values))
def test_merge_patch_is_idempotent_and_changes_no_argument(
    target: dict[str, Any], patch: dict[str, Any]
) -> None:
    before = json.dumps([target, patch])
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert json.dumps([target, patch]) == before


def test_update_keeps_the_status_and_fields_that_the_server_owns() -> None:
    old = empty_store().put(scheduled_pod()).as_dict()
    new = replace_pod(
        old, {"metadata": {"uid": "x", "labels": {"b": "1"}}, "spec": {}, "status": {"phase": "Failed"}}, ""
    )
    assert new["status"] == old["status"]
    assert new["metadata"]["uid"] == old["metadata"]["uid"]
    assert new["metadata"]["labels"] == {"b": "1"}
    assert new["metadata"]["generation"] == 2


def test_status_update_keeps_the_spec() -> None:
    old = empty_store().put(scheduled_pod()).as_dict()
    new = replace_pod(old, {"metadata": {}, "spec": {}, "status": {"phase": "Failed"}}, "status")
    assert new["spec"] == old["spec"]
    assert new["status"] == {"phase": "Failed"}


@pytest.mark.parametrize(
    ("pod", "grace", "period"),
    [
        (scheduled_pod(terminationGracePeriodSeconds=30), None, 30),
        (scheduled_pod(terminationGracePeriodSeconds=30), 5, 5),
        (scheduled_pod(terminationGracePeriodSeconds=30), 0, 0),
        (scheduled_pod(nodeName="", terminationGracePeriodSeconds=30), None, 0),
        (scheduled_pod(terminationGracePeriodSeconds=30) | {"status": {"phase": "Failed"}}, None, 0),
    ],
)
def test_deletion_uses_the_requested_grace_period(
    pod: dict[str, Any], grace: int | None, period: int
) -> None:
    marked = mark_for_deletion(pod, grace, NOW)
    assert marked is not None
    assert marked["metadata"]["deletionGracePeriodSeconds"] == period
    assert marked["metadata"]["deletionTimestamp"] == f"2026-11-20T15:39:{21 + period}Z"


def test_second_delete_can_only_shorten_the_grace_period() -> None:
    once = mark_for_deletion(scheduled_pod(), 30, NOW)
    assert once is not None
    assert mark_for_deletion(once, None, NOW) is None
    assert mark_for_deletion(once, 60, NOW) is None
    sooner = mark_for_deletion(once, 10, NOW)
    assert sooner is not None
    assert sooner["metadata"]["generation"] == once["metadata"]["generation"]
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 10


def test_delete_without_a_grace_period_is_two_writes() -> None:
    store = empty_store()
    version = store.put(scheduled_pod()).version
    PodWriter(store).delete("ml", "a", 0)
    _, events = store.changes_after(version)
    assert [event.object is None for event in events] == [False, True]
    assert store.get("ml", "a") is None


def test_finalizer_delays_deletion_until_it_is_removed() -> None:
    store = empty_store()
    store.put(scheduled_pod() | WITH_FINALIZER)
    writer = PodWriter(store)
    writer.delete("default", "a", 0)
    assert store.get("default", "a") is not None
    writer.delete("default", "a", 0)
    assert store.get("default", "a") is not None
    writer.patch("default", "a", {"metadata": {"finalizers": None}}, "", "test")
    assert store.get("default", "a") is None


def test_pod_in_its_grace_period_remains_until_it_is_deleted_without_one() -> None:
    store = empty_store()
    store.put(scheduled_pod())
    writer = PodWriter(store)
    writer.delete("ml", "a", 30)
    version = store.version
    writer.delete("ml", "a", None)
    assert store.version == version
    writer.delete("ml", "a", 0)
    assert store.get("ml", "a") is None


def test_patch_without_changes_writes_nothing() -> None:
    store = empty_store()
    version = store.put(small_pod("a", app="x")).version
    PodWriter(store).patch("ml", "a", {"metadata": {"labels": {"app": "x"}}}, "", "test")
    assert store.version == version


def test_update_of_an_older_version_is_a_conflict() -> None:
    store = empty_store()
    old = store.put(scheduled_pod()).as_dict()
    store.put(scheduled_pod())
    with pytest.raises(Failure, match="the object has been modified") as caught:
        PodWriter(store).replace("ml", "a", old, "", "test")
    assert caught.value.code == 409
