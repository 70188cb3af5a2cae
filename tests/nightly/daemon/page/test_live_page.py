"""The status page of a running daemon in Debian's chromium, driven by playwright.

If chromium or playwright is missing, the tests are skipped with a message, and fail if CI is set.
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
    """An open page, with its errors and its requests to other servers."""

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
        """The present text of the first match; empty if there is no match."""
        found = self.page.locator(selector).first
        return " ".join((await found.inner_text()).split()) if await found.count() else ""

    async def changes(self, selector: str) -> None:
        """Wait until the text changes."""
        before = await self.text(selector)

        async def is_other() -> bool:
            return bool(await self.text(selector) != before)

        await eventually(is_other, f"{selector} changes from {before!r}", 60)

    async def shows(self, selector: str, text: str) -> None:
        """Wait until the element contains this text."""

        async def is_there() -> bool:
            return text in await self.text(selector)

        await eventually(is_there, f"{selector} shows {text}", 60)


@asynccontextmanager
async def visit(browser: Browser, url: str, **context: Any) -> AsyncIterator[Visit]:
    """Open the page. At the end, check that it logged no errors and sent requests only to its daemon."""
    opened = await browser.new_context(**context)
    try:
        visited = Visit(await opened.new_page(), url)
        await visited.page.goto(url)
        yield visited
        assert visited.foreign == []
        assert visited.errors == []
    finally:
        await opened.close()


async def test_the_page_updates_and_pauses_a_group(tmp_path: Path) -> None:
    """Numbers and charts change. The page also shows a pause by another client."""
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
