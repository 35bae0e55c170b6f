"""The cached pods and the observations that follow from them: lists and events of one query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve.errors import ConfigurationError, InvalidClusterError
from aioresolve.kubernetes.api.objects import Added, Deleted, Failed, Modified, PodQuery, Status
from aioresolve.spec import ClusterSpec, Missing, Observation

from .samples import READY, UNSCHEDULABLE, pod, waiting
from .watched_cluster import (
    EVAL,
    NOW,
    TRAIN,
    bookmark,
    contents,
    deleting,
    listed_cache,
    names,
    new_cache,
    replace,
    state,
    versioned,
)

if TYPE_CHECKING:
    from aioresolve.kubernetes.api.objects import Pod, WatchEvent


class TestLists:
    def test_there_is_no_state_before_every_query_was_listed(self) -> None:
        cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
        assert (cache.is_complete, cache.version(TRAIN)) == (False, "")
        assert cache.observation(NOW) == Observation(None)
        replace(cache, TRAIN, [pod()], "7")
        assert (cache.is_complete, cache.version(TRAIN)) == (False, "7")
        assert cache.observation(NOW) == Observation(None)
        replace(cache, EVAL, [], "8")
        assert cache.is_complete
        assert state(cache).spec == ClusterSpec({"worker": ["10.8.0.10:8470"], "eval": []})

    def test_the_version_of_a_state_is_that_of_its_oldest_list(self) -> None:
        cache = new_cache({"worker": [[TRAIN]], "eval": [[EVAL]]})
        replace(cache, TRAIN, [], "10")
        replace(cache, EVAL, [], "9")
        assert (state(cache).version, state(cache).observed_at) == ("9", NOW)

    def test_a_job_without_members_has_no_tasks(self) -> None:
        assert state(listed_cache()).spec.as_dict() == {"worker": {}}

    def test_a_list_replaces_everything_cached(self) -> None:
        cache = listed_cache(pod("train-0"), pod("train-1"))
        replace(cache, TRAIN, [pod("train-1"), pod("train-2")], "200")
        assert names(cache) == ["train-1", "train-2"]
        assert cache.version(TRAIN) == "200"

    def test_a_list_without_changes_keeps_the_endpoints(self) -> None:
        cache = listed_cache(versioned("train-0", 7))
        (before,) = state(cache).endpoints["worker"]
        replace(cache, TRAIN, [versioned("train-0", 9)], "200")
        assert state(cache).endpoints["worker"][0] is before

    def test_numbers_in_names_are_ordered_as_numbers(self) -> None:
        shuffled = [pod(f"train-{number}") for number in (10, 9, 100, 1)]
        assert names(listed_cache(*shuffled)) == ["train-1", "train-9", "train-10", "train-100"]

    def test_equal_names_are_in_the_order_of_their_namespaces(self) -> None:
        everywhere = PodQuery("app=train")
        cache = new_cache({"worker": [[everywhere]]})
        found = [pod(metadata={"namespace": name, "uid": name}) for name in ("b", "a", "a-b")]
        replace(cache, everywhere, found, "1")
        # As a server lists them: it sorts `a-b/train-0` before `a/train-0`.
        assert [e.namespace for e in state(cache).endpoints["worker"]] == ["a-b", "a", "b"]

    @pytest.mark.parametrize("given", [["z", "a"], [f"team-{number}" for number in range(120, 0, -1)]])
    def test_equal_names_are_in_the_order_in_which_namespaces_were_given(self, given: list[str]) -> None:
        queries = [PodQuery("app=train", name) for name in given]
        cache = new_cache({"worker": [queries]})
        for query in reversed(queries):
            replace(cache, query, [pod(metadata={"namespace": query.namespace, "uid": query.namespace})], "1")
        assert [e.namespace for e in state(cache).endpoints["worker"]] == given

    def test_the_tasks_of_selectors_follow_one_another(self) -> None:
        cache = new_cache({"worker": [[EVAL], [TRAIN]]})
        replace(cache, TRAIN, [pod("a-0")], "1")
        replace(cache, EVAL, [pod("b-0"), pod("b-1")], "1")
        assert names(cache) == ["b-0", "b-1", "a-0"]
        assert state(cache).spec.task_indices("worker") == [0, 1, 2]

    def test_a_pod_that_two_selectors_match_is_two_tasks(self) -> None:
        cache = listed_cache(pod(), jobs={"worker": [[TRAIN], [TRAIN]], "eval": [[TRAIN]]})
        assert names(cache) == ["train-0", "train-0"]
        assert names(cache, "eval") == ["train-0"]

    def test_a_list_with_an_invalid_address_changes_nothing(self) -> None:
        def fails(found: Pod) -> str:
            raise LookupError("no such annotation")

        cache = new_cache(address=fails)
        with pytest.raises(ConfigurationError, match="pod ml/train-0 cannot be addressed: no such"):
            replace(cache, TRAIN, [pod()], "7")
        assert not cache.is_complete

    def test_an_address_that_is_not_unicode_is_an_error_that_names_the_pod(self) -> None:
        with pytest.raises(ConfigurationError, match=r"ml/train-0 cannot be addressed: .*is not a host name"):
            replace(new_cache(address=lambda found: "\ud800"), TRAIN, [pod()], "7")

    def test_a_job_name_that_is_not_unicode_is_an_error(self) -> None:
        with pytest.raises(InvalidClusterError):
            new_cache({"\ud800": [[TRAIN]]})


class TestEvents:
    def test_an_added_pod_is_a_member(self) -> None:
        cache = listed_cache(pod("train-1"))
        assert cache.apply(TRAIN, [Added(versioned("train-0", 101))])
        assert names(cache) == ["train-0", "train-1"]
        assert cache.version(TRAIN) == "101"

    def test_a_pod_being_deleted_is_neither_a_member_nor_absent(self) -> None:
        cache = listed_cache(pod("train-0"), pod("train-1"))
        assert cache.apply(TRAIN, [Modified(deleting("train-0", 101))])
        assert names(cache) == ["train-1"]
        assert cache.observation(NOW).absent == ()

    def test_the_end_of_a_pod_being_deleted_changes_nothing(self) -> None:
        cache = listed_cache(pod("train-0"))
        cache.apply(TRAIN, [Modified(deleting("train-0", 101))])
        before = contents(cache.observation(NOW))
        cache.apply(TRAIN, [Deleted(deleting("train-0", 102))])
        assert contents(cache.observation(NOW)) == before

    def test_a_new_address_is_reported(self) -> None:
        cache = listed_cache(versioned("train-0", 7))
        assert cache.apply(TRAIN, [Modified(versioned("train-0", 101, ip="10.8.0.99"))])
        assert state(cache).spec.task_address("worker", 0) == "10.8.0.99:8470"

    def test_a_change_of_readiness_is_reported_with_the_same_spec(self) -> None:
        cache = listed_cache(versioned("train-0", 7))
        before = state(cache)
        ready = versioned("train-0", 101, status={"conditions": READY}, spec={"nodeName": "node-b"})
        assert cache.apply(TRAIN, [Modified(ready)])
        after = state(cache)
        assert after == before
        assert after.spec is before.spec
        assert (after.endpoints["worker"][0].ready, after.endpoints["worker"][0].node) == (True, "node-b")

    def test_an_irrelevant_change_is_not_reported(self) -> None:
        cache = listed_cache(versioned("train-0", 7), versioned("train-1", 8))
        before = cache.observation(NOW)
        annotated = versioned("train-0", 101, metadata={"annotations": {"a": "b"}})
        assert not cache.apply(TRAIN, [Modified(annotated)])
        after = cache.observation(NOW)
        assert before.state is not None
        assert after.state is not None
        assert after.state.endpoints["worker"] is before.state.endpoints["worker"]
        assert after.state.spec is before.state.spec
        assert after.state.version == "101"

    def test_a_bookmark_changes_the_version_only(self) -> None:
        cache = listed_cache(pod())
        assert not cache.apply(TRAIN, [bookmark(150)])
        assert cache.version(TRAIN) == "150"
        assert state(cache).version == "150"

    def test_a_bookmark_never_decreases_the_version(self) -> None:
        cache = listed_cache(pod())
        cache.apply(TRAIN, [bookmark(150), bookmark(120)])
        assert cache.version(TRAIN) == "150"

    def test_an_older_version_is_reported_until_the_next_list(self) -> None:
        old = versioned("train-0", 99)
        for event in (bookmark(99), Modified(old), Deleted(old)):
            cache = listed_cache(pod("train-1"), version="100")
            cache.apply(TRAIN, [Added(versioned("train-2", 100)), bookmark(100)])
            assert not cache.version_decreased(TRAIN)
            cache.apply(TRAIN, [event])
            assert cache.version_decreased(TRAIN)
            replace(cache, TRAIN, [], "99")
            assert not cache.version_decreased(TRAIN)

    def test_a_pod_without_a_version_does_not_change_that_of_the_query(self) -> None:
        cache = listed_cache()
        assert cache.apply(TRAIN, [Added(pod("train-0"))])
        assert cache.version(TRAIN) == "100"

    def test_an_error_event_changes_nothing(self) -> None:
        cache = listed_cache(pod())
        assert not cache.apply(TRAIN, [Failed(Status(code=410))])
        assert (names(cache), cache.version(TRAIN)) == (["train-0"], "100")

    def test_repeated_events_change_nothing(self) -> None:
        events: list[WatchEvent[Pod]] = [
            Added(versioned("train-0", 101)),
            Modified(versioned("train-0", 102, ip="10.8.0.2")),
            Deleted(deleting("train-0", 103)),
            Added(versioned("train-1", 104)),
        ]
        cache = listed_cache()
        cache.apply(TRAIN, events)
        before = contents(cache.observation(NOW))
        assert not cache.apply(TRAIN, events)
        assert contents(cache.observation(NOW)) == before
        assert cache.version(TRAIN) == "104"

    def test_a_repeated_deletion_of_a_pod_that_matches_again_changes_nothing(self) -> None:
        left = Deleted(versioned("train-0", 101))
        cache = listed_cache(versioned("train-0", 7))
        cache.apply(TRAIN, [left, Added(versioned("train-0", 102))])
        assert not cache.apply(TRAIN, [left])
        assert names(cache) == ["train-0"]

    def test_versions_of_pods_compare_even_if_that_of_their_list_does_not(self) -> None:
        cache = listed_cache(versioned("train-0", 7), version="b")
        assert not cache.apply(TRAIN, [Modified(versioned("train-0", 6, ip="10.8.0.2"))])
        assert state(cache).spec.task_address("worker", 0) == "10.8.0.10:8470"

    def test_a_recreated_pod_replaces_the_one_whose_deletion_was_missed(self) -> None:
        cache = listed_cache(versioned("train-0", 7))
        recreated = versioned("train-0", 101, ip="10.8.0.99", metadata={"uid": "new"})
        assert cache.apply(TRAIN, [Added(recreated)])
        (endpoint,) = state(cache).endpoints["worker"]
        assert (endpoint.uid, endpoint.address) == ("new", "10.8.0.99:8470")

    def test_a_late_deletion_of_the_previous_pod_does_not_affect_the_recreated_one(self) -> None:
        cache = listed_cache(versioned("train-0", 7))
        cache.apply(TRAIN, [Added(versioned("train-0", 101, metadata={"uid": "new"}))])
        assert not cache.apply(TRAIN, [Deleted(deleting("train-0", 101))])
        assert names(cache) == ["train-0"]

    def test_versions_that_are_not_numbers_count_in_the_order_of_arrival(self) -> None:
        cache = listed_cache(pod(metadata={"resourceVersion": "b"}), version="b")
        assert cache.apply(TRAIN, [Modified(pod(ip="10.8.0.2", metadata={"resourceVersion": "a"}))])
        assert state(cache).spec.task_address("worker", 0) == "10.8.0.2:8470"
        assert (cache.version(TRAIN), state(cache).version) == ("a", "a")
        assert cache.apply(TRAIN, [Deleted(pod(metadata={"resourceVersion": "c"}))])
        assert names(cache) == []

    def test_an_event_with_an_invalid_address_does_not_change_the_version(self) -> None:
        def fails(found: Pod) -> str:
            raise LookupError("no such annotation")

        cache = listed_cache(address=fails)
        with pytest.raises(ConfigurationError):
            cache.apply(TRAIN, [bookmark(150), Added(versioned("train-0", 151))])
        assert cache.version(TRAIN) == "150"


OWNED = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
OWNED_WITHOUT_CONTROLLER = {"ownerReferences": [{"kind": "Job", "name": "train"}]}


class TestAbsentAndUnreadyPods:
    @pytest.mark.parametrize(
        ("found", "absent"),
        [
            (
                pod(phase="Pending", ip=None, status={"conditions": UNSCHEDULABLE}),
                Missing("worker", "ml/train-0", "Pending (Unschedulable: 0/1 nodes are available)"),
            ),
            (pod(ip=None), Missing("worker", "ml/train-0", "Running, but without an address yet")),
            (pod(phase="Unknown"), Missing("worker", "ml/train-0", "Unknown")),
            (pod(phase="Failed"), Missing("worker", "ml/train-0", "Failed", is_final=True)),
            (pod(phase="Succeeded"), Missing("worker", "ml/train-0", "Succeeded", is_final=True)),
            (
                pod(phase="Failed", metadata=OWNED_WITHOUT_CONTROLLER),
                Missing("worker", "ml/train-0", "Failed", is_final=True),
            ),
            (pod(phase="Failed", metadata=OWNED), None),
            (pod(phase="Succeeded", metadata=OWNED), None),
            (pod(phase="Pending", metadata=OWNED), Missing("worker", "ml/train-0", "Pending")),
            (pod(phase="Pending", metadata={"deletionTimestamp": "now"}), None),
        ],
    )
    def test_a_pod_that_is_not_a_member_is_absent_unless_its_controller_replaces_it(
        self, found: Pod, absent: Missing | None
    ) -> None:
        observation = listed_cache(found).observation(NOW)
        assert observation.absent == (() if absent is None else (absent,))
        assert observation.unready == ()
        assert observation.state is not None
        assert observation.state.endpoints["worker"] == ()

    def test_a_member_that_is_not_ready_has_a_reason(self) -> None:
        crashing = pod(status={"containerStatuses": waiting("CrashLoopBackOff")})
        observation = listed_cache(crashing, pod("train-1", status={"conditions": READY})).observation(NOW)
        assert observation.unready == (Missing("worker", "ml/train-0", "CrashLoopBackOff"),)
        assert observation.absent == ()

    def test_a_pod_of_two_jobs_is_reported_for_each(self) -> None:
        cache = listed_cache(pod(phase="Pending"), jobs={"worker": [[TRAIN]], "eval": [[TRAIN]]})
        assert [missing.job for missing in cache.observation(NOW).absent] == ["worker", "eval"]

    def test_a_pod_that_becomes_running_and_ready_is_no_longer_reported(self) -> None:
        cache = listed_cache(versioned("train-0", 7, phase="Pending"))
        assert cache.apply(TRAIN, [Modified(versioned("train-0", 101))])
        assert (cache.observation(NOW).absent, len(cache.observation(NOW).unready)) == ((), 1)
        assert cache.apply(TRAIN, [Modified(versioned("train-0", 102, status={"conditions": READY}))])
        assert (cache.observation(NOW).absent, cache.observation(NOW).unready) == ((), ())

    def test_a_change_of_the_reason_alone_is_reported(self) -> None:
        cache = listed_cache(versioned("train-0", 7, phase="Pending"))
        scheduled = {"containerStatuses": waiting("ContainerCreating")}
        assert cache.apply(TRAIN, [Modified(versioned("train-0", 101, phase="Pending", status=scheduled))])
        assert [m.reason for m in cache.observation(NOW).absent] == ["Pending (ContainerCreating)"]

    def test_absent_pods_are_ordered_by_name_with_numbers_as_numbers(self) -> None:
        cache = listed_cache(*(pod(f"train-{number}", phase="Pending") for number in (10, 2, 1)))
        assert [m.name for m in cache.observation(NOW).absent] == ["ml/train-1", "ml/train-2", "ml/train-10"]

    def test_unchanged_parts_are_the_same_objects(self) -> None:
        cache = listed_cache(pod("train-0", phase="Pending"), pod("train-1"))
        before = cache.observation(NOW)
        cache.apply(TRAIN, [bookmark(150)])
        after = cache.observation(NOW)
        assert after.absent is before.absent
        assert after.unready is before.unready
        assert after.expected is before.expected
