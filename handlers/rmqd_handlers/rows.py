"""Rows of a table, for `postgresql` and `sql`: their columns, values and order."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from pydantic import Field

from rmqd import Batch, Message
from rmqd_handlers.away import OnInvalid, refuse
from rmqd_handlers.message_values import InvalidBodyError, Opened, Value

T = TypeVar("T")

TABLE_PATTERN: Final = r"^[^.]+(\.[^.]+)?$"
COLUMNS_TEXT: Final = (
    "each column to write, and its value: a JSON path into the body such as $.order.id, a field such as msg_id, "
    "or properties.NAME"
)
KEY: Final[Any] = Field(
    default_factory=list,
    description="the columns of a unique index: a row with an existing key is skipped, or replaced with upsert; "
    "without a key, a redelivered message is written again",
)
VERSION: Final[Any] = Field(
    None, description="for upsert, a column: a row with a smaller value in it does not replace an existing row"
)
MAX_CONNECTIONS: Final[Any] = Field(
    4, ge=1, le=1000, description="connections of this process; further batches wait for one"
)


def check_key(columns: Mapping[str, Value], mode: str, key: Sequence[str], version: str | None) -> None:
    """Raise ValueError if the options that identify rows do not fit together."""
    if mode == "upsert" and not key:
        raise ValueError("mode: upsert needs a key: the columns of a unique index")
    if version is not None and mode != "upsert":
        raise ValueError("version needs mode: upsert")
    named = [*key, *([version] if version is not None else [])]
    if missing := [name for name in named if name not in columns]:
        raise ValueError(f"key or version is not one of the columns: {', '.join(missing)}")


def rows_of(
    batch: Batch, parts: Mapping[str, Callable[[Opened], T]], key: Sequence[str], on_invalid: OnInvalid
) -> list[tuple[Message, tuple[T, ...]]]:
    """Return the row of each message, with its parts in order. Decides about messages that cannot be rows.

    With a key, the rows are sorted by it: otherwise two batches that write the same keys could deadlock. Keys that the
    database may consider equal keep the messages' order, so that the last one wins.
    """
    rows: list[tuple[Message, tuple[T, ...]]] = []
    for message in batch:
        opened = Opened(message)
        try:
            rows.append((message, tuple(part(opened) for part in parts.values())))
        except InvalidBodyError as error:
            refuse(batch, message, error, on_invalid)
    if key:
        at = [list(parts).index(name) for name in key]
        rows.sort(key=lambda row: [_in_order(row[1][place]) for place in at])
    return rows


def _in_order(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value in its column. Values that the database may consider equal are equal, and keep
    their order.

    A database may compare numbers by value, and texts without regard to case, accents, width, or trailing spaces.
    """
    if value is None:
        return 0, 0
    number = _finite(value)
    if number is not None:
        return 1, number
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if not text.isascii():
        text = "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))
        text = unicodedata.normalize("NFKC", text.casefold())
    return 2, text.casefold().rstrip()


def _finite(value: Any) -> int | float | Decimal | None:
    """Return the number in a value or in its text. `postgresql` has all values as text."""
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else None
