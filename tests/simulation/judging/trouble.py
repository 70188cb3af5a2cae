"""A failure, and the deliveries that it explains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tests.simulation.judging.passed import HEARD_SECONDS, Reset
from tests.simulation.ledger import Call

JAVA_LOCK_SECONDS: Final = 21.0
"""How long until a Java member has renewed its locks: every 20 s, and a moment for the response."""
BEFORE_SECONDS: Final = 10.0
"""How old a commit may be that a trouble undoes: the flush interval of brokers, and the commit interval of members."""
AFTER_SECONDS: Final = 70.0
"""How long after a trouble its effects may show: locks expire after 60 s."""
AFTER_RESET_SECONDS: Final = 30.0
"""How long around a trouble a pushed reset may get lost: members reconnect, and brokers flush offsets."""
SENT_BACK_SECONDS: Final = 5.0
"""How long a send-back may take before its member stops waiting for the response."""
HARMLESS: Final = frozenset(("hangs",))
"""Troubles that explain no duplicates."""
GROUP_WIDE: Final = frozenset(("deaf", "frozen", "paused"))
"""Troubles that affect every queue, however old its messages: a member that resumes makes its overdue commits."""


class Trouble(NamedTuple):
    """A failure: when it began and ended (in seconds since the beginning), its kind, and who was affected."""

    at: float
    until: float
    what: str
    who: tuple[str, ...]

    def meets(self, calls: Iterable[Call]) -> bool:
        """Whether the effects of the trouble overlap these deliveries."""
        times = [time for call in calls for time in (call.began, call.until) if time is not None]
        return self.at <= max(times) and self.until + AFTER_SECONDS >= min(times) - BEFORE_SECONDS

    def shows_at(self, at: float) -> bool:
        """Whether the effects of the trouble may show at a time."""
        return self.at <= at <= self.until + AFTER_SECONDS

    def explains_twice(self, done: Call, again: Call, settled: float) -> bool:
        """Whether the trouble explains that a message was `done`, and then done `again`.

        `settled` is when the message and all below it were finished, so that the next commit covered it.
        """
        is_early = again.until is None or again.until < self.at
        is_committed = settled < self.at - BEFORE_SECONDS and self.what not in GROUP_WIDE
        if self.what in HARMLESS or is_early or is_committed:
            return False
        # uncommitted or lost offsets repeat messages at any later time; other troubles have an end
        is_lost = self.what == "killed" or (self.what == "crashed" and settled <= self.until)
        return (is_lost or again.began <= self.until + AFTER_SECONDS) and self._reaches(done, again)

    def _reaches(self, done: Call, again: Call) -> bool:
        """Whether the trouble affected the members of these calls, or the broker of the message."""
        if self.what == "killed":
            return done.member in self.who
        return self.what in GROUP_WIDE or self.is_of((done, again))

    def explains_attempts(self, calls: list[Call]) -> bool:
        """Whether the trouble explains repeated attempts or dead letters: send-backs may fail, or be duplicated.

        A message that was sent back in time may still be in transit when the trouble begins.
        """
        ended = max(call.until or call.began for call in calls)
        is_after = ended <= self.at <= ended + SENT_BACK_SECONDS
        return self.what not in HARMLESS and (is_after or self.meets(calls))

    def explains_overlap(self, calls: list[Call], *, of_java: bool) -> bool:
        """Whether the trouble explains that two members had messages of one orderly queue at once.

        A broker that crashed has forgotten its locks: a handler may still have a message, and gets no more once its
        member has lost the connection. A Java member keeps its queues meanwhile, and renews their locks every 20 s, so
        others may lock them first. A suspended member does not know that its lock has expired, and continues with the
        messages that it had. No other trouble takes a lock from its holder.
        """
        known_by = self.until + JAVA_LOCK_SECONDS if of_java else self.at + HEARD_SECONDS
        if self.what == "crashed" and min(call.began for call in calls) > known_by:
            return False
        return self.what in ("crashed", "paused") and self.meets(calls) and self.is_of(calls)

    def explains_unheeded(self, reset: Reset) -> bool:
        """Whether the trouble explains that a reset had no effect.

        A pushed reset is sent once to connected members. A disconnected or suspended member misses it, and a member
        that received it may stop before the new offset is stored and flushed. A reset of the other kind is reported
        once too: to a pull whose response may get lost, or to the pull of a suspended previous owner.
        """
        is_then = self.at <= reset.at + AFTER_RESET_SECONDS and self.until + AFTER_RESET_SECONDS >= reset.at
        meets_pull = self.what == "paused" or any(name.partition("/")[0] == reset.broker for name in self.who)
        return is_then and (reset.is_pushed or meets_pull)

    def explains_lower(self, broker: str, at: float) -> bool:
        """Whether the trouble explains that a lower offset was stored.

        A broker that crashed has lost offsets. A commit without a response may be processed late, and a suspended
        member does not know the new owners of its queues. While a broker is frozen, members may see different brokers,
        and own a queue of another broker twice. A killed member sends nothing late.
        """
        is_then = self.at <= at <= self.until + AFTER_SECONDS
        return is_then and (self.what in GROUP_WIDE or any(name.partition("/")[0] == broker for name in self.who))

    def is_of(self, calls: Iterable[Call]) -> bool:
        """Whether the trouble affected one of the members, or one of the brokers."""
        involved = {name for call in calls for name in (call.member, call.place.broker)}
        return any(name.partition("/")[0] in involved for name in self.who)
