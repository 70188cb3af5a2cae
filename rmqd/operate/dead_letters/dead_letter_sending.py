"""Sends copies of dead letters on one broker, and finds out which copies the broker has.

A copy is sent to the group's retry topic, which no other group reads. There are two ways:

- `retry_topic`: as a new message with RMQD_REPLAY_ID. Its reconsume times begin at 0.
- `send_back`: by CONSUMER_SEND_MSG_BACK, so that the broker copies the dead letter itself. This is for groups that hold
  queue locks, because the broker dead-letters messages sent to their retry topics. The copy has the letter's
  properties, and one more reconsume time. Delay level 1 is the shortest. With level 0 the broker would choose the delay
  by the reconsume times: hours for an old message.

`purge` settles dead letters without a replay; `keep_position` commits a group's offset in its dead letters.
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
from rmqd.consumer.handling.send_back import CONCURRENT_MAX_RECONSUME_TIMES, copy_header
from rmqd.errors import RmqdError
from rmqd.errors.broker_errors import TopicNotExistError
from rmqd.operate.dead_letters.dead_letter import (
    RMQD_REPLAY_ID,
    DeadLetterFilter,
    DlqMarks,
    DlqMessage,
    ReplayWindow,
    Way,
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
    """Settle the chosen dead letters of a queue. Yields the number of letters after each part. Raises RmqdError."""
    async for letters in unsettled_messages(client.remoting, queue):
        meant = [letter for letter in letters if choice.takes(letter)]
        for letter in meant:
            marks.settle(queue.place, letter.offset, letter.replay_id)
            queue.settled.add(letter.offset)
        if meant:
            marks.save()
            yield len(meant)
    await keep_position(client, queue)


async def keep_position(client: ClientInstance, queue: DlqQueue) -> None:
    """Commit the first dead letter that is left as the group's offset in the queue. Raises RmqdError.

    This shows the settled letters below it to a process without the file of marks, such as rmqd on another machine.
    """
    position = queue.settled.reach(queue.min_offset)
    if position > max(queue.position, queue.min_offset):
        await update_consumer_offset(client.remoting, queue.address, queue.group, queue.queue, position)


_SHORTEST_DELAY: Final = 1
_SCHEDULE_QUEUE: Final = _SHORTEST_DELAY - 1

TopicOffsets = Mapping[str, Mapping[int, int]]
"""Offsets by topic and queue."""


class CopySender:
    """Sends one group's dead letters of one broker back to the same broker. A send-back needs no body."""

    def __init__(self, client: ClientInstance, group: str, broker_name: str, address: str) -> None:
        self._client = client
        self._remoting = client.remoting
        self._group = group
        self._broker_name = broker_name
        self._address = address

    async def send(self, letter: DlqMessage, way: Way) -> None:
        """Send a copy. Raises RmqdError (the broker may have the copy anyway) and InvalidMessageError."""
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
        header = copy_header(
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
        """Raise RmqdError if the broker drops sent-back messages of the group, although it reports success."""
        settings = (await subscription_groups(self._remoting, self._address)).get(self._group)
        if settings is not None and settings.retry_queue_nums <= 0:
            raise RmqdError(f"{self._group} has retryQueueNums 0 at this broker, which drops sent-back messages")

    async def ends(self, way: Way) -> TopicOffsets:
        """Return the ends of all queues that copies can reach. Raises RmqdError.

        A sent-back message is first stored as a delayed message. A message for a retry topic may become a dead letter.
        """
        topics = (SCHEDULE_TOPIC,) if way == "send_back" else (retry_topic(self._group), dlq_topic(self._group))
        return {topic: await self._ends_of(topic) for topic in topics}

    async def starts(self, since_ms: int) -> TopicOffsets:
        """Return the offsets in the retry topic's queues at a time (Unix milliseconds). Raises RmqdError."""
        topic = retry_topic(self._group)
        return {
            topic: {
                queue: await search_offset(self._remoting, self._address, self._queue(topic, queue), since_ms)
                for queue in await self._ends_of(topic)
            }
        }

    async def replay_ids_since(self, starts: TopicOffsets) -> set[str]:
        """Return the ids of dead letters with copies in the retry topic from these offsets. Raises RmqdError."""
        return {
            copy.stored_properties[RMQD_REPLAY_ID]
            async for copy in self._stored_since(starts, retry_topic(self._group))
            if RMQD_REPLAY_ID in copy.stored_properties
        }

    async def sent(self, window: ReplayWindow) -> tuple[set[int], dict[int, DlqMessage]]:
        """For a window of retry-topic sends, return the dead letters with copies there, and the bounced copies.

        The broker dead-lettered a bounced copy at once. Bounced copies are keyed by their letters' offsets.
        Raises RmqdError.
        """
        offsets = {key: offset for offset, key in window.keys.items()}
        ids = await self.replay_ids_since(window.ends)
        bounced: dict[int, DlqMessage] = {}
        async for copy in self._stored_since(window.ends, dlq_topic(self._group)):
            letter = DlqMessage(copy, self._group)
            if letter.is_copy_of_replay and (offset := offsets.get(copy.stored_properties[RMQD_REPLAY_ID])) is not None:
                bounced[offset] = letter
        return {offset for key, offset in offsets.items() if key in ids}, bounced

    async def sent_back(self, window: ReplayWindow) -> set[int]:
        """For a window of send-backs, return the dead letters with copies by the broker. Raises RmqdError.

        Two letters of one message have the same key, and need two copies.
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
        if topic == SCHEDULE_TOPIC:  # each queue of this topic has its own delay
            queue = self._queue(topic, _SCHEDULE_QUEUE)
            return {_SCHEDULE_QUEUE: await get_max_offset(self._remoting, self._address, queue)}
        try:
            stats = await topic_stats(self._remoting, self._address, topic)
        except TopicNotExistError:
            return {}
        return {queue.queue_id: ends.max_offset for queue, ends in stats.offset_table.items()}

    async def _stored_since(self, starts: TopicOffsets, topic: str) -> AsyncIterator[Message]:
        """Yield the messages that a topic's queues have received since these offsets; all messages of a new queue."""
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
