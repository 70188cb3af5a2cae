"""Long polling: pulls and pops that found no message wait here for a message or a timeout.

Pulls (`PullRequestHoldService.java`): RocketMQ's broker checks held pulls every five seconds, so a pull may time out
five seconds late. Timeouts are exact in this module. As in RocketMQ, a pull is answered within five seconds if its
queue receives only messages that the pull's filter rejects. So the consumer's offset advances.

Pops and notifications (`PopLongPollingService.java`): for each group, a new message wakes one pop that waits for any
queue of the topic, and one pop that waits for the message's queue. A message of a pop retry topic wakes pops of the
original topic. RocketMQ's broker does so only for the second form of the retry topic's name (`enableRetryTopicV2`).
With the first form, the next pop finds the message.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Final, NamedTuple

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.filter.message_filter import MessageFilter
from rmqd.broker.peer_channel import Channel, Processor
from rmqd.broker.store.message_store import StoredArrival
from rmqd.codes import ResponseCode
from rmqd.runtime.clock import Clock, Timer
from rmqd.wire.command import RemotingCommand
from rmqd.wire.receipt_handle import ANY_QUEUE_ID
from rmqd.wire.topics import pop_retry_topic, pop_retry_topic_v2

CHECK_INTERVAL_SECONDS: Final = 5.0  # the interval at which Java checks the held pulls


class GroupQueue(NamedTuple):
    """A queue and a group that reads it. Group "" stands for all groups, and queue id -1 for any queue."""

    topic: str
    group: str
    queue_id: int


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A held pull or pop. When it is woken or times out, `again` processes the request, and may hold it again."""

    place: GroupQueue
    group: str
    channel: Channel
    request: RemotingCommand
    again: Processor
    wanted: MessageFilter | None = None
    ends_at: float = 0.0
    """When the request times out, in seconds of `clock.monotonic`."""
    timer: Timer | None = None

    def wants(self, arrival: StoredArrival) -> bool:
        wanted = self.wanted
        return wanted is None or (wanted.matches_code(arrival.tags_code) and wanted.matches_record(arrival.record))


class HeldRequests:
    """Held requests by the queue that they wait for, oldest first. A request is dropped when its connection closes."""

    def __init__(self, clock: Clock) -> None:
        self.count = 0
        """The number of held requests."""
        self._clock = clock
        self._held: dict[GroupQueue, dict[HeldRequest, None]] = {}
        self._by_channel: defaultdict[Channel, set[HeldRequest]] = defaultdict(set)
        self._loop = asyncio.get_running_loop()

    def waiting_count(self, place: GroupQueue) -> int:
        return len(self._held.get(place, ()))

    def queues_of(self, group: str) -> set[tuple[str, int]]:
        """Return topic and id of each queue that has waiting requests of the group."""
        waiting = (place for place, held in self._held.items() if any(one.group == group for one in held))
        return {(place.topic, place.queue_id) for place in waiting}

    def keep(self, one: HeldRequest, seconds: float) -> None:
        """Hold a request for `seconds`, or until it is woken or its connection ends."""
        self._held.setdefault(one.place, {})[one] = None
        self._by_channel[one.channel].add(one)
        self.count += 1
        one.channel.on_close(self._lost)
        self._expire_at(one, self._clock.monotonic() + seconds)

    def _expire_at(self, one: HeldRequest, monotonic: float) -> None:
        one.ends_at = monotonic
        one.timer = self._clock.call_at(monotonic, self._expire, one)

    def _expire(self, one: HeldRequest) -> None:
        self._take(one)
        self._answer(one)

    def _wake(self, one: HeldRequest) -> None:
        """Stop holding a request, and answer it in the next turn of the event loop."""
        self._take(one)
        self._loop.call_soon(self._answer, one)

    def _answer(self, one: HeldRequest) -> None:
        if not one.channel.closed:  # a pop would hide messages, and could not deliver them
            one.channel.answer(one.request, one.again)

    def _lost(self, channel: Channel) -> None:
        for one in list(self._by_channel.get(channel, ())):
            self._take(one)

    def _take(self, one: HeldRequest) -> None:
        held, of_channel = self._held[one.place], self._by_channel[one.channel]
        del held[one]
        if not held:
            del self._held[one.place]
        of_channel.discard(one)
        if not of_channel:
            del self._by_channel[one.channel]
        self.count -= 1
        if one.timer is not None:
            one.timer.cancel()


class PullRequestHoldService(HeldRequests):
    """The held pulls. Each pull waits for a message in one queue."""

    def arrived(self, arrival: StoredArrival) -> None:
        """Called when a message is stored. Wakes the pulls that wait for its queue and whose filter it passes."""
        for pull in list(self._held.get(GroupQueue(arrival.topic, "", arrival.queue_id), ())):
            if pull.wants(arrival):
                self._wake(pull)
            elif pull.timer is not None and pull.ends_at > (soon := self._clock.monotonic() + CHECK_INTERVAL_SECONDS):
                pull.timer.cancel()
                self._expire_at(pull, soon)


class PopLiteLongPollingService(HeldRequests):
    """Held pops of lite topics. The topic of their GroupQueue is the client id, and its queue id is ANY_QUEUE_ID.

    `settings` may be replaced while the broker runs.
    """

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        super().__init__(clock)
        self.settings = settings

    def hold(self, pop: HeldRequest, left_ms: int, poll_ms: int) -> ResponseCode | None:
        """Hold a pop until it is woken, it times out, or its connection closes.

        Returns None if the pop is held, else the response code: POLLING_FULL, or POLLING_TIMEOUT if no time is left.
        """
        if left_ms <= 0 or poll_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        limits = self.settings
        if self.count >= limits.maxPopPollingSize or self.waiting_count(pop.place) > limits.popPollingSize:
            return ResponseCode.POLLING_FULL
        self.keep(pop, min(left_ms, poll_ms) / 1000)
        return None

    def wake(self, place: GroupQueue, arrival: StoredArrival | None = None) -> bool:
        """Wake the oldest pop for `place`, unless its filter rejects `arrival`. Returns whether a pop was woken."""
        pop = next(iter(self._held.get(place, ())), None)
        if pop is None or (arrival is not None and not pop.wants(arrival)):
            return False
        self._wake(pop)
        return True


class PopLongPollingService(PopLiteLongPollingService):
    """Held pops, or held NOTIFICATION requests. A message wakes them when it arrives."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        super().__init__(settings, clock)
        self._groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """The groups that ever waited for a topic, by topic."""
        self._retries: dict[str, tuple[str, str]] = {}
        """The original topic and the group of each pop retry topic, by the retry topic's name."""

    def keep(self, one: HeldRequest, seconds: float) -> None:
        topic, group, _ = one.place
        if group not in self._groups[topic]:
            self._groups[topic][group] = None
            for retry in (pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic)):
                self._retries[retry] = topic, group
        super().keep(one, seconds)

    def arrived(self, arrival: StoredArrival) -> None:
        """Called when a message is stored. Wakes pops that wait for its queue, or for any queue of its topic."""
        retried = self._retries.get(arrival.topic)
        if retried is not None:
            topic, group = retried
            self.wake(GroupQueue(topic, group, ANY_QUEUE_ID))
            self.wake(GroupQueue(topic, group, arrival.queue_id))
        for group in self._groups.get(arrival.topic, ()):
            self.wake(GroupQueue(arrival.topic, group, ANY_QUEUE_ID), arrival)
            self.wake(GroupQueue(arrival.topic, group, arrival.queue_id), arrival)
