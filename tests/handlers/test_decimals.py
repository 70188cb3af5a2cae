"""Decimals fit a column exactly or are None: they are never rounded, up to a column's maximum of 38 digits."""

from __future__ import annotations

from decimal import Decimal

from rmqd_handlers.message_values import of_unscaled, with_scale

NINES = "9" * 20 + "." + "9" * 18


def test_a_decimal_that_fits_has_the_scale_of_its_column() -> None:
    expected = {
        ("1.5", 4, 2): "1.50",
        ("1.5000000", 4, 2): "1.50",
        ("-99.99", 4, 2): "-99.99",
        ("0", 2, 2): "0.00",
        ("0.05", 2, 2): "0.05",
        ("1e2", 3, 0): "100",
        ("0e50", 4, 2): "0.00",
        (NINES, 38, 18): NINES,
        (f"-{NINES}000", 38, 18): f"-{NINES}",
    }
    assert {case: str(with_scale(Decimal(case[0]), *case[1:])) for case in expected} == expected


def test_a_decimal_that_does_not_fit_is_none() -> None:
    cases = [
        *(("1.005", 4, 2), ("100", 4, 2), ("1", 2, 2), ("NaN", 4, 2), ("sNaN", 4, 2), ("Infinity", 4, 2)),
        *((f"1{NINES}", 38, 18), (f"{NINES}1", 38, 18), ("1e-999999", 38, 18), ("1e999999", 38, 18)),
    ]
    assert [case for case in cases if with_scale(Decimal(case[0]), *case[1:]) is not None] == []


def test_a_whole_number_and_a_scale_make_a_decimal() -> None:
    expected = {(-1250, 2): "-12.50", (7, 0): "7", (7, 3): "0.007", (7, -2): "700"}
    assert {case: of_unscaled(*case) for case in expected} == {case: Decimal(made) for case, made in expected.items()}


def test_a_whole_number_with_more_digits_than_any_column_is_not_rounded() -> None:
    digits = 10**39 + 1234

    assert str(of_unscaled(digits, 4)) == f"1{'0' * 35}.1234"
    assert with_scale(of_unscaled(digits, 4), 38, 2) is None
