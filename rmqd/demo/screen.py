"""The demo's output: a live view on a terminal, otherwise a line per second."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rmqd.demo.render import one_line
from rmqd.demo.view import ScreenSize, Setting, frame

if TYPE_CHECKING:
    from rmqd.demo.figures import DemoFigures

DUMB: Final = ("", "dumb", "unknown")


class Screen(Protocol):
    """Shows figures until it is closed. Raises OSError if the output is not visible any more."""

    interval_seconds: float
    """The interval between calls of `show`."""

    def open(self, log: TextIO) -> contextlib.AbstractContextManager[None]:
        """Take the terminal for a block; other output during the block is written to `log`. Raises nothing."""

    def show(self, setting: Setting, figures: DemoFigures, hint: str) -> None:
        """Show the present state."""


def screen_for(stream: TextIO) -> Screen:
    """Return the screen for the stream. Only the stream counts, not rich's variables, which CI systems set."""
    if stream.isatty() and os.environ.get("TERM", "") not in DUMB:
        return LiveScreen(stream)
    return PlainScreen(stream)


class LiveScreen:
    """The terminal's alternate screen: the previous content is restored at the end."""

    interval_seconds = 0.25

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            Text(" rmqd demo is starting"),
            console=self._console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    @contextlib.contextmanager
    def open(self, log: TextIO) -> Iterator[None]:
        """Redirect output of handlers and libraries to the log, because it would damage the view."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(log))
            stack.enter_context(contextlib.redirect_stderr(log))
            with contextlib.suppress(OSError):
                self._live.start(refresh=True)
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    self._live.stop()

    def show(self, setting: Setting, figures: DemoFigures, hint: str) -> None:
        """Draw over the last frame."""
        width, height = self._console.size
        size = ScreenSize(width, height, ascii_only=self._console.options.ascii_only)
        self._live.update(frame(setting, figures, hint, size), refresh=True)


class PlainScreen:
    """Lines for a log: one each second, and one for each dead letter."""

    interval_seconds = 1.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told = 0
        self._is_begun = False

    @contextlib.contextmanager
    def open(self, log: TextIO) -> Iterator[None]:
        """Do nothing: other lines may appear between these, also on standard error."""
        yield

    def show(self, setting: Setting, figures: DemoFigures, hint: str) -> None:
        """Write the lines that are new since the last call."""
        if not self._is_begun:
            self._is_begun = True
            self._write(f"embedded RocketMQ at {setting.nameserver}, in memory; group {setting.where}; {hint}")
            self._write(f"retries after {setting.delays} here instead of {setting.usual_delays}; log: {setting.log}")
        account = figures.account
        letters = figures.dead_letters[: max(0, account.dead_letters - self._told)]
        self._told = account.dead_letters
        for letter in reversed(letters):
            self._write(f"dead letter {letter.key}: {one_line(letter.reason)}")
        self._write(
            f"{figures.elapsed_seconds:4.0f}s  {figures.state}: "
            f"in {figures.in_rate:.0f}/s, out {figures.out_rate:.0f}/s, lag {account.behind:,}, "
            f"sent {figures.sent:,}, acknowledged {account.acknowledged:,}, "
            f"waiting for a retry {account.waiting:,}, dead letters {account.dead_letters:,}"
            + (f"; {one_line(figures.problem)}" if figures.problem else "")
        )

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
