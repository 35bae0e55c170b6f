"""A real browser (Debian's chromium, driven by playwright)."""

import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@asynccontextmanager
async def browser_page(
    url: str, *, shown: str = "#grid button", servers: Sequence[str] = (), **options: Any
) -> AsyncIterator[Any]:
    """Open a page until it shows an element; fail if it logs an error or contacts another server."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    api = pytest.importorskip("playwright.async_api", reason="pip install playwright")
    problems: list[str] = []
    allowed = (*servers, url.partition("#")[0].partition("?")[0], "data:")
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = await browser.new_context(**options)
        page = await context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("request", lambda request: _note_request(problems, allowed, request.url))
        page.on("console", lambda message: _note_message(problems, message))
        try:
            await page.goto(url)
            await page.wait_for_selector(shown)
            yield page
        finally:
            await browser.close()
    assert not problems


def _note_request(problems: list[str], allowed: tuple[str, ...], requested: str) -> None:
    if not requested.startswith(allowed):
        problems.append(f"request to {requested}")


def _note_message(problems: list[str], message: Any) -> None:
    # A browser logs each connection that the server refuses, as while it is stopped.
    if message.type in ("error", "warning") and "net::ERR" not in message.text:
        problems.append(f"{message.type}: {message.text}")


async def violations(page: Any, *impacts: str) -> list[str]:
    """Return the rules of axe-core that the page breaks, with the elements; only of `impacts`, if given."""
    # The page selects them: the whole result has megabytes.
    script = """impacts => axe.run({resultTypes: ["violations"]}).then(result => result.violations
      .filter(rule => !impacts.length || impacts.includes(rule.impact))
      .map(rule => `${rule.id}: ${rule.nodes.map(node => node.html)}`))"""
    found: list[str] = await page.evaluate(script, list(impacts))
    return found


def axe_core(folder: Path) -> str:
    """Return the script of axe-core, which npm downloads."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which has axe-core")
    command = [npm, "install", "--silent", "--no-save", "--prefix", str(folder), "axe-core@4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot install axe-core: {done.stderr[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text()
