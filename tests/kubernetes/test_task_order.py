"""How the pods of selectors become tasks: by name, by the index of their controller, and numbering."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes import Pod
from aioresolve.spec import ClusterState

from .samples import labelled, pod
from .watched_cluster import (
    TRAIN,
    Added,
    Deleted,
    PodQuery,
    listed_cache,
    names,
    new_cache,
    replace,
    state,
    versioned,
)

COMPLETION = "batch.kubernetes.io/job-completion-index"
GROUP, WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
JOB, GLOBAL = "jobset.sigs.k8s.io/job-index", "jobset.sigs.k8s.io/job-global-index"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
KUBEFLOW, MPI_ROLE = "training.kubeflow.org/replica-index", "training.kubeflow.org/job-role"
VOLCANO, VOLCANO_ROLE = "volcano.sh/task-index", "volcano.sh/task-spec"
OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "run", "controller": True}


def by_index(*pods: Pod, allow_gaps: bool = False) -> ClusterState:
    return state(listed_cache(*pods, order_by="index", allow_gaps=allow_gaps))


def tasks(*pods: Pod, allow_gaps: bool = False) -> dict[int, str | None]:
    """Return the names of the pods by task index."""
    found = by_index(*pods, allow_gaps=allow_gaps)
    indices = found.spec.task_indices("worker")
    return dict(zip(indices, (each.name for each in found.endpoints["worker"]), strict=True))


def refused(*pods: Pod) -> PodIndexError:
    with pytest.raises(PodIndexError) as caught:
        by_index(*pods)
    return caught.value


def completion(name: str, index: object, **more: Any) -> Pod:
    return pod(name, metadata={"labels": {COMPLETION: str(index)}}, **more)


def mpi(name: str, role: str, index: int) -> Pod:
    return labelled(name, **{MPI_ROLE: role, KUBEFLOW: str(index)})


def in_group(group: int, member: int) -> Pod:
    return labelled(f"{group}-{member}", **{GROUP: str(group), WORKER: str(member)})


@pytest.mark.parametrize(
    ("found", "index"),
    [
        (completion("a", 3), 3),
        (pod("a", metadata={"annotations": {COMPLETION: "4"}}), 4),
        (labelled("a", **{"apps.kubernetes.io/pod-index": "5"}), 5),
        (labelled("a", **{KUBEFLOW: "6"}), 6),
        (labelled("a", **{VOLCANO: "7", VOLCANO_ROLE: "worker"}), 7),
        (pod("a", metadata={"annotations": {VOLCANO: "8"}}), 8),
        (mpi("pi-worker-2", "worker", 3), 2),
        (mpi("pi-worker-3", "worker", 3), 3),
        (mpi("pi-worker-7", "worker", 3), 3),
        (mpi("pi-launcher-x1", "launcher", 0), 0),
        (labelled("a", **{GROUP: "1", WORKER: "2", "apps.kubernetes.io/pod-index": "2"}), 5),
        (labelled("a", **{JOB: "1", GLOBAL: "3", COMPLETION: "2"}), 5),
    ],
)
def test_index_of_each_controller(found: Pod, index: int) -> None:
    assert tasks(found) == {index: found.metadata.name}


def test_pod_without_a_valid_index_is_reported() -> None:
    invalid = [completion("a", value) for value in ("", "-1", "one", "9" * 10, "٣")]
    for found in (*invalid, labelled("a", **{JOB: "1"}), labelled("a")):
        error = refused(completion("b", 0), found)
        assert "no index label or annotation on ml/a." in str(error)


@given(st.lists(st.integers(1, 4), max_size=5))
def test_complete_groups_follow_one_another_without_gaps(sizes: list[int]) -> None:
    pods = [in_group(group, member) for group, size in enumerate(sizes) for member in range(size)]
    assert tasks(*reversed(pods)) == {number: each.metadata.name for number, each in enumerate(pods)}


def test_tasks_of_several_selectors_follow_one_another() -> None:
    pods = completion("a", 0), completion("b", 1)
    cache = listed_cache(*pods, order_by="index", jobs={"worker": [TRAIN, TRAIN]})
    assert names(cache) == ["a", "b", "a", "b"]
    assert state(cache).spec.task_indices("worker") == [0, 1, 2, 3]


@pytest.mark.parametrize("job", ["bert-worker-2", "a-worker-1-worker-0", "x-worker-", "train-0-1"])
def test_index_of_a_kubeflow_worker_is_the_end_of_its_name(job: str) -> None:
    for first in (0, 1):
        workers = [mpi(f"{job}-worker-{i}", "worker", i + first) for i in range(4)]
        assert tasks(*workers) == {i: f"{job}-worker-{i}" for i in range(4)}


@pytest.mark.parametrize(
    ("leader", "others", "expected"),
    [
        (
            labelled("leader", **{REPLICATED: "leader", JOB: "0", GLOBAL: "0", COMPLETION: "0"}),
            [
                labelled(f"w{i}", **{REPLICATED: "workers", JOB: "0", GLOBAL: "1", COMPLETION: str(i)})
                for i in (0, 1)
            ],
            ["w0", "w1"],
        ),
        (
            mpi("pi-launcher-x1", "launcher", 0),
            [mpi(f"pi-worker-{i}", "worker", i + 1) for i in (0, 1)],
            None,
        ),
        (
            labelled("vc-master-0", **{VOLCANO: "0", VOLCANO_ROLE: "master"}),
            [labelled(f"vc-worker-{i}", **{VOLCANO: str(i), VOLCANO_ROLE: "worker"}) for i in (0, 1)],
            None,
        ),
    ],
    ids=["JobSet", "MPIJob", "Volcano Job"],
)
def test_leading_role_comes_first_if_the_selector_matches_it(
    leader: Pod, others: list[Pod], expected: list[str] | None
) -> None:
    expected = expected or [each.metadata.name for each in others]
    assert list(tasks(*others, leader).values()) == [leader.metadata.name, *expected]
    assert list(tasks(*others)) == list(range(len(others)))
    # The leader may come and go while the others run.
    cache = listed_cache(*others, order_by="index")
    cache.stores[TRAIN].apply([Added(leader)])
    assert names(cache) == [leader.metadata.name, *expected]
    cache.stores[TRAIN].apply([Deleted(leader)])
    assert names(cache) == expected


def test_duplicate_index_is_reported_with_its_pods() -> None:
    assert "index 0 is claimed by ml/a and ml/b" in str(refused(completion("a", 0), completion("b", 0)))
    # Nothing states which of two roles comes first.
    roles = [labelled(role, **{VOLCANO: "0", VOLCANO_ROLE: role}) for role in ("ps", "worker")]
    assert "claimed by ml/ps and ml/worker" in str(refused(*roles))


def test_missing_indices_are_reported_and_the_message_lists_at_most_ten() -> None:
    for last, listed in [(3, "no pod has index 1, 2."), (11, "8, 9, 10."), (12, "8, 9, 10 and 1 more.")]:
        assert listed in str(refused(completion("a", 0), completion("b", last)))
    assert "of job 'worker' cannot be ordered by index: no pod has index 1." in str(
        refused(in_group(0, 0), in_group(2, 0))
    )


def test_index_larger_than_any_cluster_costs_no_memory_and_names_its_group() -> None:
    assert "claims index 999999999" in str(refused(completion("huge", "999999999")))
    assert "claims index 199999" in str(refused(completion("huge", "199999")))
    assert list(tasks(completion("large", "199998"), allow_gaps=True)) == [199_998]
    assert "claims index 999999999 in group 0" in str(refused(in_group(0, 999999999), in_group(1, 0)))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        pytest.param([{COMPLETION: str(n)} for n in (9, 10, 11)], [9, 10, 11], id="without the first ones"),
        pytest.param([{KUBEFLOW: str(n)} for n in (1, 2, 3)], [1, 2, 3], id="MPIJob"),
        pytest.param([{GROUP: "2", WORKER: str(n)} for n in range(4)], [8, 9, 10, 11], id="one group"),
        pytest.param([{JOB: "1", COMPLETION: str(n)} for n in range(4)], [4, 5, 6, 7], id="one slice"),
    ],
)
def test_part_of_a_set_keeps_its_indices(labels: list[dict[str, str]], expected: list[int]) -> None:
    pods = [labelled(f"w-{9 - number}", **each) for number, each in enumerate(labels)]
    for allow_gaps in (True, False):
        assert list(tasks(*pods, allow_gaps=allow_gaps)) == expected
    assert f"no pod has index {expected[1]}." in str(refused(pods[0], *pods[2:]))


def test_index_of_a_pod_that_is_not_running_is_missing_unless_it_is_the_last() -> None:
    pending, running = completion("x", 0, phase="Pending"), completion("y", 1)
    assert tasks(pending, running, allow_gaps=True) == {1: "y"}
    assert "no pod has index 0." in str(refused(pending, running))
    assert tasks(completion("x", 0), completion("y", 1, phase="Pending")) == {0: "x"}


@given(st.permutations(range(5)), st.sampled_from(["name", "index"]), st.booleans())
def test_task_keeps_its_index_in_whatever_order_the_others_end_or_are_replaced(
    ends: list[int], order_by: str, is_replaced: bool
) -> None:
    version = 100

    def of_run(index: int, phase: str, suffix: str = "a") -> Pod:
        nonlocal version
        version += 1
        metadata = {"ownerReferences": [OWNER], "labels": {COMPLETION: str(index)}}
        return versioned(f"train-{index}-{suffix}", version, phase=phase, metadata=metadata)

    cache = listed_cache(*(of_run(index, "Running") for index in range(5)), order_by=order_by)
    for number, ended in enumerate(ends[:-1]):
        suffix = "b" if is_replaced else "a"
        if is_replaced:
            cache.stores[TRAIN].apply([Added(of_run(ended, "Failed")), Added(of_run(ended, "Running", "b"))])
            cache.stores[TRAIN].apply([Deleted(of_run(ended, "Failed"))])
        cache.stores[TRAIN].apply([Added(of_run(ended, "Succeeded", suffix))])
        now = state(cache)
        assert now.spec.task_indices("worker") == sorted(ends[number + 1 :])
        assert [each.index for each in now.done] == sorted(ends[: number + 1])


def test_pod_that_succeeded_is_not_done_while_it_is_being_deleted() -> None:
    owned: dict[str, Any] = {"ownerReferences": [OWNER]}
    ended = pod("train-0", phase="Succeeded", metadata=owned | {"deletionTimestamp": "now"})
    found = state(listed_cache(ended, pod("train-1", metadata=owned)))
    assert (found.done, found.spec.task_indices("worker")) == ((), [0])


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_pod_is_done_when_another_one_of_its_run_is_created(phase: str) -> None:
    run, earlier = ({"ownerReferences": [OWNER | {"uid": uid}]} for uid in ("run", "earlier"))
    cache = listed_cache(pod("a", metadata=earlier), pod("b", phase="Succeeded", metadata=run))
    assert state(cache).done == ()
    cache.stores[TRAIN].apply([Added(versioned("c", 101, phase=phase, metadata=run))])
    assert [each.name for each in state(cache).done] == ["ml/b"]


def test_equal_names_are_in_the_order_of_their_namespaces() -> None:
    everywhere = PodQuery("app=train")
    cache = new_cache({"worker": [everywhere]})
    pods = [pod(metadata={"namespace": namespace, "uid": namespace}) for namespace in ("b", "a", "a-b")]
    replace(cache, everywhere, pods, "9")
    # As the server lists them: it sorts `a-b/train-0` before `a/train-0`.
    assert [each.namespace for each in state(cache).endpoints["worker"]] == ["a-b", "a", "b"]
