"""Makes the pictures of the page of a fleet in docs/screenshots/, with Debian's chromium and playwright.

python docs/screenshots.py
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from aioresolve import ClusterResolver, ClusterState, Endpoint, Fleet, Observation
from aioresolve.errors import ConnectionFailedError
from aioresolve.spec import Missing

if TYPE_CHECKING:
    from aioresolve import Progress, Want

FOLDER = Path(__file__).parent / "screenshots"
REGIONS = ("us-east", "us-west", "eu-west", "eu-north", "asia-east")
PICTURES = {
    "desktop": ("", 1280, 720, "light"),
    "dark": ("#us-west-slices", 1280, 720, "dark"),
    "phone": ("", 390, 720, "light"),
    "cells": ("", 1280, 720, "light"),
}
"""What each picture shows: the fragment of its URL, its size, and the color scheme."""


class Invented(ClusterResolver):
    """A cluster that shows what the page has to show."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self.name, self.number = name, number

    async def observe(self, want: Want, progress: Progress) -> Observation:
        is_tpu = "slices" in self.name
        missing: tuple[Missing, ...] = ()
        unready: tuple[Missing, ...] = ()
        tasks = [
            Endpoint(
                f"10.{self.number % 250}.0.{index}:8470",
                name=f"slice-{self.number}/worker-{index}" if is_tpu else f"trainer-{index}",
                namespace=None if is_tpu else "training",
                node=f"node-{index:02}",
                ready=not (self.number % 23 == 6 and index == 5),
                status="CrashLoopBackOff: 7 restarts" if self.number % 23 == 6 and index == 5 else "Running",
            )
            for index in range(16)
        ]
        match self.number % 23:
            case 3:
                raise ConnectionFailedError(f"cannot connect to https://{self.name}: connection refused")
            case 6:
                unready = (Missing("worker", tasks[5].full_name or "", tasks[5].status or ""),)
            case 9:
                reason = "Pending (Unschedulable: 0/5 nodes are available: 5 Insufficient google.com/tpu)"
                missing = (Missing("worker", "training/trainer-16", reason),)
            case 12:
                tasks = []
        return Observation(ClusterState.of({"worker": tasks}), missing, unready)


def invented_fleet(number: int) -> Fleet:
    names = [f"{REGIONS[n % 5]}-{('trainers', 'slices', 'servers')[n // 5 % 3]}" for n in range(number)]
    unique = [name if names.index(name) == n else f"{name}-{n // 15}" for n, name in enumerate(names)]
    return Fleet({name: Invented(name, n) for n, name in enumerate(unique)})


async def main() -> None:
    from playwright.async_api import async_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (fragment, width, height, scheme) in PICTURES.items():
            fleet = invented_fleet(1000 if name == "cells" else 60)
            await fleet.resolve()
            async with fleet.serve() as url:
                size = {"width": width, "height": height}
                page = await browser.new_page(viewport=size, color_scheme=scheme)
                await page.goto(url + fragment)
                await page.wait_for_selector("#detail h3" if fragment else "#grid button")
                await page.screenshot(path=FOLDER / f"{name}.png")
                await page.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
