"""Members at the task indices their controllers gave them, with gaps where one is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.objects import Added, Deleted, Modified

from .samples import READY
from .watched_cluster import (
    EVAL,
    INDEX,
    NOW,
    TRAIN,
    leaving,
    listed,
    look_at,
    membership,
    names,
    state,
    versioned,
)

if TYPE_CHECKING:
    from aioresolve.kubernetes.objects import Pod

GROUP, WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
JOBSET, GLOBAL = "jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"


def indexed(name: str, labels: dict[str, str], version: int = 7, **more: Any) -> Pod:
    return versioned(name, version, metadata={"labels": labels}, **more)


def completion(index: int, version: int = 7, **more: Any) -> Pod:
    return indexed(f"train-{index}", {INDEX: str(index)}, version, **more)


class TestByIndex:
    def test_each_pod_is_its_own_task(self) -> None:
        kept = listed(indexed("x", {INDEX: "1"}), indexed("y", {INDEX: "0"}), order_by="index")
        assert names(kept) == ["y", "x"]
        assert state(kept).spec.task_indices("worker") == [0, 1]

    def test_who_left_leaves_a_gap_and_moves_nobody(self) -> None:
        kept = listed(*map(completion, range(4)), order_by="index")
        before = state(kept)
        assert kept.apply(TRAIN, [Deleted(leaving("train-2", 101))])
        assert state(kept).spec.task_indices("worker") == [0, 1, 3]
        diff = state(kept).diff(before)
        assert ([member.task_index for member in diff.left], diff.joined, diff.moved) == ([2], (), ())

    def test_who_comes_back_fills_its_gap(self) -> None:
        kept = listed(*map(completion, (0, 2)), order_by="index")
        kept.apply(TRAIN, [Added(completion(1, 101))])
        assert state(kept).spec.task_indices("worker") == [0, 1, 2]

    def test_a_first_selector_with_a_gap_at_its_end_keeps_its_place_while_the_pod_is_known(self) -> None:
        kept = membership({"worker": [[TRAIN], [EVAL]]}, order_by="index")
        kept.replace(TRAIN, [completion(0), completion(1, phase="Pending")], "100")
        kept.replace(EVAL, [completion(0)], "100")
        assert state(kept).spec.task_indices("worker") == [0, 2]

    def test_a_worker_that_restarts_moves_no_task_of_the_next_group(self) -> None:
        pods = [
            indexed(f"g{group}-{worker}", {GROUP: str(group), WORKER: str(worker)})
            for group in range(2)
            for worker in range(3)
        ]
        kept = listed(*pods, order_by="index")
        restarting = {GROUP: "0", WORKER: "2"}
        kept.apply(TRAIN, [Modified(indexed("g0-2", restarting, 101, phase="Pending"))])
        assert state(kept).spec.task_indices("worker") == [0, 1, 3, 4, 5]
        assert [missing.name for missing in kept.observation(NOW).absent] == ["ml/g0-2"]

    def test_a_group_of_which_nobody_is_known_is_as_large_as_the_largest(self) -> None:
        pods = [
            indexed(f"g{group}-{worker}", {GROUP: str(group), WORKER: str(worker)})
            for group in (0, 2)
            for worker in range(3)
        ]
        assert state(listed(*pods, order_by="index")).spec.task_indices("worker") == [0, 1, 2, 6, 7, 8]

    def test_a_second_replicated_job_has_all_count_over_the_set(self) -> None:
        leader = {REPLICATED: "leader", JOBSET: "0", GLOBAL: "0", INDEX: "0"}
        workers = [{REPLICATED: "workers", JOBSET: "0", GLOBAL: "1", INDEX: str(i)} for i in range(2)]
        kept = listed(*(indexed(f"w-{i}", workers[i]) for i in range(2)), order_by="index")
        assert names(kept) == ["w-0", "w-1"]
        kept.apply(TRAIN, [Added(indexed("leader", leader, 101))])
        assert names(kept) == ["leader", "w-0", "w-1"]
        assert state(kept).spec.task_indices("worker") == [0, 1, 2]
        kept.apply(TRAIN, [Deleted(leaving("leader", 102))])
        assert (names(kept), state(kept).spec.task_indices("worker")) == (["w-0", "w-1"], [0, 1])

    def test_an_index_taken_twice_is_an_error_until_one_of_them_goes(self) -> None:
        kept = listed(completion(0), indexed("again", {INDEX: "0"}), order_by="index")
        for _ in range(2):
            with pytest.raises(PodIndexError, match="index 0 is taken by ml/again and ml/train-0") as caught:
                kept.observation(NOW)
            assert caught.value.duplicates == {0: ("ml/again", "ml/train-0")}
        kept.apply(TRAIN, [Deleted(leaving("again", 101))])
        assert names(kept) == ["train-0"]

    def test_a_member_without_an_index_is_an_error_until_it_goes(self) -> None:
        kept = listed(completion(0), versioned("plain", 7), order_by="index")
        with pytest.raises(PodIndexError, match="no index label or annotation on ml/plain") as caught:
            kept.observation(NOW)
        assert caught.value.unindexed == ("ml/plain",)
        kept.apply(TRAIN, [Modified(versioned("plain", 101, phase="Succeeded"))])
        assert names(kept) == ["train-0"]
        kept.apply(TRAIN, [Modified(versioned("plain", 102))])
        with pytest.raises(PodIndexError, match="no index label or annotation on ml/plain"):
            kept.observation(NOW)
        kept.apply(TRAIN, [Deleted(leaving("plain", 103))])
        assert names(kept) == ["train-0"]

    def test_a_pod_that_is_given_another_index_moves(self) -> None:
        kept = listed(completion(0), order_by="index")
        kept.apply(TRAIN, [Modified(indexed("train-0", {INDEX: "3"}, 101))])
        assert state(kept).spec.task_indices("worker") == [3]
        assert names(kept) == ["train-0"]

    def test_who_comes_to_run_and_then_goes_is_counted_once(self) -> None:
        kept = membership({"worker": [[TRAIN], [EVAL]]}, order_by="index")
        kept.replace(TRAIN, [completion(0), completion(1, phase="Pending")], "100")
        kept.replace(EVAL, [completion(0)], "100")
        look_at(kept)
        kept.apply(TRAIN, [Modified(completion(1, 101))])
        assert state(kept).spec.task_indices("worker") == [0, 1, 2]
        kept.apply(TRAIN, [Deleted(leaving("train-1", 102))])
        assert state(kept).spec.task_indices("worker") == [0, 1]

    def test_who_is_absent_and_goes_is_counted_no_longer(self) -> None:
        kept = membership({"worker": [[TRAIN], [EVAL]]}, order_by="index")
        kept.replace(TRAIN, [completion(0), completion(1, phase="Pending")], "100")
        kept.replace(EVAL, [completion(0)], "100")
        look_at(kept)
        kept.apply(TRAIN, [Deleted(leaving("train-1", 101))])
        assert state(kept).spec.task_indices("worker") == [0, 1]

    def test_an_index_beyond_any_cluster_is_an_error(self) -> None:
        with pytest.raises(PodIndexError, match="claims index 999999999"):
            listed(completion(999_999_999), order_by="index").observation(NOW)

    def test_readiness_alone_is_told_and_the_spec_stays(self) -> None:
        kept = listed(completion(0), order_by="index")
        before = state(kept)
        kept.apply(TRAIN, [Modified(completion(0, 101, status={"conditions": READY}))])
        assert state(kept).spec is before.spec
        assert state(kept).endpoints["worker"][0].ready
