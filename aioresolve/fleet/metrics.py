"""The metrics of a fleet in Prometheus' formats, with prometheus_client.

Names follow https://prometheus.io/docs/practices/naming/. Each response has a registry of its own, so that
several fleets in one process, and the program's own metrics, do not collide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import MissingDependencyError

from .status import Health

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.registry import Collector
except ImportError as error:
    raise MissingDependencyError(
        "serving a fleet needs prometheus_client, which is not installed",
        hint="Run `pip install 'aioresolve[serve]'`.",
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from prometheus_client.core import Metric

    from .status import TargetStatus


class Measured(NamedTuple):
    """A target: its latest status, if it has one, and the numbers of its requests and of their errors."""

    name: str
    status: TargetStatus | None
    num_requests: int
    num_errors: Mapping[str, int]


def exposition(targets: Sequence[Measured], now: datetime, accept: str) -> tuple[bytes, str]:
    """Return the metrics and their content type, in the format that an `Accept` header prefers.

    It takes tens of milliseconds for a thousand targets, and may run in another thread.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Targets(targets, now))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Targets(Collector):
    def __init__(self, targets: Sequence[Measured], now: datetime) -> None:
        self._targets = targets
        self._now = now

    def collect(self) -> Iterable[Metric]:
        number = GaugeMetricFamily("aioresolve_targets", "Targets of the fleet.")
        number.add_metric([], len(self._targets))
        health = _gauge("health", "Whether the target has this health.", "health")
        members = _gauge("members", "Members of the cluster.", "job")
        missing = _gauge("missing_members", "Expected members that are missing or not ready.")
        age = _gauge("age_seconds", "Time since the members were last known to be current.")
        latency = _gauge("latency_seconds", "Duration of the latest request.")
        requests = CounterMetricFamily(
            "aioresolve_target_requests", "Requests; a watch is one.", labels=["target"]
        )
        errors = CounterMetricFamily(
            "aioresolve_target_errors", "Failures, by the class of the error.", labels=["target", "error"]
        )
        for name, status, num_requests, num_errors in self._targets:
            requests.add_metric([name], num_requests)
            for kind, count in num_errors.items():
                errors.add_metric([name, kind], count)
            if status is None:
                continue
            for one in Health:
                health.add_metric([name, str(one)], one is status.health)
            for job, count in status.tasks_by_job.items():
                members.add_metric([name, job], count)
            missing.add_metric([name], max(0, status.num_wanted - status.num_found))
            if (seconds := status.age(self._now)) is not None:
                age.add_metric([name], seconds)
            if status.latency is not None:
                latency.add_metric([name], status.latency)
        return number, health, members, missing, age, latency, requests, errors


def _gauge(name: str, documentation: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"aioresolve_target_{name}", documentation, labels=["target", *labels])
