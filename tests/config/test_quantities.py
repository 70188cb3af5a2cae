"""Durations and sizes with units."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.runtime.value_kinds import (
    format_duration,
    format_size,
    parse_duration_ms,
    parse_duration_seconds,
    parse_size_bytes,
)

DURATIONS = [("50ms", 0.05), ("5s", 5.0), ("15m", 900.0), ("1h", 3600.0), ("1.5s", 1.5), ("2d", 172_800.0), ("0s", 0.0)]


def test_a_duration_has_a_unit(subtests: pytest.Subtests) -> None:
    for text, seconds in DURATIONS:
        with subtests.test(text=text):
            assert parse_duration_seconds(text) == seconds


SIZES = [("256KiB", 262_144), ("100MiB", 104_857_600), ("1GiB", 1 << 30), ("0.5KiB", 512), ("7B", 7)]


def test_a_size_has_a_unit(subtests: pytest.Subtests) -> None:
    for text, size_bytes in SIZES:
        with subtests.test(text=text):
            assert parse_size_bytes(text) == size_bytes


NO_DURATIONS = [
    (5, "5 has no unit"),
    ("5", "'5' has no unit"),
    (1.5, "1.5 has no unit"),
    ("", "'' is not a duration"),
    ("-5s", "'-5s' is not a duration"),
    ("5S", "'5S' has an unknown unit 'S', known units are ms, s, m, h, d"),
    ("5s6", "'5s6' is not a duration"),
    ("٣s", "'٣s' is not a duration"),
    ("1e3s", "'1e3s' is not a duration"),
    (True, "True is not a duration"),
    (None, "None is not a duration"),
    ("9" * 400 + "s", "is longer than 100000d"),
]


def test_an_invalid_duration_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for value, reason in NO_DURATIONS:
        with subtests.test(value=value):
            with pytest.raises(ValueError, match=r".") as caught:
                parse_duration_ms(value)
            assert reason in str(caught.value)


def test_fractions_of_a_byte_and_too_large_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'0\.3B' is not a whole number of bytes"):
        parse_size_bytes("0.3B")
    with pytest.raises(ValueError, match=r"is more than 8388608GiB"):
        parse_size_bytes("9" * 400 + "GiB")


@given(st.integers(min_value=0, max_value=10**12))
def test_formatted_quantities_can_be_parsed_again(amount: int) -> None:
    assert parse_size_bytes(format_size(amount)) == amount
    assert parse_duration_ms(format_duration(amount)) == amount


@given(st.text())
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for parse in (parse_duration_ms, parse_size_bytes):
        with contextlib.suppress(ValueError):
            assert parse(text) >= 0
