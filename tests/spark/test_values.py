"""Bodies decoded by the source: values that fit a schema or do not, and invalid schemas."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from rmqd.errors import ConfigError
from rmqd.spark.values.column_kinds import parse_schema
from rmqd.spark.values.fitting import converter_to
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow", "fastavro", "google.protobuf")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402

from rmqd.spark.source.arrow_columns import BodyDecoder  # noqa: E402
from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from rmqd.spark.values.value_format import ValueFormat  # noqa: E402
from tests.spark.test_batch_reader import read  # noqa: E402

ORDER = "id bigint, lines array<struct<sku:string,price:double>>, paid boolean"
PLACE = "queue_offset,value,_bad_row"


def test_a_schema_is_parsed_as_sql_ddl() -> None:
    cases: list[tuple[str, str]] = [
        ("id BIGINT, Name string", "struct<id:bigint,Name:string>"),
        ("a: long, b struct<c: decimal(12, 3), `d e`: int>", "struct<a:bigint,b:struct<c:decimal(12,3),`d e`:int>>"),
        (
            "m map<string, array<timestamp_ntz>>, n decimal",
            "struct<m:map<string,array<timestamp_ntz>>,n:decimal(10,0)>",
        ),
    ]
    for text, sql in cases:
        assert parse_schema(text).sql == sql


def test_an_invalid_schema_is_reported() -> None:
    cases: list[tuple[str, str]] = [
        ("id", "ends too early; expected a type"),
        ("", "ends too early; expected the name of a field"),
        ("id bigit", "bigit is not a valid type; expected one of boolean, tinyint"),
        ("id bigint name string", "'name' is not valid here; expected 'the end or a comma'"),
        ("id bigint, ID int", "ID occurs more than once"),
        ("a array<int", "'the end' is not valid here; expected '>'"),
        ("a map<int,int>", "the keys of a map must be strings"),
        ("n decimal(40,1)", "at most 38 digits"),
        ("a int;", "';' is not valid"),
    ]
    for text, message in cases:
        with pytest.raises(ValueError, match=message):
            parse_schema(text)


TIME = datetime(2026, 3, 1, 10, tzinfo=UTC)


def test_values_that_fit_a_type_are_converted() -> None:
    cases: list[tuple[str, Any, Any]] = [
        ("tinyint", 127, 127),
        ("double", 1, 1.0),
        ("decimal(5,2)", 1.5, Decimal("1.50")),
        ("decimal(5,2)", "123.45", Decimal("123.45")),
        ("string", {"a": [1]}, '{"a": [1]}'),
        ("string", 7, "7"),
        ("binary", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("date", "2026-03-01", date(2026, 3, 1)),
        ("timestamp", "2026-03-01T10:00:00Z", TIME),
        ("timestamp", "2026-03-01T10:00:00", TIME),
        ("timestamp_ntz", "2026-03-01T10:00:00", TIME.replace(tzinfo=None)),
        ("map<string,int>", {"a": 1}, [("a", 1)]),
        ("array<int>", [1, None], [1, None]),
        ("struct<a:int,b:int>", {"a": 1, "more": 2}, {"a": 1, "b": None}),
        ("boolean", None, None),
    ]
    for kind, given, fitted in cases:
        assert converter_to(parse_schema(f"v {kind}"))({"v": given}) == {"v": fitted}


def test_a_value_that_does_not_fit_is_reported_with_its_field() -> None:
    cases: list[tuple[str, Any, str]] = [
        ("tinyint", 128, "v: 128 is too large for tinyint"),
        ("bigint", 1.5, "v: 1.5 is not a valid bigint"),
        ("bigint", True, "v: True is not a valid bigint"),
        ("double", "1", "v: '1' is not a valid double"),
        ("float", 1e39, "is too large for float"),
        ("decimal(3,1)", 1.25, "v: 1.25 has more digits than decimal"),
        ("decimal(3,1)", 1000, "v: 1000 has more digits than decimal"),
        ("decimal(3,1)", "x", "v: 'x' is not a valid decimal"),
        ("boolean", 1, "v: 1 is not a valid boolean"),
        ("binary", "%", "v: '%' is not a valid base64"),
        ("date", "2026", "v: '2026' is not a valid date; expected"),
        ("timestamp", "noon", "v: 'noon' is not a valid time; expected"),
        ("array<int>", [1, "x"], "v: 1: 'x' is not a valid int"),
        ("map<string,int>", [], r"v: \[\] is not a valid object"),
        ("struct<a:struct<b:int>>", {"a": {"b": "x"}}, "v: a: b: 'x' is not a valid int"),
    ]
    for kind, given, message in cases:
        with pytest.raises(ValueError, match=message):
            converter_to(parse_schema(f"v {kind}"))({"v": given})


def test_json_bodies_become_a_column(broker: EmbeddedBroker) -> None:
    """An invalid body becomes null, and `_bad_row` has the reason. The read continues."""
    broker.create_topic("orders", 1)
    bodies = [
        '{"id": 7, "lines": [{"sku": "x", "price": 2}], "more": 1}',
        '{"id": "7"}',
        "[]",
        " ",
        '{"id": NaN}',
        "null",
    ]
    broker.send("orders", *bodies)
    rows = read(broker, value="json", valueSchema=ORDER, columns=PLACE)
    assert [row["queue_offset"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert rows[0]["value"] == {"id": 7, "lines": [{"sku": "x", "price": 2.0}], "paid": None}
    assert rows[0]["_bad_row"] is None
    assert [row["value"] for row in rows[1:]] == [None] * 5
    assert rows[1]["_bad_row"] == "id: '7' is not a valid bigint"
    assert rows[2]["_bad_row"] == "[] is not a valid object"
    assert rows[4]["_bad_row"] == "NaN is not valid JSON"
    assert all(row["_bad_row"] for row in rows[1:])


HALF, TEXT = json.dumps("\ud800"), "a string"
JSON_VALUES: dict[str, tuple[str, str, Any, str | None]] = {
    "more digits than a double": ("a decimal(19,2)", "12345678901234567.89", Decimal("12345678901234567.89"), None),
    "more than 28 digits": ("a decimal(38,3)", f'"{"9" * 35}.125"', Decimal(f"{'9' * 35}.125"), None),
    "a number as text": (TEXT, "12345678901234567.89", "12345678901234567.89", None),
    "numbers in a text": (TEXT, '{"x": [12345678901234567.89, 1]}', '{"x": [12345678901234567.89, 1]}', None),
    "a double": ("a array<double>", "[1e-2, 1.50]", [0.01, 1.5], None),
    "no double": ("a double", "1e400", None, r"a: 1E\+400 is too large for double"),
    "no bigint": ("a bigint", "1.50", None, "a: 1.50 is not a valid bigint"),
    "half of a surrogate pair": (TEXT, HALF, None, "surrogates not allowed"),
    "a key of that": ("a map<string,int>", f"{{{HALF}: 1}}", None, "surrogates not allowed"),
    "a bad value under it": ("a map<string,int>", f"{{{HALF}: 1.5}}", None, r"a: \\ud800: 1.5 is not a valid int"),
    "before the calendar": (
        "a array<timestamp>",
        '["0001-01-01T00:00:00+08:00"]',
        None,
        "not a date of the years 1 to 9999 in UTC",
    ),
    "text after the object": ("a bigint", "1} x", None, "Extra data"),
    "a number as a time": ("a timestamp", "5", None, "a: 5 is not a valid time"),
    "a key that is repeated": ("a bigint", '1, "a": 2', 2, None),
    "behind it": ("a timestamp", '"9999-12-31T23:59:59-08:00"', None, "a: .* not a date of the years 1 to 9999 in UTC"),
}


@pytest.mark.parametrize(("schema", "written", "value", "reason"), JSON_VALUES.values(), ids=JSON_VALUES)
def test_a_json_value_is_exact_or_its_row_is_bad(schema: str, written: str, value: Any, reason: str | None) -> None:
    """A body that no column can hold does not affect the other bodies of its batch."""
    bodies = ['{"a": null}', f'{{"a": {written}}}', '{"a": null}']
    columns = BodyDecoder(ValueFormat("json", parse_schema(schema))).columns(pa.array(map(str.encode, bodies)))
    first, row, last = pa.RecordBatch.from_pydict(columns).to_pylist()
    assert first == last == {"value": {"a": None}, "_bad_row": None}
    assert row["value"] == (None if reason else {"a": value})
    assert re.search(reason or "^None$", str(row["_bad_row"]))


RECURSIVE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
UNION = {"type": "record", "name": "Two", "fields": [{"name": "a", "type": ["int", "string"]}]}
REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "a format": ({"value": "xml"}, "value: 'xml' is not a valid format; expected json | avro | protobuf"),
    "no value": ({"valueSchema": "id int"}, "valueSchema: not used without value"),
    "no schema": ({"value": "json"}, "valueSchema: missing; expected SQL columns"),
    "wrong ddl": ({"value": "json", "valueSchema": "id"}, "valueSchema: 'id' ends too early; expected a type"),
    "inferred": (
        {"value": "json", "valueSchema": "infer"},
        "valueSchema: infer is only for a pipeline of a group with engine: spark, .* expected SQL columns",
    ),
    "inferred avro": (
        {"value": "avro", "valueSchema": "Infer"},
        "valueSchema: infer needs value=json; expected a record's schema",
    ),
    "no avro": ({"value": "avro", "valueSchema": "{}"}, "valueSchema: not a valid Avro schema"),
    "no json": ({"value": "avro", "valueSchema": "x"}, "valueSchema: not valid JSON"),
    "recursive": ({"value": "avro", "valueSchema": json.dumps(RECURSIVE)}, "the record Node contains itself"),
    "no fields": (
        {"value": "avro", "valueSchema": '{"type": "record", "name": "Order"}'},
        "record Order has no fields",
    ),
    "union": ({"value": "avro", "valueSchema": json.dumps(UNION)}, "has no Spark type; expected null and one"),
    "no file": ({"value": "avro", "valueSchema": "absent.avsc"}, "valueSchema: absent.avsc is unreadable: No such"),
    "another's": (
        {"value": "json", "valueSchema": "id int", "valueRegistered": "true"},
        "valueRegistered: not used with value=json; set value=avro",
    ),
    "no column": ({"columns": "value"}, "columns: unknown column value"),
}


def test_invalid_options_are_refused_without_a_request() -> None:
    for options, message in REFUSED.values():
        source = RocketMQSource({"nameserver": "127.0.0.1:1", "subscribe": "orders", **options})
        with pytest.raises(ConfigError, match=message):
            source.schema()
