"""Log lines: what stands in them, who writes them, and how repeated ones are held back.

The core of these tests is in tests/runtime/test_logs.py.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import structlog

from rmqd.runtime.logs import log_setup as log_handlers
from tests.daemon.daemon_process import write_config
from tests.runtime.test_logs import pipe, read_until, restored
from tests.waiting import eventually

__all__ = ["pipe", "restored"]


@pytest.mark.process
@pytest.mark.parametrize(
    "module", ["cli.run_command", "runtime.event_loop", "daemon.daemon", "daemon.workers.worker_main"]
)
def test_what_a_start_imports_does_not_import_rich(module: str) -> None:
    """It would take as long as everything else that a start needs."""
    script = (
        f"import sys, rmqd.{module}, rmqd.runtime.event_loop, rmqd.daemon.daemon; "
        "print([name for name in sys.modules if name.split('.')[0] == 'rich'])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.slow
async def test_a_handler_that_logs_without_end_in_the_event_loop_is_held_to_a_rate(
    pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may not write is counted; our own events have their place."""
    monkeypatch.setattr(log_handlers, "LINES_PER_SECOND", 1)
    shop = logging.getLogger("shop")
    reader = asyncio.create_task(asyncio.to_thread(read_until, pipe, "end"))
    for _ in range(20_000):
        shop.info("again")
    structlog.get_logger("rmqd.test").info("ours")
    structlog.get_logger("rmqd.test").info("end")
    lines = await reader
    assert any(one["event"] == "ours" for one in lines)
    assert sum(one["event"] == "again" for one in lines) in range(10_000, 10_100)


@pytest.mark.process
async def test_a_daemon_whose_log_nobody_reads_answers_and_stops(tmp_path: Path) -> None:
    """Each reload writes a line, into a pipe that is full long before the last of them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rmqd", "run", "--config", str(write_config(tmp_path, "mailer", listen=address)),
        stderr=writing,
    )  # fmt: skip
    os.close(writing)
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            for _ in range(60):
                assert (await _ask(client)).status_code == 200
            assert (await client.get("/livez", timeout=5)).status_code == 200
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reading)


async def _ask(client: httpx.AsyncClient) -> httpx.Response:
    async def answer() -> httpx.Response | None:
        with suppress(httpx.ConnectError):  # it has not started yet
            return await client.post("/api/v1/reload", timeout=10)
        return None

    return await eventually(answer, "the endpoint answers", 30)


@pytest.mark.process
@pytest.mark.parametrize(
    ("closed", "more"), [(one, more) for one in ("2>&-", "0<&- 1>&- 2>&-") for more in ([], ["--workers", "2"])]
)
async def test_a_daemon_without_standard_streams_runs(tmp_path: Path, closed: str, more: list[str]) -> None:
    """It uses none of its connections in their place."""
    await run_without_streams(tmp_path, closed, *more)


async def run_without_streams(folder: Path, closed: str, *more: str) -> None:
    """Start a daemon with some of its standard streams closed, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", f'exec "$@" {closed}', "sh",
        sys.executable, "-m", "rmqd", "run", "--config", str(write_config(folder, "mailer", listen=address)), *more,
    )  # fmt: skip
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            while process.returncode is None:
                with suppress(httpx.ConnectError):  # it has not started yet
                    assert (await client.get("/livez", timeout=10)).status_code == 200
                    break
                await asyncio.sleep(0.01)
        assert os.readlink(f"/proc/{process.pid}/fd/2") == os.devnull
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
