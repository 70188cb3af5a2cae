"""Long polling: pulls and pops that found nothing wait here for a message or a timeout.

Pulls (`PullRequestHoldService.java`): the real broker checks them every five seconds, so it answers up to five seconds
late. Here a pull is answered when its time is over. One effect of that check is kept: if a queue grew only by messages
that the pull's filter rejects, the pull is answered after five seconds, so that the consumer's offset advances.

Pops and notifications (`PopLongPollingService.java`): for each group, a message wakes one pop that waits for any queue
of its topic, and one pop that waits for its queue. A message of a pop retry topic wakes pops of the original topic. The
real broker does so only with the second form of the retry topic's name; with the first form the message waits for the
next pop.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final, NamedTuple

from rmqd.broker.broker_settings import BrokerSettings
from rmqd.broker.peer_channel import Channel, Processor
from rmqd.broker.store.message_store import Arrival
from rmqd.broker.store.queue_store import MessageFilter
from rmqd.codes import ResponseCode
from rmqd.runtime.clock import Clock, Timer
from rmqd.wire.command import RemotingCommand
from rmqd.wire.receipt_handle import ANY_QUEUE
from rmqd.wire.topics import pop_retry_topic, pop_retry_topic_v2

PASSED_SECONDS: Final = 5.0  # Java: the pause between two checks of the held pulls


class HeldPull:
    """A held pull. `again` answers it with the state of the queue at that time."""

    __slots__ = ("again", "channel", "ends_at", "group", "queue_id", "request", "timer", "topic", "wanted")

    def __init__(
        self,
        channel: Channel,
        request: RemotingCommand,
        again: Processor,
        group: str,
        topic: str,
        queue_id: int,
        wanted: MessageFilter | None,
    ) -> None:
        self.channel = channel
        self.request = request
        self.again = again
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.wanted = wanted
        self.ends_at = 0.0  # end of its time, by the clock's `monotonic`
        self.timer: Timer | None = None


class PullRequestHoldService:
    """The held pulls of each queue, in order of arrival."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._held: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._by_channel: defaultdict[Channel, set[HeldPull]] = defaultdict(set)
        self._loop = asyncio.get_running_loop()

    @property
    def count(self) -> int:
        """The number of held pulls."""
        return sum(map(len, self._held.values()))

    def waiting(self, topic: str, queue_id: int) -> int:
        """Return the number of held pulls of a queue."""
        return len(self._held.get((topic, queue_id), ()))

    def queues_of(self, group: str) -> set[tuple[str, int]]:
        """Return the queues, by topic and id, with a held pull of the group."""
        return {queue for queue, pulls in self._held.items() if any(pull.group == group for pull in pulls)}

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Hold a pull until a message passes its filter, its time is over, or its connection ends."""
        self._held.setdefault((pull.topic, pull.queue_id), {})[pull] = None
        self._by_channel[pull.channel].add(pull)
        pull.channel.on_close(self._lost)
        self._expire_at(pull, self._clock.monotonic() + seconds)

    def arrived(self, arrival: Arrival) -> None:
        """Called for a new message. Pulls whose filter it passes are answered in the next turn of the loop."""
        held = self._held.get((arrival.topic, arrival.queue_id))
        if not held:
            return
        for pull in list(held):
            wanted = pull.wanted
            if wanted is None or (wanted.matches_code(arrival.tags_code) and wanted.matches_record(arrival.record)):
                self._take(pull)
                self._loop.call_soon(pull.channel.answer, pull.request, pull.again)
            else:
                self._expire_soon(pull)

    def _expire_soon(self, pull: HeldPull) -> None:
        soon = self._clock.monotonic() + PASSED_SECONDS
        if pull.timer is not None and pull.ends_at > soon:
            pull.timer.cancel()
            self._expire_at(pull, soon)

    def _expire_at(self, pull: HeldPull, monotonic: float) -> None:
        pull.ends_at = monotonic
        pull.timer = self._clock.call_at(monotonic, self._expire, pull)

    def _expire(self, pull: HeldPull) -> None:
        self._take(pull)
        pull.channel.answer(pull.request, pull.again)

    def _lost(self, channel: Channel) -> None:
        for pull in list(self._by_channel.get(channel, ())):
            self._take(pull)

    def _take(self, pull: HeldPull) -> None:
        queue = pull.topic, pull.queue_id
        held = self._held[queue]
        del held[pull]
        if not held:
            del self._held[queue]
        of_channel = self._by_channel[pull.channel]
        of_channel.discard(pull)
        if not of_channel:
            del self._by_channel[pull.channel]
        if pull.timer is not None:
            pull.timer.cancel()


class HeldQueue(NamedTuple):
    """The queue of a topic that a group's pop waits for. Queue -1 stands for any queue."""

    topic: str
    group: str
    queue_id: int


class HeldPop:
    """A held pop. `again` answers it, or holds it again."""

    __slots__ = ("again", "channel", "place", "request", "timer", "wanted")

    def __init__(
        self,
        place: HeldQueue,
        channel: Channel,
        request: RemotingCommand,
        again: Processor,
        wanted: MessageFilter | None = None,
    ) -> None:
        self.place = place
        self.channel = channel
        self.request = request
        self.again = again
        self.wanted = wanted
        self.timer: Timer | None = None


class PopLongPollingService:
    """The held pops by place, in order of arrival. Settings may change at runtime."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self.count = 0
        """The number of held pops."""
        self._held: defaultdict[HeldQueue, dict[HeldPop, None]] = defaultdict(dict)
        self._by_channel: defaultdict[Channel, set[HeldPop]] = defaultdict(set)
        self._groups: defaultdict[str, dict[str, None]] = defaultdict(dict)
        """By topic, the groups whose pops have waited for it."""
        self._retries: dict[str, tuple[str, str]] = {}
        """The original topic and the group, by pop retry topic."""
        self._loop = asyncio.get_running_loop()

    def waiting(self, place: HeldQueue) -> int:
        """Return the number of pops that wait at a place."""
        return len(self._held.get(place, ()))

    def places_of(self, group: str) -> set[HeldQueue]:
        """Return the places at which pops of the group wait."""
        return {place for place in self._held if place.group == group}

    def hold(self, pop: HeldPop, left_ms: int, poll_ms: int) -> ResponseCode | None:
        """Hold a pop until a message arrives, its time is over, or its connection ends.

        Returns None if it is held, else the reason: POLLING_FULL, or POLLING_TIMEOUT if no time is left.
        """
        topic, group, _ = place = pop.place
        if left_ms <= 0 or poll_ms <= 0:
            return ResponseCode.POLLING_TIMEOUT
        if self.count >= self.settings.maxPopPollingSize or self.waiting(place) > self.settings.popPollingSize:
            return ResponseCode.POLLING_FULL
        self._held[place][pop] = None
        self._by_channel[pop.channel].add(pop)
        self.count += 1
        if group not in self._groups[topic]:
            self._groups[topic][group] = None
            for retry in (pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic)):
                self._retries[retry] = topic, group
        pop.channel.on_close(self._lost)
        seconds = min(left_ms, poll_ms) / 1000
        pop.timer = self._clock.call_at(self._clock.monotonic() + seconds, self._wake, pop)
        return None

    def arrived(self, arrival: Arrival) -> None:
        """Called for a new message. Pops that wait for it check again in the next turn of the loop."""
        retried = self._retries.get(arrival.topic)
        if retried is not None:
            topic, group = retried
            self.wake(HeldQueue(topic, group, ANY_QUEUE))
            self.wake(HeldQueue(topic, group, arrival.queue_id))
        for group in self._groups.get(arrival.topic, ()):
            self._wake_for(HeldQueue(arrival.topic, group, ANY_QUEUE), arrival)
            self._wake_for(HeldQueue(arrival.topic, group, arrival.queue_id), arrival)

    def wake(self, place: HeldQueue) -> bool:
        """Let the first pop at this place check again. Returns False if no pop waits there."""
        pop = next(iter(self._held.get(place, ())), None)
        if pop is None:
            return False
        self._wake_soon(pop)
        return True

    def _wake_for(self, place: HeldQueue, arrival: Arrival) -> None:
        pop = next(iter(self._held.get(place, ())), None)
        if pop is None:
            return
        wanted = pop.wanted
        if wanted is None or (wanted.matches_code(arrival.tags_code) and wanted.matches_record(arrival.record)):
            self._wake_soon(pop)

    def _wake_soon(self, pop: HeldPop) -> None:
        self._take(pop)
        self._loop.call_soon(self._answer, pop)

    def _wake(self, pop: HeldPop) -> None:
        self._take(pop)
        self._answer(pop)

    def _answer(self, pop: HeldPop) -> None:
        if not pop.channel.closed:  # a pop for a closed connection would only hide messages
            pop.channel.answer(pop.request, pop.again)

    def _lost(self, channel: Channel) -> None:
        for pop in list(self._by_channel.get(channel, ())):
            self._take(pop)

    def _take(self, pop: HeldPop) -> None:
        held = self._held[pop.place]
        del held[pop]
        if not held:
            del self._held[pop.place]
        of_channel = self._by_channel[pop.channel]
        of_channel.discard(pop)
        if not of_channel:
            del self._by_channel[pop.channel]
        self.count -= 1
        if pop.timer is not None:
            pop.timer.cancel()
