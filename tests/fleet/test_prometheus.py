"""A real Prometheus scrapes a fleet, discovers its members, and accepts the metrics and the alerts."""

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
import yaml

from tests.programs import ROOT, free_port

from .test_server import PENDING, served

pytestmark = [pytest.mark.real, pytest.mark.slow]

EXAMPLE = ROOT / "examples" / "fleet-server"


def promtool(*arguments: object, text: str | None = None) -> str:
    """Run promtool; it has to succeed."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


async def test_metrics_follow_the_conventions() -> None:
    async with served("a", "b") as client:
        await client.show("a", PENDING)
        async with client.http.get(client.url + "metrics") as response:
            text = await response.text()
    assert promtool("check", "metrics", text=text) == ""


ALERTS = """
rule_files: [alerts.yml]
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
  - {series: 'aioresolve_targets', values: '2x20'}
  - {series: 'aioresolve_target_health{target="a", health="ready"}', values: '1x5 0x10'}
  - {series: 'aioresolve_target_health{target="a", health="stale"}', values: '0x5 1x10'}
  - {series: 'aioresolve_target_health{target="b", health="ready"}', values: '1x20'}
  alert_rule_test:
  - {eval_time: 5m, alertname: FleetTargetNotReady}
  - eval_time: 8m
    alertname: FleetTargetDoesNotRespond
    exp_alerts:
    - exp_labels: {severity: critical, target: a}
      exp_annotations:
        summary: The source of a does not respond
        description: Its members are unknown, or may be outdated.
  - eval_time: 11m
    alertname: FleetTargetNotReady
    exp_alerts:
    - exp_labels: {severity: warning, target: a, health: stale}
      exp_annotations:
        summary: a is stale
        description: The page of the fleet shows why, and which tasks are missing.
- interval: 1m
  input_series: [{series: 'up', values: '1x5'}]
  alert_rule_test:
  - eval_time: 3m
    alertname: FleetIsNotServed
    exp_alerts:
    - exp_labels: {severity: critical}
      exp_annotations:
        summary: No fleet reports its targets
        description: Check the pod of the fleet, and that Prometheus can reach it.
"""


def test_alerts_fire(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "alerts.yml", tmp_path)
    (tmp_path / "tests.yml").write_text(ALERTS)
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yml")
    assert "SUCCESS" in promtool("check", "config", EXAMPLE / "prometheus.yml")


@asynccontextmanager
async def prometheus(config: dict[str, Any], folder: Path) -> AsyncIterator[str]:
    """Run Prometheus with this configuration, and yield the URL of its API."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    shutil.copy(EXAMPLE / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(yaml.dump(config))
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    ]
    async with await anyio.open_process(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield f"http://{address}/api/v1/"
        finally:
            process.kill()


async def test_prometheus_scrapes_the_fleet_and_discovers_its_members(tmp_path: Path) -> None:
    config = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s"}
    fleet, members = config["scrape_configs"]
    async with served("a") as client, aiohttp.ClientSession() as http:
        await client.show("a", PENDING)
        fleet["static_configs"][0]["targets"] = [client.url.removeprefix("http://").rstrip("/")]
        members["http_sd_configs"][0]["url"] = client.url + "sd"

        async def get(path: str) -> Any:
            try:
                async with http.get(api + path) as response:
                    return (await response.json()).get("data", {})
            except (aiohttp.ClientError, ValueError):  # it is starting
                return {}

        async with prometheus(config, tmp_path) as api:
            found: list[Any] = []
            with anyio.fail_after(60):
                while not found:
                    found = (await get("query?query=aioresolve_target_health==1")).get("result", [])
                    await anyio.sleep(0.1)
            assert [each["metric"]["health"] for each in found] == ["degraded"]
            [member] = [
                each for each in (await get("targets"))["activeTargets"] if each["scrapePool"] == "members"
            ]
    assert member["scrapeUrl"] == "http://10.0.0.1:1/metrics"
    assert (
        member["labels"].items() >= {"target": "a", "task": "worker:0", "pod": "train-0", "node": "a"}.items()
    )
