"""Bodies whose schemas are in a registry: how they are read, and how an unavailable registry is handled."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.errors import ConfigError
from rmqd.spark.values.schema_registry import RegistryUnavailableError, SchemaRegistry, UnknownRecordIdError
from tests.nightly.spark.schema_registry import Registry, running
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow", "fastavro")

import fastavro  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from rmqd.spark.values.avro_values import registered_avro_decoder  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402
from tests.spark.test_batch_reader import read, rows_of  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def order(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "long"}, *fields]}


FIRST = order({"name": "note", "type": "string"})
SECOND = order({"name": "amount", "type": "double", "default": 0.5})


@pytest.fixture
def registry(broker: EmbeddedBroker) -> Iterator[Registry]:
    """A registry with the first version, and its topic."""
    broker.create_topic("orders", 1)
    with running(Registry("orders")) as registry:
        registry.versions.append(FIRST)
        yield registry


def body(record_id: int, schema: dict[str, Any], **record: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return b"\x10" + record_id.to_bytes(8) + stream.getvalue()


def source(broker: EmbeddedBroker, registry: Registry, **options: str) -> RocketMQSource:
    return RocketMQSource({
        "nameserver": broker.nameserver, "subscribe": "orders", "unavailableToleranceMs": "0", "value": "avro",
        "valueRegistry": registry.url, **options,
    })  # fmt: skip


def read_by(broker: EmbeddedBroker, registry: Registry, **options: str) -> list[dict[str, Any]]:
    return read(
        broker, value="avro", valueRegistry=registry.url, **{"columns": "queue_offset,value,_bad_row", **options}
    )


def test_each_body_is_read_with_its_writers_schema(broker: EmbeddedBroker, registry: Registry) -> None:
    """Rows have the fields of the latest schema, and its defaults for missing fields. Each id is queried once."""
    registry.versions.append(SECOND)
    one, two = registry.record_id(1), registry.record_id(2)
    broker.send("orders", body(one, FIRST, id=7, note="x"), body(two, SECOND, id=8, amount=2.0))
    broker.send("orders", body(one, FIRST, id=9, note="y"))
    for _ in range(2):
        rows = read_by(broker, registry)
        assert [row["value"] for row in rows] == [
            {"id": 7, "amount": 0.5}, {"id": 8, "amount": 2.0}, {"id": 9, "amount": 0.5},
        ]  # fmt: skip
        assert [row["_bad_row"] for row in rows] == [None] * 3
    ids = [path for path in registry.asked if "recordId" in path]
    assert ids == [f"/schema-registry/v1/subject/orders/recordId/{one_id}/schema" for one_id in (one, two)]


def test_the_readers_own_schema_takes_precedence(broker: EmbeddedBroker, registry: Registry, tmp_path: Path) -> None:
    broker.send("orders", body(registry.record_id(1), FIRST, id=7, note="x"))
    (tmp_path / "order.avsc").write_text(
        '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
    )
    (row,) = read_by(broker, registry, valueSchema=str(tmp_path / "order.avsc"))
    assert row["value"] == {"id": 7}


def test_a_body_that_the_registry_does_not_know_is_a_bad_row(broker: EmbeddedBroker, registry: Registry) -> None:
    """Nothing fails the read: an unknown version, the id of another schema, a body without an id, a broken record."""
    known, unknown = registry.record_id(1), registry.record_id(5)
    good = body(known, FIRST, id=7, note="x")
    other = body(Registry("refunds").record_id(1), FIRST, id=7, note="x")
    broker.send("orders", body(unknown, FIRST, id=7, note="x"), other, "no id", good + b"more", good)
    rows = read_by(broker, registry)
    assert [row["value"] for row in rows] == [None, None, None, None, {"id": 7, "note": "x"}]
    reasons = [row["_bad_row"] for row in rows]
    where = f"the subject orders of {registry.url}"
    assert reasons[0] == f"{where} has no record {unknown}: it returned 50001"
    assert reasons[1].startswith(
        f"{where} has the record {known} as version 1, but the body was written with the record"
    )
    assert reasons[2] == "the body does not begin with the prefix of RocketMQ's schema registry clients"
    assert reasons[3] == "4 bytes are left after the Avro record"


def test_the_schema_at_load_is_kept(broker: EmbeddedBroker, registry: Registry) -> None:
    """Spark pickles the source after `schema()`, and asks for readers later."""
    loaded = source(broker, registry, columns="value")
    assert loaded.schema() == "value struct<id:bigint,note:string>"
    registry.versions.append(SECOND)
    broker.send("orders", body(registry.record_id(2), SECOND, id=8, amount=2.0))
    reader = pickle.loads(pickle.dumps(loaded)).reader(StructType())
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in rows_of(batch)]
    assert rows == [{"value": None}]  # the second schema has no note, and the first has no default for it
    assert source(broker, registry, columns="value").schema() == "value struct<id:bigint,amount:double>"


def test_an_unavailable_registry_fails_the_task(broker: EmbeddedBroker, registry: Registry) -> None:
    """The body is not a bad row. It is read once the registry is back."""
    reader = source(broker, registry, columns="value").reader(StructType())
    broker.send("orders", body(registry.record_id(1), FIRST, id=7, note="x"))
    (part,) = reader.partitions()
    registry.failing = [500]
    with pytest.raises(RegistryUnavailableError, match=r"returns no schemas: it returned 500 .*storage is away"):
        list(reader.read(part))
    assert [row for batch in reader.read(part) for row in rows_of(batch)] == [{"value": {"id": 7, "note": "x"}}]


def test_a_short_outage_of_the_registry_is_waited_for(broker: EmbeddedBroker, registry: Registry) -> None:
    broker.send("orders", body(registry.record_id(1), FIRST, id=7, note="x"))
    reader = source(broker, registry, unavailableToleranceMs="60000", columns="value").reader(StructType())
    (part,) = reader.partitions()
    registry.failing = [50001, 502]
    assert [row for batch in reader.read(part) for row in rows_of(batch)] == [{"value": {"id": 7, "note": "x"}}]


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 503, 50001])
def test_a_single_refusal_does_not_make_a_body_a_bad_row(registry: Registry, status: int) -> None:
    """The registry works again for the request of the latest schema."""
    record_id = registry.record_id(1)
    asked = SchemaRegistry(registry.url, "orders", patience_seconds=60.0)
    registry.failing = [status]
    assert asked.writer_schema(record_id)["name"] == "shop.Order"


@pytest.mark.parametrize("status", [200, 404, 502])
def test_a_response_that_is_cut_off_does_not_make_a_body_a_bad_row(registry: Registry, status: int) -> None:
    registry.failing, registry.missing_bytes = [status] * 3, 1
    with pytest.raises(RegistryUnavailableError):
        SchemaRegistry(registry.url, "orders").writer_schema(registry.record_id(1))


def test_bodies_of_an_unknown_record_are_released(registry: Registry) -> None:
    """The response is cached, but without the bodies that it was for."""
    read = registered_avro_decoder(json.dumps(FIRST), SchemaRegistry(registry.url, "orders"))
    bodies = [body(registry.record_id(5), FIRST, id=number, note="x") for number in range(3)]
    held = [sys.getrefcount(one) for one in bodies]
    for one in bodies:
        with contextlib.suppress(UnknownRecordIdError):
            read(one)
    gc.collect()
    del one
    assert [sys.getrefcount(one) for one in bodies] == held
    assert len(registry.asked) == 3  # all for the first body: the record, the latest schema, and the record


def test_an_unusable_registry_is_reported_at_load(broker: EmbeddedBroker, registry: Registry) -> None:
    """This includes readers with their own schema."""
    with pytest.raises(
        ConfigError, match=r"^valueRegistry: http.* has no schema of the subject odors: it returned 50001"
    ):
        source(broker, registry, valueSubject="odors").schema()
    registry.versions[0] = {"type": "enum", "name": "Kind", "symbols": ["A"]}
    with pytest.raises(ConfigError, match=r"^valueRegistry: the schema of the subject orders of .* expected a record"):
        source(broker, registry).schema()
    away = Registry("orders")
    away.url = "http://127.0.0.1:1"
    for more in ({}, {"valueSchema": '{"type": "record", "name": "Order", "fields": []}'}):
        with pytest.raises(ConfigError, match=r"^valueRegistry: http://127.0.0.1:1 does not answer: .*refused"):
            source(broker, away, **more).schema()


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "no address": (
        {"valueRegistry": "registry:8080"},
        "valueRegistry: 'registry:8080' is not a valid address; expected http:",
    ),
    "a password": (
        {"valueRegistry": "http://a:b@registry"},
        "valueRegistry: contains a user name, which Spark would show",
    ),
    "json": ({"value": "json"}, "valueRegistry: not used with value=json; set value=avro"),
    "two topics": (
        {"subscribe": "orders,refunds"},
        "valueSubject: missing, and the default needs one topic, not 2 topics; set",
    ),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    """No registry is queried."""
    given = {"value": "avro", "valueRegistry": "http://127.0.0.1:1", "subscribe": "orders", **options}
    with pytest.raises(ConfigError, match=message):
        RocketMQSource({"nameserver": "127.0.0.1:1", **given}).schema()
    alone = {"nameserver": "127.0.0.1:1", "subscribe": "orders", "value": "avro", "valueSubject": "orders"}
    with pytest.raises(ConfigError, match="valueSubject: not used without valueRegistry"):
        RocketMQSource({**alone, "valueSchema": "{}"}).schema()


def test_a_group_decodes_bodies_with_a_registry(
    spark: SparkSession, broker: EmbeddedBroker, registry: Registry, tmp_path: Path
) -> None:
    """Spark's own processes query it."""
    broker.send("orders", body(registry.record_id(1), FIRST, id=7, note="x"), "no id")
    group = {
        "subscriptions": {"orders": "*"},
        "pipeline": {"plugin": "select", "options": {"columns": ["value.*", "_bad_row IS NULL AS is_good"]}},
        "sink": {"format": "parquet", "path": str(tmp_path / "orders")},
        "spark": {"trigger": "available_now", "options": {"value": "avro", "valueRegistry": registry.url}},
    }
    assert start(spark, order_of(broker.nameserver, **group), tmp_path).awaitTermination(SECONDS)
    rows = sorted(map(tuple, spark.read.parquet(str(tmp_path / "orders")).collect()), key=str)
    assert rows == [(7, "x", True), (None, None, False)]
