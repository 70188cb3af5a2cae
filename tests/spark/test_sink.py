"""The sink without a JVM: options, columns, rows, and writers that are called as Spark calls them."""

from __future__ import annotations

import asyncio
import datetime
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.codes import RequestCode
from rmqd.errors import ConfigError, InvalidMessageError
from rmqd.spark.session.spark_access import ACCESS_OPTIONS as ACCESS
from rmqd.spark.sink.sink_rows import SINK_COLUMNS, SINK_OPTIONS, OutgoingRow, parse_sink_options
from rmqd.testing.rocketmq import RocketMQ
from tests.client.peer import Peer, Reply, route_of, stored
from tests.spark.needed import need

need("pyspark", "pyarrow")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402

from rmqd.spark.sink.sink_writer import (  # noqa: E402
    MAX_REQUEST_BYTES,
    MAX_REQUEST_ROWS,
    RocketMQWriter,
    StoredRowCount,
    close_row_senders,
    rows_by_request,
)
from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402

TIME = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
TYPES = {
    "body": pa.string(),
    "properties": pa.map_(pa.string(), pa.string()),
    "delay_level": pa.int32(),
    "deliver_at": pa.timestamp("us", tz="Europe/Paris"),
    "queue_id": pa.int64(),
    "_place": pa.struct(
        [(name, pa.string()) for name in ("topic", "broker")]
        + [(name, pa.int64()) for name in ("queue_id", "queue_offset")]
    ),
}


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    arrays = [pa.array([row.get(name) for row in rows], TYPES.get(name, pa.string())) for name in names]
    return pa.record_batch(arrays, names)


def write(nameserver: str, *batches: list[dict[str, Any]], **options: str) -> StoredRowCount:
    """Write a partition. The writer is pickled, as between Spark's processes."""
    arrow = [batch(rows) for rows in batches]
    schema = from_arrow_schema(arrow[0].schema)
    writer = RocketMQSource({"nameserver": nameserver, "topic": "orders", **options}).writer(schema, False)
    stored = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter(arrow))))
    assert isinstance(stored, StoredRowCount)
    return stored


def test_all_problems_are_reported_at_once() -> None:
    values = {"topik": "a", "nameserver": "nowhere", "sendparallelism": "0", "checkpointlocation": "/c"}
    columns = {"tag": "string", "properties": "map<string,int>", "delay_level": "string", "queue_offset": "bigint"}
    with pytest.raises(ConfigError) as raised:
        parse_sink_options(values, columns, overwrite=True)
    assert [str(problem) for problem in raised.value.problems] == [
        "topik: the sink has no such option; did you mean topic?",
        "nameserver: 'nowhere' is not a valid address; expected host:port",
        "sendParallelism: '0' is not valid; expected a number above 0",
        'mode: a topic cannot be overwritten; use mode("append")',
        "column body: missing; expected a binary or a string",
        "column tag: the sink has no such column; did you mean tags?",
        "column properties: is map<string,int>; expected map<string,string>",
        "column delay_level: is string; expected int, bigint, smallint, tinyint",
        "topic: missing; expected an option for all rows, or a column",
    ]


def test_a_row_becomes_a_message(embedded: RocketMQ) -> None:
    """Properties that RocketMQ sets itself are not copied from another message."""
    embedded.create_topic("orders", 4)
    row = {
        "body": "paid 7", "topic": "elsewhere", "tags": "paid", "keys": "k1 k2", "sharding_key": "c1", "queue_id": 3,
        "properties": {"n": "7", "UNIQ_KEY": "another", "DELAY": "5", "TAGS": "old", "CLUSTER": "other"},
    }  # fmt: skip
    assert write(embedded.nameserver, [row]) == StoredRowCount(1)
    (message,) = embedded.messages("orders")
    assert (message.body, message.tags, message.keys, message.queue_id) == (b"paid 7", "paid", "k1 k2", 3)
    assert message.properties["n"] == "7"
    assert message.properties["__SHARDINGKEY"] == "c1"
    assert message.msg_id != "another"
    assert "DELAY" not in message.properties
    assert message.properties["CLUSTER"] != "other"


def test_a_row_that_cannot_be_sent_is_refused(embedded: RocketMQ) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"body": None, "tags": "a"}, "row 1 of partition 0: its body is null"),
        (
            {"body": "b", "delay_level": 1, "deliver_at": TIME},
            "both delay_level and deliver_at are set; expected only one",
        ),
        ({"body": "b", "delay_level": -1}, "its delay_level is -1"),
    ]
    for row, said in cases:
        embedded.create_topic("orders")
        with pytest.raises(InvalidMessageError, match=said):
            write(embedded.nameserver, [{"body": "fine"}, row])


@pytest.mark.parametrize("refused", [{"body": None}, {"body": "b", "properties": {"a": "x" * 40_000}}])
def test_a_refused_row_is_named_by_its_message_or_skipped(embedded: RocketMQ, refused: dict[str, Any]) -> None:
    """The row is invalid, or its message cannot be sent. If it is skipped, the other rows are stored."""
    embedded.create_topic("orders")
    place = {"topic": "bills", "broker": "broker-a", "queue_id": 3}
    rows = [
        {**row, "_place": {**place, "queue_offset": n}} for n, row in enumerate([{"body": "a"}, refused, {"body": "c"}])
    ]
    with pytest.raises(InvalidMessageError, match="the row of topic bills, queue 3 of broker-a, offset 1: "):
        write(embedded.nameserver, rows)
    arrow = batch(rows)
    options = parse_sink_options(
        {"nameserver": embedded.nameserver, "topic": "orders"}, {"body": "string"}, overwrite=False
    )
    stored = RocketMQWriter(replace(options, skips_bad_rows=True)).write(iter([arrow]))
    assert stored == StoredRowCount(2)


async def test_rows_share_requests() -> None:
    """A request for each row would cost sender and broker seven times as much."""
    async with Peer() as name_server, Peer() as broker:
        route = route_of({"a": {0: broker.address}}, 1)
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=route.to_json()))
        broker.on(RequestCode.SEND_BATCH_MESSAGE, stored())

        def write_all() -> StoredRowCount:
            try:
                return write(name_server.address, [{"body": str(number)} for number in range(96)])
            finally:
                close_row_senders()  # the senders of this thread

        assert (await asyncio.to_thread(write_all)).messages == 96
        assert len(broker.got(RequestCode.SEND_BATCH_MESSAGE)) == 3
        assert not broker.got(RequestCode.SEND_MESSAGE_V2)


def test_rows_of_a_sharding_key_stay_in_order(embedded: RocketMQ) -> None:
    """They are in one queue, across batches, while rows of other keys are in flight."""
    embedded.create_topic("orders", 4)
    rows = [{"body": str(number), "sharding_key": f"c{number % 7}"} for number in range(420)]
    assert write(embedded.nameserver, rows[:300], rows[300:]).messages == 420
    stored = embedded.messages("orders")
    for key in range(7):
        mine = [message for message in stored if message.properties["__SHARDINGKEY"] == f"c{key}"]
        assert len({message.queue_id for message in mine}) == 1
        assert [int(message.body) for message in mine] == list(range(key, 420, 7))


def test_the_docs_list_the_options_and_columns_of_the_sink() -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text().split("\n## Writing\n")[1].split("\n## ")[0]
    options, columns = page.split("| option of the sink |")[1].split("| column of the sink |")
    listed_options = re.findall(r"^\| `(\w+)` \|", options, re.MULTILINE)
    assert sorted([*listed_options, *ACCESS[1:]]) == sorted(SINK_OPTIONS)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", columns, re.MULTILINE)
    listed = {name: (tuple(re.findall(r"`(.*?)`", kinds)), text) for name, kinds, text in rows}
    assert listed == SINK_COLUMNS


def sent(body: str, topic: str = "orders", queue_id: int | None = None, **more: Any) -> OutgoingRow:
    return OutgoingRow(OutgoingMessage(topic, body.encode(), **more), queue_id)


def bundled(*rows: OutgoingRow) -> list[list[str]]:
    return [[one.message.body.decode() for one in bundle] for bundle in rows_by_request(rows)]


def test_a_request_has_one_topic_and_one_lane() -> None:
    """The rows of a lane stay in order."""
    rows = [sent(str(n), topic="ab"[n % 2], sharding_key="xyz"[n // 4]) for n in range(12)]
    assert bundled(*rows) == [["0", "2"], ["1", "3"], ["4", "6"], ["5", "7"], ["8", "10"], ["9", "11"]]
    assert bundled(sent("a", queue_id=1), sent("b", queue_id=2), sent("c", queue_id=1)) == [["a", "c"], ["b"]]


def test_a_request_is_limited_in_rows_and_bytes() -> None:
    """A row above the limit is sent alone."""
    many = [str(number) for number in range(2 * MAX_REQUEST_ROWS + 1)]
    assert bundled(*map(sent, many)) == [many[:MAX_REQUEST_ROWS], many[MAX_REQUEST_ROWS:-1], many[-1:]]
    half, large = "h" * (MAX_REQUEST_BYTES // 2), "l" * (MAX_REQUEST_BYTES * 2)
    assert bundled(sent("1"), sent(half), sent(half), sent(large), sent("2")) == [["1", half], [half], [large], ["2"]]


def test_delayed_rows_and_retries_are_sent_alone() -> None:
    """Batches must not contain them. Earlier rows of their lane are stored first."""
    rows = [sent("1"), sent("2", delay_level=3), sent("3", deliver_at_ms=1), sent("4", topic="%RETRY%group"), sent("5")]
    assert bundled(*rows) == [["2"], ["3"], ["4"], ["1", "5"]]
    in_lane = [sent("1", queue_id=0), sent("2", queue_id=0, delay_level=3), sent("3", queue_id=0)]
    assert bundled(*in_lane) == [["1"], ["2"], ["3"]]
