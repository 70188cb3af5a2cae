"""Damaged frames do nothing but decode or raise the one error."""

from __future__ import annotations

from tests.wire.apart import figures
from tests.wire.fuzz import run

TRACED = """
import tracemalloc
from tests.wire.fuzz import run

run(50, seed=3)
tracemalloc.start()
run(1_000, seed=2)
print(*tracemalloc.get_traced_memory())
"""


def test_damaged_frames() -> None:
    """Twenty thousand of them: no other exception, no case that takes long. tests/campaigns runs many more."""
    report = run(20_000, seed=1)
    assert report.cases == 20_000
    assert report.slowest_seconds < 1.0
    # the cases reach what lies behind the frame, and do not all bounce off it
    assert report.commands > 5_000
    assert report.messages > 1_000
    assert report.corrupt > 50
    assert report.bodies > 1_000


def test_damaged_frames_take_no_memory() -> None:
    """Neither while they are decoded nor afterwards."""
    left, peak = figures(TRACED)
    assert peak < 256 * 1024 * 1024
    assert left < 2 * 1024 * 1024
