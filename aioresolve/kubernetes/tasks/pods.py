"""Which pods are members of a cluster, at which address, and why the others are not.

A pod is judged here by the pod object; `table_members` judges it by its row in a Table where the row is
conclusive. How members become tasks is in `task_order`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve._core.natural_order import natural_keys
from aioresolve.errors import ConfigurationError, Hint, PodNotRunningError, ResolveError
from aioresolve.kubernetes.api.objects import Record
from aioresolve.spec import Endpoint, host_port
from aioresolve.spec.display import short_line

from .accelerators import Claim, claims_of, declared_accelerators
from .controller_kinds import IndexLabel, PodSet, index_label, pod_set, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aioresolve.kubernetes.api.objects import Condition, ContainerStatus, Pod, Terminated

ENDED = frozenset({"Failed", "Succeeded"})
"""The phases in which no container runs or will run again."""

STARTING = frozenset({"ContainerCreating", "PodInitializing"})
"""The reasons for which a container waits during a normal start."""

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

MAX_REASON = 1000
"""The maximum length of a reason, in characters: the message of a container may be 4 KB of its log."""


class MatchedPod(Record, frozen=True):
    """The part of a pod that is kept after a selector matched it.

    Attributes:
        key: the sort key among the pods of one selector.
        full_name: `namespace/name`.
        uid: the pod's uid, which differs from that of an earlier pod with the same name.
        endpoint: the endpoint of a member; None for all other pods.
        fault: why the pod is not running; None for a member and for a pod that is being deleted.
        unready: why a member is not ready; None if it is ready, and for all other pods.
        is_final: whether the pod will never be a member.
        is_replaced: whether the pod has ended and its controller decides what follows.
        label: the index that the pod's labels give it.
        labels: the values of the labels by which the pods are ordered, if they are.
        pod_set: the pods of its controller that have the same template; None if the controller is unknown.
        has_succeeded: whether all containers of the pod have succeeded, and it is not being deleted.
        run: identifies the run of the controller that the pod belongs to: a Job that is created again, or a
            JobSet that is restarted, is another run.
        node: the node of the pod. Together with `unready` it is what comparisons of endpoints ignore.
        failure: why a pod that `is_replaced` has failed.
        claims: the ResourceClaims of a member, whose devices are not among its accelerators.
    """

    key: str
    full_name: str
    uid: str
    endpoint: Endpoint | None
    fault: str | None
    unready: str | None
    is_final: bool
    is_replaced: bool
    label: IndexLabel
    labels: tuple[str | None, ...] = ()
    pod_set: PodSet | None = None
    has_succeeded: bool = False
    run: str = ""
    node: str | None = None
    failure: str | None = None
    claims: tuple[Claim, ...] = ()

    @property
    def is_waiting(self) -> bool:
        """Whether the pod is not a member, but may become one, or has succeeded."""
        return self.fault is not None and not self.is_replaced


def match_pods(
    pods: Sequence[Pod],
    choice: str | Callable[[Pod], Any],
    port: int,
    label_keys: Sequence[str],
) -> list[MatchedPod]:
    """Return the part of each pod that is kept, with the values of the labels `label_keys`.

    For `choice` and `port` see `pod_address`.

    Raises:
        ConfigurationError: a running pod cannot have such an address.
    """
    matched = []
    for pod, natural_key in zip(pods, natural_keys([pod.metadata.name for pod in pods]), strict=True):
        metadata, phase = pod.metadata, pod.status.phase
        name, namespace = metadata.name, metadata.namespace
        label = index_label(pod)
        address, fault = membership(pod, choice, port)
        endpoint = unready = None
        if address is not None:
            unready = not_ready_reason(pod)
            endpoint = Endpoint(
                address,
                name=name,
                uid=metadata.uid or None,
                namespace=namespace or None,
                node=pod.spec.node_name,
                ready=unready is None,
                status=unready or RUNNING,
                index=None if label.in_role is None else label.in_role.member,
                restarts=restarts_in_place(pod),
                accelerators=declared_accelerators(pod),
            )
        replaced = is_replaced(pod)
        one = MatchedPod(
            # Equal names are in the order of their namespaces, as the server lists them: `a-b/` before `a/`.
            f"{natural_key}\0{name}\0{namespace}/",
            f"{namespace}/{name}",
            metadata.uid,
            endpoint,
            fault,
            unready,
            phase in ENDED and not replaced,
            replaced,
            label,
            tuple([metadata.labels.get(label_key) for label_key in label_keys]) if label_keys else (),
            pod_set(pod),
            phase == "Succeeded" and metadata.deletion_timestamp is None,
            run_of(pod),
            pod.spec.node_name,
            not_running_reason(pod, None) if replaced and phase == "Failed" else None,
            () if endpoint is None else claims_of(pod),
        )
        matched.append(one)
    return matched


def membership(
    pod: Pod, choice: str | Callable[[Pod], Any], port: int
) -> tuple[str, None] | tuple[None, str | None]:
    """Return the address and the fault of `pod`; for `choice` and `port` see `pod_address`.

    A member has an address, `host:port`. All other pods have a fault, why they are not running, unless they
    are being deleted or have failed and have a controller, which replaces them.

    Raises:
        ConfigurationError: the pod is running but cannot have such an address.
    """
    if pod.metadata.deletion_timestamp is not None:
        return None, None
    # Pods that have succeeded do count: their controller, such as a Job, need not replace them.
    if pod.status.phase == "Failed" and is_replaced(pod):
        return None, None
    address = None
    if pod.status.phase == "Running":
        try:
            address = pod_address(pod, choice, port)
        except Exception as error:  # a user's callable may raise anything
            raise _address_error(pod, choice, error) from error
        if address:
            return address, None
    return None, not_running_reason(pod, address)


def _address_error(pod: Pod, choice: str | Callable[[Pod], Any], error: Exception) -> ConfigurationError:
    hint = "Choose another {address}."
    if callable(choice):
        hint = "Correct the callable that is passed as {address}."
    elif choice == "hostname":
        hint = "Name a headless Service in spec.subdomain of the pods, or choose another {address}."
    reason = error.summary if isinstance(error, ResolveError) else error
    return ConfigurationError(f"pod {pod.full_name} cannot be addressed: {reason}", hint=hint)


ADDRESSES = ("pod_ip", "pod_ipv4", "pod_ipv6", "host_ip", "hostname")
"""The values of `address` other than a callable."""

RUNNING = "Running"
"""The status of a member that is ready."""

MAX_SHOWN = 20
"""How many pods a message names; `PodNotRunningError.pods` has all of them."""

NOT_RUNNING = Hint("Wait until they run, or pass {not_running=skip} to leave them out.")
HAVE_ENDED = Hint(
    "Pods that have ended do not run again: create new ones, or pass {not_running=skip} to leave them out."
)


def raise_not_running(pods: Mapping[str, str], noun: str, required_state: str) -> None:
    """Raise a PodNotRunningError for `pods` (`namespace/name` to the reason), if there are any.

    The message calls each of them a `noun`, and says that it is not in the required state.
    """
    if not pods:
        return
    has_ended = any(reason.partition(" ")[0] in ENDED for reason in pods.values())
    shown = [f"{name}: {fault}" for name, fault in list(pods.items())[:MAX_SHOWN]]
    if len(pods) > len(shown):
        shown.append(f"and {len(pods) - len(shown)} more")
    subject = f"1 {noun} is" if len(pods) == 1 else f"{len(pods)} {noun}s are"
    hint = HAVE_ENDED if has_ended else NOT_RUNNING
    raise PodNotRunningError(f"{subject} not {required_state}: {'; '.join(shown)}", hint=hint, pods=pods)


def pod_address(pod: Pod, choice: str | Callable[[Pod], Any], port: int) -> str | None:
    """Return the pod's address, `host:port`, or None if it has none yet.

    Args:
        pod: the pod.
        choice: `pod_ip`, `pod_ipv4`, `pod_ipv6`, `host_ip`, `hostname` (`hostname.subdomain.namespace.svc`),
            or a callable that takes the pod and returns a host, a `(host, port)` or None.
        port: the port to append to a host.

    Raises:
        ValueError: the pod cannot have such an address, or the callable returned something else.
    """
    if callable(choice):
        return _address_from_callable(choice(pod), port)
    host = pod.status.pod_ip
    if choice in ("pod_ipv4", "pod_ipv6"):
        ips = [entry.ip for entry in pod.status.pod_ips or ()] or [pod.status.pod_ip or ""]
        host = next((ip for ip in ips if ip and (":" in ip) == (choice == "pod_ipv6")), None)
        if host is None and any(ips):
            raise ValueError(f"it has no IP{choice[-2:]} address, only {', '.join(ips)}")
    elif choice == "host_ip":
        host = pod.status.host_ip
    elif choice == "hostname":
        if not (pod.spec.hostname and pod.spec.subdomain):
            raise ValueError("it has no DNS name, because its spec.hostname or spec.subdomain is not set")
        host = f"{pod.spec.hostname}.{pod.spec.subdomain}.{pod.metadata.namespace}.svc"
    return host_port(host, port) if host else None


def not_running_reason(pod: Pod, address: str | None) -> str | None:
    """Return the phase of a pod that is not running, with the reason; None if it is running.

    A pod that is Running but has no address yet counts as not running. Whether the pod is being deleted is
    not considered.
    """
    if pod.status.phase == "Running":
        return None if address else "Running, but without an address yet"
    phase = pod.status.phase or "Unknown"
    reason = _join(*_pod_failure(pod)) or _container_fault(pod) or _join(*_scheduling_failure(pod))
    return short_line(f"{phase} ({reason})" if reason else phase, MAX_REASON)


def not_ready_reason(pod: Pod) -> str | None:
    """Return why a running pod is not ready; None if it is ready."""
    if pod.ready:
        return None
    fault = _container_fault(pod)
    if fault:
        return short_line(fault, MAX_REASON)
    condition = _condition(pod, "Ready")
    if condition is None:
        return "no Ready condition yet"
    reason = _join(condition.reason, condition.message) or f"its Ready condition is {condition.status}"
    return short_line(reason, MAX_REASON)


def program_status(pod: Pod) -> ContainerStatus | None:
    """Return the status of the container of the program: that in which `kubectl exec` runs.

    https://kubernetes.io/docs/reference/labels-annotations-taints/#kubectl-kubernetes-io-default-container
    """
    statuses = pod.status.container_statuses or ()
    if len(statuses) <= 1:
        return statuses[0] if statuses else None
    name = pod.metadata.annotations.get(DEFAULT_CONTAINER) or next(
        (container.name for container in pod.spec.containers or ()), ""
    )
    return next((each for each in statuses if each.name == name), None)


def program_end(pod: Pod) -> Terminated | None:
    """Return how the program ended; None if it has not, or was started again."""
    status = program_status(pod)
    if status is None or status.state is None:
        return None
    if status.state.waiting and status.last_state:  # the kubelet waits before it starts the program again
        return status.last_state.terminated
    return status.state.terminated


def restarts_in_place(pod: Pod) -> int:
    """Return how often the container of the program was restarted."""
    status = program_status(pod)
    return 0 if status is None else status.restart_count


def is_replaced(pod: Pod) -> bool:
    """Whether the pod has ended and has a controller, which decides whether another pod takes its place."""
    return pod.status.phase in ENDED and pod.metadata.controller is not None


def _pod_failure(pod: Pod) -> tuple[str | None, ...]:
    """Return the failure of the pod as a whole: `Evicted`, `NodeLost`, `PreemptionByScheduler`."""
    status = pod.status
    if status.reason or status.message:
        return status.reason, status.message
    disruption = _condition(pod, "DisruptionTarget")
    if disruption is not None and disruption.status == "True":
        return disruption.reason, disruption.message
    return ()


def _scheduling_failure(pod: Pod) -> tuple[str | None, ...]:
    scheduled = _condition(pod, "PodScheduled")
    return () if scheduled is None else (scheduled.reason, scheduled.message)


def _container_fault(pod: Pod) -> str:
    """Return why the first container that failed or waits does so; empty if all containers run."""
    containers = _containers(pod)
    # A container that failed comes first: the others often wait because of it.
    for label, container in containers:
        ended = container.state.terminated if container.state else None
        if ended is not None and ended.exit_code:
            code = _join(f"exit code {ended.exit_code}", _restarts(container), by=", ")
            return _join(label, ended.reason, code, ended.message)
    waits = [
        (label, container, container.state.waiting)
        for label, container in containers
        if container.state and container.state.waiting
    ]
    for label, container, waiting in sorted(waits, key=lambda wait: wait[2].reason in STARTING):
        history = _history(container)
        # The message of a crash loop has only the backoff and the pod's uid; the history says more.
        message = None if history and waiting.reason == "CrashLoopBackOff" else waiting.message
        return _join(label, waiting.reason, message, history)
    return ""


def _containers(pod: Pod) -> list[tuple[str, ContainerStatus]]:
    """Return the init containers and the containers, each with a label; a single container needs none."""
    init, main = pod.status.init_container_statuses or (), pod.status.container_statuses or ()
    return [
        *((f"init container {container.name!r}", container) for container in init),
        *((f"container {container.name!r}" if len(main) > 1 else "", container) for container in main),
    ]


def _history(container: ContainerStatus) -> str:
    """Return how often the container was restarted and how it ended last; empty if it never ended."""
    last = container.last_state.terminated if container.last_state else None
    if last is None:
        return _restarts(container)
    reason = f" ({last.reason})" if last.reason else ""
    return _join(_restarts(container), f"last exit code {last.exit_code}{reason}", by=", ")


def _restarts(container: ContainerStatus) -> str:
    count = container.restart_count
    return f"{count} restart{'s' * (count > 1)}" if count else ""


def _condition(pod: Pod, type_: str) -> Condition | None:
    return next((each for each in pod.status.conditions or () if each.type == type_), None)


def _join(*texts: str | None, by: str = ": ") -> str:
    return by.join(text for text in texts if text)


def _address_from_callable(result: Any, port: int) -> str | None:
    match result:
        case None | "":
            return None
        case str():
            return host_port(result, port)
        case (str(host), int(own_port)):
            return host_port(host, own_port)
        case _:
            raise ValueError(
                f"the callable returned {result!r}; it has to return a host, (host, port) or None"
            )
