"""The pipeline `cdc` from a topic to a real PostgreSQL: the table equals the source table of the changes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow", "psycopg")

from rmqd.spark.pipelines.pipeline_counts import MicroBatch  # noqa: E402
from rmqd.spark.pipelines.postgresql.postgresql_sink import PostgresqlSink  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402
from tests.spark.test_postgresql_sink import QUERY, Database, prices_database  # noqa: E402, F401  a fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.session.group_spec import GroupSpec
    from tests.servers.postgresql import PostgresqlServer

QUEUES = 3
SCHEMA = "id bigint, name string, amount decimal(12,2)"
TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, name text NOT NULL, amount numeric(12,2), _order bigint[])"
MESSAGES = "topic string, queue_id int, queue_offset bigint, msg_id string, body binary"
SINK = {"table": "orders", "keys": ["id"], "order_by": ["_order"], "delete_column": "_deleted"}
# Keys move between queues, and statements do not wait for each other: only the time gives their order, not the queue.
CANAL = {"format": "canal", "tables": ["shop.orders"], "schema": SCHEMA, "keys": ["id"], "order": "time"}


class Source:
    """A MySQL table. Canal sends its changes, each to the queue of the row's key."""

    def __init__(self, seed: int) -> None:
        self.rows: dict[int, tuple[str, str | None]] = {}
        self.sent: list[tuple[int, str]] = []
        self._chance = random.Random(seed)
        self._time_ms = 1_772_359_200_000
        self._has_moved = False

    def change(self) -> None:
        """Execute one statement on one to three rows. It may change keys, but only to unused ones."""
        kind = self._chance.choice(("INSERT", "UPDATE", "UPDATE", "DELETE"))
        free = [key for key in range(15) if key not in self.rows]
        of = free if kind == "INSERT" else list(self.rows)
        # The binlog counts in seconds: two changes of a key, in two queues and one second, have no order.
        moves = kind == "UPDATE" and self._chance.random() < 0.3
        self._time_ms += 1000 if moves or self._has_moved else self._chance.choice((0, 1000))
        self._has_moved = moves
        events: dict[int, tuple[list[Any], list[Any]]] = {}
        keys = self._chance.sample(of, min(len(of), self._chance.randint(1, 3)))
        for key in keys:
            new = key + 100 * self._chance.randint(1, 9) if moves else key
            data, old = self._row(kind, key, key if new in self.rows or new in keys else new)
            queue_rows = events.setdefault(data["id"] % QUEUES, ([], []))
            queue_rows[0].append({name: None if value is None else str(value) for name, value in data.items()})
            queue_rows[1].append({name: None if value is None else str(value) for name, value in old.items()})
        for queue_id, (rows, old_rows) in events.items():
            self.sent.append((queue_id, json.dumps({
                "type": kind, "database": "shop", "table": "orders", "es": self._time_ms, "ts": self._time_ms + 50,
                "isDdl": False, "pkNames": ["id"], "data": rows, "old": old_rows if kind == "UPDATE" else None,
            })))  # fmt: skip

    def _row(self, kind: str, key: int, new: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the row after the change, or before its deletion, and the former values of the changed columns."""
        former = self.rows.pop(key, None)
        if kind == "DELETE":
            assert former is not None
            return {"id": key, "name": former[0], "amount": former[1]}, {}
        old: dict[str, Any] = {"id": key} if new != key else {}
        amount = self._chance.choice((None, "1.50", "12345678.90"))
        self.rows[new] = (self._chance.choice(("käuflich", "", "tab\tand \\N")), amount)
        if former is not None:
            old |= {"name": former[0], "amount": former[1]}
        return {"id": new, "name": self.rows[new][0], "amount": amount}, old


def cdc_order(broker: EmbeddedBroker, url: str, options: dict[str, Any]) -> GroupSpec:
    return order_of(
        broker.nameserver,
        subscriptions={"orders": "*"},
        pipeline={"plugin": "cdc", "options": options},
        sink={"format": "postgresql", "url": url, **SINK},
    )


def run(spark: SparkSession, order: GroupSpec, folder: Path) -> None:
    assert start(spark, order, folder).awaitTermination(SECONDS)


def found(server: PostgresqlServer, url: str) -> dict[int, tuple[str, str | None]]:
    rows = server.execute(url, "SELECT id, name, amount::text FROM orders")
    return {key: (name, amount) for key, name, amount in rows}


@pytest.mark.timeout(400)  # with the start of the session, on a machine that may be busy
def test_the_table_equals_its_source(
    spark: SparkSession,
    postgresql: PostgresqlServer,
    database: str,
    prices_database: Database,  # noqa: F811
) -> None:
    """Batches read queues at different speeds, and some are repeated. Then all messages are read once more."""
    from rmqd_handlers.cdc.pipeline import Options, cdc

    source, chance = Source(20260301), random.Random(7)
    postgresql.execute(database, TABLE)
    numbers = itertools.count()

    def write(sink: PostgresqlSink, messages: list[tuple[int, int, str]]) -> None:
        rows = [("orders", queue_id, offset, "id", body.encode()) for queue_id, offset, body in messages]
        frame = cdc(spark.createDataFrame(rows, MESSAGES), spark, Options.model_validate(CANAL))
        batch = MicroBatch(QUERY, next(numbers), b"plan")
        for _ in range(chance.choice((1, 2))):
            sink.write(frame, batch)

    empty = spark.createDataFrame([], f"{SCHEMA}, _deleted boolean, _order array<bigint>")
    sink = prices_database.sink(empty.schema, **SINK)
    queues: dict[int, list[tuple[int, int, str]]] = {queue_id: [] for queue_id in range(QUEUES)}
    read = dict.fromkeys(queues, 0)
    for part in range(3):
        for _ in range(40):
            source.change()
        for queue_id, body in source.sent:
            queues[queue_id].append((queue_id, len(queues[queue_id]), body))
        source.sent.clear()
        # one queue is far ahead of the others, as after an outage of a broker
        for queue_id in (part, (part + 1) % QUEUES, (part + 2) % QUEUES):
            write(sink, queues[queue_id][read[queue_id] :])
            read[queue_id] = len(queues[queue_id])
        assert found(postgresql, database) == source.rows
    assert any(key >= 100 for key in source.rows)  # keys have changed
    again = prices_database.sink(empty.schema, **SINK)
    for start_at in range(0, max(read.values()), 30):  # a reset: from the first message, some of each queue at a time
        write(again, [message for queue in queues.values() for message in queue[start_at : start_at + 30]])
        assert found(postgresql, database) == source.rows


def envelope(op: str, before: Any, after: Any, lsn: int, **more: Any) -> str:
    source = {"db": "shop", "schema": "public", "table": "orders", "ts_ms": 1_772_359_200_000, "lsn": lsn}
    return json.dumps({"op": op, "before": before, "after": after, "source": source, "ts_ms": 1, **more})


def test_debezium_changes_are_ordered_by_the_log_of_the_source(
    spark: SparkSession, broker: EmbeddedBroker, postgresql: PostgresqlServer, database: str, tmp_path: Path
) -> None:
    """A new key has a tombstone, and some changes have a schema. At the end the snapshot is sent once more."""
    broker.create_topic("orders", 2)
    postgresql.execute(database, TABLE)
    snapshot = [envelope("r", None, {"id": number, "name": "read", "amount": "1.00"}, 100) for number in range(5)]
    changes = [
        envelope("u", None, {"id": 1, "name": "updated", "amount": None}, 101),
        envelope("d", {"id": 2}, None, 102),
        "null",
        json.dumps({"schema": {"type": "struct"}, "payload": json.loads(
            envelope("c", None, {"id": 7, "name": "created", "amount": 2.5}, 103))}),
        envelope("d", {"id": 3}, None, 104),
        "null",
        envelope("c", None, {"id": 8, "name": "was 3", "amount": None}, 104),
        envelope("u", {"id": 4}, {"id": 9, "name": "was 4", "amount": None}, 105),
        envelope("c", None, {"id": 1, "name": "of another table"}, 106).replace('"orders"', '"refunds"'),
    ]  # fmt: skip
    broker.send("orders", *snapshot, *changes)
    options = {**CANAL, "format": "debezium", "tables": ["public.orders"], "order": "position"}
    by_position = cdc_order(broker, database, options)
    run(spark, by_position, tmp_path)
    wanted = {
        0: ("read", "1.00"), 1: ("updated", None), 7: ("created", "2.50"), 8: ("was 3", None), 9: ("was 4", None),
    }  # fmt: skip
    assert found(postgresql, database) == wanted
    broker.send("orders", *snapshot, queue_id=1)
    run(spark, by_position, tmp_path)
    assert found(postgresql, database) == wanted
    for order, kind in (("time", "order: time"), ("offset", "format: debezium, order: offset in orders")):
        with pytest.raises(ConfigError, match=f"as 'cdc, order: position', but this group's rows as 'cdc, {kind}'"):
            start(spark, cdc_order(broker, database, {**options, "order": order}), tmp_path)
    with pytest.raises(ConfigError, match="the pipeline identifies a row by name, and the sink by id"):
        start(spark, cdc_order(broker, database, {**options, "keys": ["name"]}), tmp_path)


def test_another_order_format_or_topic_is_refused_and_a_topic_can_be_added(
    spark: SparkSession, postgresql: PostgresqlServer, database: str
) -> None:
    from rmqd_handlers.cdc.pipeline import Options, cdc

    def sink(topics: Sequence[str] = ("orders",), **keys: str) -> PostgresqlSink:
        config = {"format": "postgresql", "url": database, **SINK}
        made = PostgresqlSink(SinkConfig.model_validate(config), {}, "copy", topics)
        options = Options.model_validate({**CANAL, "order": "offset", **keys})
        made.prepare(cdc(spark.createDataFrame([], MESSAGES), spark, options).schema)
        return made

    postgresql.execute(database, TABLE)
    sink()
    postgresql.execute(database, "INSERT INTO orders VALUES (1, 'former', NULL, '{7,0}')")
    kind = "cdc, format: canal, order: offset in orders"
    with pytest.raises(ConfigError, match=f"as '{kind}', but this group's rows as 'cdc, order: time'") as refused:
        sink(order="time")
    assert "SET kind" not in str(refused.value)
    with pytest.raises(ConfigError, match=f"as '{kind}', but this group's rows as 'cdc, format: debezium") as refused:
        sink(format="debezium")
    assert "SET kind" not in str(refused.value)
    with pytest.raises(
        ConfigError, match=f"as '{kind}', but this group's rows as 'cdc, format: canal, order: offset in new"
    ):
        sink(["new"])
    sink(["new", "orders"])
    assert postgresql.execute(database, "SELECT kind FROM rmqd_order_kinds") == [
        (kind.replace("orders", "new, orders"),)
    ]


def test_an_invalid_change_fails_the_query_or_becomes_a_bad_row() -> None:
    """The error names queue and offset. Invalid changes can also be left out, and BadRows returns them."""
    import pyarrow as pa  # type: ignore[import-untyped]

    from rmqd_handlers.cdc.change_formats import unnamed_rows_error
    from rmqd_handlers.cdc.pipeline import BadRows, ChangeDecoder, ChangeRows, Options

    good = json.dumps({
        "type": "INSERT", "database": "shop", "table": "orders", "es": 1, "isDdl": False,
        "data": [{"id": "1", "name": "x"}],
    })  # fmt: skip
    bodies = [body.encode() for body in (good, good.replace('"1"', '"one"'), good.replace("INSERT", "TRUNCATE"))]
    messages = pa.RecordBatch.from_pydict({
        "topic": ["orders"] * 3, "queue_id": [3] * 3, "queue_offset": [0, 1, 2], "msg_id": ["id0", "id1", "id2"],
        "body": bodies,
    })  # fmt: skip
    decoder = ChangeDecoder(Options.model_validate(CANAL))
    with pytest.raises(
        ValueError,
        match=r"at orders, queue 3, offset 1 \(id1\) is not a change of a row: id: a text of 3 characters is not a "
        r"valid bigint;",
    ):
        list(ChangeRows(decoder, must_fit=True)(iter([messages])))
    named = messages.append_column("broker", pa.array(["broker-a"] * 3))
    with pytest.raises(ValueError, match=r"at orders, queue 3 of broker-a, offset 1 "):
        list(ChangeRows(decoder, must_fit=True)(iter([named])))
    (rows,) = ChangeRows(decoder, must_fit=False)(iter([named]))
    [row] = rows.to_pylist()
    assert row.pop("_place") == {"topic": "orders", "broker": "broker-a", "queue_id": 3, "queue_offset": 0}
    assert row == {"id": 1, "name": "x", "amount": None, "_deleted": False, "_order": [1, 0, 1]}
    (bad,) = BadRows(decoder)(iter([messages]))
    assert [(row["topic"], row["queue_offset"], row["_bad_row"]) for row in bad.to_pylist()] == [
        ("orders", 1, "id: a text of 3 characters is not a valid bigint"),
        ("orders", 2, unnamed_rows_error("shop.orders", "was emptied (TRUNCATE)")),
    ]
    assert bad["body"].to_pylist() == bodies[1:]
