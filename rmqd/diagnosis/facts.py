"""What was seen of a group and of the brokers that serve it: the facts that a diagnosis is judged by.

They are what brokers and members say, as it came, in one value for each look. Times are Unix seconds unless a name says
otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmqd.wire.bodies.heartbeat import ConsumeType, SubscriptionData
from rmqd.wire.bodies.route import TopicRouteData
from rmqd.wire.bodies.running_info import (
    PROP_CONSUME_ORDERLY,
    PROP_CONSUME_TYPE,
    PROP_CONSUMER_START_TIMESTAMP,
    ConsumerRunningInfo,
    PopProcessQueueInfo,
    ProcessQueueInfo,
)
from rmqd.wire.bodies.settings import SubscriptionGroupConfig
from rmqd.wire.bodies.stats import Connection, ConsumerConnection
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.pop import ANY_QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker, as the name server and it itself say. None is what could not be learnt."""

    name: str
    master: str | None
    slaves: tuple[str, ...] = ()
    silence: str | None = None
    """Why its master does not answer; None where it does."""
    permission: int | None = None
    """Its brokerPermission, of PERM_READ and PERM_WRITE."""
    disk_used: float | None = None
    """How full the disk of its commit log is; 1.0 is full."""
    disk_limit: float = 1.0
    """From where on it stores nothing: its diskSpaceWarningLevelRatio."""
    clock_ahead_seconds: float | None = None
    """By how much its clock is before ours; it tells whole seconds."""
    makes_groups: bool = True
    """Whether it makes a group that connects and is not known: its autoCreateSubscriptionGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic that the group subscribes to. `error` says why its route is not known; `missing` that there is none."""

    topic: str
    route: TopicRouteData | None = None
    missing: bool = False
    error: str = ""
    queues: tuple[MessageQueue, ...] = ()
    """Those that consumers read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberFacts:
    """One member. `info` is None where it does not tell of itself, because it does not answer (`silence`) or cannot."""

    client_id: str
    connections: Mapping[str, tuple[Connection, ...]]
    """By the broker's name."""
    info: ConsumerRunningInfo | None = None
    silence: str | None = None

    @property
    def address(self) -> str:
        """From where it is connected."""
        return next((one.client_addr for known in self.connections.values() for one in known), "?")

    @property
    def subscriptions(self) -> Mapping[str, SubscriptionData] | None:
        """What it subscribes to, by topic, as it says itself."""
        return None if self.info is None else {one.topic: one for one in self.info.subscription_set}

    @property
    def orderly(self) -> bool | None:
        """Whether it takes messages in order."""
        value = None if self.info is None else self.info.properties.get(PROP_CONSUME_ORDERLY)
        return None if value is None else value == "true"

    @property
    def tells_queues(self) -> bool:
        """Whether it says which queues it has: Java's consumers that pull by themselves do not."""
        return self.info is not None and self.info.properties.get(PROP_CONSUME_TYPE) != ConsumeType.ACTIVELY

    @property
    def on_spark(self) -> bool:
        """Whether it is the driver of a group on Spark, which moves once a micro-batch, and locks nothing."""
        return self.info is not None and self.info.user_consumer_info.get("engine") == "spark"

    @property
    def paused(self) -> str:
        """What an operator has paused of it, as rmqd's members tell: "3 queues", or "" for nothing."""
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
        """One of its thresholds, under Java's name; the default of Java's client where it does not tell."""
        value = "" if self.info is None else self.info.properties.get(name, "")
        return int(value) if value.isdecimal() else default


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The group's place in one queue. `committed` is None where it never committed; `age_seconds` that of the oldest
    waiting message."""

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
class Look:
    """All that was seen at one moment."""

    group: str
    at: float
    """By our own clock."""
    name_servers: str = ""
    brokers: Mapping[str, BrokerFacts] = field(default_factory=dict)
    settings: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    """The group's, by the name of the broker that knows it."""
    views: Mapping[str, ConsumerConnection] = field(default_factory=dict)
    """What each broker knows of the members; those that know none are left out."""
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    members: Mapping[str, MemberFacts] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueFacts] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """POP or PULL by topic, by the broker's name; a topic that was never set is left out."""
    heads: Mapping[MessageQueue, SeenMessage] = field(default_factory=dict)
    """The first message that waits in a queue, for queues that stand still."""
    retried: tuple[SeenMessage, ...] = ()
    """The newest messages of the group's retry topic, where handlers failed lately."""

    @property
    def model(self) -> str:
        """The message model that members announced."""
        return next((view.message_model for view in self.views.values() if view.message_model), "CLUSTERING")

    @property
    def orderly(self) -> bool:
        """Whether all members that tell take messages in order."""
        orderly = [member.orderly for member in self.members.values() if member.orderly is not None]
        return bool(orderly) and all(orderly)

    def owners(self, queue: MessageQueue) -> list[MemberFacts]:
        """The members that say that they have a queue."""
        anywhere = MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE)
        return [
            member
            for member in self.members.values()
            if (info := member.info) is not None
            and (queue in info.mq_table or queue in info.mq_pop_table or anywhere in info.mq_pop_table)
        ]

    def pulled(self, queue: MessageQueue) -> ProcessQueueInfo | None:
        """What the owner of a queue says of it; None where no member pulls it, or more than one does."""
        pulled = [
            member.info.mq_table[queue]
            for member in self.owners(queue)
            if member.info and queue in member.info.mq_table
        ]
        return pulled[0] if len(pulled) == 1 else None

    def popped(self, queue: MessageQueue) -> list[PopProcessQueueInfo]:
        """What those say of a queue who pop it."""
        anywhere = MessageQueue(queue.topic, queue.broker_name, ANY_QUEUE)
        tables = [member.info.mq_pop_table for member in self.members.values() if member.info is not None]
        return [table[at] for table in tables for at in (queue, anywhere) if at in table]

    def place(self, queue: MessageQueue) -> int | None:
        """How far the group is: the owner may have finished more than what is committed.

        None where the group never committed, and has none of the messages: it may have begun at the queue's end, which
        Java's client tells some twenty seconds later.
        """
        committed, owner = self.queues[queue].committed, self.pulled(queue)
        if owner is None:
            return committed
        if committed is None and owner.commit_offset < 0:
            return owner.cached_msg_min_offset if owner.cached_msg_count else None
        return max(-1 if committed is None else committed, owner.commit_offset)

    def waiting(self, queue: MessageQueue) -> int:
        """How many messages of a queue are not finished."""
        ends = self.queues[queue]
        return max(0, ends.max - max(self.place(queue) or 0, ends.min))
