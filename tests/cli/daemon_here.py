"""The daemon in this process, in the test's event loop, for commands that query it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rmqd.daemon.daemon import Daemon, RunOptions, build_host, read_config
from rmqd.daemon.groups.supervisor import LoopMonitor
from rmqd.daemon.http.http_endpoint import listen_on
from rmqd.errors import ExitCode
from rmqd.runtime.clock import SystemClock
from rmqd.testing.rocketmq import logs_by_logging


@asynccontextmanager
async def daemon(path: Path) -> AsyncIterator[str]:
    """Run the groups of a configuration for the length of the block, as `rmqd run` does. Yields the HTTP address.

    SIGTERM stops it, and it must exit with 0.
    """
    options, clock = RunOptions(path), SystemClock()
    config, access = read_config(options)
    monitor = LoopMonitor(clock)
    with logs_by_logging():
        host = build_host(config, options, clock, monitor)
        sock = listen_on(config.http.listen)
        name, port = sock.getsockname()[:2]
        running = asyncio.create_task(Daemon(config, access, options, host, monitor, clock, sock).run())
        await asyncio.sleep(0)  # it handles signals from its first step on
        try:
            yield f"{name}:{port}"
        finally:
            if not running.done():
                os.kill(os.getpid(), signal.SIGTERM)
            assert await running == ExitCode.OK
