"""The checks of a `KubernetesClusterResolver` for `aioresolve.doctor`, from the kubeconfig to the tasks."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from aioresolve._core.concurrency import gather
from aioresolve.errors import ForbiddenError, Hint, PodIndexError, ResolveError
from aioresolve.resolver.checks import (
    Finding,
    FoundTasks,
    PlannedCheck,
    cluster_checks,
    failed,
    some,
    task_checks,
)

from .api.queries import CONTEXT_NAMESPACE
from .api.transport import Request
from .existing import explain_empty
from .own_pod import workload_of
from .server_checks import AUTHENTICATION, ServerChecks
from .tasks.accelerators import ClaimQuery, read_devices
from .tasks.controllers import Controllers
from .tasks.order_by import ALL_NODES, NODE_LABEL
from .tasks.pods import HAVE_ENDED, any_has_ended, membership, not_ready_reason, not_running_reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.spec import ClusterState, Endpoint, Observation, Task

    from .api.client import Found
    from .api.objects import Pod
    from .api.queries import Query
    from .auth import Connection
    from .cluster_cache import ClusterCache
    from .selection import Selection

MAX_SERVICES = 16
"""The number of Services that are requested."""

UNREACHABLE = Hint(
    "Check that the program in each pod runs and listens on that port, or pass {tf_server_port}. Pods can"
    " usually be reached only from inside the cluster: run this in a pod there. Check its NetworkPolicies."
)
UNKNOWN_DEVICES = Hint("`Endpoint.accelerators` of these pods has only what their limits declare.")


@asynccontextmanager
async def open_checks(
    pods: Selection,
    find_connection: Callable[[], Awaitable[Connection]],
    observe: Callable[[Progress], Awaitable[Observation]],
    this_task: Callable[[ClusterState], Awaitable[Task]],
) -> AsyncIterator[list[PlannedCheck]]:
    """Yield the checks, which share one client inside the block.

    Args:
        pods: the pods of the resolver.
        find_connection: returns the API server and the credentials.
        observe: returns the cluster as the resolver orders it.
        this_task: returns which task this process is.
    """
    server = ServerChecks(find_connection)
    checks = _PodChecks(pods, server, observe)
    plan = server.plan()

    def add(name: str, namespace: str | None, run: Callable[..., Awaitable[Finding]], *after: str) -> str:
        name = name if len(pods.namespaces) == 1 else f"{name} ({namespace})"
        plan.append(PlannedCheck(name, run, after))
        return name

    def permissions(verb: str) -> dict[str | None, str]:
        what, check = f"{verb} {'endpointslices' if pods.reads_slices else 'pods'}", checks.check_permission
        return {each: add(what, each, partial(check, verb, each), AUTHENTICATION) for each in pods.namespaces}

    lists, _ = permissions("list"), permissions("watch")
    if any(key.startswith(NODE_LABEL) for key in pods.order_by):
        may_list = partial(server.check_permission, "list", ALL_NODES)
        plan.append(PlannedCheck("list nodes", lambda _: may_list(), (AUTHENTICATION,)))
    if pods.reads_slices:
        plan += cluster_checks(observe, this_task, after=tuple(lists.values()), remedy=UNREACHABLE)
    else:
        found: dict[str, list[str]] = {}
        for selector in dict.fromkeys(chain.from_iterable(pods.jobs.values())):
            name, check = (
                f"pods with {selector}" if selector else "pods",
                partial(checks.check_pods, selector),
            )
            found[selector] = [add(name, each, partial(check, each), lists[each]) for each in pods.namespaces]
        for job, selectors in pods.jobs.items():
            of_job = tuple(chain.from_iterable(found[selector] for selector in selectors))
            plan.append(PlannedCheck(f"indices of {job}", partial(checks.check_indices, job), of_job))
        every = tuple(chain.from_iterable(found.values()))
        plan += [
            PlannedCheck("tasks", checks.check_tasks, every),
            PlannedCheck("size", checks.check_size, ("tasks",)),
            PlannedCheck("ResourceClaims", checks.check_claims, ("tasks",)),
            PlannedCheck("headless Service", checks.check_services, every),
            *task_checks(checks.tasks, this_task, after=("tasks",), remedy=UNREACHABLE),
        ]
    try:
        yield plan
    finally:
        await server.aclose()


@dataclass
class _PodChecks:
    """The checks of the pods, and what they have found so far for one another."""

    pods: Selection
    server: ServerChecks
    observe: Callable[[Progress], Awaitable[Observation]]
    tasks: FoundTasks = field(default_factory=FoundTasks)
    found: dict[Query[Any], Found[Pod]] = field(default_factory=dict)

    @property
    def _default(self) -> str:
        """The namespace of the context; empty if it is not used, because it may be invalid."""
        is_used = CONTEXT_NAMESPACE in self.pods.namespaces
        return self.server.connection.default_namespace() if is_used else ""

    async def check_permission(self, verb: str, namespace: str | None, _: Progress) -> Finding:
        """Return whether the user may list or watch what the resolver reads."""
        selector = next(iter(self.pods.jobs.values()))[0] if self.pods.reads_slices else ""
        query = self.pods.query(selector, namespace, self._default)
        return await self.server.check_permission(verb, query)

    async def check_pods(self, selector: str, namespace: str | None, progress: Progress) -> Finding:
        query = self.pods.query(selector, namespace, self._default)
        api = self.server.objects
        self.found[query] = listed = await api.objects(query, progress)
        if listed.items:
            return self._describe_pods(query, listed.items)
        hint = Hint("Correct the selector, or select another {namespace} or {context}.")
        return Finding(await explain_empty(api, query), "failed", hint)

    def _describe_pods(self, query: Query[Any], pods: Sequence[Pod]) -> Finding:
        absent: dict[str, str] = {}
        unready: dict[str, str] = {}
        faults: list[str] = []
        for pod in pods:
            address, fault = membership(pod, self.pods.address, self.pods.port)
            if fault is not None:
                absent[pod.full_name] = fault
                faults.append(pod.full_name)
            elif address is None:
                is_deleted = pod.metadata.deletion_timestamp is not None
                absent[pod.full_name] = "being deleted" if is_deleted else not_running_reason(pod, None) or ""
            elif reason := not_ready_reason(pod):
                unready[pod.full_name] = reason
        running = f"{len(pods) - len(absent)} running"
        parts = [f"{running}, {len(unready)} of them not ready" if unready else running]
        parts += _grouped({**absent, **unready})
        noun = "pod" if len(pods) == 1 else "pods"
        found = f"{len(pods)} {noun} in {query.where}: {'; '.join(parts)}"
        if not faults and not unready:
            return Finding(found)
        namespace, _, name = [*faults, *unready][0].partition("/")
        describe = f"Run `kubectl describe pod -n {namespace} {name}`"
        if not faults or self.pods.not_running != "raise":
            return Finding(found, "warning", Hint(f"{describe}, or wait until they are ready."))
        if any_has_ended(absent[each] for each in faults):
            return Finding(found, "failed", Hint(f"{describe}. {HAVE_ENDED.text}"))
        remedy = "or wait until they run, or pass {not_running=skip} to leave them out."
        return Finding(found, "failed", Hint(f"{describe}, {remedy}"))

    async def check_indices(self, job: str, _: Progress) -> Finding:
        queries = replace(self.pods, jobs={job: self.pods.jobs[job]}).all_queries(self._default)
        pods = [pod for query in queries for pod in self.found[query].items]
        if not pods:
            return Finding("the job has no pods", "skipped")
        workloads = list(dict.fromkeys(str(workload) for pod in pods if (workload := workload_of(pod))))
        of = f" ({some(workloads)})" if workloads else ""
        try:
            state = self._cache([job], ["index"]).state(datetime.now(UTC))
        except PodIndexError as error:
            members = self._cache([job]).state(datetime.now(UTC)).members
            if "index" in self.pods.order_by:
                return Finding(f"{error.summary}{of}", "failed", error.hint)
            if len(error.unindexed) == len(members):
                return Finding(f"the pods have no index{of}; their tasks are in the order of their names")
            hint = Hint("Wait until every pod exists, or narrow the selector to one controller.")
            return Finding(f"{error.summary}{of}", "warning", hint)
        indices = state.spec.task_indices(job)
        shown = f"{indices[0]} to {indices[-1]}" if indices else "none"
        return Finding(f"{shown}, without gaps{of}")

    async def check_tasks(self, progress: Progress) -> Finding:
        # By name: pods without a valid index have addresses too.
        self.tasks.state = self._cache(self.pods.jobs).state(datetime.now(UTC))
        if "name" not in self.pods.order_by:
            # The check of the indices, or of the permission to list nodes, reports an error.
            with suppress(ResolveError):
                self.tasks.state = (await self.observe(progress)).state or self.tasks.state
        return Finding(self.tasks.counts)

    async def check_size(self, _: Progress) -> Finding:
        controllers = Controllers()
        cache = self._cache(self.pods.jobs, controllers=controllers)
        while unread := cache.unread_controllers:
            await controllers.read(self.server.objects, unread)
        expected = cache.observation(datetime.now(UTC)).expected
        if not expected:
            unknown = "no controller of the pods states how many there should be, or it may not be read"
            return Finding(unknown, "skipped")
        spec = self.tasks.state.spec
        wanted = {job: size.number - size.done for job, size in expected.items()}
        found = ", ".join(
            f"{job}: {spec.num_tasks(job)} of {number} ({expected[job].source})"
            for job, number in wanted.items()
        )
        if all(spec.num_tasks(job) >= number for job, number in wanted.items()):
            return Finding(found)
        return Finding(found, "warning", Hint("Wait until all pods run: `aioresolve wait`."))

    async def check_claims(self, _: Progress) -> Finding:
        cache = self._cache(self.pods.jobs)
        pods = cache.with_claims
        if not pods:
            return Finding("no running pod has one")
        for namespace in list(dict.fromkeys(pod.namespace for pod in pods))[:MAX_SERVICES]:
            try:
                await self.server.check_permission("list", ClaimQuery("", namespace))
            except ForbiddenError as error:  # they only have the number of devices
                return failed(error)._replace(result="warning")
        claims = [(pod.namespace, pod.claims) for pod in pods]
        devices = await read_devices(self.server.objects, claims, members=cache.num_members)
        cache.set_devices(pods, devices)
        if devices.faults:
            return Finding(some(list(devices.faults.values())), "warning", UNKNOWN_DEVICES)
        names = {pod.full_name for pod in pods}
        endpoints = [each.endpoint for each in cache.state(datetime.now(UTC)).members]
        of_pods = Counter(_devices(each) for each in endpoints if each.full_name in names)
        return Finding("; ".join(f"{number} pods with {devices}" for devices, number in of_pods.items()))

    def _cache(
        self, jobs: Iterable[str], order_by: Sequence[str] = ("name",), controllers: Controllers | None = None
    ) -> ClusterCache[Any, Any]:
        """Return a cache with the pods of these jobs."""
        pods = replace(self.pods, jobs={job: self.pods.jobs[job] for job in jobs}, order_by=order_by)
        cache = pods.new_cache(self._default, allow_gaps=False, controllers=controllers)
        for query in pods.all_queries(self._default):
            cache.replace(query, cache.match(query, self.found[query].items), self.found[query].version)
        return cache

    async def check_services(self, _: Progress) -> Finding:
        pods = [pod for listed in self.found.values() for pod in listed.items]
        named = [f"{pod.metadata.namespace}/{pod.spec.subdomain}" for pod in pods if pod.spec.subdomain]
        names = list(dict.fromkeys(named))[:MAX_SERVICES]
        if not names:
            return Finding("no pod names one in spec.subdomain, so that no pod has a DNS name")
        faults = await gather([partial(self._service_fault, name) for name in names], limit=MAX_SERVICES)
        wrong = [fault for fault in faults if fault is not None]
        if not wrong:
            return Finding(f"{', '.join(names)} exists, and is headless")
        if all(fault.startswith("unknown") for fault in wrong):
            hint = Hint("Give the user the permission to get services, to check this.")
            return Finding(some(wrong), "warning", hint)
        remedy = "Create a Service of that name with `clusterIP: None`, whose selector matches the pods, or"
        return Finding(some(wrong), "failed", Hint(f"{remedy} correct spec.subdomain of the pods."))

    async def _service_fault(self, full_name: str) -> str | None:
        """Return the defect of a Service that pods name; None without one."""
        namespace, _, name = full_name.partition("/")
        path = f"/api/v1/namespaces/{namespace}/services/{name}"
        response = await self.server.api.send(Request("GET", path))
        if response.status == 404:
            return f"there is no Service {full_name}, which pods name in spec.subdomain"
        if response.status != 200:
            return f"unknown: the server returned status {response.status} for Service {full_name}"
        with suppress(ValueError, TypeError, KeyError):
            if json.loads(response.body)["spec"].get("clusterIP") == "None":
                return None
        return f"Service {full_name} is not headless, so that its pods have no DNS names"


def _devices(endpoint: Endpoint) -> str:
    """Return the accelerators of a member as text."""
    accelerators = endpoint.accelerators or {}
    return ", ".join(f"{number} {name}" for name, number in accelerators.items()) or "no accelerators"


def _grouped(reasons: Mapping[str, str]) -> list[str]:
    """Return each reason with the number of its pods and the name of the first one."""
    counts = Counter(reasons.values()).most_common()
    first = {reason: name for name, reason in reversed([*reasons.items()])}
    shown = [f"{number} {reason}: {first[reason]}" for reason, number in counts]
    return [some(shown)] if shown else []
