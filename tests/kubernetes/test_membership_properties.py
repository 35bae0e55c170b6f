"""Whatever is told, in whichever order: what is kept comes to what a list at the end would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.query import PodQuery
from aioresolve.kubernetes.tasks import pod_candidates
from aioresolve.spec import Observation

from .samples import READY
from .watched_cluster import (
    DELETED,
    INDEX,
    NOW,
    PORT,
    Jobs,
    WatchedCluster,
    batch_state,
    bookmark,
    in_order,
    membership,
    state,
    told,
)

if TYPE_CHECKING:
    from aioresolve.kubernetes.objects import WatchEvent

OWNED = {"ownerReferences": [{"kind": "Job", "name": "train", "controller": True}]}
ONE_QUERY: Jobs = {"worker": [[PodQuery("a=1")]]}
ONE_NAMESPACE: Jobs = {
    "worker": [[PodQuery("a=1", "ml")], [PodQuery("b=1", "ml")]],
    "eval": [[PodQuery("a=1", "ml")]],
    "ps": [[PodQuery("c=1", "ml")]],
}
TWO_NAMESPACES: Jobs = {
    "worker": [[PodQuery("a=1", "ml"), PodQuery("a=1", "ab")], [PodQuery("b=1", "ml"), PodQuery("b=1", "ab")]]
}
EVERYWHERE: Jobs = {"worker": [[PodQuery("a=1")]], "eval": [[PodQuery("b=1")]]}

ALTERNATIVES = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["Running", "Running", "Running", "Pending", "Failed", "Succeeded"]),
        "ip": st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", None]),
        "conditions": st.sampled_from([[], READY]),
        "nodeName": st.sampled_from(["node-a", "node-b"]),
        "labels": st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), min_size=1),
        "index": st.sampled_from([None, None, None, None, 0, 1]),
        "owners": st.sampled_from([{}, OWNED]),
    }
)
NAMESPACES = ["ml", "ab", "a-b"]
NAMES = ["w-1", "w-01", "w-2", "w-10", "x", "w-2-a"]
KEYS = st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(NAMES))


@dataclass
class Life:
    """How far a name is: the uid of its present incarnation, if there is one, and how it looks."""

    incarnation: int = 0
    alternative: dict[str, Any] | None = None


class Convergence(RuleBasedStateMachine):
    """Pods are written, and the queries are told of it in any order, late, twice, or by a new list."""

    order_by = "name"

    @initialize(jobs=st.sampled_from([ONE_QUERY, ONE_NAMESPACE, TWO_NAMESPACES, EVERYWHERE]))
    def begin(self, jobs: Jobs) -> None:
        queries = dict.fromkeys(query for found in jobs.values() for part in found for query in part)
        self.jobs = jobs
        self.cluster = WatchedCluster(list(queries))
        self.lives: dict[tuple[str, str], Life] = {}
        self.kept = membership(jobs, order_by=self.order_by)
        for query in queries:
            self.kept.replace(query, *self.cluster.listed(query))

    @rule(key=KEYS, alternative=ALTERNATIVES)
    def write(self, key: tuple[str, str], alternative: dict[str, Any]) -> None:
        life = self.lives.setdefault(key, Life())
        if life.alternative is None:
            life.incarnation += 1
        self.put(key, alternative)

    @rule(key=KEYS)
    def delete(self, key: tuple[str, str]) -> None:
        """Ask a pod to go, and let it go the second time."""
        life = self.lives.get(key, Life())
        if life.alternative is None:
            return
        if life.alternative.get("deletionTimestamp"):
            self.cluster.remove(*key)
            life.alternative = None
        else:
            self.put(key, {**life.alternative, "deletionTimestamp": DELETED})

    @rule(key=KEYS, alternative=ALTERNATIVES)
    def recreate(self, key: tuple[str, str], alternative: dict[str, Any]) -> None:
        self.delete(key)
        self.delete(key)
        self.write(key, alternative)

    @rule(place=st.integers(0, 9), count=st.integers(1, 3))
    def tell(self, place: int, count: int) -> None:
        query = self.query(place)
        self.apply(query, self.cluster.next_events(query, count))

    @rule(place=st.integers(0, 9))
    def tell_again(self, place: int) -> None:
        query = self.query(place)
        self.apply(query, self.cluster.told[query])

    @rule(place=st.integers(0, 9))
    def list_anew(self, place: int) -> None:
        query = self.query(place)
        self.kept.replace(query, *self.cluster.listed(query))

    @rule(place=st.integers(0, 9))
    def mark(self, place: int) -> None:
        query = self.query(place)
        if not self.cluster.untold[query]:
            self.apply(query, [bookmark(self.cluster.version)])

    @rule()
    def settle(self) -> None:
        for query in self.cluster.queries:
            self.apply(query, self.cluster.next_events(query, 1_000))
        self.check_the_truth()

    @invariant()
    def no_pod_is_in_two_versions(self) -> None:
        now = self.told()
        if not isinstance(now, Observation) or now.state is None:
            return
        seen: dict[str | None, str] = {}
        for endpoint in (e for found in now.state.endpoints.values() for e in found):
            assert seen.setdefault(endpoint.full_name, repr(endpoint)) == repr(endpoint)

    @invariant()
    def one_query_is_always_where_its_stream_is(self) -> None:
        if self.order_by == "name" and len(self.cluster.queries) == 1:
            known = batch_state(self.jobs, lambda query: in_order(self.cluster.known[query].values()))
            assert repr(dict(state(self.kept).endpoints)) == repr(dict(known.endpoints))

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            self.settle()
            assert not self.kept.in_transit

    def told(self) -> Observation | PodIndexError:
        try:
            return self.kept.observation(NOW)
        except PodIndexError as error:
            return error

    def check_the_truth(self) -> None:
        truth = batch_state(self.jobs, self.cluster.found)
        observation = self.kept.observation(NOW)
        assert observation.state is not None
        assert repr(dict(observation.state.endpoints)) == repr(dict(truth.endpoints))
        assert observation.state == truth
        assert observation.state.spec == truth.spec
        assert self.rebuilt() == told(observation)

    def rebuilt(self) -> tuple[Any, ...]:
        """Return what is told by who lists everything at once."""
        fresh = membership(self.jobs, order_by=self.order_by)
        for query in self.cluster.queries:
            fresh.replace(query, self.cluster.found(query), str(self.cluster.version))
        return told(fresh.observation(NOW))

    def query(self, place: int) -> PodQuery:
        return self.cluster.queries[place % len(self.cluster.queries)]

    def apply(self, query: PodQuery, events: list[WatchEvent]) -> None:
        before = self.told()
        has_changed = self.kept.apply(query, events)
        now = self.told()
        if not has_changed and isinstance(now, Observation):
            assert isinstance(before, Observation)
            assert told(now) == told(before)

    def put(self, key: tuple[str, str], alternative: dict[str, Any]) -> None:
        life = self.lives[key]
        life.alternative = alternative
        namespace, name = key
        index = alternative["index"]
        if index is None:  # one that no other pod has
            index = NAMES.index(name) * len(NAMESPACES) + NAMESPACES.index(namespace)
        self.cluster.put(
            namespace,
            name,
            f"{namespace}/{name}#{life.incarnation}",
            phase=alternative["phase"],
            ip=alternative["ip"],
            metadata={
                "labels": {**alternative["labels"], INDEX: str(index)},
                "deletionTimestamp": alternative.get("deletionTimestamp"),
                **alternative["owners"],
            },
            spec={"nodeName": alternative["nodeName"]},
            status={"conditions": alternative["conditions"]},
        )


class ConvergenceByIndex(Convergence):
    """The same, each pod at its index."""

    order_by = "index"

    def check_the_truth(self) -> None:
        try:
            expected: Any = self.rebuilt()
        except PodIndexError as error:
            expected = str(error)
        now = self.told()
        assert (told(now) if isinstance(now, Observation) else str(now)) == expected
        found = [pod for query in self.cluster.queries for pod in self.cluster.found(query)]
        candidates = pod_candidates(found, "pod_ip", PORT)
        if len(candidates) < len(found) or any(candidate.fault for candidate in candidates):
            return  # who is no member keeps its index here, and none in an answer given at once
        try:
            truth = batch_state(self.jobs, self.cluster.found, order_by="index")
        except PodIndexError:
            return
        assert isinstance(now, Observation)
        assert now.state == truth


TestConvergence = Convergence.TestCase
TestConvergence.settings = settings(stateful_step_count=40)
TestConvergenceByIndex = ConvergenceByIndex.TestCase
TestConvergenceByIndex.settings = settings(stateful_step_count=40)
