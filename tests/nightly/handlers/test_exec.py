"""`exec`: the daily tests on each event loop that rmqd may run on, and one that takes a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.handlers.test_exec import (
    assert_dies,
    handle,
    shell,
    test_a_command_does_not_get_the_daemons_secrets,
    test_a_command_need_not_read_its_input,
    test_a_command_that_ignores_sigterm_is_killed_after_the_grace,
    test_a_command_that_is_killed_is_a_failure,
    test_a_start_that_is_cancelled_leaves_nothing,
    test_any_other_status_is_a_failure_with_the_end_of_the_output,
    test_at_a_timeout_the_command_ends_with_all_that_it_started,
    test_no_descriptor_is_left_open,
    test_status_65_dead_letters_with_what_the_command_said,
    test_status_75_asks_for_a_retry,
    test_the_command_reads_the_batch_as_json_lines,
    test_the_working_directory_and_its_programs,
)

pytestmark = pytest.mark.process

__all__ = [
    "test_a_command_does_not_get_the_daemons_secrets",
    "test_a_command_need_not_read_its_input",
    "test_a_command_that_ignores_sigterm_is_killed_after_the_grace",
    "test_a_command_that_is_killed_is_a_failure",
    "test_a_start_that_is_cancelled_leaves_nothing",
    "test_any_other_status_is_a_failure_with_the_end_of_the_output",
    "test_at_a_timeout_the_command_ends_with_all_that_it_started",
    "test_no_descriptor_is_left_open",
    "test_status_65_dead_letters_with_what_the_command_said",
    "test_status_75_asks_for_a_retry",
    "test_the_command_reads_the_batch_as_json_lines",
    "test_the_working_directory_and_its_programs",
]

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Runs a coroutine on each event loop that rmqd may run on."""

    def run_on_loop(coroutine: Any) -> Any:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(coroutine)

    return run_on_loop


def test_what_a_command_leaves_in_the_background_delays_nothing(run: Callable[[Any], Any], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    started = time.monotonic()
    run(handle(shell(f"sleep 300 & echo $! > {pid}")))

    assert time.monotonic() - started < 60
    assert_dies(pid.read_text().strip())
