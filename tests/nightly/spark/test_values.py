"""Bodies decoded by the source: good bodies, bad bodies, and schemas that are refused."""

from __future__ import annotations

import io
import json
import re
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.errors import ConfigError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow", "fastavro", "google.protobuf")

import fastavro  # noqa: E402
from google.protobuf import descriptor_pb2  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from rmqd.spark.values.avro_values import avro_column_kind  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402
from tests.spark.test_batch_reader import read  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from tests.spark.test_values import (  # noqa: E402
    ORDER,
    TIME,
)

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "map", "values": "Kind"}},
    ],
}
RECORD = {"id": 7, "note": None, "at": TIME, "price": Decimal("1.25"), "kind": "B", "tags": {"x": "A"}}


def avro_body() -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), RECORD)
    return stream.getvalue()


@pytest.mark.parametrize("is_registered", [False, True])
def test_avro_records_become_a_column(broker: EmbeddedBroker, tmp_path: Path, is_registered: bool) -> None:
    """The schema is in a file. Bodies come with and without the prefix of RocketMQ's schema registry clients."""
    broker.create_topic("orders", 1)
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    prefix = b"\x10" + (42).to_bytes(8) if is_registered else b""
    broker.send("orders", prefix + avro_body(), prefix + avro_body() + b"more", "no record")
    good, longer, bad = read(
        broker,
        value="avro",
        valueSchema=str(tmp_path / "order.avsc"),
        valueRegistered=str(is_registered),
        columns="_bad_row,value",
    )
    assert good == {"_bad_row": None, "value": {**RECORD, "tags": [("x", "A")]}}
    assert longer == {"_bad_row": "4 bytes are left after the Avro record", "value": None}
    assert bad["value"] is None
    assert bad["_bad_row"]


SALES = {"type": "record", "name": "Line", "namespace": "shop.sales", "fields": [{"name": "sku", "type": "string"}]}
NUMBERED = {"type": "record", "name": "Line", "fields": [{"name": "number", "type": "int"}]}
MONEY = {"type": "fixed", "name": "Money", "size": 4, "logicalType": "decimal", "precision": 6, "scale": 2}
STOCK = {
    "type": "record",
    "name": "shop.stock.Line",
    "fields": [{"name": "id", "type": "long"}, {"name": "price", "type": MONEY}, {"name": "cost", "type": "Money"}],
}
SPACES = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "sold", "type": SALES},
        {"name": "bought", "type": STOCK},
        {"name": "returned", "type": ["null", "shop.sales.Line"]},
        {"name": "lines", "type": {"type": "array", "items": NUMBERED}},
        {"name": "last", "type": "Line"},
        {"name": "total", "type": "shop.stock.Money"},
    ],
}


def test_avro_names_are_distinguished_by_their_namespaces(broker: EmbeddedBroker) -> None:
    """A name without a namespace has that of the enclosing type."""
    record = {
        "sold": {"sku": "x"},
        "bought": {"id": 7, "price": Decimal("1.25"), "cost": Decimal("1.00")},
        "returned": {"sku": "y"},
        "lines": [{"number": 1}],
        "last": {"number": 2},
        "total": Decimal("2.50"),
    }
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(SPACES), record)
    broker.create_topic("orders", 1)
    broker.send("orders", stream.getvalue())
    schema = json.dumps(SPACES)
    assert avro_column_kind(schema).sql == (
        "struct<sold:struct<sku:string>,bought:struct<id:bigint,price:decimal(6,2),cost:decimal(6,2)>,"
        "returned:struct<sku:string>,lines:array<struct<number:int>>,last:struct<number:int>,total:decimal(6,2)>"
    )
    (row,) = read(broker, value="avro", valueSchema=schema, columns="_bad_row,value")
    assert row == {"_bad_row": None, "value": record}


def kind_of(field: object) -> str:
    return avro_column_kind(json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": field}]})).sql


@pytest.mark.parametrize(
    ("field", "sql"),
    [
        ({"type": "string", "logicalType": "date"}, "string"),
        ({"type": "int", "logicalType": "timestamp-millis"}, "int"),
        ({"type": "long", "logicalType": "decimal", "precision": 4}, "bigint"),
        ({"type": "string", "logicalType": "time-millis"}, "string"),
        ({"type": "fixed", "name": "F", "size": 16, "logicalType": "uuid"}, "binary"),
        ({"type": "long", "logicalType": ["date"]}, "bigint"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 38}, "decimal(38,38)"),
    ],
)
def test_avro_logical_types_of_a_wrong_type_are_ignored(field: object, sql: str) -> None:
    assert kind_of(field) == f"struct<x:{sql}>"


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ({"type": "bytes", "logicalType": "decimal"}, "a decimal has no precision"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 39},
            r"decimal\(39,0\) is not valid; expected at most 38 digits",
        ),
        ({"type": "int", "logicalType": "time-millis"}, "time-millis has no Spark type"),
        ("Missing", "not a valid Avro schema: .*Missing"),
    ],
)
def test_avro_types_without_a_spark_type_are_refused(field: object, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        kind_of(field)


def descriptors() -> bytes:
    """Return the descriptors that protoc would write for a message."""
    field = descriptor_pb2.FieldDescriptorProto
    message = descriptor_pb2.DescriptorProto(name="Order")
    line = message.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    message.enum_type.add(name="Kind").value.add(name="OPEN", number=0)
    message.enum_type[0].value.add(name="PAID", number=1)
    message.field.add(name="id", number=1, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    message.field.add(
        name="lines", number=2, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".shop.Order.Line"
    )
    message.field.add(
        name="kind", number=3, type=field.TYPE_ENUM, label=field.LABEL_OPTIONAL, type_name=".shop.Order.Kind"
    )
    message.field.add(name="raw", number=4, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    message.field.add(
        name="first", number=5, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".shop.Order.Line"
    )
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add().CopyFrom(message)
    content: bytes = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return content


def test_protobuf_messages_become_a_column(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """An unset field with presence is null; any other unset field has its default."""
    broker.create_topic("orders", 1)
    (tmp_path / "order.desc").write_bytes(descriptors())
    broker.send("orders", b"\x08\x07\x12\x03\x0a\x01x\x18\x01", b"\x08\x07\x12\x7f", b"\x78\x01")
    options = {"value": "protobuf", "valueSchema": str(tmp_path / "order.desc"), "valueMessage": "shop.Order"}
    good, bad, empty = read(broker, **options, columns="value,_bad_row")
    assert good["value"] == {"id": 7, "lines": [{"sku": "x"}], "kind": "PAID", "raw": b"", "first": None}
    assert bad["value"] is None
    assert bad["_bad_row"]
    assert empty["value"] == {"id": 0, "lines": [], "kind": "OPEN", "raw": b"", "first": None}


REFUSED_OF_PROTOBUF: dict[str, tuple[dict[str, str], str]] = {
    "no message": ({"value": "protobuf", "valueSchema": "DESCRIPTORS"}, "valueMessage: missing"),
    "other message": (
        {"value": "protobuf", "valueSchema": "DESCRIPTORS", "valueMessage": "shop.Odor"},
        "valueSchema: unknown message shop.Odor; expected one of shop.Order",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED_OF_PROTOBUF.values(), ids=REFUSED_OF_PROTOBUF)
def test_wrong_protobuf_options_are_refused_at_once(options: dict[str, str], message: str, tmp_path: Path) -> None:
    """No broker is queried."""
    (tmp_path / "order.desc").write_bytes(descriptors())
    options = {name: text.replace("DESCRIPTORS", str(tmp_path / "order.desc")) for name, text in options.items()}
    source = RocketMQSource({"nameserver": "127.0.0.1:1", "subscribe": "orders", **options})
    with pytest.raises(ConfigError, match=message):
        source.schema()


SCHEMAS: dict[str, tuple[StructType, str]] = {
    "another type": (StructType.fromJson({"type": "struct", "fields": [
        {"name": "value", "nullable": True, "metadata": {}, "type": {"type": "struct", "fields": [
            {"name": "id", "type": "string", "nullable": True, "metadata": {}}]}}]}),
        "schema: value is struct<id:string>; expected struct<id:bigint>, the type in valueSchema"),
    "no struct": (StructType().add("value", "string"), "schema: value is string; expected a struct"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), SCHEMAS.values(), ids=SCHEMAS)
def test_a_schema_that_differs_from_the_bodies_is_refused(schema: StructType, message: str) -> None:
    source = RocketMQSource(
        {"nameserver": "127.0.0.1:1", "subscribe": "orders", "value": "json", "valueSchema": "id bigint"}
    )
    with pytest.raises(ConfigError, match=message):
        source.reader(schema)


def test_a_reader_sets_the_schema_of_bodies(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """The SQL type may contain all types that a body can have. Spark takes the rows unchanged."""
    broker.create_topic("orders", 1)
    broker.send("orders", '{"n": "1.50", "day": "2026-03-01", "at": "2026-03-01T10:00:00Z", "m": {"k": [1]}}', "no")

    def reader() -> Any:
        return spark.read.format("rocketmq").options(nameserver=broker.nameserver, subscribe="orders", value="json")

    kinds = "n decimal(5,2), day date, at timestamp, local timestamp_ntz, m map<string,array<int>>, b binary"
    typed = f"struct<{kinds.replace(', ', ',').replace(' ', ':')}>"
    asked = reader().schema(f"queue_offset bigint, value {typed}").load()
    given = reader().option("valueSchema", kinds).load()
    simple = reader().option("valueSchema", typed).load()
    for frame in (asked, given, simple):
        rows = frame.selectExpr("value.n", "value.day", "value.m['k'][0] AS m", "value.local").collect()
        assert [tuple(row) for row in rows] == [(Decimal("1.50"), date(2026, 3, 1), 1, None), (None,) * 4]
    assert given.where("_bad_row IS NULL").selectExpr("unix_seconds(value.at)").collect() == [(1772359200,)]


def test_a_notebook_finds_the_schema_with_the_expression_in_the_error(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    """The expression is executed as written, and its result is used as valueSchema."""
    broker.create_topic("orders", 1)
    broker.send("orders", '{"id": 1, "lines": [{"sku": "a", "price": 2.5}]}', '{"id": 2, "note": "x"}')
    where = {"nameserver": broker.nameserver, "subscribe": "orders"}
    with pytest.raises(ConfigError) as refusal:
        RocketMQSource({**where, "value": "json", "valueSchema": "infer"}).schema()
    found = re.search(r"spark\.read\.json.*simpleString\(\)", str(refusal.value))
    assert found is not None
    orders = spark.read.format("rocketmq").options(**where).load()
    kinds = eval(found.group(), {"spark": spark, "orders": orders})  # as a reader of the message would
    read = spark.read.format("rocketmq").options(**where, value="json", valueSchema=kinds).load()
    rows = read.selectExpr("value.id", "value.lines[0].price AS price", "value.note", "_bad_row").collect()
    assert [tuple(row) for row in rows] == [(1, 2.5, None, None), (2, None, "x", None)]
    assert f"`{found.group()}`" in PAGE.read_text()


SELECTED = {"columns": ["value.id", "value.lines[0].sku AS sku"], "where": "_bad_row IS NULL"}


def test_a_group_selects_fields_of_bodies(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """YAML configures all of this."""
    for topic in ("orders", "refunds"):
        broker.create_topic(topic, 1)
    broker.send("orders", '{"id": 7, "lines": [{"sku": "x"}]}', "no JSON", '{"id": 8}')
    spark_keys = {"trigger": "available_now", "options": {"value": "json", "valueSchema": ORDER}}
    group = {
        "pipeline": {"plugin": "select", "options": SELECTED},
        "sink": {"format": "parquet", "path": str(tmp_path / "orders")},
        "spark": spark_keys,
    }
    assert start(spark, order_of(broker.nameserver, **group), tmp_path).awaitTermination(SECONDS)
    assert sorted(map(tuple, spark.read.parquet(str(tmp_path / "orders")).collect())) == [(7, "x"), (8, None)]
