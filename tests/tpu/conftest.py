"""A machine outside Google Cloud, and a VM in a loopback Google Cloud."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import GoogleServer, tpu_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aioresolve.testing import ThreadedGoogleServer

PREFIXES = ("CLOUD", "GCE_", "GOOGLE_", "KUBE_GOOGLE_", "MEGASCALE_", "NO_GCE_CHECK", "TPU_")
"""How the variables begin that the resolver reads."""


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", "metadata.invalid")


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GoogleServer]:
    """Google Cloud as a VM of `demo-project` in `us-central2-b` reaches it."""
    async with GoogleServer() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def google_in_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedGoogleServer]:
    """The same for blocking code, with the TPU `my-tpu` at 10.0.0.1."""
    with GoogleServer([tpu_node("my-tpu", ips=["10.0.0.1"])]).in_thread() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server
