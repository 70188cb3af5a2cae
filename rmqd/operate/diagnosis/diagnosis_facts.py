"""The facts about a group and its brokers at one moment, as brokers and members report them.

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
"""A handler fails if so many attempts of the last minute did, and so large a share: either pair is enough."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that one rule found."""

    problem: Problem
    about: str = ""
    """Findings with the same cause and subject are the same one, seen at different moments."""
    momentary: bool = False
    """Whether it may be true for a moment in a healthy group, so that it must be seen twice."""
    queues: frozenset[MessageQueue] = frozenset()
    """The queues that are stalled because of it, if it is about queues."""

    @property
    def key(self) -> tuple[str, str]:
        """The cause and the subject of the finding."""
        return self.problem.cause, self.about


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
    members: Mapping[str, MemberReport] = field(default_factory=dict)
    queues: Mapping[MessageQueue, QueueLag] = field(default_factory=dict)
    modes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """POP or PULL by topic and broker name, without topics whose mode was never set."""
    heads: Mapping[MessageQueue, FoundMessage] = field(default_factory=dict)
    """The first waiting message of a stalled queue."""
    samples: Mapping[MessageQueue, tuple[str, ...]] = field(default_factory=dict)
    """The keys of the first waiting messages of the queue with most of its topic's lag."""
    retried: tuple[FoundMessage, ...] = ()
    """The latest messages of the group's retry topic, where handlers failed recently."""

    def skewed(self) -> dict[MessageQueue, float]:
        """Return the queues with nearly all waiting messages of their topic, and their share."""
        found: dict[MessageQueue, float] = {}
        for topic, facts in self.topics.items():
            waiting = {queue: self.waiting(queue) for queue in self.queues if queue.topic == topic}
            total, most = sum(waiting.values()), max(waiting, key=waiting.__getitem__, default=None)
            if most is not None and len(facts.queues) > 1 and waiting[most] >= max(MIN_SKEWED, SKEWED_SHARE * total):
                found[most] = waiting[most] / total
        return found

    @property
    def model(self) -> str:
        """The message model that the members registered."""
        return next((view.message_model for view in self.views.values() if view.message_model), "CLUSTERING")

    @property
    def orderly(self) -> bool:
        """Whether all members that report it consume in order."""
        orderly = [member.orderly for member in self.members.values() if member.orderly is not None]
        return bool(orderly) and all(orderly)

    @property
    def infos(self) -> Mapping[str, ConsumerRunningInfo]:
        """The reports of the members that report themselves."""
        return {client_id: one.info for client_id, one in self.members.items() if one.info is not None}

    @property
    def rates(self) -> tuple[float, float]:
        """How many messages per second handlers finished and failed in the last minute."""
        statuses = [one for info in self.infos.values() for one in info.status_table.values()]
        return sum(one.consume_ok_tps for one in statuses), sum(one.consume_failed_tps for one in statuses)

    def owners(self, queue: MessageQueue) -> list[MemberReport]:
        """Return the members that report owning a queue."""
        return [member for member in self.members.values() if member.owns(queue)]

    def pulled(self, queue: MessageQueue) -> ProcessQueueInfo | None:
        """Return the owner's values for a queue; None if no member, or more than one, pulls it."""
        pulled = [one for member in self.members.values() if (one := member.pulled(queue)) is not None]
        return pulled[0] if len(pulled) == 1 else None

    def popped(self, queue: MessageQueue) -> list[PopProcessQueueInfo]:
        """Return the values of the members that pop a queue."""
        return [one for member in self.members.values() for one in member.popped(queue)]

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


def places(queues: Iterable[MessageQueue]) -> str:
    """Return queues by topic and broker: `orders on broker-a, queues 0, 3`."""
    by_place: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues):
        by_place.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    return "; ".join(
        f"{topic} on {broker}, queue{'' if len(ids) == 1 else 's'} {', '.join(map(str, ids))}"
        for (topic, broker), ids in by_place.items()
    )


def wait(number: int) -> str:
    """Return `1 message waits` or `2 messages wait`."""
    return f"{count_noun(number, 'message')} {'waits' if number == 1 else 'wait'}"
