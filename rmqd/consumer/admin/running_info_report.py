"""The running info of a member, for mqadmin and dashboards: its options and figures, under the Java client's names."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from rmqd.client.client_options import ClientOptions
from rmqd.consumer.allocate import JAVA_STRATEGY_NAMES
from rmqd.consumer.assigned.assignment import Assignment
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.context import GroupContext
from rmqd.consumer.stats.counters import TopicStats
from rmqd.runtime.clock import Clock
from rmqd.version import __version__
from rmqd.wire.bodies import group_bodies as wire
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, ConsumeStatus, PopProcessQueueInfo, ProcessQueueInfo
from rmqd.wire.bodies.heartbeat_data import ConsumeType
from rmqd.wire.command import LANGUAGE
from rmqd.wire.message_queue import MessageQueue

SAMPLE_SECONDS: Final = 10.0  # Java: StatsItem samples every 10 s for the minute
MINUTE_SAMPLES: Final = 6
HOUR_SAMPLES: Final = 60


class CounterSample(NamedTuple):
    """A topic's counters at one moment."""

    sampled_at: float
    pulls: int
    pull_seconds: float
    received: int
    calls: int
    call_seconds: float
    acked: int
    failed: int


class ConsumeRates:
    """Rates of a group's topics over the last minute and hour, or since the start if the group is younger.

    Topics may be added to `stats` later: a group that changes from pop to pull also reads its pop retry topics.
    """

    def __init__(self, stats: Mapping[str, TopicStats], clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        self._minute: dict[str, deque[CounterSample]] = {}
        self._hour: dict[str, deque[CounterSample]] = {}
        # queue with messages -> its cache, a number that grows with each finished message, and when it last grew
        self._progress: dict[MessageQueue, tuple[ProcessQueue, int, float]] = {}
        self._rounds = 0
        self._begin()

    def sample(self) -> None:
        """Read the topics' counters. Called every 10 s; the rates of the hour use one sample a minute."""
        self._begin()
        self._rounds += 1
        for topic in self._stats:
            self._minute[topic].append(counters := self._count(topic))
            if self._rounds % MINUTE_SAMPLES == 0:
                self._hour[topic].append(counters)

    def status(self, topic: str) -> ConsumeStatus:
        self._begin()
        now, minute, hour = self._count(topic), self._minute[topic][0], self._hour[topic][0]
        seconds = max(now.sampled_at - minute.sampled_at, 1.0)
        calls = minute if now.calls > minute.calls else hour  # as in Java, the hour if the minute had no calls
        return ConsumeStatus(
            pull_rt=_milliseconds(now.pull_seconds - minute.pull_seconds, now.pulls - minute.pulls),
            pull_tps=(now.received - minute.received) / seconds,
            consume_rt=_milliseconds(now.call_seconds - calls.call_seconds, now.calls - calls.calls),
            consume_ok_tps=(now.acked - minute.acked) / seconds,
            consume_failed_tps=(now.failed - minute.failed) / seconds,
            consume_failed_msgs=now.failed - hour.failed,
        )

    def record_progress(self, queues: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Record which queues with messages made progress; forget all other queues."""
        now, before = self._clock.monotonic(), self._progress
        self._progress = {}
        for message_queue, process_queue in queues.items():
            if process_queue.cached_count:
                finished, last = process_queue.next_offset - process_queue.cached_count, before.get(message_queue)
                is_same = last is not None and last[:2] == (process_queue, finished)
                self._progress[message_queue] = last if last and is_same else (process_queue, finished, now)

    def last_progress_at(self, queue: MessageQueue) -> float:
        """Return when the queue last made progress or was idle (monotonic). May be 10 s late."""
        progress = self._progress.get(queue)
        return self._clock.monotonic() if progress is None else progress[2]

    def _begin(self) -> None:
        """Take the first sample of each topic that was added since the last call."""
        for topic in self._stats.keys() - self._minute.keys():
            first = self._count(topic)
            self._minute[topic] = deque([first], maxlen=MINUTE_SAMPLES)
            self._hour[topic] = deque([first], maxlen=HOUR_SAMPLES)

    def _count(self, topic: str) -> CounterSample:
        stats = self._stats[topic]
        snapshots = stats.snapshots()
        acked = sum(snapshot.handled["acked"] for snapshot in snapshots)
        return CounterSample(
            self._clock.monotonic(),
            stats.pulls,
            stats.pull_seconds,
            sum(snapshot.received for snapshot in snapshots),
            sum(snapshot.handler_duration.count for snapshot in snapshots),
            sum(snapshot.handler_duration.sum for snapshot in snapshots),
            acked,
            sum(sum(snapshot.handled.values()) - snapshot.handled["corrupt"] for snapshot in snapshots) - acked,
        )


def _milliseconds(seconds: float, times: int) -> float:
    return seconds * 1000 / times if times > 0 else 0.0


CLIENT_VERSION: Final = "V5_5_0"  # a RocketMQ version, because tools know no other versions; also in rmqd's frames
MIB: Final = 1024 * 1024
# our option -> Java's name, if that is not our name in camel case
_JAVA_NAMES: Final = {
    "group": "consumerGroup",
    "subscriptions": "subscription",
    "allocate_strategy": "allocateMessageQueueStrategy",
    "concurrency": "consumeThreadMax",
    "shutdown_timeout_seconds": "awaitTerminationMillisWhenShutdown",
    "suspend_current_queue_time_seconds": "suspendCurrentQueueTimeMillis",
}


def running_info(
    context: GroupContext,
    assigned: Mapping[MessageQueue, Assignment],
    rates: ConsumeRates,
    state: str,
    started_at: float,
    jstack: str | None,
) -> ConsumerRunningInfo:
    """Return the running info of the group in this process. `started_at` is Unix seconds."""
    circuit = context.circuit
    return ConsumerRunningInfo(
        properties=running_info_properties(context, started_at),
        subscription_set=tuple(context.subscriptions.values()),
        mq_table={queue: _pulled(context, one, rates) for queue, one in assigned.items() if not one.is_popped},
        mq_pop_table={queue: _popped(context, one) for queue, one in assigned.items() if one.is_popped},
        status_table={topic: rates.status(topic) for topic in context.subscriptions},
        user_consumer_info={
            "rmqd": __version__,
            "python": platform.python_version(),
            "pid": str(os.getpid()),
            "state": "paused" if context.paused and state == "running" else state,
            "queues": _states(assigned.values()),
            **({} if circuit is None or circuit.state == "closed" else {"circuit": circuit.state}),
        },
        jstack=jstack,
    )


def running_info_properties(context: GroupContext, started_at: float) -> dict[str, str]:
    """Return the options with Java's names and units, and entries for tools. No secrets, no handler options."""
    options = context.options
    return {
        **_client_properties(context.client.options),
        **_group_properties(options),
        wire.PROP_CLIENT_VERSION: CLIENT_VERSION,
        wire.PROP_CONSUME_ORDERLY: _text(options.consume_mode == "orderly"),
        wire.PROP_CONSUME_TYPE: ConsumeType.PASSIVELY,
        wire.PROP_CONSUMER_START_TIMESTAMP: str(int(started_at * 1000)),
        wire.PROP_NAMESERVER_ADDR: "".join(f"{address};" for address in context.client.name_servers.addresses),
        wire.PROP_THREADPOOL_CORE_SIZE: str(options.concurrency),
    }


def _group_properties(options: ConsumerOptions) -> dict[str, str]:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    found = {_java_name(name): _text(_java_value(name, value)) for name, value in values.items() if value is not None}
    return {**found, "consumeThreadMin": str(options.concurrency)}


def _client_properties(options: ClientOptions) -> dict[str, str]:
    return {
        "namesrvAddr": options.nameserver_for_output,
        "instanceName": options.instance_name,
        "unitName": options.unit_name,
        "unitMode": _text(options.unit_mode),
        "vipChannelEnabled": _text(options.vip_channel_enabled),
        "pollNameServerInterval": _text(round(options.poll_name_server_interval_seconds * 1000)),
        "heartbeatBrokerInterval": _text(round(options.heartbeat_broker_interval_seconds * 1000)),
        "useTLS": _text(options.tls.enabled),
        "language": LANGUAGE.name,
    }


def _java_name(name: str) -> str:
    if name in _JAVA_NAMES:
        return _JAVA_NAMES[name]
    first, *others = name.removesuffix("_seconds").removesuffix("_bytes").removesuffix("_ms").split("_")
    return first + "".join(word.capitalize() for word in others)


def _java_value(name: str, value: Any) -> object:
    match name:
        case "consume_timeout_seconds":
            return f"{value / 60:g}"  # minutes
        case "consume_timestamp_ms":
            return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y%m%d%H%M%S")
        case "consume_from_where":
            return f"CONSUME_FROM_{value.upper()}"
        case "message_model":
            return value.upper()
        case "allocate_strategy":
            return JAVA_STRATEGY_NAMES.get(value.name, value.name)
        case "subscriptions":
            return ", ".join(f"{topic}={subscription.expression}" for topic, subscription in value.items())
    if name.endswith("_seconds"):
        return round(value * 1000)
    if name.endswith("_bytes"):
        return value // MIB if value > 0 else value
    return value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pulled(context: GroupContext, assigned: Assignment, rates: ConsumeRates) -> ProcessQueueInfo:
    """Return the figures of a pulled queue. A queue that waits for its previous owner has no offset yet.

    `last_lock_timestamp` of a held lock is the present time, because a lock is renewed every 20 s. In a group that is
    not orderly, it is the creation time of the queue's cache, as in Java. A reset creates a new cache, so
    `rmqd offsets reset` recognizes by this time that the queue was reset.
    """
    loop, clock = assigned.loop, context.clock
    orderly = context.options.consume_mode == "orderly"
    locked = orderly and loop is not None and context.ownership.holds(assigned.message_queue)
    begun_at = 0.0 if loop is None else loop.cache_created_at
    locked_at = int(((clock.wall() if locked else assigned.since) if orderly else begun_at) * 1000)
    if loop is None:
        return ProcessQueueInfo(commit_offset=-1, last_lock_timestamp=locked_at)
    (process_queue,) = loop.process_queues
    oldest = process_queue.oldest()
    return ProcessQueueInfo(
        commit_offset=process_queue.commit_offset(),
        cached_msg_min_offset=0 if oldest is None else oldest.queue_offset,
        cached_msg_max_offset=0 if oldest is None else oldest.queue_offset + process_queue.span(),
        cached_msg_count=process_queue.cached_count,
        cached_msg_size_in_mib=process_queue.cached_bytes // MIB,
        locked=locked,
        last_lock_timestamp=locked_at,
        dropped=process_queue.dropped or assigned.is_releasing,
        last_pull_timestamp=_wall_milliseconds(clock, loop.last_request_at),
        last_consume_timestamp=_wall_milliseconds(clock, rates.last_progress_at(assigned.message_queue)),
    )


def _popped(context: GroupContext, assigned: Assignment) -> PopProcessQueueInfo:
    return PopProcessQueueInfo(
        wait_ack_count=sum(queue.cached_count for queue in assigned.process_queues),
        dropped=assigned.is_releasing,
        last_pop_timestamp=0
        if assigned.loop is None
        else _wall_milliseconds(context.clock, assigned.loop.last_request_at),
    )


def _states(assigned: Iterable[Assignment]) -> str:
    """Return a text with the number of queues in each state, such as `3 waiting, 1 paused`."""
    counts = Counter("starting" if (queue := entry.snapshot()) is None else queue.state for entry in assigned)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def _wall_milliseconds(clock: Clock, monotonic: float) -> int:
    """Convert a monotonic time in seconds to Unix milliseconds."""
    return int((clock.wall() - clock.monotonic() + monotonic) * 1000)
