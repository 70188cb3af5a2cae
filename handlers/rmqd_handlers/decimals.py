"""Decimals of columns, whose type says how many digits there are: up to 38, as in Arrow and in Spark."""

from __future__ import annotations

from decimal import Context, Decimal, InvalidOperation
from typing import Final

MOST_DIGITS: Final = 38
_WIDEST: Final = Context(prec=MOST_DIGITS)  # Python's own has 28


def exactly(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """The number with `scale` digits behind the point.

    None where it has more behind it, or more than `precision` in all, or is not finite.
    """
    try:
        made = number.quantize(Decimal(1).scaleb(-scale), context=_WIDEST)
    except InvalidOperation:  # of what has more digits than any decimal
        return None
    return made if made == number and len(made.as_tuple().digits) <= precision else None


def of_unscaled(unscaled: int, scale: int) -> Decimal:
    """The number of which `unscaled` has all digits, `scale` of them behind the point, however many there are."""
    return Decimal(f"{unscaled}E{-scale}")  # by scaleb it would be rounded
