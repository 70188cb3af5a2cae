"""Converts messages of Canal and Debezium to changes of rows. No I/O.

A flat message of Canal has the rows of one event of MySQL's binlog, with values as text:

    {"type": "UPDATE", "database": "shop", "table": "orders", "es": 1772359200000, "isDdl": false, "pkNames": ["id"],
     "data": [{"id": "7", "state": "paid"}], "old": [{"state": "open"}], ...}

`old` has the previous values of the columns that an update changed.

An envelope of Debezium has one row before and after a change, with or without a schema:

    {"op": "u", "before": {...}, "after": {"id": 7, "state": "paid"}, "ts_ms": 1772359200321,
     "source": {"db": "shop", "schema": "public", "table": "orders", "ts_ms": 1772359200000, "lsn": 24023128, ...}}

With a schema, the envelope is in `payload`, next to `schema`, which gives the meaning of numbers and bytes. `op`: c
created, u updated, d deleted, r read by a snapshot, t truncated. After a deletion, Debezium sends a tombstone without
a body, because Kafka needs it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rmqd.handler_api.destinations.exact_json import parse_exact_json
from rmqd_handlers.cdc.columns import PER_SECOND, ChangeColumn, ColumnSchema, ValueConverter, described

NO_COLUMN_SCHEMAS: Final[Mapping[str, ColumnSchema]] = {}


class BadChangeError(ValueError):
    """A message violates its format, or describes something that cannot become a row."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """A row to store or to delete. A row to delete may have only the values of its key."""

    row: Mapping[str, Any]
    is_deleted: bool
    time_ms: int
    """The change's time in the source, in ms since 1970. Negative for a row of a snapshot, so that it is first."""
    number: int
    """The change's index among the changes of one event of the source."""
    position: int | None = None
    """The change's position in the source's log; None if the message does not contain it."""


class ChangeMaker:
    """Creates changes from the values of a row before and after the change."""

    def __init__(self, columns: tuple[ChangeColumn, ...], keys: Sequence[str], reader: ValueConverter) -> None:
        self._keys = tuple(keys)
        self._blank = dict.fromkeys(column.name for column in columns)
        self._reader = reader

    def changes(
        self,
        after: Mapping[str, Any],
        former: Mapping[str, Any] | None,
        place: RowChange,
        schemas: Mapping[str, ColumnSchema],
    ) -> Iterator[RowChange]:
        """Yield the changes for a row to store. If its key has changed, the first change deletes the old key's row.

        `former` has the previous values of changed columns; None if unknown.
        """
        row = self._reader.row(after, schemas)
        self._key(after, schemas)
        if former is not None:
            before = self._key({**after, **former}, schemas)
            if any(row[name] != value for name, value in before.items()):
                yield self._deletion(before, place)
        yield RowChange(row, False, place.time_ms, place.number + 1, place.position)

    def deletion(self, before: Mapping[str, Any], place: RowChange, schemas: Mapping[str, ColumnSchema]) -> RowChange:
        """Return the deletion of a row. At least its key must be known."""
        return self._deletion(self._key(before, schemas), place)

    def _deletion(self, key: Mapping[str, Any], place: RowChange) -> RowChange:
        return RowChange({**self._blank, **key}, True, place.time_ms, place.number, place.position)

    def _key(self, values: Mapping[str, Any], schemas: Mapping[str, ColumnSchema]) -> dict[str, Any]:
        key = self._reader.row(values, schemas, self._keys)
        if missing := [name for name, value in key.items() if value is None]:
            raise BadChangeError(f"the row has no key: {', '.join(missing)} is missing")
        return key


def change_position(time_ms: int, row: int, position: int | None = None) -> RowChange:
    """Return a change without values. A row has two numbers: the first number is for the deletion of its old key."""
    return RowChange({}, False, time_ms, row * 2, position)


def parse_json_body(body: bytes) -> Any:
    """Parse a body as JSON, with Decimal for numbers with a decimal point. Raises BadChangeError."""
    try:
        return parse_exact_json(body)
    except ValueError as error:
        raise BadChangeError(f"not valid JSON: {error}") from None


def matches_table(tables: Sequence[str], schema: object, table: object) -> bool:
    """Return whether a table matches a pattern such as `shop.orders_*`."""
    return any(fnmatch.fnmatchcase(f"{schema}.{table}", pattern) for pattern in tables)


def as_whole_number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadChangeError(f"{what} is {described(value)}, not a whole number")
    return value


def as_json_object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadChangeError(f"{what} is not an object")
    return value


def unnamed_rows_error(table: str, what: str) -> str:
    """Return the error text for an emptied or dropped table, whose event does not contain the keys of its rows."""
    return (
        f"{table} {what}: this event does not name the rows, so the copy keeps them; "
        "delete them there by hand, and set bad_rows: leave_out to continue"
    )


ROW_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")
# statements that remove rows without listing them
TABLE_REMOVALS: Final = {"TRUNCATE": "was emptied", "ERASE": "was dropped", "RENAME": "was renamed"}
# types of messages without a change of rows, which are skipped; the last two types are from Canal and TiDB
ROWLESS_CHANGES: Final = "CREATE ALTER CINDEX DINDEX QUERY GTID XACOMMIT XAROLLBACK MHEARTBEAT TIDB_WATERMARK".split()


def canal_changes(body: bytes, tables: Sequence[str], make: ChangeMaker) -> Iterator[RowChange]:
    """Yield the changes in a message of Canal, in their order. Raises BadChangeError, BadValueError."""
    message = as_json_object(parse_json_body(body), "the message")
    kind = str(message.get("type", "")).upper()
    if kind in ROWLESS_CHANGES:
        return
    if kind not in ROW_CHANGES and kind not in TABLE_REMOVALS:
        raise BadChangeError(f"type is not one of Canal's types; expected {', '.join((*ROW_CHANGES, *TABLE_REMOVALS))}")
    if not matches_table(tables, message.get("database"), message.get("table")):
        return
    if kind in TABLE_REMOVALS:
        name = f"{message.get('database')}.{message.get('table')}"
        raise BadChangeError(unnamed_rows_error(name, f"{TABLE_REMOVALS[kind]} ({kind})"))
    time_ms = as_whole_number(message.get("es") or message.get("ts"), "es")
    rows = _rows(message.get("data"), "data")
    former = _rows(message["old"], "old") if kind == "UPDATE" and message.get("old") is not None else []
    for number, row in enumerate(rows):
        place = change_position(time_ms, number)
        if kind == "DELETE":
            yield make.deletion(row, place, NO_COLUMN_SCHEMAS)
        else:
            yield from make.changes(row, former[number] if number < len(former) else None, place, NO_COLUMN_SCHEMAS)


def _rows(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadChangeError(f"{what} is not an array of rows")
    return [as_json_object(row if row is not None or what == "data" else {}, f"a row of {what}") for row in value]


OPS: Final = "cudrt"
_BEFORE_ALL_MS: Final = 1 << 53
"""Subtracted from the time of a snapshot row, which is the time of the read, to sort the row before all changes."""
_FILE_NUMBER: Final = re.compile(r".*\.([0-9]+)")
_FILE_BITS: Final = 40  # bits for the position in a binlog file, below the bits of the file's number
_TIMES: Final = {
    "io.debezium.time.Timestamp": PER_SECOND["milliseconds"],
    "io.debezium.time.MicroTimestamp": PER_SECOND["microseconds"],
    "io.debezium.time.NanoTimestamp": PER_SECOND["nanoseconds"],
    "org.apache.kafka.connect.data.Timestamp": PER_SECOND["milliseconds"],
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


def debezium_changes(body: bytes, tables: Sequence[str], make: ChangeMaker) -> Iterator[RowChange]:
    """Yield the changes in a message of Debezium: two if the key changed. Raises BadChangeError, BadValueError."""
    message = parse_json_body(body) if body.strip() else None
    if message is None:  # a tombstone
        return
    message = as_json_object(message, "the message")
    schemas = _column_schemas(message["schema"]) if isinstance(message.get("schema"), dict) else NO_COLUMN_SCHEMAS
    if "payload" in message and "op" not in message:
        if message["payload"] is None:  # a tombstone has no payload either
            return
        message = as_json_object(message["payload"], "payload")
    if "ddl" in message and "op" not in message:  # a message of the connector's own topic
        return
    op = message.get("op")
    if not isinstance(op, str) or len(op) != 1 or op not in OPS:
        raise BadChangeError(f"op is not one of Debezium's operations; expected {', '.join(OPS)}")
    source = as_json_object(message.get("source"), "source")
    schema = source.get("schema") or source.get("db")
    if not matches_table(tables, schema, source.get("table")):
        return
    if op == "t":
        raise BadChangeError(unnamed_rows_error(f"{schema}.{source.get('table')}", "was emptied (op t)"))
    time_ms = as_whole_number(source.get("ts_ms") or message.get("ts_ms"), "source.ts_ms")
    row = source.get("row")
    place = change_position(
        time_ms - _BEFORE_ALL_MS if op == "r" else time_ms, row if isinstance(row, int) else 0, _position(source)
    )
    before = message.get("before")
    if op == "d":
        yield make.deletion(as_json_object(before, "before"), place, schemas)
        return
    former = as_json_object(before, "before") if op == "u" and before is not None else None
    yield from make.changes(as_json_object(message.get("after"), "after"), former, place, schemas)


def _position(source: Mapping[str, Any]) -> int | None:
    """Return the position in the source's log (PostgreSQL's lsn, Oracle's scn, MySQL's file and position), or None."""
    for name in ("lsn", "scn"):
        value = source.get(name)
        if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
            return int(value)
    file, place = source.get("file"), source.get("pos")
    match = _FILE_NUMBER.fullmatch(file) if isinstance(file, str) else None
    return (int(match[1]) << _FILE_BITS) + place if match and isinstance(place, int) else None


def _column_schemas(schema: Mapping[str, Any]) -> dict[str, ColumnSchema]:
    found = {}
    for part in _fields(schema):
        if part.get("field") not in ("before", "after"):
            continue
        for column in _fields(part):
            kind, parameters = column.get("name"), column.get("parameters")
            if kind in _TIMES:
                found[str(column.get("field"))] = ColumnSchema(per_second=_TIMES[kind])
            elif kind == _DECIMAL and column.get("type") == "bytes" and isinstance(parameters, dict):
                found[str(column.get("field"))] = ColumnSchema(scale=int(parameters.get("scale", 0)))
    return found


def _fields(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
