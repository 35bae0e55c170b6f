"""What a watch has to converge to: an independent oracle, the writes of a schedule, and the follower."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
from hypothesis import strategies as st

from aioresolve.spec import Observation

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from aioresolve.spec import ClusterState, Endpoint

NAMESPACES = ["ml", "web", "spare"]
NAMES = ["w-0", "w-2", "w-10"]
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
PORT = 8470

Task: TypeAlias = tuple[str, str, str]
"""Address, `namespace/name` and uid."""

Truth: TypeAlias = dict[str, dict[int, Task]]
"""Job to task index to task."""


@dataclass(frozen=True)
class ResolverConfig:
    """The arguments of the resolver under test.

    Attributes:
        jobs: job to its selectors, each `label=value` or several of these.
        namespace: as a resolver takes it.
        order_by: `name` or `index`.
    """

    jobs: Mapping[str, Sequence[str]]
    namespace: str | tuple[str, ...] | None
    order_by: Literal["name", "index"]

    @property
    def lists(self) -> int:
        """The number of lists it needs; with a single list, each state existed at one moment."""
        selectors = {selector for selectors in self.jobs.values() for selector in selectors}
        return len(selectors) * (len(self.namespace) if isinstance(self.namespace, tuple) else 1)


CONFIGS = [
    ResolverConfig({"worker": ["app=a"]}, "ml", "name"),
    ResolverConfig({"worker": ["app=a"]}, None, "name"),
    ResolverConfig({"worker": ["app=a"]}, "ml", "index"),
    ResolverConfig({"worker": ["app=a", "app=b"]}, None, "name"),
    ResolverConfig({"worker": ["app=a"], "ps": ["app=b", "role=ps"]}, ("web", "ml"), "name"),
    ResolverConfig({"worker": ["app=b", "app=a"], "ps": ["role=ps"]}, "ml", "index"),
    ResolverConfig({"worker": ["app=a"], "ps": ["role=ps"]}, ("ml", "web"), "index"),
]


# Writes


@dataclass(frozen=True)
class Put:
    """Create a pod, or change one in one or many ways at once."""

    name: str
    namespace: str
    app: str | None
    role: str | None
    phase: str
    ip: int | None
    ready: bool

    @property
    def index(self) -> str:
        return self.name.rpartition("-")[2]

    @property
    def labels(self) -> dict[str, str]:
        labels = {"app": self.app, "role": self.role, COMPLETION_INDEX: self.index}
        return {name: value for name, value in labels.items() if value is not None}

    @property
    def address(self) -> str | None:
        return None if self.ip is None else f"10.{len(self.namespace)}.{self.index}.{self.ip}"


@dataclass(frozen=True)
class Remove:
    """Delete a pod, immediately or with a grace period."""

    name: str
    namespace: str
    gracefully: bool


@dataclass(frozen=True)
class Finish:
    """Remove a pod that is being deleted."""

    name: str
    namespace: str


# Few names and mostly members, so that most writes have an effect.
names, namespaces = st.sampled_from(NAMES), st.sampled_from(["ml", "ml", *NAMESPACES])
puts = st.builds(
    Put,
    names,
    namespaces,
    st.sampled_from(["a", "a", "b", None]),
    st.sampled_from([None, "ps"]),
    st.sampled_from([*["Running"] * 6, "Pending", "Failed", "Succeeded", "Unknown"]),
    st.sampled_from([1, 2, 3, 4, None]),
    st.booleans(),
)
removals = st.builds(Remove, names, namespaces, st.booleans())
writes = st.one_of(puts, puts, removals, removals, st.builds(Finish, names, namespaces))


# The oracle


def truth(pods: Sequence[Mapping[str, Any]], config: ResolverConfig) -> Truth | None:
    """The members among `pods`, or None if no order of tasks is right (a duplicate index)."""
    found: Truth = {}
    for job, selectors in config.jobs.items():
        tasks: dict[int, Task] = {}
        start = 0
        for selector in selectors:
            matched = [pod for pod in in_order(pods, config) if matches(pod, selector)]
            running = [pod for pod in matched if is_member(pod)]
            if config.order_by == "name":
                indices, end = list(range(len(running))), len(running)
            else:
                indices = [index_of(pod) for pod in running]
                end = max((index_of(pod) + 1 for pod in matched), default=0)
            if len(set(indices)) < len(indices):
                return None
            tasks |= {start + index: task(pod) for index, pod in zip(indices, running, strict=True)}
            start += end
        found[job] = tasks
    return found


def absent(pods: Sequence[Mapping[str, Any]], config: ResolverConfig) -> set[tuple[str, str]]:
    """Job and `namespace/name` of each matching pod that is neither a member nor being deleted."""
    away = [pod for pod in in_order(pods, config) if not is_member(pod) and not is_being_deleted(pod)]
    return {
        (job, full_name(pod))
        for job, selectors in config.jobs.items()
        for pod in away
        if any(matches(pod, selector) for selector in selectors)
    }


def readiness(pods: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """`namespace/name` of each pod to whether it is ready."""
    return {full_name(pod): is_ready(pod) for pod in pods}


def in_order(pods: Sequence[Mapping[str, Any]], config: ResolverConfig) -> list[Mapping[str, Any]]:
    """The pods of the watched namespaces by number, and for one number in the order of the namespaces."""
    given = [config.namespace] if isinstance(config.namespace, str) else config.namespace
    namespaces_in_order = sorted({namespace_of(pod) for pod in pods}) if given is None else list(given)
    selected = [pod for pod in pods if namespace_of(pod) in namespaces_in_order]
    return sorted(selected, key=lambda pod: (index_of(pod), namespaces_in_order.index(namespace_of(pod))))


def matches(pod: Mapping[str, Any], selector: str) -> bool:
    labels: Mapping[str, str] = pod["metadata"].get("labels", {})
    return dict(each.split("=") for each in selector.split(",")).items() <= labels.items()


def is_member(pod: Mapping[str, Any]) -> bool:
    status = pod["status"]
    return status.get("phase") == "Running" and bool(status.get("podIP")) and not is_being_deleted(pod)


def is_being_deleted(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def index_of(pod: Mapping[str, Any]) -> int:
    return int(re.sub(r"\D", "", pod["metadata"]["name"]))


def namespace_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"]["namespace"])


def full_name(pod: Mapping[str, Any]) -> str:
    return f"{namespace_of(pod)}/{pod['metadata']['name']}"


def task(pod: Mapping[str, Any]) -> Task:
    return f"{pod['status']['podIP']}:{PORT}", full_name(pod), pod["metadata"]["uid"]


# The follower


def truth_of(state: ClusterState) -> Truth:
    """A state in the form of the oracle."""
    found: Truth = {}
    for job in state.spec.jobs:
        addresses = {index: state.spec.task_address(job, index) for index in state.spec.task_indices(job)}
        endpoints = dict(zip(addresses, state.endpoints[job], strict=True))
        assert {index: endpoint.address for index, endpoint in endpoints.items()} == addresses
        found[job] = {index: _task_of(endpoint) for index, endpoint in endpoints.items()}
    return found


def _task_of(endpoint: Endpoint) -> Task:
    return endpoint.address, endpoint.full_name or "", endpoint.uid or ""


@dataclass
class Follower:
    """Collects the states or observations that a watch yields.

    Attributes:
        pause: seconds it takes to look at each.
        states: every state so far; of observations, those that differ from the one before.
        observation: the last observation.
    """

    pause: float = 0.0
    states: list[ClusterState] = field(default_factory=list)
    observation: Observation | None = None

    def __post_init__(self) -> None:
        self._stirred = asyncio.Event()

    async def follow(self, yielded: AsyncGenerator[ClusterState | Observation, None]) -> None:
        """Collect until the watch fails or is cancelled."""
        async with aclosing(yielded) as source:
            async for each in source:
                if isinstance(each, Observation):
                    self.observation = each
                    if each.state is not None and (not self.states or each.state != self.states[-1]):
                        self.states.append(each.state)
                else:
                    assert not self.states or each != self.states[-1], "a state was yielded twice in a row"
                    self.states.append(each)
                self._stirred.set()
                if self.pause:
                    await anyio.sleep(self.pause)

    async def until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Return as soon as `holds` returns True, or False after `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while not holds():
                self._stirred.clear()
                await self._stirred.wait()
        return holds()


def is_subsequence(states: Sequence[Truth], history: Sequence[Truth | None]) -> bool:
    """Whether `states` occur in `history` in this order, perhaps with others in between."""
    moments = iter(history)
    return all(any(state == moment for moment in moments) for state in states)
