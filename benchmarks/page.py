"""Measures the page and the server of a fleet of 1,000 targets.

    python benchmarks/page.py [--seconds 600]

First the targets do not change, and a browser (Debian's chromium) shows the page: the time until the first
paint and until all targets are shown, and the CPU of browser and server while nothing changes. Then the
targets are watched for `--seconds` under faults, with 20 readers of events: pods fail, recover, leave and
join, watches are reset, and the API server refuses requests. The figures are the memory of the process at the
beginning, after half of the time and at the end, and the lag of its event loop.

The targets are label selectors of one API server, `aioresolve.testing.KubernetesServer`, in its own process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
import time
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import aiohttp
import psutil

from aioresolve import Fleet, KubernetesClusterResolver
from aioresolve.testing import Answer, KubernetesServer, Reset, pod
from benchmarks.child_process import running, serve_requests
from benchmarks.report import Bar, bar_table, environment, write_json
from benchmarks.watch_server import allow_many_sockets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.testing import RequestRecord

TARGETS = 1000
READERS = 20
MEGABYTE = 1e6


# The API server, in its own process


async def serve_pods(folder: str) -> None:
    """Serve one pod for each target until stdin is closed, and change the pods on request."""
    allow_many_sockets()
    async with KubernetesServer([target_pod(number) for number in range(TARGETS)]) as server:
        server.write_kubeconfig(Path(folder) / "config")
        churn: list[asyncio.Task[None]] = []

        async def start() -> bool:
            churn.append(asyncio.create_task(disturb(server)))
            return True

        await serve_requests({"start": start, "ready": is_ready})


async def is_ready() -> bool:
    return True


def target_pod(number: int, **arguments: Any) -> dict[str, Any]:
    return pod(f"trainer-{number}", "ml", labels={"target": f"t{number}"}, **arguments)


async def disturb(server: KubernetesServer) -> None:
    """Change twenty pods a second, reset a watch each second, and refuse requests now and then."""
    for tick in range(10**9):
        number = random.randrange(TARGETS)
        match random.randrange(3):
            case 0:
                server.add(target_pod(number))
            case 1:
                server.add(target_pod(number, ready=False))
            case 2:
                server.add(target_pod(number, phase="Pending", node=None))
        if tick % 20 == 0:
            unlucky = f"target=t{random.randrange(TARGETS)}"
            server.disturb(Reset(), match=partial(selects, unlucky))
        if tick % 200 == 0:
            server.inject(Answer(503), times=5)
        await asyncio.sleep(0.05)


def selects(selector: str, request: RequestRecord) -> bool:
    return request.query.get("labelSelector") == selector


# The fleet


def fleet_of(kubeconfig: Path) -> Fleet:
    def resolver(number: int) -> KubernetesClusterResolver:
        return KubernetesClusterResolver(
            {"worker": f"target=t{number}"}, namespace="ml", kubeconfig=kubeconfig
        )

    return Fleet({f"target-{number:04}": resolver(number) for number in range(TARGETS)})


async def browser_figures(url: str, seconds: float) -> dict[str, float]:
    """Return the seconds until the page is painted and complete, and the shares of a CPU while idle."""
    from playwright.async_api import async_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1280, "height": 800})
        started_at = time.perf_counter()
        await page.goto(url)
        shown = f"document.querySelectorAll('#grid button').length === {TARGETS}"
        await page.wait_for_function(shown)
        complete = time.perf_counter() - started_at
        painted = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        before = cpu_seconds()
        await asyncio.sleep(seconds)
        server, all_processes = (after - then for after, then in zip(cpu_seconds(), before, strict=True))
        await browser.close()
    return {
        "painted": painted / 1000,
        "complete": complete,
        "server": server / seconds,
        "browser": (all_processes - server) / seconds,
    }


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds of this process, and those of it and the browser."""
    process = psutil.Process()
    own = sum(process.cpu_times()[:2])
    others = 0.0
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "chrom" in child.name():
                others += sum(child.cpu_times()[:2])
    return own, own + others


async def read_events(url: str, counts: list[int]) -> None:
    async with aiohttp.ClientSession() as http, http.get(url + "events", timeout=None) as response:
        async for line in response.content:
            counts[0] += line.startswith(b'data: {"targets"')


async def measure_lag(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        expected = loop.time() + 0.01
        await asyncio.sleep(0.01)
        lags.append(max(0.0, loop.time() - expected))


async def run(seconds: float, child: Any, kubeconfig: Path) -> Sequence[Bar]:
    allow_many_sockets()
    fleet = fleet_of(kubeconfig)
    memory = psutil.Process().memory_info
    async with fleet, fleet.serve() as url, asyncio.TaskGroup() as group:

        async def watch() -> None:
            async with aclosing(fleet.watch()) as statuses:
                async for _ in statuses:
                    pass

        tasks = [group.create_task(watch())]
        while len(fleet.readings) < TARGETS:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        page = await browser_figures(url, 10.0)
        counts, lags = [0], list[float]()
        tasks += [group.create_task(read_events(url, counts)) for _ in range(READERS)]
        child.request("start")
        await asyncio.sleep(min(30.0, seconds / 4))
        sizes = [memory().rss / MEGABYTE]
        tasks.append(group.create_task(measure_lag(lags)))
        for _ in range(2):
            end = time.monotonic() + seconds / 2
            while time.monotonic() < end:
                await asyncio.sleep(1.0)
                async with aiohttp.ClientSession() as http, http.get(url + "metrics") as response:
                    await response.read()
            sizes.append(memory().rss / MEGABYTE)
        for task in tasks:
            task.cancel()
    lags.sort()
    p99 = lags[int(len(lags) * 0.99)] * 1000
    first, half, last = sizes
    print(f"{counts[0]} events for {READERS} readers; memory {first:.0f}, {half:.0f}, {last:.0f} MB")
    return (
        Bar(what="first paint of 1,000 targets", measured=page["painted"] * 1000, most=1000, unit=" ms"),
        Bar(what="all 1,000 targets shown", measured=page["complete"] * 1000, most=3000, unit=" ms"),
        Bar(what="CPU of the server, idle", measured=page["server"] * 100, most=5, unit=" %"),
        Bar(what="CPU of the browser, idle", measured=page["browser"] * 100, most=5, unit=" %"),
        Bar(what="growth of memory under faults", measured=last - first, most=40, unit=" MB"),
        Bar(what="of it in the second half", measured=last - half, most=10, unit=" MB"),
        Bar(what="lag of the event loop, p99", measured=p99, most=50, unit=" ms"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the faults last")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve_pods(options.serve))
        return
    print(json.dumps(environment(("aioresolve", "aiohttp", "prometheus-client")), indent=2))
    with tempfile.TemporaryDirectory() as folder, running("benchmarks.page", "--serve", folder) as child:
        child.request("ready")
        bars = asyncio.run(run(options.seconds, child, Path(folder) / "config"))
    print(bar_table(bars))
    write_json("page", {bar.what: bar.measured for bar in bars})


if __name__ == "__main__":
    main()
