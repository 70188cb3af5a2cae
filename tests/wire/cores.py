"""A comparison of the two cores: both decode the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rmqd.errors import ProtocolError
from rmqd.wire import core
from rmqd.wire.command import RemotingCommand, decode_command
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.message import Message

QUEUE: Final = MessageQueue("T", "b", 0)


@contextmanager
def use_core(native: core.NativeCore | None) -> Iterator[None]:
    """Decode with this core inside the block; None is the Python code."""
    before, core.native = core.native, native
    try:
        yield
    finally:
        core.native = before


def assert_cores_agree(payload: bytes) -> None:
    """Assert that both cores read the same from the payload of a frame. Passes if no native core is built."""
    with use_core(None):
        expected = _everything(payload)
    assert _everything(payload) == expected


def _everything(payload: bytes) -> object:
    """Return all decoded values of a pull response, or the error."""
    try:
        command = decode_command(payload)
    except ProtocolError as error:
        return str(error)
    block = frame_messages(payload, QUEUE, command.body_start)
    slots = [_fields(command, name) for name in RemotingCommand.__slots__]
    messages = [_fields_of(message) for message in block.messages]
    corrupt = [(_fields_of(one.message), one.reason, one.hides_rest) for one in block.corrupt]
    return slots, list(command.ext_fields), messages, corrupt, block.broken_reason, block.runs, block.is_closed


def _fields_of(message: Message) -> list[object]:
    names = [*Message.__slots__, *Message.__mro__[1].__slots__]  # type: ignore[attr-defined]
    return [type(message), *(_fields(message, name) for name in names if name != "block")]


def _fields(owner: object, name: str) -> tuple[type, object]:
    value = getattr(owner, name, None)  # some slots are filled later
    return type(value), value
