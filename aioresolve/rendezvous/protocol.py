"""The rules of a rendezvous: which nodes form the next round, and when a round has ended. Pure functions.

A *node* is one process that takes part, an agent of torchrun. The state of a rendezvous is the data of one
ConfigMap:

- `node.KEY`: an entry of each node, which only that node writes: when it comes to the barrier. Entries of
  different nodes do not conflict, so they are written without comparing versions.
- `world`: the nodes of the current round in the order of their ranks. One of the waiting nodes writes it, and
  only if no other node has changed the object since it read it (compare-and-swap by `resourceVersion`).
  A round has therefore one world.
- `closed`: the node that ended the rendezvous, and the round. It ends no later round.
- `owner`: the workload whose rendezvous this is, if it is one of pods. A later workload with the same name
  starts over.

A node waits at the barrier if its entry was written for a later round than the current one. The next world is
due when

- no node of the current world still runs: each waits at the barrier, has left, or is dead;
- at least `min_nodes` wait; and
- `max_nodes` wait, or no other node is expected, or those that are did not come in time (last call).

No rule compares clocks of different machines, and none needs the newest observation: a node that acts on an
old one writes a world that the server rejects, or an entry that it writes again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from aioresolve.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T")

NODE_PREFIX = "node."
"""The prefix of the keys of entries in the data of the object."""


class Life(enum.Enum):
    """Whether the process of a node lives."""

    ALIVE = "alive"
    UNKNOWN = "unknown"
    """It has not been looked up yet. It counts as alive."""
    DEAD = "dead"
    DONE = "done"
    """It has ended with exit code 0: the training is complete."""


class Node(msgspec.Struct, frozen=True, array_like=True):
    """One process, as it describes itself.

    The entry of a node is a JSON array of these fields. With names it would be twice as long, and each change
    of one entry is sent to every node together with all others.

    Attributes:
        process: identifies the process: the next one in the same pod has another value.
        name: the name of its pod, or of its host outside of pods.
        host: the address at which the other nodes reach it.
        port: the port of the store that it offers for the next round.
        after: the number of the round that was current when it came to the barrier.
        index: the position that its controller gave it; None without one.
        since: when its pod was created (RFC 3339), which orders nodes without an index.
        restarts: how often the container had been restarted when the process started.
        has_lease: whether it runs outside of pods, so that a Lease shows whether it lives.
        key: identifies its place: the uid of its pod, or the name of its Lease outside of pods. It is the key
            of its entry, and not repeated in there.
    """

    process: str
    name: str
    host: str
    port: int = 0
    after: int = 0
    index: tuple[int, ...] | None = None
    since: str = ""
    restarts: int = 0
    has_lease: bool = False
    key: str = ""

    @property
    def identity(self) -> str:
        """What distinguishes it from all other nodes, including earlier processes in its pod."""
        return f"{self.key}/{self.process}"

    @property
    def order(self) -> tuple[Any, ...]:
        """The sort key of ranks: the index of the controller, then age."""
        return self.index is None, self.index or (), self.since, self.key


class World(msgspec.Struct, frozen=True, omit_defaults=True):
    """The nodes of one round. Before the first round it is empty.

    Attributes:
        round: the number of the round, from 1; 0 before the first one.
        host: the address of the node with rank 0.
        port: the port of its store.
        nodes: the identities of the nodes in the order of their ranks.
    """

    round: int = 0
    host: str = ""
    port: int = 0
    nodes: tuple[str, ...] = ()


BEFORE_ROUND_1 = World()


class Closed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node that closed the rendezvous, and the round. After a failure, the rendezvous may open again."""

    by: str
    round: int
    failed: bool = False


@dataclass(frozen=True)
class State:
    """What the object says: see the module."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    world: World = BEFORE_ROUND_1
    closed: Closed | None = None
    owner: str = ""

    @cached_property
    def _identities(self) -> frozenset[str]:
        return frozenset(self.world.nodes)

    def has(self, node: Node) -> bool:
        """Whether the node belongs to the current world."""
        return node.identity in self._identities

    def waits(self, node: Node) -> bool:
        """Whether this entry is that of a node at the barrier."""
        return node.after >= self.world.round or not self.has(node)

    @cached_property
    def members(self) -> list[Node]:
        """The nodes of the current world that have not left.

        A node has left if its entry was removed, or is that of the next process in its pod.
        """
        return [node for node in self.nodes.values() if self.has(node)]


class Limits(msgspec.Struct, frozen=True):
    min_nodes: int
    max_nodes: int


@dataclass(frozen=True)
class View:
    """A state, and which of its nodes live."""

    state: State
    life: Callable[[Node], Life]

    def lives(self, node: Node) -> bool:
        """Whether the process of the node may still run."""
        return self.life(node) in (Life.ALIVE, Life.UNKNOWN)

    @cached_property
    def waiting(self) -> list[Node]:
        """The living nodes at the barrier, in order."""
        found = (node for node in self.state.nodes.values() if self.state.waits(node) and self.lives(node))
        return sorted(found, key=lambda node: node.order)

    @cached_property
    def running(self) -> list[Node]:
        """The living nodes of the current world that do not wait at the barrier."""
        return [node for node in self.state.members if self.lives(node) and not self.state.waits(node)]

    @property
    def closed(self) -> Closed | None:
        """The node that closed the rendezvous. A member that ended with exit code 0 closed it too."""
        closed, world = self.state.closed, self.state.world
        if closed is not None and closed.round >= world.round:
            return closed
        done = [node.name for node in self.state.members if self.life(node) is Life.DONE]
        return Closed(done[0], world.round) if done else None

    def rank(self, own: Node) -> int | None:
        """Return the rank of the node in the world that it waited for; None until that begins."""
        world = self.state.world
        if world.round > own.after and self.state.has(own):
            return world.nodes.index(own.identity)
        return None

    def is_spare(self, own: Node, limits: Limits) -> bool:
        """Whether the current world is complete without the node."""
        return not self.state.has(own) and len(self.running) >= limits.max_nodes

    def is_enough(self, limits: Limits) -> bool:
        """Whether a world may begin: the minimum waits, and no node of the previous world still runs."""
        return len(self.waiting) >= limits.min_nodes and not self.running

    def next_world(self, limits: Limits, *, is_last_call_over: bool) -> World | None:
        """Return the world that is due now; None if none is.

        If more than `max_nodes` wait, the nodes of the previous world come first.
        """
        waiting = self.waiting
        if not self.is_enough(limits) or (len(waiting) < limits.max_nodes and not is_last_call_over):
            return None
        chosen = sorted(waiting, key=lambda node: (not self.state.has(node), node.order))
        ranked = sorted(chosen[: limits.max_nodes], key=lambda node: node.order)
        identities = tuple(node.identity for node in ranked)
        return World(self.state.world.round + 1, ranked[0].host, ranked[0].port, identities)

    def nodes_waiting(self, own: Node, limits: Limits) -> int:
        """Return for how many nodes a running node has to come to the barrier again.

        A member that was lost counts: the round cannot continue without it. A new node counts only if the
        world has a place for it.
        """
        if self.closed is not None:
            return 0
        if not self.state.has(own):
            return 1  # the others have gone on without this node
        size, running = len(self.state.world.nodes), len(self.running)
        new = [node for node in self.waiting if not self.state.has(node)]
        return size - running + min(len(new), max(0, limits.max_nodes - running))


class Step(enum.Enum):
    """What a node at the barrier has to do next."""

    ENTER = "enter the round"
    JOIN = "write its entry"
    BEGIN = "write the next world"
    REOPEN = "start the rendezvous over"
    LEAVE = "give up, because the rendezvous is closed"
    WAIT = "wait for a change"


def next_step(
    view: View, own: Node, owner: str, limits: Limits, *, is_last_call_over: bool, may_reopen: bool
) -> Step:
    """Return what the node has to do, given what it observes.

    Args:
        view: the latest observation, which may be old.
        own: the node, as it has written its entry, or is going to.
        owner: the workload of the node; empty outside of pods, where it is not known.
        limits: how many nodes a world has.
        is_last_call_over: whether nodes that have not come are not waited for any longer.
        may_reopen: whether the node has not taken part in any round yet.
    """
    state, closed = view.state, view.closed
    if view.rank(own) is not None:
        return Step.ENTER if closed is None else Step.LEAVE
    is_of_another = "" not in (owner, state.owner) and state.owner != owner
    if may_reopen and (is_of_another or (closed is not None and closed.failed)):
        # Nodes of a rendezvous that has failed are about to end.
        others = (node for node in state.nodes.values() if node.key != own.key)
        return Step.WAIT if any(map(view.lives, others)) else Step.REOPEN
    if closed is not None or is_of_another:
        return Step.LEAVE
    if state.nodes.get(own.key) != own:
        return Step.JOIN
    world = view.next_world(limits, is_last_call_over=is_last_call_over)
    return Step.WAIT if world is None else Step.BEGIN


def reopened(state: State, own: Node, owner: str) -> dict[str, str | None]:
    """Return the change of the data that starts over. Rounds are still counted up."""
    return {
        **without(state.nodes.values()),
        **entry(own),
        **_text("world", World(state.world.round + 1)),
        "closed": None,
        "owner": owner,
    }


def opened(own: Node, owner: str) -> dict[str, str]:
    return {**entry(own), "owner": owner}


def entry(node: Node) -> dict[str, str]:
    return _text(NODE_PREFIX + node.key, replace(node, key=""))


def without(nodes: Iterable[Node]) -> dict[str, None]:
    """Return the change of the data that removes the entries of nodes."""
    return {NODE_PREFIX + node.key: None for node in nodes}


def begun(world: World, view: View) -> dict[str, str | None]:
    """Return the change of the data that begins a round. Entries of dead nodes are removed."""
    dead = [node for node in view.state.nodes.values() if not view.lives(node)]
    return {**without(dead), **_text("world", world)}


def closing(closed: Closed) -> dict[str, str]:
    return _text("closed", closed)


def decode_state(data: Mapping[str, str], where: str) -> State:
    """Return the state that the data of the object describe.

    Raises:
        ProtocolError: the data are not those of a rendezvous.
    """
    nodes = [_entry(key, text, where) for key, text in data.items() if key.startswith(NODE_PREFIX)]
    return State(
        nodes={node.key: node for node in nodes},
        world=_decoded("world", data["world"], World, where) if "world" in data else BEFORE_ROUND_1,
        closed=_decoded("closed", data["closed"], Closed, where) if "closed" in data else None,
        owner=data.get("owner", ""),
    )


def _text(key: str, value: msgspec.Struct) -> dict[str, str]:
    return {key: msgspec.json.encode(value).decode()}


@lru_cache(maxsize=4096)  # a new state has a new entry of one node, and the old ones of all others
def _entry(key: str, text: str, where: str) -> Node:
    return replace(_decoded(key, text, Node, where), key=key.removeprefix(NODE_PREFIX))


def _decoded(key: str, text: str, kind: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise ProtocolError(
            f"{where} is not the state of a rendezvous: its {key!r} is invalid ({error})",
            hint="Delete the ConfigMap if nothing else uses it, or give the rendezvous another name.",
        ) from error
