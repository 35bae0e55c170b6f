"""How the pods of selectors become tasks: membership, order by name and by index, numbering."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.tasks.matched_pods import MatchedPod, match_pods
from aioresolve.kubernetes.tasks.order_by import addresses_by_name
from aioresolve.kubernetes.tasks.task_order import JobTasks, SelectorTasks

from .samples import READY, labelled, pod

if TYPE_CHECKING:
    from aioresolve.kubernetes import Pod

COMPLETION = "batch.kubernetes.io/job-completion-index"
MPI = "training.kubeflow.org/replica-index"
LWS_GROUP, LWS_WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"


def match(*pods: Pod) -> list[MatchedPod]:
    return match_pods(pods, "pod_ip", 8470)


def filled_selector(*pods: MatchedPod, order_by: str) -> SelectorTasks:
    selector = SelectorTasks("worker", order_by=order_by)
    selector.fill(pods)
    return selector


PHASES = ["Running", "Pending", "Succeeded", "deleted"]


def of_job(number: int, phase: str) -> MatchedPod:
    """Return pod `number`, half of which belong to one Job, and half to another."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": f"job-{number % 2}",
        "uid": "",
        "controller": True,
    }
    metadata = {"ownerReferences": [owner]} | ({"deletionTimestamp": "now"} if phase == "deleted" else {})
    (found,) = match(pod(f"p-{number}", phase=phase.replace("deleted", "Running"), metadata=metadata))
    return found


def members(*pods: Pod, order_by: str = "name") -> list[str | None]:
    """Return the names of the members among `pods`, in task order."""
    return [endpoint.name for endpoint in filled_selector(*match(*pods), order_by=order_by).endpoints]


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([*PHASES, None]))))
def test_selected_pods_are_those_that_may_be_members_and_those_that_are_done(
    changes: list[tuple[int, str | None]],
) -> None:
    selector = filled_selector(order_by="name")
    phases: dict[int, str] = {}
    for number, phase in changes:
        found = of_job(number, phase or "Running")
        if phase is None:
            selector.discard(found)
            phases.pop(number, None)
        else:
            selector.put(found)
            phases[number] = phase
        if selector.is_stale:
            selector.fill(of_job(number, phase) for number, phase in phases.items())
        live = {of_job(each, "Running").pod_set for each in phases if phases[each] in ("Running", "Pending")}
        assert set(selector.selected.live) == live
        succeeded = Counter(of_job(each, "Running").pod_set for each in phases if phases[each] == "Succeeded")
        done = {pods: number for pods, number in succeeded.items() if pods in live}
        assert selector.selected.done == done
        ended = {of_job(each, "Running").pod_set for each in phases if phases[each] == "Succeeded"}
        assert live or ended <= set(selector.selected.former)


@given(st.permutations(range(5)), st.sampled_from(["name", "index"]), st.booleans())
def test_task_keeps_its_index_in_whatever_order_the_others_end_or_are_replaced(
    ends: list[int], order_by: str, is_replaced: bool
) -> None:
    def of_run(index: int, phase: str, suffix: str = "a") -> MatchedPod:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "run", "controller": True}
        metadata = {"ownerReferences": [owner], "labels": {COMPLETION: str(index)}}
        (found,) = match(pod(f"train-{index}-{suffix}", phase=phase, metadata=metadata))
        return found

    pods = {index: of_run(index, "Running") for index in range(5)}
    selector = filled_selector(*pods.values(), order_by=order_by)
    for number, ended in enumerate(ends[:-1]):
        if is_replaced:
            selector.put(of_run(ended, "Failed"))
            selector.put(of_run(ended, "Running", "b"))
            selector.discard(of_run(ended, "Failed"))
        name = "b" if is_replaced else "a"
        pods[ended] = of_run(ended, "Succeeded", name)
        selector.put(pods[ended])
        if selector.is_stale:
            selector.fill(pods.values())
        assert list(selector.numbering.addresses) == sorted(ends[number + 1 :])
        assert sorted(selector.numbering.done) == sorted(ends[: number + 1])


class TestOrderByName:
    @given(st.lists(st.text("abz019-.", min_size=1, max_size=8), unique=True))
    def test_rows_and_pods_have_the_same_order(self, names: list[str]) -> None:
        assert members(*map(pod, names)) == addresses_by_name(names, names)

    def test_equal_names_are_in_the_order_of_their_namespaces(self) -> None:
        pods = [pod(metadata={"namespace": namespace, "uid": namespace}) for namespace in ("a-b", "a", "b")]
        # As the server lists them: it sorts `a-b/train-0` before `a/train-0`.
        by_name = filled_selector(*reversed(match(*pods)), order_by="name")
        assert [endpoint.namespace for endpoint in by_name.endpoints] == ["a-b", "a", "b"]


class TestOrderByIndex:
    def test_the_index_of_a_skipped_pod_is_missing(self) -> None:
        pods = [
            pod("x", phase="Pending", metadata={"labels": {COMPLETION: "0"}}),
            pod("y", metadata={"labels": {COMPLETION: "1"}}),
        ]
        selectors = [filled_selector(*match(*pods), order_by="index")]
        assert list(JobTasks("worker", selectors, allow_gaps=True).addresses()) == [1]
        with pytest.raises(PodIndexError, match="no pod has index 0") as caught:
            JobTasks("worker", selectors, allow_gaps=False).addresses()
        assert caught.value.missing == (0,)

    @pytest.mark.parametrize(
        ("labels", "tasks"),
        [
            pytest.param(
                [{COMPLETION: str(n)} for n in (1, 2, 3)], [1, 2, 3], id="workers without their leader"
            ),
            pytest.param([{MPI: str(n)} for n in (1, 2)], [1, 2], id="MPIJob"),
            pytest.param(
                [{LWS_GROUP: "2", LWS_WORKER: str(n)} for n in range(4)], [8, 9, 10, 11], id="one group"
            ),
            pytest.param(
                [{JOB_INDEX: "1", COMPLETION: str(n)} for n in range(4)], [4, 5, 6, 7], id="one slice"
            ),
        ],
    )
    def test_part_of_a_set_keeps_its_indices(self, labels: list[dict[str, str]], tasks: list[int]) -> None:
        pods = [labelled(f"w-{number}", **each) for number, each in enumerate(labels)]
        selectors = [filled_selector(*match(*pods), order_by="index")]
        for allow_gaps in (True, False):
            assert list(JobTasks("worker", selectors, allow_gaps=allow_gaps).addresses()) == tasks
        with_gap = [filled_selector(*match(pods[0], *pods[2:]), order_by="index")]
        if len(pods) > 2:
            with pytest.raises(PodIndexError) as caught:
                JobTasks("worker", with_gap, allow_gaps=False).addresses()
            assert caught.value.missing == (tasks[1],)

    def test_a_skipped_pod_does_not_shift_the_tasks_of_the_next_selector(self) -> None:
        first = [
            pod("x", metadata={"labels": {COMPLETION: "0"}}),
            pod("y", phase="Pending", metadata={"labels": {COMPLETION: "1"}}),
        ]
        second = [pod("z", metadata={"labels": {COMPLETION: "0"}})]
        selectors = [filled_selector(*match(*pods), order_by="index") for pods in (first, second)]
        assert list(JobTasks("worker", selectors, allow_gaps=True).addresses()) == [0, 2]
        with pytest.raises(PodIndexError, match="no pod has index 1"):
            JobTasks("worker", selectors, allow_gaps=False).addresses()

    def test_a_skipped_pod_after_the_last_member_leaves_no_gap(self) -> None:
        pods = [
            pod("x", metadata={"labels": {COMPLETION: "0"}}),
            pod("y", phase="Pending", metadata={"labels": {COMPLETION: "1"}}),
        ]
        selectors = [filled_selector(*match(*pods), order_by="index")]
        assert list(JobTasks("worker", selectors, allow_gaps=False).addresses()) == [0]


def indexed(name: str, **more: Any) -> MatchedPod:
    """Return a pod with the completion index that its name ends with."""
    labels = {COMPLETION: name.rpartition("-")[2]}
    (matched,) = match(pod(name, metadata={"labels": labels, **more.pop("metadata", {})}, **more))
    return matched


@pytest.mark.parametrize("order_by", ["name", "index"])
def test_parts_that_a_change_does_not_concern_are_the_same_objects(order_by: str) -> None:
    selector = filled_selector(indexed("w-0"), indexed("w-1", phase="Pending"), order_by=order_by)
    before = selector.endpoints, selector.numbering, selector.absent
    selector.put(indexed("w-0", status={"conditions": READY}))
    assert selector.numbering is before[1]
    assert selector.absent is before[2]
    assert selector.endpoints is not before[0]
    assert selector.unready == ()


INDEX_LABELS: list[dict[str, str]] = [
    {},
    {COMPLETION: "0"},
    {COMPLETION: "1"},
    {LWS_GROUP: "1", LWS_WORKER: "0"},
    {MPI: "0", "training.kubeflow.org/job-role": "launcher"},
    {MPI: "0", "training.kubeflow.org/job-role": "worker"},
    {MPI: "1", "training.kubeflow.org/job-role": "worker"},
]

POD_WRITES = st.tuples(
    st.sampled_from(["w-0", "w-1", "w-2"]),
    st.sampled_from(["Running", "Running", "Pending", "Failed", "Succeeded", "deleted", "gone"]),
    st.sampled_from(INDEX_LABELS),
    st.sampled_from([[], READY]),
    st.sampled_from(["10.8.1.1", "10.8.1.2"]),
    st.booleans(),  # whether the selector is read after it
)


def parts(selector: SelectorTasks) -> list[Any]:
    """Return everything that follows from the pods of a selector."""
    numbering = selector.numbering
    return [
        [(each, each.node, each.ready) for each in selector.endpoints],
        (numbering.addresses, numbering.first, numbering.end),
        {task: found.full_name for task, found in numbering.done.items()},
        {task: sorted(names) for task, names in numbering.duplicates.items()},
        sorted(numbering.unindexed),
        selector.absent,
        selector.unready,
        set(selector.selected.live),
        selector.selected.done,
        selector.failed,
    ]


@given(st.sampled_from(["name", "index"]), st.lists(POD_WRITES, max_size=12))
def test_pods_that_change_in_any_way_give_what_a_list_of_them_gives(
    order_by: str, writes: list[tuple[str, str, dict[str, str], list[Any], str, bool]]
) -> None:
    selector = filled_selector(order_by=order_by)
    pods: dict[str, MatchedPod] = {}
    for name, phase, labels, conditions, ip, is_read in writes:
        metadata = {"labels": labels} | ({"deletionTimestamp": "now"} if phase == "deleted" else {})
        existing = phase if phase not in ("deleted", "gone") else "Running"
        status = {"conditions": conditions}
        (found,) = match(pod(name, phase=existing, ip=ip, metadata=metadata, status=status))
        if phase == "gone":
            selector.discard(pods.pop(name, found))
        else:
            pods[name] = found
            selector.put(found)
        if selector.is_stale:
            selector.fill(pods.values())
        assert not is_read or parts(selector) == parts(filled_selector(*pods.values(), order_by=order_by))
    assert parts(selector) == parts(filled_selector(*pods.values(), order_by=order_by))
