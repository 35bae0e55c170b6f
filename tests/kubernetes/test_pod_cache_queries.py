"""Several queries that report the same pods, one earlier than the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioresolve.kubernetes.api.objects import Added, Deleted, Modified, PodQuery

from .watched_cluster import (
    EVAL,
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
    from aioresolve.kubernetes.watch.pod_cache import PodCache


def is_in_transit(cache: PodCache) -> bool:
    # A function, because mypy assumes that a property does not change between two assertions.
    return cache.in_transit


class CountingName(str):
    """A namespace that counts how often it is compared."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        type(self).comparisons += 1
        return str(self) == other

    __hash__ = str.__hash__


def test_cost_of_a_cache_is_linear_in_the_number_of_queries() -> None:
    comparisons = []
    for number in (100, 1000):
        namespaces = [CountingName(f"team-{each}") for each in range(number)]
        selectors = [[PodQuery(selector, name) for name in namespaces] for selector in ("a", "b")]
        CountingName.comparisons = 0
        new_cache({"worker": selectors})
        comparisons.append(CountingName.comparisons)
    few, many = comparisons
    assert many <= 20 * max(few, 100)  # 10,000 and 1,000,000 if each is compared with every other one


class TestTwoQueries:
    """Two queries are two streams: one of them reports a change first."""

    def both(self, train: list[Pod], evaluate: list[Pod]) -> PodCache:
        cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
        replace(cache, TRAIN, train, "100")
        replace(cache, EVAL, evaluate, "100")
        assert not is_in_transit(cache)
        observe(cache)
        return cache

    def test_all_queries_show_the_newest_version_of_a_pod(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        assert cache.apply(EVAL, [Modified(versioned("train-0", 101, ip="10.8.0.2"))])
        assert state(cache).spec.as_dict() == {"worker": ["10.8.0.2:8470"], "eval": ["10.8.0.2:8470"]}
        assert not cache.apply(TRAIN, [Modified(versioned("train-0", 101, ip="10.8.0.2"))])

    def test_first_list_of_a_query_does_not_restore_an_old_version(self) -> None:
        cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
        replace(cache, EVAL, [versioned("train-0", 101, ip="10.8.0.2")], "101")
        replace(cache, TRAIN, [versioned("train-0", 7)], "100")
        assert state(cache).spec.as_dict() == {"worker": ["10.8.0.2:8470"], "eval": ["10.8.0.2:8470"]}

    def test_a_stream_that_is_behind_does_not_restore_an_old_version(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        cache.apply(EVAL, [Modified(versioned("train-0", 102, ip="10.8.0.3"))])
        assert not cache.apply(TRAIN, [Modified(versioned("train-0", 101, ip="10.8.0.2"))])
        assert state(cache).spec.as_dict() == {"worker": ["10.8.0.3:8470"], "eval": ["10.8.0.3:8470"]}

    def test_a_pod_that_a_query_reports_late_appears_in_its_newest_version(self) -> None:
        cache = self.both([versioned("train-0", 7)], [])
        cache.apply(TRAIN, [Modified(versioned("train-0", 105, ip="10.8.0.5"))])
        cache.apply(EVAL, [Added(versioned("train-0", 101))])
        assert state(cache).spec.task_address("eval", 0) == "10.8.0.5:8470"

    def test_a_deleted_pod_is_removed_from_all_queries(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        assert cache.apply(EVAL, [Deleted(deleting("train-0", 102))])
        assert (names(cache), names(cache, "eval")) == ([], [])
        assert not cache.apply(TRAIN, [Modified(deleting("train-0", 101))])

    def test_a_recreated_pod_removes_the_previous_one_from_all_queries(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        cache.apply(EVAL, [Added(versioned("train-0", 103, metadata={"uid": "new"}))])
        assert (names(cache), len(names(cache, "eval"))) == ([], 1)
        cache.apply(TRAIN, [Modified(versioned("train-0", 101))])
        assert names(cache) == []
        cache.apply(TRAIN, [Deleted(deleting("train-0", 102))])
        cache.apply(TRAIN, [Added(versioned("train-0", 103, metadata={"uid": "new"}))])
        assert [e.uid for e in state(cache).endpoints["worker"]] == ["new"]

    def test_a_pod_that_left_a_query_without_deletion_is_in_transit_until_it_appears(self) -> None:
        cache = self.both([versioned("train-0", 7)], [])
        cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert is_in_transit(cache)
        cache.apply(EVAL, [Added(versioned("train-0", 101))])
        assert not is_in_transit(cache)
        assert (names(cache), names(cache, "eval")) == ([], ["train-0"])

    def test_a_pod_that_appeared_before_it_left_another_query_is_in_transit_until_it_leaves(self) -> None:
        cache = self.both([versioned("train-0", 7)], [])
        cache.apply(EVAL, [Added(versioned("train-0", 101))])
        assert is_in_transit(cache)
        cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert not is_in_transit(cache)

    def test_a_change_that_one_query_has_not_reported_is_in_transit(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        cache.apply(EVAL, [Modified(versioned("train-0", 101))])
        assert is_in_transit(cache)
        cache.apply(TRAIN, [Modified(versioned("train-0", 101))])
        assert not is_in_transit(cache)

    def test_a_deleted_pod_is_not_in_transit(self) -> None:
        cache = self.both([versioned("train-0", 7)], [])
        cache.apply(TRAIN, [Deleted(deleting("train-0", 101))])
        assert not is_in_transit(cache)

    def test_a_pod_in_transit_that_is_deleted_is_no_longer_in_transit(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        cache.apply(EVAL, [Modified(versioned("train-0", 101))])
        assert is_in_transit(cache)
        cache.apply(EVAL, [Deleted(deleting("train-0", 102))])
        assert not is_in_transit(cache)

    def test_a_query_that_is_behind_readds_the_pod_in_its_newest_version(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        cache.apply(EVAL, [Modified(versioned("train-0", 103, ip="10.8.0.3"))])
        # Its labels did not match at 101, and match again since 102.
        assert cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert names(cache) == []
        assert cache.apply(TRAIN, [Added(versioned("train-0", 102))])
        assert state(cache).spec.task_address("worker", 0) == "10.8.0.3:8470"

    def test_an_observation_ends_the_transit(self) -> None:
        cache = self.both([versioned("train-0", 7)], [])
        cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        cache.observation(NOW)
        assert not is_in_transit(cache)

    def test_a_pod_that_a_new_list_does_not_have_is_no_longer_in_transit(self) -> None:
        cache = self.both([versioned("train-0", 7)], [versioned("train-0", 7)])
        cache.apply(EVAL, [Modified(versioned("train-0", 101))])
        replace(cache, TRAIN, [], "101")
        assert not is_in_transit(cache)

    def test_a_pod_that_a_new_list_has_again_is_no_longer_in_transit(self) -> None:
        cache = self.both([versioned("train-0", 7)], [])
        cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert is_in_transit(cache)
        replace(cache, TRAIN, [versioned("train-0", 102)], "102")
        assert not is_in_transit(cache)

    def test_no_pod_moves_from_one_namespace_to_another(self) -> None:
        here, there = PodQuery("app=train", "ml"), PodQuery("app=train", "other")
        cache = new_cache({"worker": [[here, there]]})
        replace(cache, here, [versioned("train-0", 7)], "100")
        replace(cache, there, [], "100")
        cache.apply(here, [Deleted(versioned("train-0", 101))])
        assert not is_in_transit(cache)

    def test_one_namespace_and_all_namespaces_may_match_the_same_pod(self) -> None:
        everywhere = PodQuery("app=train")
        cache = new_cache({"worker": [[TRAIN]], "eval": [[everywhere]]})
        replace(cache, TRAIN, [versioned("train-0", 7)], "100")
        replace(cache, everywhere, [versioned("train-0", 7)], "100")
        observe(cache)
        cache.apply(TRAIN, [Modified(versioned("train-0", 101, phase="Pending"))])
        assert (names(cache), names(cache, "eval")) == ([], [])
        cache.apply(everywhere, [Modified(versioned("train-0", 102))])
        assert (names(cache), names(cache, "eval")) == (["train-0"], ["train-0"])

    def test_with_a_single_query_nothing_is_in_transit(self) -> None:
        cache = listed_cache(versioned("train-0", 7))
        cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert not is_in_transit(cache)
