"""Flat messages of Canal: the rows of one event of MySQL's binlog, with values as text. Pure.

    {"type": "UPDATE", "database": "shop", "table": "orders", "es": 1772359200000, "isDdl": false, "pkNames": ["id"],
     "data": [{"id": "7", "state": "paid"}], "old": [{"state": "open"}], ...}

`old` has the previous values of the columns that an update changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from .changes import NO_TOLD, BadChangeError, Change, Maker, at, is_of, parsed, rows_unnamed, tree, whole

ROWS: Final = ("INSERT", "UPDATE", "DELETE")
# these remove rows without naming them
GONE: Final = {"TRUNCATE": "was emptied", "ERASE": "was dropped", "RENAME": "was renamed"}
# only the structure changes, or nothing at all; the last two belong to TiDB and Canal
WITHOUT_ROWS: Final = "CREATE ALTER CINDEX DINDEX QUERY GTID XACOMMIT XAROLLBACK MHEARTBEAT TIDB_WATERMARK".split()


def canal_changes(body: bytes, tables: Sequence[str], make: Maker) -> Iterator[Change]:
    """Yield the changes in a message, in their order. Raises BadChangeError, BadValueError."""
    message = tree(parsed(body), "the message")
    kind = str(message.get("type", "")).upper()
    if kind in WITHOUT_ROWS:
        return
    if kind not in ROWS and kind not in GONE:
        raise BadChangeError(
            f"type is not a type of Canal's flat messages; expected one of {', '.join((*ROWS, *GONE))}"
        )
    if not is_of(tables, message.get("database"), message.get("table")):
        return
    if kind in GONE:
        name = f"{message.get('database')}.{message.get('table')}"
        raise BadChangeError(rows_unnamed(name, f"{GONE[kind]} ({kind})"))
    time_ms = whole(message.get("es") or message.get("ts"), "es")
    rows = _rows(message.get("data"), "data")
    former = _rows(message["old"], "old") if kind == "UPDATE" and message.get("old") is not None else []
    for number, row in enumerate(rows):
        place = at(time_ms, number)
        if kind == "DELETE":
            yield make.goes(row, place, NO_TOLD)
        else:
            yield from make.stays(row, former[number] if number < len(former) else None, place, NO_TOLD)


def _rows(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadChangeError(f"{what} is not an array of rows")
    return [tree(row if row is not None or what == "data" else {}, f"a row of {what}") for row in value]
