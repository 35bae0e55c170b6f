"""Who is in the cluster, kept up to date event by event."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve.errors import ConfigurationError, InvalidClusterError
from aioresolve.kubernetes.objects import Added, Deleted, Failed, Modified, Status
from aioresolve.kubernetes.query import PodQuery
from aioresolve.spec import ClusterSpec, Missing, Observation

from .samples import READY, UNSCHEDULABLE, pod, waiting
from .watched_cluster import (
    EVAL,
    NOW,
    TRAIN,
    bookmark,
    leaving,
    listed,
    membership,
    names,
    state,
    told,
    versioned,
)

if TYPE_CHECKING:
    from aioresolve.kubernetes.objects import Pod, WatchEvent


class TestAList:
    def test_there_is_no_state_before_every_query_was_listed(self) -> None:
        kept = membership({"worker": [[TRAIN]], "eval": [[EVAL]]})
        assert (kept.is_complete, kept.version(TRAIN)) == (False, "")
        assert kept.observation(NOW) == Observation(None)
        kept.replace(TRAIN, [pod()], "7")
        assert (kept.is_complete, kept.version(TRAIN)) == (False, "7")
        assert kept.observation(NOW) == Observation(None)
        kept.replace(EVAL, [], "8")
        assert kept.is_complete
        assert state(kept).spec == ClusterSpec({"worker": ["10.8.0.10:8470"], "eval": []})

    def test_a_state_is_as_old_as_its_oldest_list_and_as_observed_as_now(self) -> None:
        kept = membership({"worker": [[TRAIN]], "eval": [[EVAL]]})
        kept.replace(TRAIN, [], "10")
        kept.replace(EVAL, [], "9")
        assert (state(kept).version, state(kept).observed_at) == ("9", NOW)

    def test_a_job_without_members_is_there_without_tasks(self) -> None:
        assert state(listed()).spec.as_dict() == {"worker": {}}

    def test_a_list_takes_the_place_of_all_that_was_known(self) -> None:
        kept = listed(pod("train-0"), pod("train-1"))
        kept.replace(TRAIN, [pod("train-1"), pod("train-2")], "200")
        assert names(kept) == ["train-1", "train-2"]
        assert kept.version(TRAIN) == "200"

    def test_a_list_that_repeats_what_is_known_keeps_the_endpoints(self) -> None:
        kept = listed(versioned("train-0", 7))
        (before,) = state(kept).endpoints["worker"]
        kept.replace(TRAIN, [versioned("train-0", 9)], "200")
        assert state(kept).endpoints["worker"][0] is before

    def test_names_are_ordered_with_their_numbers_as_numbers(self) -> None:
        shuffled = [pod(f"train-{number}") for number in (10, 9, 100, 1)]
        assert names(listed(*shuffled)) == ["train-1", "train-9", "train-10", "train-100"]

    def test_equal_names_stand_in_the_order_of_their_namespaces(self) -> None:
        everywhere = PodQuery("app=train")
        kept = membership({"worker": [[everywhere]]})
        found = [pod(metadata={"namespace": name, "uid": name}) for name in ("b", "a", "a-b")]
        kept.replace(everywhere, found, "1")
        # As a server lists them: `a-b/train-0` stands before `a/train-0`.
        assert [e.namespace for e in state(kept).endpoints["worker"]] == ["a-b", "a", "b"]

    def test_equal_names_stand_in_the_order_in_which_namespaces_were_given(self) -> None:
        queries = [PodQuery("app=train", name) for name in ("z", "a")]
        kept = membership({"worker": [queries]})
        for query in reversed(queries):
            kept.replace(query, [pod(metadata={"namespace": query.namespace, "uid": query.namespace})], "1")
        assert [e.namespace for e in state(kept).endpoints["worker"]] == ["z", "a"]

    def test_selectors_follow_one_another(self) -> None:
        kept = membership({"worker": [[EVAL], [TRAIN]]})
        kept.replace(TRAIN, [pod("a-0")], "1")
        kept.replace(EVAL, [pod("b-0"), pod("b-1")], "1")
        assert names(kept) == ["b-0", "b-1", "a-0"]
        assert state(kept).spec.task_indices("worker") == [0, 1, 2]

    def test_a_pod_of_two_selectors_is_two_tasks(self) -> None:
        kept = listed(pod(), jobs={"worker": [[TRAIN], [TRAIN]], "eval": [[TRAIN]]})
        assert names(kept) == ["train-0", "train-0"]
        assert names(kept, "eval") == ["train-0"]

    def test_an_address_that_cannot_be_takes_nothing_in(self) -> None:
        def fails(found: Pod) -> str:
            raise LookupError("no such annotation")

        kept = membership(address=fails)
        with pytest.raises(ConfigurationError, match="pod ml/train-0 cannot be addressed: no such"):
            kept.replace(TRAIN, [pod()], "7")
        assert not kept.is_complete

    def test_an_address_that_is_no_unicode_is_refused_with_the_pod(self) -> None:
        with pytest.raises(ConfigurationError, match=r"ml/train-0 cannot be addressed: .*surrogates"):
            membership(address=lambda found: "\ud800").replace(TRAIN, [pod()], "7")

    def test_a_job_name_that_is_no_unicode_is_refused(self) -> None:
        with pytest.raises(InvalidClusterError):
            membership({"\ud800": [[TRAIN]]})


class TestEvents:
    def test_a_pod_that_was_added_is_a_member(self) -> None:
        kept = listed(pod("train-1"))
        assert kept.apply(TRAIN, [Added(versioned("train-0", 101))])
        assert names(kept) == ["train-0", "train-1"]
        assert kept.version(TRAIN) == "101"

    def test_a_pod_being_deleted_is_no_member_nor_absent(self) -> None:
        kept = listed(pod("train-0"), pod("train-1"))
        assert kept.apply(TRAIN, [Modified(leaving("train-0", 101))])
        assert names(kept) == ["train-1"]
        assert kept.observation(NOW).absent == ()

    def test_the_end_of_a_pod_being_deleted_tells_nothing_new(self) -> None:
        kept = listed(pod("train-0"))
        kept.apply(TRAIN, [Modified(leaving("train-0", 101))])
        before = told(kept.observation(NOW))
        kept.apply(TRAIN, [Deleted(leaving("train-0", 102))])
        assert told(kept.observation(NOW)) == before

    def test_a_pod_whose_address_changed_is_told(self) -> None:
        kept = listed(versioned("train-0", 7))
        assert kept.apply(TRAIN, [Modified(versioned("train-0", 101, ip="10.8.0.99"))])
        assert state(kept).spec.task_address("worker", 0) == "10.8.0.99:8470"

    def test_readiness_alone_is_told_and_the_spec_stays(self) -> None:
        kept = listed(versioned("train-0", 7))
        before = state(kept)
        ready = versioned("train-0", 101, status={"conditions": READY}, spec={"nodeName": "node-b"})
        assert kept.apply(TRAIN, [Modified(ready)])
        after = state(kept)
        assert after == before
        assert after.spec is before.spec
        assert (after.endpoints["worker"][0].ready, after.endpoints["worker"][0].node) == (True, "node-b")

    def test_what_changes_nothing_that_is_told_changes_nothing(self) -> None:
        kept = listed(versioned("train-0", 7), versioned("train-1", 8))
        before = kept.observation(NOW)
        annotated = versioned("train-0", 101, metadata={"annotations": {"a": "b"}})
        assert not kept.apply(TRAIN, [Modified(annotated)])
        after = kept.observation(NOW)
        assert before.state is not None
        assert after.state is not None
        assert after.state.endpoints["worker"] is before.state.endpoints["worker"]
        assert after.state.spec is before.state.spec
        assert after.state.version == "101"

    def test_a_bookmark_moves_the_version_alone(self) -> None:
        kept = listed(pod())
        assert not kept.apply(TRAIN, [bookmark(150)])
        assert kept.version(TRAIN) == "150"
        assert state(kept).version == "150"

    def test_a_bookmark_never_moves_the_version_back(self) -> None:
        kept = listed(pod())
        kept.apply(TRAIN, [bookmark(150), bookmark(120)])
        assert kept.version(TRAIN) == "150"

    def test_an_error_says_nothing_of_pods(self) -> None:
        kept = listed(pod())
        assert not kept.apply(TRAIN, [Failed(Status(code=410))])
        assert (names(kept), kept.version(TRAIN)) == (["train-0"], "100")

    def test_events_that_were_told_before_change_nothing(self) -> None:
        events: list[WatchEvent] = [
            Added(versioned("train-0", 101)),
            Modified(versioned("train-0", 102, ip="10.8.0.2")),
            Deleted(leaving("train-0", 103)),
            Added(versioned("train-1", 104)),
        ]
        kept = listed()
        kept.apply(TRAIN, events)
        before = told(kept.observation(NOW))
        assert not kept.apply(TRAIN, events)
        assert told(kept.observation(NOW)) == before
        assert kept.version(TRAIN) == "104"

    def test_that_a_pod_left_before_it_came_back_changes_nothing_when_told_again(self) -> None:
        left = Deleted(versioned("train-0", 101))
        kept = listed(versioned("train-0", 7))
        kept.apply(TRAIN, [left, Added(versioned("train-0", 102))])
        assert not kept.apply(TRAIN, [left])
        assert names(kept) == ["train-0"]

    def test_versions_of_pods_compare_where_that_of_their_list_does_not(self) -> None:
        kept = listed(versioned("train-0", 7), version="b")
        assert not kept.apply(TRAIN, [Modified(versioned("train-0", 6, ip="10.8.0.2"))])
        assert state(kept).spec.task_address("worker", 0) == "10.8.0.10:8470"

    def test_a_pod_made_anew_takes_the_place_of_the_one_whose_end_was_missed(self) -> None:
        kept = listed(versioned("train-0", 7))
        anew = versioned("train-0", 101, ip="10.8.0.99", metadata={"uid": "anew"})
        assert kept.apply(TRAIN, [Added(anew)])
        (endpoint,) = state(kept).endpoints["worker"]
        assert (endpoint.uid, endpoint.address) == ("anew", "10.8.0.99:8470")

    def test_the_late_end_of_the_one_before_does_not_touch_the_pod_made_anew(self) -> None:
        kept = listed(versioned("train-0", 7))
        kept.apply(TRAIN, [Added(versioned("train-0", 101, metadata={"uid": "anew"}))])
        assert not kept.apply(TRAIN, [Deleted(leaving("train-0", 101))])
        assert names(kept) == ["train-0"]

    def test_versions_that_are_no_numbers_are_taken_as_they_come(self) -> None:
        kept = listed(pod(metadata={"resourceVersion": "b"}), version="b")
        assert kept.apply(TRAIN, [Modified(pod(ip="10.8.0.2", metadata={"resourceVersion": "a"}))])
        assert state(kept).spec.task_address("worker", 0) == "10.8.0.2:8470"
        assert (kept.version(TRAIN), state(kept).version) == ("a", "a")
        assert kept.apply(TRAIN, [Deleted(pod(metadata={"resourceVersion": "c"}))])
        assert names(kept) == []

    def test_an_address_that_cannot_be_leaves_the_version_before_the_event(self) -> None:
        def fails(found: Pod) -> str:
            raise LookupError("no such annotation")

        kept = listed(address=fails)
        with pytest.raises(ConfigurationError):
            kept.apply(TRAIN, [bookmark(150), Added(versioned("train-0", 151))])
        assert kept.version(TRAIN) == "150"


OWNED = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
OWNED_LOOSELY = {"ownerReferences": [{"kind": "Job", "name": "train"}]}


class TestWhoIsMissing:
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
                pod(phase="Failed", metadata=OWNED_LOOSELY),
                Missing("worker", "ml/train-0", "Failed", is_final=True),
            ),
            (pod(phase="Failed", metadata=OWNED), None),
            (pod(phase="Succeeded", metadata=OWNED), None),
            (pod(phase="Pending", metadata=OWNED), Missing("worker", "ml/train-0", "Pending")),
            (pod(phase="Pending", metadata={"deletionTimestamp": "now"}), None),
        ],
    )
    def test_who_is_no_member_is_absent_unless_another_takes_its_place(
        self, found: Pod, absent: Missing | None
    ) -> None:
        observation = listed(found).observation(NOW)
        assert observation.absent == (() if absent is None else (absent,))
        assert observation.unready == ()
        assert observation.state is not None
        assert observation.state.endpoints["worker"] == ()

    def test_a_member_that_is_not_ready_says_why(self) -> None:
        crashing = pod(status={"containerStatuses": waiting("CrashLoopBackOff")})
        observation = listed(crashing, pod("train-1", status={"conditions": READY})).observation(NOW)
        assert observation.unready == (Missing("worker", "ml/train-0", "CrashLoopBackOff"),)
        assert observation.absent == ()

    def test_a_pod_of_two_jobs_is_told_in_each(self) -> None:
        kept = listed(pod(phase="Pending"), jobs={"worker": [[TRAIN]], "eval": [[TRAIN]]})
        assert [missing.job for missing in kept.observation(NOW).absent] == ["worker", "eval"]

    def test_who_comes_to_run_and_be_ready_is_missing_no_longer(self) -> None:
        kept = listed(versioned("train-0", 7, phase="Pending"))
        assert kept.apply(TRAIN, [Modified(versioned("train-0", 101))])
        assert (kept.observation(NOW).absent, len(kept.observation(NOW).unready)) == ((), 1)
        assert kept.apply(TRAIN, [Modified(versioned("train-0", 102, status={"conditions": READY}))])
        assert (kept.observation(NOW).absent, kept.observation(NOW).unready) == ((), ())

    def test_another_reason_alone_is_told(self) -> None:
        kept = listed(versioned("train-0", 7, phase="Pending"))
        scheduled = {"containerStatuses": waiting("ContainerCreating")}
        assert kept.apply(TRAIN, [Modified(versioned("train-0", 101, phase="Pending", status=scheduled))])
        assert [m.reason for m in kept.observation(NOW).absent] == ["Pending (ContainerCreating)"]

    def test_who_is_missing_stands_by_name_with_numbers_as_numbers(self) -> None:
        kept = listed(*(pod(f"train-{number}", phase="Pending") for number in (10, 2, 1)))
        assert [m.name for m in kept.observation(NOW).absent] == ["ml/train-1", "ml/train-2", "ml/train-10"]

    def test_what_did_not_change_is_the_same_object(self) -> None:
        kept = listed(pod("train-0", phase="Pending"), pod("train-1"))
        before = kept.observation(NOW)
        kept.apply(TRAIN, [bookmark(150)])
        after = kept.observation(NOW)
        assert after.absent is before.absent
        assert after.unready is before.unready
