"""Metrics: counters, histograms and gauges."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics.export import Histogram, HistogramDataPoint

from aioresolve import ClusterState, Endpoint
from aioresolve._core.telemetry import (
    record_members,
    record_staleness,
    remove_target,
)
from aioresolve.errors import DeadlineExceededError
from aioresolve.probe import probe_workers
from aioresolve.testing import Answer, Hang, Reset, TPUWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kubernetes.loopback import Loopback

    from .recording import Recording

SERVER = "https://10.0.0.1:6443"
AT_SERVER = {"server.address": "10.0.0.1", "server.port": 6443}


@pytest.mark.slow
async def test_requests_and_retries_are_counted_by_outcome(recording: Recording, loopback: Loopback) -> None:
    loopback.server.inject(Answer(429))
    loopback.server.inject(Answer(503), times=2)
    loopback.server.inject(Reset(after=10))
    await loopback.resolver(not_running="skip").cluster_spec()
    server = {"server.address": "127.0.0.1", "server.port": loopback.server.port}
    broken = {"error.type": "aioresolve.errors.ConnectionFailedError"}
    requests = [
        ({**server, "http.response.status_code": 200}, 1),
        ({**server, "http.response.status_code": 429, "error.type": "429"}, 1),
        ({**server, "http.response.status_code": 503, "error.type": "503"}, 2),
        ({**server, **broken}, 1),
    ]
    retries = [
        ({**server, "error.type": "429"}, 1),
        ({**server, "error.type": "503"}, 2),
        ({**server, **broken}, 1),
    ]
    assert sorted_points(recording.points("aioresolve.requests")) == sorted_points(requests)
    assert sorted_points(recording.points("aioresolve.retries")) == sorted_points(retries)
    http_attributes = {"http.request.method": "GET", "url.scheme": "https"}
    durations = [({**attributes, **http_attributes}, count) for attributes, count in requests]
    assert sorted_points(recording.points("http.client.request.duration")) == sorted_points(durations)


@pytest.mark.slow
async def test_request_duration_is_in_seconds(recording: Recording, loopback: Loopback) -> None:
    loopback.server.inject(Hang())
    with pytest.raises(DeadlineExceededError):
        await loopback.resolver(not_running="skip", timeout=2.0).cluster_spec()
    point = only_histogram_point(recording, "http.client.request.duration")
    assert 0.5 < point.sum < 60.0
    conventional = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
    assert tuple(point.explicit_bounds) == conventional
    assert (point.attributes or {})["error.type"] == "cancelled"


async def test_probes_share_one_histogram_point(recording: Recording) -> None:
    async with TPUWorker(ports=3) as worker:
        await probe_workers(worker.addresses, libtpu_ports=[])
    point = only_histogram_point(recording, "rpc.client.call.duration")
    assert (point.count, dict(point.attributes or {})) == (
        3,
        {
            "rpc.system.name": "grpc",
            "rpc.method": "tensorflow.WorkerService/GetStatus",
            "rpc.response.status_code": "OK",
        },
    )


def test_members_are_reported_by_job_and_target(recording: Recording) -> None:
    east = ClusterState.of({"worker": [Endpoint("a:1"), Endpoint("b:1")], "ps": [Endpoint("c:1")]})
    record_members(east.endpoints, target="us-east")
    record_members({"worker": ["d:1"]})
    assert sorted_points(recording.points("aioresolve.members")) == sorted_points(
        [
            ({"aioresolve.job": "worker", "aioresolve.target": "us-east"}, 2),
            ({"aioresolve.job": "ps", "aioresolve.target": "us-east"}, 1),
            ({"aioresolve.job": "worker"}, 1),
        ]
    )
    record_members({"worker": []}, target="us-east")
    remove_target()
    assert recording.points("aioresolve.members") == [
        ({"aioresolve.job": "worker", "aioresolve.target": "us-east"}, 0)
    ]


def test_staleness_grows_until_the_target_responds_or_is_removed(recording: Recording) -> None:
    record_staleness("us-east", datetime.now(UTC) - timedelta(seconds=90))
    record_staleness("us-west", None)
    first = stale_seconds(recording)
    assert first["us-east"] >= 90.0
    assert first["us-west"] == 0.0
    assert stale_seconds(recording)["us-east"] > first["us-east"]
    record_staleness("us-east", None)
    assert stale_seconds(recording) == {"us-east": 0.0, "us-west": 0.0}
    remove_target("us-east")
    assert stale_seconds(recording) == {"us-west": 0.0}


def stale_seconds(recording: Recording) -> dict[str, float]:
    points = recording.points("aioresolve.target.staleness")
    return {attributes["aioresolve.target"]: value for attributes, value in points}


def only_histogram_point(recording: Recording, name: str) -> HistogramDataPoint:
    metric = recording.metrics[name]
    assert isinstance(metric.data, Histogram)
    assert metric.unit == "s"
    (point,) = metric.data.data_points
    return point


def sorted_points(
    points: Sequence[tuple[dict[str, Any], float]],
) -> list[tuple[list[tuple[str, str]], float]]:
    named = [([(name, str(each[name])) for name in sorted(each)], count) for each, count in points]
    return sorted(named)
