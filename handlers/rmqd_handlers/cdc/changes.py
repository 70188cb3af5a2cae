"""What a change of a row is, and what Canal's and Debezium's messages have in common. Pure."""

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
    """A message is not what its format says, or tells of something that no row can be."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row that is to be in the table, or, of which the key alone is known, that is not to be there."""

    row: Mapping[str, Any]
    is_deleted: bool
    time_ms: int
    """When it was in the source: less than 0 for a row that was only read there, which is before all changes."""
    number: int
    """Its place among the changes of the source's event."""
    position: int | None = None
    """Its place in the source's log, where that is told."""


class Maker:
    """Makes changes of what messages say of a row before and after."""

    def __init__(self, columns: tuple[Column, ...], keys: Sequence[str], reader: Reader) -> None:
        self._keys = tuple(keys)
        self._blank = dict.fromkeys(column.name for column in columns)
        self._reader = reader

    def stays(
        self, after: Mapping[str, Any], former: Mapping[str, Any] | None, place: Change, told: Mapping[str, Told]
    ) -> Iterator[Change]:
        """A row as it is to be; `former` are the values of its key before, those that are known."""
        row = self._reader.row(after, told)
        self._key(after, told)
        if former is not None:
            before = self._key({**after, **former}, told)
            if any(row[name] != value for name, value in before.items()):
                yield self._deletion(before, place)
        yield Change(row, False, place.time_ms, place.number + 1, place.position)

    def goes(self, before: Mapping[str, Any], place: Change, told: Mapping[str, Told]) -> Change:
        """The deletion of a row of which the key at least is known."""
        return self._deletion(self._key(before, told), place)

    def _deletion(self, key: Mapping[str, Any], place: Change) -> Change:
        return Change({**self._blank, **key}, True, place.time_ms, place.number, place.position)

    def _key(self, values: Mapping[str, Any], told: Mapping[str, Told]) -> dict[str, Any]:
        key = {name: self._reader.value(name, values.get(name), told.get(name, NOTHING_TOLD)) for name in self._keys}
        if missing := [name for name, value in key.items() if value is None]:
            raise BadChangeError(f"the row has no key: {', '.join(missing)} is not there")
        return key


def at(time_ms: int, row: int, position: int | None = None) -> Change:
    """Where a change is; a row of an event has two numbers: for the deletion of its former key, and for itself."""
    return Change({}, False, time_ms, row * 2, position)


def parsed(body: bytes) -> Any:
    """A body's JSON, numbers with a point exact. Raises BadChangeError."""
    try:
        return json.loads(body, parse_float=Decimal, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise BadChangeError(f"no JSON: {error}") from None


def is_of(tables: Sequence[str], schema: object, table: object) -> bool:
    """Whether a table is among those that are wanted, by patterns such as `shop.orders_*`."""
    return any(fnmatch.fnmatchcase(f"{schema}.{table}", pattern) for pattern in tables)


def whole(value: Any, what: str) -> int:
    """A whole number. Raises BadChangeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadChangeError(f"{what} is {described(value)}, and no whole number")
    return value


def tree(value: Any, what: str) -> Mapping[str, Any]:
    """A JSON object. Raises BadChangeError."""
    if not isinstance(value, dict):
        raise BadChangeError(f"{what} is no object")
    return value


def rows_unnamed(table: str, what: str) -> str:
    """Why a table that was emptied or dropped in the source makes no rows: none of its keys are known."""
    return (
        f"{table} {what}, an event of the whole table that names no rows to delete, and the copy keeps them; "
        "accepted: to delete them there by hand, and bad_rows: leave_out to go on"
    )


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")
