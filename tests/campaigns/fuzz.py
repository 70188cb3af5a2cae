"""Fuzz: damaged frames at everything that decodes, until many have done nothing but decode or be refused."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.rocketmq.fetch import say
from tests.wire.fuzz import FuzzReport, run

FEWEST_FRAMES = 100_000
PART_FRAMES = 10_000
SLOWEST_SECONDS = 1.0
"""Processor time that a frame may take to be decoded or refused."""
PART_SECONDS = 60.0
"""Processor time of a part after which its frame counts as hanging; a part takes a few seconds."""
MOST_RSS_BYTES = 256 * 1024 * 1024
"""A body may decompress to 64 MiB: room for that a few times, beside the 30 MiB that the process takes."""


class FuzzError(Exception):
    """A campaign cannot go on in a directory."""


@dataclass(frozen=True, slots=True)
class Part:
    """Some frames of a run and what came of them: a line of the run's file."""

    seed: int
    seconds: float
    peak_rss_bytes: int
    report: FuzzReport

    def line(self) -> str:
        """The part as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def of(cls, line: str) -> Part:
        """A part that `line` wrote."""
        values: dict[str, Any] = json.loads(line)
        return cls(**{**values, "report": FuzzReport(**values["report"])})


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """What all parts of a run gave together."""

    seed: int
    parts: Sequence[Part]

    def total(self, name: str) -> int:
        """The sum of one of FuzzReport's counts."""
        return sum(getattr(part.report, name) for part in self.parts)

    @property
    def slowest(self) -> FuzzReport:
        """The report that has the slowest case."""
        return max((part.report for part in self.parts), key=lambda report: report.slowest_seconds)

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory that the process ever had."""
        return max(part.peak_rss_bytes for part in self.parts)

    @property
    def passed(self) -> bool:
        """No frame took long, and memory stayed bounded; another exception would have ended the run."""
        return self.slowest.slowest_seconds <= SLOWEST_SECONDS and self.peak_rss_bytes <= MOST_RSS_BYTES

    def report(self) -> str:
        """For the person who ran it."""
        slowest = self.slowest
        return (
            f"fuzz, seed {self.seed}: {self.total('cases')} frames, of which {self.total('commands')} still were "
            f"commands, with {self.total('messages')} messages and {self.total('corrupt')} corrupt ones; "
            f"slowest {slowest.slowest_seconds * 1000:.1f} ms (case {slowest.slowest_case}), "
            f"peak RSS {self.peak_rss_bytes / 2**20:.0f} MiB: {'passed' if self.passed else 'FAILED'}"
        )

    def cells(self) -> list[object]:
        """The row of docs/campaigns.md, without date and commit."""
        counts = [self.total(name) for name in ("cases", "commands", "messages", "corrupt", "refused")]
        seconds = f"{sum(part.seconds for part in self.parts):.0f}"
        slowest, rss = f"{self.slowest.slowest_seconds * 1000:.1f} ms", f"{self.peak_rss_bytes / 2**20:.0f} MiB"
        return [self.seed, *counts, seconds, slowest, rss]


class Fuzz:
    """One run in a directory; begun again with the same directory it goes on where it was cut."""

    def __init__(self, frames: int, seed: int, directory: Path, *, part_frames: int = PART_FRAMES) -> None:
        """Raises FuzzError for a directory in which another seed was run."""
        directory.mkdir(parents=True, exist_ok=True)
        self._frames = frames
        self._seed = seed
        self._path = directory / "parts.jsonl"
        self._part_frames = part_frames
        self._parts = _whole_parts(self._path)
        others = {part.seed for part in self._parts} - {seed}
        if others:
            raise FuzzError(
                f"{directory} holds a run with seed {others.pop()}, not {seed}: give that seed, or another --dir"
            )

    def run(self) -> FuzzResult:
        """Try the frames that were not tried yet; raises what a decoder should not raise, with the case in a note."""
        done = sum(part.report.cases for part in self._parts)
        with self._path.open("w") as file:  # without a last line that was cut
            file.writelines(part.line() for part in self._parts)
            while done < self._frames:
                part = self._try(done, min(self._part_frames, self._frames - done))
                self._parts.append(part)
                file.write(part.line())
                file.flush()
                done += part.report.cases
                say(
                    f"{done} of {self._frames} frames, slowest {part.report.slowest_seconds * 1000:.1f} ms, "
                    f"peak RSS {part.peak_rss_bytes / 2**20:.0f} MiB"
                )
        return FuzzResult(self._seed, tuple(self._parts))

    def _try(self, first: int, count: int) -> Part:
        begin = time.monotonic()
        with _bounded(PART_SECONDS):
            report = run(count, self._seed, first=first)
        rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return Part(self._seed, time.monotonic() - begin, rss_bytes, report)


@contextlib.contextmanager
def _bounded(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in what takes more processor time, so that a frame that hangs is named as one that raises."""

    def hangs(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"still not decoded after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _whole_parts(path: Path) -> list[Part]:
    """What earlier processes of the run finished; a line that a kill cut in two is not counted."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Part.of(line) for line in lines if line.endswith("\n")]
