"""Long polling: pulls that found nothing wait here for a message, or for their time (`PullRequestHoldService.java`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from rmqd.broker.channel import Channel
from rmqd.broker.store.message_store import Arrival, MessageFilter
from rmqd.wire.command import RemotingCommand


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits. `again` answers it anew, with the queue as it is then."""

    channel: Channel
    request: RemotingCommand
    topic: str
    queue_id: int
    wanted: MessageFilter | None
    again: Callable[[], None]
    timer: asyncio.TimerHandle | None = field(default=None)


class PullRequestHoldService:
    """Pulls by queue."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], list[HeldPull]] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def count(self) -> int:
        """How many pulls wait."""
        return sum(map(len, self._held.values()))

    def waiting(self, topic: str, queue_id: int) -> int:
        """How many wait at a queue."""
        return len(self._held.get((topic, queue_id), ()))

    def hold(self, pull: HeldPull, seconds: float) -> None:
        """Keep a pull until a message that it wants comes, at most so long."""
        self._held.setdefault((pull.topic, pull.queue_id), []).append(pull)
        pull.timer = self._loop.call_later(seconds, self._expire, pull)

    def arrived(self, arrival: Arrival) -> None:
        """A message came: whoever wants it is answered in the next turn of the loop."""
        held = self._held.get((arrival.topic, arrival.queue_id))
        if not held:
            return
        woken = [
            pull
            for pull in held
            if pull.wanted is None
            or (pull.wanted.matches_code(arrival.tags_code) and pull.wanted.matches_record(arrival.record))
        ]
        for pull in woken:
            self._take(pull)
            self._loop.call_soon(pull.again)

    def _expire(self, pull: HeldPull) -> None:
        self._take(pull)
        pull.again()

    def _take(self, pull: HeldPull) -> None:
        held = self._held[pull.topic, pull.queue_id]
        held.remove(pull)
        if not held:
            del self._held[pull.topic, pull.queue_id]
        if pull.timer is not None:
            pull.timer.cancel()
