"""Who is a member, and in which order the members are tasks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, PodIndexError, PodNotRunningError
from aioresolve.kubernetes.pods import Rows
from aioresolve.kubernetes.tasks import (
    Candidate,
    Sighting,
    endpoint,
    pod_candidates,
    row_candidates,
    sighting,
    tasks,
)
from aioresolve.spec import Endpoint

from .samples import READY, labelled, pod


def addresses(jobs: dict[str, list[Candidate]]) -> dict[str, list[str]]:
    return {job: [member.address for member in members] for job, members in jobs.items()}


def running(*names: str) -> list[Candidate]:
    return [Candidate(name, f"{name}:8470") for name in names]


def test_a_pod_being_deleted_is_no_member() -> None:
    leaving = pod("leaving-0", metadata={"deletionTimestamp": "2026-11-20T15:39:51Z"})
    assert [found.name for found in pod_candidates([pod("train-0"), leaving], "pod_ip", 8470)] == ["train-0"]


def test_rows_and_pods_of_the_same_pods_make_the_same_members() -> None:
    from_rows = row_candidates(Rows(["train-0"], ["Running"], ["10.8.0.10"]), set(), 8470)
    from_pods = pod_candidates([pod("train-0", ip="10.8.0.10")], "pod_ip", 8470)
    assert [(found.name, found.address, found.fault) for found in from_rows] == [
        (found.name, found.address, found.fault) for found in from_pods
    ]


def test_rows_that_prove_nothing_make_no_candidates() -> None:
    rows = Rows(["a", "b", "b"], ["Running", "Running", "Pending"], ["10.8.0.1", "fd00::1", "<none>"])
    assert row_candidates(rows, rows.unproven, 8470) == [Candidate("a", "10.8.0.1:8470")]
    assert row_candidates(rows, {"a"}, 8470)[0].address == "[fd00::1]:8470"


def test_selectors_follow_in_their_order_and_names_are_ordered_inside_each() -> None:
    found = {"worker": [running("b-10", "b-2"), running("a-1")], "ps": [running("ps-0")]}
    assert addresses(tasks(found, order_by="name", not_running="raise")) == {
        "worker": ["b-2:8470", "b-10:8470", "a-1:8470"],
        "ps": ["ps-0:8470"],
    }


def test_equal_names_keep_the_servers_order() -> None:
    found = {"worker": [[Candidate("train-0", "first:1"), Candidate("train-0", "second:1")]]}
    assert addresses(tasks(found, order_by="name", not_running="raise")) == {
        "worker": ["first:1", "second:1"]
    }


@given(st.lists(st.sampled_from(["Running", "Pending", "Failed", "Succeeded", "Unknown", "leaving"])))
def test_skip_leaves_out_exactly_what_is_not_running(phases: list[str]) -> None:
    pods = [
        pod(f"p-{place}", metadata={"deletionTimestamp": "now"})
        if phase == "leaving"
        else pod(f"p-{place}", phase=phase)
        for place, phase in enumerate(phases)
    ]
    found = {"worker": [pod_candidates(pods, "pod_ip", 8470)]}
    members = tasks(found, order_by="name", not_running="skip")["worker"]
    assert [m.name for m in members] == [
        f"p-{place}" for place, phase in enumerate(phases) if phase == "Running"
    ]


def test_every_pod_that_is_not_running_is_named_with_its_phase_and_reason() -> None:
    found = pod_candidates(
        [
            pod("train-0"),
            pod("failed-0", phase="Failed", status={"reason": "Evicted"}),
            pod("pending-0", phase="Pending", ip=None),
        ],
        "pod_ip",
        8470,
    )
    with pytest.raises(PodNotRunningError) as caught:
        tasks({"worker": [found], "ps": [found]}, order_by="name", not_running="raise")
    assert caught.value.pods == {"ml/failed-0": "Failed (Evicted)", "ml/pending-0": "Pending"}
    assert "2 pods that match are not running: ml/failed-0: Failed (Evicted); ml/pending-0" in str(
        caught.value
    )
    assert "not_running='skip'" in str(caught.value)
    assert isinstance(caught.value, RuntimeError)


def test_a_thousand_pods_that_are_not_running_make_a_short_message_and_a_whole_attribute() -> None:
    found = pod_candidates([pod(f"p-{i}", phase="Pending") for i in range(1000)], "pod_ip", 8470)
    with pytest.raises(PodNotRunningError, match="and 980 more") as caught:
        tasks({"worker": [found]}, order_by="name", not_running="raise")
    assert len(caught.value.pods) == 1000


def test_by_index_each_pod_is_its_own_task() -> None:
    label = "batch.kubernetes.io/job-completion-index"
    pods = [labelled("x", **{label: "1"}), labelled("y", **{label: "0"})]
    found = {"worker": [pod_candidates(pods, "pod_ip", 8470)]}
    assert [m.name for m in tasks(found, order_by="index", not_running="raise")["worker"]] == ["y", "x"]


def test_by_index_a_skipped_pods_index_is_missing() -> None:
    label = {"labels": {"batch.kubernetes.io/job-completion-index": "0"}}
    other = {"labels": {"batch.kubernetes.io/job-completion-index": "1"}}
    found = pod_candidates([pod("x", phase="Pending", metadata=label), pod("y", metadata=other)], "pod_ip", 1)
    with pytest.raises(PodIndexError, match="no pod has index 0"):
        tasks({"worker": [found]}, order_by="index", not_running="skip")


def test_an_address_callable_that_fails_is_told_with_the_pod() -> None:
    def fails(pod: object) -> str:
        raise LookupError("no such annotation")

    with pytest.raises(ConfigurationError, match="pod ml/train-0 cannot be addressed: no such annotation"):
        pod_candidates([pod("train-0")], fails, 8470)


def test_the_address_of_a_pod_that_is_not_running_is_not_asked_for() -> None:
    def fails(pod: object) -> str:
        raise AssertionError("must not be called")

    assert pod_candidates([pod("p", phase="Pending")], fails, 8470)[0].fault == "Pending"


def test_an_endpoint_knows_its_pod() -> None:
    found = pod(
        "train-3",
        ip="10.8.0.13",
        metadata={"labels": {"apps.kubernetes.io/pod-index": "3"}},
        status={"conditions": READY},
    )
    seen = endpoint(pod_candidates([found], "pod_ip", 8470)[0])
    assert seen == Endpoint("10.8.0.13:8470", name="train-3", uid="uid-of-train-3", namespace="ml", index=3)
    assert (seen.node, seen.ready) == ("node-a", True)


def test_a_sighting_of_a_member_is_its_endpoint() -> None:
    found = pod(status={"conditions": READY})
    (candidate,) = pod_candidates([found], "pod_ip", 8470)
    seen = sighting(found, "pod_ip", 8470)
    assert (seen.endpoint, seen.reason, seen.full_name) == (endpoint(candidate), None, "ml/train-0")


def test_a_sighting_tells_nodes_and_readiness_too() -> None:
    def seen(**more: Any) -> Sighting:
        return sighting(pod(**more), "pod_ip", 8470)

    assert seen().tells(seen(metadata={"resourceVersion": "7", "annotations": {"a": "b"}}))
    assert not seen().tells(seen(spec={"nodeName": "node-b"}))
    assert not seen().tells(seen(status={"conditions": READY}))
    assert not seen().tells(seen(phase="Pending"))
    assert not seen(phase="Pending").tells(seen(phase="Failed"))
    assert seen(phase="Pending").tells(seen(phase="Pending", ip=None))


@given(st.lists(st.text("abz019-.", min_size=1, max_size=8), unique=True))
def test_the_keys_of_sightings_order_pods_as_their_names_do(names: list[str]) -> None:
    pods = [pod(name) for name in names]
    by_key = sorted(pods, key=lambda found: sighting(found, "pod_ip", 8470).key)
    members = tasks({"worker": [pod_candidates(pods, "pod_ip", 8470)]}, order_by="name", not_running="raise")
    assert [found.metadata.name for found in by_key] == [member.name for member in members["worker"]]
