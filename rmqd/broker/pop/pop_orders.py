"""Orderly pops: a queue is blocked for other pops while a member has its messages (`ConsumerOrderInfoManager.java`).

The queue is free again when the member has acknowledged all these messages, or when their invisible time is over
(`ConsumerOrderInfoLockManager.java`).

Priority topics (RIP-80): a message's priority is its queue id, and pops read the queues in order of priority.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Self

from rmqd.broker.held_requests import GroupQueue
from rmqd.broker.store.journal import SEPARATOR, Journal, JournalKind, key_of
from rmqd.errors import ProtocolError
from rmqd.wire import fields, loose_json
from rmqd.wire.bodies.config_bodies import MESSAGE_TYPE, SubscriptionGroupConfig, TopicConfig
from rmqd.wire.fields import parse_integer
from rmqd.wire.messages import properties as names
from rmqd.wire.receipt_handle import OrderCounts, PoppedQueue


@dataclass(slots=True)
class OrderInfo:
    """The last orderly pop of a queue. Times are milliseconds of the broker's clock."""

    pop_time: int
    invisible_time: int
    offsets: list[int]
    attempt_id: str | None = None
    acknowledged: list[int] = field(default_factory=list)
    next_visible: dict[int, int] = field(default_factory=dict)
    """The time when a message is visible again, by offset. It has only messages whose invisible time was changed."""
    tried: dict[int, int] = field(default_factory=dict)
    """How often a message was popped before this pop, by offset. Messages without an earlier pop are missing."""

    @property
    def unacknowledged(self) -> list[int]:
        return [offset for offset in self.offsets if offset not in self.acknowledged]

    def next_visible_at(self) -> int:
        """Return when all unacknowledged messages are visible again; 0 if all messages are acknowledged."""
        usual = self.pop_time + self.invisible_time
        return max((self.next_visible.get(offset, usual) for offset in self.unacknowledged), default=0)

    def to_json(self) -> bytes:
        return loose_json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = fields.body_object(text)
        return cls(
            fields.required_integer(data, "pop_time"),
            fields.required_integer(data, "invisible_time"),
            fields.optional_list(data, "offsets"),
            fields.optional_text(data, "attempt_id"),
            fields.optional_list(data, "acknowledged"),
            _by_offset(data, "next_visible"),
            _by_offset(data, "tried"),
        )


class ConsumerOrderInfoManager:
    """The last orderly pop of each queue. `wake` is called with the time when a queue will be free, and `free` then."""

    def __init__(self, journal: Journal, free: Callable[[GroupQueue], None], wake: Callable[[int], None]) -> None:
        self._journal = journal
        self._free = free
        self._wake = wake
        self._infos: dict[GroupQueue, OrderInfo] = {}
        self._due: list[tuple[int, GroupQueue]] = []
        for name, value in journal.items(JournalKind.POP_ORDER):
            topic, group, queue_id = name.rsplit(SEPARATOR, 2)
            key, info = GroupQueue(topic, group, int(queue_id)), OrderInfo.from_json(value)
            self._infos[key] = info
            heappush(self._due, (info.next_visible_at(), key))

    def record_pop(
        self, key: GroupQueue, queue: PoppedQueue, attempt_id: str | None, pop_time: int, invisible_time: int,
        offsets: Sequence[int],
    ) -> OrderCounts:  # fmt: skip
        """Record an orderly pop. Returns how often its messages were popped before."""
        info = OrderInfo(pop_time, invisible_time, list(offsets), attempt_id)
        former = self._infos.get(key)
        if former is not None and attempt_id is not None and former.attempt_id == attempt_id:
            info.tried = former.tried
        elif former is not None:
            info.tried = {
                offset: former.tried.get(offset, 0) + 1 for offset in info.offsets if offset in former.offsets
            }
        self._infos[key] = info
        self._changed(key, info)
        least = 0 if len(info.tried) < len(info.offsets) else min(info.tried.values())
        return OrderCounts({queue: least}, {(queue, offset): count for offset, count in info.tried.items()})

    def is_blocked(self, key: GroupQueue, attempt_id: str | None, now_ms: int) -> bool:
        """Return whether the last pop still hides messages. A repeated pop (same attempt id) is not blocked."""
        info = self._infos.get(key)
        if info is None or (attempt_id is not None and attempt_id == info.attempt_id):
            return False
        return info.next_visible_at() > now_ms

    def acknowledge(self, key: GroupQueue, offset: int, pop_time: int) -> int | None:
        """Acknowledge a message. Returns the offset to commit; None if the message is from an earlier pop.

        Raises KeyError if the message was not popped.
        """
        info = self._infos.get(key)
        if info is None:
            return offset + 1
        if pop_time != info.pop_time:
            return None
        if offset not in info.offsets:
            raise KeyError(offset)
        if offset not in info.acknowledged:
            info.acknowledged.append(offset)
        self._changed(key, info)
        return min(info.unacknowledged, default=info.offsets[-1] + 1)

    def hide(self, key: GroupQueue, offset: int, pop_time: int, until_ms: int) -> None:
        """Hide a message of the queue's last pop until `until_ms`."""
        info = self._infos.get(key)
        if info is not None and pop_time == info.pop_time:
            info.next_visible[offset] = until_ms
            self._changed(key, info)

    def suspend(self, key: GroupQueue, pop_time: int, until_ms: int) -> None:
        """Hide all messages of the queue's last pop until `until_ms`. The pop then does not count as an attempt."""
        info = self._infos.get(key)
        if info is not None and pop_time == info.pop_time:
            info.tried = {offset: max(0, count - 1) for offset, count in info.tried.items()}
            info.next_visible.clear()
            info.invisible_time = until_ms - info.pop_time
            self._changed(key, info)

    def clear(self, key: GroupQueue) -> None:
        """Delete the last pop of a queue, so that the queue is free. Called when an operator reset the offset."""
        if self._infos.pop(key, None) is not None:
            self._journal.delete(JournalKind.POP_ORDER, key_of(*key))

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Delete the state of a group, of a topic, or of both."""
        for key in [key for key in self._infos if group in (None, key.group) and topic in (None, key.topic)]:
            self.clear(key)

    def next_due_ms(self) -> int | None:
        """Return when the next queue will be free, in milliseconds since 1970; None if no queue is blocked."""
        while self._due and not self._is_current(*self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def deliver_next(self, now_ms: int) -> None:
        """Call `free` for the queue that is due next."""
        _, key = heappop(self._due)
        self._free(key)

    def _is_current(self, due_ms: int, key: GroupQueue) -> bool:
        info = self._infos.get(key)
        return info is not None and info.next_visible_at() == due_ms

    def _changed(self, key: GroupQueue, info: OrderInfo) -> None:
        self._journal.put(JournalKind.POP_ORDER, key_of(*key), info.to_json().decode())
        free_at = info.next_visible_at()
        heappush(self._due, (free_at, key))
        self._wake(free_at)


def _by_offset(data: dict[Any, Any], name: str) -> dict[int, int]:
    return {int(offset): value for offset, value in fields.optional_object(data, name).items()}


_FACTOR: Final = "priority.factor"
_OTHER_KINDS: Final = frozenset(
    (names.DELAY, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC, names.TIMER_DELIVER_MS, names.SHARDING_KEY)
)


def queue_by_priority(properties: dict[str, str], config: TopicConfig) -> int | None:
    """Return the queue id for a message's priority; None without a priority. The topic's type does not matter.

    The priority is removed from the properties of delayed messages, transaction messages, and messages with a sharding
    key. Java: `SendMessageProcessor.sendMessage`, `TopicMessageType.parseFromMessageProperty`.
    """
    try:
        priority = parse_integer(properties.get(names.PRIORITY, "-1"), names.PRIORITY)
    except ProtocolError:
        return None
    if priority < 0:
        return None
    if _OTHER_KINDS.isdisjoint(properties) and properties.get(names.TRANSACTION_PREPARED, "").lower() != "true":
        return min(priority, config.write_queue_nums - 1)
    del properties[names.PRIORITY]
    return None


def pops_by_priority(topic: TopicConfig | None, group: SubscriptionGroupConfig | None, dice: int) -> bool:
    """Return whether a pop of a priority topic reads the queues by priority. `dice` is a random number from 0 to 99.

    The group's attribute `priority.factor` is the percentage of pops that read by priority; by default, all pops.
    """
    if topic is None or topic.attributes.get(MESSAGE_TYPE) != "PRIORITY":
        return False
    factor = None if group is None else group.attributes.get(_FACTOR)
    try:
        return factor is None or dice < parse_integer(factor, _FACTOR)
    except ProtocolError:
        return True
