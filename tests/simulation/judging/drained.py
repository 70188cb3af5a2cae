"""Queues released as not drained, although no handler had their messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tests.simulation.judging.trouble import Trouble
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call

if TYPE_CHECKING:
    from tests.simulation.history import History

ANY_QUEUE: Final = "-1"
SETTLED_SECONDS: Final = 2.0
"""How long a batch may take to settle after its handler ended: the network takes at most a second, twice."""
RETRIED_SECONDS: Final = 20.0
"""How long after a failure failed send-backs may still be retried."""
OF_MEMBERS: Final = ("hangs", "killed", "rushed")
"""Troubles that keep no member from a broker."""
_NOT_DRAINED: Final = re.compile(r"queue\.not_drained queue=(\S+)@(\S+):(-?\d+) ")


def undrained(history: History) -> Iterator[Wrong]:
    """Check the warnings `queue.not_drained`. Around a failure, retries may outlast a hand-over."""
    for at, member, what, _ in history.timeline.entries:
        found = _NOT_DRAINED.match(what)
        if found is None or any(_delays(trouble, at) for trouble in history.causes):
            continue
        topic, broker, queue = found.groups()
        is_retry = topic.startswith("%RETRY%")
        calls = (call for ledger in history.ledgers for of_key in ledger.calls.values() for call in of_key)
        if not any(
            call.member == member
            and call.place.broker == broker
            and _may_be_of(call, queue, is_retry=is_retry)
            and _is_under_way(call, at)
            for call in calls
        ):
            yield Wrong(
                "not drained", f"{member} released {topic}@{broker}:{queue} at {at:.3f} s, and no handler had any of it"
            )


def _may_be_of(call: Call, queue: str, *, is_retry: bool) -> bool:
    """Whether a call may belong to a queue of its broker. A member that pops any queue also receives retries."""
    if call.is_popped and call.is_retry:
        return True
    return call.is_retry == is_retry and queue in (ANY_QUEUE, str(call.place.queue))


def _delays(trouble: Trouble, at: float) -> bool:
    return trouble.what not in OF_MEMBERS and trouble.at <= at <= trouble.until + RETRIED_SECONDS


def _is_under_way(call: Call, at: float) -> bool:
    return call.began <= at and (call.until is None or call.until >= at - SETTLED_SECONDS)
