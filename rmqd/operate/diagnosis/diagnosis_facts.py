"""The facts about a group and its brokers at one moment, as brokers and members report them.

Times are Unix seconds unless the name says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.group_bodies import (
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
)
from rmqd.wire.bodies.heartbeat_data import ConsumeType, SubscriptionData
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.bodies.stats_bodies import Connection, ConsumerConnection
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.receipt_handle import ANY_QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker, as reported by the name server and the broker. Unknown values are None."""

    name: str
    master: str | None
    slaves: tuple[str, ...] = ()
    silence: str | None = None
    """Why its master does not respond; None if it responds."""
    permission: int | None = None
    """Its brokerPermission, of PERM_READ and PERM_WRITE."""
    disk_used: float | None = None
    """The used share of its commit log's disk; 1.0 is full."""
    disk_limit: float = 1.0
    """The share at which it stops storing messages: its diskSpaceWarningLevelRatio."""
    clock_ahead_seconds: float | None = None
    """How far its clock is ahead of ours. It reports whole seconds."""
    makes_groups: bool = True
    """Whether it creates unknown groups when they connect: its autoCreateSubscriptionGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic that the group subscribes to. `error`: why its route is unknown. `missing`: it has no route."""

    topic: str
    route: TopicRouteData | None = None
    missing: bool = False
    error: str = ""
    queues: tuple[MessageQueue, ...] = ()
    """The queues that consumers read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """One member. `info` is None if it does not report itself, because it does not respond (`silence`) or cannot."""

    client_id: str
    connections: Mapping[str, tuple[Connection, ...]]
    """By the broker's name."""
    info: ConsumerRunningInfo | None = None
    silence: str | None = None

    @property
    def address(self) -> str:
        """The address of its connection."""
        return next((one.client_addr for known in self.connections.values() for one in known), "?")

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData] | None:
        """The subscriptions by topic that it reports."""
        return None if self.info is None else {one.topic: one for one in self.info.subscription_set}

    @property
    def orderly(self) -> bool | None:
        """Whether it consumes in order."""
        value = None if self.info is None else self.info.properties.get(PROP_CONSUME_ORDERLY)
        return None if value is None else value == "true"

    @property
    def reports_queues(self) -> bool:
        """Whether it reports its queues: Java's pull consumers do not."""
        return self.info is not None and self.info.properties.get(PROP_CONSUME_TYPE) != ConsumeType.ACTIVELY

    @property
    def on_spark(self) -> bool:
        """Whether it is the driver of a group on Spark, which commits once per micro-batch and locks no queues."""
        return self.info is not None and self.info.user_consumer_info.get("engine") == "spark"

    @property
    def paused(self) -> str:
        """The part that an operator has paused, as rmqd members report it: "3 queues", or "" for nothing."""
        values = {} if self.info is None else self.info.user_consumer_info
        some = re.search(r"(\d+) paused", values.get("queues", ""))
        if some is not None:
            return f"{some[1]} queue{'' if some[1] == '1' else 's'}"
        return "all" if values.get("state") == "paused" else ""

    @property
    def started_at(self) -> float | None:
        """When it started, by its own clock."""
        value = "" if self.info is None else self.info.properties.get(PROP_CONSUMER_START_TIMESTAMP, "")
        return int(value) / 1000 if value.isdecimal() else None

    def limit(self, name: str, default: int) -> int:
        """Return one of its thresholds, by Java's name; the default of Java's client if it does not report it."""
        value = "" if self.info is None else self.info.properties.get(name, "")
        return int(value) if value.isdecimal() else default


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The group's progress in one queue. `committed` is None if the group never committed. `age_seconds` is the age of
    the oldest waiting message.
    """

    queue: MessageQueue
    committed: int | None
    min: int
    max: int
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMessage:
    """A stored message that a finding names."""

    msg_id: str
    queue: MessageQueue
    offset: int
    keys: str | None = None
    reconsume_times: int = 0
    stored_at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSnapshot:
    """All facts at one moment."""

    group: str
    at: float
    """The time of the facts, by our clock."""
    name_servers: str = ""
    brokers: Mapping[str, BrokerFacts] = field(default_factory=dict)
    settings: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    """The group's settings, by the name of the broker that has them."""
    views: Mapping[str, ConsumerConnection] = field(default_factory=dict)
    """The members that each broker knows, without brokers that know none."""
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    members: Mapping[str, MemberFacts] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueFacts] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """POP or PULL by topic and broker name, without topics whose mode was never set."""
    heads: Mapping[MessageQueue, SeenMessage] = field(default_factory=dict)
    """The first waiting message of a stalled queue."""
    retried: tuple[SeenMessage, ...] = ()
    """The latest messages of the group's retry topic, where handlers failed recently."""

    @property
    def model(self) -> str:
        """The message model that the members registered."""
        return next((view.message_model for view in self.views.values() if view.message_model), "CLUSTERING")

    @property
    def orderly(self) -> bool:
        """Whether all members that report it consume in order."""
        orderly = [member.orderly for member in self.members.values() if member.orderly is not None]
        return bool(orderly) and all(orderly)

    def owners(self, queue: MessageQueue) -> list[MemberFacts]:
        """Return the members that report owning a queue."""
        anywhere = MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE)
        return [
            member
            for member in self.members.values()
            if (info := member.info) is not None
            and (queue in info.mq_table or queue in info.mq_pop_table or anywhere in info.mq_pop_table)
        ]

    def pulled(self, queue: MessageQueue) -> ProcessQueueInfo | None:
        """Return the owner's values for a queue; None if no member, or more than one, pulls it."""
        pulled = [
            member.info.mq_table[queue]
            for member in self.owners(queue)
            if member.info and queue in member.info.mq_table
        ]
        return pulled[0] if len(pulled) == 1 else None

    def popped(self, queue: MessageQueue) -> list[PopProcessQueueInfo]:
        """Return the values of the members that pop a queue."""
        anywhere = MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE)
        tables = [member.info.mq_pop_table for member in self.members.values() if member.info is not None]
        return [table[at] for table in tables for at in (queue, anywhere) if at in table]

    def place(self, queue: MessageQueue) -> int | None:
        """Return the group's offset in a queue: the owner may have finished more than is committed.

        None if the group never committed and the owner has no messages: it may have started at the queue's end, which
        Java's client reports about twenty seconds later.
        """
        committed, owner = self.queues[queue].committed, self.pulled(queue)
        if owner is None:
            return committed
        if committed is None and owner.commit_offset < 0:
            return owner.cached_msg_min_offset if owner.cached_msg_count else None
        return max(-1 if committed is None else committed, owner.commit_offset)

    def waiting(self, queue: MessageQueue) -> int:
        """Return how many messages of a queue are not finished."""
        ends = self.queues[queue]
        return max(0, ends.max - max(self.place(queue) or 0, ends.min))
