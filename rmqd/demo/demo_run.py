"""Opens the demo's screen, runs the demo, and prints the summary after the screen is closed.

The user sees output at once, because slow modules are imported while the screen is open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TextIO

from rmqd.demo.demo_orders import DemoOptions, DemoResult
from rmqd.demo.demo_screen import DemoScreen, screen_for
from rmqd.errors import ConfigError, ExitCode
from rmqd.runtime.logs import log_setup as logs

STDERR_DESCRIPTOR: Final = 2


def run_demo(options: DemoOptions) -> int:
    """Run the demo until a signal, or until a limit in the options is reached. Returns the exit code."""
    directory = Path(tempfile.mkdtemp(prefix="rmqd-demo-"))
    try:
        ending = _with_screen(options, directory, screen_for(sys.stdout))
    except ConfigError as error:
        shutil.rmtree(directory)
        for problem in error.problems:
            print(problem, file=sys.stderr)  # noqa: T201 for the user
        return ExitCode.CONFIG
    except KeyboardInterrupt:  # before the demo handles signals itself, so nothing must be stopped
        shutil.rmtree(directory)
        return ExitCode.OK
    try:
        print(ending.closing_text, flush=True)  # noqa: T201 the output of the command
    except OSError:  # the reader has gone, which is not a failure; the interpreter must not try again at exit
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return ending.exit_code


def _with_screen(options: DemoOptions, directory: Path, screen: DemoScreen) -> DemoResult:
    is_on_spark = options.engine == "spark"
    with (directory / "rmqd.log").open("a", encoding="utf-8") as log, screen.open(log), _errors_to(log, is_on_spark):
        logs.configure_logging("info", "console", stream=log)

        from rmqd.demo.demo_play import play_demo

        return play_demo(options, directory, Path(log.name), screen)


@contextlib.contextmanager
def _errors_to(log: TextIO, wanted: bool) -> Iterator[None]:
    """If `wanted`, redirect standard error to the log, also for Spark's processes. It would damage the view."""
    if not wanted:
        yield
        return
    sys.stderr.flush()
    former = os.dup(STDERR_DESCRIPTOR)
    os.dup2(log.fileno(), STDERR_DESCRIPTOR)
    try:
        yield
    finally:
        os.dup2(former, STDERR_DESCRIPTOR)
        os.close(former)
