"""The status page in a real browser, of a daemon that works: Debian's chromium, driven by playwright, judged by axe.

Skipped loudly where either is missing, failed where CI is set.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.nightly.daemon.page.browsing import chromium, working_daemon
from tests.waiting import eventually

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page, Request

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Visit:
    """A page that is open, and what went wrong with it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.foreign: list[str] = []
        self.errors: list[str] = []
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request, url))

    def _note(self, request: Request, url: str) -> None:
        if not request.url.startswith(url):
            self.foreign.append(request.url)

    async def text(self, selector: str) -> str:
        """What stands there now; empty where nothing does."""
        found = self.page.locator(selector).first
        return " ".join((await found.inner_text()).split()) if await found.count() else ""

    async def changes(self, selector: str) -> None:
        """Wait until it is another text."""
        before = await self.text(selector)

        async def is_other() -> bool:
            return bool(await self.text(selector) != before)

        await eventually(is_other, f"{selector} changes from {before!r}", 60)

    async def shows(self, selector: str, text: str) -> None:
        """Wait until this text is there."""

        async def is_there() -> bool:
            return text in await self.text(selector)

        await eventually(is_there, f"{selector} shows {text}", 60)


@asynccontextmanager
async def visit(browser: Browser, url: str, **context: Any) -> AsyncIterator[Visit]:
    """Open the page. At the end it must have complained of nothing, and have asked nobody but its daemon."""
    opened = await browser.new_context(**context)
    try:
        visited = Visit(await opened.new_page(), url)
        await visited.page.goto(url)
        yield visited
        assert visited.foreign == []
        assert visited.errors == []
    finally:
        await opened.close()


async def test_the_page_lives_and_a_group_is_paused_by_it(tmp_path: Path) -> None:
    """Numbers and charts move; a pause from the page holds, and shows; so does one from elsewhere."""
    async with working_daemon(tmp_path, in_process=True) as url, chromium() as browser, visit(browser, url) as visited:
        mailer = "#group-mailer"
        await visited.changes(f"{mailer} .totals")
        await visited.page.wait_for_selector(f"{mailer} [data-chart=throughput] path.line.handled")
        drawn = await visited.page.get_attribute(f"{mailer} [data-chart=throughput] path.line.handled", "d")

        async def is_drawn_anew() -> bool:
            now = await visited.page.get_attribute(f"{mailer} [data-chart=throughput] path.line.handled", "d")
            return now != drawn

        await eventually(is_drawn_anew, "the chart goes on", 60)
        await visited.shows(mailer, "customer has no address")
        await visited.shows(mailer, "KeyError('city')")

        await visited.page.click(f"{mailer} [data-switch=pause]")
        await visited.page.click("#question-yes")
        await visited.shows(f"{mailer} .tags", "paused")
        await visited.page.click(f"{mailer} [data-switch=resume]")
        await visited.shows(f"{mailer} .tags", "running")

        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.post("/api/v1/groups/audit/pause")).status_code == 200
            await visited.shows("#group-audit .tags", "paused")
            status = (await client.get("/api/v1/status")).json()
        assert {group["name"]: group["paused"] for group in status["groups"]} == {"mailer": False, "audit": True}
