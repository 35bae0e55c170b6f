"""Whatever events arrive in whatever order, the cache converges to what a list at the end would return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aioresolve.errors import PodIndexError
from aioresolve.kubernetes.api.objects import PodQuery
from aioresolve.spec import Observation

from .samples import READY
from .watched_cluster import (
    DELETED,
    INDEX,
    NOW,
    Jobs,
    WatchedCluster,
    bookmark,
    contents,
    expected_endpoints,
    expected_spec,
    in_server_order,
    new_cache,
    replace,
    state,
)

if TYPE_CHECKING:
    from aioresolve.kubernetes.api.objects import Pod, WatchEvent
    from aioresolve.kubernetes.watch.pod_cache import PodCache

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
    """The history of a name: how many pods had it, and the present one, if any."""

    incarnation: int = 0
    alternative: dict[str, Any] | None = None


class Convergence(RuleBasedStateMachine):
    """Pods are written, and queries report this in any order, late, twice, or by a new list."""

    order_by = "name"

    @initialize(jobs=st.sampled_from([ONE_QUERY, ONE_NAMESPACE, TWO_NAMESPACES, EVERYWHERE]))
    def begin(self, jobs: Jobs) -> None:
        queries = dict.fromkeys(query for found in jobs.values() for part in found for query in part)
        self.jobs = jobs
        self.cluster = WatchedCluster(list(queries))
        self.lives: dict[tuple[str, str], Life] = {}
        self.cache = new_cache(jobs, order_by=self.order_by)
        for query in queries:
            replace(self.cache, query, *self.cluster.listed(query))

    @rule(key=KEYS, alternative=ALTERNATIVES)
    def write(self, key: tuple[str, str], alternative: dict[str, Any]) -> None:
        life = self.lives.setdefault(key, Life())
        if life.alternative is None:
            life.incarnation += 1
        self.put(key, alternative)

    @rule(key=KEYS)
    def delete(self, key: tuple[str, str]) -> None:
        """Start the deletion of a pod; the second time, remove it."""
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

    @rule(number=st.integers(0, 9), count=st.integers(1, 3))
    def report(self, number: int, count: int) -> None:
        query = self.query(number)
        self.apply(query, self.cluster.next_events(query, count))

    @rule(number=st.integers(0, 9))
    def report_again(self, number: int) -> None:
        query = self.query(number)
        self.apply(query, self.cluster.reported[query])

    @rule(number=st.integers(0, 9))
    def list_again(self, number: int) -> None:
        query = self.query(number)
        replace(self.cache, query, *self.cluster.listed(query))

    @rule(number=st.integers(0, 9))
    def send_bookmark(self, number: int) -> None:
        query = self.query(number)
        if not self.cluster.pending[query]:
            self.apply(query, [bookmark(self.cluster.version)])

    @rule()
    def settle(self) -> None:
        for query in self.cluster.queries:
            self.apply(query, self.cluster.next_events(query, 1_000))
        self.check_convergence()

    @invariant()
    def every_pod_has_one_version(self) -> None:
        now = self.observe()
        if not isinstance(now, Observation) or now.state is None:
            return
        seen: dict[str | None, str] = {}
        for endpoint in (e for found in now.state.endpoints.values() for e in found):
            assert seen.setdefault(endpoint.full_name, repr(endpoint)) == repr(endpoint)

    @invariant()
    def a_single_query_is_always_up_to_date(self) -> None:
        if self.order_by == "name" and len(self.cluster.queries) == 1:
            known = self.cluster.known
            expected = expected_endpoints(self.jobs, lambda query: in_server_order(known[query].values()))
            assert repr(dict(state(self.cache).endpoints)) == repr(expected)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            self.settle()
            assert not self.cache.in_transit

    def observe(self) -> Observation | PodIndexError:
        try:
            return self.cache.observation(NOW)
        except PodIndexError as error:
            return error

    def check_convergence(self) -> None:
        observation = self.cache.observation(NOW)
        assert observation.state is not None
        endpoints = expected_endpoints(self.jobs, self.cluster.matching)
        assert repr(dict(observation.state.endpoints)) == repr(endpoints)
        assert observation.state.spec == expected_spec(self.jobs, self.cluster.matching)
        assert contents(self.listed_cache().observation(NOW)) == contents(observation)

    def listed_cache(self, *, allow_gaps: bool = True) -> PodCache:
        """Return a new cache, filled by lists of all queries."""
        cache = new_cache(self.jobs, order_by=self.order_by, allow_gaps=allow_gaps)
        for query in self.cluster.queries:
            replace(cache, query, self.cluster.matching(query), str(self.cluster.version))
        return cache

    def query(self, number: int) -> PodQuery:
        return self.cluster.queries[number % len(self.cluster.queries)]

    def apply(self, query: PodQuery, events: list[WatchEvent[Pod]]) -> None:
        before = self.observe()
        has_changed = self.cache.apply(query, events)
        now = self.observe()
        if not has_changed and isinstance(now, Observation):
            assert isinstance(before, Observation)
            assert contents(now) == contents(before)

    def put(self, key: tuple[str, str], alternative: dict[str, Any]) -> None:
        life = self.lives[key]
        life.alternative = alternative
        namespace, name = key
        index = alternative["index"]
        if index is None:  # an index that no other pod has
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
    """The same with `order_by="index"`."""

    order_by = "index"

    def check_convergence(self) -> None:
        try:
            expected: Any = contents(self.listed_cache().observation(NOW))
        except PodIndexError as error:
            expected = str(error)
        now = self.observe()
        assert (contents(now) if isinstance(now, Observation) else str(now)) == expected
        try:
            state_without_gaps = self.listed_cache(allow_gaps=False).state(NOW)
        except PodIndexError:
            return
        assert isinstance(now, Observation)
        assert now.state == state_without_gaps


TestConvergence = Convergence.TestCase
TestConvergence.settings = settings(stateful_step_count=40)
TestConvergenceByIndex = ConvergenceByIndex.TestCase
TestConvergenceByIndex.settings = settings(stateful_step_count=40)
