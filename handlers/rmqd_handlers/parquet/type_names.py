"""Names of the types that columns may have, for options: known also where pyarrow is not installed."""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator

from rmqd_handlers.decimals import MOST_DIGITS

NAMES: Final = "string binary int32 int64 float64 boolean timestamp date".split()
ACCEPTED: Final = f"{', '.join(NAMES)} or decimal(PRECISION, SCALE), with {MOST_DIGITS} digits at most"
_DECIMAL: Final = re.compile(r"decimal\(([0-9]{1,2}), ?([0-9]{1,2})\)")


def checked_type(name: str) -> str:
    """The name of a type. Raises ValueError."""
    if name not in NAMES and decimal_of(name) is None:
        raise ValueError(f"{name!r} is no type; accepted: {ACCEPTED}")
    return name


def decimal_of(name: str) -> tuple[int, int] | None:
    """Precision and scale of a type of decimals; None where it is another one."""
    match = _DECIMAL.fullmatch(name)
    if match is None or not 1 <= int(match[1]) <= MOST_DIGITS or int(match[2]) > int(match[1]):
        return None
    return int(match[1]), int(match[2])


TypeName = Annotated[str, AfterValidator(checked_type)]
