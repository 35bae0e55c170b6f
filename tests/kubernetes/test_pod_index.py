"""The index that a controller gave a pod, and the task indices that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.tasks.matched_pods import match_pods
from aioresolve.kubernetes.tasks.pod_index import index_label
from aioresolve.kubernetes.tasks.task_order import JobTasks, SelectorTasks

from .samples import labelled, pod

if TYPE_CHECKING:
    from aioresolve.kubernetes import Pod

COMPLETION = "batch.kubernetes.io/job-completion-index"
GROUP, WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
JOB, GLOBAL = "jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index"
RAY_TYPE = "ray.io/node-type"
RAY_REPLICA, RAY_HOST = "ray.io/worker-group-replica-index", "ray.io/replica-host-index"
KUBEFLOW, MPI_ROLE = "training.kubeflow.org/replica-index", "training.kubeflow.org/job-role"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"


def index_order(pods: list[Pod]) -> list[str | None]:
    """Return the names of `pods` in task order, without gaps."""
    selector = SelectorTasks("worker", order_by="index")
    selector.fill(match_pods(pods, "pod_ip", 8470))
    tasks = JobTasks("worker", [selector], allow_gaps=False)
    assert list(tasks.addresses()) == list(range(len(pods)))
    return [endpoint.name for endpoint in tasks.endpoints()]


def completion(name: str, index: str) -> Pod:
    return labelled(name, **{COMPLETION: index})


@pytest.mark.parametrize(
    ("found", "index"),
    [
        (completion("a", "3"), (0, 3)),
        (pod("a", metadata={"annotations": {COMPLETION: "4"}}), (0, 4)),
        (labelled("a", **{"apps.kubernetes.io/pod-index": "5"}), (0, 5)),
        (labelled("a", **{"training.kubeflow.org/replica-index": "6"}), (0, 6)),
        (labelled("a", **{"volcano.sh/task-index": "7", "volcano.sh/task-spec": "worker"}), (0, 7)),
        (pod("a", metadata={"annotations": {"volcano.sh/task-index": "8"}}), (0, 8)),
        (labelled("a", **{RAY_TYPE: "worker", RAY_REPLICA: "2", RAY_HOST: "1"}), (2, 1)),
        (labelled("a", **{RAY_TYPE: "worker", RAY_REPLICA: "2"}), (2, 0)),
        (labelled("a", **{RAY_TYPE: "head"}), (0, 0)),
        (labelled("a", **{RAY_TYPE: "worker"}), None),
        (labelled("a", **{"kueue.x-k8s.io/pod-group-pod-index": "9"}), (0, 9)),
        (
            pod(
                "a",
                metadata={
                    "labels": {"rank": "3"},
                    "annotations": {"kueue.x-k8s.io/pod-group-pod-index-label": "rank"},
                },
            ),
            (0, 3),
        ),
        (labelled("pi-worker-2", **{MPI_ROLE: "worker", KUBEFLOW: "3"}), (0, 2)),
        (labelled("pi-worker-3", **{MPI_ROLE: "worker", KUBEFLOW: "3"}), (0, 3)),
        (labelled("pi-launcher-x1", **{MPI_ROLE: "launcher", KUBEFLOW: "0"}), (0, 0)),
        (labelled("a", **{GROUP: "1", WORKER: "2", "apps.kubernetes.io/pod-index": "2"}), (1, 2)),
        (labelled("a", **{JOB: "1", GLOBAL: "3", COMPLETION: "2"}), (1, 2)),
        (labelled("a", **{JOB: "1"}), None),
        (labelled("a"), None),
    ],
)
def test_the_index_of_each_controller(found: Pod, index: tuple[int, int] | None) -> None:
    assert index_label(found).in_role == index


def test_label_that_is_no_index_is_ignored() -> None:
    for value in ("", "-1", "one", "9" * 10, "٣"):
        assert index_label(completion("a", value)).in_role is None


@given(st.permutations(range(12)))
def test_each_pod_has_its_own_index_in_any_order_of_the_list(order: list[int]) -> None:
    pods = [completion(f"train-{index}-xyz", str(index)) for index in order]
    assert index_order(pods) == [f"train-{index}-xyz" for index in range(12)]


def test_groups_follow_one_another() -> None:
    pods = [labelled(f"{g}-{w}", **{GROUP: str(g), WORKER: str(w)}) for w in range(3) for g in range(2)]
    assert index_order(pods) == ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]


def test_several_replicated_jobs_are_ordered_by_their_global_index() -> None:
    leader = labelled("leader", **{REPLICATED: "leader", JOB: "0", GLOBAL: "0", COMPLETION: "0"})
    workers = [
        labelled(f"w{i}", **{REPLICATED: "workers", JOB: "0", GLOBAL: "1", COMPLETION: str(i)})
        for i in range(2)
    ]
    assert index_order([*workers, leader]) == ["leader", "w0", "w1"]
    assert index_order(workers) == ["w0", "w1"]


def test_launcher_of_an_mpi_job_that_counts_workers_from_one_comes_first() -> None:
    launcher = labelled("pi-launcher-x1", **{MPI_ROLE: "launcher", KUBEFLOW: "0"})
    workers = [labelled(f"pi-worker-{i}", **{MPI_ROLE: "worker", KUBEFLOW: str(i + 1)}) for i in range(2)]
    assert index_order([*workers, launcher]) == ["pi-launcher-x1", "pi-worker-0", "pi-worker-1"]
    assert index_order(workers) == ["pi-worker-0", "pi-worker-1"]


@pytest.mark.parametrize("job", ["bert-worker-2", "a-worker-1-worker-0", "x-worker-", "train-0-1"])
def test_index_of_a_kubeflow_worker_is_the_end_of_its_name(job: str) -> None:
    for first in (0, 1):
        workers = [
            labelled(f"{job}-worker-{i}", **{MPI_ROLE: "worker", KUBEFLOW: str(i + first)}) for i in range(4)
        ]
        assert [index_label(worker).in_role for worker in workers] == [(0, i) for i in range(4)]


def test_pod_without_an_index_has_no_role_among_those_that_have_one() -> None:
    selector = SelectorTasks("worker", order_by="index")
    pods = [labelled("pi-worker-0", **{MPI_ROLE: "worker", KUBEFLOW: "0"})]
    pods.append(pod("pi-launcher", phase="Pending", metadata={"labels": {MPI_ROLE: "launcher"}}))
    selector.fill(match_pods(pods, "pod_ip", 8470))
    assert list(selector.numbering.addresses) == [0]


def test_head_and_hosts_of_a_ray_cluster_are_ordered_by_replica() -> None:
    head = labelled("ray-head", **{RAY_TYPE: "head"})
    hosts = [
        labelled(f"r{r}h{h}", **{RAY_TYPE: "worker", RAY_REPLICA: str(r), RAY_HOST: str(h)})
        for h in range(2)
        for r in range(2)
    ]
    assert index_order([*hosts, head]) == ["ray-head", "r0h0", "r0h1", "r1h0", "r1h1"]
    assert index_order(hosts) == ["r0h0", "r0h1", "r1h0", "r1h1"]


def test_master_of_a_volcano_job_comes_before_its_workers() -> None:
    master = labelled("vc-master-0", **{"volcano.sh/task-index": "0", "volcano.sh/task-spec": "master"})
    workers = [
        labelled(f"vc-worker-{i}", **{"volcano.sh/task-index": str(i), "volcano.sh/task-spec": "worker"})
        for i in range(2)
    ]
    assert index_order([*workers, master]) == ["vc-master-0", "vc-worker-0", "vc-worker-1"]


def test_two_roles_without_an_order_cannot_share_a_selector() -> None:
    pods = [
        labelled(role, **{"volcano.sh/task-index": "0", "volcano.sh/task-spec": role})
        for role in ("ps", "worker")
    ]
    with pytest.raises(PodIndexError, match="claimed by ml/ps and ml/worker"):
        index_order(pods)


def test_missing_indices_are_reported_and_the_message_lists_at_most_ten() -> None:
    for last, listed in [(3, "no pod has index 1, 2."), (11, "8, 9, 10."), (12, "8, 9, 10 and 1 more.")]:
        with pytest.raises(PodIndexError) as caught:
            index_order([completion("a", "0"), completion("b", str(last))])
        assert listed in str(caught.value)
        assert caught.value.missing == tuple(range(1, last))
        assert caught.value.job == "worker"


def test_a_duplicate_index_is_reported_with_its_pods() -> None:
    with pytest.raises(PodIndexError, match="index 0 is claimed by ml/a and ml/b") as caught:
        index_order([completion("a", "0"), completion("b", "0")])
    assert caught.value.duplicates == {0: ("ml/a", "ml/b")}


def test_pods_without_an_index_are_reported() -> None:
    with pytest.raises(PodIndexError, match="no index label or annotation on ml/plain") as caught:
        index_order([completion("a", "0"), labelled("plain")])
    assert caught.value.unindexed == ("ml/plain",)


def test_a_missing_group_is_reported_as_missing_indices() -> None:
    pods = [labelled(f"g{g}", **{GROUP: str(g), WORKER: "0"}) for g in (0, 2)]
    with pytest.raises(PodIndexError) as caught:
        index_order(pods)
    assert caught.value.missing == (1,)


def test_an_index_larger_than_any_cluster_costs_no_memory_and_names_its_group() -> None:
    with pytest.raises(PodIndexError, match="claims index 999999999"):
        index_order([completion("huge", "999999999")])
    pods = [labelled(f"g{g}", **{GROUP: str(g), WORKER: w}) for g, w in [(0, "999999999"), (1, "0")]]
    with pytest.raises(PodIndexError, match="claims index 999999999 in group 0"):
        index_order(pods)


@given(st.lists(st.integers(1, 4), max_size=5))
def test_complete_groups_are_numbered_without_gaps(sizes: list[int]) -> None:
    pods = [
        labelled(f"{group}-{member}", **{GROUP: str(group), WORKER: str(member)})
        for group, size in enumerate(sizes)
        for member in range(size)
    ]
    assert index_order(pods) == [pod.metadata.name for pod in pods]
