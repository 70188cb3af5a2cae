"""A set of offsets, compared with Python's sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rmqd.operate.dead_letters.dead_letter import OffsetSet

MOST = 40
OFFSETS = st.integers(0, MOST)
RANGES = st.lists(st.tuples(OFFSETS, OFFSETS), max_size=12)


@given(RANGES, OFFSETS, OFFSETS)
def test_an_offset_set_equals_a_python_set(ranges: list[tuple[int, int]], low: int, high: int) -> None:
    spans = OffsetSet(ranges)
    expected = {offset for start, end in ranges for offset in range(start, end)}
    assert {offset for offset in range(MOST + 1) if offset in spans} == expected
    assert spans.count(low, high) == len(expected & set(range(low, high)))
    assert spans.first_missing(low) == next(offset for offset in range(low, MOST + 2) if offset not in expected)
    kept = list(spans)
    assert all(start < end for start, end in kept)
    assert all(before[1] < after[0] for before, after in pairwise(kept))
    assert bool(spans) is bool(expected)
