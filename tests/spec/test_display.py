"""How values display in notebooks, and in one line."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import aioresolve
from aioresolve import (
    ClusterSpec,
    ClusterState,
    DoneTask,
    Endpoint,
    Fleet,
    Observation,
    SimpleClusterResolver,
)
from aioresolve.errors import ConnectionFailedError
from aioresolve.probe import WorkerProbe
from aioresolve.spec import Missing

MARKUP = "<script>alert('&')</script>"
POD = Endpoint("10.0.0.1:1", name=MARKUP, namespace="ml", node="a", status="Running")
PODS = ClusterState.of({"worker": [POD]})
ADDRESSES = [f"10.0.{number // 250}.{number % 250}:8470" for number in range(1000)]
MANY = ClusterState.from_spec(ClusterSpec({"worker": ADDRESSES}))
MISSING = Missing("worker", "ml/train-1", MARKUP)


class Texts(HTMLParser):
    """The texts of HTML, and its tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def displayed(value: Any) -> list[str]:
    """Return the texts that a notebook shows for a value, which has no other elements than tables."""
    found = Texts(value._repr_html_())
    assert found.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    line = repr(value)
    assert len(line) <= 200
    assert "\n" not in line
    return found.texts


def test_cluster() -> None:
    assert displayed(PODS.spec)[1:] == ["job", "task", "address", "worker", "0", "10.0.0.1:1"]
    assert repr(PODS) == "<ClusterState of 1 task: worker 1>"
    assert displayed(PODS)[-6:] == ["worker", "0", "10.0.0.1:1", f"ml/{MARKUP}", "a", "Running"]
    assert displayed(MANY)[-1] == "and 800 more"
    assert displayed(ClusterSpec({"worker": ADDRESSES[:200]}))[-1] == ADDRESSES[199]
    assert displayed(ClusterSpec({"worker": []}))[1:] == ["job", "task", "address"]
    assert repr(MANY.spec) == "<ClusterSpec of 1000 tasks: worker 1000>"
    ending = replace(PODS, done=(DoneTask("worker", 1, "ml/train-1"),))
    assert repr(ending) == "<ClusterState of 1 task: worker 1; 1 done>"
    assert displayed(ending)[-4:] == ["worker", "1", "ml/train-1", "done"]


def test_changes() -> None:
    change = PODS.diff(ClusterState.of({}))
    assert displayed(change) == ["1 changes", "change", "task", "joined", str(PODS.members[0])]
    assert repr(change) == f"<ClusterDiff: joined {PODS.members[0]}>"
    assert len(str(MANY.diff(PODS))) == 200
    assert str(MANY.diff(PODS)).endswith("...")


def test_observation() -> None:
    texts = displayed(Observation(PODS, (MISSING,), error=ConnectionFailedError("nothing listens")))
    assert texts[:3] == ["error", "reason", "nothing listens"]
    assert texts[3:10] == ["missing or not ready", "job", "name", "reason", "worker", "ml/train-1", MARKUP]
    assert texts[10:] == displayed(PODS)
    assert repr(Observation(PODS, (), (MISSING,))) == (
        f"<Observation: <ClusterState of 1 task: worker 1>; 1 not ready: ml/train-1: {MARKUP}>"
    )


async def test_fleet() -> None:
    fixed = SimpleClusterResolver(PODS.spec)
    fleet = Fleet({MARKUP: fixed, "b": fixed}, expected={"b": 2})
    await fleet.resolve()
    texts = displayed(fleet)
    assert texts[:5] == ["Fleet of 2 targets", "target", "status", "reason", "since (UTC)"]
    assert texts[5:8] == ["b", "Degraded 1/2", "1 of 2 tasks in total"]
    assert texts[9:11] == [MARKUP, "Ready 1/1"]
    status = fleet.readings["b"]
    assert displayed(status)[-3:] == ["worker", "0", "10.0.0.1:1"]
    assert repr(status) == "<TargetStatus 'b', Degraded 1/2: 1 of 2 tasks in total>"


async def test_checks_and_probes() -> None:
    checks = await aioresolve.doctor(SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"]})))
    assert displayed(checks)[1:5] == ["check", "result", "found", "remedy"]
    assert re.match(r"<Checks: \d ok, 1 failed: addresses: failed: ", repr(checks))
    probe = WorkerProbe("10.0.0.1:1", "libtpu", cores=8)
    assert displayed(probe)[-3:] == ["10.0.0.1:1", "8 TPU, 0 devices, from libtpu", "0.000 s"]
