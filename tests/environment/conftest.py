"""Tests of resolvers that read variables start without those of the machine that runs the tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import GoogleServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PREFIXES = ("SLURM", "SM_", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "OMPI_", "PMI", "TORCHELASTIC_")


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    # A resolver may set it, and it is then removed after the test.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("aioresolve.environment.slurm._assigned", None)
    monkeypatch.setattr("aioresolve.environment.slurm.DRIVER_FOLDER", Path("/none"))


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GoogleServer]:
    """Google Cloud as a VM of `demo-project` in `us-central2-b` reaches it, without a group or a TPU."""
    async with GoogleServer() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server
