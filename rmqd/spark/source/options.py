"""The source's options, checked together: a reader is told of everything that is wrong with them at once. Pure.

Spark hands over all values as text, and the names in small letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from rmqd.errors import ConfigError, RmqdError
from rmqd.spark import access
from rmqd.spark.access import Access
from rmqd.spark.option_values import milliseconds, positive
from rmqd.spark.queue_range import NO_GROUP, Filter, PullSettings
from rmqd.spark.source.bounds import Bound, Kind, offsets_bound, timestamps_bound
from rmqd.spark.source.columns import DEFAULT_COLUMNS, PERMISSIVE_COLUMNS
from rmqd.spark.source.source_values import (
    by_sql,
    by_tags,
    column_names,
    duration,
    error_mode,
    flag,
    queues_by_broker,
    strategy,
    time_ms,
    topic_names,
    topic_pattern,
    words,
)
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.topics import check_group, retry_topic

T = TypeVar("T")

_OTHERS: Final = tuple(
    "subscribe subscribePattern assign tags sql columns groupId commitOffsets startingOffsets startingOffsetsFallback "
    "startingTimestamp startingOffsetsByTimestamp startingOffsetsByTimestampStrategy endingOffsets endingTimestamp "
    "endingOffsetsByTimestamp maxOffsetsPerTrigger maxRowsPerTrigger maxBytesPerTrigger minOffsetsPerTrigger "
    "maxTriggerDelay minPartitions maxRecordsPerPartition failOnDataLoss fetchOffset.intervalMs routeRefreshMs "
    "unavailableToleranceMs pullBatchSize pullParallelism pullTimeoutMs rowsPerBatch drainFile includeRetryTopic mode "
    "pushdown queueRetention".split()
)
NAMES: Final = (*access.NAMES, *_OTHERS)
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_PROPER: Final = {name.lower(): name for name in NAMES}
_STARTS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_WHAT: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What is read, from where to where, and how fast. One of `topics`, `pattern` and `assigned` is set."""

    access: Access
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[MessageQueue, ...] = ()
    include_retry_topic: bool = False
    """Whether the group's retry topic is read beside the topics, as soon as it is there."""
    subscription: Filter = field(default_factory=Filter)
    filters: Mapping[str, Filter] = field(default_factory=dict)
    """By topic, in place of `subscription`."""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    group: str = ""
    commit_offsets: bool = False
    starting: Bound | None = None
    """None where no option says it: `committed` with a group, else `latest` for a stream and `earliest` for a batch."""
    fallback: Bound = field(default_factory=lambda: Bound("earliest"))
    must_find_timestamp: bool = False
    ending: Bound = field(default_factory=lambda: Bound("latest"))
    given: frozenset[str] = frozenset()
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_seconds: float = 900.0
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    fetch_interval_seconds: float = 0.2
    route_refresh_seconds: float = 30.0
    tolerance_seconds: float = 60.0
    queue_retention_seconds: float = 259200.0
    drain_file: str = ""
    permissive: bool = False
    """Whether a message that is corrupt becomes a row with its error, in place of failing its task."""
    pushdown: bool = False
    pull: PullSettings = field(default_factory=PullSettings)

    @property
    def retry_topic(self) -> str:
        """The group's retry topic where it is read, else nothing."""
        return retry_topic(self.group) if self.include_retry_topic else ""

    def filter_of(self, topic: str) -> Filter:
        """What the broker leaves out of a topic; of retries nothing: they passed the filter once."""
        return Filter() if topic == self.retry_topic else self.filters.get(topic, self.subscription)

    def refuse_batch_only(self) -> None:
        """Raise ConfigError where an option is set that a stream, which has no end, cannot have."""
        wrong: list[object] = [
            f"{name}: a stream has no end; this option is for spark.read" for name in BATCH_ONLY if name in self.given
        ]
        if self.pushdown:
            wrong.append("pushdown: Spark has it for spark.read only; a stream's conditions are tags and sql")
        if wrong:
            raise ConfigError(wrong)


def parse_options(values: Mapping[str, str]) -> SourceOptions:
    """Read the options of `load()`. Raises ConfigError with a line for each problem."""
    return _Reading(values).options()


class _Reading:
    """One look through all options, which collects what is wrong."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._problems: list[object] = []
        for key, value in values.items():
            name = _PROPER.get(key.lower())
            if name is None:
                self._problem(key, f"there is no such option; there are {', '.join(NAMES)}")
            else:
                self._values[name] = value

    def options(self) -> SourceOptions:
        group = self._read("groupId", check_group, "")
        tags, sql = self._values.get("tags"), self._values.get("sql")
        if tags is not None and sql is not None:
            self._problem("sql", "tags is set too; a subscription has one of them")
        self._only_one(_STARTS)
        self._only_one(BATCH_ONLY)
        self._only_one(("maxOffsetsPerTrigger", "maxRowsPerTrigger"))
        # a query that starts elsewhere than its group is mostly a look at what somebody else consumes
        commits = self._read("commitOffsets", flag, bool(group) and not self._starts_elsewhere())
        if commits and not group:
            self._problem("commitOffsets", "needs groupId, the consumer group whose offsets they are")
        retries = self._read("includeRetryTopic", flag, False)
        if retries and not group:
            self._problem("includeRetryTopic", "needs groupId, the consumer group whose retries they are")
        if retries and "assign" in self._values:
            self._problem("includeRetryTopic", "assign names all queues that are read; use subscribe")
        permissive = self._read("mode", error_mode, False)
        starting = self._starting(bool(group))
        minimum, maximum = self._count("minOffsetsPerTrigger"), self._maximum()
        if minimum is not None and maximum is not None and minimum > maximum:
            self._problem("minOffsetsPerTrigger", f"{minimum} is more than maxOffsetsPerTrigger, {maximum}")
        reached, wrong = access.read_access(self._values)
        self._problems += wrong
        values: dict[str, Any] = {
            "access": reached,
            **self._what(),
            "subscription": self._filter(),
            "include_retry_topic": retries,
            "columns": self._read("columns", column_names, PERMISSIVE_COLUMNS if permissive else DEFAULT_COLUMNS),
            "group": group,
            "commit_offsets": commits,
            "starting": starting,
            "fallback": self._read("startingOffsetsFallback", words("earliest", "latest"), Bound("earliest")),
            "must_find_timestamp": self._read("startingOffsetsByTimestampStrategy", strategy, False),
            "ending": self._ending(),
            "given": frozenset(self._values),
            "max_offsets": maximum,
            "max_bytes": self._count("maxBytesPerTrigger"),
            "min_offsets": minimum,
            "max_trigger_delay_seconds": self._read("maxTriggerDelay", duration, 900.0),
            "min_partitions": self._count("minPartitions"),
            "max_records_per_partition": self._count("maxRecordsPerPartition"),
            "fail_on_data_loss": self._read("failOnDataLoss", flag, True),
            "fetch_interval_seconds": self._read("fetchOffset.intervalMs", milliseconds, 0.2),
            "route_refresh_seconds": self._read("routeRefreshMs", milliseconds, 30.0),
            "tolerance_seconds": self._read("unavailableToleranceMs", milliseconds, 60.0),
            "queue_retention_seconds": self._read("queueRetention", duration, 259200.0),
            "drain_file": self._values.get("drainFile", ""),
            "permissive": permissive,
            "pushdown": self._read("pushdown", flag, False),
            "pull": self._pull(group),
        }
        if self._problems:
            raise ConfigError(self._problems)
        return SourceOptions(**values)

    def _what(self) -> dict[str, Any]:
        no_topics: tuple[str, ...] = ()
        no_queues: tuple[MessageQueue, ...] = ()
        named = [name for name in _WHAT if name in self._values]
        if len(named) != 1:
            self._problem("subscribe", f"one of {', '.join(_WHAT)} says what to read; {len(named)} of them are set")
        return {
            "topics": self._read("subscribe", topic_names, no_topics),
            "pattern": self._read("subscribePattern", topic_pattern, ""),
            "assigned": self._read("assign", queues_by_broker, no_queues),
        }

    def _filter(self) -> Filter:
        if "sql" in self._values:
            return self._read("sql", by_sql, Filter())
        return self._read("tags", by_tags, Filter())

    def _starting(self, has_group: bool) -> Bound | None:
        if "startingOffsets" in self._values:
            kinds: tuple[Kind, ...] = ("earliest", "latest", "committed")
            bound = self._read("startingOffsets", lambda text: offsets_bound(text, kinds), Bound("earliest"))
            if bound.kind == "committed" and not has_group:
                self._problem("startingOffsets", "committed needs groupId, the consumer group that committed them")
            return bound
        if "startingTimestamp" in self._values:
            return self._read("startingTimestamp", time_ms, None)
        if "startingOffsetsByTimestamp" in self._values:
            return self._read("startingOffsetsByTimestamp", timestamps_bound, None)
        return Bound("committed") if has_group else None

    def _starts_elsewhere(self) -> bool:
        """Whether an option says where to start, other than where the group is."""
        given = [self._values[name].strip().lower() for name in _STARTS if name in self._values]
        return any(value != "committed" for value in given)

    def _ending(self) -> Bound:
        if "endingTimestamp" in self._values:
            return self._read("endingTimestamp", time_ms, Bound("latest"))
        if "endingOffsetsByTimestamp" in self._values:
            return self._read("endingOffsetsByTimestamp", timestamps_bound, Bound("latest"))
        return self._read("endingOffsets", lambda text: offsets_bound(text, ("latest",)), Bound("latest"))

    def _pull(self, group: str) -> PullSettings:
        rows = self._count("rowsPerBatch") or PullSettings().rows_per_batch
        return PullSettings(
            group=group or NO_GROUP,
            batch_size=min(self._count("pullBatchSize") or 32, 1024),
            in_flight=min(self._count("pullParallelism") or 16, 64),
            timeout_seconds=self._read("pullTimeoutMs", milliseconds, 10.0),
            patience_seconds=self._read("unavailableToleranceMs", milliseconds, 60.0, quietly=True),
            rows_per_batch=rows,
        )

    def _maximum(self) -> int | None:
        maximum = self._count("maxOffsetsPerTrigger")
        return maximum if maximum is not None else self._count("maxRowsPerTrigger")

    def _count(self, name: str) -> int | None:
        return self._read(name, positive, None)

    def _read(self, name: str, parse: Callable[[str], T], default: T, *, quietly: bool = False) -> T:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except (RmqdError, ValueError) as error:
            if not quietly:
                self._problem(name, str(error))
            return default

    def _only_one(self, names: tuple[str, ...]) -> None:
        given = [name for name in names if name in self._values]
        for name in given[1:]:
            self._problem(name, f"{given[0]} is set too; only one of them can be")

    def _problem(self, name: str, text: str) -> None:
        self._problems.append(f"{name}: {text}")
