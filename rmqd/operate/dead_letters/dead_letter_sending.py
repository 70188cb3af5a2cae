"""Sends copies of dead letters to one broker, and finds out which copies the broker has stored.

A copy is sent to the group's retry topic, which no other group reads. There are two ways:

- `retry_topic`: rmqd sends a new message with the property RMQD_REPLAY_ID. Its reconsume times start at 0.
- `send_back`: the broker copies the dead letter itself (CONSUMER_SEND_MSG_BACK). Groups that hold queue locks need this
  way, because the broker dead-letters messages that clients send to their retry topics. The copy has the letter's
  properties, and its reconsume times are one higher. rmqd asks for delay level 1, the shortest. With level 0 the broker
  would choose the delay by the reconsume times, which is hours for an old message.

`purge` settles dead letters without a replay; `commit_settled_offset` commits the group's offset in its DLQ topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final

from rmqd.client.api.admin_requests import topic_stats
from rmqd.client.api.group_requests import subscription_groups
from rmqd.client.api.offset_requests import get_max_offset, search_offset, update_consumer_offset
from rmqd.client.api.send_requests import SEND_BACK_TIMEOUT_SECONDS, send_message, send_message_back
from rmqd.client.instance import ClientInstance
from rmqd.consumer.handling.send_back import CONCURRENT_MAX_RECONSUME_TIMES, header_of_copy
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.operate.dead_letters.dead_letter import (
    RMQD_REPLAY_ID,
    CopyMethod,
    DeadLetterFilter,
    DlqMarks,
    DlqMessage,
    ReplayWindow,
    sent_back_key,
)
from rmqd.operate.dead_letters.dead_letter_listing import DlqQueue, read_block, unsettled_messages
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.message import Message
from rmqd.wire.messages.properties import REAL_TOPIC
from rmqd.wire.topics import SCHEDULE_TOPIC, dlq_topic, retry_topic


async def purge(
    client: ClientInstance, queue: DlqQueue, marks: DlqMarks, choice: DeadLetterFilter
) -> AsyncIterator[int]:
    """Settle a queue's dead letters that match `choice`, in parts. Yields the size of each part. Raises RmqdError."""
    async for letters in unsettled_messages(client.remoting, queue):
        meant = [letter for letter in letters if choice.matches(letter)]
        for letter in meant:
            marks.settle(queue.place, letter.offset, letter.replay_id)
            queue.settled.add(letter.offset)
        if meant:
            marks.save()
            yield len(meant)
    await commit_settled_offset(client, queue)


async def commit_settled_offset(client: ClientInstance, queue: DlqQueue) -> None:
    """Commit the offset of the first unsettled dead letter as the group's offset in the queue. Raises RmqdError.

    A process without the marks file, such as rmqd on another machine, then knows that the letters below are settled.
    """
    position = queue.settled.first_missing(queue.min_offset)
    if position > max(queue.position, queue.min_offset):
        await update_consumer_offset(client.remoting, queue.address, queue.group, queue.queue, position)


_SHORTEST_DELAY: Final = 1
_SCHEDULE_QUEUE: Final = _SHORTEST_DELAY - 1

TopicOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and queue id."""


class CopySender:
    """Sends copies of one group's dead letters on one broker to the same broker, and finds the stored copies."""

    def __init__(self, client: ClientInstance, group: str, broker_name: str, address: str) -> None:
        self._client = client
        self._remoting = client.remoting
        self._group = group
        self._broker_name = broker_name
        self._address = address

    async def send(self, letter: DlqMessage, way: CopyMethod) -> None:
        """Send a copy of a letter. Raises InvalidMessageError, or RmqdError; then the broker may have the copy."""
        message, unit_mode = letter.message, self._client.options.unit_mode
        if way == "send_back":
            await send_message_back(
                self._remoting,
                self._address,
                self._group,
                message.commit_log_offset,
                _SHORTEST_DELAY,
                broker_name=self._broker_name,
                origin_msg_id=message.msg_id,
                origin_topic=message.record_topic,
                max_reconsume_times=message.reconsume_times + 1,
                unit_mode=unit_mode,
            )
            return
        header = header_of_copy(
            message,
            retry_topic(self._group),
            letter.replay_properties(),
            broker_name=self._broker_name,
            reconsume_times=0,
            max_reconsume_times=CONCURRENT_MAX_RECONSUME_TIMES,
            unit_mode=unit_mode,
        )
        await send_message(
            self._remoting, self._address, header, message.stored_body, timeout_seconds=SEND_BACK_TIMEOUT_SECONDS
        )

    async def check_send_back(self) -> None:
        """Raise RmqdError if the broker would report success for the group's send-backs, but drop the messages."""
        settings = (await subscription_groups(self._remoting, self._address)).get(self._group)
        if settings is not None and settings.retry_queue_nums <= 0:
            raise RmqdError(f"the broker drops retries of {self._group}, whose retryQueueNums is 0; set it to 1")

    async def max_offsets(self, way: CopyMethod) -> TopicOffsets:
        """Return the maximum offsets of all queues that may receive copies sent in this way. Raises RmqdError.

        The broker first stores a sent-back message in its schedule topic. It may dead-letter other copies.
        """
        topics = (SCHEDULE_TOPIC,) if way == "send_back" else (retry_topic(self._group), dlq_topic(self._group))
        return {topic: await self._ends_of(topic) for topic in topics}

    async def offsets_at_time(self, since_ms: int) -> TopicOffsets:
        """Return, for each queue of the retry topic, the offset at a time (Unix milliseconds). Raises RmqdError."""
        topic = retry_topic(self._group)
        return {
            topic: {
                queue: await search_offset(self._remoting, self._address, self._queue(topic, queue), since_ms)
                for queue in await self._ends_of(topic)
            }
        }

    async def replay_ids_since(self, starts: TopicOffsets) -> set[str]:
        """Return the RMQD_REPLAY_ID of all copies in the retry topic at these offsets or later. Raises RmqdError."""
        return {
            copy.stored_properties[RMQD_REPLAY_ID]
            async for copy in self._stored_since(starts, retry_topic(self._group))
            if RMQD_REPLAY_ID in copy.stored_properties
        }

    async def find_stored_copies(self, window: ReplayWindow) -> tuple[set[int], dict[int, DlqMessage]]:
        """Return the offsets of a window's letters with copies in the retry topic, and the bounced copies.

        The broker dead-lettered a bounced copy at once. The copy is keyed by its letter's offset. Raises RmqdError.
        """
        offsets = {key: offset for offset, key in window.keys.items()}
        ids = await self.replay_ids_since(window.ends)
        bounced: dict[int, DlqMessage] = {}
        async for copy in self._stored_since(window.ends, dlq_topic(self._group)):
            letter = DlqMessage(copy, self._group)
            if letter.is_copy_of_replay and (offset := offsets.get(copy.stored_properties[RMQD_REPLAY_ID])) is not None:
                bounced[offset] = letter
        return {offset for key, offset in offsets.items() if key in ids}, bounced

    async def find_sent_back_copies(self, window: ReplayWindow) -> set[int]:
        """Return the offsets of a window's letters that the broker has copied for a send-back. Raises RmqdError.

        If two letters have the same key because they are the same message, two copies are needed to count both.
        """
        copies: Counter[str] = Counter()
        async for copy in self._stored_since(window.ends, SCHEDULE_TOPIC):
            if copy.stored_properties.get(REAL_TOPIC) == retry_topic(self._group):
                copies[sent_back_key(copy)] += 1
        found = set()
        for offset, key in sorted(window.keys.items()):
            if copies[key]:
                copies[key] -= 1
                found.add(offset)
        return found

    async def _ends_of(self, topic: str) -> dict[int, int]:
        if topic == SCHEDULE_TOPIC:  # it has one queue for each delay level, and rmqd uses only the shortest delay
            queue = self._queue(topic, _SCHEDULE_QUEUE)
            return {_SCHEDULE_QUEUE: await get_max_offset(self._remoting, self._address, queue)}
        try:
            stats = await topic_stats(self._remoting, self._address, topic)
        except TopicNotExistError:
            return {}
        return {queue.queue_id: ends.max_offset for queue, ends in stats.offset_table.items()}

    async def _stored_since(self, starts: TopicOffsets, topic: str) -> AsyncIterator[Message]:
        """Yield a topic's messages at these offsets or later; for a queue that is not in `starts`, all messages."""
        for queue_id, end in (await self._ends_of(topic)).items():
            queue, offset = self._queue(topic, queue_id), starts.get(topic, {}).get(queue_id, 0)
            while offset < end:
                block, following = await read_block(self._remoting, self._address, queue, offset, end)
                for copy in block.messages:
                    yield copy
                if following <= offset:
                    break
                offset = following

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker_name, queue_id)
