"""All brokers that a name server knows (the reply to 106), lists of topics (206 …), and tables of texts (28, 219)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.route import BrokerData


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
            },
            bare_keys=True,
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
    """Topic names, and in some lists the address of the broker that they are from."""

    topics: tuple[str, ...]
    broker_addr: str | None = None

    def to_json(self) -> bytes:
        """The body of the replies to 206, 224, 304, 305 and 343."""
        value: dict[str, Any] = {"topicList": list(self.topics)}
        return loose_json.dumps(value if self.broker_addr is None else {"brokerAddr": self.broker_addr, **value})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the replies to 206, 224, 304, 305 and 343. Raises ProtocolError."""
        data = fields.body_object(body)
        return cls(fields.texts(data, "topicList"), fields.optional_text(data, "brokerAddr"))


@dataclass(frozen=True, slots=True)
class KVTable:
    """Texts by name: what a broker tells about itself (28), or a namespace of the name server (219)."""

    table: dict[str, str]

    def to_json(self) -> bytes:
        """The body of the replies to 28 and 219."""
        return loose_json.dumps({"table": self.table})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the replies to 28 and 219. Raises ProtocolError."""
        return cls(fields.text_mapping(fields.body_object(body), "table"))
