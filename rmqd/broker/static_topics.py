"""Static topics: this broker's part of their logical queues (`TopicQueueMappingManager.java`).

Because this is the only broker, it stores a logical queue from its first message on, and the logical queue has the
number and offsets of the queue below it. So requests about one can use the other. Other mappings are rejected.
"""

from __future__ import annotations

from dataclasses import replace

from rmqd.broker.journal import Journal, Kind
from rmqd.broker.reply import Refusal
from rmqd.codes import ResponseCode
from rmqd.wire.bodies.static_topic import LogicQueueMappingItem, TopicQueueMappingDetail


class TopicQueueMappingManager:
    """Mappings by topic."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._details: dict[str, TopicQueueMappingDetail] = {}
        for topic, value in journal.items(Kind.STATIC_TOPIC):
            self._details[topic] = TopicQueueMappingDetail.from_json(value.encode())

    def get(self, topic: str) -> TopicQueueMappingDetail | None:
        """Return the mapping of a static topic, or None."""
        return self._details.get(topic)

    def delete(self, topic: str) -> None:
        if self._details.pop(topic, None) is not None:
            self._journal.delete(Kind.STATIC_TOPIC, topic)

    def checked(self, detail: TopicQueueMappingDetail, broker_name: str, *, force: bool) -> TopicQueueMappingDetail:
        """Return the new mapping of a topic: queues that the request does not name stay. Raises Refusal."""
        for queue_id, items in detail.hosted_queues.items():
            if detail.bname != broker_name or not _is_plain(queue_id, items, broker_name):
                raise _refused(f"queue {queue_id} of {detail.topic} is not all in this broker's queue {queue_id}")
        old = self.get(detail.topic)
        if old is None:
            return detail
        if not force:
            if detail.epoch < old.epoch:
                raise _refused(f"Can't accept data with small epoch {detail.epoch} < {old.epoch}")
            if detail.scope != old.scope:
                raise _refused(f"Can't accept data with unmatched scope {detail.scope} != {old.scope}")
            if detail.epoch == old.epoch and old.hosted_queues.keys() - detail.hosted_queues.keys():
                raise _refused("Cannot accept equal epoch with null data")
        return replace(detail, hosted_queues=old.hosted_queues | detail.hosted_queues)

    def put(self, detail: TopicQueueMappingDetail) -> None:
        """Store a mapping."""
        self._details[detail.topic] = detail
        self._journal.put(Kind.STATIC_TOPIC, detail.topic, detail.to_json().decode())


def _is_plain(queue_id: int, items: tuple[LogicQueueMappingItem, ...], broker_name: str) -> bool:
    if len(items) != 1:
        return False
    [item] = items
    return (item.bname, item.queue_id, item.logic_offset, item.start_offset) == (broker_name, queue_id, 0, 0)


def _refused(why: str) -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, why)
