"""A fleet of a thousand targets for minutes under random faults; see `tests.long_fleet`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .long_fleet import ROOT

MINUTES = os.environ.get("FLEET_MINUTES") or ("3" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "")


@pytest.mark.skipif(not MINUTES, reason="takes minutes: set HYPOTHESIS_PROFILE=long, or FLEET_MINUTES=10")
def test_a_thousand_targets_under_random_faults_are_read_as_they_are_with_flat_memory() -> None:
    command = [sys.executable, "-m", "tests.long_fleet", "--minutes", MINUTES, "--targets", "1000"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(ended.stdout)
    assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
