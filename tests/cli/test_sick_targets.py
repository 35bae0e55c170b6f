"""A sick target is shown sick: by the table, the exit code and the JSON of `aioresolve poll`, and by what
`Fleet.serve` and notebooks show.
"""

import asyncio
import json
import re
import urllib.request
from html import unescape
from pathlib import Path

import pytest

from aioresolve.fleet import Fleet, fleet_of
from tests.fleet.sickness import SICKNESSES, sick_target

from .process import Run, environment

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
    assert sickness.reason in rows[1][4]
    assert [*rows[2][1:3], rows[2][4]] == ["Ready 1/1", "worker:1", "<none>"]
    assert table.stderr == f"1 of 2 targets ready, {table.stderr.partition(', ')[2]}"
    assert f"1 {sickness.health}" in table.stderr
    documents = {found["name"]: found for found in map(json.loads, lines.stdout.splitlines())}
    assert documents["sick"]["health"] == sickness.health
    assert sickness.reason in documents["sick"]["reason"]
    assert (documents["well"]["health"], documents["well"]["reason"]) == ("ready", None)
    # On a busy machine, the deadline may pass during the last attempt.
    assert table.code == (3 if "no complete response" in rows[1][4] else 1)
    assert lines.code == (3 if "no complete response" in documents["sick"]["reason"] else 1)


@pytest.mark.parametrize("name", SICKNESSES)
async def test_sick_target_is_served_sick(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sickness = SICKNESSES[name]
    with sick_target(sickness, tmp_path) as (target, variables):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)
        text = json.dumps({"timeout": sickness.timeout, "targets": {"sick": target}})
        file = fleet_of(text, environ={})
        fleet = Fleet(file.targets, timeout=sickness.timeout, expected=file.expected)
        async with fleet, fleet.serve() as url:
            await fleet.resolve()
            served = json.loads(await asyncio.to_thread(content, f"{url}api/targets/sick"))
            event = json.loads(await asyncio.to_thread(first_event, f"{url}events"))
            metrics = await asyncio.to_thread(content, f"{url}metrics")
    assert served["health"] == event["targets"][0]["health"] == sickness.health
    assert sickness.reason in served["reason"]
    assert sickness.reason in event["targets"][0]["reason"]  # which the page shows
    assert f'aioresolve_target_health{{health="{sickness.health}",target="sick"}} 1.0' in metrics
    assert 'aioresolve_target_health{health="ready",target="sick"} 0.0' in metrics
    html = unescape(fleet.readings["sick"]._repr_html_())
    assert re.search(rf">sick</td><td[^>]*>{sickness.health.capitalize()}", html)
    assert sickness.reason in html


def content(url: str) -> str:
    with urllib.request.urlopen(url) as response:
        body: bytes = response.read()
    return body.decode()


def first_event(url: str) -> str:
    """Return the content of the first server-sent event."""
    with urllib.request.urlopen(url) as response:
        for line in response:
            if line.startswith(b"data: "):
                text: str = line.removeprefix(b"data: ").decode()
                return text
    raise EOFError
