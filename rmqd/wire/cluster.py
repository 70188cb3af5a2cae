"""All brokers that a name server knows (the reply to 106), and its topics (206)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rmqd.wire import fields, loose_json
from rmqd.wire.route import BrokerData


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Brokers by name, and broker names by cluster. Written in the loose dialect whatever the asker's version."""

    broker_addr_table: dict[str, BrokerData]
    cluster_addr_table: dict[str, tuple[str, ...]]

    def to_json(self) -> bytes:
        """The body of the reply to 106."""
        return loose_json.dumps(
            {
                "brokerAddrTable": {name: broker.to_dict() for name, broker in self.broker_addr_table.items()},
                "clusterAddrTable": self.cluster_addr_table,
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 106. Raises ProtocolError."""
        data = fields.body_object(body)
        clusters = fields.mapping(data, "clusterAddrTable")
        return cls(
            broker_addr_table={
                fields.as_text(name, "a broker name"): BrokerData.from_dict(broker)
                for name, broker in fields.mapping(data, "brokerAddrTable").items()
            },
            cluster_addr_table={
                fields.as_text(name, "a cluster name"): fields.texts(clusters, name) for name in clusters
            },
        )


@dataclass(frozen=True, slots=True)
class TopicList:
    """Topic names."""

    topics: tuple[str, ...]

    def to_json(self) -> bytes:
        """The body of the reply to 206."""
        return loose_json.dumps({"topicList": list(self.topics)})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 206. Raises ProtocolError."""
        return cls(fields.texts(fields.body_object(body), "topicList"))
