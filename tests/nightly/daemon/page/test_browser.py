"""The status page of a running daemon in Debian's chromium, driven by playwright and checked by axe.

The core of these tests is in tests.nightly.daemon.page.test_live_page.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.nightly.daemon.page.browsing import chromium, working_daemon
from tests.waiting import eventually

if TYPE_CHECKING:
    pass

from tests.nightly.daemon.page.test_live_page import Visit, visit

pytestmark = [pytest.mark.process, pytest.mark.slow]
TOKEN = "correct horse"


async def test_the_page_shows_the_totals_of_the_api(tmp_path: Path) -> None:
    """Compared with two workers and paused groups, so that the totals do not change."""
    async with working_daemon(tmp_path, "--workers", "2") as url, chromium() as browser, visit(browser, url) as visited:
        await visited.changes("#group-mailer .totals")
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for group in ("mailer", "audit"):
                await client.post(f"/api/v1/groups/{group}/pause")

            async def agree() -> bool:
                groups = (await client.get("/api/v1/status")).json()["groups"]
                told = {group["name"]: list(group["totals"].values()) for group in groups}
                shown = {
                    name: [int(re.sub(r"\D", "", text)) for text in await _texts(visited, f"#group-{name} .totals dd")]
                    for name in told
                }
                return told == shown and all(values[0] > 0 for values in told.values())

            await eventually(agree, "the page and the API agree", 60)
        assert {"worker 1", "worker 2"} <= {text.split(",")[0] for text in await _texts(visited, "#group-mailer td")}


async def _texts(visited: Visit, selector: str) -> list[str]:
    found: list[str] = await visited.page.locator(selector).all_inner_texts()
    return found


async def test_updates_keep_scroll_position_focus_and_open_sections(tmp_path: Path) -> None:
    async with working_daemon(tmp_path) as url, chromium() as browser, visit(browser, url) as visited:
        page = visited.page
        await visited.shows("#group-mailer", "KeyError('city')")
        await page.click("#settings-mailer > summary")
        await page.focus("#group-audit .toggle")
        await page.evaluate("scrollTo(0, 300)")
        await page.evaluate("document.querySelector('#group-mailer h2').isMarked = true")
        await visited.changes("#group-mailer .totals")
        await visited.changes("#group-mailer .totals")
        assert await page.evaluate("document.querySelector('#settings-mailer').open")
        assert await page.evaluate("document.activeElement.closest('.group').dataset.group") == "audit"
        assert await page.evaluate("scrollY") == 300
        assert await page.evaluate("document.querySelector('#group-mailer h2').isMarked"), "the element is the same"
        await page.keyboard.press("Enter")  # the focused button folds its group
        await page.wait_for_selector("#group-audit .toggle[aria-expanded=false]")
        await page.reload()
        await page.wait_for_selector("#group-audit .body[hidden]", state="attached")


async def test_the_token_is_requested_once_and_stored_only_in_memory(tmp_path: Path) -> None:
    """After a wrong token is refused, the page asks for it again."""
    async with working_daemon(tmp_path, token=TOKEN) as url, chromium() as browser:
        opened = await browser.new_context()
        visited = Visit(await opened.new_page(), url)
        page = visited.page
        await page.goto(url)
        await page.click("#group-mailer [data-switch=pause]")
        await page.click("#question-yes")
        await page.fill("#token", "wrong")
        await page.click("#credentials button[value=yes]")
        await visited.shows("#credentials-text", "not the configured one")
        await page.fill("#token", TOKEN)
        await page.keyboard.press("Enter")
        await visited.shows("#group-mailer .tags", "paused")
        await page.click("#group-mailer [data-switch=resume]")
        await visited.shows("#group-mailer .tags", "running")
        await page.click("#reload")
        await page.click("#question-yes")
        await visited.shows("#said", "Reloaded. unchanged: audit, mailer")
        assert TOKEN not in page.url
        assert TOKEN not in await page.content()
        assert await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])") == "[{},{}]"
        assert visited.foreign == []
        await opened.close()


async def test_axe_finds_no_violations(tmp_path: Path) -> None:
    """Checked in light and dark, at desktop and phone width, with open sections, a paused group and a dialog."""
    async with working_daemon(tmp_path) as url, chromium() as browser:
        from axe_playwright_python.async_playwright import Axe

        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await client.post("/api/v1/groups/audit/pause")
        for scheme in ("light", "dark"):
            async with visit(browser, url, color_scheme=scheme) as visited:
                page = visited.page
                await visited.shows("#group-mailer", "KeyError('city')")
                await page.wait_for_selector("#group-mailer [data-chart=throughput] svg")
                await page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                for width in (1280, 390):
                    await page.set_viewport_size({"width": width, "height": 844})
                    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
                        "the page fits the width"
                    )
                    found = await Axe().run(page)
                    assert found.response["violations"] == [], found.generate_report()
                await page.click("#group-mailer [data-switch=pause]")
                found = await Axe().run(page)
                assert found.response["violations"] == [], found.generate_report()
