"""A client of the user's own: asked in worker threads, its errors made ours."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    ProtocolError,
    TPUNotFoundError,
)

from .services import FakeHttpError, FakeService


def resolver_of(service: Any, tpu: Any = "my-tpu", timeout: float = 5.0) -> TPUClusterResolver:
    return TPUClusterResolver(tpu, "z", "p", service=service, timeout=timeout)


def failing(error: Exception) -> FakeService:
    def fail() -> None:
        raise error

    return FakeService(answer=fail)


async def test_it_is_asked_in_another_thread_one_call_at_a_time() -> None:
    service = FakeService(["10.0.0.1"])
    spec = await resolver_of(service, ["a", "b", "c"]).cluster_spec()
    assert spec.num_tasks("worker") == 3
    assert sorted(service.asked) == [f"projects/p/locations/z/nodes/{name}" for name in "abc"]
    assert threading.get_ident() not in service.threads
    assert service.at_once == 1


@pytest.mark.parametrize(
    ("error", "ours", "retryable"),
    [
        (FakeHttpError(503), APIError, True),
        (FakeHttpError(403), APIError, False),
        (TimeoutError("timed out"), ConnectionFailedError, True),
        (ValueError("nonsense"), ConnectionFailedError, True),
    ],
)
async def test_its_errors_are_ours(error: Exception, ours: type[APIError], retryable: bool) -> None:
    with pytest.raises(ours, match="the service object") as raised:
        await resolver_of(failing(error)).cluster_spec()
    assert raised.value.retryable is retryable
    assert raised.value.__cause__ is error


async def test_a_missing_node_is_not_found() -> None:
    with pytest.raises(TPUNotFoundError):
        await resolver_of(failing(FakeHttpError(404)), "projects/p/locations/z/nodes/gone").cluster_spec()


@pytest.mark.parametrize("answer", [None, [], {"name": 7}, {"state": "READY"}, object()])
async def test_an_answer_that_is_no_node_is_a_protocol_error(answer: Any) -> None:
    with pytest.raises(ProtocolError, match="the service object"):
        await resolver_of(FakeService(answer=lambda: answer)).cluster_spec()


@pytest.mark.parametrize("service", ["tpu", 7, object()])
def test_what_is_no_service_is_told_at_once(service: Any) -> None:
    with pytest.raises(ConfigurationError, match="googleapiclient"):
        TPUClusterResolver("my-tpu", service=service)


async def test_a_service_of_another_api_is_told() -> None:
    class Compute:
        def projects(self) -> object:
            return object()

    with pytest.raises(ConfigurationError, match="Build it for the API 'tpu'"):
        await resolver_of(Compute()).cluster_spec()


@pytest.mark.usefixtures("no_leak")
async def test_a_call_that_is_given_up_leaves_its_thread_to_end() -> None:
    go_on = threading.Event()
    service = FakeService(answer=go_on.wait)
    resolver = resolver_of(service, ["a", "b"], timeout=0.2)
    try:
        with pytest.raises(DeadlineExceededError, match="nodes/a"):
            await resolver.cluster_spec()
    finally:
        go_on.set()
    assert len(service.asked) == 1
