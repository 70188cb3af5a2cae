"""Reads the resets that brokers push to members with RESET_CONSUMER_CLIENT_OFFSET, large ones in a thread."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from rmqd.client.remoting.parsing import parsed
from rmqd.errors import ProtocolError
from rmqd.wire.bodies.group import ResetOffsetBody
from rmqd.wire.command import RemotingCommand
from rmqd.wire.limits import check_reset_size
from rmqd.wire.message_queue import MessageQueue


@dataclass(frozen=True, slots=True)
class PushedReset:
    """An operator's new offsets for the queues of a topic. All members of the group get the same list."""

    topic: str
    offsets: dict[MessageQueue, int]
    named: int
    """The number of queues in the broker's list, including queues of other topics."""


class PushedResets:
    """Reads the resets of one group in order of arrival."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, command: RemotingCommand) -> PushedReset:
        """Read a reset after the previous ones. Raises ProtocolError."""
        async with self._reading:  # a small reset must not overtake a large one
            return await parsed(partial(_read, command.ext_fields.get("topic", "")), command.body)


def _read(topic: str, body: bytes) -> PushedReset:
    check_reset_size(body)
    table = ResetOffsetBody.from_json(body).offset_table
    if any(offset < 0 for offset in table.values()):
        raise ProtocolError("a reset must not be to an offset below 0")
    return PushedReset(topic, {queue: offset for queue, offset in table.items() if queue.topic == topic}, len(table))
