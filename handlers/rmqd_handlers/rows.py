"""Rows of a table: what `postgresql` and `sql` have in common. Which columns, of which values, and in which order."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final, TypeVar

from pydantic import Field

from rmqd import Batch, Message

from .message_values import InvalidBodyError, Opened, Value
from .refused import OnInvalid, refuse

T = TypeVar("T")

TABLE_PATTERN: Final = r"^[^.]+(\.[^.]+)?$"
COLUMNS_TEXT: Final = (
    "each column that is written, and its value: a JSON path into the body such as $.order.id, a field such as msg_id, "
    "or properties.NAME"
)
KEY: Final[Any] = Field(
    default_factory=list,
    description="the columns of a unique index: a row whose key is there is left out, or replaced by upsert; "
    "without, a message that comes again is written again",
)
VERSION: Final[Any] = Field(
    None, description="for upsert, a column by which a row is never replaced by one with a smaller value"
)
MAX_CONNECTIONS: Final[Any] = Field(
    4, ge=1, le=1000, description="connections of this process; batches beyond wait for one"
)


def check_key(columns: Mapping[str, Value], mode: str, key: Sequence[str], version: str | None) -> None:
    """Raises ValueError where options by which rows are known again do not fit each other."""
    if mode == "upsert" and not key:
        raise ValueError("mode: upsert needs a key: the columns of a unique index")
    if version is not None and mode != "upsert":
        raise ValueError("version is for mode: upsert alone")
    named = [*key, *([version] if version is not None else [])]
    if missing := [name for name in named if name not in columns]:
        raise ValueError(f"key and version name columns that are not written: {', '.join(missing)}")


def rows_of(
    batch: Batch, parts: Mapping[str, Callable[[Opened], T]], key: Sequence[str], on_invalid: OnInvalid
) -> list[tuple[Message, tuple[T, ...]]]:
    """The row of each message, its parts in their order. A message that cannot be one is decided about.

    With a key the rows are in the key's order: two batches that write the same keys in another order would wait for
    each other. Keys that the database may find equal keep the messages' order, so that the last of them is the last.
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
    """A value's place among those of its column: what the database may find equal is equal, and stays as it came.

    It may compare numbers by value, and texts without regard to case, accents, width, or spaces at the end.
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
    """The number that a value is, or that its text is: `postgresql` has all values as texts."""
    if isinstance(value, str):
        try:
            value = Decimal(value.strip())
        except InvalidOperation:
            return None
    if isinstance(value, Decimal):
        return value if value.is_finite() else None
    return value if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)) else None
