"""A machine without GPUs."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    # A resolver may set it, and it is then removed after the test.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("aioresolve.environment.slurm._assigned", None)
    monkeypatch.setattr("aioresolve.environment.slurm.DRIVER_FOLDER", Path("/none"))
