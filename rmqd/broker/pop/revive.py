"""The revival of popped messages: a message that is not acknowledged in time is stored again (`PopReviveService`).

RocketMQ's broker writes pops and acknowledgements to a separate topic, and compares them some seconds later. In this
broker, every hidden message has a row in the journal, and is revived exactly on time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.consumer_registry import ConsumerOffsetManager
from rmqd.broker.store.journal import SEPARATOR, Journal, JournalKind, key_of
from rmqd.broker.store.message_store import MessageStore, dropping_damaged
from rmqd.broker.topic_registry import TopicConfigManager
from rmqd.errors import InvalidMessageError
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import StoredMessage
from rmqd.wire.messages.properties import FIRST_POP_TIME, ORIGIN_GROUP
from rmqd.wire.topics import is_retry_topic, pop_retry_topic, pop_retry_topic_v2

RETRY_QUEUES: Final = 1  # Java: PopAckConstants.retryQueueNum
_SLACK: Final = 1000
"""Settled messages stay in the heap until it has more than twice the hidden messages plus this number."""


class HiddenPop(NamedTuple):
    """A popped, hidden message, with the fields of its receipt handle. Times are milliseconds of the broker's clock."""

    topic: str
    """The topic that stores the message; it may be a retry topic."""
    group: str
    queue_id: int
    offset: int
    pop_time: int
    invisible_time: int

    @property
    def due_ms(self) -> int:
        """The time when the message is visible to members again."""
        return self.pop_time + self.invisible_time


class PopReviveService:
    """The service that hides popped messages, and stores unacknowledged messages again, in a pop retry topic.

    `wake` is called with the time of each revival, in milliseconds since 1970. The message in the retry topic and the
    removal of the hidden message become durable together, so a restart loses no message.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        settings: BrokerSettings,
        journal: Journal,
        wake: Callable[[int], None],
    ) -> None:
        self.settings = settings
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._journal = journal
        self._wake = wake
        self._hidden: dict[HiddenPop, None] = {}
        self._by_queue: defaultdict[tuple[str, int], set[HiddenPop]] = defaultdict(set)
        self._due: list[tuple[int, HiddenPop]] = []
        """A heap of due times and messages. An entry is valid only while its message is hidden."""
        for key, _ in journal.items(JournalKind.POPPED):
            self._add(_parsed(key))
        store.add_retention_rule(self._needed_from)

    def hide(self, messages: Iterable[HiddenPop]) -> None:
        for popped in messages:
            self._journal.put(JournalKind.POPPED, key_of(*popped), "")
            self._add(popped)
            self._wake(popped.due_ms)

    def settle(self, popped: HiddenPop) -> None:
        """Stop hiding a message that was acknowledged or gets a new handle. An outdated handle has no effect."""
        if popped in self._hidden:
            self._remove(popped)
            if len(self._due) > 2 * len(self._hidden) + _SLACK:
                self._due = [(one.due_ms, one) for one in self._hidden]
                heapify(self._due)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        for one in [one for one in self._hidden if group in (None, one.group) and topic in (None, one.topic)]:
            self._remove(one)

    def next_due_ms(self) -> int | None:
        """Return when the next message is visible again, in milliseconds since 1970; None if no message is hidden."""
        while self._due and self._due[0][1] not in self._hidden:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def deliver_next(self, now_ms: int) -> None:
        """Store the message that is due next in its pop retry topic. Raises Refusal like MessageStore.put."""
        popped = self._due[0][1]
        with dropping_damaged():
            self._revive(popped)
        heappop(self._due)
        self._remove(popped)

    def _add(self, popped: HiddenPop) -> None:
        self._hidden[popped] = None
        self._by_queue[popped.topic, popped.queue_id].add(popped)
        heappush(self._due, (popped.due_ms, popped))

    def _remove(self, popped: HiddenPop) -> None:
        del self._hidden[popped]
        queue = popped.topic, popped.queue_id
        self._by_queue[queue].discard(popped)
        if not self._by_queue[queue]:
            del self._by_queue[queue]
        self._journal.delete(JournalKind.POPPED, key_of(*popped))

    def _revive(self, popped: HiddenPop) -> None:
        record = self._store.record_of(popped.topic, popped.queue_id, popped.offset)
        if record is None:  # the topic was deleted
            return
        retry = popped.topic
        if not is_retry_topic(retry):
            name = pop_retry_topic_v2 if self.settings.enableRetryTopicV2 else pop_retry_topic
            retry = name(popped.group, popped.topic)
        queue_id = self._retry_queue(retry, popped)
        message = decode_record(record)
        try:
            self._store.put(_again(message, popped, retry, queue_id))
        except InvalidMessageError:  # the message has no room for more properties, so store it without them
            self._store.put(replace(_again(message, popped, retry, queue_id), properties=message.properties))

    def _retry_queue(self, retry: str, popped: HiddenPop) -> int:
        """Return the queue id for a message in the retry topic. A missing topic and missing queues are created."""
        origin = self._topics.get(popped.topic)
        queues = RETRY_QUEUES
        if self.settings.useSeparateRetryQueue and origin is not None:
            queues = max(queues, origin.write_queue_nums)
        config = self._topics.create_in_send_back(retry, queues)
        if config.write_queue_nums < queues:
            config = self._topics.put(replace(config, read_queue_nums=queues, write_queue_nums=queues))
        for queue_id in range(queues):
            if self._offsets.get(popped.group, retry, queue_id) is None:
                self._offsets.commit(popped.group, retry, queue_id, 0)
        separate = self.settings.useSeparateRetryQueue and popped.queue_id < config.write_queue_nums
        return popped.queue_id if separate else 0

    def _needed_from(self, topic: str, queue_id: int) -> int | None:
        return min((one.offset for one in self._by_queue.get((topic, queue_id), ())), default=None)


def _again(message: StoredMessage, popped: HiddenPop, topic: str, queue_id: int) -> StoredMessage:
    properties = {**message.properties, ORIGIN_GROUP: popped.group}
    if message.reconsume_times == 0 or FIRST_POP_TIME not in properties:
        properties[FIRST_POP_TIME] = str(popped.pop_time)
    return replace(
        message,
        topic=topic,
        queue_id=queue_id,
        reconsume_times=message.reconsume_times + 1,
        properties=properties,
        born_host=message.store_host,
    )


def _parsed(key: str) -> HiddenPop:
    topic, group, *numbers = key.rsplit(SEPARATOR, len(HiddenPop._fields) - 1)
    return HiddenPop(topic, group, *map(int, numbers))
