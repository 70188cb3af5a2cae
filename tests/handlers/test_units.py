"""Sizes and durations in options are written as in rmqd's own configuration."""

from __future__ import annotations

import pytest

from rmqd.runtime import value_kinds as quantities
from rmqd_handlers.option_kinds import parse_duration_seconds, parse_size_bytes


def test_a_size() -> None:
    sizes = {"0B": 0, "256KiB": 262144, "100 MiB": 104857600, "1.5GiB": 3 << 29}
    for parse in (parse_size_bytes, quantities.parse_size_bytes):
        assert {text: parse(text) for text in sizes} == sizes


def test_a_duration() -> None:
    durations = {"50ms": 0.05, "5s": 5, "15m": 900, "1h": 3600, "1.5s": 1.5, "2d": 172800}
    for parse in (parse_duration_seconds, quantities.parse_duration_seconds):
        assert {text: parse(text) for text in durations} == pytest.approx(durations)


def test_a_size_without_its_unit_is_refused_with_a_list_of_units() -> None:
    for text in (100, "100", "100MB", "-1KiB", "KiB", "", None, "1.5.5MiB", "1_0MiB"):
        with pytest.raises(ValueError, match="B, KiB, MiB, GiB"):
            parse_size_bytes(text)
        with pytest.raises(ValueError):  # noqa: PT011 - its words are the configuration's
            quantities.parse_size_bytes(text)
    with pytest.raises(ValueError, match="whole number of bytes"):
        parse_size_bytes("0.3B")


def test_a_duration_without_its_unit_is_refused() -> None:
    for text in (5, "5", "5 sec", "-5s", None):
        with pytest.raises(ValueError, match="ms, s, m, h, d"):
            parse_duration_seconds(text)
        with pytest.raises(ValueError):  # noqa: PT011 - its words are the configuration's
            quantities.parse_duration_seconds(text)
