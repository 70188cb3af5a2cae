"""The demo's output: a live view on a terminal, otherwise one line per second; and the closing summary."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TextIO

from rmqd.demo.demo_view import (
    DEMO_RETRY_DELAYS,
    USUAL_RETRY_DELAYS,
    DemoFigures,
    DemoSetup,
    ScreenSize,
    one_line,
    render_frame,
)
from rmqd.runtime.histogram import HistogramSnapshot
from rmqd.runtime.live_screen import AlternateScreen
from rmqd.runtime.plain_text import format_age

DUMB_TERMINALS: Final = ("", "dumb", "unknown")


class LiveScreen:
    """The terminal's alternate screen: the previous content is restored at the end."""

    interval_seconds = 0.25

    def __init__(self, stream: TextIO) -> None:
        self._screen = AlternateScreen(stream)

    @contextlib.contextmanager
    def open(self, log: TextIO) -> Iterator[None]:
        """Show the screen in the block. Output of handlers and libraries is redirected to the log."""
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            with contextlib.suppress(OSError):
                self._screen.start(" rmqd demo is starting")
            try:
                yield
            finally:
                self._screen.stop()

    def show(self, setting: DemoSetup, figures: DemoFigures, hint: str) -> None:
        """Draw a frame over the previous one."""
        size = ScreenSize(*self._screen.size, ascii_only=self._screen.is_ascii)
        self._screen.show(render_frame(setting, figures, hint, size))


class PlainScreen:
    """Plain lines, if the output is not a terminal: one per second, and one for each dead letter."""

    interval_seconds = 1.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._told = 0
        self._is_begun = False

    @contextlib.contextmanager
    def open(self, log: TextIO) -> Iterator[None]:
        """Do nothing, because other output may appear between these lines."""
        yield

    def show(self, setting: DemoSetup, figures: DemoFigures, hint: str) -> None:
        """Write the lines that are new since the last call."""
        if not self._is_begun:
            self._is_begun = True
            self._write(f"embedded RocketMQ at {setting.nameserver}, in memory; group {setting.group_text}; {hint}")
            self._write(f"retries after {DEMO_RETRY_DELAYS} here instead of {USUAL_RETRY_DELAYS}; log: {setting.log}")
        account = figures.account
        letters = figures.dead_letters[: max(0, account.dead_letters - self._told)]
        self._told = account.dead_letters
        for letter in reversed(letters):
            self._write(f"dead letter {letter.key}: {one_line(letter.reason)}")
        self._write(
            f"{figures.elapsed_seconds:4.0f}s  {figures.state}: "
            f"in {figures.sent_per_second:.0f}/s, out {figures.handled_per_second:.0f}/s, lag {account.unhandled:,}, "
            f"sent {figures.sent:,}, acknowledged {account.acknowledged:,}, "
            f"waiting for a retry {account.waiting:,}, dead letters {account.dead_letters:,}"
            + (f"; {one_line(figures.problem)}" if figures.problem else "")
        )

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


DemoScreen = LiveScreen | PlainScreen
"""The demo calls `show` every `interval_seconds`. `show` raises OSError if the output was closed."""


def screen_for(stream: TextIO) -> DemoScreen:
    """Return a live screen for a terminal, else a plain one. Ignores rich's environment variables, which CI sets."""
    if stream.isatty() and os.environ.get("TERM", "") not in DUMB_TERMINALS:
        return LiveScreen(stream)
    return PlainScreen(stream)


MAX_SHOWN_REASONS: Final = 6
MAX_REASON_WIDTH: Final = 69


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """The last figures, and totals of the run. `ages` has seconds from storage to the end of the first attempt."""

    figures: DemoFigures
    ages: HistogramSnapshot
    reasons: Mapping[str, int]
    cpu_seconds: float
    last_failure: str
    """The producer's last failure."""
    is_subscription_filtered: bool
    log: str
    is_on_spark: bool = False

    def lines(self) -> Iterator[str]:
        figures, account = self.figures, self.figures.account
        seconds = max(figures.elapsed_seconds, 0.001)
        yield f"rmqd demo ran for {format_age(figures.elapsed_seconds)}"
        yield ""
        yield _line("sent", figures.sent, f"{figures.sent / seconds:.1f}/s")
        if figures.failed_sends:
            yield _line("failed sends", figures.failed_sends, self.last_failure)
        yield _line("acknowledged", account.acknowledged)
        yield _line("dead letters", account.dead_letters)
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1])[:MAX_SHOWN_REASONS]:
            yield f"{count:>8,}  {one_line(reason)[:MAX_REASON_WIDTH]}"
        yield _line("waiting for a retry", account.waiting, f"{figures.retried:,} sent back in total")
        if account.unhandled:
            yield _line("not handled", account.unhandled, "the group did not catch up in time")
        if account.unaccounted and self.is_subscription_filtered:
            yield _line("not subscribed to", account.unaccounted, "skipped by the group's filter")
        elif account.unaccounted:
            yield _line("not accounted for", account.unaccounted, "this is a bug; report it")
        yield ""
        yield f"  from stored to handled  {self._ages()}"
        yield f"  furthest behind         {figures.max_lag:,} messages"
        parts = "without Spark's processes" if self.is_on_spark else "all parts together"
        yield f"  CPU                     {self.cpu_seconds / seconds:.0%} of one core, {parts}"
        yield f"  log                     {self.log}"

    def _ages(self) -> str:
        if not self.ages.count:
            return "nothing was handled"
        p50, p99 = (f"{(self.ages.quantile(share) or 0.0) * 1000:,.0f} ms" for share in (0.5, 0.99))
        return f"p50 {p50}, p99 {p99}, at the first attempt"


def _line(label: str, count: int, remark: str = "") -> str:
    return f"  {label:<20}{count:>9,}  {remark}".rstrip()
