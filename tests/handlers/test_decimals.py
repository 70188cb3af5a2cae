"""Decimals of columns are exact, or none: nothing is rounded, with as many digits as a column may have."""

from __future__ import annotations

from decimal import Decimal

import pytest

from rmqd_handlers.decimals import exactly, of_unscaled

NINES = "9" * 20 + "." + "9" * 18


@pytest.mark.parametrize(
    ("number", "precision", "scale", "made"),
    [
        ("1.5", 4, 2, "1.50"),
        ("1.5000000", 4, 2, "1.50"),
        ("-99.99", 4, 2, "-99.99"),
        ("0", 2, 2, "0.00"),
        ("0.05", 2, 2, "0.05"),
        ("1e2", 3, 0, "100"),
        ("0e50", 4, 2, "0.00"),
        (NINES, 38, 18, NINES),
        (f"-{NINES}000", 38, 18, f"-{NINES}"),
    ],
)
def test_what_fits_has_the_digits_of_its_column(number: str, precision: int, scale: int, made: str) -> None:
    assert str(exactly(Decimal(number), precision, scale)) == made


@pytest.mark.parametrize(
    ("number", "precision", "scale"),
    [
        ("1.005", 4, 2),
        ("100", 4, 2),
        ("1", 2, 2),
        (f"1{NINES}", 38, 18),
        (f"{NINES}1", 38, 18),
        ("1e-999999", 38, 18),
        ("1e999999", 38, 18),
        ("NaN", 4, 2),
        ("sNaN", 4, 2),
        ("Infinity", 4, 2),
    ],
)
def test_what_has_other_digits_is_none(number: str, precision: int, scale: int) -> None:
    assert exactly(Decimal(number), precision, scale) is None


@pytest.mark.parametrize(
    ("unscaled", "scale", "made"), [(-1250, 2, "-12.50"), (7, 0, "7"), (7, 3, "0.007"), (7, -2, "700")]
)
def test_a_whole_number_and_its_scale(unscaled: int, scale: int, made: str) -> None:
    assert of_unscaled(unscaled, scale) == Decimal(made)


def test_a_whole_number_with_more_digits_than_any_column_is_not_rounded() -> None:
    digits = 10**39 + 1234

    assert str(of_unscaled(digits, 4)) == f"1{'0' * 35}.1234"
    assert exactly(of_unscaled(digits, 4), 38, 2) is None
