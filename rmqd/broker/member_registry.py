"""Members of consumer and producer groups (`ConsumerManager`, `ConsumerGroupInfo`, `ProducerManager`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from rmqd.broker.peer_channel import Channel
from rmqd.codes import LanguageCode
from rmqd.wire.bodies.heartbeat_data import ConsumerData, MessageModel, SubscriptionData
from rmqd.wire.topics import pop_retry_topic, pop_retry_topic_v2


@dataclass(slots=True)
class ClientChannel:
    """A client's connection, with the values of its heartbeats. `heard_at` is the loop time of the last heartbeat."""

    channel: Channel
    client_id: str
    language: LanguageCode
    version: int
    heard_at: float


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A consumer group with at least one member. Each member's heartbeat replaces the group's subscriptions."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    channels: dict[Channel, ClientChannel] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        """The client ids of the members, one for each connection, in the order in which they joined."""
        return [client.client_id for client in self.channels.values()]

    def client(self, client_id: str) -> ClientChannel | None:
        return next((client for client in self.channels.values() if client.client_id == client_id), None)

    def join(self, client: ClientChannel) -> bool:
        """Add a member, or record its heartbeat. Returns whether its connection is new to the group."""
        known = self.channels.get(client.channel)
        if known is not None and known.client_id == client.client_id:
            known.heard_at = client.heard_at
        else:
            self.channels[client.channel] = client
        return known is None

    def subscribe(self, new: Collection[SubscriptionData]) -> bool:
        """Replace the group's subscriptions. Returns whether topics were added or removed."""
        topics = {one.topic for one in new}
        changed = topics != self.subscriptions.keys()
        for topic in self.subscriptions.keys() - topics:
            del self.subscriptions[topic]
        for one in new:
            known = self.subscriptions.get(one.topic)
            if known is None or one.sub_version > known.sub_version:
                self.subscriptions[one.topic] = one
        return changed


class ConsumerManager:
    """The consumer groups that have members.

    `changed` is called with a group's name and the connections of its current members when the members have changed.
    """

    def __init__(self, changed: Callable[[str, Collection[Channel]], None]) -> None:
        self._changed = changed
        self._groups: dict[str, ConsumerGroupInfo] = {}
        self._popped: set[tuple[str, str]] = set()

    def get(self, group: str) -> ConsumerGroupInfo | None:
        """Return the group with this name; None if it has no members."""
        return self._groups.get(group)

    def all(self) -> list[ConsumerGroupInfo]:
        return list(self._groups.values())

    def note_popped(self, group: str, topic: str) -> None:
        """Record that a group pops a topic. `may_consume` is then True for the topic and its retry topics."""
        for one in (topic, pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic)):
            self._popped.add((group, one))

    def may_consume(self, group: str, topic: str) -> bool:
        """Return whether the group subscribes to the topic or pops it; True if its subscriptions are unknown."""
        info = self._groups.get(group)
        known = info is None or not info.subscriptions or topic in info.subscriptions
        return known or (group, topic) in self._popped

    def find_client(self, group: str, client_id: str) -> ClientChannel | None:
        info = self._groups.get(group)
        return None if info is None else info.client(client_id)

    def register(
        self, data: ConsumerData, client: ClientChannel, *, notify: bool = True, without_sub: bool = False
    ) -> None:
        """Handle a member's heartbeat. A heartbeat `without_sub` leaves the group's subscriptions unchanged."""
        new = ConsumerGroupInfo(data.group_name, data.consume_type, data.message_model, data.consume_from_where)
        info = self._groups.setdefault(data.group_name, new)
        info.consume_type, info.message_model = data.consume_type, data.message_model
        info.consume_from_where = data.consume_from_where
        changed = info.join(client)
        if not without_sub:
            changed = info.subscribe(data.subscription_data_set) or changed
        if changed and notify:
            self._notify(info)

    def unregister(self, group: str, channel: Channel, *, notify: bool = True) -> None:
        """Remove a connection from a group. The members are notified even if the connection was not a member."""
        info = self._groups.get(group)
        if info is not None:
            self._remove(info, channel)
            if notify:
                self._notify(info)

    def channel_closed(self, channel: Channel) -> None:
        """Remove a closed connection from its groups, and notify the other members whatever the groups' settings."""
        for info in self.all():
            if self._remove(info, channel):
                self._notify(info)

    def remove_silent(self, heard_before: float) -> list[ClientChannel]:
        """Remove and return members without a heartbeat since `heard_before` (loop time). No member is notified."""
        silent = [
            (info, client) for info in self.all() for client in info.channels.values() if client.heard_at < heard_before
        ]
        for info, client in silent:
            self._remove(info, client.channel)
        return [client for _, client in silent]

    def _remove(self, info: ConsumerGroupInfo, channel: Channel) -> bool:
        was_member = info.channels.pop(channel, None) is not None
        if not info.channels:
            self._groups.pop(info.group, None)
        return was_member

    def _notify(self, info: ConsumerGroupInfo) -> None:
        if info.message_model != MessageModel.BROADCASTING:  # broadcasting members do not share queues
            self._changed(info.group, info.channels.keys())


class ProducerManager:
    """The connected producers by producer group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Channel, ClientChannel]] = {}

    def get(self, group: str) -> list[ClientChannel]:
        return list(self._groups.get(group, {}).values())

    def all(self) -> dict[str, list[ClientChannel]]:
        return {group: list(clients.values()) for group, clients in self._groups.items()}

    def register(self, group: str, client: ClientChannel) -> None:
        """Add a producer, or record its heartbeat."""
        known = self._groups.setdefault(group, {}).setdefault(client.channel, client)
        known.heard_at = client.heard_at

    def unregister(self, group: str, channel: Channel) -> None:
        clients = self._groups.get(group, {})
        clients.pop(channel, None)
        if not clients:
            self._groups.pop(group, None)

    def channel_closed(self, channel: Channel) -> None:
        """Remove the producers of a closed connection."""
        for group in [name for name, clients in self._groups.items() if channel in clients]:
            self.unregister(group, channel)

    def remove_silent(self, heard_before: float) -> list[ClientChannel]:
        """Remove and return producers without a heartbeat since `heard_before` (loop time)."""
        silent = [
            (group, client)
            for group, clients in self._groups.items()
            for client in clients.values()
            if client.heard_at < heard_before
        ]
        for group, client in silent:
            self.unregister(group, client.channel)
        return [client for _, client in silent]
