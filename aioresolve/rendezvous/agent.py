"""One node of a rendezvous: it follows the state, comes to the barrier, and writes worlds that are due.

The rules are those of `protocol`. An `Agent` observes with one watch of the ConfigMap and one of the pods of
its workload, and writes its entry once for each round. The first node in the order of ranks writes the world;
the others do so only if it does not in time.
"""

from __future__ import annotations

import re
import secrets
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import anyio
from msgspec.structs import replace

from aioresolve._core.concurrency import gather
from aioresolve._core.deadline import Progress, within_deadline
from aioresolve._core.service_account import is_in_pod
from aioresolve.errors import ConfigurationError, IncompleteClusterError, ResolveError
from aioresolve.kubernetes.api.client import open_api
from aioresolve.kubernetes.api.queries import PodQuery
from aioresolve.kubernetes.auth import ExecutableLocation, ServerSearch, find_connection
from aioresolve.kubernetes.own_pod import own_address, request_own_pod, workload_of
from aioresolve.kubernetes.reflector import Reflector, WatchPolicy
from aioresolve.kubernetes.tasks.controller_kinds import index_label, run_of
from aioresolve.kubernetes.tasks.pods import not_running_reason, program_end

from .objects import (
    LABEL,
    LEASE_DURATION,
    REQUEST_TIMEOUT,
    ConfigMapQuery,
    LeaseQuery,
    Objects,
    Writer,
    latest_process,
    why_missing,
)
from .protocol import (
    Closed,
    Life,
    Node,
    Step,
    View,
    begun,
    closing,
    entry,
    next_step,
    opened,
    reopened,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.kubernetes.api.objects import Pod

    from .objects import ObjectStore
    from .protocol import Limits, World

TURN = 1.0
"""Seconds that each node waits for those before it to write the next world."""

MAX_TURNS = 30
"""The longest wait for other nodes, in turns; after that, all remaining nodes may write."""

LOOKUP_AFTER = 2.0
"""Seconds after which a node whose pod no watch has reported is looked up, and after which again."""

TICK = 1.0
"""Seconds between two evaluations of the clocks while a node waits. A change is evaluated at once."""

PAUSE, PAUSE_PER_NODE = 0.05, 0.001
"""Seconds between two evaluations while the others come to the barrier. A new world is evaluated at once."""

POLICY = WatchPolicy(watch_list=True, max_initial_silence=30.0)
"""How watches begin. When many nodes come together, the server takes long for the first response."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""The name of a ConfigMap: a DNS subdomain, RFC 1123."""


@dataclass(kw_only=True, eq=False, repr=False)
class ClosedError(ResolveError):
    """The rendezvous is closed.

    Attributes:
        is_spare: whether it was closed while the node waited for a place.
    """

    is_spare: bool = False


class Stopwatch:
    """Measures for how long a condition has held."""

    def __init__(self) -> None:
        self._since: float | None = None

    def seconds(self, holds: bool) -> float:
        """Return the seconds since the first of the last calls with True."""
        now = anyio.current_time()
        self._since = (self._since or now) if holds else None
        return now - (self._since or now)


class Round(NamedTuple):
    """The rank of this node in a round, and the nodes of the round."""

    rank: int
    world: World


class Agent:
    """A node of a rendezvous.

    It has to be used in one event loop: `run` in the background, and the other methods at the same time.

    Args:
        name: the name of the ConfigMap.
        limits: how many nodes a round has.
        namespace: its namespace; None for that of the pod, or of the kubeconfig's context.
        selector: the label selector of the pods; None for those of the controller of this pod.
        address: the address of this node for the others; None for that of its pod, or for the one from which
            it reaches the API server.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        *,
        namespace: str | None = None,
        selector: str | None = None,
        address: str | None = None,
    ) -> None:
        if not NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not a valid name of a ConfigMap",
                hint="Use at most 253 lower-case letters, digits, '-' and '.'.",
            )
        self.name = name
        self.limits = limits
        self._namespace = namespace
        self._selector = selector
        self._address = address
        self._stack = AsyncExitStack()
        self._changed = anyio.Event()
        self._has_run = False
        self._is_at_barrier = anyio.Event()  # from then on the objects are watched
        self._lookups: dict[str, float] = {}  # when the pod with this uid is looked up next
        self._error: ResolveError | None = None  # why the watches were given up
        self._reflectors: list[Reflector] = []
        self._renewal: anyio.CancelScope
        self.own: Node
        self._owners: list[dict[str, str]]
        self._objects: Objects

    # Connection

    async def open(self) -> None:
        """Connect to the API server, and find out where this process runs.

        Raises:
            ResolveError: the server or the pod was not found.
        """
        try:
            await within_deadline(REQUEST_TIMEOUT, f"the connection of rendezvous {self.name!r}", self._open)
        except BaseException:
            await self.aclose()
            raise

    async def _open(self, progress: Progress) -> None:
        is_pod = is_in_pod()
        location = ExecutableLocation.WITHIN_CLUSTER if is_pod else None
        connection = await find_connection(ServerSearch(location=location))
        self._api = await self._stack.enter_async_context(open_api(connection, max_concurrency=4))
        self._renewal = anyio.CancelScope()
        self._owner, self._owners = "", []  # the run of the workload, and its object
        if is_pod:
            pod = await request_own_pod(self._api, connection, progress)
            namespace = self._namespace or pod.metadata.namespace
            self.own = self._in_pod(pod)
        else:
            hint = "Pass the address of this machine: `--local-addr`."
            address = self._address or await own_address(connection.server, hint)
            namespace = self._namespace or connection.default_namespace()
            self.own = self._outside_of_pods(address)
        self._query = ConfigMapQuery("", namespace, name=self.name)
        leases = LeaseQuery(f"{LABEL}={self.name}", namespace)
        pods = None if self._selector is None else PodQuery(self._selector, namespace)
        self._objects = Objects(self._query, pods, leases)
        self._writer = Writer(self._api, self._objects, self._query, leases)

    def _in_pod(self, pod: Pod) -> Node:
        """Return the node that runs in this pod, and find out which pods the other nodes run in."""
        workload = workload_of(pod)
        if self._selector is None and workload is None:
            raise ConfigurationError(
                f"pod {pod.full_name!r} has no label that says which pods belong to the same job",
                hint="Pass the label selector of the pods: `--rdzv-conf selector=app=trainer`.",
            )
        address = self._address or pod.status.pod_ip
        if not address:
            hint = "Pass it: `--local-addr $(POD_IP)`."
            raise ConfigurationError(f"pod {pod.full_name!r} has no address", hint=hint)
        if workload is not None:
            self._selector = self._selector or workload.selector
        self._owner = run_of(pod)
        if (owner := pod.metadata.controller) is not None:
            names = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name}
            self._owners = [{**names, "uid": owner.uid}]
        label = index_label(pod)
        index = label.in_set or label.in_role
        return Node(
            key=pod.metadata.uid,
            process=secrets.token_hex(4),
            name=pod.metadata.name,
            host=address,
            index=index,
            since="" if index is not None else pod.metadata.creation_timestamp,
            restarts=latest_process(pod)[1],
        )

    def _outside_of_pods(self, address: str) -> Node:
        process, host = secrets.token_hex(4), socket.gethostname()
        lease, since = f"{self.name}-{process}", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Node(key=lease, process=process, name=host, host=address, since=since, has_lease=True)

    async def run(self) -> None:
        """Follow the objects until it is cancelled; the error of a watch that is given up ends all waits.

        The watches begin when this node has written its entry: if many nodes come together, most entries are
        in the first event of each watch, and not events of their own, of which each node gets all.
        """
        await self._is_at_barrier.wait()
        calls: list[Callable[[], Awaitable[None]]] = [
            partial(self._follow, self._objects.config_maps),
            self._follow_leases,
        ]
        if self._objects.workload is not None:
            calls.append(partial(self._follow, self._objects.workload))
        try:
            await gather(calls, limit=len(calls))
        except ResolveError as error:
            self._error = self._writer.explained(error)
            self._wake()

    async def _follow(self, store: ObjectStore) -> None:
        reflector = Reflector(self._api, store, self._wake, POLICY, timeout=REQUEST_TIMEOUT)
        self._reflectors.append(reflector)
        await reflector.run()

    async def _follow_leases(self) -> None:
        """Renew the Lease of this node, and watch all of them, as soon as a node has one."""
        while not (self.own.has_lease or any(node.has_lease for node in self._objects.state.nodes.values())):
            await self._next_change()
            await anyio.sleep(TICK)
        calls: list[Callable[[], Awaitable[None]]] = [partial(self._follow, self._objects.leases)]
        if self.own.has_lease:
            calls.append(self._renew_lease)
        await gather(calls, limit=len(calls))

    async def _renew_lease(self) -> None:
        with self._renewal:
            while True:
                with anyio.move_on_after(LEASE_DURATION / 2):
                    await self._writer.renew_lease(self.own.key, self.own.name, datetime.now(UTC))
                await anyio.sleep(LEASE_DURATION / 4)

    def __str__(self) -> str:
        return f"rendezvous {self.name!r}"

    async def aclose(self) -> None:
        await self._stack.aclose()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def _next_change(self) -> None:
        """Wait for a change; raise the error of the watches if there will be none."""
        if self._error is not None:
            raise self._error
        await self._changed.wait()

    # Observation

    @property
    def view(self) -> View:
        return View(self._objects.state, self._life)

    def _life(self, node: Node) -> Life:
        return Life.ALIVE if node.key == self.own.key else self._objects.life(node)

    @property
    def nodes_waiting(self) -> int:
        """For how many nodes this one has to leave its round and come to the barrier."""
        return self.view.nodes_waiting(self.own, self.limits)

    # Writes

    async def join(self, *, port: int, timeout: float, last_call: float) -> Round:
        """Come to the barrier, and return the next round that has this node.

        While the world is full, a spare node waits without a deadline.

        Args:
            port: the port of the store that this node offers.
            timeout: the seconds until a round has to begin.
            last_call: the seconds to wait for more nodes after the minimum is there.

        Raises:
            ClosedError: the rendezvous is closed.
            IncompleteClusterError: too few nodes came in time; it says why each pod is missing.
            ResolveError: the API server failed.
        """
        await self._writer.list_config_map()
        if self.own.has_lease:  # before the others learn of this node
            await self._writer.renew_lease(self.own.key, self.own.name, datetime.now(UTC))
        self.own = replace(self.own, port=port, after=self._objects.state.world.round)
        enough, due = Stopwatch(), Stopwatch()
        ends, was_spare = anyio.current_time() + timeout, False
        while anyio.current_time() < ends:
            self._update_restarts()
            view, world_text = self.view, self._objects.world_text
            is_over = enough.seconds(view.is_enough(self.limits)) >= last_call or not self._expected(view)
            step = next_step(
                *(view, self.own, self._owner, self.limits),
                is_last_call_over=is_over,
                may_reopen=not self._has_run,
            )
            if step is Step.ENTER:
                self._has_run = True
                return Round(view.state.world.nodes.index(self.own.identity), view.state.world)
            if step is Step.LEAVE:
                raise self._closed_error(view, is_spare=was_spare)
            may_write = self._may_write(step, view, due.seconds(step is Step.BEGIN))
            is_written = may_write and await self._write(step, view, is_last_call_over=is_over)
            self._is_at_barrier.set()
            if is_written or (step is Step.WAIT and await self._look_up(view)):
                continue
            if view.is_spare(self.own, self.limits):
                ends, was_spare = anyio.current_time() + timeout, True
            with anyio.move_on_after(min(TICK, ends - anyio.current_time())):
                await self._next_change()
                with anyio.move_on_after(PAUSE + PAUSE_PER_NODE * len(view.state.nodes)):
                    while self._objects.world_text == world_text:
                        await self._next_change()
        raise self._incomplete_error(timeout)

    def _may_write(self, step: Step, view: View, seconds: float) -> bool:
        """Return whether the node may write what a step requires, which has been due for so many seconds."""
        if step is Step.JOIN or not self._objects.is_listed:
            return step is Step.JOIN
        before = sum(node.order < self.own.order for node in view.waiting)
        is_turn = seconds >= TURN * min(before, MAX_TURNS)
        return step is Step.REOPEN or (step is Step.BEGIN and is_turn)

    def _update_restarts(self) -> None:
        """Correct the restarts of the container: its status is reported some time after it was restarted."""
        restarts = self._objects.restarts(self.own.key)
        if restarts > self.own.restarts:
            self.own = replace(self.own, restarts=restarts)

    async def _write(self, step: Step, view: View, *, is_last_call_over: bool) -> bool:
        """Write what a step requires; return whether it was written."""
        version = self._objects.version
        if version is None and await self._writer.create(opened(self.own, self._owner), self._owners):
            return True
        if step is Step.JOIN:  # also if another node was faster to create it
            return await self._writer.patch(entry(self.own))
        if step is Step.REOPEN:
            return await self._writer.patch(reopened(view.state, self.own, self._owner), version)
        world = view.next_world(self.limits, is_last_call_over=is_last_call_over)
        assert world is not None
        return await self._writer.patch(begun(world, view), version)

    async def close(self, *, failed: bool = False) -> None:
        """Close the rendezvous for all nodes."""
        await self._writer.list_config_map()
        if self.view.closed is None and self._objects.version is not None:
            closed = Closed(self.own.name, self._objects.state.world.round, failed)
            await self._writer.patch({**closing(closed), **without([self.own])})

    async def end(self, *, failed: bool) -> None:
        """Close the rendezvous if this node takes part in its round; otherwise only leave it."""
        if self._objects.state.has(self.own):
            await self.close(failed=failed)
        elif self._objects.state.nodes.get(self.own.key) == self.own:
            await self._writer.patch(without([self.own]))
        if self.own.has_lease:
            self._renewal.cancel()  # it would create the Lease again
            await self._writer.delete_lease(self.own.key)

    def _expected(self, view: View) -> bool:
        """Return whether a pod will most likely come to the barrier soon.

        Before the first round this is any pod. Later only one whose program runs: the others do not wait for
        a new pod, which gets its place in the round after.
        """
        waiting = {node.key for node in view.waiting}
        is_first = not view.state.world.nodes
        for pod in self._objects.pods.values():
            if pod.metadata.uid in waiting or latest_process(pod)[0] is not Life.ALIVE:
                continue
            runs = not_running_reason(pod, pod.status.pod_ip) is None and program_end(pod) is None
            if is_first or runs:
                return True
        return any(node.has_lease for node in view.state.nodes.values())

    async def _look_up(self, view: View) -> bool:
        """Look up pods that no watch reports: gone, or with other labels. Return whether one was."""
        if not self._objects.is_listed:
            return False
        watched, now = {pod.metadata.uid for pod in self._objects.pods.values()}, anyio.current_time()
        unwatched = [
            node
            for node in view.state.nodes.values()
            if not node.has_lease and node.key not in watched and view.lives(node)
        ]
        due = [node for node in unwatched if now >= self._lookups.setdefault(node.key, now + LOOKUP_AFTER)]
        for node in due:
            self._lookups[node.key] = now + LOOKUP_AFTER
            self._objects.record_pod(node.key, await self._writer.pod(node.name, node.key))
        return bool(due)

    # Errors

    def _closed_error(self, view: View, *, is_spare: bool) -> ClosedError:
        closed = view.closed
        if closed is None:
            return ClosedError(
                f"{self} is in use by another workload",
                hint="Give each job another --rdzv-id, or delete the ConfigMap if that workload is gone.",
            )
        how = "failed" if closed.failed else "ended"
        return ClosedError(
            f"{self} is closed: the training {how} on {closed.by!r} in round {closed.round}",
            hint="To train again, use another --rdzv-id, or delete the ConfigMap.",
            is_spare=is_spare,
        )

    def _incomplete_error(self, timeout: float) -> IncompleteClusterError:
        view = self.view
        waiting = {node.key: node.name for node in view.waiting}
        running = {
            node.key: f"{node.name} still runs round {view.state.world.round}" for node in view.running
        }
        missing = [
            f"{pod.full_name}: {why_missing(pod)}"
            for pod in self._objects.pods.values()
            if pod.metadata.uid not in {*waiting, *running} and pod.metadata.deletion_timestamp is None
        ]
        parts = [*running.values(), *missing]
        outages = [reflector.error.summary for reflector in self._reflectors if reflector.error]
        return IncompleteClusterError(
            f"no round of {self} has begun within {timeout:g} s, for which at least"
            f" {self.limits.min_nodes} nodes have to wait: "
            + "; ".join([f"{len(waiting)} wait ({', '.join(waiting.values()) or 'none'})", *parts, *outages]),
            hint="Repair the pods that are missing, lower the minimum of --nnodes, or raise join_timeout.",
            timeout=timeout,
        )
