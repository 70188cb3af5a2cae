"""`eventually` and `wait_until`: the result, the longest wait, and the error after it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import waiting
from tests.waiting import eventually, wait_until


def at_the_third_time() -> Callable[[], str]:
    """A question whose third answer is the first true one."""
    answers = iter(("", "", "yes"))
    return lambda: next(answers)


async def test_the_first_true_answer_is_returned() -> None:
    question = at_the_third_time()

    async def asked() -> str:
        await asyncio.sleep(0)
        return question()

    assert await eventually(asked, "it is") == "yes"
    assert await eventually(at_the_third_time(), "it is") == wait_until(at_the_third_time(), "it is") == "yes"


async def test_a_timeout_reports_the_condition_and_the_last_answer() -> None:
    def no() -> list[Any]:
        return []

    with pytest.raises(AssertionError, match=r"^not within 0.01 s: it is there \(last: \[\]\)$"):
        await eventually(no, "it is there", 0.01)
    with pytest.raises(AssertionError, match=r"^not within 0.01 s: it is there \(last: \[\]\)$"):
        wait_until(no, "it is there", 0.01)
    with pytest.raises(AssertionError, match=r"^not within 0.01 s: it ends"):
        await eventually(asyncio.Event().wait, "it ends", 0.01)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a fake clock and fake files of /proc/pressure."""
    (tmp_path / "now").write_text("100.0")
    monkeypatch.setattr(time, "monotonic", lambda: float((tmp_path / "now").read_text()))
    monkeypatch.setattr(waiting, "PRESSURES", (tmp_path / "cpu", tmp_path / "io"))
    stall(tmp_path / "cpu", 7.0)
    return tmp_path


def stall(path: Path, seconds: float) -> None:
    """Write a pressure file in which some process has waited for this many seconds."""
    other = "full avg10=0.00 avg60=0.00 avg300=0.00 total=99000000"
    path.write_text(f"some avg10=0.32 avg60=4.21 avg300=4.79 total={seconds * 1e6:.0f}\n{other}\n")


@pytest.mark.parametrize(
    ("cpu_seconds", "io_seconds", "ends_after"),
    [(0, 0, 10), (0, None, 10), (5, 0, 15), (4, 3, 17), (90, 0, 30)],
)
def test_a_wait_is_longer_by_the_stalled_seconds_of_the_machine(
    machine: Path, cpu_seconds: float, io_seconds: float | None, ends_after: float
) -> None:
    """A wait is at most three times as long."""
    patience = waiting.Patience(10)
    stall(machine / "cpu", 7 + cpu_seconds)
    if io_seconds is not None:
        stall(machine / "io", io_seconds)
    (machine / "now").write_text(str(100 + ends_after))
    assert not patience.is_over()
    (machine / "now").write_text(str(100 + ends_after + 0.5))
    assert patience.is_over()
