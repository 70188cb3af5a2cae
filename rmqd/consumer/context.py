"""What the parts of one running group share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rmqd.client.instance import ClientInstance
from rmqd.clock import Clock
from rmqd.consumer.cache.flow_control import Thresholds
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.cache.rate_limit import RateLimit
from rmqd.consumer.circuit import Circuit
from rmqd.consumer.founding.founding import Founding
from rmqd.consumer.hooks import GroupHooks
from rmqd.consumer.options import ConsumerOptions
from rmqd.consumer.pauses import Pauses
from rmqd.consumer.services import ConsumeMessageService, OffsetStore, Ownership, WaysBack
from rmqd.consumer.stats.counters import TopicStats
from rmqd.consumer.stats.problem import GroupProblems
from rmqd.diagnosis.causes import Problem, found
from rmqd.errors import RmqdError
from rmqd.wire.bodies.heartbeat import SubscriptionData
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.topics import unwrap_namespace

if TYPE_CHECKING:
    from rmqd.consumer.handling.message_trace import MessageTrace


class Floor(NamedTuple):
    """What this process had committed in a queue when it gave the queue up.

    If the process takes the queue again and finds less, that is logged and counted: somebody has set the offset back.
    """

    committed: int
    stored_ms: int  # of the newest message that was pulled; 0 for none


@dataclass(slots=True)
class GroupContext:
    """One group's options, services and switches. Topic names are those that brokers know."""

    options: ConsumerOptions
    client: ClientInstance
    clock: Clock
    subscriptions: dict[str, SubscriptionData]  # with the retry topic, if the group has one
    stats: dict[str, TopicStats]
    service: ConsumeMessageService
    send_back: WaysBack
    store: OffsetStore
    founding: Founding
    ownership: Ownership
    rate_limit: RateLimit
    thresholds: Thresholds
    refused: dict[Message, tuple[int, str]] = field(default_factory=dict)  # `SendBack.refused`
    hooks: GroupHooks | None = None  # None where none is installed
    trace: MessageTrace | None = None  # None where message trace is off
    announced: dict[str, SubscriptionData] = field(default_factory=dict)  # by topic: told to brokers, not pulled by yet
    revision: int = 0  # raised whenever options, subscriptions or the rate limit changed while the group runs
    problems: GroupProblems = field(default_factory=GroupProblems)
    floors: dict[MessageQueue, Floor] = field(default_factory=dict)  # of queues given up since
    start_failures: dict[str, dict[MessageQueue, RmqdError]] = field(default_factory=dict)  # by broker; to be logged
    pauses: Pauses = field(default_factory=Pauses)
    move: Callable[[MessageQueue, int], bool] = lambda _queue, _offset: False  # by an operator; whether it is held here
    ends: Mapping[MessageQueue, int] = field(default_factory=dict)  # where queues are pulled no further, if anywhere
    notice_seconds: float = 0.0  # how long a member may take to see that others came, above what one that is told takes
    cache: type[ProcessQueue] = ProcessQueue  # of each pulled queue, unless its messages are ordered by a key
    resumed: asyncio.Event = field(default_factory=asyncio.Event)  # cleared while the whole group is paused

    @property
    def paused(self) -> bool:
        """Whether an operator paused the whole group: nothing is pulled and nothing is handed out."""
        return not self.resumed.is_set()

    def brokers(self) -> dict[str, str]:
        """The addresses of the brokers that serve the group's topics, by name."""
        routes = self.client.routes
        names = {
            broker.broker_name
            for topic in self.subscriptions
            if (route := routes.route(topic)) is not None
            for broker in route.broker_datas
        }
        return {name: address for name in sorted(names) if (address := routes.address(name)) is not None}

    @property
    def circuit(self) -> Circuit | None:
        """Whether the handler is called; None for a group without a circuit breaker."""
        return self.service.circuit

    @property
    def is_held_up(self) -> bool:
        """Whether nothing is handed out for a while, for no fault of the messages: none is to lose an attempt by it."""
        is_called = self.circuit is None or self.circuit.state == "closed"
        return not is_called or self.service.problem is not None

    @property
    def plain_group(self) -> str:
        """The group's name as operators know it."""
        return unwrap_namespace(self.options.group, self.options.namespace)

    def found(self, cause: str, evidence: str, *, topic: str = "", step: str = "") -> Problem:
        """A problem of this group, whose next step has its names as operators know them."""
        of = unwrap_namespace(topic or "TOPIC", self.options.namespace)
        return found(cause, evidence, group=self.plain_group, topic=of, step=step)
