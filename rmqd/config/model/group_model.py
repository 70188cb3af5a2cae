"""One consumer group of the configuration: RocketMQ's parameters in snake case, with the Java client's defaults.

Only this module knows a group's defaults and ranges.

`DeduplicateConfig`: how a group identifies messages, and where it records the handled ones. `RetryConfig`,
`DeadLetterConfig` and `CircuitBreakerConfig`: how it handles failures of its handler, besides RocketMQ's retries and
dead letters.
"""

from __future__ import annotations

import re
import time
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from rmqd.client.client_options import MOST_TRACE_CALLS
from rmqd.config.model.forms import HookNames, PointInTime, Section, StrategyName, SubscriptionForm, is_topic, setting
from rmqd.config.model.spark_model import PipelineConfig, SinkConfig, SparkConfig
from rmqd.config.model.value_kinds import Choice, Duration, Flag, Share, Size, Text, Whole
from rmqd.config.problems import ConfigProblem, KeyPath, Places
from rmqd.consumer.allocate import STRATEGY_NAMES
from rmqd.consumer.consumer_options import (
    ConsumeFromWhere,
    ConsumeMode,
    HooksWanted,
    MessageModel,
    OnCorruptMessage,
    OnOffsetIllegal,
    Subscription,
)
from rmqd.handler_api.leases.lease_opening import StoreName
from rmqd.wire.topics import TRACE_TOPIC

# No postponed annotations here: pydantic would parse all of them from text at every start.


_BY: Final = r"^(msg_id|keys|property:.+)$"


class DeduplicateConfig(Section):
    """Leases on messages, before their handler is called, and records of handled messages."""

    by: Annotated[
        str, Text("msg_id, keys, or property:NAME", lambda text: re.search(_BY, text) is not None, pattern=_BY)
    ] = setting(
        "msg_id",
        "the identity of a message: msg_id | keys | property:NAME; messages without it are not deduplicated",
    )
    store: Annotated[StoreName, Choice(("sqlite", "redis", "postgresql"))] = setting(
        "sqlite",
        "where handled messages are recorded: a file, for the processes of one machine; Redis; a table in PostgreSQL",
    )
    url: Annotated[str, Text()] = setting(
        "",
        "redis://... or postgresql://...; sqlite: a path, or empty for deduplicate/<group>.sqlite3 in state_dir",
    )
    keep: Annotated[float, Duration("1m", "3650d")] = setting(
        "3d", "a duration, 1m to 3650d: how long a handled message is remembered"
    )


# No postponed annotations here: pydantic would parse all of them from text at every start.


_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_EXCEPTION: Final = Text(
    "the name of an exception's class, such as TimeoutError or psycopg.OperationalError",
    lambda name: _NAME.fullmatch(name) is not None,
)
_BY_NAME: Final = "by the names of their classes, or of classes that these inherit from, with or without the module"


class RetryConfig(Section):
    """Retries in place: the handler is called again in its slot before the attempt counts as failed."""

    in_place: Annotated[int, Whole(0, 100)] = setting(
        0, "maximum number of further calls, 0 to 100, before the attempt counts as failed"
    )
    backoff: Annotated[float, Duration("0s", "1h")] = setting(
        "200ms", "a duration: the delay before the first retry in place; it doubles with each retry"
    )
    max_backoff: Annotated[float, Duration("0s", "1h")] = setting("5s", "a duration: the longest delay")
    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions that are retried in place, {_BY_NAME}; empty: all"
    )


class DeadLetterConfig(Section):
    """Failures that a retry cannot repair."""

    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions whose messages go to the dead letters at once, {_BY_NAME}"
    )


class CircuitBreakerConfig(Section):
    """When the group stops calling its handler, so that a failing service does not use up its messages' attempts."""

    consecutive: Annotated[int, Whole(0, 10_000)] = setting(
        0, "consecutive failed calls within window that open the circuit, 0 to 10000; 0: never"
    )
    ratio: Annotated[float, Share()] = setting(
        0.0,
        "share of failed calls, out of at least 10 within window, that opens the circuit, 0.0 to 1.0; 0.0: never",
    )
    window: Annotated[float, Duration("1s", "1h")] = setting(
        "30s", "a duration, 1s to 1h: how long a failed call counts, and how long its messages may wait"
    )
    open_for: Annotated[float, Duration("100ms", "1h")] = setting(
        "15s", "a duration, 100ms to 1h: how long no call is made, before one test call"
    )

    @property
    def is_on(self) -> bool:
        """Whether failures can open the circuit."""
        return bool(self.consecutive or self.ratio)


# No postponed annotations here: pydantic would parse all of them from text at every start.


JAVA_CONSUME_TIMESTAMP_AGE_SECONDS: Final = 30 * 60
BROKER: Final = "broker"
ORDER: Final = r"^(keys|sharding_key|property:.+)?$"


def is_order(text: str) -> bool:
    """Return whether a text is a value of `order_by`."""
    return re.search(ORDER, text) is not None


class HandlerConfig(Section):
    """The code that handles a group's messages."""

    plugin: Annotated[str, Text("a name of the entry-point group rmqd.handlers, or module:attribute")] = Field(
        description="a name in the entry-point group rmqd.handlers (`rmqd handlers` lists them), or module:attribute"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="passed to the handler; validated by its Options model, if it has one"
    )
    concurrency: Annotated[int | Literal["auto"], Whole(1, 1000, word="auto")] = setting(
        20, "batches handled at once in this process, 1 to 1000; auto: as many as possible without slower calls"
    )
    max_concurrency: Annotated[int, Whole(1, 1000)] = setting(256, "the limit of concurrency: auto, 1 to 1000")
    processes: Annotated[int, Whole(0, 256)] = setting(
        0,
        "above 0: calls run in this number of worker processes, each with one batch at a time, instead of concurrency; "
        "for CPU-bound work",
    )
    process_memory: Annotated[int, Size("32MiB", "1048576MiB", unlimited=True)] = setting(
        -1, "memory limit of each of these processes: a size, 32MiB to 1TiB (Linux); -1: no limit"
    )
    middleware: list[Annotated[str, Text("module:attribute")]] = Field(
        default_factory=list,
        description="functions around every call of the handler, each as module:attribute, the first one outermost",
    )

    @property
    def most_calls(self) -> int:
        """The maximum number of batches handled at once."""
        return self.max_concurrency if self.concurrency == "auto" else self.concurrency


class OffsetStoreConfig(Section):
    """The place of a group's offsets: `broker`, or the group's own store."""

    plugin: Annotated[str, Text("a name of the entry-point group rmqd.offset_stores, or module:attribute")] = setting(
        BROKER, "a name in the entry-point group rmqd.offset_stores, or module:attribute"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the store; validated by its model")

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        return {"plugin": BROKER} if value == BROKER else value


class _OrBroker:
    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"const": BROKER}, handler(schema)]}


class AllocatedQueue(Section):
    """A queue that `allocate_strategy: by_config` assigns to this process."""

    topic: Annotated[str, Text()]
    broker_name: Annotated[str, Text()]
    queue_id: Annotated[int, Whole(0)]


class GroupConfig(Section):
    """One consumer group."""

    # Rules check that subscriptions are set: pydantic's own check would hide the group's other problems.
    model_config = ConfigDict(json_schema_extra={"required": ["subscriptions"]})

    _places: Places = PrivateAttr(default_factory=lambda: Places("the configuration"))
    cluster: Annotated[str, Text()] = setting("", "the group's cluster, a name in clusters; empty: the default cluster")
    engine: Annotated[Literal["local", "spark"], Choice(("local", "spark"))] = setting(
        "local", "local: asyncio, in the daemon; spark: Structured Streaming through PySpark"
    )
    message_model: Annotated[MessageModel, Choice(("clustering", "broadcasting"))] = setting(
        "clustering", "clustering: the members share the queues; broadcasting: each member gets every message"
    )
    consume_mode: Annotated[ConsumeMode, Choice(("concurrently", "orderly", "pop"))] = setting(
        "concurrently", "concurrently: several batches of a queue at once; orderly: one after the other; pop: with POP"
    )
    order_by: Annotated[str, Text('keys, sharding_key, property:NAME, or ""', is_order, pattern=ORDER)] = setting(
        "", "messages with the same keys | sharding_key | property:NAME are handled one at a time and in order"
    )
    subscriptions: dict[str, Annotated[Subscription, SubscriptionForm()]] = Field(
        default_factory=dict,
        description='by topic: a tag expression such as "paid || refunded", "*" for all, {sql: "amount > 100"}, or '
        "{lite_topics: [names]} for a topic with lite topics",
    )
    consume_from_where: Annotated[ConsumeFromWhere, Choice(("last_offset", "first_offset", "timestamp"))] = setting(
        "last_offset",
        "start position of a new group; a queue, broker or topic that is added to an existing group starts at its "
        "first message",
    )
    consume_timestamp: Annotated[int | None, PointInTime()] = Field(
        default=None,
        validate_default=False,
        description="start for consume_from_where: timestamp, ISO 8601 with a zone or @milliseconds; "
        "default: half an hour before the start",
    )
    allocate_strategy: Annotated[str, StrategyName(STRATEGY_NAMES)] = setting(
        "averagely",
        "how queues are divided among the members, the same in all of them: averagely, averagely_by_circle, "
        "consistent_hash, by_config, by_machine_room, machine_room_nearby, or the name of an installed strategy",
    )
    allocate_queues: list[AllocatedQueue] = Field(
        default_factory=list,
        description="the queues of this process, including queues of %RETRY%group, for allocate_strategy: by_config",
    )
    machine_rooms: list[Annotated[str, Text()]] = Field(
        default_factory=list,
        description="the rooms whose brokers' queues the group consumes, the same in all members, for "
        "allocate_strategy: by_machine_room",
    )
    handler: HandlerConfig | None = Field(default=None, description="the code that handles the messages")
    hooks: Annotated[HooksWanted, HookNames()] = setting(
        "all", "the installed hooks that the group uses, for every batch and as filters: all | none | [NAME, ...]"
    )
    offset_store: Annotated[OffsetStoreConfig, _OrBroker()] = Field(
        default_factory=OffsetStoreConfig,
        description="where offsets are stored: broker, or {plugin: NAME, options: {...}}, in transactions that the "
        "handler may use",
    )
    consume_message_batch_max_size: Annotated[int, Whole(1, 1024)] = setting(
        1, "maximum number of messages in a batch, 1 to 1024"
    )
    consume_message_batch_max_wait: Annotated[float, Duration("0s", "5m")] = setting(
        "0s", "a duration, 0s to 5m: how long the oldest message waits for a full batch; 0s: it does not wait"
    )
    consume_timeout: Annotated[float, Duration("1ms")] = setting(
        "15m",
        "a duration: how long a handler may take for a batch before it is sent back for a retry; in an orderly group "
        "it is only reported",
    )
    max_reconsume_times: Annotated[int, Whole(0, 2**31 - 1, also=(-1,), meaning="for Java's default")] = setting(
        -1,
        "N: N+1 attempts, then the dead letters; -1: 16 in concurrent and pop groups, no limit in orderly groups and "
        "with order_by",
    )
    auto_commit: Annotated[bool, Flag()] = setting(
        True, "orderly groups: commit when the handler returns; false: batch.commit() and batch.rollback() decide"
    )
    delay_level_when_next_consume: Annotated[int, Whole(-1)] = setting(
        0, "delay level of a retry; 0: the broker decides (3 + times); -1: directly to the dead letters"
    )
    retry: RetryConfig = Field(
        default_factory=RetryConfig,
        description="retries in place: the handler is called again in its slot, before the message is sent back",
    )
    dead_letter: DeadLetterConfig = Field(
        default_factory=DeadLetterConfig, description="failures that are dead-lettered at once, and not retried"
    )
    circuit_breaker: CircuitBreakerConfig = Field(
        default_factory=CircuitBreakerConfig,
        description="stops calling the handler for a while when too many calls fail; off without consecutive or ratio",
    )
    deduplicate: DeduplicateConfig | None = Field(
        default=None,
        description="a redelivered message is not handled again; absent: it is",
    )
    suspend_current_queue_time: Annotated[float, Duration("10ms", "30s")] = setting(
        "1s",
        "a duration, 10ms to 30s: how long an orderly queue, or a value of order_by, is suspended before a retry",
    )
    pull_batch_size: Annotated[int, Whole(1, 1024)] = setting(32, "messages requested in one pull, 1 to 1024")
    pull_interval: Annotated[float, Duration("0s", "65535ms")] = setting(
        "0s", "a duration, 0s to 65535ms: delay after each pull that returned messages"
    )
    pull_threshold_for_queue: Annotated[int, Whole(1, 65535)] = setting(
        1000, "a queue with more cached messages than this is not pulled, 1 to 65535"
    )
    pull_threshold_size_for_queue: Annotated[int, Size("1MiB", "1024MiB")] = setting(
        "100MiB", "a queue with more cached bytes than this is not pulled: a size, 1MiB to 1GiB"
    )
    pull_threshold_for_topic: Annotated[int, Whole(1, 6_553_500, also=(-1,), meaning="for no limit")] = setting(
        -1, "cached messages of a topic, shared by its queues in this process, 1 to 6553500; -1: no limit"
    )
    pull_threshold_size_for_topic: Annotated[int, Size("1MiB", "102400MiB", unlimited=True)] = setting(
        -1, "cached bytes of a topic, shared by its queues in this process: a size, 1MiB to 100GiB; -1: no limit"
    )
    consume_concurrently_max_span: Annotated[int, Whole(1, 65535)] = setting(
        2000,
        "maximum distance between the lowest and highest cached offset, and maximum number of handled messages "
        "after an unfinished one; beyond it a queue is not pulled, 1 to 65535",
    )
    persist_consumer_offset_interval: Annotated[float, Duration("10ms")] = setting(
        "5s", "a duration: how often offsets are committed to the broker"
    )
    shutdown_timeout: Annotated[float, Duration("0s")] = setting(
        "30s", "a duration: how long a stop waits for the batches that are being handled"
    )
    queue_handover_timeout: Annotated[float, Duration("0s")] = setting(
        "5s", "a duration: how long a new owner of a queue waits for the previous one to finish and commit"
    )
    pull_rate_limit: Annotated[int, Whole(0)] = setting(
        0, "maximum messages per second; 0: no limit; changeable while the group runs"
    )
    max_body_size: Annotated[int, Size("1KiB", "1024MiB")] = setting(
        "16MiB", "limit of a decompressed body; a message with a larger body is corrupt: a size, 1KiB to 1GiB"
    )
    pop_invisible_time: Annotated[float, Duration("5s", "300s")] = setting(
        "60s", "a duration, 5s to 5m: how long a popped message is hidden from others (consume_mode: pop)"
    )
    pop_batch_nums: Annotated[int, Whole(1, 32)] = setting(
        32, "messages requested in one pop, 1 to 32 (consume_mode: pop)"
    )
    pop_threshold_for_queue: Annotated[int, Whole(1)] = setting(
        96, "a queue with more unacknowledged messages than this is not popped (consume_mode: pop)"
    )
    enable_trace: Annotated[bool, Flag()] = setting(
        False, "send message trace: records of handler calls and their results, for mqadmin and dashboards"
    )
    trace_topic: Annotated[str, Text("a topic's name", is_topic)] = setting(
        TRACE_TOPIC, "the topic of message trace; brokers with traceTopicEnable have the default"
    )
    trace_msg_batch_num: Annotated[int, Whole(1, MOST_TRACE_CALLS)] = setting(
        10, "maximum number of handler calls in one trace message, 1 to 20"
    )
    spark: SparkConfig | None = Field(default=None, description="settings of engine: spark")
    pipeline: PipelineConfig | None = Field(
        default=None, description="a function of DataFrames, instead of handler (engine: spark)"
    )
    sink: SinkConfig | None = Field(default=None, description="the destination of the pipeline's rows (engine: spark)")
    on_corrupt_message: Annotated[OnCorruptMessage, Choice(("stop", "dead_letter", "skip"))] = setting(
        "stop", "a message that cannot be decoded: stop the queue before it, dead-letter it, or skip it"
    )
    on_offset_illegal: Annotated[OnOffsetIllegal, Choice(("correct", "stop"))] = setting(
        "correct", "correct: continue at the broker's offset, logged and counted, as in Java; stop: hold the queue"
    )

    def remember_places(self, places: Places) -> None:
        """Store the places of this group's keys. They are not part of equality and `repr`."""
        self._places = places

    def problem(self, name: str, path: KeyPath, message: str, *, at_key: bool = False) -> ConfigProblem:
        """Return a problem with the value at a path of this group, or with its key. `name` is the group's key."""
        whole = ("groups", name, *path)
        return ConfigProblem((self._places.of_key if at_key else self._places.of)(whole), whole, message)

    def consume_timestamp_ms(self) -> int | None:
        """Return the group's start time in Unix milliseconds; None unless `consume_from_where` is `timestamp`."""
        if self.consume_from_where != "timestamp":
            return None
        if self.consume_timestamp is not None:
            return self.consume_timestamp
        return round((time.time() - JAVA_CONSUME_TIMESTAMP_AGE_SECONDS) * 1000)
