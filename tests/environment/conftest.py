"""Tests of resolvers that read variables start without those of the machine that runs the tests."""

from __future__ import annotations

import os

import pytest

from aioresolve.environment.slurm import gpus as slurm_gpus

PREFIXES = ("SLURM", "SM_", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "OMPI_", "PMI", "TORCHELASTIC_")


@pytest.fixture(autouse=True)
def _no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    # A resolver may set it, and it is then removed after the test.
    monkeypatch.setenv(slurm_gpus.VISIBLE_DEVICES, "")
    monkeypatch.delenv(slurm_gpus.VISIBLE_DEVICES)
    monkeypatch.setattr(slurm_gpus, "_assigned", None)
    monkeypatch.setattr(slurm_gpus, "DRIVER_FOLDER", slurm_gpus.DRIVER_FOLDER / "none")
