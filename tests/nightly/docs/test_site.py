"""`make site`: the built pages, dead links, search in a browser, and small screens."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest

from rmqd.cli.app import COMMANDS
from tests.nightly.daemon.page.browsing import chromium
from tests.nightly.deploy.missing import missing

TOP = Path(__file__).parents[3]
pytestmark = [pytest.mark.process, pytest.mark.timeout(900), pytest.mark.xdist_group("site")]


def build(top: Path, site: Path) -> subprocess.CompletedProcess[str]:
    if find_spec("mkdocs") is None:
        missing("mkdocs is not installed: make site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOP), *sys.path])}
    return subprocess.run(command, cwd=top, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(TOP, folder)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_each_command_has_a_page(site: Path) -> None:
    commands = {words.split()[0] for words in COMMANDS if not words.startswith("_")}
    assert {page.stem for page in (site / "commands").glob("*.html")} == commands


def test_code_in_tables_has_no_backslash_before_a_bar(site: Path) -> None:
    for name, code in (("spark", "paid || refunded"), ("from-java", "rmqd groups mode GROUP TOPIC pop|pull")):
        assert f"<code>{code}</code>" in (site / f"{name}.html").read_text(), name


def test_each_dead_link_fails_the_build(tmp_path: Path) -> None:
    for name in ("mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"):
        shutil.copy(TOP / name, tmp_path)
    for name in ("docs", "deploy", "rmqd"):
        shutil.copytree(TOP / name, tmp_path / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "handlers" / "examples").mkdir(parents=True)  # pages link to it
    with (tmp_path / "docs" / "pop.md").open("a") as page:
        page.write("\n[a](nowhere.md), [b](ordering.md#nothing), [c](../rmqd/no.py)\n")

    built = build(tmp_path, tmp_path / "site")

    assert built.returncode != 0
    assert [link for link in ("nowhere.md", "ordering.md#nothing", "rmqd/no.py") if link not in built.stderr] == []
    assert built.stderr.count("\nWARNING") == 3


async def test_a_browser_can_search_pages_without_another_server(address: str) -> None:
    asked: list[str] = []
    async with chromium() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{address}/index.html")
        await page.locator("input.md-search__input").click()
        await page.keyboard.type("dead letters")
        await page.locator(".md-search-result__link").first.click()
        await page.wait_for_url("**/dead-letters.html**")
    assert [url for url in asked if not url.startswith((address, "blob:", "data:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_phone_shows_whole_lines_in_its_colour_scheme(address: str, scheme: str) -> None:
    async with chromium() as browser:
        page = await browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)  # type: ignore[arg-type]
        for name in ("index", "commands/offsets", "python-api", "migrating", "proof/index"):
            await page.goto(f"{address}/{name}.html")
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        shown = await page.evaluate("document.body.dataset.mdColorScheme")
    assert (shown == "slate") == (scheme == "dark")
