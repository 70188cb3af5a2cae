"""`valueSchema: infer`: a group's columns are inferred once, and then kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from rmqd.errors import RmqdError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.group_source import GroupSourceSettings  # noqa: E402
from rmqd.spark.pipelines import pinned_schema  # noqa: E402
from rmqd.spark.pipelines.pinned_schema import with_pinned_schema  # noqa: E402
from rmqd.spark.values.fitting import MAX_INFERRED_FIELDS  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402
from tests.spark.local_folder import LocalFolder  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.session.group_spec import GroupSpec


def order(nameserver: str, folder: Path, **options: Any) -> GroupSpec:
    return order_of(
        nameserver,
        subscriptions={"orders": "*"},
        pull_batch_size=1,
        spark={"trigger": "available_now", "options": {"value": "json", "valueSchema": "infer", **options}},
        pipeline={"plugin": "select", "options": {"columns": ["queue_offset", "value.*", "_bad_row"]}},
        sink={"format": "parquet", "path": str(folder / "rows")},
    )


def schema(of: GroupSpec, folder: Path) -> str:
    """The schema that replaces `infer` in the group's configuration."""
    plan = GroupSourceSettings(spec=of, start_offsets=None, pause_file=str(folder / "pause"))
    found = with_pinned_schema(of, plan.source_options(), None, LocalFolder(folder / "kept"))
    assert found.settings.spark is not None
    return str(found.settings.spark.options["valueSchema"])


def test_a_schema_is_inferred_once_and_logged(broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The samples are the group's first messages, or earlier ones if there are none."""
    broker.create_topic("orders", 2)
    group = order(broker.nameserver, tmp_path)
    with pytest.raises(RmqdError, match="valueSchema: infer finds nothing: there is no message that is a JSON object"):
        schema(group, tmp_path)
    broker.send("orders", "no JSON")
    with pytest.raises(RmqdError, match="none of the 1 sampled messages is a JSON object"):
        schema(group, tmp_path)
    assert not (tmp_path / "kept").exists()
    broker.send("orders", '{"id": 1}', queue_id=0)
    broker.send("orders", '{"id": 2, "share": 0.5}', queue_id=1)
    broker.commit(group.options.group, "orders", {0: 2, 1: 1})  # at the ends
    with structlog.testing.capture_logs() as logs:
        assert schema(group, tmp_path) == "id bigint, share double"
    (told,) = (one for one in logs if one["event"] == "spark.value_schema_inferred")
    assert (told["schema"], told["messages"]) == ("id bigint, share double", 2)
    broker.send("orders", '{"id": "text"}')
    assert schema(group, tmp_path) == "id bigint, share double"
    (tmp_path / "kept" / "value_schema.json").unlink()
    assert schema(group, tmp_path) == "id string"  # the only message after the group's offsets
    (tmp_path / "kept" / "value_schema.json").write_text("{}")
    with pytest.raises(RmqdError, match=r"value_schema.json does not contain the schema of bodies.*delete the file"):
        schema(group, tmp_path)


def test_only_some_large_bodies_are_sampled(
    broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample has some bodies of each queue."""
    monkeypatch.setattr(pinned_schema, "MAX_SAMPLE_BYTES", 2)
    broker.create_topic("orders", 2)
    for queue_id, (first, second) in enumerate((("a", "b"), ("c", "d"))):
        broker.send("orders", json.dumps({first: 1}), json.dumps({second: 1}), queue_id=queue_id)
    assert schema(order(broker.nameserver, tmp_path, rowsPerBatch="1"), tmp_path) == "a bigint, c bigint"


def test_too_many_field_names_fail_the_group(broker: EmbeddedBroker, tmp_path: Path) -> None:
    broker.create_topic("orders", 1)
    broker.send("orders", json.dumps({f"k{number}": 1 for number in range(MAX_INFERRED_FIELDS + 1)}))
    with pytest.raises(RmqdError, match=r"valueSchema: infer finds no schema: .* write the schema in valueSchema"):
        schema(order(broker.nameserver, tmp_path), tmp_path)
    assert not (tmp_path / "kept").exists()


def test_an_explicit_schema_is_used(tmp_path: Path) -> None:
    """No broker is queried, and nothing is stored."""
    assert schema(order("127.0.0.1:1", tmp_path, valueSchema="id bigint"), tmp_path) == "id bigint"
    assert not (tmp_path / "kept").exists()


def test_a_group_keeps_the_columns_that_it_inferred(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Messages that do not fit after a restart are bad rows."""
    broker.create_topic("orders", 1)
    broker.send("orders", json.dumps({"id": 1, "lines": [{"sku": "a"}]}))
    group = order(broker.nameserver, tmp_path)
    assert start(spark, group, tmp_path).awaitTermination(SECONDS)
    broker.send("orders", json.dumps({"id": "text", "lines": []}), json.dumps({"id": 2, "more": True}))
    assert start(spark, group, tmp_path).awaitTermination(SECONDS)
    table = spark.read.parquet(str(tmp_path / "rows"))
    assert table.columns == ["queue_offset", "id", "lines", "_bad_row"]
    rows = sorted(table.collect(), key=lambda row: int(row.queue_offset))
    assert [(row.id, row.lines and [line.sku for line in row.lines]) for row in rows] == [
        (1, ["a"]),
        (None, None),
        (2, None),
    ]
    assert rows[1]._bad_row == "id: 'text' is not a valid bigint"
