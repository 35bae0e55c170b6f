"""Tests of resolvers that read variables start without those of the machine that runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
