"""The source's options in `spark.options` of a group's configuration. No I/O.

They are the options of `load()`, except options that a group's own keys or its engine set.
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
"""A placeholder for a schema that is not inferred yet."""
_STARTING: Final = "consume_from_where and consume_timestamp of the group"
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(access.NAMES, "client and nameserver of the configuration"),
    **dict.fromkeys(("subscribe", "subscribePattern", "assign", "tags", "sql"), "subscriptions of the group"),
    **dict.fromkeys(STARTS, _STARTING),
    **dict.fromkeys(("startingOffsetsFallback", "startingOffsetsByTimestampStrategy"), _STARTING),
    **dict.fromkeys((*BATCH_ONLY, "pushdown"), "spark.read, which has an end"),
    **dict.fromkeys(("maxOffsetsPerTrigger", "maxRowsPerTrigger"), "spark.max_offsets_per_trigger of the group"),
    "groupId": "the group's name",
    "includeProperties": "columns, which include properties by default",
    "commitOffsets": "no option: a group's offsets are always committed",
    "includeRetryTopic": "a handler, which always reads retries",
    "failOnDataLoss": "on_offset_illegal of the group",
    "mode": "on_corrupt_message of the group",
    "pullBatchSize": "pull_batch_size of the group",
    "routeRefreshMs": "client.poll_name_server_interval of the configuration",
    "drainFile": "rmqd pause, or a graceful stop",
}
"""The alternatives to options that a group cannot have."""
_OF_ROWS: Final = (
    *"columns rowsPerBatch minPartitions maxPartitions maxRecordsPerPartition checkCrc".split(),
    *value_format.NAMES,
)


def with_spark_options(options: SourceOptions, name: str, settings: GroupConfig) -> SourceOptions:
    """Add a group's `spark.options` to the options of its source.

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
    needed = ("topic", "decode_error") if options.permissive else ("topic",)  # to count rows
    return replace(more, columns=(*(column for column in needed if column not in more.columns), *more.columns))


def is_inferred(values: Mapping[str, str]) -> bool:
    """Return whether the options request an inferred schema of bodies."""
    by_name = {name.lower(): text.strip().lower() for name, text in values.items()}
    return by_name.get("value") == "json" and by_name.get(SCHEMA.lower()) == value_format.INFER


def check_spark_options(name: str, settings: GroupConfig) -> None:
    """Check `spark.options` before Spark is started. Raises ConfigError."""
    with_spark_options(SourceOptions(access=Access(ClientOptions(nameservers=()))), name, settings)


def _given(settings: GroupConfig) -> GivenOptions:
    written = settings.spark.options if settings.spark is not None else {}
    instead = {name.lower(): accepted for name, accepted in _INSTEAD.items()}
    if settings.handler is not None:
        instead |= dict.fromkeys(map(str.lower, _OF_ROWS), "a pipeline, which has rows")
    if settings.pull_interval:
        instead["pullparallelism"] = "no pull_interval, which allows only one pull at a time"
    own = {name: _text(value) for name, value in written.items() if name.lower() not in instead}
    given = GivenOptions(own, tuple(name for name in NAMES if name.lower() not in instead))
    for name in written:
        if accepted := instead.get(name.lower()):
            given.problem(name, f"not available here; use {accepted}")
    return given


def _text(value: Any) -> str:
    """Convert a value to text, like Spark for values in `option()`; a list is joined with commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)
