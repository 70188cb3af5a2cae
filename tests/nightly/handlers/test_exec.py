"""`exec`: the daily tests and others, on each event loop that rmqd supports."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rmqd_handlers.exec import CommandFailed
from tests.handlers.messages import meant
from tests.handlers.test_exec import (
    assert_dies,
    handle,
    make_exec,
    shell,
    test_a_command_does_not_get_the_daemons_secrets,
    test_any_other_status_is_a_failure_with_the_end_of_the_output,
    test_status_65_dead_letters_with_the_commands_output,
    test_status_75_asks_for_a_retry,
    test_the_command_reads_the_batch_as_json_lines,
    time_out,
)
from tests.waiting import wait_until

pytestmark = pytest.mark.process

__all__ = [
    "test_a_command_does_not_get_the_daemons_secrets",
    "test_any_other_status_is_a_failure_with_the_end_of_the_output",
    "test_status_65_dead_letters_with_the_commands_output",
    "test_status_75_asks_for_a_retry",
    "test_the_command_reads_the_batch_as_json_lines",
]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine on each event loop that rmqd supports."""

    def run_on_loop(coroutine: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run_on_loop


def test_a_background_process_of_a_command_is_ended_without_a_wait(run: Callable[[Any], Any], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    started = time.monotonic()
    run(handle(shell(f"sleep 300 & echo $! > {pid}")))

    assert time.monotonic() - started < 60
    assert_dies(pid.read_text().strip())


def test_a_command_need_not_read_its_input(run: Callable[[Any], Any]) -> None:
    run(handle(make_exec("true"), "x" * 5_000_000))


def test_a_start_that_is_cancelled_leaves_no_process(
    run: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine, a command can start other processes before its handler knows that it runs."""
    pids = tmp_path / "pids"
    start = asyncio.create_subprocess_exec

    async def start_on_a_busy_machine(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), "the command runs")
        begun.set()
        await asyncio.sleep(0)
        return process

    async def cancel_the_start() -> None:
        task = asyncio.create_task(handle(shell(f"sleep 300 & echo $$ $! > {pids}; wait", kill_after="100s")))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    begun = asyncio.Event()
    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_on_a_busy_machine)
    run(cancel_the_start())
    assert_dies(*pids.read_text().split())


def test_a_command_that_ignores_sigterm_is_killed_after_kill_after(run: Callable[[Any], Any], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = (
        "import os, pathlib, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"pathlib.Path({str(pid)!r}).write_text(f'{{os.getpid()}}\\n'); time.sleep(300)"
    )
    handler = make_exec(sys.executable, "-c", script, kill_after="200ms")
    assert_dies(*run(time_out(handler, pid)))


def test_no_descriptor_is_left_open(run: Callable[[Any], Any]) -> None:
    async def handle_some() -> tuple[int, int]:
        await handle(make_exec("true"))
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            await handle(make_exec("true"))
            with pytest.raises(CommandFailed):
                await handle(make_exec("false"))
        return before, len(list(Path("/proc/self/fd").iterdir()))

    before, after = run(handle_some())
    assert after <= before


def test_a_message_waits_while_the_program_is_missing(run: Callable[[Any], Any], tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    handler = make_exec(str(program))
    program.unlink()
    with pytest.raises(FileNotFoundError) as raised:
        run(handle(handler))
    assert meant(raised.value) == "again"


def test_a_message_waits_while_too_many_files_are_open(run: Callable[[Any], Any]) -> None:
    async def handle_with_few_descriptors(free: int) -> tuple[str, int]:
        handler, (soft, hard) = shell("true"), resource.getrlimit(resource.RLIMIT_NOFILE)
        await handle(handler)
        opened = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 4, hard))
        taken = []
        try:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(os.dup(0))
            for _ in range(free):
                os.close(taken.pop())
            with pytest.raises(OSError, match="Too many open files") as raised:
                await handle(handler)
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return meant(raised.value), len(os.listdir("/proc/self/fd")) - opened

    assert [run(handle_with_few_descriptors(free)) for free in range(4)] == [("again", 0)] * 4


def test_a_command_that_is_killed_is_a_failure(run: Callable[[Any], Any]) -> None:
    with pytest.raises(CommandFailed, match="SIGKILL"):
        run(handle(shell("kill -9 $$")))


def test_a_program_in_the_working_directory_runs_there(run: Callable[[Any], Any], tmp_path: Path) -> None:
    script = tmp_path / "work.sh"
    script.write_text("#!/bin/sh\npwd > where\n")
    script.chmod(0o755)

    run(handle(make_exec("./work.sh", cwd=str(tmp_path))))

    assert (tmp_path / "where").read_text().strip() == str(tmp_path)


def test_a_timeout_ends_the_command_and_its_child_processes(run: Callable[[Any], Any], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    handler = shell(f"sleep 300 & echo $$ $! > {pids}; wait", kill_after="100s")
    started = time.monotonic()
    left = run(time_out(handler, pids))
    assert time.monotonic() - started < 60  # the shell obeys SIGTERM, so kill_after does not apply
    assert_dies(*left)


def test_a_missing_working_directory_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="missing"):
        make_exec("true", cwd=str(tmp_path / "missing"))
