"""The protocol under crashes, late and repeated requests, lost responses and old observations.

A model of the API server and of the nodes runs the real rules. Whatever the order of events, a round has one
world, no node runs in an old round when the next one begins, and the nodes that live end up in one round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule
from msgspec.structs import replace

from aioresolve.errors import ProtocolError
from aioresolve.rendezvous.protocol import (
    Closed,
    Life,
    Limits,
    Node,
    State,
    Step,
    View,
    World,
    begun,
    closing,
    decode_state,
    entry,
    next_step,
    opened,
    reopened,
)

LIMITS = Limits(2, 3)
OWNER = "job-1"
BEFORE = World()


@dataclass
class Server:
    """One object, whose versions are counted from 1; version 0 means that it does not exist."""

    history: list[dict[str, str]] = field(default_factory=lambda: [{}])

    @property
    def version(self) -> int:
        return len(self.history) - 1

    def write(self, request: "Request") -> bool:
        if request.compares is not None and request.compares != self.version:
            return False
        data = {**self.history[-1], **request.data}
        self.history.append({key: value for key, value in data.items() if value is not None})
        return True

    def state(self, version: int) -> State:
        return decode_state(self.history[version], "the object")


@dataclass
class Request:
    sender: "Process"
    data: Mapping[str, str | None]
    compares: int | None = None


@dataclass(eq=False)
class Process:
    """An agent: it knows an old version of the object, and some of the processes that have ended."""

    own: Node
    seen: int = 0
    lives: bool = True
    is_running: bool = False
    has_run: bool = False
    has_ended: bool = False
    known_lives: dict[str, Life] = field(default_factory=dict)

    def view(self, server: Server) -> View:
        return View(server.state(self.seen), lambda node: self.known_lives.get(node.identity, Life.UNKNOWN))


class Model(RuleBasedStateMachine):
    """Nodes of four pods, of which at most three take part at a time."""

    processes = Bundle("processes")
    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.all: list[Process] = []
        self.worlds: dict[int, World] = {}

    # Processes

    @rule(target=processes, pod=st.integers(0, 3), is_same_pod=st.booleans())
    def start(self, pod: int, is_same_pod: bool) -> Any:
        earlier = [each for each in self.all if each.own.index == (pod,)]
        if any(each.lives for each in earlier):
            return multiple()
        key = earlier[-1].own.key if earlier and is_same_pod else f"pod-{9 - pod}-{len(earlier)}"
        name = f"process-{len(earlier)}"
        process = Process(Node(name, key, "h", index=(pod,), key=key))
        self.all.append(process)
        return process

    @rule(process=processes)
    def crash(self, process: Process) -> None:
        process.lives = process.is_running = False

    @rule(process=processes, other=processes)
    def hear_of_death(self, process: Process, other: Process) -> None:
        if not other.lives:
            process.known_lives[other.own.identity] = Life.DONE if other.has_ended else Life.DEAD

    @rule(process=processes, steps=st.integers(1, 50))
    def observe(self, process: Process, steps: int) -> None:
        process.seen = min(self.server.version, process.seen + steps)

    @rule(process=processes)
    def come_to_barrier_again(self, process: Process) -> None:
        """Torch's agent does so if nodes wait, or if one of its own workers has failed."""
        if process.is_running:
            process.is_running = False
            process.own = replace(process.own, after=process.view(self.server).state.world.round)

    @rule(target=requests, process=processes, failed=st.booleans())
    def close(self, process: Process, failed: bool) -> Any:
        """The training has ended."""
        if not process.is_running:
            return multiple()
        closed = Closed(process.own.name, process.view(self.server).state.world.round, failed)
        process.lives = process.is_running = False
        process.has_ended = not failed
        return Request(process, closing(closed))

    # Requests

    @rule(target=requests, process=processes, is_last_call_over=st.booleans())
    def act(self, process: Process, is_last_call_over: bool) -> Any:
        request = self._act(process, is_last_call_over=is_last_call_over)
        return multiple() if request is None else request

    def _act(self, process: Process, *, is_last_call_over: bool) -> Request | None:
        if not process.lives or process.is_running:
            return None
        view, own = process.view(self.server), process.own
        if process.seen == 0:
            return Request(process, opened(own, OWNER), compares=0)
        step = next_step(
            view, own, OWNER, LIMITS, is_last_call_over=is_last_call_over, may_reopen=not process.has_run
        )
        match step:
            case Step.ENTER:
                assert view.state.world == self.worlds[view.state.world.round]
                process.is_running = process.has_run = True
            case Step.JOIN:
                return Request(process, entry(own))
            case Step.REOPEN:
                data = reopened(view.state, own, OWNER)
                return Request(process, data, process.seen)
            case Step.BEGIN:
                world = view.next_world(LIMITS, is_last_call_over=is_last_call_over)
                assert world is not None
                return Request(process, begun(world, view), process.seen)
            case Step.LEAVE:
                process.lives = False
            case Step.WAIT:
                pass
        return None

    @rule(request=consumes(requests), is_response_lost=st.booleans())
    def deliver(self, request: Request, is_response_lost: bool) -> None:
        self._deliver(request, is_response_lost=is_response_lost)

    @rule(target=requests, request=requests)
    def repeat(self, request: Request) -> Request:
        """A client that got no response sends its request again; the first one may still arrive."""
        return request

    def _deliver(self, request: Request, *, is_response_lost: bool = False) -> None:
        before = self.server.state(self.server.version).world
        if not self.server.write(request):
            return
        if not is_response_lost:
            request.sender.seen = self.server.version
        world = self.server.state(self.server.version).world
        if world != before:
            self._check_begin(world)

    def _check_begin(self, world: World) -> None:
        assert world.round not in self.worlds, "a round has one world"
        assert world.round > max(self.worlds, default=0)
        self.worlds[world.round] = world
        running = [process.own.name for process in self.all if process.is_running]
        assert not running, "no node runs in an old round when the next one begins"
        if world.nodes:
            assert LIMITS.min_nodes <= len(world.nodes) <= LIMITS.max_nodes
            indices = [each.own.index for id_ in world.nodes for each in self.all if each.own.identity == id_]
            assert indices == sorted(indices, key=lambda index: index or ()), "ranks follow the index"

    # The end

    def teardown(self) -> None:
        """All news arrives, and the nodes that live continue: they run in one round, unless it is closed."""
        for _ in range(12):
            for process in self.all:
                process.seen = self.server.version
                ended = [each for each in self.all if not each.lives]
                process.known_lives = {
                    each.own.identity: Life.DONE if each.has_ended else Life.DEAD for each in ended
                }
                if process.is_running and process.view(self.server).nodes_waiting(process.own, LIMITS):
                    self.come_to_barrier_again(process)
                request = self._act(process, is_last_call_over=True)
                if request is not None:
                    self._deliver(request)
        living = [process for process in self.all if process.lives]
        running = [process for process in living if process.is_running]
        if len(living) >= LIMITS.min_nodes and not any(
            process.view(self.server).closed is not None for process in living
        ):
            world = self.server.state(self.server.version).world
            assert len(running) == min(len(living), LIMITS.max_nodes)
            assert {process.own.identity for process in running} == set(world.nodes)


Model.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestProtocol = Model.TestCase


# Examples


def node(pod: int, **fields: Any) -> Node:
    return Node(
        **{"key": f"uid-{pod}", "process": "p", "name": f"trainer-{pod}", "host": "h", "index": (pod,)}
        | fields
    )


def view(*nodes: Node, world: World = BEFORE, dead: Sequence[int] = (), **fields: Any) -> View:
    lives = {f"uid-{pod}": Life.DEAD for pod in dead}
    state = State({each.key: each for each in nodes}, world, owner=OWNER, **fields)
    return View(state, lambda each: lives.get(each.key, Life.ALIVE))


def world(number: int, *pods: int) -> World:
    return World(number, "h", 0, tuple(node(pod).identity for pod in pods))


def step_of(view: View, own: Node, *, may_reopen: bool = True) -> Step:
    return next_step(view, own, OWNER, LIMITS, is_last_call_over=True, may_reopen=may_reopen)


def test_ranks_follow_the_index_of_the_controller_and_then_the_age() -> None:
    old, young = node(8, index=None, since="2026-01-01"), node(7, index=None, since="2026-01-02")
    waiting = view(young, node(10), old, node(9))
    found = waiting.next_world(Limits(4, 4), is_last_call_over=False)
    assert found is not None
    assert found.nodes == ("uid-9/p", "uid-10/p", "uid-8/p", "uid-7/p")


def test_a_world_is_due_at_once_with_the_maximum_and_after_the_last_call_with_the_minimum() -> None:
    two, three = [node(0), node(1)], [node(0), node(1), node(2)]
    assert view(*three).next_world(LIMITS, is_last_call_over=False) is not None
    assert view(*two).next_world(LIMITS, is_last_call_over=False) is None
    assert view(*two).next_world(LIMITS, is_last_call_over=True) is not None
    assert view(*three, dead=[1, 2]).next_world(LIMITS, is_last_call_over=True) is None


def test_members_of_the_last_world_come_before_new_nodes_if_there_are_too_many() -> None:
    again = [node(pod, after=1) for pod in (1, 2, 3)]
    found = view(node(0), *again, world=world(1, 1, 2, 3)).next_world(LIMITS, is_last_call_over=True)
    assert found is not None
    assert found.nodes == ("uid-1/p", "uid-2/p", "uid-3/p")


def test_a_member_that_still_runs_holds_the_next_world_back() -> None:
    nodes = [node(0, after=1), node(1, after=1), node(2)]
    assert view(*nodes, world=world(1, 0, 1, 2)).next_world(LIMITS, is_last_call_over=True) is None
    found = view(*nodes, world=world(1, 0, 1, 2), dead=[2]).next_world(LIMITS, is_last_call_over=True)
    assert found is not None
    assert found.nodes == ("uid-0/p", "uid-1/p")


@pytest.mark.parametrize(
    ("nodes", "dead", "expected"),
    [
        ([node(0), node(1)], [], 0),
        ([node(0), node(1), node(2)], [], 1),
        ([node(0), node(1), node(2), node(3)], [], 1),  # there is one place
        ([node(0), node(1, after=1)], [], 1),
        ([node(0)], [], 1),  # the other one has left
        ([node(0), node(1)], [1], 1),
        ([node(0), node(1), node(2)], [1], 2),
    ],
)
def test_a_running_node_counts_new_nodes_and_lost_ones(
    nodes: list[Node], dead: list[int], expected: int
) -> None:
    assert view(*nodes, world=world(1, 0, 1), dead=dead).nodes_waiting(node(0), LIMITS) == expected


def test_a_node_is_spare_while_others_fill_the_world() -> None:
    full = view(*map(node, range(4)), world=world(1, 0, 1, 2))
    assert full.is_spare(node(3), LIMITS)
    assert not full.is_spare(node(0), LIMITS)
    assert not view(node(0), node(1), node(3), world=world(1, 0, 1)).is_spare(node(3), LIMITS)


def test_a_node_that_the_others_have_left_behind_comes_to_the_barrier() -> None:
    assert view(node(1), node(2), world=world(2, 1, 2)).nodes_waiting(node(0), LIMITS) == 1


def test_after_a_failure_the_next_processes_start_over_when_no_other_node_lives() -> None:
    failure = Closed("trainer-0", 3, failed=True)
    ending = view(node(1), world=world(3, 0, 1), closed=failure)
    assert step_of(ending, node(0, process="next")) is Step.WAIT
    assert step_of(ending, node(1, after=3), may_reopen=False) is Step.LEAVE
    ended = view(node(1), world=world(3, 0, 1), closed=failure, dead=[1])
    own = node(0, process="next")
    assert step_of(ended, own) is Step.REOPEN
    data = reopened(ended.state, own, OWNER)
    state = decode_state({key: text for key, text in data.items() if text is not None}, "the object")
    assert state == State({"uid-0": own}, World(4), None, OWNER)
    assert data["closed"] is data["node.uid-1"] is None


def test_a_late_end_of_an_earlier_round_closes_nothing() -> None:
    assert view(node(0), node(1), world=world(4, 0, 1), closed=Closed("trainer-2", 3)).closed is None


def test_a_later_workload_with_the_same_name_starts_over_when_the_earlier_one_is_gone() -> None:
    for dead, expected in ((), Step.WAIT), ([1], Step.REOPEN):
        earlier = view(node(1), world=world(2, 1), dead=dead)
        step = next_step(earlier, node(0), "job-2", LIMITS, is_last_call_over=True, may_reopen=True)
        assert step is expected


def test_a_node_outside_of_pods_joins_the_rendezvous_of_any_workload() -> None:
    own = node(0, has_lease=True)
    for owner in OWNER, "":
        joined = View(State({"uid-0": own}, owner=owner), lambda _: Life.ALIVE)
        for mine in OWNER, "":
            assert next_step(joined, own, mine, LIMITS, is_last_call_over=True, may_reopen=True) is Step.WAIT


def test_a_node_writes_its_entry_again_if_another_one_replaced_it() -> None:
    assert step_of(view(node(0, after=1), node(1), world=world(2, 1)), node(0, after=2)) is Step.JOIN


def test_an_entry_is_an_array_that_begins_with_the_process() -> None:
    node = Node(process="p", name="w-0", host="10.0.0.1", key="uid-0")
    assert entry(node) == {"node.uid-0": '["p","w-0","10.0.0.1",0,0,null,"",0,false,""]'}


def test_data_that_are_not_a_rendezvous_are_an_error_with_the_key() -> None:
    with pytest.raises(ProtocolError, match=r"ConfigMap 'x' is not the state .* 'world' is invalid"):
        decode_state({"world": "{"}, "ConfigMap 'x'")
