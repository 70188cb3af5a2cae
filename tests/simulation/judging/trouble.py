"""What broke, and which deliveries it explains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.simulation.judging.passed import HEARD_SECONDS, Reset
from tests.simulation.ledger import Call

JAVA_LOCK_SECONDS: Final = 21.0
"""In which a Java member has asked for the locks of its queues anew: every 20 s, and a moment for the answer."""
BEFORE_SECONDS: Final = 10.0
"""A trouble undoes what was committed for so long before it: the brokers' flush, and the members' commit interval."""
AFTER_SECONDS: Final = 70.0
"""For so long after a trouble its effects may show: locks end after 60 s."""
AFTER_RESET_SECONDS: Final = 30.0
"""For so long around a trouble a pushed reset may get lost: members come back, and brokers write down offsets."""
SENT_BACK_SECONDS: Final = 5.0
"""For so long a send-back may be under way: then its member waits for the answer no more."""
HARMLESS: Final = frozenset(("hangs",))
"""Troubles by which nothing is done twice."""
GROUP_WIDE: Final = frozenset(("deaf", "frozen", "paused"))
"""Troubles that reach every queue, however long before it was done: who goes on commits what was due before."""


class Trouble(NamedTuple):
    """What broke, from when to when (seconds since the beginning), and for whom."""

    at: float
    until: float
    what: str
    who: tuple[str, ...]

    def meets(self, calls: Iterable[Call]) -> bool:
        """Whether its effects reach the time of these deliveries."""
        times = [time for call in calls for time in (call.began, call.until) if time is not None]
        return self.at <= max(times) and self.until + AFTER_SECONDS >= min(times) - BEFORE_SECONDS

    def shows_at(self, at: float) -> bool:
        """Whether its effects may show at a time."""
        return self.at <= at <= self.until + AFTER_SECONDS

    def explains_twice(self, done: Call, again: Call, settled: float) -> bool:
        """Whether a message that was `done` may have been done `again` because of it.

        `settled` is when it and all below it were finished, so that the next commit had it.
        """
        is_early = again.until is None or again.until < self.at
        is_committed = settled < self.at - BEFORE_SECONDS and self.what not in GROUP_WIDE
        if self.what in HARMLESS or is_early or is_committed:
            return False
        # what the dead had not committed, or a broker has lost, comes again however late: at the end of other troubles
        is_lost = self.what == "killed" or (self.what == "crashed" and settled <= self.until)
        return (is_lost or again.began <= self.until + AFTER_SECONDS) and self._reaches(done, again)

    def _reaches(self, done: Call, again: Call) -> bool:
        """Whether it met those who had the message, or where it was stored."""
        if self.what == "killed":
            return done.member in self.who
        return self.what in GROUP_WIDE or self.is_of((done, again))

    def explains_attempts(self, calls: list[Call]) -> bool:
        """Whether a message may be tried, or given up, more often because of it: send-backs fail, or are done twice.

        One that was sent back in time may still be under way when it breaks.
        """
        ended = max(call.until or call.began for call in calls)
        is_after = ended <= self.at <= ended + SENT_BACK_SECONDS
        return self.what not in HARMLESS and (is_after or self.meets(calls))

    def explains_overlap(self, calls: list[Call], *, of_java: bool) -> bool:
        """Whether two members may have had messages of one orderly queue at once because of it.

        A broker that crashed has forgotten its locks: a handler may have a message still, and gets none when its
        member has lost the connection. A Java member goes on with its queues meanwhile, and asks for their locks every
        20 s: others may have them before. A member that is suspended does not know that its lock has ended, and goes
        on with what it had. Nothing else takes a lock from who holds it.
        """
        known_by = self.until + JAVA_LOCK_SECONDS if of_java else self.at + HEARD_SECONDS
        if self.what == "crashed" and min(call.began for call in calls) > known_by:
            return False
        return self.what in ("crashed", "paused") and self.meets(calls) and self.is_of(calls)

    def explains_unheeded(self, reset: Reset) -> bool:
        """Whether a reset may have had no effect because of it.

        A pushed reset is told once, to members that are connected: who is not, or is suspended, does not hear of it,
        and whoever has heard of it may end before it is stored and written down. A told one is told once, too: to a
        pull whose answer does not arrive, or to that of a former owner that was suspended, and not waited for.
        """
        is_then = self.at <= reset.at + AFTER_RESET_SECONDS and self.until + AFTER_RESET_SECONDS >= reset.at
        meets_pull = self.what == "paused" or any(name.partition("/")[0] == reset.broker for name in self.who)
        return is_then and (reset.is_pushed or meets_pull)

    def explains_lower(self, broker: str, at: float) -> bool:
        """Whether an offset may be stored that is lower than the one before it because of it.

        A broker that crashed has lost some. A commit that was not answered may be taken up late, and a member that was
        suspended does not know who has its queues. Members may see different brokers while one is frozen, and own a
        queue of another broker twice. A member that dies sends nothing late.
        """
        is_then = self.at <= at <= self.until + AFTER_SECONDS
        return is_then and (self.what in GROUP_WIDE or any(name.partition("/")[0] == broker for name in self.who))

    def is_of(self, calls: Iterable[Call]) -> bool:
        """Whether it met one of the members, or one of the brokers."""
        involved = {name for call in calls for name in (call.member, call.place.broker)}
        return any(name.partition("/")[0] in involved for name in self.who)
