"""The daemon as a process: signals, exit codes, reloads. No cluster can be reached, and it must live with that.

The core of these tests is in tests/daemon/test_daemon.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rmqd.errors import ExitCode
from tests.daemon.daemon_process import daemon, plug_in, write_config


@pytest.mark.process
async def test_a_handler_that_cancels_every_task_ends_the_daemon_with_a_word(tmp_path: Path) -> None:
    """Nothing of it would work any more; who started it starts it again."""
    config = write_config(tmp_path, "mailer")
    environment = plug_in(
        config,
        "import asyncio\n"
        "class Handler:\n"
        "    async def start(self):\n"
        "        for task in asyncio.all_tasks():\n"
        "            task.cancel()\n"
        "    async def handle(self, batch): pass\n",
    )
    async with daemon(config, environment=environment) as running:
        assert await running.exit_code() == ExitCode.FAILURE
        assert "cancelled the daemon's tasks" in running.events("daemon.failed")[0]["error"]
