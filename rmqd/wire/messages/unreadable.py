"""A record that cannot be decoded, as a message: its body is all of its bytes, for whoever looks into it."""

from __future__ import annotations

from rmqd.wire.messages.message import Message, MessageBlock

QUEUE_OFFSET_AT = 20


class UnreadableMessage(Message):
    """Has what stands at the head of every record, as far as the bytes reach; all else is empty.

    None of it can be trusted: any byte may be the one that is wrong.
    """

    __slots__ = ()

    def __init__(self, block: MessageBlock, start: int, end: int) -> None:
        self.placed(block, start, start, end, 0, 0)
        self.queue_offset = self._long(QUEUE_OFFSET_AT)
        self._properties = {}
        self._reconsume_times = 0

    @property
    def record_topic(self) -> str:
        """The topic that it was pulled from."""
        return self.block.message_queue.topic

    @property
    def offset_msg_id(self) -> str:
        """None: the store host is not known."""
        return ""

    @property
    def sys_flag(self) -> int:
        """None of RocketMQ's system flags: the body is as it was stored."""
        return 0

    @property
    def born_host(self) -> str:
        """Not known."""
        return ""

    @property
    def store_host(self) -> str:
        """Not known."""
        return ""

    @property
    def prepared_transaction_offset(self) -> int:
        """Not known."""
        return 0

    def _int(self, at: int) -> int:
        return super()._int(at) if self._start + at + 4 <= self._body_end else 0

    def _long(self, at: int) -> int:
        return super()._long(at) if self._start + at + 8 <= self._body_end else 0

    def _topic_span(self) -> tuple[int, int]:
        return self._body_end, 0

    def _properties_span(self) -> tuple[int, int]:
        return self._body_end, self._body_end
