"""The subscribers of lite topics, and their notifications (`LiteSubscriptionRegistry`, `LiteEventDispatcher`).

A member is notified of a lite topic when a message arrives, when the member subscribes, and when all popped messages
of the topic are settled or visible again. The member's next pop reads these lite topics. If several members of a group
subscribe to a lite topic, one of them is chosen at random and notified.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from rmqd.broker.consumer_registry import SubscriptionGroupManager
from rmqd.broker.peer_channel import Channel
from rmqd.wire.headers.pop_headers import NotifyUnsubscribeLiteRequestHeader
from rmqd.wire.lite_topic import (
    EXCLUSIVE_MODEL,
    LITE_TOPIC_SEPARATOR,
    MODEL_ATTRIBUTE,
    WILDCARD_ATTRIBUTE,
    parent_topic_of,
)

EXPIRE_SECONDS: Final = 180.0  # the lifetime of an unrenewed subscription; Java: liteSubscriptionCheckTimeoutMills
CHECK_SECONDS: Final = 1.0  # Java: liteEventCheckInterval
INACTIVE_SECONDS: Final = 10.0  # if a notified member does not pop within this time, another member is notified


@dataclass(slots=True)
class _Member:
    """A client's subscription to lite topics. `notified` has the queues that the client's next pop reads, in order."""

    group: str
    topic: str
    subscribed_at: float
    popped_at: float
    wanted: set[str] = field(default_factory=set)
    takes_all: bool = False
    notified: dict[str, None] = field(default_factory=dict)

    def wants(self, queue: str) -> bool:
        """Return whether the member subscribed to the lite topic of a queue."""
        return parent_topic_of(queue) == self.topic if self.takes_all else queue in self.wanted


class LiteSubscriptions:
    """The subscriptions of all clients to lite topics, by client id.

    `wake` is called with a client id and a group to answer the client's held pop. In an exclusive group, a lite topic
    has one subscriber: if another member subscribes, the previous subscriber receives NOTIFY_UNSUBSCRIBE_LITE (200073).
    """

    def __init__(
        self,
        groups: SubscriptionGroupManager,
        now: Callable[[], float],
        queues_below: Callable[[str], Collection[str]],
        wake: Callable[[str, str], object],
    ) -> None:
        self._groups = groups
        self._now = now
        self._queues_below = queues_below
        self._wake = wake
        self._members: dict[str, _Member] = {}
        self._channels: dict[str, Channel] = {}

    def note_channel(self, client_id: str, channel: Channel) -> None:
        """Record the connection on which a client subscribed."""
        self._channels[client_id] = channel

    def add(self, client_id: str, group: str, topic: str, queues: Collection[str]) -> None:
        """Subscribe a client to more lite topics. In an exclusive group, other members lose these topics."""
        member = self._member(client_id, group, topic)
        if self._attribute(group, MODEL_ATTRIBUTE) == EXCLUSIVE_MODEL:
            for queue in queues:
                self._exclude(client_id, group, queue)
        self._subscribe(member, set(queues) - member.wanted)

    def remove(self, client_id: str, queues: Collection[str]) -> None:
        if (member := self._members.get(client_id)) is not None:
            member.wanted -= set(queues)

    def replace(self, client_id: str, group: str, topic: str, queues: Collection[str]) -> None:
        """Subscribe a client to exactly these lite topics; in a wildcard group, to all lite topics of `topic`."""
        member = self._member(client_id, group, topic)
        if self.is_wildcard(group):
            before, member.takes_all = member.takes_all, True
            self._subscribe(member, set() if before else set(self._queues_below(topic)))
            return
        member.wanted &= set(queues)
        self._subscribe(member, set(queues) - member.wanted)

    def remove_client(self, client_id: str) -> None:
        """Remove a client's subscription, and send the notifications that it did not read to other members."""
        self._channels.pop(client_id, None)
        if (member := self._members.pop(client_id, None)) is not None:
            for queue in member.notified:
                self.notify(queue, member.group)

    def is_wildcard(self, group: str) -> bool:
        """Return whether the group subscribes to all lite topics of its parent topic."""
        return bool(self._attribute(group, WILDCARD_ATTRIBUTE))

    def notify(self, queue: str, group: str | None = None) -> None:
        """Notify one member of each group (or only of `group`) that subscribes to the lite topic of this queue."""
        by_group: dict[str, list[str]] = {}
        for client_id, member in self._members.items():
            if group in (None, member.group) and member.wants(queue):
                by_group.setdefault(member.group, []).append(client_id)
        for name, client_ids in by_group.items():
            active = [one for one in client_ids if not self._is_inactive(self._members[one])]
            self._notify(random.choice(active or client_ids), name, queue)

    def take_notified_queues(self, client_id: str) -> Iterator[str]:
        """Yield each queue that a client was notified of, and forget the notification: the client's pop reads it."""
        member = self._members.get(client_id)
        if member is None:
            return
        member.popped_at = self._now()
        for queue in list(member.notified):
            del member.notified[queue]
            yield queue

    def expire(self) -> None:
        """Remove clients with expired subscriptions. Notify other members instead of clients that do not pop."""
        now = self._now()
        for client_id in [key for key, one in self._members.items() if now - one.subscribed_at > EXPIRE_SECONDS]:
            self.remove_client(client_id)
        for member in [one for one in self._members.values() if one.notified and self._is_inactive(one)]:
            notified, member.notified = member.notified, {}
            for queue in notified:
                self.notify(queue, member.group)

    async def run(self) -> None:
        """Call `expire` every second, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self.expire()

    def _member(self, client_id: str, group: str, topic: str) -> _Member:
        now = self._now()
        member = self._members.get(client_id)
        if member is None:
            member = self._members[client_id] = _Member(group, topic, now, now)
        member.subscribed_at = now
        return member

    def _subscribe(self, member: _Member, queues: Collection[str]) -> None:
        """Subscribe a member to more queues. If a queue exists already, notify one of its subscribers."""
        if not member.takes_all:
            member.wanted |= set(queues)
        there = set(self._queues_below(member.topic))
        for queue in sorted(queues):
            if queue in there:
                self.notify(queue, member.group)

    def _exclude(self, client_id: str, group: str, queue: str) -> None:
        for other, member in self._members.items():
            if other != client_id and member.group == group and queue in member.wanted:
                member.wanted.discard(queue)
                name = queue.rpartition(LITE_TOPIC_SEPARATOR)[2]
                header = NotifyUnsubscribeLiteRequestHeader(lite_topic=name, consumer_group=group, client_id=other)
                if (channel := self._channels.get(other)) is not None and not channel.closed:
                    channel.send_oneway(header.code, header.ext_fields())

    def _notify(self, client_id: str, group: str, queue: str) -> None:
        self._members[client_id].notified[queue] = None
        self._wake(client_id, group)

    def _is_inactive(self, member: _Member) -> bool:
        return self._now() - member.popped_at > INACTIVE_SECONDS

    def _attribute(self, group: str, name: str) -> str | None:
        config = self._groups.get(group)
        return None if config is None else config.attributes.get(name)
