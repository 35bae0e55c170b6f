"""Resolvers that were opened, used, cancelled and dropped leave nothing behind."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

from aioresolve import TPUClusterResolver
from aioresolve._core.concurrency import gather
from aioresolve.errors import ResolveError
from aioresolve.testing import GoogleServer, Hang, tpu_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve.testing import ThreadedGoogleServer

RESOLVERS = 1_000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 100


@pytest.fixture
def google(no_leak: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedGoogleServer]:
    """Google Cloud in a thread of its own, with the TPU `my-tpu`; it stops before the check for leaks."""
    with GoogleServer([tpu_node("my-tpu")]).in_thread() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


async def test_opened_used_and_cancelled_resolvers_leave_nothing_behind(
    google: ThreadedGoogleServer,
) -> None:
    google.inject(Hang(), match=lambda request: "hanging" in request.path, times=None)

    async def use(number: int) -> None:
        match number % 4:
            case 0:
                async with TPUClusterResolver("my-tpu") as resolver:
                    await resolver.cluster_spec()
                    await resolver.nodes()
            case 1:
                await TPUClusterResolver("my-tpu").cluster_state()
            case 2:
                resolver = TPUClusterResolver("hanging", "us-central2-b", "demo-project")
                with anyio.move_on_after(0.01):
                    async with resolver:
                        await resolver.cluster_spec()
            case 3:
                with pytest.raises(ResolveError):
                    await TPUClusterResolver(["my-tpu", "gone"]).cluster_spec()

    await gather([partial(use, number) for number in range(RESOLVERS)], limit=32)


async def test_cancelled_probes_leave_nothing_behind(google: ThreadedGoogleServer) -> None:
    for _ in range(20):
        resolver = TPUClusterResolver("grpc://127.0.0.1:1")
        with anyio.move_on_after(0.002):
            async with resolver:
                await resolver.probe()
