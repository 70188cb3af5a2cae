"""Options of the source in a group's configuration: the available ones, and the errors for the others."""

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
    """Return a function that applies options to a group."""
    own = SourceOptions(access=ClientAccess(ClientOptions(nameservers=("ns:1",))), **base)
    return lambda **options: with_spark_options(own, "g", group(work, options))


def problems(work: dict[str, Any], options: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        given(work)(**options)
    return [str(problem) for problem in raised.value.problems]


def test_all_invalid_options_are_reported_at_once() -> None:
    """Each error suggests the intended option, or names the group's own key."""
    wrong = {"minPartition": 4, "maxPartitions": "many", "startingOffsets": "earliest", "failOnDataLoss": True}
    assert [text.partition("groups.g.spark.options: ")[2] for text in problems(PIPELINE, wrong)] == [
        "minPartition: there is no such option; did you mean minPartitions?",
        "startingOffsets: not available here; use consume_from_where and consume_timestamp of the group",
        "failOnDataLoss: not available here; use on_offset_illegal of the group",
        "maxPartitions: 'many' is not valid; expected a number above 0",
    ]


def test_options_of_rows_are_refused_for_a_handler() -> None:
    """Only pipelines have rows."""
    assert given(HANDLER)(queueRetention="1h").queue_retention_seconds == 3600.0
    [text] = problems(HANDLER, {"columns": "body"})
    assert text.endswith("columns: not available here; use a pipeline, which has rows")
    [text] = problems({**HANDLER, "pull_interval": "1s"}, {"pullParallelism": 4})
    assert text.endswith("use no pull_interval, which allows only one pull at a time")


def test_each_option_of_the_source_is_checked_or_refused() -> None:
    """A new option must be added to the options of pipelines, or to the refused ones."""
    for name in SOURCE_OPTIONS:
        assert problems(PIPELINE, {name: "\0"})


def test_bodies_become_columns_of_a_pipeline() -> None:
    """The schema is in the configuration, because no `schema()` is called."""
    found = given(PIPELINE, columns=("topic", "body"))(value="json", valueSchema="id bigint")
    assert found.columns == ("topic", "body", "value", "_bad_row")
    assert found.value_format.sql == "struct<id:bigint>"
    assert given(PIPELINE)(value="json", valueSchema="id int", columns=["value"]).columns == ("topic", "value")
    assert "valueSchema: missing; expected SQL columns" in problems(PIPELINE, {"value": "json"})[0]
    assert (
        "valueSchema: bigit is not a valid type" in problems(PIPELINE, {"value": "json", "valueSchema": "id bigit"})[0]
    )
    assert "value: not available here; use a pipeline" in problems(HANDLER, {"value": "json"})[0]
