"""What a cache of pods shows after lists and events: in any order, late, twice, or after a restore."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes import Pod
from aioresolve.spec import ClusterSpec, Missing, Observation

from .samples import READY, UNSCHEDULABLE, pod
from .watched_cluster import (
    EVAL,
    INDEX,
    NOW,
    TRAIN,
    Added,
    ClusterCache,
    Deleted,
    Jobs,
    Modified,
    PodQuery,
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

OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "run", "controller": True}

# Lists and versions


def test_there_is_no_state_before_every_query_was_listed() -> None:
    cache = new_cache({"worker": [TRAIN], "eval": [EVAL]})
    assert (cache.is_complete, cache.stores[TRAIN].version) == (False, "")
    replace(cache, TRAIN, [pod()], "9")
    assert (cache.is_complete, cache.stores[TRAIN].version) == (False, "9")
    assert cache.observation(NOW) == Observation(None)
    replace(cache, EVAL, [], "8")
    assert cache.is_complete
    assert state(cache).spec == ClusterSpec({"worker": ["10.8.0.10:8470"], "eval": []})
    assert (state(cache).version, state(cache).observed_at) == ("8", NOW)  # of the oldest list


def test_an_irrelevant_change_is_not_reported() -> None:
    cache = listed_cache(versioned("train-0", 7), versioned("train-1", 8), versioned("x", 9, phase="Pending"))
    before = cache.observation(NOW)
    annotated = versioned("train-0", 101, metadata={"annotations": {"a": "b"}})
    assert not cache.stores[TRAIN].apply([Modified(annotated)])
    after = cache.observation(NOW)
    assert before.state is not None
    assert after.state is not None
    assert after.state.endpoints["worker"] is before.state.endpoints["worker"]
    assert after.state.spec == before.state.spec
    assert (after.absent, after.unready, after.expected) == (before.absent, before.unready, before.expected)
    assert after.state.version == "101"


@pytest.mark.parametrize("order_by", ["name", "index"])
def test_a_change_of_readiness_is_reported_with_the_same_spec(order_by: str) -> None:
    cache = listed_cache(completion(0), order_by=order_by)
    before = state(cache)
    for version, node in ((101, "node-a"), (102, "node-b")):
        ready = completion(0, version, status={"conditions": READY}, spec={"nodeName": node})
        assert cache.stores[TRAIN].apply([Modified(ready)])
        assert state(cache) == before
        assert state(cache).spec == before.spec
        (endpoint,) = state(cache).endpoints["worker"]
        assert (endpoint.ready, endpoint.node) == (True, node)


def test_bookmarks_change_the_version_only_and_never_decrease_it() -> None:
    cache = listed_cache(pod())
    assert not cache.stores[TRAIN].apply([bookmark(150), bookmark(120)])
    assert (cache.stores[TRAIN].version, state(cache).version) == ("150", "150")


def test_an_older_version_is_reported_until_the_next_list() -> None:
    old = versioned("train-0", 99)
    for event in (bookmark(99), Modified(old), Deleted(old)):
        cache = listed_cache(pod("train-1"), version="100")
        cache.stores[TRAIN].apply([Added(versioned("train-2", 100)), bookmark(100)])
        assert not cache.stores[TRAIN].version_decreased
        cache.stores[TRAIN].apply([event])
        assert cache.stores[TRAIN].version_decreased
        replace(cache, TRAIN, [], "99")
        assert not cache.stores[TRAIN].version_decreased


def test_a_late_event_of_an_earlier_pod_does_not_delete_its_successor() -> None:
    cache = listed_cache(pod("train-0"))
    earlier = pod("train-0", metadata={"uid": "earlier"})
    assert not cache.stores[TRAIN].apply([Deleted(earlier), Deleted(pod("train-1"))])
    assert names(cache) == ["train-0"]


def test_a_list_of_a_restored_server_replaces_newer_versions() -> None:
    cache = listed_cache(versioned("train-0", 90, ip="10.0.0.1"))
    replace(cache, TRAIN, [versioned("train-0", 40, ip="10.9.9.9")], "50")
    assert state(cache).spec.as_dict() == {"worker": ["10.9.9.9:8470"]}
    cache.stores[TRAIN].apply([Modified(versioned("train-0", 51, ip="10.9.9.8"))])
    assert state(cache).spec.as_dict() == {"worker": ["10.9.9.8:8470"]}


# Pods that are absent or not ready


def test_a_pod_that_is_not_a_member_is_absent_unless_it_is_being_replaced() -> None:
    owned = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
    not_controlled = {"ownerReferences": [{"kind": "Job", "name": "train"}]}
    pods = [
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
    ]
    jobs: Jobs = {"worker": [TRAIN], "eval": [TRAIN]}
    cache = listed_cache(*pods, jobs=jobs)
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
    assert [(one.job, one.name) for one in observation.failed] == [("worker", "ml/w-7"), ("eval", "ml/w-7")]
    # Each change of a pod that was pending before has the same effect as a list.
    pending = pod(phase="Pending", ip=None).status
    now = {one.full_name: msgspec.structs.replace(one, status=pending) for one in pods}
    cache = listed_cache(*now.values(), jobs=jobs)
    for one in sorted(pods, key=lambda one: str(one.status.phase)):
        now[one.full_name] = one
        cache.stores[TRAIN].apply([Modified(one)])
        listed = listed_cache(*now.values(), jobs=jobs)
        assert contents(cache.observation(NOW)) == contents(listed.observation(NOW))


def test_a_pod_that_its_controller_adopts_before_it_runs_is_one_of_its_pods() -> None:
    owned = {"ownerReferences": [OWNER]}
    cache = listed_cache(pod("a", metadata=owned), pod("b", phase="Pending"))
    assert cache.unread_controllers == []  # nothing states how many pods without one there will be
    assert cache.stores[TRAIN].apply([Modified(pod("b", metadata=owned))])
    assert [str(one) for one in cache.unread_controllers] == ["Job ml/train"]


def test_members_that_become_ready_or_unready_one_by_one_are_listed_by_name() -> None:
    cache = listed_cache(*[versioned(f"train-{number}", 7) for number in (10, 9, 2, 1)])
    ready = [versioned(f"train-{n}", 100 + n, status={"conditions": READY}) for n in (1, 2, 9, 10)]
    cache.stores[TRAIN].apply([Modified(each) for each in ready[1:]])
    assert [one.name for one in cache.observation(NOW).unready] == ["ml/train-1"]
    again = [versioned(f"train-{number}", 120 + at) for at, number in enumerate((10, 2))]
    cache.stores[TRAIN].apply([Modified(each) for each in again])
    assert [one.name for one in cache.observation(NOW).unready] == [f"ml/train-{n}" for n in (1, 2, 10)]
    cache.stores[TRAIN].apply([Modified(versioned("train-9", 130, phase="Unknown"))])
    assert names(cache) == ["train-1", "train-2", "train-10"]


# Task indices


def indexed(name: str, labels: dict[str, str], version: int = 7, **more: Any) -> Pod:
    return versioned(name, version, metadata={"labels": labels}, **more)


def completion(index: int, version: int = 7, **more: Any) -> Pod:
    return indexed(f"train-{index}", {INDEX: str(index)}, version, **more)


def indices(cache: ClusterCache) -> list[int]:
    return state(cache).spec.task_indices("worker")


def test_a_deleted_pod_leaves_a_gap_that_a_new_one_fills() -> None:
    cache = listed_cache(*map(completion, range(4)), order_by="index")
    before = state(cache)
    assert cache.stores[TRAIN].apply([Deleted(deleting("train-2", 101))])
    assert indices(cache) == [0, 1, 3]
    diff = state(cache).diff(before)
    assert ([member.task_index for member in diff.left], diff.joined, diff.moved) == ([2], (), ())
    cache.stores[TRAIN].apply([Added(completion(2, 102))])
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
    cache.stores[TRAIN].apply([Modified(restarting)])
    assert indices(cache) == [0, 1, 6, 7, 8]
    assert [missing.name for missing in cache.observation(NOW).absent] == ["ml/g0-2"]


# Properties

QUERIES = [PodQuery("a=1", "ml"), PodQuery("b=1", "ml"), PodQuery("a=1")]
JOBS: list[Jobs] = [
    {"worker": [QUERIES[0], QUERIES[1]], "eval": [QUERIES[0]]},
    {"worker": [QUERIES[2]]},
]
GROUP, WORKER = "leaderworkerset.sigs.k8s.io/group-index", "leaderworkerset.sigs.k8s.io/worker-index"
KUBEFLOW, ROLE = "training.kubeflow.org/replica-index", "training.kubeflow.org/job-role"
INDICES: list[dict[str, str]] = [
    *({INDEX: str(index), "rank": str(10 - index)} for index in range(4)),
    {GROUP: "1", WORKER: "0"},
    {KUBEFLOW: "0", ROLE: "launcher", "rank": "5"},
    {KUBEFLOW: "0", ROLE: "worker"},
    {},
]
PUTS = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Running", "Running", "Running", "Pending", "Failed", "Succeeded"]),
        "ip": st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", None]),
        "status": st.fixed_dictionaries({"conditions": st.sampled_from([[], READY])}),
        "labels": st.sets(st.sampled_from("abc"), min_size=1),
        "index": st.sampled_from(INDICES),
        "owned": st.booleans(),
        "deleting": st.sampled_from([False, False, False, True]),
    }
)
KEYS = st.tuples(st.sampled_from(["ml", "ab", "a-b"]), st.sampled_from(["w-1", "w-01", "w-2", "w-10", "x"]))
STEPS = st.one_of(
    st.tuples(KEYS, st.none() | PUTS),
    st.tuples(KEYS, PUTS),
    st.tuples(st.integers(0, 2), st.sampled_from([*range(1, 4), "again", "list", "bookmark"])),
)


class Server:
    """The pods of a server, and the events that each query has still to get."""

    def __init__(self, queries: list[PodQuery]) -> None:
        self.version = 100
        self.pods: dict[tuple[str, str], Pod] = {}
        self.pending: dict[PodQuery, list[Any]] = {query: [] for query in queries}
        self.reported: dict[PodQuery, list[Any]] = {query: [] for query in queries}

    def matching(self, query: PodQuery) -> list[Pod]:
        found = [one for one in self.pods.values() if matches(query, one)]
        return sorted(found, key=lambda one: one.full_name)

    def write(self, key: tuple[str, str], fields: dict[str, Any] | None) -> None:
        self.version += 1
        namespace, name = key
        old, new = self.pods.pop(key, None), None
        metadata: dict[str, Any] = {
            "namespace": namespace,
            "uid": old.metadata.uid if old else str(self.version),
        }
        if fields is not None:
            more = {each: fields[each] for each in ("phase", "ip", "status")}
            metadata["labels"] = {**fields["index"], **dict.fromkeys(fields["labels"], "1")}
            if fields["deleting"]:
                metadata["deletionTimestamp"] = "now"
            metadata["ownerReferences"] = [OWNER] if fields["owned"] else []
            new = self.pods[key] = versioned(name, self.version, metadata=metadata, **more)
        for query, pending in self.pending.items():
            is_known = old is not None and matches(query, old)
            if new is not None and matches(query, new):
                pending.append(Modified(new) if is_known else Added(new))
            elif is_known:
                pending.append(Deleted(versioned(name, self.version, metadata=metadata)))

    def report(self, query: PodQuery, count: int) -> list[Any]:
        events, self.pending[query] = self.pending[query][:count], self.pending[query][count:]
        self.reported[query] = [*self.reported[query], *events][-4:]
        return events


def matches(query: PodQuery, one: Pod) -> bool:
    return query.selector[0] in one.metadata.labels and query.namespace in (None, one.metadata.namespace)


@given(
    st.sampled_from(JOBS), st.sampled_from(["name", "index", ("label:rank",)]), st.lists(STEPS, max_size=40)
)
def test_events_in_any_order_late_or_twice_end_with_what_a_list_shows(
    jobs: Jobs, order_by: Any, steps: list[Any]
) -> None:
    queries = list(dict.fromkeys(query for each in jobs.values() for query in each))
    server, cache = Server(queries), new_cache(jobs, order_by=order_by)
    for query in queries:
        replace(cache, query, [], server.version)

    def found(cache: ClusterCache) -> Any:
        try:
            return contents(cache.observation(NOW))
        except PodIndexError as error:
            return str(error)

    def apply(query: PodQuery, events: list[Any]) -> None:
        before = found(cache)
        assert cache.stores[query].apply(events) or found(cache) == before

    for target, step in steps:
        if isinstance(target, tuple):
            server.write(target, step)
            continue
        query = queries[target % len(queries)]
        if step == "list":
            server.pending[query], server.reported[query] = [], []
            replace(cache, query, server.matching(query), server.version)
        elif step == "again":
            apply(query, server.reported[query])
        elif step == "bookmark":
            apply(query, [] if server.pending[query] else [bookmark(server.version)])
        else:
            apply(query, server.report(query, step))
    listed = new_cache(jobs, order_by=order_by)
    for query in queries:
        apply(query, server.report(query, 1000))
        replace(listed, query, server.matching(query), server.version)
    assert found(cache) == found(listed)
