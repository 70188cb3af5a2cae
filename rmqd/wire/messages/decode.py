"""Decoding of the records in a response into messages, with a check of the lengths and CRC of each record.

The total size of a record (`record` has the layout) must agree with the lengths of body, topic and properties. So a
damaged length is found at once, before the next record is searched at a wrong position. The magic must be one of
RocketMQ's two magics. The CRC protects the body; no checksum protects the other fields. So this module rejects records
with unknown bits in the sys flag, because such bits may change the meaning of the body. `pull_walk` compares the queue
offsets with the response's header. A record that cannot be decoded becomes a CorruptMessage, whose body is all of the
record's bytes.

A message keeps positions in the response's bytes, and fields are read on access. The loop over the records is the
hottest loop of the program. For the usual record, with two IPv4 hosts, it reads the whole head with one `unpack`, and
calls no Python function. The native core (`wire/core.py`), if there is one, decodes plain records before this loop.

*Light message queues* (LMQ), such as `%LMQ%room-7`, contain messages that are stored in other topics.

A message lists light queues in its property INNER_MULTI_DISPATCH. It is stored once, in its own topic. Brokers with
`enableLmq` and `enableMultiDispatch` also index it in each light queue. They write its offsets in the light queues into
the property INNER_MULTI_QUEUE_OFFSET, in the same order. A pull of a light queue returns the stored records, with the
topic, queue id and offset of the message's own topic in their heads. (Java: `LmqDispatch`; `MQClientAPIImpl` for pops.)
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from struct import error as StructError
from typing import Final
from zlib import crc32

from rmqd.errors import ProtocolError
from rmqd.wire import core
from rmqd.wire.fields import parse_integer
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.compression import BlockDecompression
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.message import CorruptMessage, Message, MessageBlock
from rmqd.wire.messages.properties import (
    BORN_HOST_V6,
    ENCODED_FLAGS,
    INNER_BATCH,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    KNOWN_FLAGS,
    NEED_UNWRAP,
    STORE_HOST_V6,
)
from rmqd.wire.messages.record import MAGIC_V1, MAGIC_V2
from rmqd.wire.topics import is_light_queue

# returns total size, magic, CRC, queue offset, sys flag, store timestamp and body length if both hosts are IPv4
_unpack_ipv4 = Struct(">III8xq8xi16xq20xI").unpack_from
_UNSIGNED = Struct(">I")
_LONG = Struct(">q")
_SHORT = Struct(">H")
_UNUSUAL: Final = ENCODED_FLAGS | ~KNOWN_FLAGS
_HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6
_NOT_PLAIN: Final = (_UNUSUAL | _HOSTS_V6) & 0xFFFFFFFF
# the fields of a Message that the native core sets, in the order that native.c expects
_SLOTS: Final = tuple(
    getattr(Message, name)
    for name in "block finished _start _body_start _body_end queue_offset store_timestamp".split()
)
_MIN_RECORD_BYTES: Final = 91  # size of a record with IPv4 hosts and empty body, topic and properties
_MAGICS: Final = (_UNSIGNED.pack(MAGIC_V1), _UNSIGNED.pack(MAGIC_V2))
_NO_QUEUE: Final = MessageQueue("", "", -1)


def decode_messages(data: bytes, message_queue: MessageQueue, start: int = 0, namespace: str = "") -> MessageBlock:
    """Decode the records that fill `data` from `start`, and open their bodies without a memory limit for the block.

    Raises ProtocolError if a record cannot be decoded. A record with a wrong CRC, or a body that cannot be opened, goes
    to `MessageBlock.corrupt`.
    """
    block = frame_messages(data, message_queue, start, namespace)
    if block.broken_reason is not None:
        raise ProtocolError(block.broken_reason)
    return open_all_bodies(block)


def frame_decodable_messages(
    data: bytes, message_queue: MessageQueue, start: int = 0, namespace: str = ""
) -> MessageBlock:
    """Find records like `frame_messages`, but drop undecodable records; see `MessageBlock.broken_reason`."""
    block = frame_messages(data, message_queue, start, namespace)
    if block.broken_reason is not None:
        block.corrupt = [one for one in block.corrupt if not isinstance(one.message, UnreadableMessage)]
    return block


def open_all_bodies(block: MessageBlock) -> MessageBlock:
    """Decompress all bodies of a block and split its batches, without a memory limit for the block."""
    if block.is_closed:
        opening = BlockDecompression(block)
        opening.rest()
        opening.finish()
    return block


def frame_messages(
    data: bytes, message_queue: MessageQueue, start: int = 0, namespace: str = "", offset_delta: int = 0
) -> MessageBlock:
    """Decode the records that fill `data` from `start`, all of `message_queue`. Bodies are not opened. Raises nothing.

    A record with a wrong CRC, unknown flags, or another fault goes to `MessageBlock.corrupt`. After an undecodable
    record, decoding continues at the end that its total size gives, if another record or the end of the response is
    there. Otherwise the rest of the response counts as part of the undecodable record.

    `offset_delta` is added to the records' offsets: in a static topic, brokers store a logical queue under other
    offsets. Messages of a light message queue get the offsets in their properties.
    """
    block = MessageBlock(data, message_queue, namespace)
    broken = _decode_until_broken(block, start)
    while broken is not None:
        at, reason = broken
        if block.broken_reason is None:
            block.broken_reason = reason
        end = _end_by_total_size(data, at)
        message = UnreadableMessage(block, at, len(data) if end is None else end)
        block.corrupt.append(CorruptMessage(message, reason, hides_rest=end is None))
        broken = None if end is None else _decode_until_broken(block, end)
    if is_light_queue(message_queue.topic):
        set_light_queue_offsets(block)
    block.unfinished = len(block.messages)
    if offset_delta:
        for each in (*block.messages, *(corrupt.message for corrupt in block.corrupt)):
            each.queue_offset += offset_delta
    return block


def _decode_until_broken(block: MessageBlock, start: int) -> tuple[int, str] | None:
    """Decode records from `start` on. Returns the position of the first undecodable record and the reason, or None."""
    data, following, at = block.data, -1, start
    size, add = len(data), block.messages.append
    if core.native is not None:
        at, runs, following = core.native.frame_plain(Message, _SLOTS, block, data, at, block.messages, _NOT_PLAIN)
        block.runs += runs
    try:
        while at < size:
            total, magic, crc, queue_offset, sys_flag, store_timestamp, body_size = _unpack_ipv4(data, at)
            body_start = at + 88
            if sys_flag and sys_flag & _HOSTS_V6:
                body_start, store_timestamp, body_size = _long_hosts(data, at, sys_flag)
            body_end = body_start + body_size
            properties = body_end + 1 + data[body_end]
            if magic != MAGIC_V1:
                properties = _properties_v2(data, body_end, magic)
            end = properties + 2 + (data[properties] << 8 | data[properties + 1])
            if end - at != total:
                return at, f"a message claims to have {total} bytes, but its parts take {end - at}"
            if queue_offset == following:
                following += 1
            else:
                block.runs += 1
                following = queue_offset + 1
            message = Message()  # these lines are `Message.set_position`, inlined for speed
            message.block, message._start, message.finished = block, at, False
            message._body_start, message._body_end = body_start, body_end
            message.queue_offset, message.store_timestamp = queue_offset, store_timestamp
            if (crc32(data[body_start:body_end]) ^ crc) & 0x7FFFFFFF:
                block.corrupt.append(CorruptMessage(message, "the CRC of its body does not match"))
            elif sys_flag and sys_flag & _UNUSUAL:
                if reason := _unknown(sys_flag):
                    block.corrupt.append(CorruptMessage(message, reason))
                else:
                    block.is_closed = True
                    add(message)
            else:
                add(message)
            at = end
    except (IndexError, StructError):
        return at, f"a message is cut short: {size - at} bytes are left for it"
    except ProtocolError as error:
        return at, str(error)
    if at > size:
        return _take_out_last(block), f"the last message ends {at - size} bytes after the end of the response"
    return None


def _take_out_last(block: MessageBlock) -> int:
    """Remove the last decoded message, because its record exceeds the response. Returns its record's position."""
    message = block.messages[-1] if block.messages else None
    if block.corrupt and (message is None or block.corrupt[-1].message._start > message._start):
        return block.corrupt.pop().message._start
    return block.messages.pop()._start


def _end_by_total_size(data: bytes, start: int) -> int | None:
    """Return a record's end by its total size; None unless the next record, or the response's end, is there."""
    if start + _MIN_RECORD_BYTES > len(data):
        return None
    total: int = _UNSIGNED.unpack_from(data, start)[0]
    end = start + total
    if total < _MIN_RECORD_BYTES or (end != len(data) and data[end + 4 : end + 8] not in _MAGICS):
        return None
    return end


def stored_properties(record: bytes) -> dict[str, str]:
    """Return the properties of one record without any checks. The embedded broker calls it to filter its records."""
    sys_flag, _, body_size = _unpack_ipv4(record)[-3:]
    body_start = 88
    if sys_flag & _HOSTS_V6:
        body_start, _, body_size = _long_hosts(record, 0, sys_flag)
    block = MessageBlock(record, _NO_QUEUE)
    return Message().set_position(block, 0, body_start, body_start + body_size, 0, 0).stored_properties


def decode_record(record: bytes) -> StoredMessage:
    """Return the message of a record. The body is not decompressed; a wrong CRC is ignored. Raises ProtocolError."""
    block = frame_messages(record, _NO_QUEUE)
    if block.broken_reason is not None or not record:
        raise ProtocolError(f"a record cannot be read: {block.broken_reason or 'it is empty'}")
    message = (block.messages or [one.message for one in block.corrupt])[0]
    block.messages, block.corrupt = [], []  # breaks the reference cycle of block and message
    return StoredMessage(
        topic=message.record_topic,
        body=message.stored_body,
        queue_id=message.stored_queue_id,
        queue_offset=message.queue_offset,
        commit_log_offset=message.commit_log_offset,
        flag=message.flag,
        sys_flag=message.sys_flag & ~_HOSTS_V6,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=message.store_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        properties=message.stored_properties,
    )


def _unknown(sys_flag: int) -> str | None:
    """Return why a record's sys flag is not understood, so that its body must not be read; None if it is understood."""
    if unknown := sys_flag & ~KNOWN_FLAGS & 0xFFFFFFFF:
        return f"its sys flag has bits that rmqd does not know: 0x{unknown:X}"
    if sys_flag & NEED_UNWRAP and not sys_flag & INNER_BATCH:
        return "its sys flag has NEED_UNWRAP (0x40) without INNER_BATCH (0x80)"
    return None


def _long_hosts(data: bytes, start: int, sys_flag: int) -> tuple[int, int, int]:
    """Return (start of the body, store timestamp, body size) of a record with an IPv6 host."""
    born = 20 if sys_flag & BORN_HOST_V6 else 8
    body_start = start + 72 + born + (20 if sys_flag & STORE_HOST_V6 else 8)
    store_timestamp = _LONG.unpack_from(data, start + 48 + born)[0]
    return body_start, store_timestamp, _UNSIGNED.unpack_from(data, body_start - 4)[0]


def _properties_v2(data: bytes, body_end: int, magic: int) -> int:
    """Return the position of the properties' length in a V2 record. Raises ProtocolError for any other magic."""
    if magic != MAGIC_V2:
        raise ProtocolError(f"a message has the magic 0x{magic:08X}; expected 0x{MAGIC_V1:08X} or 0x{MAGIC_V2:08X}")
    length: int = _SHORT.unpack_from(data, body_end)[0]
    return body_end + 2 + length


QUEUE_OFFSET_AT = 20


class UnreadableMessage(Message):
    """The message of an undecodable record. It has the fixed fields at the record's head, as far as the bytes reach.

    All other fields are empty. Any field may be wrong, because any byte may be damaged.
    """

    __slots__ = ()

    offset_msg_id = born_host = store_host = ""
    prepared_transaction_offset = 0
    sys_flag = 0  # so the body is not decompressed

    def __init__(self, block: MessageBlock, start: int, end: int) -> None:
        self.set_position(block, start, start, end, 0, 0)
        self.queue_offset = self._long(QUEUE_OFFSET_AT)
        self._properties = {}
        self._reconsume_times = 0

    @property
    def record_topic(self) -> str:
        """The topic of the pulled queue, because the record's topic cannot be read."""
        return self.block.message_queue.topic

    def _int(self, at: int) -> int:
        return super()._int(at) if self._start + at + 4 <= self._body_end else 0

    def _long(self, at: int) -> int:
        return super()._long(at) if self._start + at + 8 <= self._body_end else 0

    def _topic_span(self) -> tuple[int, int]:
        return self._body_end, 0

    def _properties_span(self) -> tuple[int, int]:
        return self._body_end, self._body_end


LIGHT_QUEUE_SEPARATOR: Final = ","


def light_queue_offset(name: str, properties: Mapping[str, str]) -> int:
    """Return a message's offset in the light message queue `name`. Raises ProtocolError if properties lack it."""
    names = properties.get(INNER_MULTI_DISPATCH, "").split(LIGHT_QUEUE_SEPARATOR)
    offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(LIGHT_QUEUE_SEPARATOR)
    if name not in names:
        raise ProtocolError(f"its {INNER_MULTI_DISPATCH} does not contain {name}")
    if len(offsets) != len(names) or not offsets[names.index(name)].isdecimal():
        raise ProtocolError(f"its {INNER_MULTI_QUEUE_OFFSET} has no offset for {name}")
    return parse_integer(offsets[names.index(name)], f"the offset for {name}")


def set_light_queue_offsets(block: MessageBlock) -> None:
    """Replace the offsets of pulled messages by their offsets in the pulled light message queue."""
    name, messages = block.message_queue.topic, block.messages
    block.messages, block.runs, following = [], 0, -1
    for message in messages:
        try:
            message.queue_offset = light_queue_offset(name, message.stored_properties)
        except ProtocolError as error:
            block.corrupt.append(CorruptMessage(message, str(error)))
            continue
        block.runs += message.queue_offset != following
        following = message.queue_offset + 1
        block.messages.append(message)
