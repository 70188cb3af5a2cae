"""The daemon in the event loop of the test, started by `run_daemon`. Tests read its log and send it signals."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx

from rmqd.daemon.daemon import RunOptions, run_daemon
from rmqd.runtime.logs.log_repeats import RepeatLimiter
from tests.waiting import eventually


class DaemonHere:
    """A daemon that runs in a task, with the methods of `DaemonProcess`."""

    def __init__(self, output: io.StringIO, exit_code: int, main: Coroutine[Any, Any, int] | None) -> None:
        self._output = output
        self._exit_code = exit_code
        self._task = asyncio.create_task(main) if main is not None else None
        self._clients: list[httpx.AsyncClient] = []

    @property
    def text(self) -> list[str]:
        """The lines on standard error so far."""
        return self._output.getvalue().splitlines(keepends=True)

    @property
    def log(self) -> list[dict[str, Any]]:
        """The lines of the log so far."""
        lines = []
        for line in self.text:
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return lines

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of that event so far."""
        return [line for line in self.log if line["event"] == name]

    async def event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait for the `count`-th line of that event."""

        def is_there() -> bool:
            found = len(self.events(name)) >= count
            assert found or (self._task is not None and not self._task.done()), f"it ended without {name}"
            return found

        try:
            await eventually(is_there, f"{name} in the log")
        except AssertionError as error:
            error.add_note("".join(self.text))
            raise
        return self.events(name)[count - 1]

    async def started(self) -> httpx.AsyncClient:
        """Wait until the daemon has started, and return a client of its HTTP endpoint."""
        line = await self.event("daemon.started")
        # no TLS, so do not load certificates
        client = httpx.AsyncClient(base_url=f"http://{line['http']}", timeout=30, trust_env=False, verify=False)
        self._clients.append(client)
        return client

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler), "it would end the tests"
        os.kill(os.getpid(), number)

    async def exit_code(self) -> int:
        """Wait for the end, and return the exit code."""
        for client in self._clients:  # the HTTP server waits for the connections
            await client.aclose()
        if self._task is not None:
            async with asyncio.timeout(60):
                self._exit_code = await self._task
            self._task = None
        return self._exit_code

    async def end(self) -> None:
        """Stop the daemon if it still runs."""
        for client in self._clients:
            await client.aclose()
        if self._task is not None and not self._task.done():
            self.send(signal.SIGTERM)
            self.send(signal.SIGTERM)
            async with asyncio.timeout(60):
                await self._task


@contextlib.asynccontextmanager
async def daemon_here(
    config: Path,
    *,
    groups: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> AsyncIterator[DaemonHere]:
    """`rmqd run` with a configuration, in this event loop. Stopped at the end of the block if it still runs.

    Run only one at a time: signals reach the daemon that started last, and the process holds the folder's lock.
    Handler modules are imported from PYTHONPATH of `environment`, and removed at the end.
    """
    mains: list[Coroutine[Any, Any, int]] = []
    output = io.StringIO()

    def keep(main: Coroutine[Any, Any, int]) -> int:
        mains.append(main)
        return 0

    with (
        patch.dict(os.environ, environment or {}),
        patch.object(sys, "path", [(environment or {}).get("PYTHONPATH", ""), *sys.path]),
        contextlib.redirect_stderr(output),
        # run the daemon's coroutine in the test's loop, and do not wait for a name server
        patch("rmqd.daemon.daemon.run_in_loop", keep),
        patch("rmqd.runtime.logs.log_setup.repeat_limiter", RepeatLimiter()),
        patch("rmqd.daemon.daemon.START_PATIENCE_SECONDS", 0.02),
    ):
        known = set(sys.modules)
        exit_code = run_daemon(RunOptions(config, groups=groups))
        running = DaemonHere(output, exit_code, mains[0] if mains else None)
        try:
            yield running
        finally:
            await running.end()
            for name in set(sys.modules) - known:
                if str(config.parent) in str(getattr(sys.modules[name], "__file__", "")):
                    del sys.modules[name]
