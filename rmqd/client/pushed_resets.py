"""Reads the resets that brokers push to a group's members (220), large ones beside the event loop."""

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
    """Where an operator wants the queues of a topic to go on; all members of the group get the same list."""

    topic: str
    offsets: dict[MessageQueue, int]
    named: int
    """Of how many queues the broker told, those of other topics included."""


class PushedResets:
    """The resets of one group, in the order in which they came."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()

    async def read(self, command: RemotingCommand) -> PushedReset:
        """Read one, after those before it. Raises ProtocolError."""
        async with self._reading:  # a small one must not overtake a large one
            return await parsed(partial(_read, command.ext_fields.get("topic", "")), command.body)


def _read(topic: str, body: bytes) -> PushedReset:
    check_reset_size(body)
    table = ResetOffsetBody.from_json(body).offset_table
    if any(offset < 0 for offset in table.values()):
        raise ProtocolError("an offset to go on at must not be below 0")
    return PushedReset(topic, {queue: offset for queue, offset in table.items() if queue.topic == topic}, len(table))
