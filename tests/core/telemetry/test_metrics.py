"""Metrics: counters, histograms and gauges."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics.export import Histogram, HistogramDataPoint

from aioresolve.errors import DeadlineExceededError
from aioresolve.fleet import Fleet
from aioresolve.probe import probe_workers
from aioresolve.testing import Answer, Hang, Reset, TPUWorker
from tests.fleet.fleets import Scripted, fail, respond_with, take, until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kubernetes.loopback import Loopback

    from .recording import Recording


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


async def test_gauges_show_the_members_and_the_staleness_of_targets_while_they_are_polled(
    recording: Recording,
) -> None:
    east = Scripted(respond_with(2))
    fleet = Fleet({"us-east": east, "us-west": Scripted()})
    async with aclosing(fleet.poll(interval=0.01)) as statuses:
        await take(statuses, 2)
        assert sorted_points(recording.points("aioresolve.members")) == sorted_points(
            [
                ({"aioresolve.job": "worker", "aioresolve.target": "us-east"}, 2),
                ({"aioresolve.job": "worker", "aioresolve.target": "us-west"}, 1),
            ]
        )
        assert stale_seconds(recording) == {"us-east": 0.0, "us-west": 0.0}
        east.respond = fail
        await until(lambda: fleet.readings["us-east"].is_stale)
        first = stale_seconds(recording)
        assert first["us-east"] > 0.0
        assert stale_seconds(recording)["us-east"] > first["us-east"]
        fleet.remove("us-east")
        await until(lambda: list(stale_seconds(recording)) == ["us-west"])
        assert len(recording.points("aioresolve.members")) == 1
    assert recording.points("aioresolve.members") == []


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
