"""A cache with `order_by="index"`: members have the task indices of their controllers, and gaps are cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.api.objects import Added, Deleted, Modified

from .samples import READY
from .watched_cluster import (
    EVAL,
    INDEX,
    NOW,
    TRAIN,
    deleting,
    listed_cache,
    names,
    new_cache,
    observe,
    replace,
    state,
    versioned,
)

if TYPE_CHECKING:
    from aioresolve.kubernetes.api.objects import Pod

GROUP, WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
JOBSET, GLOBAL = "jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"


def indexed(name: str, labels: dict[str, str], version: int = 7, **more: Any) -> Pod:
    return versioned(name, version, metadata={"labels": labels}, **more)


def completion(index: int, version: int = 7, **more: Any) -> Pod:
    return indexed(f"train-{index}", {INDEX: str(index)}, version, **more)


class TestByIndex:
    def test_each_pod_has_its_own_task_index(self) -> None:
        cache = listed_cache(indexed("x", {INDEX: "1"}), indexed("y", {INDEX: "0"}), order_by="index")
        assert names(cache) == ["y", "x"]
        assert state(cache).spec.task_indices("worker") == [0, 1]

    def test_a_deleted_pod_leaves_a_gap_and_moves_no_other(self) -> None:
        cache = listed_cache(*map(completion, range(4)), order_by="index")
        before = state(cache)
        assert cache.apply(TRAIN, [Deleted(deleting("train-2", 101))])
        assert state(cache).spec.task_indices("worker") == [0, 1, 3]
        diff = state(cache).diff(before)
        assert ([member.task_index for member in diff.left], diff.joined, diff.moved) == ([2], (), ())

    def test_a_recreated_pod_fills_its_gap(self) -> None:
        cache = listed_cache(*map(completion, (0, 2)), order_by="index")
        cache.apply(TRAIN, [Added(completion(1, 101))])
        assert state(cache).spec.task_indices("worker") == [0, 1, 2]

    def test_a_pending_pod_at_the_end_of_a_selector_keeps_its_index(self) -> None:
        cache = new_cache({"worker": [[TRAIN], [EVAL]]}, order_by="index")
        replace(cache, TRAIN, [completion(0), completion(1, phase="Pending")], "100")
        replace(cache, EVAL, [completion(0)], "100")
        assert state(cache).spec.task_indices("worker") == [0, 2]

    def test_a_restarting_worker_moves_no_task_of_the_next_group(self) -> None:
        pods = [
            indexed(f"g{group}-{worker}", {GROUP: str(group), WORKER: str(worker)})
            for group in range(2)
            for worker in range(3)
        ]
        cache = listed_cache(*pods, order_by="index")
        restarting = {GROUP: "0", WORKER: "2"}
        cache.apply(TRAIN, [Modified(indexed("g0-2", restarting, 101, phase="Pending"))])
        assert state(cache).spec.task_indices("worker") == [0, 1, 3, 4, 5]
        assert [missing.name for missing in cache.observation(NOW).absent] == ["ml/g0-2"]

    def test_a_group_without_known_members_is_as_large_as_the_largest(self) -> None:
        pods = [
            indexed(f"g{group}-{worker}", {GROUP: str(group), WORKER: str(worker)})
            for group in (0, 2)
            for worker in range(3)
        ]
        assert state(listed_cache(*pods, order_by="index")).spec.task_indices("worker") == [0, 1, 2, 6, 7, 8]

    def test_with_a_second_replicated_job_all_indices_count_over_the_set(self) -> None:
        leader = {REPLICATED: "leader", JOBSET: "0", GLOBAL: "0", INDEX: "0"}
        workers = [{REPLICATED: "workers", JOBSET: "0", GLOBAL: "1", INDEX: str(i)} for i in range(2)]
        cache = listed_cache(*(indexed(f"w-{i}", workers[i]) for i in range(2)), order_by="index")
        assert names(cache) == ["w-0", "w-1"]
        cache.apply(TRAIN, [Added(indexed("leader", leader, 101))])
        assert names(cache) == ["leader", "w-0", "w-1"]
        assert state(cache).spec.task_indices("worker") == [0, 1, 2]
        cache.apply(TRAIN, [Deleted(deleting("leader", 102))])
        assert (names(cache), state(cache).spec.task_indices("worker")) == (["w-0", "w-1"], [0, 1])

    def test_a_duplicate_index_is_an_error_until_one_pod_is_deleted(self) -> None:
        cache = listed_cache(completion(0), indexed("again", {INDEX: "0"}), order_by="index")
        for _ in range(2):
            with pytest.raises(
                PodIndexError, match="index 0 is claimed by ml/again and ml/train-0"
            ) as caught:
                cache.observation(NOW)
            assert caught.value.duplicates == {0: ("ml/again", "ml/train-0")}
        cache.apply(TRAIN, [Deleted(deleting("again", 101))])
        assert names(cache) == ["train-0"]

    def test_a_member_without_an_index_is_an_error_until_it_is_deleted(self) -> None:
        cache = listed_cache(completion(0), versioned("plain", 7), order_by="index")
        with pytest.raises(PodIndexError, match="no index label or annotation on ml/plain") as caught:
            cache.observation(NOW)
        assert caught.value.unindexed == ("ml/plain",)
        cache.apply(TRAIN, [Modified(versioned("plain", 101, phase="Succeeded"))])
        assert names(cache) == ["train-0"]
        cache.apply(TRAIN, [Modified(versioned("plain", 102))])
        with pytest.raises(PodIndexError, match="no index label or annotation on ml/plain"):
            cache.observation(NOW)
        cache.apply(TRAIN, [Deleted(deleting("plain", 103))])
        assert names(cache) == ["train-0"]

    def test_a_pod_whose_index_changes_moves(self) -> None:
        cache = listed_cache(completion(0), order_by="index")
        cache.apply(TRAIN, [Modified(indexed("train-0", {INDEX: "3"}, 101))])
        assert state(cache).spec.task_indices("worker") == [3]
        assert names(cache) == ["train-0"]

    def test_a_pod_that_starts_and_is_deleted_is_counted_once(self) -> None:
        cache = new_cache({"worker": [[TRAIN], [EVAL]]}, order_by="index")
        replace(cache, TRAIN, [completion(0), completion(1, phase="Pending")], "100")
        replace(cache, EVAL, [completion(0)], "100")
        observe(cache)
        cache.apply(TRAIN, [Modified(completion(1, 101))])
        assert state(cache).spec.task_indices("worker") == [0, 1, 2]
        cache.apply(TRAIN, [Deleted(deleting("train-1", 102))])
        assert state(cache).spec.task_indices("worker") == [0, 1]

    def test_a_pending_pod_that_is_deleted_is_no_longer_counted(self) -> None:
        cache = new_cache({"worker": [[TRAIN], [EVAL]]}, order_by="index")
        replace(cache, TRAIN, [completion(0), completion(1, phase="Pending")], "100")
        replace(cache, EVAL, [completion(0)], "100")
        observe(cache)
        cache.apply(TRAIN, [Deleted(deleting("train-1", 101))])
        assert state(cache).spec.task_indices("worker") == [0, 1]

    def test_an_index_larger_than_any_cluster_is_an_error(self) -> None:
        with pytest.raises(PodIndexError, match="claims index 999999999"):
            listed_cache(completion(999_999_999), order_by="index").observation(NOW)

    def test_a_change_of_readiness_is_reported_with_the_same_spec(self) -> None:
        cache = listed_cache(completion(0), order_by="index")
        before = state(cache)
        cache.apply(TRAIN, [Modified(completion(0, 101, status={"conditions": READY}))])
        assert state(cache).spec is before.spec
        assert state(cache).endpoints["worker"][0].ready
