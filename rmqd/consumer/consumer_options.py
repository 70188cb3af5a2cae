"""The settings of one consumer group: plain values with units in their names.

`GroupKeys` declares each configuration key that the engine reads: its type, range, meaning and default. A key is the
name of its field without the unit. The configuration's model of a group has the same fields, so the schema, the
documentation and the engine's options all follow from these declarations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rmqd.client.client_options import TraceOptions
from rmqd.consumer.allocate import AllocateStrategy
from rmqd.handler_api.leases.lease_opening import StoreName
from rmqd.offset_stores import OffsetStore
from rmqd.runtime.value_kinds import Duration, HookNames, Integer, Share, Size, Text, key, with_kinds
from rmqd.wire.topics import unwrap_namespace

MAX_CONCURRENCY: Final = 1000
"""The limit of `handler.concurrency`."""
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

    With `lite_topics`, the group gets all messages of these lite topics, and no other messages of the parent topic.
    """

    expression: str
    kind: ExpressionType
    lite_topics: tuple[str, ...] = ()

    def to_config(self) -> str | dict[str, Any]:
        """Return the subscription as an operator writes it in the configuration."""
        if self.lite_topics:
            return {"lite_topics": list(self.lite_topics)}
        return {"sql": self.expression} if self.kind == "SQL92" else self.expression


@dataclass(frozen=True, slots=True)
class FailureOptions:
    """How a group reacts to a handler's exception: by further calls in place, or by a dead letter at once."""

    in_place: int
    """How many further calls a failed batch gets in its slot before its failure is settled."""
    backoff_seconds: float
    max_backoff_seconds: float
    retry_on: frozenset[str]
    """Class names of the exceptions that are retried in place; empty for all, except a lost handler process."""
    dead_letter_on: frozenset[str]
    """Class names of the exceptions that dead-letter the message at once."""


@with_kinds
@dataclass(frozen=True)
class CircuitOptions:
    """When the group stops calling its handler, so that a failing service does not use up its messages' attempts."""

    consecutive: int = key(
        0, "consecutive failed calls within window that open the circuit, 0 to 10000; 0: never", Integer(0, 10_000)
    )
    ratio: float = key(
        0.0,
        "share of failed calls, out of at least 10 within window, that opens the circuit, 0.0 to 1.0; 0.0: never",
        Share(),
    )
    window_seconds: float = key(
        30.0,
        "a duration, 1s to 1h: how long a failed call counts, and how long its messages may wait",
        Duration("1s", "1h"),
    )
    open_for_seconds: float = key(
        15.0, "a duration, 100ms to 1h: how long no call is made, before one test call", Duration("100ms", "1h")
    )

    @property
    def can_open(self) -> bool:
        return bool(self.consecutive or self.ratio)


_BY: Final = r"^(msg_id|keys|property:\S(.*\S)?)$"


@with_kinds
@dataclass(frozen=True)
class DeduplicationOptions:
    """How a group skips handled messages: a store leases them before a handler call, and records them afterwards."""

    by: str = key(
        "msg_id",
        "the identity of a message: msg_id | keys | property:NAME; messages without it are not deduplicated",
        Text("msg_id, keys, or property:NAME", lambda text: re.fullmatch(_BY, text) is not None, pattern=_BY),
    )
    store: StoreName = key(
        "sqlite",
        "where handled messages are recorded: a file, for the processes of one machine; Redis; a table in PostgreSQL",
    )
    url: str = key(
        "",
        "redis://... or postgresql://...; sqlite: a path, or empty for deduplicate/<group>.sqlite3 in state_dir",
        Text(),
    )
    keep_seconds: float = key(
        259_200.0, "a duration, 1m to 3650d: how long a handled message is remembered", Duration("1m", "3650d")
    )


CanaryMode = Literal["live", "shadow"]


@dataclass(frozen=True, slots=True)
class CanaryOptions:
    """Which messages a group's second handler, the canary, gets, and in which mode."""

    share: float
    """The canary's share of the messages, from 0.0 to 1.0."""
    by: str
    """The message value whose hash decides about the share: `msg_id`, or a name for `value_reader`."""
    mode: CanaryMode


ORDER_BY_PATTERN: Final = r"^(keys|sharding_key|property:\S(.*\S)?)?$"


def is_valid_order_by(text: str) -> bool:
    return re.fullmatch(ORDER_BY_PATTERN, text) is not None


@with_kinds
@dataclass(frozen=True, kw_only=True)
class GroupKeys:
    """The keys of a group that its engine reads: RocketMQ's parameters in snake case, with the Java client's defaults.

    A default is in the unit of its field. `live` marks keys that can change while the group runs (`Consumer.change`).
    """

    message_model: MessageModel = key(
        "clustering", "clustering: the members share the queues; broadcasting: each member gets every message"
    )
    consume_mode: ConsumeMode = key(
        "concurrently", "concurrently: several batches of a queue at once; orderly: one after the other; pop: with POP"
    )
    order_by: str = key(
        "",
        "messages with the same keys | sharding_key | property:NAME are handled one at a time and in order",
        Text('keys, sharding_key, property:NAME, or ""', is_valid_order_by, pattern=ORDER_BY_PATTERN),
    )
    consume_from_where: ConsumeFromWhere = key(
        "last_offset",
        "start position of a new group; a queue, broker or topic that is added to an existing group starts at its "
        "first message",
        live=True,
    )
    hooks: HooksWanted = key(
        "all",
        "the installed hooks that the group uses, for every batch and as filters: all | none | [NAME, ...]",
        HookNames(),
    )
    consume_message_batch_max_size: int = key(1, "maximum number of messages in a batch, 1 to 1024", Integer(1, 1024))
    consume_message_batch_max_wait_seconds: float = key(
        0.0,
        "a duration, 0s to 5m: how long the oldest message waits for a full batch; 0s: it does not wait",
        Duration("0s", "5m"),
    )
    consume_timeout_seconds: float = key(
        900.0,
        "a duration: how long a handler may take for a batch before it is sent back for a retry; in an orderly group "
        "it is only reported",
        Duration("1ms"),
    )
    max_reconsume_times: int = key(
        -1,
        "N: N+1 attempts, then the dead letters; -1: 16 in concurrent and pop groups, no limit in orderly groups and "
        "with order_by",
        Integer(0, 2**31 - 1, also=(-1,), meaning="for Java's default"),
    )
    auto_commit: bool = key(
        True, "orderly groups: commit when the handler returns; false: batch.commit() and batch.rollback() decide"
    )
    delay_level_when_next_consume: int = key(
        0, "delay level of a retry; 0: the broker decides (3 + times); -1: directly to the dead letters", Integer(-1)
    )
    suspend_current_queue_time_seconds: float = key(
        1.0,
        "a duration, 10ms to 30s: how long an orderly queue, or a value of order_by, is suspended before a retry",
        Duration("10ms", "30s"),
    )
    pull_batch_size: int = key(32, "messages requested in one pull, 1 to 1024", Integer(1, 1024), live=True)
    pull_interval_seconds: float = key(
        0.0,
        "a duration, 0s to 65535ms: delay after each pull that returned messages",
        Duration("0s", "65535ms"),
        live=True,
    )
    pull_threshold_for_queue: int = key(
        1000, "a queue with more cached messages than this is not pulled, 1 to 65535", Integer(1, 65535), live=True
    )
    pull_threshold_size_for_queue_bytes: int = key(
        100 << 20,
        "a queue with more cached bytes than this is not pulled: a size, 1MiB to 1GiB",
        Size("1MiB", "1024MiB"),
        live=True,
    )
    pull_threshold_for_topic: int = key(
        -1,
        "cached messages of a topic, shared by its queues in this process, 1 to 6553500; -1: no limit",
        Integer(1, 6_553_500, also=(-1,), meaning="for no limit"),
        live=True,
    )
    pull_threshold_size_for_topic_bytes: int = key(
        -1,
        "cached bytes of a topic, shared by its queues in this process: a size, 1MiB to 100GiB; -1: no limit",
        Size("1MiB", "102400MiB", unlimited=True),
        live=True,
    )
    consume_concurrently_max_span: int = key(
        2000,
        "maximum distance between the lowest and highest cached offset, and maximum number of handled messages "
        "after an unfinished one; beyond it a queue is not pulled, 1 to 65535",
        Integer(1, 65535),
        live=True,
    )
    persist_consumer_offset_interval_seconds: float = key(
        5.0, "a duration: how often offsets are committed to the broker", Duration("10ms"), live=True
    )
    shutdown_timeout_seconds: float = key(
        30.0, "a duration: how long a stop waits for the batches that are being handled", Duration("0s"), live=True
    )
    queue_handover_timeout_seconds: float = key(
        5.0,
        "a duration: how long a new owner of a queue waits for the previous one to finish and commit",
        Duration("0s"),
    )
    pull_rate_limit: int = key(
        0, "maximum messages per second; 0: no limit; changeable while the group runs", Integer(0), live=True
    )
    max_body_size_bytes: int = key(
        16 << 20,
        "limit of a body, after its decompression; a message with a larger body is corrupt: a size, 1KiB to 1GiB",
        Size("1KiB", "1024MiB"),
        live=True,
    )
    pop_invisible_time_seconds: float = key(
        60.0,
        "a duration, 5s to 5m: how long a popped message is hidden from others (consume_mode: pop)",
        Duration("5s", "300s"),
        live=True,
    )
    pop_batch_nums: int = key(
        32, "messages requested in one pop, 1 to 32 (consume_mode: pop)", Integer(1, 32), live=True
    )
    pop_threshold_for_queue: int = key(
        96,
        "a queue with more unacknowledged messages than this is not popped (consume_mode: pop)",
        Integer(1),
        live=True,
    )
    on_corrupt_message: OnCorruptMessage = key(
        "stop", "a message that cannot be decoded: stop the queue before it, dead-letter it, or skip it", live=True
    )
    on_offset_illegal: OnOffsetIllegal = key(
        "correct",
        "correct: continue at the broker's offset, logged and counted, as in Java; stop: hold the queue",
        live=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(GroupKeys):
    """All settings of one group that the engine needs: its keys, and values that other keys or plugins determine."""

    group: str
    """The name at the brokers, with the namespace if there is one. Topic names here have the namespace too."""
    namespace: str = ""
    """The namespace, which is removed from the names that handlers and hooks see; empty for none."""
    local_offsets_directory: str
    """Folder for a broadcasting group's offsets, in a subfolder with the group's name without the namespace."""
    subscriptions: Mapping[str, Subscription]
    """The subscriptions by topic name, without the group's retry topic."""
    consume_timestamp_ms: int | None = None
    """Start time of a new group, in Unix milliseconds; None unless `consume_from_where` is `timestamp`."""
    allocate_strategy: AllocateStrategy
    concurrency: int
    auto_concurrency: bool = False
    """Whether the group finds the best number of concurrent calls itself, with `concurrency` as the limit."""
    failures: FailureOptions | None = None
    """None: failed messages are sent back at once, as in Java."""
    circuit: CircuitOptions | None = None
    """None: failed calls never stop further calls."""
    deduplication: DeduplicationOptions | None = None
    """None: a redelivered message is handled again."""
    canary: CanaryOptions | None = None
    """None: the group has one handler."""
    offset_store: Callable[[], OffsetStore] | None = None
    """Creates the group's custom offset store; None for the brokers, or for a file in a broadcasting group."""
    trace: TraceOptions | None = None
    """Where message trace is sent; None if it is disabled."""
    replay: str = ""
    """The id of the replay that a shadow group runs, which separates its deduplication records; otherwise empty."""

    @property
    def group_without_namespace(self) -> str:
        """The group's name without the namespace, as operators know it."""
        return unwrap_namespace(self.group, self.namespace)

    @property
    def retries_in_place(self) -> bool:
        """Whether a failed message is retried here, before the messages that must follow it, and not sent back."""
        return self.consume_mode == "orderly" or bool(self.order_by)

    @property
    def keeps_queue_order(self) -> bool:
        """Whether each queue or lite topic is handled in order, so that no message overtakes a retried message."""
        return self.is_lite or (self.consume_mode == "orderly" and not self.order_by)

    @property
    def is_lite(self) -> bool:
        return any(subscription.lite_topics for subscription in self.subscriptions.values())

    @property
    def announced_message_model(self) -> str:
        """The brokers' name for the group's message model, as heartbeats announce it."""
        return "LITE_SELECTIVE" if self.is_lite else self.message_model.upper()
