"""The source's options, checked together, so that one error reports all problems. No I/O.

A group's `spark.options` are the options of `load()`, without the options that the group's other keys or its engine
set. They are checked even if Spark is not installed, so this module imports neither pyspark nor pyarrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from rmqd.client.client_options import ClientOptions
from rmqd.errors import ConfigError
from rmqd.spark.session import spark_access as access
from rmqd.spark.session.queue_range import EVERY_MESSAGE, PullSettings
from rmqd.spark.session.spark_access import (
    ClientAccess,
    GivenOptions,
    option_text,
    parse_flag,
    parse_milliseconds_as_seconds,
    parse_positive_int,
)
from rmqd.spark.source.source_columns import (
    GROUP_COLUMNS,
    LOAD_COLUMNS,
    VALUE_COLUMNS,
    DecodingOptions,
    bound_word_parser,
    parse_columns,
    parse_duration,
    parse_error_mode,
    parse_missing_timestamp_strategy,
    parse_queues,
    parse_time_bound,
    parse_topic_pattern,
    parse_topics,
)
from rmqd.spark.source.source_offsets import BoundKind, OffsetBound, parse_offsets_bound, parse_timestamps_bound
from rmqd.spark.values import value_format
from rmqd.spark.values.value_format import MISSING_SCHEMA_HINTS, ValueFormat, parse_value_format
from rmqd.wire.bodies.heartbeat_data import SubscriptionData, sql_subscription, tag_subscription
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import TOOLS_GROUP, check_group, retry_topic

if TYPE_CHECKING:
    from rmqd.config.model.group_model import GroupConfig

_OTHERS: Final = tuple(
    "subscribe subscribePattern assign tags sql columns groupId commitOffsets startingOffsets startingOffsetsFallback "
    "startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy endingOffsets endingTimestamp "
    "endingOffsetsByTimestamp maxOffsetsPerTrigger maxRowsPerTrigger maxBytesPerTrigger minOffsetsPerTrigger "
    "maxTriggerDelay minPartitions maxPartitions maxRecordsPerPartition failOnDataLoss fetchOffset.intervalMs "
    "routeRefreshMs unavailableToleranceMs pullBatchSize pullParallelism pullTimeoutMs rowsPerBatch drainFile "
    "includeRetryTopic includeProperties mode checkCrc pushdown queueRetention".split()
)
KAFKA_OPTIONS: Final = {
    "kafka.bootstrap.servers": "nameserver",
    "kafka.group.id": "groupId",
    "groupIdPrefix": "groupId",
    "includeHeaders": "includeProperties",
    "kafkaConsumer.pollTimeoutMs": "pullTimeoutMs",
    "fetchOffset.numRetries": "unavailableToleranceMs",
    "fetchOffset.retryIntervalMs": "unavailableToleranceMs",
    "kafka.security.protocol": "tls",
    "kafka.sasl.jaas.config": "accessKey and secretKey",
}
"""The rmqd option that replaces each option of Spark's Kafka source, for hints in errors."""
SOURCE_OPTIONS: Final = (*access.ACCESS_OPTIONS, *_OTHERS, *value_format.VALUE_OPTIONS)
BATCH_ONLY_OPTIONS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
START_OPTIONS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_WHAT: Final = ("subscribe", "subscribePattern", "assign")
_MAXIMUM: Final = ("maxOffsetsPerTrigger", "maxRowsPerTrigger")

CATALOG_OPTION_PREFIX: Final = "option."
"""CREATE TABLE adds a copy of each option, with this prefix, and the option `provider`."""
NO_CATALOG_TEXT: Final = (
    "CREATE TABLE: Spark's catalog would store the options of a Python source; "
    "use CREATE TEMPORARY VIEW name USING rocketmq OPTIONS (...)"
)

_Fields = Mapping[str, tuple[str, Callable[[str], Any]]]
_LIMITS: Final[_Fields] = {
    "minOffsetsPerTrigger": ("min_offsets", parse_positive_int),
    **dict.fromkeys(_MAXIMUM, ("max_offsets", parse_positive_int)),
    "minPartitions": ("min_partitions", parse_positive_int),
    "maxPartitions": ("max_partitions", parse_positive_int),
}
_FIELDS: Final[_Fields] = {
    "subscribe": ("topics", parse_topics),
    "subscribePattern": ("topic_pattern", parse_topic_pattern),
    "assign": ("assigned_queues", parse_queues),
    "startingOffsetsFallback": ("default_start_bound", bound_word_parser("earliest", "latest")),
    "startingOffsetsByTimestampStrategy": ("must_find_timestamp", parse_missing_timestamp_strategy),
    "maxBytesPerTrigger": ("max_bytes", parse_positive_int),
    "maxTriggerDelay": ("max_trigger_delay_seconds", parse_duration),
    "maxRecordsPerPartition": ("max_records_per_partition", parse_positive_int),
    "failOnDataLoss": ("fail_on_data_loss", parse_flag),
    "fetchOffset.intervalMs": ("fetch_interval_seconds", parse_milliseconds_as_seconds),
    "routeRefreshMs": ("route_refresh_seconds", parse_milliseconds_as_seconds),
    "unavailableToleranceMs": ("tolerance_seconds", parse_milliseconds_as_seconds),
    "queueRetention": ("queue_retention_seconds", parse_duration),
    "drainFile": ("pause_file", str),
    "checkCrc": ("checks_crc", parse_flag),
    "pushdown": ("uses_pushdown", parse_flag),
}
"""The field of SourceOptions that an option sets, and the parser of the option's value."""
_PULL: Final[_Fields] = {
    "pullBatchSize": ("batch_size", lambda text: min(parse_positive_int(text), 1024)),
    "pullParallelism": ("max_in_flight", lambda text: min(parse_positive_int(text), 64)),
    "pullTimeoutMs": ("timeout_seconds", parse_milliseconds_as_seconds),
    "rowsPerBatch": ("rows_per_batch", parse_positive_int),
}
"""The field of PullSettings that an option sets, and the parser of the option's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(DecodingOptions):
    """The topics, filters, bounds and speed of a read.

    Exactly one of `topics`, `topic_pattern` and `assigned_queues` is set.
    """

    access: ClientAccess
    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    assigned_queues: tuple[MessageQueue, ...] = ()
    include_retry_topic: bool = False
    """Whether the query also reads the group's retry topic, if that topic exists."""
    subscription: SubscriptionData = EVERY_MESSAGE
    """The broker-side filter for all topics. Its `topic` is empty."""
    filter_by_topic: Mapping[str, SubscriptionData] = field(default_factory=dict)
    """Broker-side filters of single topics, used instead of `subscription`."""
    columns: tuple[str, ...] = GROUP_COLUMNS
    group: str = ""
    commit_offsets: bool = False
    start_bound: OffsetBound | None = None
    """The start offsets. None: `latest` for a stream, `earliest` for a batch read."""
    default_start_bound: OffsetBound = field(default_factory=lambda: OffsetBound("earliest"))
    must_find_timestamp: bool = False
    end_bound: OffsetBound = field(default_factory=lambda: OffsetBound("latest"))
    given_options: frozenset[str] = frozenset()
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_seconds: float = 900.0
    min_partitions: int | None = None
    max_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    fetch_interval_seconds: float = 0.2
    route_refresh_seconds: float = 30.0
    tolerance_seconds: float = 60.0
    queue_retention_seconds: float = 259200.0
    pause_file: str = ""
    uses_pushdown: bool = False
    pull: PullSettings = field(default_factory=PullSettings)

    @property
    def retry_topic(self) -> str:
        """The group's retry topic if it is read, else an empty string."""
        return retry_topic(self.group) if self.include_retry_topic else ""

    def filter_of(self, topic: str) -> SubscriptionData:
        """Return the broker-side filter of a topic. Messages of the retry topic are not filtered a second time."""
        return EVERY_MESSAGE if topic == self.retry_topic else self.filter_by_topic.get(topic, self.subscription)

    def refuse_batch_only_options(self) -> None:
        """Raise ConfigError if an option is set that only `spark.read` supports, such as an end offset."""
        wrong: list[object] = [
            f"{name}: a stream has no end; use this option with spark.read"
            for name in BATCH_ONLY_OPTIONS
            if name in self.given_options
        ]
        if self.uses_pushdown:
            wrong.append("pushdown: Spark supports it only for spark.read; use tags or sql to filter a stream")
        if wrong:
            raise ConfigError(wrong)


def parse_options(values: Mapping[str, str]) -> SourceOptions:
    """Read the options of `load()`. Raises ConfigError with a line for each problem."""
    if any(name.lower() == "provider" or name.lower().startswith(CATALOG_OPTION_PREFIX) for name in values):
        raise ConfigError([NO_CATALOG_TEXT])
    return _Reading(values, SOURCE_OPTIONS).options()


def _decoded(given: GivenOptions, default: tuple[str, ...], *, permissive: bool = False) -> dict[str, Any]:
    """Return the fields `columns` and `value_format`. `default` are the columns if the option `columns` is not set.

    VALUE_COLUMNS and `decode_error` are added to `default` if they are valid columns.
    """
    more = tuple(VALUE_COLUMNS) if "value" in given.values else ()
    errors = ("decode_error",) if permissive else ()
    columns = given.parse("columns", lambda text: parse_columns(text, more, errors), (*default, *errors, *more))
    if given.parse("includeProperties", parse_flag, False):
        columns = tuple(dict.fromkeys((*columns, "properties")))
    return {"columns": columns, "value_format": parse_value_format(given)}


def _pull_fields(given: GivenOptions, fields: Mapping[str, Any]) -> dict[str, Any]:
    patience = {"patience_seconds": fields["tolerance_seconds"]} if "tolerance_seconds" in fields else {}
    return patience | given.parse_fields(_PULL)


class _Reading(GivenOptions):
    """Parses all options of `load()`, and collects their problems."""

    hints_by_wrong_name = KAFKA_OPTIONS

    def options(self) -> SourceOptions:
        group = self.parse("groupId", check_group, "")
        if "tags" in self.values and "sql" in self.values:
            self.add_problem("sql", "tags is also set; expected only one of them")
        self._only_one(START_OPTIONS)
        self._only_one(BATCH_ONLY_OPTIONS)
        self._only_one(_MAXIMUM)
        # a query that does not start at its group's offsets usually inspects messages that other consumers handle
        commits = self.parse("commitOffsets", parse_flag, bool(group) and not self._starts_elsewhere())
        if commits and not group:
            self.add_problem("commitOffsets", "needs groupId, the consumer group for the offsets")
        retries = self.parse("includeRetryTopic", parse_flag, False)
        if retries and not group:
            self.add_problem("includeRetryTopic", "needs groupId, the consumer group of the retries")
        if retries and "assign" in self.values:
            self.add_problem("includeRetryTopic", "assign already names all queues; use subscribe instead")
        permissive = self.parse("mode", parse_error_mode, False)
        starting = self._starting(bool(group))
        limits = self.parse_fields(_LIMITS)
        for what, name in (("offsets", "OffsetsPerTrigger"), ("partitions", "Partitions")):
            least, most = limits.get(f"min_{what}", 0), limits.get(f"max_{what}", math.inf)
            if least > most:
                self.add_problem(f"min{name}", f"{least} is more than max{name}, {most}")
        reached = access.read_access(self)
        named = [name for name in _WHAT if name in self.values]
        if len(named) != 1:
            self.add_problem("subscribe", f"expected exactly one of {', '.join(_WHAT)}; {len(named)} of them are set")
        fields = self.parse_fields(_FIELDS)
        values: dict[str, Any] = {
            "access": reached,
            "subscription": self._filter(),
            "include_retry_topic": retries,
            **_decoded(self, LOAD_COLUMNS, permissive=permissive),
            "group": group,
            "commit_offsets": commits,
            "start_bound": starting,
            "end_bound": self._ending(),
            "given_options": frozenset(self.values),
            "is_permissive": permissive,
            "must_find_timestamp": True,
            "pull": PullSettings(group=group or TOOLS_GROUP, **_pull_fields(self, fields)),
        }
        if self.problems:
            raise ConfigError(self.problems)
        return SourceOptions(**(values | limits | fields))

    def _filter(self) -> SubscriptionData:
        if "sql" in self.values:
            return self.parse("sql", lambda text: sql_subscription("", text, 0), EVERY_MESSAGE)
        return self.parse("tags", lambda text: tag_subscription("", text, 0), EVERY_MESSAGE)

    def _starting(self, has_group: bool) -> OffsetBound | None:
        if "startingOffsets" in self.values:
            kinds: tuple[BoundKind, ...] = ("earliest", "latest", "committed")
            bound = self.parse(
                "startingOffsets", lambda text: parse_offsets_bound(text, kinds), OffsetBound("earliest")
            )
            if bound.kind == "committed" and not has_group:
                self.add_problem(
                    "startingOffsets", "committed needs groupId, the consumer group of the committed offsets"
                )
            return bound
        if "startingTimestamp" in self.values:
            return self.parse("startingTimestamp", parse_time_bound, None)
        if "startingOffsetsByTimestamp" in self.values:
            return self.parse("startingOffsetsByTimestamp", parse_timestamps_bound, None)
        return OffsetBound("committed") if has_group else None

    def _starts_elsewhere(self) -> bool:
        """Return whether an option sets a start other than the group's offsets."""
        given = [self.values[name].strip().lower() for name in START_OPTIONS if name in self.values]
        return any(value != "committed" for value in given)

    def _ending(self) -> OffsetBound:
        if "endingTimestamp" in self.values:
            return self.parse("endingTimestamp", parse_time_bound, OffsetBound("latest"))
        if "endingOffsetsByTimestamp" in self.values:
            return self.parse("endingOffsetsByTimestamp", parse_timestamps_bound, OffsetBound("latest"))
        return self.parse("endingOffsets", lambda text: parse_offsets_bound(text, ("latest",)), OffsetBound("latest"))

    def _only_one(self, names: tuple[str, ...]) -> None:
        given = [name for name in names if name in self.values]
        for name in given[1:]:
            self.add_problem(name, f"{given[0]} is also set; expected only one of them")


SCHEMA_OPTION: Final = "valueSchema"
PROVISIONAL_SCHEMA_DDL: Final = "unknown string"
"""A valid schema, used to check options before the schema is inferred."""
_STARTING: Final = "consume_from_where and consume_timestamp of the group"
_INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(access.ACCESS_OPTIONS, "client and nameserver of the configuration"),
    **dict.fromkeys(("subscribe", "subscribePattern", "assign", "tags", "sql"), "subscriptions of the group"),
    **dict.fromkeys(START_OPTIONS, _STARTING),
    **dict.fromkeys(("startingOffsetsFallback", "startingOffsetsByTimestampStrategy"), _STARTING),
    **dict.fromkeys((*BATCH_ONLY_OPTIONS, "pushdown"), "spark.read, which has an end"),
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
"""The options that a group's `spark.options` must not contain, and their replacements, for errors."""
_OF_ROWS: Final = (
    *"columns rowsPerBatch minPartitions maxPartitions maxRecordsPerPartition checkCrc".split(),
    *value_format.VALUE_OPTIONS,
)


def with_spark_options(options: SourceOptions, name: str, settings: GroupConfig) -> SourceOptions:
    """Return the options of a group's source, changed by the group's `spark.options`.

    Raises ConfigError with a line for each problem, which names the option.
    """
    given = _given(settings)
    if has_inferred_schema(given.values):
        given.values[SCHEMA_OPTION] = PROVISIONAL_SCHEMA_DDL
    fields = given.parse_fields(_LIMITS) | given.parse_fields(_FIELDS)
    pull = replace(options.pull, **_pull_fields(given, fields))
    decoded = _decoded(given, options.columns)
    # only a DataFrame reader has schema(); a group sets valueSchema
    if decoded["value_format"] == ValueFormat("json", None):
        given.add_problem("valueSchema", MISSING_SCHEMA_HINTS["json"])
    more = replace(options, **fields, **decoded, pull=pull)
    if more.value_format is not None and not given.problems:
        try:
            more = replace(more, value_format=more.value_format.with_default_subject(tuple(settings.subscriptions)))
        except ConfigError as error:
            given.problems += error.problems
    if given.problems:
        raise ConfigError([settings.problem(name, ("spark", "options"), str(text)) for text in given.problems])
    needed = ("topic", "decode_error") if options.is_permissive else ("topic",)  # pipelines count rows by them
    return replace(more, columns=(*(column for column in needed if column not in more.columns), *more.columns))


def has_inferred_schema(values: Mapping[str, str]) -> bool:
    """Return whether the options request a JSON schema that is inferred from bodies (`valueSchema: infer`)."""
    by_name = {name.lower(): text.strip().lower() for name, text in values.items()}
    return by_name.get("value") == "json" and by_name.get(SCHEMA_OPTION.lower()) == value_format.INFER_WORD


def check_spark_options(name: str, settings: GroupConfig) -> None:
    """Check `spark.options` before Spark is started. Raises ConfigError."""
    with_spark_options(SourceOptions(access=ClientAccess(ClientOptions(nameservers=()))), name, settings)


def _given(settings: GroupConfig) -> GivenOptions:
    written = settings.spark.options if settings.spark is not None else {}
    instead = {name.lower(): accepted for name, accepted in _INSTEAD.items()}
    if settings.handler is not None:
        instead |= dict.fromkeys(map(str.lower, _OF_ROWS), "a pipeline, which has rows")
        if settings.pull_interval_seconds:
            instead["pullparallelism"] = "no pull_interval, which allows only one pull at a time"
    own = {name: option_text(value) for name, value in written.items() if name.lower() not in instead}
    given = GivenOptions(own, tuple(name for name in SOURCE_OPTIONS if name.lower() not in instead))
    for name in written:
        if accepted := instead.get(name.lower()):
            given.add_problem(name, f"not available here; use {accepted}")
    return given
