"""The queues of Java members, and the deliveries that they explain: Java releases queues without waiting."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqd.client.routing.route_table import REFRESH_INTERVAL_SECONDS
from tests.simulation.members.java_queue import SEND_BACK_AGAIN_SECONDS

if TYPE_CHECKING:
    from rmqd.wire.message_queue import MessageQueue
    from tests.simulation.judging.passed import Reset
    from tests.simulation.judging.twice import Settled
    from tests.simulation.ledger import Call
    from tests.simulation.timeline import Timeline

SEEN_SECONDS: Final = REFRESH_INTERVAL_SECONDS + 1.0
"""How long after a change of the topic's queues members may rebalance: until they have read the route."""
QueueKey = tuple[bool, str, int]
"""Whether a queue belongs to the retry topic; its broker; and its number."""
CAUSE: Final = "Java drops without waiting"
UNCOMMITTED_SECONDS: Final = 12.0
"""The maximum age of uncommitted progress at a hand-over: Java's first commit follows after 10 s, plus a margin."""
LATE_SECONDS: Final = 5.0
"""How long after a hand-over the previous owner may still start messages, because it has not noticed yet."""
HEEDED_SECONDS: Final = 8.0
"""How long after Java's last, lower commit the next owner may continue before it reads the stored offset and obeys it
as a reset: a round of commits, and a second of a slow network for each way."""
SHOWN_SECONDS: Final = 70.0
"""How long after a hand-over a message may be redelivered: the next owner may wait for a lock, and has other messages
first."""
RESET_SECONDS: Final = 30.0
"""How long around a hand-over a reset may get lost: Java waits for 10 s, and a pull is held for up to 20 s."""


@dataclass(slots=True)
class Owned:
    """A queue that a Java member owned."""

    member: str
    at: float
    until: float = float("inf")

    def explains(self, done: Call, again: Call, settled: float) -> bool:
        """Whether the call `again` is explained, because `done` was not committed when the queue changed hands."""
        if done.member == self.member:
            is_unheard = again.member != self.member and again.began <= self.at + LATE_SECONDS
            is_open = is_unheard or settled >= self.until - UNCOMMITTED_SECONDS
        else:
            is_before = settled >= self.at - UNCOMMITTED_SECONDS and done.began <= self.at + LATE_SECONDS
            # Java's last commit may replace other commits.
            is_open = is_before or -LATE_SECONDS <= done.began - self.until <= HEEDED_SECONDS
        return is_open and self.at <= again.began <= self.until + SHOWN_SECONDS

    def explains_beside(self, other: Owned, done: Call, again: Call, settled: float) -> bool:
        """Whether the call `again` of another member is explained, because both members owned the queue at once.

        A restarted broker knows only the members that have reconnected, and these divide all queues among themselves.
        """
        begin, end = max(self.at, other.at), min(self.until, other.until)
        is_theirs = self.member != other.member and (self.member, other.member) == (done.member, again.member)
        is_open = settled >= begin - UNCOMMITTED_SECONDS and done.began <= end
        return is_theirs and begin <= end and is_open and begin <= again.began <= end + SHOWN_SECONDS


class Forced(NamedTuple):
    """A Java member unlocked an orderly queue while its handler had messages of it."""

    member: str
    queue: QueueKey
    at: float


class JavaQueues:
    """All queues of Java members. `changes` are the times when the topic's queues or the brokers changed."""

    def __init__(self, timeline: Timeline, changes: list[float]) -> None:
        self._timeline = timeline
        self._changes = changes
        self._owned: dict[QueueKey, list[Owned]] = {}
        self._forced: list[Forced] = []

    def note(self, member: str, queue: MessageQueue, *, is_owned: bool) -> None:
        """Called before a member acquires a queue, and after it released one."""
        known = self._owned.setdefault(_key(queue), [])
        if is_owned:
            known.append(Owned(member, self._timeline.now()))
        else:
            last = next(one for one in reversed(known) if one.member == member)
            last.until = min(last.until, self._timeline.now())
        self._timeline.note(member, f"{'takes' if is_owned else 'drops'} {queue}, as Java does")

    def note_forced(self, member: str, queue: MessageQueue) -> None:
        """Called before a member unlocks an orderly queue while a handler has messages of it."""
        self._forced.append(Forced(member, _key(queue), self._timeline.now()))
        self._timeline.note(member, f"unlocks {queue} while a handler has messages of it, as Java does")

    def of(self, member: str) -> list[tuple[str, int]]:
        """Return the queues of the topic that a member owns now."""
        return [
            (broker, queue)
            for (of_retries, broker, queue), known in self._owned.items()
            if not of_retries and any(one.member == member and one.until == float("inf") for one in known)
        ]

    def is_member(self, member: str) -> bool:
        """Whether a member is, or was, a Java member."""
        return any(one.member == member for known in self._owned.values() for one in known)

    def again_seconds(self, failed: Call, again: Call) -> float | None:
        """Return how long a Java member waits after a failed send-back; None for all other deliveries."""
        is_same = (failed.member, failed.is_retry, failed.place) == (again.member, again.is_retry, again.place)
        return SEND_BACK_AGAIN_SECONDS if is_same and self.is_member(again.member) else None

    def end(self, member: str) -> None:
        """Called when a member has stopped, or was killed."""
        for known in self._owned.values():
            for one in known:
                if one.member == member:
                    one.until = min(one.until, self._timeline.now())

    def explains(self, calls: Iterable[Call], settled: Settled) -> bool:
        """Whether any two consecutive calls of these, which have one key, may be duplicates."""
        places: dict[tuple[bool, object], list[Call]] = {}
        for call in sorted(calls, key=lambda call: call.began):
            places.setdefault((call.is_retry, call.place), []).append(call)
        return any(
            self._explains(done, again, max(settled.get((done.is_retry, done.place), 0.0), done.until or done.began))
            for same in places.values()
            for done, again in itertools.pairwise(same)
        )

    def _explains(self, done: Call, again: Call, settled: float) -> bool:
        owned = self._owned.get((done.is_retry, *done.place[:2]), ())
        is_javas = any(one.member in (done.member, again.member) for one in owned)
        if is_javas and self._is_at_a_change(done, again, settled):
            # The member still, or already, owned the queue by its own route. Java waits for no lock here.
            return True
        return any(one.explains(done, again, settled) for one in owned) or any(
            one.explains_beside(other, done, again, settled) for one, other in itertools.permutations(owned, 2)
        )

    def _is_at_a_change(self, done: Call, again: Call, settled: float) -> bool:
        """Whether the topic's queues had just changed, or changed before a finished message was committed."""
        return any(
            at <= min(done.began, again.began) <= at + SEEN_SECONDS
            or (settled >= at - UNCOMMITTED_SECONDS and at <= again.began <= at + SEEN_SECONDS)
            for at in self._changes
        )

    def explains_overlap(self, before: Call, call: Call) -> bool:
        """Whether two members may have had an orderly queue at once, because the previous owner unlocked it early.

        Java renews the locks of its queues every 20 s, but not those of queues that it has dropped, as after a pushed
        reset. 20 s after the last renewal it unlocks a dropped queue without waiting for the handler.
        """
        queue = (before.is_retry, *before.place[:2])
        own = (one for one in self._forced if (one.member, one.queue) == (before.member, queue))
        return any(before.began <= one.at <= call.began for one in own)

    def explains_lower(self, broker: str, queue: int, at: float) -> bool:
        """Whether a stored offset may fall: Java commits its offset without reading the stored one."""
        owned = self._owned.get((False, broker, queue), ())
        return any(one.at <= at <= one.until + LATE_SECONDS for one in owned)

    def explains_unheeded(self, reset: Reset) -> bool:
        """Whether a reset may have been lost, because a Java member released the queue or committed at that time."""
        owned = self._owned.get((False, reset.broker, reset.queue), ())
        return any(min(abs(one.at - reset.at), abs(one.until - reset.at)) < RESET_SECONDS for one in owned)


def _key(queue: MessageQueue) -> QueueKey:
    return queue.topic.startswith("%RETRY%"), queue.broker_name, queue.queue_id
