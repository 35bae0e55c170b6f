"""What several queries tell of the same pods, each a little earlier or later than the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.kubernetes.objects import Added, Deleted, Modified
from aioresolve.kubernetes.query import PodQuery

from .watched_cluster import EVAL, NOW, TRAIN, leaving, listed, look_at, membership, names, state, versioned

if TYPE_CHECKING:
    from aioresolve.kubernetes.objects import Pod
    from aioresolve.kubernetes.pod_cache import Membership


def are_apart(kept: Membership) -> bool:
    return kept.in_transit


class TestQueriesThatAreApart:
    """Two queries are two streams: what happens at once is told by one of them first."""

    def both(self, train: list[Pod], evaluate: list[Pod]) -> Membership:
        kept = membership({"worker": [[TRAIN]], "eval": [[EVAL]]})
        kept.replace(TRAIN, train, "100")
        kept.replace(EVAL, evaluate, "100")
        assert not are_apart(kept)
        look_at(kept)
        return kept

    def test_a_pod_is_shown_in_its_newest_version_by_all(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        assert kept.apply(EVAL, [Modified(versioned("train-0", 101, ip="10.8.0.2"))])
        assert state(kept).spec.as_dict() == {"worker": ["10.8.0.2:8470"], "eval": ["10.8.0.2:8470"]}
        assert not kept.apply(TRAIN, [Modified(versioned("train-0", 101, ip="10.8.0.2"))])

    def test_a_stream_that_is_behind_does_not_bring_the_old_version_back(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        kept.apply(EVAL, [Modified(versioned("train-0", 102, ip="10.8.0.3"))])
        assert not kept.apply(TRAIN, [Modified(versioned("train-0", 101, ip="10.8.0.2"))])
        assert state(kept).spec.as_dict() == {"worker": ["10.8.0.3:8470"], "eval": ["10.8.0.3:8470"]}

    def test_a_pod_that_comes_late_to_one_comes_in_its_newest_version(self) -> None:
        kept = self.both([versioned("train-0", 7)], [])
        kept.apply(TRAIN, [Modified(versioned("train-0", 105, ip="10.8.0.5"))])
        kept.apply(EVAL, [Added(versioned("train-0", 101))])
        assert state(kept).spec.task_address("eval", 0) == "10.8.0.5:8470"

    def test_a_pod_that_is_deleted_is_gone_from_all(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        assert kept.apply(EVAL, [Deleted(leaving("train-0", 102))])
        assert (names(kept), names(kept, "eval")) == ([], [])
        assert not kept.apply(TRAIN, [Modified(leaving("train-0", 101))])

    def test_a_pod_made_anew_ends_the_one_before_in_all(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        kept.apply(EVAL, [Added(versioned("train-0", 103, metadata={"uid": "anew"}))])
        assert (names(kept), len(names(kept, "eval"))) == ([], 1)
        kept.apply(TRAIN, [Modified(versioned("train-0", 101))])
        assert names(kept) == []
        kept.apply(TRAIN, [Deleted(leaving("train-0", 102))])
        kept.apply(TRAIN, [Added(versioned("train-0", 103, metadata={"uid": "anew"}))])
        assert [e.uid for e in state(kept).endpoints["worker"]] == ["anew"]

    def test_a_pod_that_left_and_was_not_deleted_is_in_transit_until_it_appears(self) -> None:
        kept = self.both([versioned("train-0", 7)], [])
        kept.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert are_apart(kept)
        kept.apply(EVAL, [Added(versioned("train-0", 101))])
        assert not are_apart(kept)
        assert (names(kept), names(kept, "eval")) == ([], ["train-0"])

    def test_a_pod_that_appeared_and_has_not_left_is_in_transit_until_it_does(self) -> None:
        kept = self.both([versioned("train-0", 7)], [])
        kept.apply(EVAL, [Added(versioned("train-0", 101))])
        assert are_apart(kept)
        kept.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert not are_apart(kept)

    def test_a_change_that_one_has_still_to_tell_is_in_transit(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        kept.apply(EVAL, [Modified(versioned("train-0", 101))])
        assert are_apart(kept)
        kept.apply(TRAIN, [Modified(versioned("train-0", 101))])
        assert not are_apart(kept)

    def test_a_pod_being_deleted_goes_nowhere(self) -> None:
        kept = self.both([versioned("train-0", 7)], [])
        kept.apply(TRAIN, [Deleted(leaving("train-0", 101))])
        assert not are_apart(kept)

    def test_a_pod_that_is_gone_is_in_transit_no_longer(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        kept.apply(EVAL, [Modified(versioned("train-0", 101))])
        assert are_apart(kept)
        kept.apply(EVAL, [Deleted(leaving("train-0", 102))])
        assert not are_apart(kept)

    def test_a_query_that_is_behind_and_lets_the_pod_go_takes_it_back_in_its_newest_version(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        kept.apply(EVAL, [Modified(versioned("train-0", 103, ip="10.8.0.3"))])
        # By its labels it was gone at 101, and it is back since 102.
        assert kept.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert names(kept) == []
        assert kept.apply(TRAIN, [Added(versioned("train-0", 102))])
        assert state(kept).spec.task_address("worker", 0) == "10.8.0.3:8470"

    def test_an_observation_waits_no_longer(self) -> None:
        kept = self.both([versioned("train-0", 7)], [])
        kept.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        kept.observation(NOW)
        assert not are_apart(kept)

    def test_a_new_list_settles_what_it_does_not_find(self) -> None:
        kept = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        kept.apply(EVAL, [Modified(versioned("train-0", 101))])
        kept.replace(TRAIN, [], "101")
        assert not are_apart(kept)

    def test_no_pod_goes_from_one_namespace_to_another(self) -> None:
        here, there = PodQuery("app=train", "ml"), PodQuery("app=train", "other")
        kept = membership({"worker": [[here, there]]})
        kept.replace(here, [versioned("train-0", 7)], "100")
        kept.replace(there, [], "100")
        kept.apply(here, [Deleted(versioned("train-0", 101))])
        assert not are_apart(kept)

    def test_one_namespace_and_all_of_them_may_find_the_same_pod(self) -> None:
        everywhere = PodQuery("app=train")
        kept = membership({"worker": [[TRAIN]], "eval": [[everywhere]]})
        kept.replace(TRAIN, [versioned("train-0", 7)], "100")
        kept.replace(everywhere, [versioned("train-0", 7)], "100")
        look_at(kept)
        kept.apply(TRAIN, [Modified(versioned("train-0", 101, phase="Pending"))])
        assert (names(kept), names(kept, "eval")) == ([], [])
        kept.apply(everywhere, [Modified(versioned("train-0", 102))])
        assert (names(kept), names(kept, "eval")) == (["train-0"], ["train-0"])

    def test_a_lone_query_is_never_in_transit(self) -> None:
        kept = listed(versioned("train-0", 7))
        kept.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert not are_apart(kept)
