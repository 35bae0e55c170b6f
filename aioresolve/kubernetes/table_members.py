"""The members of a cluster from rows of a Table, many times cheaper than whole pods.

A row shows the address of a pod, but not always whether it is a member. Such pods are read in full.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import compress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aioresolve._core.concurrency import gather
from aioresolve._core.natural_order import in_order_of_names
from aioresolve.errors import APIError
from aioresolve.spec import ClusterSpec, ClusterState, Endpoint, host_port

from .api.errors import is_expired
from .api.queries import NOT_MISSING, NOT_RUNNING, RUNNING
from .tasks.pods import RUNNING as RUNNING_STATUS
from .tasks.pods import membership, not_ready_reason, raise_not_running

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from aioresolve._core.deadline import Progress

    from .api.client import ObjectAPI
    from .api.objects import Pod, Rows
    from .cluster_cache import Selection

MAX_NAMED_REQUESTS = 8
"""The maximum number of pods with inconclusive rows that are requested by name; with more, all are listed."""

IP_CHARACTERS = b"0123456789abcdefABCDEF.:"


@dataclass(frozen=True, slots=True)
class TableMembers:
    """Reads the members.

    Attributes:
        with_names: whether they have names, nodes and statuses; otherwise only addresses.
        limit: the maximum number of concurrent requests.
    """

    api: ObjectAPI
    selection: Selection
    progress: Progress
    with_names: bool
    limit: int

    async def read(self) -> ClusterState | None:
        """Return the cluster, in the order of names; None if rows are not sufficient.

        Raises:
            PodNotRunningError: pods must run and do not.
        """
        selected = self.selection
        queries = selected.queries(self.api.namespace)
        results = await gather([partial(self._list, one) for one in queries.values()], limit=self.limit)
        listed = dict(zip(queries, results, strict=True))
        if selected.not_running == "raise":
            faults = {name: why for each in results for name, why in each.not_running.items()}
            raise_not_running(faults, selected.store_type.noun, selected.store_type.required_state)
        elif any(each.has_succeeded for each in results):
            return None  # which tasks are done and keep their indices, only whole pods show
        jobs: dict[str, list[Any]] = {}
        for job, selectors in selected.jobs.items():
            jobs[job] = []
            for selector in selectors:
                jobs[job] += in_order_of_names(listed[selector].names, listed[selector].found)
        now = datetime.now(UTC)
        if self.with_names:
            return ClusterState.of(jobs, observed_at=now)
        return ClusterState.from_spec(ClusterSpec(jobs), observed_at=now)

    async def _list(self, query: Any) -> ListedMembers:
        """Return the members among the pods that `query` matches, in the cheapest way that is exact."""
        members = await self._list_as_rows(query) if self.api.has_tables else None
        if members is None:
            members = ListedMembers(self.with_names)
            listed = await self.api.objects(query, self.progress)
            members.add_pods(listed.items, self.selection.address, self.selection.port)
        return members

    async def _list_as_rows(self, query: Any) -> ListedMembers | None:
        """List the pods as rows, and read those whose rows prove nothing in full, as of the same version.

        Return None if rows do not suffice: the server splits them or does not support them, many are
        inconclusive, or the server no longer has their version.
        """
        skips = self.selection.not_running == "skip"
        # With names and nodes, a state also says why a pod is not ready, which only the whole pod shows.
        listed_query = replace(query, phases=NOT_MISSING) if skips else query
        rows = await self.api.rows(listed_query, self.progress, with_nodes=self.with_names)
        if rows is None:
            return None
        # Names are counted, because in all namespaces several pods may have the same name.
        unread = Counter(compress(rows.names, map(operator.not_, rows.proven)))
        at_version = partial(replace, version=rows.version)
        try:
            if len(unread) > MAX_NAMED_REQUESTS and not skips:
                others = await self.api.objects(at_version(query, phases=NOT_RUNNING), self.progress)
                listed = [others]
                unread -= Counter(pod.metadata.name for pod in others.items)
                by_name = replace(query, phases=RUNNING)
            else:
                listed, by_name = [], query
            if len(unread) > MAX_NAMED_REQUESTS:
                return None
            listed += await gather(
                [partial(self.api.objects, at_version(by_name, name=name), self.progress) for name in unread],
                limit=self.limit,
            )
        except APIError as error:
            if not is_expired(error):
                raise
            return None
        if any(each.version != rows.version for each in listed):  # not every server supports exact versions
            return None
        members = ListedMembers(self.with_names)
        members.add_rows(rows, unread, self.selection.port)
        for each in listed:
            members.add_pods(each.items, self.selection.address, self.selection.port)
        return members


@dataclass(slots=True)
class ListedMembers:
    """The members among the pods that one list returned.

    Attributes:
        with_names: whether they have names, nodes and statuses.
        names: the name of each member, in the order of the server.
        found: each member in the same order: an `Endpoint`, or only its address.
        not_running: `namespace/name` of each pod that is not running, with the reason.
        has_succeeded: whether a pod has ended with success.
    """

    with_names: bool
    names: list[str] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)
    not_running: dict[str, str] = field(default_factory=dict)
    has_succeeded: bool = False

    def add_rows(self, rows: Rows, unread: Container[str], port: int) -> None:
        """Add the members that `rows` proves, except for the names that are read in full."""
        proven = [is_one and name not in unread for name, is_one in zip(rows.names, rows.proven, strict=True)]
        names, ips = list(compress(rows.names, proven)), list(compress(rows.ips, proven))
        # One check for thousands of addresses, which are in the format of the kubelet.
        if "".join(ips).encode(errors="replace").translate(None, IP_CHARACTERS):
            for ip in ips:
                host_port(ip, port)  # raises an error for a value that is not a host
        end = f":{port}"
        addresses = [f"[{ip}]{end}" if ":" in ip else ip + end for ip in ips]
        self.names += names
        if not self.with_names:
            self.found += addresses
            return
        self.found += [  # all of these are ready
            Endpoint(address, name=name, node=node, status=RUNNING_STATUS)
            for address, name, node in zip(addresses, names, compress(rows.nodes, proven), strict=True)
        ]

    def add_pods(self, pods: Iterable[Pod], choice: str | Callable[[Pod], Any], port: int) -> None:
        """Add the members among `pods`; for `choice` and `port` see `pod_address`.

        Raises:
            ConfigurationError: a running pod cannot have such an address.
        """
        for pod in pods:
            address, fault = membership(pod, choice, port)
            self.has_succeeded |= pod.status.phase == "Succeeded"
            if fault is not None:
                self.not_running[pod.full_name] = fault
            if address is None:
                continue
            self.names.append(pod.metadata.name)
            status = not_ready_reason(pod) or RUNNING_STATUS
            whole = Endpoint(address, name=pod.metadata.name, node=pod.spec.node_name, status=status)
            self.found.append(whole if self.with_names else address)
