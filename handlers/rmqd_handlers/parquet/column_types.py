"""Names of column types, for options. Available without pyarrow."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

from rmqd_handlers.message_values import MOST_DIGITS

NAMES: Final = "string binary int32 int64 float64 boolean timestamp date".split()
ACCEPTED: Final = f"{', '.join(NAMES)} or decimal(PRECISION, SCALE), with at most {MOST_DIGITS} digits"
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")


def checked_type(name: str) -> str:
    """Return the name of a type. Raises ValueError if it is invalid."""
    if name not in NAMES and decimal_of(name) is None:
        raise ValueError(f"{name!r} is not a type; expected {ACCEPTED}")
    return name


def decimal_of(name: str) -> tuple[int, int] | None:
    """Return precision and scale of a decimal type; None for other types."""
    match = _DECIMAL.fullmatch(name)
    if match is None or not 1 <= int(match[1]) <= MOST_DIGITS or int(match[2]) > int(match[1]):
        return None
    return int(match[1]), int(match[2])


TypeName = Annotated[str, AfterValidator(checked_type)]
