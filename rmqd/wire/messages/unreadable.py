"""A record that cannot be decoded, as a message. Its body has all of its bytes, for inspection."""

from __future__ import annotations

from rmqd.wire.messages.message import Message, MessageBlock

QUEUE_OFFSET_AT = 20


class UnreadableMessage(Message):
    """A message with the fixed fields at the head of a record, as far as the bytes reach. All other fields are empty.

    No field can be trusted, because any byte may be wrong.
    """

    __slots__ = ()

    def __init__(self, block: MessageBlock, start: int, end: int) -> None:
        self.placed(block, start, start, end, 0, 0)
        self.queue_offset = self._long(QUEUE_OFFSET_AT)
        self._properties = {}
        self._reconsume_times = 0

    @property
    def record_topic(self) -> str:
        """The topic that the record was pulled from."""
        return self.block.message_queue.topic

    @property
    def offset_msg_id(self) -> str:
        """Empty, because the store host is unknown."""
        return ""

    @property
    def sys_flag(self) -> int:
        """No flags, so that the body is shown as stored."""
        return 0

    @property
    def born_host(self) -> str:
        """Unknown, so empty."""
        return ""

    @property
    def store_host(self) -> str:
        """Unknown, so empty."""
        return ""

    @property
    def prepared_transaction_offset(self) -> int:
        """Unknown, so 0."""
        return 0

    def _int(self, at: int) -> int:
        return super()._int(at) if self._start + at + 4 <= self._body_end else 0

    def _long(self, at: int) -> int:
        return super()._long(at) if self._start + at + 8 <= self._body_end else 0

    def _topic_span(self) -> tuple[int, int]:
        return self._body_end, 0

    def _properties_span(self) -> tuple[int, int]:
        return self._body_end, self._body_end
