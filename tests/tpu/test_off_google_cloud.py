"""Outside Google Cloud, calls that need the metadata server fail soon, and say what to set."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import ConfigurationError, ResolveError, TPUNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""

PATHS: dict[str, tuple[Callable[[], TPUClusterResolver], type[ResolveError], str]] = {
    "the VM's own slice": (lambda: TPUClusterResolver(), TPUNotFoundError, "Pass .* as `tpu=`"),
    "the coordinator's address": (
        lambda: TPUClusterResolver("grpc://a:1", coordinator_name="chief"),
        ConfigurationError,
        "coordinator_address",
    ),
    "credentials": (lambda: TPUClusterResolver("my-tpu", "z", "p"), ResolveError, "credentials"),
}


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def address(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(params=["silent", "forbidden"])
def _no_metadata_server(
    request: pytest.FixtureRequest, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    match request.param:
        case "silent":
            monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", address(silent))
            monkeypatch.setattr("aioresolve.gcp.metadata_server.RESPONSE_TIMEOUT", 0.2)
        case "forbidden":
            monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.mark.usefixtures("_no_metadata_server")
async def test_every_call_fails_before_its_deadline_and_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path_factory.mktemp("gcloud")))

    async def fail(
        new_resolver: Callable[[], TPUClusterResolver], error: type[ResolveError], message: str
    ) -> None:
        with anyio.fail_after(PATIENCE), pytest.raises(error, match=message):
            await new_resolver().cluster_spec()

    async with anyio.create_task_group() as group:
        for path in PATHS.values():
            group.start_soon(fail, *path)


async def test_the_constructor_sends_no_request(
    silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", address(silent))
    TPUClusterResolver()
    TPUClusterResolver("my-tpu", coordinator_name="chief")
    silent.setblocking(False)
    with pytest.raises(BlockingIOError):
        silent.accept()
