"""Waiting until a cluster is complete, and its tasks are reachable."""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from aioresolve._core.concurrency import first_error, gather
from aioresolve._core.network import connect, system_message
from aioresolve.errors import ConfigurationError, FailedClusterError, Hint, IncompleteClusterError
from aioresolve.spec import Missing, Observation, split_host_port

from .completeness import Completeness, task_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from anyio.abc import TaskGroup

    from aioresolve.spec import ClusterState, Member

    from .completeness import Reachability, WaitCondition

logger = logging.getLogger("aioresolve.watch")

MAX_CONNECTIONS = 128
"""The number of tasks that are connected to at the same time."""

REACHABLE_WITHIN = 5.0
"""The time limit for each task, in seconds."""

RECHECK_INTERVAL = 1.0
"""Seconds after which unreachable tasks are tried again."""

MAX_RECHECKS = 10
"""Tasks are tried this often in a long `stable_for`, to load them little."""


async def wait_until_complete(
    observations: AsyncGenerator[Observation, None],
    condition: WaitCondition,
    *,
    timeout: float,
    source: str,
    known_jobs: Sequence[str] | None,
    explain: Callable[[Observation], Awaitable[Observation]],
    on_shortfall: Callable[[Completeness], None],
) -> ClusterState:
    """Return the state of the first observation that meets `condition`, for as long as that requires.

    Closes `observations`. `source` is what messages call their source, which has no other jobs than
    `known_jobs`. `explain` adds to the first observation with a state what does not exist, and `on_shortfall`
    is called with each new reason why the cluster is not complete yet.
    """
    _reject_impossible(condition, timeout=timeout, known_jobs=known_jobs)
    waiter = _Waiter(condition, source, explain, on_shortfall)
    try:
        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as group:
                group.start_soon(waiter.follow, observations, group)
                await waiter.proven.wait()
                group.cancel_scope.cancel()
            return waiter.state()
    except BaseExceptionGroup as group_error:
        error = first_error(group_error)
        raise error from error.__cause__
    raise IncompleteClusterError(
        f"the cluster of {waiter.source} was not complete within {timeout:g} s: {waiter.lacking}",
        hint="Check the missing tasks, raise {timeout}, or wait for fewer tasks.",
        timeout=timeout,
        **waiter.lacking.attributes,
    )


def _reject_impossible(condition: WaitCondition, *, timeout: float, known_jobs: Sequence[str] | None) -> None:
    if condition.stable_for >= timeout:
        raise ConfigurationError(
            f"{condition.stable_for:g} s is not shorter than the timeout of {timeout:g} s",
            argument="stable_for",
            hint="Raise {timeout}.",
        )
    unknown = [] if known_jobs is None else [job for job in condition.jobs or () if job not in known_jobs]
    if unknown:
        raise ConfigurationError(
            f"no job is named {unknown[0]!r}",
            argument="jobs",
            hint=Hint("The jobs are {known}.", {"known": ", ".join(map(repr, known_jobs or ()))}),
        )


class _Waiter:
    """One call of `wait_until_complete`.

    `follow` compares each observation with the condition. While the cluster is complete, it runs `_prove`,
    which shows that the same members are reachable and stable.
    """

    def __init__(
        self,
        condition: WaitCondition,
        source: str,
        explain: Callable[[Observation], Awaitable[Observation]],
        on_shortfall: Callable[[Completeness], None],
    ) -> None:
        self.source = source
        self._explain = explain
        self._unmatched: tuple[Missing, ...] | None = None  # None until it is requested
        self._explained = Counter[str]()  # the tasks of each job at that time
        self.proven = anyio.Event()
        self._condition = condition
        self._on_shortfall = on_shortfall
        self.lacking = self._complete = Completeness(Observation(None), condition)
        self._members: frozenset[Member] | None = None  # those that are being proven
        self._proof = anyio.CancelScope()
        self._replaced = anyio.Event()  # set when `_complete` is, with the same members

    async def follow(self, observations: AsyncGenerator[Observation, None], group: TaskGroup) -> None:
        """Compare each observation with the condition, until `proven` is set."""
        async with aclosing(observations):
            async for observation in observations:
                found = self._compare(observation)
                if not found.is_complete:
                    self._proof.cancel()
                    self._members = None
                    self._record(found)
                    if found.is_final:
                        raise FailedClusterError(
                            f"the cluster of {self.source} cannot become complete: {found}",
                            hint=found.hint,
                            **found.attributes,
                        )
                    if self._unmatched is None and observation.state is not None:
                        self._unmatched = ()
                        group.start_soon(self._find_unmatched, observation)
                    continue
                self._complete = found
                self._replaced.set()
                members = frozenset(found.members)
                if members != self._members:
                    self._proof.cancel()
                    self._members, self._proof = members, anyio.CancelScope()
                    group.start_soon(self._prove, self._proof)

    def _compare(self, observation: Observation) -> Completeness:
        """Compare an observation with the condition, together with the names that are still unmatched."""
        counts, names = _counts(observation), {one.name for one in observation.absent}
        unmatched = [
            one
            for one in self._unmatched or ()
            if counts[one.job] <= self._explained[one.job] or one.name in names
        ]
        return Completeness(replace(observation, unmatched=tuple(unmatched)), self._condition)

    async def _find_unmatched(self, observation: Observation) -> None:
        self._explained = _counts(observation)
        self._unmatched = (await self._explain(observation)).unmatched
        if self._unmatched and self._members is None:
            self._record(self._compare(self.lacking.observation))

    def state(self) -> ClusterState:
        """Return the state of the cluster that is proven, and log where the required numbers come from."""
        for job, source in self._complete.sources.items():
            number = self._complete.least[job]
            logger.info("%s has all %d tasks of job %r (%s)", self.source, number, job, source)
        state = self._complete.observation.state
        assert state is not None
        return state

    async def _prove(self, scope: anyio.CancelScope) -> None:
        """Set `proven` once the tasks have been reachable at each check for `stable_for` seconds.

        A polled source has to be polled at the end of that time, or later: its last observation says nothing
        about the time since then.
        """
        with scope:
            stable_for = self._condition.stable_for
            reachable_since: float | None = None
            self._record_unproven()
            while True:
                if not await self._check_reachable():
                    reachable_since = None
                    await anyio.sleep(RECHECK_INTERVAL)
                    continue
                now = anyio.current_time()
                if reachable_since is None:
                    reachable_since = now
                    self._record_unproven()
                end = reachable_since + stable_for
                polled_at = self._complete.observation.polled_at
                if now < end:
                    await anyio.sleep(min(end - now, max(RECHECK_INTERVAL, stable_for / MAX_RECHECKS)))
                elif stable_for and polled_at is not None and polled_at < end:
                    self._replaced = anyio.Event()
                    await self._replaced.wait()
                else:
                    self.proven.set()
                    return

    def _record_unproven(self) -> None:
        """Record that the cluster is complete, but not stable or reachable as far as known."""
        stable_for = self._condition.stable_for
        reason = f"not stable for {stable_for:g} s yet" if stable_for else "not known to be reachable yet"
        self._record(self._complete.without([Missing("", "the tasks", reason)]))

    async def _check_reachable(self) -> bool:
        """Return whether all tasks are reachable, if they must be; if not, record which are not."""
        if self._condition.reachable is None:
            return True
        members = self._complete.members
        addresses = list(dict.fromkeys(one.endpoint.address for one in members))
        reasons = await find_unreachable(addresses, self._condition.reachable)
        missing = [
            Missing(one.job, task_name(one), reason)
            for one in members
            if (reason := reasons.get(one.endpoint.address)) is not None
        ]
        if missing:
            self._record(self._complete.without(missing))
        return not missing

    def _record(self, lacking: Completeness) -> None:
        self.lacking = lacking
        self._on_shortfall(lacking)


def _counts(observation: Observation) -> Counter[str]:
    """Return the number of the members and absent tasks of each job."""
    counts = Counter(one.job for one in observation.absent)
    if observation.state is not None:
        counts.update(one.job for one in observation.state.members)
    return counts


async def find_unreachable(
    addresses: Sequence[str], reachability: Reachability, *, timeout: float = REACHABLE_WITHIN
) -> dict[str, str]:
    """Return each address that is not reachable within `timeout` seconds to the reason."""
    if reachability == "probe":
        # Imported here because it loads grpc, which only probing needs.
        from aioresolve.probe import probe_workers

        probes = zip(addresses, await probe_workers(addresses, worker_timeout=timeout), strict=True)
        return {address: probe.error.summary for address, probe in probes if probe.error is not None}
    calls = [partial(_connect_error, address, timeout) for address in addresses]
    reasons = await gather(calls, limit=MAX_CONNECTIONS)
    return {address: reason for address, reason in zip(addresses, reasons, strict=True) if reason is not None}


async def _connect_error(address: str, timeout: float) -> str | None:
    """Return why no TCP connection to `address` can be opened within `timeout` seconds; None if one can."""
    with anyio.move_on_after(timeout):
        try:
            connection = await connect(*split_host_port(address))
        except (OSError, ValueError) as error:
            return f"no TCP connection to {address}: {system_message(error)}"
        await connection.aclose()
        return None
    return f"no TCP connection to {address} within {timeout:.3g} s"
