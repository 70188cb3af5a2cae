"""Long polling: pulls that found nothing wait here for a message or a timeout (`PullRequestHoldService.java`).

The real broker checks its held pulls every five seconds, so it answers up to five seconds late. Here a pull is answered
when its time is over. One effect of that check is kept: if the queue grew only by messages that the pull's filter
rejects, the pull is answered after five seconds, so that the consumer's offset advances.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from rmqd.broker.channel import Channel, Processor
from rmqd.broker.store.get_messages import MessageFilter
from rmqd.broker.store.message_store import Arrival
from rmqd.clock import Clock, Timer
from rmqd.wire.command import RemotingCommand

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
