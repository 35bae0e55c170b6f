"""Outside Google Cloud, calls that need the metadata server fail at once, and say what to set."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from aioresolve import TPUClusterResolver
from aioresolve._core.concurrency import gather
from aioresolve.errors import ConfigurationError, ResolveError, TPUNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT = 2.0
"""Maximum seconds until the error."""

PATHS: dict[str, tuple[Callable[[], TPUClusterResolver], type[ResolveError], str]] = {
    "the VM's own slice": (lambda: TPUClusterResolver(), TPUNotFoundError, "Pass .* as `tpu=`"),
    "project and zone": (
        lambda: TPUClusterResolver("my-tpu"),
        ConfigurationError,
        "Pass `project=` and `zone=`",
    ),
    "the zone": (lambda: TPUClusterResolver("my-tpu", project="p"), ConfigurationError, "Pass `zone=`"),
    "the project": (lambda: TPUClusterResolver("my-tpu", "z"), ConfigurationError, "Pass `project=`"),
    "the coordinator's address": (
        lambda: TPUClusterResolver("grpc://a:1", coordinator_name="chief"),
        ConfigurationError,
        "coordinator_address",
    ),
    "credentials": (lambda: TPUClusterResolver("my-tpu", "z", "p"), ResolveError, "credentials"),
}


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["refused", "silent", "no such name", "forbidden"])
def _no_metadata_server(request: pytest.FixtureRequest, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    match request.param:
        case "silent":
            monkeypatch.setenv("GCE_METADATA_HOST", silent)
        case "no such name":
            monkeypatch.setenv("GCE_METADATA_HOST", "metadata.invalid")
        case "forbidden":
            monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.usefixtures("_no_metadata_server")
async def test_every_call_fails_within_two_seconds_and_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path_factory.mktemp("gcloud")))

    async def fail(
        new_resolver: Callable[[], TPUClusterResolver], error: type[ResolveError], message: str
    ) -> None:
        started = time.monotonic()
        with pytest.raises(error, match=message):
            await new_resolver().cluster_spec()
        assert time.monotonic() - started < LIMIT

    await gather([partial(fail, *path) for path in PATHS.values()], limit=len(PATHS))


async def test_addresses_need_no_metadata_server() -> None:
    assert await TPUClusterResolver("grpc://10.0.0.1").master() == "grpc://10.0.0.1:8470"


async def test_the_constructor_sends_no_request(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", silent)
    started = time.monotonic()
    TPUClusterResolver()
    TPUClusterResolver("my-tpu", coordinator_name="chief")
    assert time.monotonic() - started < LIMIT / 2
