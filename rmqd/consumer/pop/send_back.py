"""Retries of popped messages: the broker makes a message invisible for a while, and then redelivers it."""

from __future__ import annotations

from typing import Final

from rmqd.client.instance import ClientInstance
from rmqd.consumer.handling.send_back import SendBack
from rmqd.consumer.pop.block import PopBlock
from rmqd.consumer.pop.receipts import PopReceipts
from rmqd.wire.messages.message import Message

# Java: popDelayLevel; the default level is the number of earlier attempts
DELAY_SECONDS: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


class PopSendBack(SendBack):
    """Sends retries and dead letters of a group in POP mode. Pulled messages are sent back as in other groups."""

    def __init__(self, client: ClientInstance, group: str, max_reconsume_times: int, receipts: PopReceipts) -> None:
        super().__init__(client, group, max_reconsume_times)
        self._receipts = receipts

    def delay_level(self, message: Message, asked: int) -> int:
        """Return the level of a retry. For a popped message it is an index into DELAY_SECONDS."""
        if not isinstance(message.block, PopBlock):
            return super().delay_level(message, asked)
        return min(asked or message.reconsume_times, len(DELAY_SECONDS) - 1)

    async def retry(self, message: Message, delay_level: int) -> bool:
        """Retry the message. If the request fails, the message is redelivered when its invisible time is over."""
        block = message.block
        if not isinstance(block, PopBlock):
            # a broker's copy of a message in a pop retry topic would lose its original topic
            sent = block.origin is not None and await self._to_retry_topic(message, delay_level)
            return sent or await super().retry(message, delay_level)
        seconds = DELAY_SECONDS[self.delay_level(message, delay_level)]
        await self._receipts.retry_later(block, message.queue_offset, seconds)
        return True
