"""Damaged frames do nothing but decode or raise the one error."""

from __future__ import annotations

import pytest

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


@pytest.mark.slow
def test_damaged_frames() -> None:
    """Ten thousand of them: no other exception, no case that takes long. tests/campaigns runs many more."""
    report = run(10_000, seed=1)
    assert report.cases == 10_000
    assert report.slowest_seconds < 1.0
    # the cases reach what lies behind the frame, and do not all bounce off it
    assert report.commands > 2_500
    assert report.messages > 500
    assert report.corrupt > 25
    assert report.bodies > 500


@pytest.mark.process
def test_damaged_frames_take_no_memory() -> None:
    """Neither while they are decoded nor afterwards."""
    left, peak = figures(TRACED)
    assert peak < 256 * 1024 * 1024
    assert left < 2 * 1024 * 1024
