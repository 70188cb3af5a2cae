from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.handler import Delays, Drain
from bench.job import Figures
from bench.process_figures import STARTED


def batch(size: int, age_seconds: float = 0.0) -> list[Any]:
    stamp = f"{int((time.time() - age_seconds) * 1e6):016d}".encode()
    return [SimpleNamespace(body=stamp + b"000000000001abc") for _ in range(size)]


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


async def test_drain_prints_its_figures_once_after_all_messages(capsys: pytest.CaptureFixture[str]) -> None:
    drain = Drain({"messages": 5, "warm": 0, "sample_file": ""})
    await drain.handle(batch(3))
    assert lines(capsys) == []
    await drain.handle(batch(3))
    printed = lines(capsys)
    assert len(printed) == 1
    assert Figures.from_line(printed[0], time.time()) is not None
    await drain.handle(batch(3))
    assert lines(capsys) == []


async def test_drain_of_one_batch_has_figures(capsys: pytest.CaptureFixture[str]) -> None:
    await Drain({"messages": 5}).handle(batch(5))
    assert len(lines(capsys)) == 1


async def test_delays_leave_out_the_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    delays = Delays({"messages": 10, "warm": 4})
    await delays.handle(batch(4, age_seconds=100))
    assert lines(capsys) == [STARTED]
    await delays.handle(batch(6, age_seconds=0.25))
    figures = Figures.from_line(lines(capsys)[0], time.time())
    assert figures is not None
    assert figures.p50_ms == pytest.approx(250, abs=50)
    assert figures.p99_ms == pytest.approx(250, abs=50)


async def test_a_sampled_drain_writes_where_its_time_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report"
    drain = Drain({"messages": 2, "sample_file": str(report)})
    await drain.handle(batch(1))
    busy_until = time.process_time() + 0.05
    while time.process_time() < busy_until:
        pass
    await drain.handle(batch(1))
    assert "test_a_sampled_drain" in report.read_text()
    assert len(lines(capsys)) == 1
