"""The settings of one consumer group: plain values with units in their names.

There are no defaults here. Defaults and valid ranges belong to the configuration; a second set of defaults in an engine
would sooner or later differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rmqd.client.client_options import TraceOptions
from rmqd.consumer.allocate import AllocateStrategy
from rmqd.handler_api.leases.lease_opening import StoreName
from rmqd.offset_stores import OffsetStore

MessageModel = Literal["clustering", "broadcasting"]
ConsumeMode = Literal["concurrently", "orderly", "pop"]
ConsumeFromWhere = Literal["last_offset", "first_offset", "timestamp"]
ExpressionType = Literal["TAG", "SQL92"]
HooksWanted = Literal["all", "none"] | tuple[str, ...]
OnCorruptMessage = Literal["stop", "dead_letter", "skip"]
OnOffsetIllegal = Literal["correct", "stop"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """The wanted messages of a topic: a tag expression (`*` for all) or an SQL92 condition.

    With `lite_topics`, all messages of these lite topics of the topic, and no others.
    """

    expression: str
    kind: ExpressionType
    lite_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """How a group reacts to a handler's exception before it sends a message back."""

    in_place: int
    """How often the handler is called again in its slot."""
    backoff_seconds: float
    max_backoff_seconds: float
    retry_on: frozenset[str]
    """Exception names that are retried in place; empty for all."""
    dead_letter_on: frozenset[str]
    """Exception names that dead-letter the message at once."""


@dataclass(frozen=True, slots=True)
class CircuitOptions:
    """When a group stops calling its handler, and for how long."""

    consecutive: int
    """Failed calls in a row that open the circuit; 0 disables this rule."""
    ratio: float
    """Share of failed calls within the window that opens the circuit; 0 disables this rule."""
    window_seconds: float
    open_for_seconds: float


@dataclass(frozen=True, slots=True)
class DeduplicationOptions:
    """How a group recognizes a message that was handled before, and where it stores the records."""

    by: str
    """The identity of a message: `msg_id`, `keys` or `property:NAME`."""
    store: StoreName
    url: str
    """For `sqlite`, the path of the file."""
    keep_seconds: float
    """How long a record of a handled message is kept."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """All settings of one group that the engine needs."""

    group: str
    """The name at the brokers, with the namespace if there is one. Topic names here have the namespace too."""
    namespace: str
    """Removed from the names that handlers and hooks see; empty for none."""
    message_model: MessageModel
    local_offsets_directory: str
    """Folder for a broadcasting group's offsets, in a subfolder with the group's name without the namespace."""
    consume_mode: ConsumeMode
    order_by: str
    """Order of messages: `keys`, `sharding_key` or `property:NAME`; empty if only the consume mode decides."""
    subscriptions: Mapping[str, Subscription]
    """By topic name, without the group's retry topic."""
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    """Unix time in milliseconds; None unless `consume_from_where` is `timestamp`."""
    allocate_strategy: AllocateStrategy
    concurrency: int
    auto_concurrency: bool
    """Whether the group finds the best number of concurrent calls itself, with `concurrency` as the limit."""
    hooks: HooksWanted
    """The installed hooks to call: all, none or a tuple of names."""
    consume_message_batch_max_size: int
    consume_message_batch_max_wait_seconds: float
    """How long the oldest message may wait for a full batch; 0: no wait."""
    consume_timeout_seconds: float
    max_reconsume_times: int
    """-1: as in Java, 16 in concurrent groups, and unlimited if failed messages are retried in place."""
    delay_level_when_next_consume: int
    """0: the broker decides (3 + reconsume times); -1: dead-letter at once."""
    auto_commit: bool
    """Orderly groups: whether a handler's return commits; if False, the handler commits explicitly."""
    suspend_current_queue_time_seconds: float
    """How long a queue, or a key, is suspended before a retry in place."""
    pull_batch_size: int
    pull_interval_seconds: float
    pull_threshold_for_queue: int
    pull_threshold_size_for_queue_bytes: int
    pull_threshold_for_topic: int
    """-1: no limit."""
    pull_threshold_size_for_topic_bytes: int
    """-1: no limit."""
    consume_concurrently_max_span: int
    persist_consumer_offset_interval_seconds: float
    shutdown_timeout_seconds: float
    queue_handover_timeout_seconds: float
    pop_invisible_time_seconds: float
    """Pop groups: how long a popped message stays invisible to other members."""
    pop_batch_nums: int
    pop_threshold_for_queue: int
    pull_rate_limit: int
    """Messages a second; 0: no limit."""
    max_body_size_bytes: int
    """Limit after decompression; a message with a larger body is corrupt."""
    on_corrupt_message: OnCorruptMessage
    on_offset_illegal: OnOffsetIllegal
    failures: FailureOptions | None
    """None: failed messages are sent back at once, as in Java."""
    circuit: CircuitOptions | None
    """None: failed calls never stop further calls."""
    deduplication: DeduplicationOptions | None
    """None: a redelivered message is handled again."""
    offset_store: Callable[[], OffsetStore] | None
    """Creates the group's custom offset store; None for the brokers, or for a file in a broadcasting group."""
    trace: TraceOptions | None
    """Where message trace is sent; None if it is disabled."""
    replay: str = ""
    """For a shadow group, the id of its replay, which has deduplication records separate from other replays."""

    @property
    def repeats_in_place(self) -> bool:
        """Whether a failed message is retried here, before the messages that must follow it, and not sent back."""
        return self.consume_mode == "orderly" or bool(self.order_by)

    @property
    def is_lite(self) -> bool:
        """Whether the group consumes lite topics."""
        return any(subscription.lite_topics for subscription in self.subscriptions.values())

    @property
    def announced_model(self) -> str:
        """The brokers' name for the message model."""
        return "LITE_SELECTIVE" if self.is_lite else self.message_model.upper()
