"""How far a broker has delivered the messages of each delay level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from rmqd.errors import ProtocolError
from rmqd.wire import fields
from rmqd.wire.bodies.base import Body, Wire
from rmqd.wire.bodies.data_version import DataVersion


def _by_level(value: object, what: str) -> dict[int, int]:
    """Read levels and offsets. Unlike elsewhere, every text that `int` accepts is a number."""
    try:
        return {int(level): int(offset) for level, offset in fields.as_object(value, what).items()}
    except (TypeError, ValueError) as error:
        raise ProtocolError(f"delay offsets that are not numbers: {error}") from error


@dataclass(frozen=True, slots=True)
class DelayOffsetSerializeWrapper(Body, bare_keys=True):
    """The response to GET_ALL_DELAY_OFFSET (45): the offset of the next message to deliver, by delay level from 1."""

    offset_table: Annotated[Mapping[int, int], Wire(read=_by_level)]
    data_version: DataVersion = field(default_factory=DataVersion)
