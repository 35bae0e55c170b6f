"""A user's own client: called in worker threads, with its errors translated."""

import threading
from typing import Any, cast

import pytest

from aioresolve import Progress, TPUClusterResolver, Want
from aioresolve.errors import (
    ConfigurationError,
    DeadlineExceededError,
    ProtocolError,
    TPULookupError,
    TPUNotFoundError,
)

from .services import FakeHttpError, FakeService


def resolver_of(service: Any, tpu: Any = "my-tpu", timeout: float = 5.0) -> TPUClusterResolver:
    # Credentials have no effect then, and are not validated, as in TensorFlow.
    return TPUClusterResolver(
        tpu, "z", "p", service=service, credentials=cast("Any", "nonsense"), timeout=timeout
    )


def failing(error: Exception) -> FakeService:
    def fail() -> None:
        raise error

    return FakeService(respond=fail)


async def test_it_is_called_in_another_thread_one_call_at_a_time() -> None:
    service, progress = FakeService(["10.0.0.1"]), Progress()
    observation = await resolver_of(service, ["a", "b", "c"]).observe(Want(), progress)
    assert observation.state is not None
    assert observation.state.spec.num_tasks("worker") == 3
    assert sorted(service.requested) == [f"projects/p/locations/z/nodes/{name}" for name in "abc"]
    assert progress.reached == {f"GET {name}": "responded" for name in service.requested}
    assert not progress.missing
    assert threading.get_ident() not in service.threads
    assert service.max_running == 1


@pytest.mark.parametrize(
    ("error", "status", "retryable"),
    [
        (FakeHttpError(503), 503, True),
        (FakeHttpError(403), 403, False),
        (KeyError("nodes"), None, True),
    ],
)
async def test_any_of_its_errors_is_a_value_error_as_in_tensorflow(
    error: Exception, status: int | None, retryable: bool
) -> None:
    with pytest.raises(ValueError, match=r"the service object received (status \d|no .* KeyError)") as raised:
        await resolver_of(failing(error)).cluster_spec()
    assert isinstance(raised.value, TPULookupError)
    assert (raised.value.status, raised.value.retryable) == (status, retryable)
    assert raised.value.__cause__ is error


async def test_a_name_that_a_client_of_v1_does_not_know_is_not_found() -> None:
    with pytest.raises(TPUNotFoundError, match="no TPU projects/p/locations/z/nodes/my-tpu"):
        await resolver_of(failing(FakeHttpError(404))).cluster_spec()
    queued = "projects/p/locations/z/queuedResources/my-request"
    with pytest.raises(ConfigurationError, match=f"does not support GET {queued}.*version 2"):
        await resolver_of(FakeService(), queued).cluster_spec()


async def test_a_node_without_a_name_has_the_requested_one() -> None:
    node = {"state": "READY", "networkEndpoints": [{"ipAddress": "10.0.0.1"}]}
    (one,) = await resolver_of(FakeService(respond=lambda: node)).slices()
    assert (one.name, one.endpoints[0].address) == ("my-tpu", "10.0.0.1:8470")
    assert one.node is not None
    assert one.node.name == "projects/p/locations/z/nodes/my-tpu"


@pytest.mark.parametrize("response", [None, {"name": 7}])
async def test_a_response_that_is_not_a_node_is_a_protocol_error(response: Any) -> None:
    with pytest.raises(ProtocolError, match="the service object"):
        await resolver_of(FakeService(respond=lambda: response)).cluster_spec()


@pytest.mark.usefixtures("no_leak")
async def test_a_cancelled_call_abandons_its_thread_and_the_next_call_is_not_made() -> None:
    release = threading.Event()
    service = FakeService(respond=release.wait)
    resolver = resolver_of(service, ["a", "b"], timeout=0.2)
    try:
        with pytest.raises(DeadlineExceededError, match="nodes/a"):
            await resolver.cluster_spec()
    finally:
        release.set()
    assert len(service.requested) == 1
