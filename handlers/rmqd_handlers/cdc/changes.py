"""A change of a row, and helpers for Canal's and Debezium's messages. Pure."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn

from .columns import NOTHING_TOLD, Column, Reader, Told, described

NO_TOLD: Final[Mapping[str, Told]] = {}


class BadChangeError(ValueError):
    """A message violates its format, or describes something that cannot become a row."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row to store, or to delete. A row to delete may have only its key."""

    row: Mapping[str, Any]
    is_deleted: bool
    time_ms: int
    """Its time in the source. Negative for a row from a snapshot, so that it precedes all changes."""
    number: int
    """Its index among the changes of the source's event."""
    position: int | None = None
    """Its position in the source's log, if the message contains it."""


class Maker:
    """Creates changes from a row's values before and after."""

    def __init__(self, columns: tuple[Column, ...], keys: Sequence[str], reader: Reader) -> None:
        self._keys = tuple(keys)
        self._blank = dict.fromkeys(column.name for column in columns)
        self._reader = reader

    def stays(
        self, after: Mapping[str, Any], former: Mapping[str, Any] | None, place: Change, told: Mapping[str, Told]
    ) -> Iterator[Change]:
        """Yield the changes for a row to store. `former` are the previous values of its key, if known."""
        row = self._reader.row(after, told)
        self._key(after, told)
        if former is not None:
            before = self._key({**after, **former}, told)
            if any(row[name] != value for name, value in before.items()):
                yield self._deletion(before, place)
        yield Change(row, False, place.time_ms, place.number + 1, place.position)

    def goes(self, before: Mapping[str, Any], place: Change, told: Mapping[str, Told]) -> Change:
        """Return the deletion of a row. At least its key must be known."""
        return self._deletion(self._key(before, told), place)

    def _deletion(self, key: Mapping[str, Any], place: Change) -> Change:
        return Change({**self._blank, **key}, True, place.time_ms, place.number, place.position)

    def _key(self, values: Mapping[str, Any], told: Mapping[str, Told]) -> dict[str, Any]:
        key = {name: self._reader.value(name, values.get(name), told.get(name, NOTHING_TOLD)) for name in self._keys}
        if missing := [name for name, value in key.items() if value is None]:
            raise BadChangeError(f"the row has no key: {', '.join(missing)} is missing")
        return key


def at(time_ms: int, row: int, position: int | None = None) -> Change:
    """Return the position of a change. Each row of an event has two numbers: for the deletion of its previous key, and
    for the row.
    """
    return Change({}, False, time_ms, row * 2, position)


def parsed(body: bytes) -> Any:
    """Return a body's JSON. Numbers with a decimal point are exact. Raises BadChangeError."""
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadChangeError(f"not valid JSON: {error}") from None


def is_of(tables: Sequence[str], schema: object, table: object) -> bool:
    """Return whether a table matches a pattern such as `shop.orders_*`."""
    return any(fnmatch.fnmatchcase(f"{schema}.{table}", pattern) for pattern in tables)


def whole(value: Any, what: str) -> int:
    """Return a whole number. Raises BadChangeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadChangeError(f"{what} is {described(value)}, not a whole number")
    return value


def tree(value: Any, what: str) -> Mapping[str, Any]:
    """Return a JSON object. Raises BadChangeError."""
    if not isinstance(value, dict):
        raise BadChangeError(f"{what} is not an object")
    return value


def rows_unnamed(table: str, what: str) -> str:
    """Return why a table that was emptied or dropped in the source has no rows: its keys are unknown."""
    return (
        f"{table} {what}: this event does not name the rows, so the copy keeps them; "
        "delete them there by hand, and set bad_rows: leave_out to continue"
    )


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not valid JSON")
