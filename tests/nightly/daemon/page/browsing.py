"""A running daemon, and Debian's chromium to open its page."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from rmqd.broker.embedded_rocketmq import EmbeddedOptions, embedded_rocketmq
from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage
from tests.daemon.daemon_here import daemon_here
from tests.daemon.daemon_process import daemon
from tests.nightly.deploy.missing import missing

if TYPE_CHECKING:
    from playwright.async_api import Browser

HANDLER = """
import asyncio

async def mail(batch):
    await asyncio.sleep(0.005)
    for message in batch:
        if message.keys == "bad":
            batch.dead_letter(message, "customer has no address")
        elif message.keys == "worse":
            raise KeyError("city")
"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A headless browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        missing("chromium is not installed: apt-get install chromium")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        missing("playwright is not installed: make venv")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def working_daemon(
    folder: Path, *arguments: str, token: str = "", in_process: bool = False
) -> AsyncIterator[str]:
    """The URL of a daemon with two groups that handle some messages a second. A few messages fail."""
    (folder / "shop_handlers.py").write_text(HANDLER)
    async with embedded_rocketmq(EmbeddedOptions(topics={"orders": 4})) as rocketmq:
        handler = {"handler": {"plugin": "shop_handlers:mail"}, "subscriptions": {"orders": "*"}}
        config = {
            "nameserver": rocketmq.nameserver,
            "http": {"listen": "127.0.0.1:0", "token": token},
            "state_dir": str(folder / "state"),
            "log": {"format": "json"},
            "groups": {"mailer": handler, "audit": handler},
        }
        path = folder / "rmqd.yaml"
        path.write_text(yaml.safe_dump(config))
        environment = {"PYTHONPATH": str(folder)}
        start = (
            daemon_here(path, environment=environment)
            if in_process
            else daemon(path, *arguments, environment=environment)
        )
        async with start as running:
            client = await running.started()
            sending = asyncio.create_task(_send(rocketmq.nameserver))
            try:
                yield str(client.base_url)
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)


async def _send(nameserver: str) -> None:
    client = ClientInstance(ClientOptions(nameservers=(nameserver,)))
    try:
        for number in range(1_000_000):
            keys = {1: "bad", 2: "worse"}.get(number % 40, "good")
            await client.producer.send(OutgoingMessage("orders", b"{}", keys=keys))
            await asyncio.sleep(0.01)
    finally:
        await client.close()
