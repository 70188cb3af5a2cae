"""How far a broker has delivered its delay levels (45)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from rmqd.errors import ProtocolError
from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.data_version import DataVersion


@dataclass(frozen=True, slots=True)
class DelayOffsetSerializeWrapper:
    """The offset of the next message to deliver, by delay level from 1 on."""

    offset_table: Mapping[int, int]
    data_version: DataVersion = field(default_factory=DataVersion)

    def to_json(self) -> bytes:
        """The body of the reply to 45."""
        value = {"dataVersion": self.data_version.to_dict(), "offsetTable": dict(self.offset_table)}
        return loose_json.dumps(value, bare_keys=True)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read the body of the reply to 45. Raises ProtocolError."""
        data = fields.body_object(body)
        offsets = fields.mapping(data, "offsetTable")
        try:
            table = {int(level): int(offset) for level, offset in offsets.items()}
        except (TypeError, ValueError) as error:
            raise ProtocolError(f"delay offsets that are no numbers: {error}") from error
        return cls(table, DataVersion.from_dict(fields.mapping(data, "dataVersion")))
