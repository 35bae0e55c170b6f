"""The index a controller gave a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.pod_index import PodIndex, group_starts, index_order, pod_claim, pod_index

from .samples import labelled, pod

if TYPE_CHECKING:
    from aioresolve.kubernetes.objects import Pod

COMPLETION = "batch.kubernetes.io/job-completion-index"
GROUP, WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
JOB, GLOBAL = "jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"


def completion(name: str, index: str) -> Pod:
    return labelled(name, **{COMPLETION: index})


@pytest.mark.parametrize(
    ("found", "index"),
    [
        (completion("a", "3"), (0, 3)),
        (pod("a", metadata={"annotations": {COMPLETION: "4"}}), (0, 4)),
        (labelled("a", **{"apps.kubernetes.io/pod-index": "5"}), (0, 5)),
        (labelled("a", **{"training.kubeflow.org/replica-index": "6"}), (0, 6)),
        (labelled("a", **{GROUP: "1", WORKER: "2", "apps.kubernetes.io/pod-index": "2"}), (1, 2)),
        (labelled("a", **{JOB: "1", GLOBAL: "3", COMPLETION: "2"}), (1, 2)),
        (labelled("a", **{JOB: "1"}), None),
        (labelled("a"), None),
        (completion("a", "-1"), None),
        (completion("a", "one"), None),
        (completion("a", "9" * 10), None),
        (completion("a", "٣"), None),
    ],
)
def test_each_controllers_index(found: Pod, index: tuple[int, int] | None) -> None:
    assert pod_index(found) == index


@given(st.permutations(range(12)))
def test_each_pod_stands_at_its_own_index_whatever_order_the_server_gave(order: list[int]) -> None:
    pods = [completion(f"train-{index}-xyz", str(index)) for index in order]
    assert [order[place] for place in index_order("worker", pods)] == list(range(12))


def test_groups_follow_one_another() -> None:
    pods = [labelled(f"{g}-{w}", **{GROUP: str(g), WORKER: str(w)}) for w in range(3) for g in range(2)]
    names = [pods[place].metadata.name for place in index_order("worker", pods)]
    assert names == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def test_jobs_of_several_replicated_jobs_are_told_apart_by_their_global_index() -> None:
    leader = labelled("leader", **{REPLICATED: "leader", JOB: "0", GLOBAL: "0", COMPLETION: "0"})
    workers = [
        labelled(f"w{i}", **{REPLICATED: "workers", JOB: "0", GLOBAL: "1", COMPLETION: str(i)})
        for i in range(2)
    ]
    assert index_order("worker", [*workers, leader]) == [2, 0, 1]
    assert index_order("worker", workers) == [0, 1]


def test_a_missing_index_is_named() -> None:
    with pytest.raises(PodIndexError, match="no pod has index 1, 2") as caught:
        index_order("worker", [completion("a", "0"), completion("b", "3")])
    assert caught.value.missing == (1, 2)
    assert caught.value.job == "worker"


def test_an_index_taken_twice_is_named_with_its_pods() -> None:
    with pytest.raises(PodIndexError, match="index 0 is taken by ml/a and ml/b") as caught:
        index_order("worker", [completion("a", "0"), completion("b", "0")])
    assert caught.value.duplicates == {0: ("ml/a", "ml/b")}


def test_pods_without_an_index_are_named() -> None:
    with pytest.raises(PodIndexError, match="no index label or annotation on ml/plain") as caught:
        index_order("worker", [completion("a", "0"), labelled("plain")])
    assert caught.value.unindexed == ("ml/plain",)


def test_a_missing_group_misses_its_first_member() -> None:
    pods = [labelled(f"g{g}", **{GROUP: str(g), WORKER: "0"}) for g in (0, 2)]
    with pytest.raises(PodIndexError) as caught:
        index_order("worker", pods)
    assert caught.value.missing == (1,)


def test_an_absurd_index_costs_no_memory() -> None:
    with pytest.raises(PodIndexError, match="claims index 999999999"):
        index_order("worker", [completion("liar", "999999999")])


def test_no_pods_are_no_tasks() -> None:
    assert index_order("worker", []) == []


def test_the_group_that_lies_is_the_one_that_is_named() -> None:
    pods = [labelled(f"g{g}", **{GROUP: str(g), WORKER: w}) for g, w in [(0, "999999999"), (1, "0")]]
    with pytest.raises(PodIndexError, match="claims index 999999999 in group 0"):
        index_order("worker", pods)


def test_a_claim_is_settled_by_how_many_replicated_jobs_there_are() -> None:
    claim = pod_claim(labelled("w", **{REPLICATED: "workers", JOB: "1", GLOBAL: "3", COMPLETION: "2"}))
    assert (claim.among(1), claim.among(2), claim.replicated_job) == ((1, 2), (3, 2), "workers")


def test_a_claim_outside_a_jobset_is_the_same_among_any() -> None:
    claim = pod_claim(completion("a", "3"))
    assert (claim.among(1), claim.among(2), claim.replicated_job) == ((0, 3), (0, 3), None)


@pytest.mark.parametrize(
    ("known", "starts"),
    [
        ([], [0]),
        ([(0, 0)], [0, 1]),
        ([(0, 3)], [0, 4]),
        ([(0, 1), (0, 3), (1, 0)], [0, 4, 5]),
        ([(0, 1), (3, 2)], [0, 2, 5, 8, 11]),
    ],
)
def test_groups_start_where_the_known_ones_end(known: list[tuple[int, int]], starts: list[int]) -> None:
    assert group_starts("worker", [PodIndex(*index) for index in known]) == starts


@given(st.lists(st.integers(1, 4), max_size=5))
def test_groups_that_are_whole_start_where_they_do_in_order(sizes: list[int]) -> None:
    pods = [
        labelled(f"{group}-{member}", **{GROUP: str(group), WORKER: str(member)})
        for group, size in enumerate(sizes)
        for member in range(size)
    ]
    starts = group_starts("worker", [index for pod in pods if (index := pod_index(pod))])
    tasks = [starts[index.group] + index.member for pod in pods if (index := pod_index(pod))]
    assert tasks == list(range(len(pods))) == index_order("worker", pods)
    assert starts[-1] == len(pods)


@pytest.mark.parametrize("known", [[(0, 999_999_999)], [(999_999_999, 0)], [(0, 99_999), (3, 0)]])
def test_absurd_groups_cost_no_memory(known: list[tuple[int, int]]) -> None:
    with pytest.raises(PodIndexError, match="more than a cluster can have pods"):
        group_starts("worker", [PodIndex(*index) for index in known])
