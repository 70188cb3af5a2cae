"""Values in PostgreSQL's text format. The column's type determines the format, so a message cannot have the wrong
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rmqd_handlers.message_values import Opened, Value, as_bytes, as_json, as_text, time_of


@dataclass(frozen=True, slots=True)
class Column:
    """A column to write, as the database describes it."""

    name: str
    type: str
    """The SQL name of its base type without a length: `numeric`, `text[]`."""
    base: str
    """The internal name of the type: `numeric`, `_text`."""
    category: str
    """PostgreSQL's category of types: A for arrays, D for dates and times, ..."""
    value: Value

    def text(self, opened: Opened) -> str | None:
        """Return the message's value as text in the format of the column's type. Raises InvalidBodyError."""
        value = self.value(opened)
        if value is None:
            return None
        if self.base in ("json", "jsonb"):
            return as_json(value)
        if self.base == "bytea":
            return f"\\x{as_bytes(value).hex()}"
        if self.category == "A" and isinstance(value, list):
            return _as_array(value)
        if self.category == "D" and self.value.is_timestamp:
            return time_of(value).isoformat()
        return as_text(value)


def _as_array(values: list[Any]) -> str:
    return "{" + ",".join(map(_as_element, values)) + "}"


def _as_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _as_array(value)
    escaped = as_text(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
