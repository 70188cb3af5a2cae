"""Numbers, durations and times as the page writes them."""

from __future__ import annotations

import pytest

from rmqd.daemon.page import page_view as words


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, words.UNKNOWN),
        (0, "0 s"),
        (0.00085, "850 µs"),
        (0.0049, "4.9 ms"),
        (0.25, "250 ms"),
        (3.44, "3.4 s"),
        (59.9, "60 s"),
        (125, "2 min 5 s"),
        (7200, "2 h"),
        (12_345, "3 h 25 min"),
        (200_000, "2 d 7 h"),
    ],
)
def test_durations(value: float | None, written: str) -> None:
    """By the largest unit or two."""
    assert words.seconds(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(None, words.UNKNOWN), (9999, "9\u202f999"), (12_345, "12.3k"), (123_456, "123k"), (4_560_000, "4.6M")],
)
def test_counts(value: float | None, written: str) -> None:
    """In a column's width."""
    assert words.compact(value) == written


def test_rates_and_bounds() -> None:
    """A rate has a digit behind the point while that tells something."""
    assert [words.rate(value) for value in (0, 0.26, 99.94, 1234.5)] == ["0.0", "0.3", "99.9", "1\u202f234"]
    assert [words.bound(value) for value in (0.0025, 0.1, 2.5, 900)] == ["2.5 ms", "100 ms", "2.5 s", "15 min"]
