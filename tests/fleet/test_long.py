"""A fleet of a thousand targets under random faults for minutes; see `tests.fleet.long_fleet`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .long_fleet import ROOT

MINUTES = os.environ.get("FLEET_MINUTES") or ("3" if os.environ.get("HYPOTHESIS_PROFILE") == "long" else "")


@pytest.mark.skipif(not MINUTES, reason="takes minutes: set HYPOTHESIS_PROFILE=long, or FLEET_MINUTES=10")
def test_thousand_targets_converge_after_random_faults_without_growth_of_memory() -> None:
    command = [sys.executable, "-m", "tests.fleet.long_fleet", "--minutes", MINUTES, "--targets", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
