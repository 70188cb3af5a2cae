"""Who consumes and who produces (`ConsumerManager.java`, `ConsumerGroupInfo.java`, `ProducerManager.java`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from rmqd.broker.channel import Channel
from rmqd.codes import LanguageCode
from rmqd.wire.heartbeat import ConsumerData, SubscriptionData


@dataclass(slots=True)
class ClientChannel:
    """A client's connection as its last heartbeat told it. `heard_at` is loop time in seconds."""

    channel: Channel
    client_id: str
    language: LanguageCode
    version: int
    heard_at: float


@dataclass(slots=True)
class ConsumerGroupInfo:
    """A group with at least one connected member. The last heartbeat of any member holds for all of them."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    channels: dict[Channel, ClientChannel] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        """One for each connection."""
        return [client.client_id for client in self.channels.values()]

    def client(self, client_id: str) -> ClientChannel | None:
        """A member by its client id."""
        return next((client for client in self.channels.values() if client.client_id == client_id), None)


class ConsumerManager:
    """Groups by name while they have members."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroupInfo] = {}

    def get(self, group: str) -> ConsumerGroupInfo | None:
        """A group with members."""
        return self._groups.get(group)

    def all(self) -> list[ConsumerGroupInfo]:
        """Every group with members."""
        return list(self._groups.values())

    def register(self, data: ConsumerData, client: ClientChannel) -> bool:
        """A member's heartbeat; says whether members or topics changed, so that the others are to be told."""
        info = self._groups.get(data.group_name)
        if info is None:
            info = self._groups[data.group_name] = ConsumerGroupInfo(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where
            )
        info.consume_type, info.message_model = data.consume_type, data.message_model
        info.consume_from_where = data.consume_from_where
        changed = client.channel not in info.channels
        info.channels[client.channel] = client
        return self._subscribe(info, data) or changed

    def unregister(self, group: str, channel: Channel) -> bool:
        """A member leaves; says whether it was one."""
        info = self._groups.get(group)
        if info is None or info.channels.pop(channel, None) is None:
            return False
        if not info.channels:
            del self._groups[group]
        return True

    def groups_of(self, channel: Channel) -> list[str]:
        """The groups that a connection is a member of."""
        return [name for name, info in self._groups.items() if channel in info.channels]

    @staticmethod
    def _subscribe(info: ConsumerGroupInfo, data: ConsumerData) -> bool:
        new = {one.topic: one for one in data.subscription_data_set}
        changed = new.keys() != info.subscriptions.keys()
        for topic in info.subscriptions.keys() - new.keys():
            del info.subscriptions[topic]
        for topic, one in new.items():
            known = info.subscriptions.get(topic)
            if known is None or one.sub_version > known.sub_version:
                info.subscriptions[topic] = one
        return changed


class ProducerManager:
    """Producers by group."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Channel, ClientChannel]] = {}

    def register(self, group: str, client: ClientChannel) -> None:
        """A producer's heartbeat."""
        self._groups.setdefault(group, {})[client.channel] = client

    def unregister(self, group: str, channel: Channel) -> None:
        """A producer leaves."""
        clients = self._groups.get(group, {})
        clients.pop(channel, None)
        if not clients:
            self._groups.pop(group, None)

    def get(self, group: str) -> list[ClientChannel]:
        """The producers of a group."""
        return list(self._groups.get(group, {}).values())

    def forget(self, channel: Channel) -> None:
        """A connection ended."""
        for group in [name for name, clients in self._groups.items() if channel in clients]:
            self.unregister(group, channel)
