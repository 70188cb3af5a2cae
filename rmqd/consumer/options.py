"""What one consumer group is told to do: plain values, with their units in their names.

There are no defaults here. Defaults and accepted ranges are the configuration's business; an engine that had its own
would disagree with it one day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rmqd.claims.opening import StoreName
from rmqd.client.options import TraceOptions
from rmqd.consumer.allocate import AllocateStrategy
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
    """Which messages of a topic a group wants: a tag expression (`*` for all) or an SQL92 condition.

    With `lite_topics`, all messages of these lite topics below it, and no others.
    """

    expression: str
    kind: ExpressionType
    lite_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """What a group does about what its handler raises, before a message is sent back."""

    in_place: int
    """How often the handler is called again in its slot."""
    backoff_seconds: float
    max_backoff_seconds: float
    retry_on: frozenset[str]
    """Names of exceptions after which it is called again in place; empty: all."""
    dead_letter_on: frozenset[str]
    """Names of exceptions whose messages go to the dead letters at once."""


@dataclass(frozen=True, slots=True)
class CircuitOptions:
    """When a group stops calling its handler, and for how long."""

    consecutive: int
    """Calls in a row that failed; 0: their number does not matter."""
    ratio: float
    """Of the calls within the window that failed; 0: their share does not matter."""
    window_seconds: float
    open_for_seconds: float


@dataclass(frozen=True, slots=True)
class DeduplicationOptions:
    """By what, and where, a group notes which messages are handled."""

    by: str
    """What makes a message the same one: `msg_id`, `keys`, `property:NAME`."""
    store: StoreName
    url: str
    """Of `sqlite`, the path of its file."""
    keep_seconds: float
    """How long it is known that a message was handled."""


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Everything that the engine must know about one group."""

    group: str
    """As brokers know it, and so are the topics in here: with the namespace, where there is one."""
    namespace: str
    """Left out of the names that handlers and hooks see; empty for none."""
    message_model: MessageModel
    local_offsets_directory: str
    """Where broadcasting groups keep their offsets, each in a folder of its name, which is without the namespace."""
    consume_mode: ConsumeMode
    order_by: str
    """What messages are kept in order by: `keys`, `sharding_key`, `property:NAME`; empty for the consume mode alone."""
    subscriptions: Mapping[str, Subscription]
    """By topic name, without the group's retry topic."""
    consume_from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    """Unix time in milliseconds; None unless `consume_from_where` is `timestamp`."""
    allocate_strategy: AllocateStrategy
    concurrency: int
    auto_concurrency: bool
    """Whether `concurrency` is only the most that it may become, and how many calls are made at once is found out."""
    hooks: HooksWanted
    """Of the installed hooks; by names where it is some of them."""
    consume_message_batch_max_size: int
    consume_message_batch_max_wait_seconds: float
    """How long the oldest message waits for a full batch; 0: it does not."""
    consume_timeout_seconds: float
    max_reconsume_times: int
    """-1: as Java, 16 in concurrent groups and no limit where what fails is repeated in place."""
    delay_level_when_next_consume: int
    """0: the broker decides (3 + reconsume times); -1: straight to the dead letters."""
    auto_commit: bool
    """Orderly groups: whether a handler's return commits; else it says so itself."""
    suspend_current_queue_time_seconds: float
    """How long a queue, or a key, rests before what failed is repeated in place."""
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
    """Groups in POP mode: how long others do not see what this member popped."""
    pop_batch_nums: int
    pop_threshold_for_queue: int
    pull_rate_limit: int
    """Messages a second; 0: no limit."""
    max_body_size_bytes: int
    """Decompressed; a larger body is corrupt."""
    on_corrupt_message: OnCorruptMessage
    on_offset_illegal: OnOffsetIllegal
    failures: FailureOptions | None
    """None: what is raised is sent back, as in Java."""
    circuit: CircuitOptions | None
    """None: the handler is called whatever becomes of its calls."""
    deduplication: DeduplicationOptions | None
    """None: a message that comes again is handled again."""
    offset_store: Callable[[], OffsetStore] | None
    """Makes the group's own store; None: brokers have its offsets, or a file where it is broadcasting."""
    trace: TraceOptions | None
    """Where message trace goes; None for a group without."""
    replay: str = ""
    """Of a shadow group, which replay it is: it has records of its own."""

    @property
    def repeats_in_place(self) -> bool:
        """Whether what fails is handed out again here, before what has to follow it, and not sent back."""
        return self.consume_mode == "orderly" or bool(self.order_by)

    @property
    def is_lite(self) -> bool:
        """Whether the group consumes lite topics."""
        return any(subscription.lite_topics for subscription in self.subscriptions.values())

    @property
    def announced_model(self) -> str:
        """The message model by the name that brokers know it by."""
        return "LITE_SELECTIVE" if self.is_lite else self.message_model.upper()
