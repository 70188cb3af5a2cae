"""`parquet`: files are complete and listed before their messages are acknowledged, and each message is listed once."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from rmqd import Batch, testing
from rmqd.spark.source.source_columns import COLUMN_TYPES, GROUP_COLUMNS
from rmqd_handlers.parquet import Parquet
from tests.handlers.messages import QUEUE, make_batch, make_message
from tests.handlers.options import refused_otherwise

BORN = datetime(2026, 1, 1, tzinfo=UTC)
SQL_TYPES = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


@asynccontextmanager
async def started(path: object, **options: object) -> AsyncIterator[Parquet]:
    given = {"path": str(path), "roll_after": "0s", **options}
    handler = Parquet(Parquet.Options.model_validate(given))
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


def batch_of(*offsets: int, body: str = "{}") -> Batch:
    return make_batch(*(make_message(body.encode(), keys=f"k{at}", queue_offset=at) for at in offsets))


def entries(path: Path) -> list[dict[str, Any]]:
    """The manifest."""
    return [json.loads(one.read_text()) for one in sorted((path / "_manifest").rglob("*.json"))]


def listed(path: Path, column: str = "queue_offset") -> list[Any]:
    """The values of a column in the files of the manifest."""
    return [value for one in entries(path) for value in pq.ParquetFile(path / one["file"]).read()[column].to_pylist()]


async def test_rows_have_the_archive_columns_in_folders_by_date_and_topic(tmp_path: Path) -> None:
    message = make_message(b"\xff\x00", keys="k", tags="paid", queue_offset=7, properties={"colour": "blue"})
    async with started(tmp_path) as handler:
        await handler.handle(make_batch(message))

    [entry] = entries(tmp_path)
    assert entry["file"].startswith("date=2026-01-01/topic=orders/broker-a-3-")
    [row] = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table().to_pylist()
    assert (row["topic"], row["date"], row["body"], row["keys"]) == ("orders", "2026-01-01", b"\xff\x00", "k")
    assert dict(row["properties"])["colour"] == "blue"
    assert row["born_timestamp"] == BORN
    schema = pq.ParquetFile(tmp_path / entry["file"]).schema_arrow
    assert {name: schema.field(name).type for name in schema.names} == {
        name: SQL_TYPES[COLUMN_TYPES[name][0]] for name in schema.names
    }
    assert set(GROUP_COLUMNS) - {"store_size"} == {*schema.names, "topic"}


async def test_the_example_of_the_docs_reads_the_files_of_the_manifest(tmp_path: Path) -> None:
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(1, 2, 3))
    (tmp_path / "date=2026-01-01" / "topic=orders" / "not-listed.parquet").write_text("of a process that was killed")

    page = (Path(__file__).parents[2] / "docs" / "destinations.md").read_text()
    [code] = re.findall(r"^```python parquet\n(import json.*?)^```", page, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {}
    exec(code.replace("/data/orders", str(tmp_path)), found)
    assert found["orders"].to_table()["topic"].to_pylist() == ["orders"] * 3


async def test_columns_get_the_values_of_their_expressions_in_their_types(tmp_path: Path) -> None:
    document = (
        '{"id": "ü", "n": 12, "amount": 1.50, "paid": true, "at": "2026-03-01T12:00:00+02:00", "day": "2026-03-01"}'
    )
    columns = {name: f"$.{name}" for name in ("id", "n", "amount", "paid", "at", "day")}
    columns |= {
        "whole": "$",
        "missing": "$.none",
        "colour": "properties.colour",
        "offset": "queue_offset",
        "raw": "body",
    }
    columns["born"] = "born_timestamp"
    types = {"n": "int32", "amount": "decimal(8,3)", "paid": "boolean", "at": "timestamp", "day": "date"}
    async with started(tmp_path, columns=columns, types=types) as handler:
        await handler.handle(make_batch(make_message(document.encode(), properties={"colour": "blue"})))

    [entry] = entries(tmp_path)
    [row] = pq.ParquetFile(tmp_path / entry["file"]).read().to_pylist()
    assert json.loads(row.pop("whole"))["n"] == 12
    assert row == {
        "id": "ü",
        "n": 12,
        "amount": Decimal("1.500"),
        "paid": True,
        "at": datetime(2026, 3, 1, 10, tzinfo=UTC),
        "day": date(2026, 3, 1),
        "missing": None,
        "colour": "blue",
        "offset": 0,
        "raw": document.encode(),
        "born": BORN,
    }


async def test_calls_of_a_queue_share_a_file_until_roll_after(tmp_path: Path) -> None:
    async with started(tmp_path, roll_after="300ms") as handler:
        calls = [asyncio.create_task(handler.handle(batch_of(at, at + 1))) for at in (0, 2, 4)]
        await asyncio.gather(*calls)

    assert [one["offsets"] for one in entries(tmp_path)] == [[[0, 5]]]


async def test_messages_in_the_manifest_are_not_written_again(tmp_path: Path) -> None:
    """After a crash before the commit, another process gets the same messages in other batches."""
    async with started(tmp_path) as handler:
        await handler.handle(batch_of(*range(10)))
    async with started(tmp_path) as handler:
        batch = batch_of(*range(5, 15))
        await handler.handle(batch)
        await handler.handle(batch_of(*range(3)))  # further back, as after an operator's reset

    assert sorted(listed(tmp_path)) == list(range(15))
    assert batch.decisions() == {}  # all messages are acknowledged


def stored(stored_ms: int, *offsets: int) -> Batch:
    """Messages that a broker stored one millisecond after the other, from `stored_ms` on."""
    messages = (
        testing.make_message(b"x", queue_offset=at, store_timestamp=stored_ms + number)
        for number, at in enumerate(offsets)
    )
    return Batch(list(messages), QUEUE)


def test_wrong_options_are_refused() -> None:
    wrong: list[tuple[dict[str, object], str]] = [
        ({"path": ""}, "at least 1 character"),
        ({"path": "gs://bucket"}, "not a valid path; expected"),
        ({"path": "oss-hdfs://bucket"}, "not a valid path; expected"),
        ({"path": "s3:/bucket/orders"}, "not a valid path; expected"),
        ({"path": "~/orders"}, "not a valid path; expected"),
        ({"path": "s3://"}, "has no bucket; expected"),
        ({"path": "s3:///orders"}, "has no bucket; expected"),
        ({"s3": {"region": "x"}}, "s3://"),
        ({"path": "s3://b", "s3": {"endpoint": "host:9000"}}, "pattern"),
        ({"columns": {"id": "id"}}, "'id' is not a valid expression"),
        ({"columns": {"topic": "topic"}}, "topic is the name of a folder"),
        ({"types": {"id": "int32"}}, "not in columns: id"),
        ({"columns": {"id": "keys"}, "types": {"id": "varchar"}}, "is not a type; expected string"),
        ({"columns": {"id": "keys"}, "types": {"id": "decimal(39,2)"}}, "38 digits"),
        ({"roll_size": "0B"}, "greater than 0"),
        ({"compression": "lzo"}, "zstd"),
    ]

    assert refused_otherwise(Parquet.Options, wrong, path="archive") == []
