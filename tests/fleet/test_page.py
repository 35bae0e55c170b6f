"""The page of a fleet, in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aioresolve.errors import ConnectionFailedError
from aioresolve.fleet import Fleet
from aioresolve.spec import ClusterState, DoneTask, Endpoint, Missing, Observation

from .browser import axe_core, browser_page, violations
from .fleets import Scripted, respond_with
from .test_server import served

pytestmark = [pytest.mark.real, pytest.mark.slow]

SLICE = ClusterState.of(
    {
        "worker": [
            Endpoint(f"10.0.0.{number}:8470", name=f"slice-a/worker-{number}", ready=number != 2)
            for number in range(4)
        ]
    }
)
READY = Observation(ClusterState.of({"worker": [Endpoint("10.0.0.1:1", name="train-0", ready=True)]}))
MARKUP = "<img src=x onerror=alert(1)>"
UNREADY = Missing("worker", "slice-a/worker-2", "not ready")
DEGRADED = Observation(SLICE, (Missing("worker", "slice-b", MARKUP),), (UNREADY,))


async def names(page: Any) -> list[str]:
    """Return the names of the targets in the grid, in its order."""
    found: list[str] = await page.locator("#grid button b").all_text_contents()
    return found


async def test_grid_is_filtered_and_sorted() -> None:
    async with served("b-2", "b-10", "sick", "gone") as client:
        await client.show("b-10", READY)
        await client.show("b-2", READY)
        await client.show("sick", DEGRADED)
        await client.show("gone", ConnectionFailedError("nothing listens"))
        async with browser_page(client.url) as page:
            assert await names(page) == ["gone", "sick", "b-2", "b-10"]
            assert await page.title() == "(2) Fleet"
            assert await page.inner_text("#summary") == "2 of 4 targets ready; 2 not ready"
            assert await page.get_attribute("#grid button", "title") == "gone: Error, nothing listens"
            await page.select_option("#sort", "name")
            assert await names(page) == ["b-2", "b-10", "gone", "sick"]
            await page.click("#filters .ready")
            assert await names(page) == ["gone", "sick"]
            await page.keyboard.press("/")
            await page.keyboard.type("LISTENS gone")
            assert await names(page) == ["gone"]
            await page.keyboard.type("x")
            assert await page.is_visible("#nothing")
            assert await page.inner_text("#summary") == "2 of 4 targets ready; 2 not ready; 0 shown"


async def test_target_is_opened_by_keyboard_and_link() -> None:
    async with served("a", "sick", "z") as client:
        for name, found in (("a", READY), ("sick", DEGRADED), ("z", READY)):
            await client.show(name, found)
        async with browser_page(client.url) as page:
            await page.focus("#grid button")
            await page.keyboard.press("ArrowRight")
            await page.keyboard.press("ArrowLeft")
            await page.keyboard.press("Enter")
            await page.wait_for_selector("#detail h3")
            text = await page.inner_text("#detail")
            assert "Degraded 3/5" in text
            assert MARKUP in text
            assert "slice-a: 4 hosts, of which 2 is not ready" in text
            assert await page.locator(".hosts .degraded").all_text_contents() == ["2"]
            rows = await page.locator("#detail tbody tr").all_text_contents()
            assert rows[:2] == [f"workerslice-b{MARKUP}", "workerslice-a/worker-2not ready"]
            assert rows[2].startswith("worker:010.0.0.0:8470slice-a/worker-0")
            assert len(rows) == 6
            assert page.url.endswith("#sick")
            await page.keyboard.press("Escape")
            assert not await page.is_visible("#detail")
            assert await page.evaluate("document.activeElement.querySelector('b').textContent") == "sick"
            await page.goto(f"{client.url}#a")
            await page.wait_for_selector("#detail h3")
            assert await page.inner_text("#detail-name") == "a"


async def test_tasks_that_are_done_are_listed_and_not_missing() -> None:
    last = Endpoint("10.0.0.2:1", name="train-1", ready=True, accelerators={"google.com/tpu": 4})
    state = replace(ClusterState.of({"worker": {1: last}}), done=(DoneTask("worker", 0, "ml/train-0"),))
    async with served("a") as client:
        await client.show("a", Observation(state))
        async with browser_page(f"{client.url}#a") as page:
            await page.wait_for_selector("#detail h3")
            assert "job worker: 2 hosts, of which 0 is done" in await page.inner_text("#detail")
            assert "Done: 1" in await page.inner_text("#detail")
            rows = await page.locator("#detail tbody tr").all_text_contents()
            assert rows == ["worker:110.0.0.2:1train-1ready4 google.com/tpu", "worker:0ml/train-0"]


async def test_change_arrives_live_also_in_the_opened_target() -> None:
    async with served("a", "b") as client:
        await client.show("a", READY)
        await client.show("b", READY)
        async with browser_page(f"{client.url}#a") as page:
            await page.wait_for_selector("#detail .badge.ready")
            await client.show("a", DEGRADED)
            await page.wait_for_selector("#detail .badge.degraded")
            assert await page.locator("#timeline .degraded").count() == 1
            assert await names(page) == ["a", "b"]
            client.fleet.remove("a")
            await page.wait_for_selector("#detail", state="hidden")
            assert await names(page) == ["b"]


async def test_lost_connection_is_shown_and_restored() -> None:
    fleet = Fleet({"a": Scripted(respond_with(2)), "b": Scripted(respond_with(1))})
    await fleet.resolve()
    async with fleet.serve() as url:
        opened = browser_page(url)
        page = await opened.__aenter__()
        assert await page.inner_text("#connection") == "live"
    await page.wait_for_selector("#connection.lost")
    fleet.remove("b")
    async with fleet.serve(port=int(url.rpartition(":")[2][:-1])):
        await page.wait_for_selector("#connection:not(.lost)")
        assert await names(page) == ["a"]
        await opened.__aexit__(None, None, None)


async def test_thousand_targets_are_painted_within_a_second_and_fit_on_a_screen() -> None:
    fleet = Fleet({f"target-{number}": Scripted(respond_with(3)) for number in range(1000)})
    await fleet.resolve()
    async with fleet.serve() as url, browser_page(url, viewport={"width": 1280, "height": 800}) as page:
        await page.wait_for_function("document.querySelectorAll('#grid button').length === 1000")
        painted = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert painted < 1000
        assert await page.evaluate("document.documentElement.scrollHeight") <= 800
        await page.fill("#search", "target-99")
        assert len(await names(page)) == 11


async def test_peers_are_merged() -> None:
    other = Fleet({"b": Scripted(respond_with(2))})
    mine = Fleet({"a": Scripted(respond_with(1))})
    await mine.resolve()
    await other.resolve()
    async with mine.serve() as first:
        mine_at = first
    port = int(mine_at.rpartition(":")[2][:-1])
    async with (
        other.serve(peers=[mine_at[:-1]]) as second,
        mine.serve(port=port, peers=[second[:-1]]) as url,
        browser_page(f"{url}?peers={second[:-1]}", servers=(url, second)) as page,
    ):
        await page.wait_for_function("document.querySelectorAll('#grid button').length === 2")
        assert await names(page) == ["a", "b"]
        assert await page.inner_text("#summary") == "2 of 2 targets ready"
        await page.click("#grid button >> nth=1")
        await page.wait_for_selector("#detail h3")
        assert "Members: 2" in await page.inner_text("#detail")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_page_is_accessible(scheme: str, width: int, tmp_path: Path) -> None:
    script = axe_core(tmp_path)
    found: dict[str, Observation | Exception] = {
        "ready": READY,
        "degraded": DEGRADED,
        "empty": Observation(ClusterState.of({"worker": []})),
        "error": ConnectionFailedError("nothing listens"),
        "stale": READY,
    }
    async with served(*found) as client:
        for name, observation in found.items():
            await client.show(name, observation)
        await client.show("stale", ConnectionFailedError("nothing listens"))
        options: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        async with browser_page(client.url, **options) as page:
            await page.evaluate(script)
            for view in ("cards", "cells"):
                await page.select_option("#view", view)
                assert await violations(page) == []
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            await page.click("#grid button.degraded")
            await page.wait_for_selector("#detail h3")
            assert await violations(page) == []
