"""A broker's producers: those of one group (204), and all of them (328)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.stats import Connection


@dataclass(frozen=True, slots=True)
class ProducerConnection:
    """A group's producers."""

    connection_set: tuple[Connection, ...]

    def to_json(self) -> bytes:
        """The body of the reply to 204."""
        return loose_json.dumps({"connectionSet": [connection.to_dict() for connection in self.connection_set]})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 204. Raises ProtocolError."""
        items = fields.items(fields.body_object(body), "connectionSet")
        return cls(tuple(Connection.from_dict(item) for item in items))


@dataclass(frozen=True, slots=True)
class ProducerInfo:
    """A producer; its last heartbeat in milliseconds since 1970."""

    client_id: str
    remote_ip: str
    language: str
    version: int
    last_update_timestamp: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {
            "clientId": self.client_id,
            "language": self.language,
            "lastUpdateTimestamp": self.last_update_timestamp,
            "remoteIP": self.remote_ip,
            "version": self.version,
        }

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a producer")
        return cls(
            fields.text(data, "clientId", ""),
            fields.text(data, "remoteIP", ""),
            fields.text(data, "language", "OTHER"),
            fields.integer(data, "version", 0),
            fields.integer(data, "lastUpdateTimestamp", 0),
        )


@dataclass(frozen=True, slots=True)
class ProducerTableInfo:
    """Every group's producers."""

    data: dict[str, tuple[ProducerInfo, ...]]

    def to_json(self) -> bytes:
        """The body of the reply to 328."""
        groups = {group: [producer.to_dict() for producer in producers] for group, producers in self.data.items()}
        return loose_json.dumps({"data": groups})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 328. Raises ProtocolError."""
        groups = fields.mapping(fields.body_object(body), "data")
        return cls(
            {
                fields.as_text(group, "a group"): tuple(
                    ProducerInfo.from_dict(item) for item in fields.items(groups, group)
                )
                for group in groups
            }
        )
