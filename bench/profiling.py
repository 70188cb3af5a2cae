"""`python -m bench profile`: rmqd's drain under a profiler."""

from __future__ import annotations

import pstats
import sys
import tempfile
from pathlib import Path

from bench.contenders import build
from bench.job import TLS
from bench.scenarios import Arena, Scenario, say, summary

SHOWN = 40


def profile(messages: int, scenario: Scenario, how: str) -> str:
    """Drain once under the sampler (`sample`) or cProfile (`trace`). Returns the report."""
    build(("rmqd",))
    opened = Arena.opened(messages, tls=scenario.switch == TLS)
    with tempfile.TemporaryDirectory(prefix="rmqd-profile-") as directory, opened as arena:
        report = Path(directory) / "report"
        if how == "sample":
            figures = arena.run(scenario, "rmqd", sample_file=report)
            text = report.read_text()
        else:
            prefix = (sys.executable, "-m", "cProfile", "-o", str(report), "-m", "rmqd")
            figures = arena.run(scenario, "rmqd", prefix=prefix)
            text = _trace_report(report)
    say(summary(figures))
    return text


def _trace_report(dump: Path) -> str:
    text = dump.with_suffix(".txt")
    with text.open("w") as stream:
        pstats.Stats(str(dump), stream=stream).strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    return text.read_text()
