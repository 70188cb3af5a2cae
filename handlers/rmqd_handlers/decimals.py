"""Decimals for columns with a fixed number of digits: up to 38, as in Arrow and Spark."""

from __future__ import annotations

from decimal import Context, Decimal, InvalidOperation
from typing import Final

MOST_DIGITS: Final = 38
_WIDEST: Final = Context(prec=MOST_DIGITS)  # Python's default has 28


def exactly(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return the number with `scale` digits after the decimal point.

    None if it has more digits after the point, more than `precision` in total, or is not finite.
    """
    try:
        made = number.quantize(Decimal(1).scaleb(-scale), context=_WIDEST)
    except InvalidOperation:  # more digits than any decimal has
        return None
    return made if made == number and len(made.as_tuple().digits) <= precision else None


def of_unscaled(unscaled: int, scale: int) -> Decimal:
    """Return the number with all digits of `unscaled`, `scale` of them after the decimal point."""
    return Decimal(f"{unscaled}E{-scale}")  # scaleb would round it
