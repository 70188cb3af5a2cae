"""Envelopes of Debezium: one row before and after, with and without their schema. Pure.

    {"op": "u", "before": {...}, "after": {"id": 7, "state": "paid"}, "ts_ms": 1772359200321,
     "source": {"db": "shop", "schema": "public", "table": "orders", "ts_ms": 1772359200000, "lsn": 24023128, ...}}

or the same as `payload`, next to a `schema` that gives the meaning of numbers and bytes. `op`: c created, u updated, d
deleted, r read by a snapshot, t truncated. A tombstone, which follows a deletion for Kafka's sake, has no body.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from .changes import NO_TOLD, BadChangeError, Change, Maker, at, is_of, parsed, rows_unnamed, tree, whole
from .columns import PER_SECOND, Told

OPS: Final = "cudrt"
_BEFORE_ALL_MS: Final = 1 << 53
"""Subtracted from the time of a snapshot row, to sort it before all changes: the read may be later than a change."""
_FILE_NUMBER: Final = re.compile(r".*\.([0-9]+)")
_FILE_BITS: Final = 40  # so that a file's number and a position in it form one number
_TIMES: Final = {
    "io.debezium.time.Timestamp": PER_SECOND["milliseconds"],
    "io.debezium.time.MicroTimestamp": PER_SECOND["microseconds"],
    "io.debezium.time.NanoTimestamp": PER_SECOND["nanoseconds"],
    "org.apache.kafka.connect.data.Timestamp": PER_SECOND["milliseconds"],
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


def debezium_changes(body: bytes, tables: Sequence[str], make: Maker) -> Iterator[Change]:
    """Yield the changes in a message: two if the key changed. Raises BadChangeError, BadValueError."""
    message = parsed(body) if body.strip() else None
    if message is None:  # a tombstone
        return
    message = tree(message, "the message")
    told = _told(message["schema"]) if isinstance(message.get("schema"), dict) else NO_TOLD
    if "payload" in message and "op" not in message:
        if message["payload"] is None:  # also a tombstone
            return
        message = tree(message["payload"], "payload")
    if "ddl" in message and "op" not in message:  # a message of the connector's own topic
        return
    op = message.get("op")
    if not isinstance(op, str) or len(op) != 1 or op not in OPS:
        raise BadChangeError(f"op is not an operation of Debezium's envelopes; expected one of {', '.join(OPS)}")
    source = tree(message.get("source"), "source")
    schema = source.get("schema") or source.get("db")
    if not is_of(tables, schema, source.get("table")):
        return
    if op == "t":
        raise BadChangeError(rows_unnamed(f"{schema}.{source.get('table')}", "was emptied (op t)"))
    time_ms = whole(source.get("ts_ms") or message.get("ts_ms"), "source.ts_ms")
    row = source.get("row")
    place = at(
        time_ms - _BEFORE_ALL_MS if op == "r" else time_ms, row if isinstance(row, int) else 0, _position(source)
    )
    before = message.get("before")
    if op == "d":
        yield make.goes(tree(before, "before"), place, told)
        return
    former = tree(before, "before") if op == "u" and before is not None else None
    yield from make.stays(tree(message.get("after"), "after"), former, place, told)


def _position(source: Mapping[str, Any]) -> int | None:
    """Return the position in the source's log: PostgreSQL's lsn, Oracle's scn, MySQL's file and position."""
    for name in ("lsn", "scn"):
        value = source.get(name)
        if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
            return int(value)
    file, place = source.get("file"), source.get("pos")
    match = _FILE_NUMBER.fullmatch(file) if isinstance(file, str) else None
    return (int(match[1]) << _FILE_BITS) + place if match and isinstance(place, int) else None


def _told(schema: Mapping[str, Any]) -> dict[str, Told]:
    """Return the schema's descriptions of a row's columns."""
    found = {}
    for part in _fields(schema):
        if part.get("field") not in ("before", "after"):
            continue
        for column in _fields(part):
            kind, parameters = column.get("name"), column.get("parameters")
            if kind in _TIMES:
                found[str(column.get("field"))] = Told(per_second=_TIMES[kind])
            elif kind == _DECIMAL and column.get("type") == "bytes" and isinstance(parameters, dict):
                found[str(column.get("field"))] = Told(scale=int(parameters.get("scale", 0)))
    return found


def _fields(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
