"""A sick target is shown sick by the table, the exit code and JSON of `aioresolve poll`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.fleet.sickness import SICKNESSES, sick_target

from .process import Run, environment

if TYPE_CHECKING:
    from pathlib import Path

WELL = {"static": {"jobs": {"worker": "10.9.0.1:8470"}}}


@pytest.mark.parametrize("name", SICKNESSES)
def test_sick_target_is_shown_sick(name: str, run: Run, tmp_path: Path) -> None:
    sickness = SICKNESSES[name]
    file = tmp_path / "fleet.yaml"
    with sick_target(sickness, tmp_path) as (target, variables):
        file.write_text(json.dumps({"timeout": sickness.timeout, "targets": {"well": WELL, "sick": target}}))
        env = environment(tmp_path / "none", **variables)
        table = run(("poll", str(file), "--once"), env)
        lines = run(("poll", str(file), "--once", "-o", "json"), env)
    rows = [re.split("   +", line) for line in table.stdout.splitlines()]
    assert [row[0] for row in rows] == ["TARGET", "sick", "well"]  # the worst first
    assert rows[1][1].partition(" ")[0] == sickness.health.capitalize(), table.stdout
    assert sickness.reason in rows[1][3]
    assert rows[2][1:] == ["Ready 1/1", "worker:1", "<none>", "0s"]
    assert table.stderr == f"1 of 2 targets ready, {table.stderr.partition(', ')[2]}"
    assert f"1 {sickness.health}" in table.stderr
    documents = {found["name"]: found for found in map(json.loads, lines.stdout.splitlines())}
    assert documents["sick"]["health"] == sickness.health
    assert sickness.reason in documents["sick"]["reason"]
    assert (documents["well"]["health"], documents["well"]["reason"]) == ("ready", None)
    assert table.code == lines.code == (3 if name == "hanging" else 1)
