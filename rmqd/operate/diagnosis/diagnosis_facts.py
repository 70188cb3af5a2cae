"""The input of the diagnosis: a group, its members and brokers at one moment, as brokers and members report them.

Times are Unix seconds unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rmqd.client.group_reader import MemberReport, QueueLag
from rmqd.consumer.health.causes import Problem
from rmqd.operate.queries.message_queries import FoundMessage
from rmqd.runtime.plain_text import count_noun
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.group_bodies import ConsumerRunningInfo, PopProcessQueueInfo, ProcessQueueInfo
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.bodies.stats_bodies import ConsumerConnection
from rmqd.wire.message_queue import MessageQueue

SKEWED_SHARE: Final = 0.8
MIN_SKEWED: Final = 100
FAILING: Final = ((3, 0.5), (10, 0.1))
"""Pairs: failed attempts per minute, share of all attempts. A handler fails if it reaches both values of a pair."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that one rule found."""

    problem: Problem
    about: str = ""
    """The subject, such as a broker or topic. Findings in two snapshots with the same cause and subject are equal."""
    momentary: bool = False
    """Whether a healthy group may have this problem for a moment, so that only two snapshots prove it."""
    queues: frozenset[MessageQueue] = frozenset()
    """The queues in which messages wait because of this problem; empty if it is not about queues."""

    @property
    def key(self) -> tuple[str, str]:
        return self.problem.cause, self.about


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFacts:
    """One broker, as the name server and the broker report it. None means that a value is unknown."""

    name: str
    master: str | None
    slaves: tuple[str, ...] = ()
    silence: str | None = None
    """Why the broker's master does not respond; None if it responds."""
    permission: int | None = None
    """The broker's setting brokerPermission, with the bits PERM_READ and PERM_WRITE."""
    disk_used: float | None = None
    """The used share of the disk with the commit log; 1.0 is full."""
    disk_limit: float = 1.0
    """The used share at which the broker stops storing messages (diskSpaceWarningLevelRatio)."""
    clock_ahead_seconds: float | None = None
    """By how much the broker's clock is ahead of this machine's. The broker reports whole seconds."""
    makes_groups: bool = True
    """Whether the broker creates a group when its first member connects (autoCreateSubscriptionGroup)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """One topic that the group subscribes to. `missing`: it has no route. `error`: why its route could not be read."""

    topic: str
    route: TopicRouteData | None = None
    missing: bool = False
    error: str = ""
    queues: tuple[MessageQueue, ...] = ()
    """The topic's readable queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisSnapshot:
    """Everything that the rules know about a group at one moment."""

    group: str
    at: float
    """When the snapshot was taken, by this machine's clock."""
    name_servers: str = ""
    brokers: Mapping[str, BrokerFacts] = field(default_factory=dict)
    settings: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    """The group's settings by broker name, without brokers that do not know the group."""
    views: Mapping[str, ConsumerConnection] = field(default_factory=dict)
    """The connected members by broker name, without brokers that know no member."""
    topics: Mapping[str, TopicFacts] = field(default_factory=dict)
    members: Mapping[str, MemberReport] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueLag] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """POP or PULL by broker name and topic, without topics whose mode was never set."""
    heads: Mapping[MessageQueue, FoundMessage] = field(default_factory=dict)
    """The first waiting message of each stalled queue."""
    samples: Mapping[MessageQueue, tuple[str, ...]] = field(default_factory=dict)
    """The sharding keys, or keys, of the first waiting messages of each queue that `skewed` returns."""
    retried: tuple[FoundMessage, ...] = ()
    """The newest messages of the group's retry topic; empty unless members report recent failures."""

    def skewed(self) -> dict[MessageQueue, float]:
        """Return the queues that have at least 80 % of their topic's waiting messages, and the share of each."""
        found: dict[MessageQueue, float] = {}
        for topic, facts in self.topics.items():
            waiting = {queue: self.waiting(queue) for queue in self.queues if queue.topic == topic}
            total, most = sum(waiting.values()), max(waiting, key=waiting.__getitem__, default=None)
            if most is not None and len(facts.queues) > 1 and waiting[most] >= max(MIN_SKEWED, SKEWED_SHARE * total):
                found[most] = waiting[most] / total
        return found

    @property
    def model(self) -> str:
        """The message model from the members' heartbeats; CLUSTERING if there is no member."""
        return next((view.message_model for view in self.views.values() if view.message_model), "CLUSTERING")

    @property
    def orderly(self) -> bool:
        """Whether all members that report their consume mode are orderly, and at least one does report it."""
        orderly = [member.orderly for member in self.members.values() if member.orderly is not None]
        return bool(orderly) and all(orderly)

    @property
    def infos(self) -> Mapping[str, ConsumerRunningInfo]:
        """The members' reports by client id, without members that sent none."""
        return {client_id: one.info for client_id, one in self.members.items() if one.info is not None}

    @property
    def rates(self) -> tuple[float, float]:
        """How many messages per second all members' handlers handled, and failed to handle, in the last minute."""
        statuses = [one for info in self.infos.values() for one in info.status_table.values()]
        return sum(one.consume_ok_tps for one in statuses), sum(one.consume_failed_tps for one in statuses)

    def owners(self, queue: MessageQueue) -> list[MemberReport]:
        """Return the members that report owning a queue."""
        return [member for member in self.members.values() if member.owns(queue)]

    def pulled(self, queue: MessageQueue) -> ProcessQueueInfo | None:
        """Return the owner's report on a queue; None if no member, or more than one, pulls the queue."""
        pulled = [one for member in self.members.values() if (one := member.pulled_queue_info(queue)) is not None]
        return pulled[0] if len(pulled) == 1 else None

    def popped(self, queue: MessageQueue) -> list[PopProcessQueueInfo]:
        """Return the reports on a queue from the members that pop it."""
        return [one for member in self.members.values() for one in member.popped_queue_infos(queue)]

    def group_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's offset in a queue: the higher one of the stored offset and the owner's own offset.

        None if the group has no stored offset, and the owner reports neither an offset nor cached messages. The owner
        may have started at the queue's end: Java's client does not report this offset for about twenty seconds.
        """
        committed, owner = self.queues[queue].committed, self.pulled(queue)
        if owner is None:
            return committed
        if committed is None and owner.commit_offset < 0:
            return owner.cached_msg_min_offset if owner.cached_msg_count else None
        return max(-1 if committed is None else committed, owner.commit_offset)

    def waiting(self, queue: MessageQueue) -> int:
        """Return how many messages of a queue the group has not finished."""
        ends = self.queues[queue]
        return max(0, ends.max - max(self.group_offset(queue) or 0, ends.min))


def queues_text(queues: Iterable[MessageQueue]) -> str:
    """Return a text that names the queues by topic and broker, such as `orders on broker-a, queues 0, 3`."""
    by_place: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        by_place.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    return "; ".join(
        f"{topic} on {broker}, queue{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"
        for (topic, broker), ids in by_place.items()
    )


def wait(number: int) -> str:
    """Return the text `1 message waits`, `2 messages wait` and so on."""
    return f"{count_noun(number, 'message')} {'waits' if number == 1 else 'wait'}"
