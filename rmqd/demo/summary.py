"""The closing summary: the number of sent orders, where all of them are, and how long handling took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from rmqd.demo.figures import DemoFigures
from rmqd.demo.render import duration, one_line
from rmqd.histogram import HistogramSnapshot

MOST_REASONS: Final = 6
REASON_WIDTH: Final = 69


@dataclass(frozen=True, slots=True)
class Summary:
    """The last figures, and figures of the whole run. Ages are of first attempts, in seconds."""

    figures: DemoFigures
    ages: HistogramSnapshot
    reasons: Mapping[str, int]
    cpu_seconds: float
    last_failure: str
    """The producer's last failure."""
    is_filtered: bool
    log: str
    is_on_spark: bool = False

    def lines(self) -> Iterator[str]:
        """Yield the summary as lines of text."""
        figures, account = self.figures, self.figures.account
        seconds = max(figures.elapsed_seconds, 0.001)
        yield f"rmqd demo ran for {duration(figures.elapsed_seconds)}"
        yield ""
        yield _line("sent", figures.sent, f"{figures.sent / seconds:.1f}/s")
        if figures.failed:
            yield _line("failed sends", figures.failed, self.last_failure)
        yield _line("acknowledged", account.acknowledged)
        yield _line("dead letters", account.dead_letters)
        for reason, count in sorted(self.reasons.items(), key=lambda item: -item[1])[:MOST_REASONS]:
            yield f"{count:>8,}  {one_line(reason)[:REASON_WIDTH]}"
        yield _line("waiting for a retry", account.waiting, f"{figures.retried:,} sent back in total")
        if account.behind:
            yield _line("not handled", account.behind, "the group did not catch up in time")
        if account.missing and self.is_filtered:
            yield _line("not subscribed to", account.missing, "skipped by the group's filter")
        elif account.missing:
            yield _line("not accounted for", account.missing, "this is a bug; report it")
        yield ""
        yield f"  from stored to handled  {self._ages()}"
        yield f"  furthest behind         {figures.max_lag:,} messages"
        parts = "without Spark's processes" if self.is_on_spark else "all parts together"
        yield f"  CPU                     {self.cpu_seconds / seconds:.0%} of one core, {parts}"
        yield f"  log                     {self.log}"

    def _ages(self) -> str:
        if not self.ages.count:
            return "nothing was handled"
        p50, p99 = (f"{percentile(self.ages, share) * 1000:,.0f} ms" for share in (0.5, 0.99))
        return f"p50 {p50}, p99 {p99}, at the first attempt"


def percentile(histogram: HistogramSnapshot, share: float) -> float:
    """Return the bound that `share` of the values do not exceed; infinite if it is above all bounds."""
    wanted, seen = share * histogram.count, 0
    for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return float("inf")


def _line(label: str, count: int, remark: str = "") -> str:
    return f"  {label:<20}{count:>9,}  {remark}".rstrip()
