"""The options of the source that a group's configuration has in `spark.options`. Pure.

They are those of `load()`, but for what a group has keys of its own for, and what its engine does by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rmqd.client.options import ClientOptions
from rmqd.config.model.group import GroupConfig
from rmqd.errors import ConfigError
from rmqd.spark import access
from rmqd.spark.access import Access
from rmqd.spark.option_values import GivenOptions
from rmqd.spark.source.options import BATCH_ONLY, NAMES, STARTS, SourceOptions, with_more
from rmqd.spark.values import value_format

SCHEMA: Final = "valueSchema"
NOT_YET: Final = "unknown string"
"""In place of a schema that is still to be inferred."""
_STARTING: Final = "consume_from_where and consume_timestamp of the group"
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(access.NAMES, "client and nameserver of the configuration"),
    **dict.fromkeys(("subscribe", "subscribePattern", "assign", "tags", "sql"), "subscriptions of the group"),
    **dict.fromkeys(STARTS, _STARTING),
    **dict.fromkeys(("startingOffsetsFallback", "startingOffsetsByTimestampStrategy"), _STARTING),
    **dict.fromkeys((*BATCH_ONLY, "pushdown"), "spark.read, which has an end"),
    **dict.fromkeys(("maxOffsetsPerTrigger", "maxRowsPerTrigger"), "spark.max_offsets_per_trigger of the group"),
    "groupId": "the group's name",
    "includeProperties": "columns, which have properties unless they are named",
    "commitOffsets": "nothing: a group's offsets are always committed",
    "includeRetryTopic": "a handler, whose retries are read always",
    "failOnDataLoss": "on_offset_illegal of the group",
    "mode": "on_corrupt_message of the group",
    "pullBatchSize": "pull_batch_size of the group",
    "routeRefreshMs": "client.poll_name_server_interval of the configuration",
    "drainFile": "rmqd pause, and a graceful stop",
}
"""What is accepted in place of an option that a group cannot have."""
_OF_ROWS: Final = (
    *"columns rowsPerBatch minPartitions maxPartitions maxRecordsPerPartition checkCrc".split(),
    *value_format.NAMES,
)


def with_spark_options(options: SourceOptions, name: str, settings: GroupConfig) -> SourceOptions:
    """A group's options of the source with those of `spark.options`.

    Raises ConfigError with a line for each problem, which names the option.
    """
    given = _given(settings)
    if is_inferred(given.values):
        given.values[SCHEMA] = NOT_YET
    more = with_more(options, given)
    if more.value is not None and not given.problems:
        try:
            more = replace(more, value=more.value.of_topics(tuple(settings.subscriptions)))
        except ConfigError as error:
            given.problems += error.problems
    if given.problems:
        raise ConfigError([settings.problem(name, ("spark", "options"), str(text)) for text in given.problems])
    needed = ("topic", "decode_error") if options.permissive else ("topic",)  # by which rows are counted
    return replace(more, columns=(*(column for column in needed if column not in more.columns), *more.columns))


def is_inferred(values: Mapping[str, str]) -> bool:
    """Whether options ask for the schema of bodies to be found by looking at some."""
    by_name = {name.lower(): text.strip().lower() for name, text in values.items()}
    return by_name.get("value") == "json" and by_name.get(SCHEMA.lower()) == value_format.INFER


def check_spark_options(name: str, settings: GroupConfig) -> None:
    """See that `spark.options` can be had, before anything of Spark is started. Raises ConfigError."""
    with_spark_options(SourceOptions(access=Access(ClientOptions(nameservers=()))), name, settings)


def _given(settings: GroupConfig) -> GivenOptions:
    written = settings.spark.options if settings.spark is not None else {}
    instead = {name.lower(): accepted for name, accepted in _INSTEAD.items()}
    if settings.handler is not None:
        instead |= dict.fromkeys(map(str.lower, _OF_ROWS), "a pipeline, which has rows")
    if settings.pull_interval:
        instead["pullparallelism"] = "no pull_interval, which has one pull at a time"
    own = {name: _text(value) for name, value in written.items() if name.lower() not in instead}
    given = GivenOptions(own, tuple(name for name in NAMES if name.lower() not in instead))
    for name in written:
        if accepted := instead.get(name.lower()):
            given.problem(name, f"not here; accepted: {accepted}")
    return given


def _text(value: Any) -> str:
    """As Spark writes what its users give to `option()`; a list is written with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)
