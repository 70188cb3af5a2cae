"""Rows of a table: what `postgresql` and `sql` have in common. Which columns, of which values, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    each other.
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


def _in_order(value: Any) -> str:
    return "" if value is None else str(value)
