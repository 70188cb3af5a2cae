"""`cdc`: what messages of Canal and Debezium say of rows, message by message."""

from __future__ import annotations

import base64
import json
import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from rmqd_handlers.cdc.pipeline import Decoder, Options
from tests.handlers.options import refused_otherwise

SCHEMA = "id bigint, name string, amount decimal(12,2), paid boolean, day date, at timestamp, raw binary, share double"
TIME_MS = 1_772_359_200_000  # 2026-03-01T10:00:00Z
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
GIVEN: dict[str, Any] = {
    "format": "canal", "tables": ["shop.orders"], "schema": SCHEMA, "keys": ["id"], "order": "time",
}  # fmt: skip
BLANK = dict.fromkeys("name amount paid day at raw share".split())
BEFORE_ALL = TIME_MS - (1 << 53)


def decoder(**options: Any) -> Decoder:
    given = {**GIVEN, **options}
    made: Decoder = pickle.loads(pickle.dumps(Decoder(Options.model_validate(given))))  # as executors have it
    return made


def changes(message: Any, **options: Any) -> list[tuple[dict[str, Any], bool, list[int]]]:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    made = decoder(**options)
    return [(dict(change.row), change.is_deleted, order) for change, order in made.changes(body, 7)]


def reason(message: Any, **options: Any) -> str:
    return decoder(**options).reason(message if isinstance(message, bytes) else json.dumps(message).encode())


def canal(kind: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "database": "shop", "table": "orders", "es": TIME_MS, "ts": TIME_MS + 321, "id": 3,
        "isDdl": False, "pkNames": ["id"], "sql": "", "mysqlType": {"id": "bigint"}, "sqlType": {"id": -5},
        "data": list(rows) or None, "old": None, **more,
    }  # fmt: skip


def canal_of_id(number: bytes) -> bytes:
    """With a key that is a number as no JSON library here writes it."""
    return json.dumps(canal("INSERT", {"id": None})).encode().replace(b'"id": null', b'"id": ' + number)


def debezium(op: str, before: Any = None, after: Any = None, **source: Any) -> dict[str, Any]:
    where = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "ts_ms": TIME_MS}
    return {"op": op, "before": before, "after": after, "source": {**where, **source}, "ts_ms": TIME_MS + 321}


DEBEZIUM: dict[str, Any] = {"format": "debezium", "tables": ["public.orders"]}

# --- Canal


def test_canals_texts_become_values_of_the_columns() -> None:
    row = {
        "id": "7", "name": "käuflich", "amount": "12.50", "paid": "1", "day": "2026-03-01", "share": "0.25",
        "at": "2026-03-01 10:00:00", "raw": "\x00ÿ", "more": "of no column",
    }  # fmt: skip
    made = {
        "id": 7, "name": "käuflich", "amount": Decimal("12.50"), "paid": True, "day": date(2026, 3, 1), "share": 0.25,
        "at": AT, "raw": b"\x00\xff",
    }  # fmt: skip
    assert changes(canal("INSERT", row)) == [(made, False, [TIME_MS, 7, 1])]
    assert changes(canal("INSERT", {"id": "8", "at": "0000-00-00 00:00:00"})) == [
        ({"id": 8, **BLANK}, False, [TIME_MS, 7, 1])
    ]


def test_each_row_of_an_event_has_its_place() -> None:
    """A new key is a deletion of the former one just before; keys may be handed on from row to row."""
    message = canal("UPDATE", {"id": "3"}, {"id": "2"}, {"id": "9"}, old=[{"id": "2"}, {"id": "1"}, {"name": "x"}])
    assert [(row["id"], deleted, order) for row, deleted, order in changes(message)] == [
        (2, True, [TIME_MS, 7, 0]),
        (3, False, [TIME_MS, 7, 1]),
        (1, True, [TIME_MS, 7, 2]),
        (2, False, [TIME_MS, 7, 3]),
        (9, False, [TIME_MS, 7, 5]),
    ]
    assert changes(canal("DELETE", {"id": "3", "name": "x"}, {"id": "4", "amount": "no number"})) == [
        ({"id": 3, **BLANK}, True, [TIME_MS, 7, 0]),
        ({"id": 4, **BLANK}, True, [TIME_MS, 7, 2]),
    ]


def test_a_part_of_a_key_may_change() -> None:
    message = canal("UPDATE", {"id": "3", "name": "b"}, old=[{"name": "a"}])
    assert [(row["id"], row["name"], gone) for row, gone, _ in changes(message, keys=["id", "name"])] == [
        (3, "a", True),
        (3, "b", False),
    ]


def test_a_change_of_structure_is_no_row() -> None:
    for kind in ("CREATE", "ALTER", "CINDEX", "DINDEX", "QUERY"):
        assert changes(canal(kind, isDdl=True, sql="ALTER TABLE orders ...")) == [], kind


def test_tables_are_chosen_by_patterns() -> None:
    for table, wanted in (("orders_03", 1), ("refunds", 0)):
        assert len(changes(canal("INSERT", {"id": "1"}, table=table), tables=["shop.orders_*"])) == wanted
    assert changes(canal("TRUNCATE", isDdl=True, table="refunds")) == []
    assert len(changes(debezium("c", None, {"id": 1}, schema=None), **{**DEBEZIUM, "tables": ["shop.orders"]})) == 1


# --- Debezium


def test_debeziums_values_by_its_schema() -> None:
    """Days, fractions of seconds, and decimals as the bytes of a whole number."""
    columns = [
        {"field": "id", "type": "int64"},
        {"field": "amount", "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal",
         "parameters": {"scale": "2", "connect.decimal.precision": "12"}},
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
    ]  # fmt: skip
    schema = {
        "type": "struct",
        "fields": [{"field": side, "type": "struct", "fields": columns} for side in ("before", "after")],
    }
    amount = base64.b64encode((-1250).to_bytes(2, "big", signed=True)).decode()
    after = {"id": 7, "amount": amount, "day": 20513, "at": TIME_MS * 1000, "raw": "AP8=", "paid": False, "share": 0.25}
    message = {"schema": schema, "payload": debezium("c", None, after)}
    made = {
        "id": 7, "name": None, "amount": Decimal("-12.50"), "paid": False, "day": date(2026, 3, 1), "at": AT,
        "raw": b"\x00\xff", "share": 0.25,
    }  # fmt: skip
    assert changes(message, **DEBEZIUM) == [(made, False, [TIME_MS, 7, 1])]


def test_each_op_of_debezium() -> None:
    """What a snapshot reads is before all changes, and in its order; a tombstone says nothing more."""
    found = [
        changes(message, **DEBEZIUM)
        for message in (
            debezium("r", None, {"id": 1}),
            debezium("c", None, {"id": 1}),
            debezium("u", None, {"id": 1}),
            debezium("u", {"id": 1}, {"id": 1}),
            debezium("u", {"id": 2}, {"id": 1}),
            debezium("d", {"id": 1, "name": None}, None),
            b"",
            b"null",
            {"schema": None, "payload": None},
            {"databaseName": "shop", "ddl": "CREATE TABLE orders ()", "source": {}},
        )
    ]
    there, gone = {"id": 1, **BLANK}, {"id": 2, **BLANK}
    changed = [(there, False, [TIME_MS, 7, 1])]
    assert found == [
        [(there, False, [BEFORE_ALL, 7, 1])], changed, changed, changed,
        [(gone, True, [TIME_MS, 7, 0]), *changed], [(there, True, [TIME_MS, 7, 0])], [], [], [], [],
    ]  # fmt: skip


# --- what is bad

BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no JSON": (b"{", {}, "no JSON: "),
    "not UTF-8": (b"\xff", {}, "no JSON: "),
    "no object": ([1], {}, "the message is no object"),
    "other type": ({"type": "SHOUT"}, {}, "type is none of Canal's flat messages; there are INSERT, UPDATE, DELETE, "),
    "no type": ({"id": 1}, {}, "type is none of Canal's flat messages"),
    "emptied": (canal("TRUNCATE", isDdl=True, sql="TRUNCATE TABLE orders"), {},
                "shop.orders was emptied (TRUNCATE), an event of the whole table that names no rows to delete, and the "
                "copy keeps them; accepted: to delete them there by hand, and bad_rows: leave_out to go on"),
    "dropped": (canal("ERASE", isDdl=True), {}, "shop.orders was dropped"),
    "no rows": (canal("INSERT"), {}, "data is no array of rows"),
    "no row": (canal("INSERT", data=["x"]), {}, "a row of data is no object"),
    "no time": (canal("INSERT", {"id": "1"}, es=None, ts=None), {}, "es is null, and no whole number"),
    "no key": (canal("INSERT", {"name": "x"}), {}, "the row has no key: id is not there"),
    "no key to delete": (canal("DELETE", {"name": "x"}), {}, "the row has no key: id is not there"),
    "no number": (canal("INSERT", {"id": "x"}), {}, "id: a text of 1 character is no bigint"),
    "too large": (canal("INSERT", {"id": str(2**63)}), {}, "id: a text of 19 characters is no bigint"),
    "endless": (canal_of_id(b"3e200000000"), {},
                "id: a number is no bigint"),
    "a half": (canal_of_id(b"1.5"), {},
               "id: a number is no bigint"),
    "Python's number": (canal("INSERT", {"id": "1_0"}), {}, "id: a text of 3 characters is no bigint"),
    "Python's decimal": (canal("INSERT", {"id": "1", "amount": "1_0"}), {}, "amount: a text of 3 characters is no"),
    "Python's double": (canal("INSERT", {"id": "1", "share": "1_0"}), {}, "share: a text of 3 characters is no double"),
    "no finite number": (canal("INSERT", {"id": "1", "share": "nan"}), {}, "share: a text of 3 characters is no"),
    "infinite": (canal("INSERT", {"id": "1", "share": "1e400"}), {}, "share: a text of 5 characters is no double"),
    "digits": (canal("INSERT", {"id": "1", "amount": "1.255"}), {}, "amount: a text of 5 characters has more digits"),
    "too many digits": (canal("INSERT", {"id": "1", "amount": "1e40"}), {},
                        "amount: a text of 4 characters has more digits than decimal(12,2)"),
    "boolean": (canal("INSERT", {"id": "1", "paid": "2"}), {}, "paid: a text of 1 character is no boolean"),
    "day": (canal("INSERT", {"id": "1", "day": "yesterday"}), {}, "day: a text of 9 characters is no date"),
    "time": (canal("INSERT", {"id": "1", "at": "noon"}), {}, "at: a text of 4 characters is no timestamp"),
    "structure": (canal("INSERT", {"id": "1", "share": [1]}), {}, "share: an array is no double"),
    "no op": ({"payload": {"after": {}}}, DEBEZIUM, "op is none of Debezium's envelopes; there are c, u, d, r, t"),
    "no source": ({"op": "c"}, DEBEZIUM, "source is no object"),
    "truncated": (debezium("t"), DEBEZIUM, "public.orders was emptied (op t), an event of the whole table"),
    "no before": (debezium("d"), DEBEZIUM, "before is no object"),
    "no after": (debezium("c"), DEBEZIUM, "after is no object"),
    "units": (debezium("c", None, {"id": 1, "at": TIME_MS}), DEBEZIUM, "at: a whole number is a time in unknown units"),
    "bytes": (debezium("c", None, {"id": 1, "amount": "BOI="}), DEBEZIUM,
              "amount: a text of 4 characters is no number, if these are bytes: decimal.handling.mode=string in"),
    "not logged": (debezium("u", None, {"id": 1, "name": "__debezium_unavailable_value"}), DEBEZIUM,
                   "name: the source did not log this large value"),
}  # fmt: skip


def test_what_is_no_change_has_a_reason() -> None:
    told = {name: reason(message, **options) for name, (message, options, _) in BAD.items()}
    assert {name: text for name, text in told.items() if not text.startswith(BAD[name][2])} == {}


def test_a_reason_has_no_value_of_a_body() -> None:
    """Reasons go to the log: of no column, nor of what surrounds the rows."""
    secret = "4111-1111-1111-1111"
    whole = int(secret.replace("-", ""))
    number = Decimal("4111.1111111111111111")
    for column in ("id", "amount", "paid", "share", "day", "at"):
        for value in (secret, [secret], {secret: secret}):
            told = reason(debezium("c", None, {"id": 1, column: value}), **DEBEZIUM)
            assert told.startswith(f"{column}: "), told
            assert "4111" not in told
    for message, options in (
        (canal(secret), {}),
        (canal("INSERT", {"id": "1"}, es=secret), {}),
        (canal("TRUNCATE", sql=secret), {}),
        (debezium(secret), DEBEZIUM),
        (debezium("c", None, {"id": 1}, ts_ms=secret), DEBEZIUM),
        (debezium("c", None, {"id": 1, "amount": str(number)}), DEBEZIUM),
        (debezium("c", None, {"id": 1, "at": whole}), DEBEZIUM),
        (f'{{"{secret}'.encode(), {}),
    ):
        told = reason(message, **options)
        assert told
        assert "4111" not in told


def test_a_change_is_not_bad() -> None:
    assert reason(canal("INSERT", {"id": "1"})) == ""


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tables": ({"tables": []}, "at least 1 item"),
    "no database": ({"tables": ["shop.orders", "orders"]}, "'orders' names no database"),
    "no column": ({"schema": "id"}, "'id' is no column; accepted: a name and one of tinyint, "),
    "no columns": ({"schema": " "}, "there is no column in it"),
    "no type": ({"schema": "id array"}, "id: array is no type of a column; accepted: tinyint, "),
    "twice": ({"schema": "id int, ID int"}, "ID is there more than once"),
    "decimal": ({"schema": "id decimal(39,2)"}, "id: at most 38 digits"),
    "taken": ({"schema": "id int, _deleted boolean"}, "_deleted: rows have such a column already"),
    "key": ({"keys": ["no"]}, "keys: no is not in schema, which has id, name"),
    "position": ({"order": "position"}, "order: position is not for canal"),
    "unit": ({"time_unit": "milliseconds"}, "time_unit is not for canal"),
}


def test_options_that_cannot_be_are_refused() -> None:
    wrong = [(options, "(?s)" + re.escape(expected)) for options, expected in REFUSED.values()]
    assert refused_otherwise(Options, wrong, **GIVEN) == []
