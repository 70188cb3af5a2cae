"""How popped messages are given back: the broker hides them for a while, and shows them again by itself."""

from __future__ import annotations

from typing import Final

from rmqd.client.instance import ClientInstance
from rmqd.consumer.handling.send_back import SendBack
from rmqd.consumer.pop.block import PopBlock
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.wire.messages.message import Message

# Java: popDelayLevel, where the level that nobody chose is the number of earlier attempts
DELAY_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class PopSendBack(SendBack):
    """The ways back of a group in POP mode; what its broker has it pull goes the ordinary ways."""

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int, receipts: PopReceipts) -> None:
        super().__init__(client, group, max_reconsume_times)
        self._receipts = receipts

    def delay_level(self, message: Message, asked: int) -> int:
        """The level of a retry; of a popped message an index into DELAY_SECONDS."""
        if not isinstance(message.block, PopBlock):
            return super().delay_level(message, asked)
        return min(asked or message.reconsume_times, len(DELAY_SECONDS) - 1)

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Have the message delivered again. Where the broker cannot be told, it is when the time is over."""
        block = message.block
        if not isinstance(block, PopBlock):
            # of what lies in a pop retry topic a broker that copies it would forget where it comes from
            sent = block.origin is not None and await self._to_retry_topic(message, delay_level)
            return sent or await super().retry(message, delay_level)
        seconds = DELAY_SECONDS[self.delay_level(message, delay_level)]
        await self._receipts.retry_later(block, message.queue_offset, seconds)
        return True
