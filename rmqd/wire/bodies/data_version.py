"""DataVersion: how often a table of a broker changed, by which others tell whether they have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from rmqd.wire import fields


@dataclass(frozen=True, slots=True)
class DataVersion:
    """`counter` goes up with each change; `timestamp` is the last one's, in milliseconds."""

    counter: int = 0
    timestamp: int = 0
    state_version: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_dict(cls, value: object) -> Self:
        """Read the JSON object. Raises ProtocolError."""
        data = fields.as_object(value, "a data version")
        return cls(
            fields.integer(data, "counter", 0),
            fields.integer(data, "timestamp", 0),
            fields.integer(data, "stateVersion", 0),
        )
