"""What `test_pod_cache_properties` does not compare: versions, absent pods, task indices, pods in transit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.api.objects import Added, Deleted, Modified, PodQuery
from aioresolve.spec import ClusterSpec, Missing, Observation

from .samples import READY, UNSCHEDULABLE, pod, waiting
from .watched_cluster import (
    EVAL,
    INDEX,
    NOW,
    TRAIN,
    bookmark,
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
    from aioresolve.kubernetes import Pod
    from aioresolve.kubernetes.watch.pod_cache import PodCache


# Lists and versions


def test_there_is_no_state_before_every_query_was_listed() -> None:
    cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
    assert (cache.is_complete, cache.version(TRAIN)) == (False, "")
    replace(cache, TRAIN, [pod()], "9")
    assert (cache.is_complete, cache.version(TRAIN)) == (False, "9")
    assert cache.observation(NOW) == Observation(None)
    replace(cache, EVAL, [], "8")
    assert cache.is_complete
    assert state(cache).spec == ClusterSpec({"worker": ["10.8.0.10:8470"], "eval": []})
    assert (state(cache).version, state(cache).observed_at) == ("8", NOW)  # of the oldest list


def test_a_pod_that_cannot_be_addressed_changes_nothing() -> None:
    def fails(found: Pod) -> str:
        raise LookupError("no such annotation")

    cache = new_cache(address=fails)
    with pytest.raises(ConfigurationError, match="pod ml/train-0 cannot be addressed: no such"):
        replace(cache, TRAIN, [pod()], "7")
    assert not cache.is_complete
    replace(cache, TRAIN, [], "100")
    with pytest.raises(ConfigurationError):
        cache.apply(TRAIN, [bookmark(150), Added(versioned("train-0", 151))])
    assert cache.version(TRAIN) == "150"


def test_an_irrelevant_change_is_not_reported_and_creates_no_objects() -> None:
    cache = listed_cache(versioned("train-0", 7), versioned("train-1", 8), versioned("x", 9, phase="Pending"))
    before = cache.observation(NOW)
    annotated = versioned("train-0", 101, metadata={"annotations": {"a": "b"}})
    assert not cache.apply(TRAIN, [Modified(annotated)])
    after = cache.observation(NOW)
    assert before.state is not None
    assert after.state is not None
    assert after.state.endpoints["worker"] is before.state.endpoints["worker"]
    assert after.state.spec is before.state.spec
    assert (after.absent, after.unready, after.expected) == (before.absent, before.unready, before.expected)
    assert after.absent is before.absent
    assert after.unready is before.unready
    assert after.state.version == "101"


@pytest.mark.parametrize("order_by", ["name", "index"])
def test_a_change_of_readiness_is_reported_with_the_same_spec(order_by: str) -> None:
    cache = listed_cache(completion(0), order_by=order_by)
    before = state(cache)
    ready = completion(0, 101, status={"conditions": READY}, spec={"nodeName": "node-b"})
    assert cache.apply(TRAIN, [Modified(ready)])
    assert state(cache) == before
    assert state(cache).spec is before.spec
    (endpoint,) = state(cache).endpoints["worker"]
    assert (endpoint.ready, endpoint.node) == (True, "node-b")


def test_bookmarks_change_the_version_only_and_never_decrease_it() -> None:
    cache = listed_cache(pod())
    assert not cache.apply(TRAIN, [bookmark(150), bookmark(120)])
    assert (cache.version(TRAIN), state(cache).version) == ("150", "150")


def test_an_older_version_is_reported_until_the_next_list() -> None:
    old = versioned("train-0", 99)
    for event in (bookmark(99), Modified(old), Deleted(old)):
        cache = listed_cache(pod("train-1"), version="100")
        cache.apply(TRAIN, [Added(versioned("train-2", 100)), bookmark(100)])
        assert not cache.version_decreased(TRAIN)
        cache.apply(TRAIN, [event])
        assert cache.version_decreased(TRAIN)
        replace(cache, TRAIN, [], "99")
        assert not cache.version_decreased(TRAIN)


def test_a_list_of_a_restored_server_replaces_newer_versions() -> None:
    cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
    for query in (TRAIN, EVAL):
        replace(cache, query, [versioned("both", 90, ip="10.0.0.1")], "100")
    before = versioned("both", 40, ip="10.9.9.9")
    replace(cache, TRAIN, [before], "50")
    replace(cache, EVAL, [before], "51")
    assert state(cache).spec.as_dict() == {"worker": ["10.9.9.9:8470"], "eval": ["10.9.9.9:8470"]}


# Pods that are absent or not ready


def test_a_pod_that_is_not_a_member_is_absent_unless_it_is_being_replaced() -> None:
    owned = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
    not_controlled = {"ownerReferences": [{"kind": "Job", "name": "train"}]}
    cache = listed_cache(
        pod("w-10", phase="Pending", ip=None, status={"conditions": UNSCHEDULABLE}),
        pod("w-2", ip=None),
        pod("w-3", phase="Unknown"),
        pod("w-4", phase="Failed"),
        pod("w-5", phase="Succeeded"),
        pod("w-6", phase="Failed", metadata=not_controlled),
        pod("w-7", phase="Failed", metadata=owned),
        pod("w-8", phase="Succeeded", metadata=owned),
        pod("w-9", phase="Pending", metadata=owned),
        pod("w-11", phase="Pending", metadata={"deletionTimestamp": "now"}),
        jobs={"worker": [[TRAIN]], "eval": [[TRAIN]]},
    )
    observation = cache.observation(NOW)
    assert observation.absent == tuple(
        Missing(job, f"ml/{name}", reason, is_final=is_final, has_succeeded=reason == "Succeeded")
        for job in ("worker", "eval")
        for name, reason, is_final in (
            ("w-2", "Running, but without an address yet", False),
            ("w-3", "Unknown", False),
            ("w-4", "Failed", True),
            ("w-5", "Succeeded", True),
            ("w-6", "Failed", True),
            ("w-9", "Pending", False),
            ("w-10", "Pending (Unschedulable: 0/1 nodes are available)", False),
        )
    )
    assert (observation.unready, names(cache)) == ((), [])


def test_a_member_that_is_not_ready_has_a_reason() -> None:
    crashing = pod(status={"containerStatuses": waiting("CrashLoopBackOff")})
    observation = listed_cache(crashing, pod("train-1", status={"conditions": READY})).observation(NOW)
    assert observation.unready == (Missing("worker", "ml/train-0", "CrashLoopBackOff"),)
    assert observation.absent == ()


# Task indices


def indexed(name: str, labels: dict[str, str], version: int = 7, **more: Any) -> Pod:
    return versioned(name, version, metadata={"labels": labels}, **more)


def completion(index: int, version: int = 7, **more: Any) -> Pod:
    return indexed(f"train-{index}", {INDEX: str(index)}, version, **more)


def indices(cache: PodCache) -> list[int]:
    return state(cache).spec.task_indices("worker")


def test_a_deleted_pod_leaves_a_gap_that_a_new_one_fills() -> None:
    cache = listed_cache(*map(completion, range(4)), order_by="index")
    before = state(cache)
    assert cache.apply(TRAIN, [Deleted(deleting("train-2", 101))])
    assert indices(cache) == [0, 1, 3]
    diff = state(cache).diff(before)
    assert ([member.task_index for member in diff.left], diff.joined, diff.moved) == ([2], (), ())
    cache.apply(TRAIN, [Added(completion(2, 102))])
    assert indices(cache) == [0, 1, 2, 3]


def test_a_group_without_a_member_is_as_large_as_the_largest_and_moves_no_other() -> None:
    group_index, worker_index = (f"leaderworkerset.sigs.k8s.io/{name}-index" for name in ("group", "worker"))
    cache = listed_cache(
        *(
            indexed(f"g{group}-{worker}", {group_index: str(group), worker_index: str(worker)})
            for group in (0, 2)
            for worker in range(3)
        ),
        order_by="index",
    )
    assert indices(cache) == [0, 1, 2, 6, 7, 8]
    restarting = indexed("g0-2", {group_index: "0", worker_index: "2"}, 101, phase="Pending")
    cache.apply(TRAIN, [Modified(restarting)])
    assert indices(cache) == [0, 1, 6, 7, 8]
    assert [missing.name for missing in cache.observation(NOW).absent] == ["ml/g0-2"]


# Two queries are two streams: one of them reports a change first.


def in_transit(cache: PodCache) -> bool:
    # A function, because mypy assumes that a property does not change between two assertions.
    return cache.in_transit


def two_queries(train: list[Pod], evaluate: list[Pod]) -> PodCache:
    cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
    replace(cache, TRAIN, train, "100")
    replace(cache, EVAL, evaluate, "100")
    assert not in_transit(cache)
    observe(cache)
    return cache


BEFORE = versioned("train-0", 7)


def test_a_pod_that_one_query_reports_as_deleted_or_recreated_leaves_the_other() -> None:
    deleted, recreated = two_queries([BEFORE], [BEFORE]), two_queries([BEFORE], [BEFORE])
    assert deleted.apply(EVAL, [Deleted(deleting("train-0", 102))])
    assert (names(deleted), names(deleted, "eval")) == ([], [])
    again = Added(versioned("train-0", 103, metadata={"uid": "new"}))
    recreated.apply(EVAL, [again])
    assert (names(recreated), len(names(recreated, "eval"))) == ([], 1)
    recreated.apply(TRAIN, [Modified(versioned("train-0", 101)), Deleted(deleting("train-0", 102))])
    assert names(recreated) == []
    recreated.apply(TRAIN, [again])
    assert [endpoint.uid for endpoint in state(recreated).endpoints["worker"]] == ["new"]


def test_a_pod_is_in_transit_from_one_query_to_another_until_both_have_reported_it() -> None:
    left, arrived = Deleted(versioned("train-0", 101)), Added(versioned("train-0", 101))
    for first, second in (((TRAIN, left), (EVAL, arrived)), ((EVAL, arrived), (TRAIN, left))):
        cache = two_queries([BEFORE], [])
        for is_moving, (query, event) in ((True, first), (False, second)):
            cache.apply(query, [event])
            assert in_transit(cache) == is_moving
        assert (names(cache), names(cache, "eval")) == ([], ["train-0"])


def test_a_change_that_one_query_has_not_reported_is_in_transit() -> None:
    changed = Modified(versioned("train-0", 101))
    for query, event in ((TRAIN, changed), (EVAL, Deleted(deleting("train-0", 102)))):
        cache = two_queries([BEFORE], [BEFORE])
        cache.apply(EVAL, [changed])
        assert in_transit(cache)
        cache.apply(query, [event])
        assert not in_transit(cache)


def test_a_new_list_or_an_observation_ends_the_transit() -> None:
    left = Deleted(versioned("train-0", 101))
    observed, listed, gone = (
        two_queries([BEFORE], []),
        two_queries([BEFORE], []),
        two_queries([BEFORE], [BEFORE]),
    )
    observed.apply(TRAIN, [left])
    listed.apply(TRAIN, [left])
    gone.apply(EVAL, [Modified(versioned("train-0", 101))])
    assert all(map(in_transit, (observed, listed, gone)))
    observe(observed)
    replace(listed, TRAIN, [versioned("train-0", 102)], "102")
    replace(gone, TRAIN, [], "101")
    assert not any(map(in_transit, (observed, listed, gone)))


def test_a_pod_that_no_other_query_may_match_is_not_in_transit() -> None:
    here, there = PodQuery("app=train", "ml"), PodQuery("app=train", "other")
    elsewhere = new_cache({"worker": [[here, there]]})
    replace(elsewhere, here, [BEFORE], "100")
    replace(elsewhere, there, [], "100")
    for cache in (elsewhere, listed_cache(BEFORE)):
        cache.apply(TRAIN, [Deleted(versioned("train-0", 101))])
        assert not in_transit(cache)
    deleted = two_queries([BEFORE], [])
    deleted.apply(TRAIN, [Deleted(deleting("train-0", 101))])
    assert not in_transit(deleted)
