"""One consumer group of the configuration: RocketMQ's parameters in snake case, with the Java client's defaults.

The keys that the engine reads are declared in `rmqd.consumer.consumer_options`, with their defaults and ranges.
"""

# No `from __future__ import annotations`: pydantic would have to parse every annotation from text at every start.

import re
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from rmqd.client.client_options import MAX_CALLS_PER_TRACE_MESSAGE
from rmqd.config.model.forms import ConfigSection, PointInTime, SubscriptionForm, is_topic, setting
from rmqd.config.model.java_names import word_of_constant
from rmqd.config.model.spark_model import PipelineConfig, SinkConfig, SparkConfig
from rmqd.config.problems import ConfigProblem, KeyPath, Locations
from rmqd.consumer.allocate import STRATEGY_NAMES
from rmqd.consumer.consumer_options import (
    MAX_CONCURRENCY,
    CanaryMode,
    CircuitOptions,
    DeduplicationOptions,
    GroupKeys,
    Subscription,
)
from rmqd.runtime.value_kinds import (
    Choice,
    Duration,
    Flag,
    Integer,
    Key,
    Size,
    Text,
    ValueKind,
    or_substituted,
    show_value,
    value_error,
)
from rmqd.wire.topics import TRACE_TOPIC


class DeduplicateConfig(ConfigSection, DeduplicationOptions):  # type: ignore[misc]  # mypy: see GroupConfig
    """How a group recognizes messages that it has handled before."""


_NAME: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_EXCEPTION: Final = Text(
    "the name of an exception's class, such as TimeoutError or psycopg.OperationalError",
    lambda name: _NAME.fullmatch(name) is not None,
)
_BY_NAME: Final = "by the names of their classes, or of classes that these inherit from, with or without the module"


class RetryConfig(ConfigSection):
    """Retries in place: the handler is called again in its slot before the attempt counts as failed."""

    in_place: Annotated[int, Integer(0, 100)] = setting(
        0, "maximum number of further calls, 0 to 100, before the attempt counts as failed"
    )
    backoff: Annotated[float, Duration("0s", "1h")] = setting(
        "200ms", "a duration: the delay before the first retry in place; it doubles with each retry"
    )
    max_backoff: Annotated[float, Duration("0s", "1h")] = setting("5s", "a duration: the longest delay")
    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions that are retried in place, {_BY_NAME}; empty: all"
    )


class DeadLetterConfig(ConfigSection):
    """Failures whose messages are dead-lettered at once, because a retry cannot help."""

    on: list[Annotated[str, _EXCEPTION]] = Field(
        default_factory=list, description=f"exceptions whose messages go to the dead letters at once, {_BY_NAME}"
    )


class CircuitBreakerConfig(ConfigSection, CircuitOptions):  # type: ignore[misc]  # mypy: see GroupConfig
    """When the group stops calling its handler, so that a failing service does not use up its messages' attempts."""


JAVA_CONSUME_TIMESTAMP_AGE_SECONDS: Final = 30 * 60
BROKER: Final = "broker"


@dataclass(eq=False, repr=False)
class Percentage(ValueKind):
    """A share, written in percent such as `1%`. The checked value is from 0.0 to 1.0."""

    accepted: str = "a percentage from 0% to 100%, such as 1%"

    def parse(self, value: object) -> float:
        number = value.removesuffix("%").strip() if isinstance(value, str) and value.endswith("%") else ""
        if not _NUMBER.fullmatch(number):
            raise value_error(f"{show_value(value)} is not a percentage", self.accepted)
        if float(number) > 100:
            raise value_error(f"{show_value(value)} is out of range", self.accepted)
        return float(number) / 100

    def as_written(self, value: Any) -> Any:
        return f"{value * 100:g}%" if isinstance(value, int | float) else value

    def json_schema(self) -> dict[str, Any]:
        return or_substituted({"type": "string", "pattern": f"^{_NUMBER.pattern} *%$"})


_NUMBER: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_CANARY_BY: Final = r"^(keys|sharding_key|msg_id|property:\S(.*\S)?)$"


class CanaryConfig(ConfigSection):
    """A second handler for a share of the messages, such as the next version before it gets all of them."""

    plugin: Annotated[str, Text("a name of the entry-point group rmqd.handlers, or module:attribute")] = Field(
        description="a name in the entry-point group rmqd.handlers, or module:attribute"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="passed to this handler; validated by its Options model, if it has one"
    )
    share: Annotated[float, Percentage()] = setting(
        "1%", "a percentage, 0% to 100%: the share of keys whose messages it gets"
    )
    by: Annotated[
        str,
        Text(
            "keys, sharding_key, msg_id, or property:NAME",
            lambda text: re.fullmatch(_CANARY_BY, text) is not None,
            pattern=_CANARY_BY,
        ),
    ] = setting("keys", "the value that chooses a message's handler; a message without it is chosen by its msg_id")
    mode: Annotated[CanaryMode, Choice(("live", "shadow"))] = setting(
        "live", "live: it handles its messages; shadow: both handlers run, and only the first decides"
    )


CONCURRENCY: Final = Integer(1, MAX_CONCURRENCY, word="auto")


class HandlerConfig(ConfigSection):
    """The code that handles a group's messages."""

    plugin: Annotated[str, Text("a name of the entry-point group rmqd.handlers, or module:attribute")] = Field(
        description="a name in the entry-point group rmqd.handlers (`rmqd handlers` lists them), or module:attribute"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="passed to the handler; validated by its Options model, if it has one"
    )
    concurrency: Annotated[int | Literal["auto"], CONCURRENCY] = setting(
        20,
        f"batches handled at once in this process, 1 to {MAX_CONCURRENCY}; auto: as many as possible without slower "
        "calls",
    )
    max_concurrency: Annotated[int, Integer(1, MAX_CONCURRENCY)] = setting(
        256, f"the limit of concurrency: auto, 1 to {MAX_CONCURRENCY}"
    )
    processes: Annotated[int, Integer(0, 256)] = setting(
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

    canary: CanaryConfig | None = Field(default=None, description="a second handler for a share of the messages")

    @property
    def with_promoted_canary(self) -> Self:
        """The settings with the canary as the only handler."""
        assert self.canary is not None
        return self.model_copy(update={"plugin": self.canary.plugin, "options": self.canary.options, "canary": None})

    @property
    def max_concurrent_calls(self) -> int:
        """The maximum number of batches handled at once."""
        return self.max_concurrency if self.concurrency == "auto" else self.concurrency


class OffsetStoreConfig(ConfigSection):
    """The place of a group's offsets: `broker`, or the group's own store."""

    plugin: Annotated[str, Text("a name of the entry-point group rmqd.offset_stores, or module:attribute")] = setting(
        BROKER, "a name in the entry-point group rmqd.offset_stores, or module:attribute"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="passed to the store; validated by its model")

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: object) -> object:
        if value == BROKER:
            return {"plugin": BROKER}
        plugin = value.get("plugin") if isinstance(value, dict) else value
        if (java := word_of_constant(plugin) or "").startswith(BROKER):
            raise value_error(
                f"{show_value(plugin)} is Java's name for {java}", f"{BROKER} | {{plugin: NAME, options: {{...}}}}"
            )
        if isinstance(value, dict):
            return value
        name = value if isinstance(value, str) else "NAME"
        raise value_error(f"{show_value(value)} is not a mapping", f"{BROKER} | {{plugin: {name}, options: {{...}}}}")


class _OrBroker:
    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        return {"anyOf": [{"const": BROKER}, handler(schema)]}


@dataclass(eq=False, repr=False)
class StrategyName(Choice):
    """The name of an allocate strategy. Another check, which loads plugins, finds out whether it is installed."""

    def parse(self, value: object) -> str:
        if isinstance(value, str) and value and word_of_constant(value) not in self.words:
            return str(value)
        raise value_error(f"{show_value(value)} is not a strategy", self.accepted)

    @property
    def accepted(self) -> str:
        """The accepted names, as error messages show them."""
        return f"{' | '.join(self.words)} | the name of an installed one"

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(self.words)}, {"type": "string"}]}


class AllocatedQueue(ConfigSection):
    """A queue that `allocate_strategy: by_config` assigns to this process."""

    topic: Annotated[str, Text()]
    broker_name: Annotated[str, Text()]
    queue_id: Annotated[int, Integer(0)]


class GroupConfig(ConfigSection, GroupKeys):  # type: ignore[misc]  # mypy does not see that sections are frozen too
    """One consumer group."""

    # `config.rules` checks that subscriptions are set: pydantic's own check would hide the group's other problems.
    model_config = ConfigDict(json_schema_extra={"required": ["subscriptions"]})

    _places: Locations = PrivateAttr(default_factory=lambda: Locations("the configuration"))
    cluster: Annotated[str, Text()] = setting("", "the group's cluster, a name in clusters; empty: the default cluster")
    engine: Annotated[Literal["local", "spark"], Choice(("local", "spark"))] = setting(
        "local", "local: asyncio, in the daemon; spark: Structured Streaming through PySpark"
    )
    subscriptions: Annotated[
        dict[str, Annotated[Subscription, SubscriptionForm()]],
        Key(
            'by topic: a tag expression such as "paid || refunded", "*" for all, {sql: "amount > 100"}, or '
            "{lite_topics: [names]} for a topic with lite topics",
            live=True,
        ),
    ] = Field(default_factory=dict)
    consume_timestamp: Annotated[
        int | None,
        PointInTime(),
        Key(
            "start for consume_from_where: timestamp, ISO 8601 with a zone or @milliseconds; "
            "default: half an hour before the start",
            live=True,
        ),
    ] = None
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
    offset_store: Annotated[OffsetStoreConfig, _OrBroker()] = Field(
        default_factory=OffsetStoreConfig,
        description="where offsets are stored: broker, or {plugin: NAME, options: {...}}, in transactions that the "
        "handler may use",
    )
    retry: RetryConfig = Field(
        default_factory=RetryConfig,
        description="retries in place: the handler is called again in its slot, before the message is sent back",
    )
    dead_letter: DeadLetterConfig = Field(
        default_factory=DeadLetterConfig, description="failures that are dead-lettered at once, and not retried"
    )
    circuit_breaker: Annotated[
        CircuitBreakerConfig,
        Key(
            "stops calling the handler for a while when too many calls fail; off without consecutive or ratio",
            live=True,
        ),
    ] = Field(default_factory=CircuitBreakerConfig)
    deduplicate: DeduplicateConfig | None = Field(
        default=None, description="a redelivered message is not handled again; absent: it is"
    )
    enable_trace: Annotated[bool, Flag()] = setting(
        False, "send message trace: records of handler calls and their results, for mqadmin and dashboards"
    )
    trace_topic: Annotated[str, Text("a topic's name", is_topic)] = setting(
        TRACE_TOPIC, "the topic of message trace; brokers with traceTopicEnable have the default"
    )
    trace_msg_batch_num: Annotated[int, Integer(1, MAX_CALLS_PER_TRACE_MESSAGE)] = setting(
        10, "maximum number of handler calls in one trace message, 1 to 20"
    )
    spark: SparkConfig | None = Field(default=None, description="settings of engine: spark")
    pipeline: PipelineConfig | None = Field(
        default=None, description="a function of DataFrames, instead of handler (engine: spark)"
    )
    sink: SinkConfig | None = Field(default=None, description="the destination of the pipeline's rows (engine: spark)")

    def set_locations(self, places: Locations) -> None:
        """Store the locations of this group's keys, for `problem`. Equality and `repr` ignore them."""
        self._places = places

    def problem(self, name: str, path: KeyPath, message: str, *, at_key: bool = False) -> ConfigProblem:
        """Return a problem at a path below the group `name`. With `at_key`, the key is wrong, not its value."""
        return self._places.problem(("groups", name, *path), message, at_key=at_key)

    @property
    def promoted(self) -> Self:
        """The group with its canary as the only handler."""
        assert self.handler is not None
        return self.model_copy(update={"handler": self.handler.with_promoted_canary})

    def consume_timestamp_ms(self) -> int | None:
        """Return the group's start time in Unix milliseconds; None unless `consume_from_where` is `timestamp`."""
        if self.consume_from_where != "timestamp":
            return None
        if self.consume_timestamp is not None:
            return self.consume_timestamp
        return round((time.time() - JAVA_CONSUME_TIMESTAMP_AGE_SECONDS) * 1000)
