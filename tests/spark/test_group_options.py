"""Options of the source in a group's configuration: which there are, and what is said of the others."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.config.model.group_model import GroupConfig
from rmqd.config.model.root_model import RootConfig
from rmqd.errors import ConfigError
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.spark.source.source_options import SOURCE_OPTIONS, SourceOptions, with_spark_options

PIPELINE: dict[str, Any] = {
    "pipeline": {"plugin": "archive"},
    "sink": {"format": "parquet", "path": "/data/archive"},
}
HANDLER: dict[str, Any] = {"handler": {"plugin": "log"}}


def group(work: dict[str, Any], options: dict[str, Any]) -> GroupConfig:
    values = {"engine": "spark", "subscriptions": {"orders": "*"}, "spark": {"options": options}, **work}
    return RootConfig.model_validate({"nameserver": "ns:1", "groups": {"g": values}}).groups["g"]


def given(work: dict[str, Any], **base: Any) -> Any:
    """What becomes of options."""
    own = SourceOptions(access=ClientAccess(ClientOptions(nameservers=("ns:1",))), **base)
    return lambda **options: with_spark_options(own, "g", group(work, options))


def problems(work: dict[str, Any], options: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        given(work)(**options)
    return [str(problem) for problem in raised.value.problems]


def test_all_that_is_wrong_is_said_at_once() -> None:
    """With what was meant, or where a group says it."""
    wrong = {"minPartition": 4, "maxPartitions": "many", "startingOffsets": "earliest", "failOnDataLoss": True}
    assert [text.partition("groups.g.spark.options: ")[2] for text in problems(PIPELINE, wrong)] == [
        "minPartition: there is no such option; did you mean minPartitions?",
        "startingOffsets: not available here; use consume_from_where and consume_timestamp of the group",
        "failOnDataLoss: not available here; use on_offset_illegal of the group",
        "maxPartitions: 'many' is not valid; expected a number above 0",
    ]


def test_a_handler_has_no_rows() -> None:
    """What is about them is for pipelines."""
    assert given(HANDLER)(queueRetention="1h").queue_retention_seconds == 3600.0
    [text] = problems(HANDLER, {"columns": "body"})
    assert text.endswith("columns: not available here; use a pipeline, which has rows")
    [text] = problems({**HANDLER, "pull_interval": "1s"}, {"pullParallelism": 4})
    assert text.endswith("use no pull_interval, which allows only one pull at a time")


def test_each_option_is_taken_or_refused_with_a_place() -> None:
    """A source's new option is one of pipelines, or gets its line here."""
    for name in SOURCE_OPTIONS:
        assert problems(PIPELINE, {name: "\0"})


def test_bodies_become_columns_of_a_pipeline() -> None:
    """With the schema that the configuration has: there is no `schema()` that would say it."""
    found = given(PIPELINE, columns=("topic", "body"))(value="json", valueSchema="id bigint")
    assert found.columns == ("topic", "body", "value", "_bad_row")
    assert found.value_format.sql == "struct<id:bigint>"
    assert given(PIPELINE)(value="json", valueSchema="id int", columns=["value"]).columns == ("topic", "value")
    assert "valueSchema: missing; expected SQL columns" in problems(PIPELINE, {"value": "json"})[0]
    assert (
        "valueSchema: bigit is not a valid type" in problems(PIPELINE, {"value": "json", "valueSchema": "id bigit"})[0]
    )
    assert "value: not available here; use a pipeline" in problems(HANDLER, {"value": "json"})[0]
