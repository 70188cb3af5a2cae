"""The daemon as a child process on a free port. Tests read its log and send it signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.waiting import eventually

# No server listens on port 1: the daemon must run without a cluster.
CONFIG = """
nameserver: 127.0.0.1:1
state_dir: {state_dir}
http: {{listen: "{listen}"}}
log: {{format: json}}
groups:
"""
GROUP = """  {name}:
    subscriptions: {{orders: "*"}}
    handler: {{plugin: log}}
    {more}
"""
NEVER_STOPS = """
import asyncio
class Handler:
    def __init__(self, options): pass
    async def handle(self, batch): pass
    async def stop(self): await asyncio.sleep(3600)
"""


def write_config(folder: Path, *groups: str, listen: str = "127.0.0.1:0", more: str = "", extra: str = "") -> Path:
    """A configuration with these groups; `more` is one more key of each group, `extra` is added to the top level."""
    path = folder / "rmqd.yaml"
    text = CONFIG.format(state_dir=folder / "state", listen=listen)
    path.write_text(text + "".join(GROUP.format(name=name, more=more) for name in groups) + extra)
    return path


def plug_in(config: Path, source: str, options: str = "") -> dict[str, str]:
    """Make `Handler` of a new module the first group's handler. Returns the environment that finds the module."""
    (config.parent / "plugged_in.py").write_text(source)
    plugin = "plugin: 'plugged_in:Handler'" + (f", options: {options}" if options else "")
    config.write_text(config.read_text().replace("plugin: log", plugin, 1))
    return {"PYTHONPATH": str(config.parent)}


class DaemonProcess:
    """A running `rmqd run`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.log: list[dict[str, Any]] = []
        self.text: list[str] = []
        self._clients: list[httpx.AsyncClient] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.text.append(line.decode())
            with contextlib.suppress(ValueError):
                self.log.append(json.loads(line))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of that event so far."""
        return [line for line in self.log if line["event"] == name]

    async def event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th line of that event."""

        def is_there() -> bool:
            found = len(self.events(name)) >= count
            assert found or not self._reading.done(), f"it ended without {name}"
            return found

        try:
            await eventually(is_there, f"{name} in the log", 60)
        except AssertionError as error:
            error.add_note("".join(self.text))
            raise
        return self.events(name)[count - 1]

    async def started(self) -> httpx.AsyncClient:
        """Wait until the daemon has started, and return a client of its HTTP endpoint."""
        line = await self.event("daemon.started")
        client = httpx.AsyncClient(base_url=f"http://{line['http']}", timeout=30, trust_env=False)
        self._clients.append(client)
        return client

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the daemon."""
        os.kill(self.pid, number)

    async def exit_code(self) -> int:
        """Wait for the end, and return the exit code."""
        async with asyncio.timeout(60):
            await self._process.wait()
            await self._reading
        assert self._process.returncode is not None
        return self._process.returncode

    async def end(self) -> None:
        """Kill the process if it still runs."""
        for client in self._clients:
            await client.aclose()
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def daemon(
    config: Path, *arguments: str, environment: dict[str, str] | None = None, folder: Path | None = None
) -> AsyncIterator[DaemonProcess]:
    """`rmqd run` with a configuration, in a folder, killed at the end of the block if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rmqd", "run", "--config", str(config), *arguments,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, **(environment or {})}, limit=2**20, cwd=folder,
    )  # fmt: skip
    running = DaemonProcess(process)
    try:
        yield running
    finally:
        await running.end()
