"""The objects that the parts of one running group share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rmqd.client.instance import ClientInstance
from rmqd.consumer.cache.flow_control import RateLimit, Thresholds
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.consumer_options import ConsumerOptions
from rmqd.consumer.health.causes import Problem, make_problem
from rmqd.consumer.hooks import GroupHooks
from rmqd.consumer.offsets.start_offsets import StartOffsets
from rmqd.consumer.pauses import Pauses
from rmqd.consumer.services import ConsumeMessageService, GroupOffsetStore, Ownership, RetryPolicy
from rmqd.consumer.stats.counters import GroupProblems, TopicStats
from rmqd.consumer.stats.stats_snapshot import QueueSnapshot
from rmqd.errors import RmqdError
from rmqd.runtime.clock import Clock
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import unwrap_namespace

if TYPE_CHECKING:
    from rmqd.consumer.handling.message_trace import MessageTrace


class ReleasedOffset(NamedTuple):
    """The last commit of this process in a queue that it has released.

    If the process acquires the queue again and finds a lower stored offset, another client lowered the offset. The
    process logs and counts that.
    """

    committed: int  # the committed offset
    stored_ms: int  # store time of the newest pulled message, in milliseconds; 0 if none was pulled


@dataclass(slots=True)
class GroupContext:
    """One group's options, services and switches. Topic names have the namespace, as brokers know them."""

    options: ConsumerOptions
    client: ClientInstance
    clock: Clock
    subscriptions: dict[str, SubscriptionData]  # topic -> subscription, also for the group's retry topic, if any
    stats: dict[str, TopicStats]  # topic -> its counters
    service: ConsumeMessageService
    retry_policy: RetryPolicy
    store: GroupOffsetStore
    start_offsets: StartOffsets
    ownership: Ownership
    rate_limit: RateLimit
    thresholds: Thresholds
    refused_messages: dict[Message, tuple[int, str]] = field(default_factory=dict)  # number of refusals, last reason
    hooks: GroupHooks | None = None  # None if no hook is installed
    trace: MessageTrace | None = None  # None if message trace is disabled
    announced_subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)  # sent to brokers, not in force
    options_revision: int = 0  # increased when options, subscriptions or the rate limit change while the group runs
    problems: GroupProblems = field(default_factory=GroupProblems)
    released_offsets: dict[MessageQueue, ReleasedOffset] = field(default_factory=dict)  # queue -> last commit
    # With `on_offset_illegal: stop`: queue -> the offset that its broker refused, and the lowest offset offered instead
    refused_offsets: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    start_failures: dict[str, dict[MessageQueue, RmqdError]] = field(default_factory=dict)  # broker -> errors to log
    pauses: Pauses = field(default_factory=Pauses)
    move: Callable[[MessageQueue, int], bool] = lambda _queue, _offset: False  # `Rebalance.reset_queue`
    end_offsets: Mapping[MessageQueue, int] = field(default_factory=dict)  # offsets at which pulling stops, if any
    max_notice_delay_seconds: float = 0.0  # how late a member notices new members if brokers do not notify it
    create_cache: Callable[[MessageQueue, int, TopicStats, str], ProcessQueue] = ProcessQueue  # for pulled queues
    # Idle queues: all messages are handled and committed, and the broker holds a pull. Periodic work skips idle queues,
    # because a group may have thousands. A round of commits adds a queue here, and activity of the queue removes it.
    # The value is the queue's snapshot, which cannot change while the queue is idle; None if it was not needed yet.
    idle_queues: dict[MessageQueue, QueueSnapshot | None] = field(default_factory=dict)
    not_paused: asyncio.Event = field(default_factory=asyncio.Event)  # cleared while the whole group is paused

    @property
    def paused(self) -> bool:
        """Whether an operator paused the whole group: no pulls and no handler calls."""
        return not self.not_paused.is_set()

    def brokers(self) -> dict[str, str]:
        """Return the addresses of the brokers that serve the group's topics, by broker name."""
        routes = self.client.routes
        names = {name for topic in self.subscriptions for name in routes.broker_names(topic)}
        return {name: address for name in sorted(names) if (address := routes.address(name)) is not None}

    @property
    def circuit(self) -> Circuit | None:
        """The circuit of the group's circuit breaker; None if the group has no circuit breaker."""
        return self.service.circuit

    @property
    def are_calls_held_back(self) -> bool:
        """Whether the circuit breaker or an unavailable store delays handler calls. The delay must cost no attempt."""
        is_called = self.circuit is None or self.circuit.state == "closed"
        return not is_called or self.service.problem is not None

    async def announce_subscriptions(self, subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Send new or changed subscriptions, by topic, to every broker. The caller must then apply them at once.

        Brokers refuse pulls for a subscription that they do not know. If a broker does not respond, the next heartbeat
        sends the subscriptions again.
        """
        self.announced_subscriptions.update(subscriptions)
        try:
            await self.client.heartbeat.send_heartbeats()
        finally:
            for topic in subscriptions:
                self.announced_subscriptions.pop(topic, None)

    def make_problem(self, cause: str, evidence: str, *, topic: str = "", step: str = "") -> Problem:
        """Return a problem of this group. The commands in its next step contain names without the namespace."""
        of = unwrap_namespace(topic or "TOPIC", self.options.namespace)
        return make_problem(cause, evidence, group=self.options.group_without_namespace, topic=of, step=step)
