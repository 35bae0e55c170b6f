"""Fixtures of the telemetry tests: a recording of OpenTelemetry data, and a loopback API server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import pod
from tests.kubernetes.loopback import run_loopback

from .recording import record_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.kubernetes.loopback import Loopback

    from .recording import Recording


@pytest.fixture
def recording() -> Iterator[Recording]:
    with record_telemetry() as recording:
        yield recording


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[Loopback]:
    pods = [pod(f"train-{n}", "ml", labels={"app": "train"}, ip=f"10.0.0.{n}") for n in (1, 2)]
    with run_loopback(tmp_path, *pods) as loopback:
        yield loopback
