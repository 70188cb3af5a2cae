"""`rmqd top` in a terminal, with a daemon."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.daemon.daemon_process import daemon, write_config
from tests.rocketmq.spec import free_port
from tests.waiting import eventually


class Terminal:
    """A pseudo-terminal with `rmqd top` in it, and all that it has written."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.settings = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rmqd", "top", *arguments, "--interval", "0.2"],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "xterm"},
        )  # fmt: skip
        self.written = ""
        os.set_blocking(self._ours, False)
        asyncio.get_running_loop().add_reader(self._ours, self._read)

    def _read(self) -> None:
        self.written += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, keys: str) -> None:
        """Type keys, and discard the earlier output."""
        self.written = ""
        os.write(self._ours, keys.encode())

    async def shows(self, text: str) -> None:
        """Wait until it has written a text."""
        await eventually(lambda: text in self.written, f"{text!r} in the terminal", 90)

    async def ended(self) -> int:
        """Its exit code."""
        return await asyncio.to_thread(self.process.wait, 90)

    def is_as_before(self) -> bool:
        """Whether the settings, cursor and screen of the terminal are restored."""
        is_left = "\x1b[?1049l" in self.written and "\x1b[?25h" in self.written
        return is_left and termios.tcgetattr(self._theirs) == self.settings

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._ours)
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@asynccontextmanager
async def terminal(*arguments: str) -> AsyncIterator[Terminal]:
    one = Terminal(*arguments)
    try:
        yield one
    finally:
        one.close()


@pytest.mark.process
@pytest.mark.slow
async def test_a_group_is_paused_and_a_restarted_daemon_is_found(tmp_path: Path) -> None:
    config = write_config(tmp_path, "mailer", listen=f"127.0.0.1:{free_port(set(), (0,))}")
    config.write_text(config.read_text().replace('"}', '", token: "${TOKEN:-secret}"}', 1))
    async with daemon(config) as running:
        client = await running.started()
        async with terminal("--config", str(config)) as shown:
            await shown.shows("mailer")
            shown.press("p")
            await shown.shows("pause mailer? y/n")
            shown.press("y")
            await shown.shows("mailer is paused")
            assert (await client.get("/api/v1/status")).json()["groups"][0]["paused"] is True
            await running.end()
            await shown.shows("no answer for")
            async with daemon(config) as again:
                await again.started()
                shown.press("j")
                await shown.shows("1 group, ")
                shown.press("q")
                assert await shown.ended() == 0
                await eventually(shown.is_as_before, "the terminal is as it was")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("end", ["\x03", "SIGTERM"])
async def test_the_terminal_is_restored_however_top_ends(end: str, tmp_path: Path) -> None:
    async with daemon(write_config(tmp_path, "mailer")) as running:
        client = await running.started()
        async with terminal("--http", str(client.base_url)) as shown:
            await shown.shows("mailer")
            if end == "SIGTERM":
                shown.process.terminate()
            else:
                shown.press(end)
            assert await shown.ended() == (143 if end == "SIGTERM" else 0)
            await eventually(shown.is_as_before, "the terminal is as it was")
