"""Groups that pop: messages redelivered without a cause, too early, or too late.

A popped message exists once: invisible while a member has it, then acknowledged, or visible again with one more
attempt. So each delivery must be a later attempt than all earlier ones, which must be over by then: failed, with the
retry delay over, or unfinished until the invisible time was over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from rmqd.consumer.pop.pop_assignment import ACK_INTERVAL_SECONDS
from rmqd.consumer.pop.pop_retries import POP_DELAY_LEVEL_SECONDS
from tests.simulation.cluster import FLUSH_SECONDS
from tests.simulation.judging.retries import delay_seconds
from tests.simulation.judging.trouble import HARMLESS, Trouble
from tests.simulation.judging.twice import counted_twice
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call, Copy, Verdict

if TYPE_CHECKING:
    from tests.simulation.history import History

BROKERS_SECONDS: Final = 0.002
"""Brokers count in milliseconds, and check due messages in their own milliseconds."""
TOLD_SECONDS: Final = 6.0
"""How long an acknowledgement or retry may take to reach a broker on a slow network."""
RECOVERY_SECONDS: Final = 20.0
"""How long after a trouble members may lack connections, and brokers may be behind."""
ROUTES_SECONDS: Final = 100.0
"""How long after a name server event members may know no master of a broker, and send it nothing."""
COMMITTED_SECONDS: Final = 25.0
"""The same for a pulled message: its offset is committed after those of earlier messages, which takes up to 12 s, in a
round each 5 s, and a broker flushes it 5 s later."""
SWITCH_SECONDS: Final = 45.0
"""How long after a switch members may continue as before: 20 s until they ask, 5 s for the hand-over, twice a second of
a slow network for each request, the current round of commits, and 10 s in which brokers refuse pulls, because they do
not have the new subscription yet."""
BEFORE_SWITCH_SECONDS: Final = 20.0
"""How long before a switch a handler may have received a message that it finishes, or commits, after the switch."""
ENDINGS: Final = ("killed", "rushed")
"""Troubles that may end a member before it has reported its results to brokers."""


def latest_retry(history: History, keys: Iterable[str], since: float) -> float:
    """Return how many seconds the last retry of these messages may still take."""
    if history.plan.repeats_in_place:
        return 0.0
    is_pop, longest = history.plan.way == "pop", 0.0
    delay = _delay if is_pop else delay_seconds
    for key in keys:
        failed = [call for call in history.ledger.calls.get(key, ()) if call.verdict is Verdict.FAILED]
        delays = [delay(history, call) for call in failed if (call.until or 0.0) + delay(history, call) > since]
        longest = max(longest, sum(delays))
    return longest + (2 * history.most_invisible_seconds if is_pop else 0.0)


def handled_again(history: History) -> tuple[list[Wrong], Counter[str]]:
    """Return the unexplained deliveries, and the number of duplicates by cause."""
    wrong, causes, stored = list[Wrong](), Counter[str](), history.stored()
    for key, calls in history.ledger.calls.items():
        places = stored.get(key, [])
        good = sum(call.is_good for call in calls) + len(history.ledger.dead.get(key, ()))
        if repeated := sum(history.passed.repeats(key, place) for place in places):
            allowed = len(places) + repeated
            if good > len(places):
                causes["reset"] += 1
            allowed += len(
                {id(again) for former, again in _contradictions(history, calls) if _cause(history, former, again)}
            )
            if good > allowed and not any(trouble.meets(calls) for trouble in history.causes):
                wrong.append(Wrong("twice", f"{_told(calls)}; resets explain {allowed} of {good}", frozenset((key,))))
            continue
        cause = "sent twice" if len(places) > 1 else None
        for former, again in _contradictions(history, calls):
            cause = cause or _forgotten(history, calls, again) or _cause(history, former, again)
            if cause is None:
                wrong.append(Wrong("again", _why(history, former, again), frozenset((key,))))
                break
        if good > len(places) and cause is None:
            cause = _cause_of_dead(history, calls)
            if cause is None:
                wrong.append(Wrong("twice", f"{_told(calls)} and among the dead letters", frozenset((key,))))
        if good > len(places) and cause is not None:
            causes[cause] += 1
    return wrong, causes


def late(history: History) -> Iterator[Wrong]:
    """Messages that a handler received although the member knew that their invisible time was over."""
    for key, calls in history.ledger.calls.items():
        for call in calls:
            if call.is_late and not any(_is_just_over(one, call) for one in history.causes):
                yield Wrong("late", _told([call]), frozenset((key,)))


def _is_just_over(trouble: Trouble, call: Call) -> bool:
    """Whether a suspended member has just resumed, and has not checked its cached messages yet."""
    since = call.began - trouble.until
    return trouble.what == "paused" and call.member in trouble.who and 0 <= since <= 2 * ACK_INTERVAL_SECONDS


def given_up_early(history: History) -> Iterator[Wrong]:
    """Dead letters that no handler asked for, and whose last attempt has not failed."""
    for key in history.ledger.dead:
        calls = history.ledger.calls.get(key, [])
        if not any(call.verdict is Verdict.DEAD or _is_last_failure(history, call) for call in calls):
            yield Wrong("dead-lettered early", f"{_told(calls)}, of {history.most_attempts + 1}", frozenset((key,)))


def _contradictions(history: History, calls: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Return pairs of deliveries that contradict a single copy, ordered by the later one."""
    for number, again in enumerate(calls):
        for former in calls[:number]:
            if former.attempt >= again.attempt or again.began < _shown(history, former, again) - BROKERS_SECONDS:
                yield former, again


def _shown(history: History, former: Call, again: Call) -> float:
    """Return when a message may be redelivered after a delivery."""
    if former.verdict in (Verdict.DONE, Verdict.DEAD) or _is_last_failure(history, former):
        return float("inf")
    if not former.is_popped:
        return former.until or history.causes.end_of(former.member)  # retries of pulls have other delays
    if former.verdict is Verdict.FAILED and former.until is not None:
        return former.until + _delay(history, former)
    is_over = former.until is not None or history.causes.end_of(former.member) <= again.began
    return former.hidden_until if is_over else float("inf")


def _is_last_failure(history: History, call: Call) -> bool:
    return call.verdict is Verdict.FAILED and call.attempt >= history.most_attempts


def _delay(history: History, failed: Call) -> float:
    """Return how long a failed message stays invisible."""
    level = history.plan.delay_level if failed.level is None else failed.level
    return POP_DELAY_LEVEL_SECONDS[min(level or failed.attempt, len(POP_DELAY_LEVEL_SECONDS) - 1)]


def _cause(history: History, former: Call, again: Call) -> str | None:
    """Return the cause of an early or repeated delivery; None if there is none."""
    if any(_is_of_switch(history, at, former, again) for at in history.switched):
        return "switched"
    drain_seconds = history.options.queue_handover_timeout_seconds
    exceeds_hand_over = (former.until or again.began) > former.began + drain_seconds
    is_uncounted = former.verdict is None and not former.is_popped  # members count only messages that they finish
    if exceeds_hand_over and (is_uncounted or counted_twice(history)["handed_over"]):
        return "handed_over"  # the queue was released, and the handler exceeded the hand-over time
    told_seconds = TOLD_SECONDS if former.is_popped else COMMITTED_SECONDS
    if history.plan.slow and former.until is not None and 0 < again.began - former.until < told_seconds:
        return "slow network"  # its invisible time was almost over, or the member was just releasing it
    for event in history.plan.events:
        if "name_server" in event.what and event.at <= again.began and event.at + ROUTES_SECONDS >= former.began:
            return event.what
    return next((one.what for one in history.causes if _explains(history, one, former, again)), None)


def _is_of_switch(history: History, at: float, former: Call, again: Call) -> bool:
    """Whether a switch may explain that a message was both pulled and popped."""
    last = at + SWITCH_SECONDS
    is_between = at - BEFORE_SWITCH_SECONDS <= former.began <= last
    return is_between and again.began <= last + 2 * history.most_invisible_seconds  # it may be redelivered once more


def _forgotten(history: History, calls: list[Call], again: Call) -> str | None:
    """Return "crashed" if a crash made a broker forget a delivery, so that two copies exist; else None.

    A crash close to a delivery is such a crash. If no handler had the message then, the copies contain the same attempt
    twice.
    """
    before = 2 * history.most_invisible_seconds
    twice = list(_shown_twice(history, again))
    for crash in (one for one in history.causes if one.what == "crashed" and one.is_of((again,))):
        for call in calls:
            if call.began <= again.began and call.began - before <= crash.at <= call.began + FLUSH_SECONDS:
                return crash.what
        if any(one.broker in crash.who and crash.at <= one.at <= crash.until + before for one in twice):
            return crash.what
    return None


def _shown_twice(history: History, again: Call) -> Iterator[Copy]:
    """Return the copies up to a delivery that repeat the attempt of an earlier copy."""
    seen = set[tuple[str, int]]()
    for copy in history.ledger.copies.get(again.key, ()):
        if copy.at <= again.began:
            if copy[1:] in seen:
                yield copy
            seen.add(copy[1:])


def _explains(history: History, trouble: Trouble, former: Call, again: Call) -> bool:
    """Whether the broker may have missed, or forgotten, the result of the former delivery."""
    if trouble.what in HARMLESS:
        return False
    is_older = former.attempt > again.attempt or not again.is_popped
    if is_older and trouble.what == "paused" and again.member in trouble.who:
        # The member received it before the former delivery, and handled it after it resumed.
        return _meets(trouble, former.began - history.most_invisible_seconds, again.began)
    if not trouble.is_of((former,)):
        return False
    if trouble.what == "noisy" and former.attempt == again.attempt > 0 and former.place != again.place:
        return trouble.at <= former.began  # a duplicated change made two copies, for any member
    ended = min(again.began, history.causes.end_of(former.member), former.until or again.began)
    told = ended + (TOLD_SECONDS if former.is_popped else COMMITTED_SECONDS)
    if trouble.what in ENDINGS:
        return former.member in trouble.who and trouble.at <= told
    # The member popped it before the handler received it.
    return _meets(trouble, former.began - history.most_invisible_seconds, told)


def _meets(trouble: Trouble, since: float, until: float) -> bool:
    return trouble.at <= until and trouble.until + RECOVERY_SECONDS >= since


def _cause_of_dead(history: History, calls: list[Call]) -> str | None:
    """Return why a message is a dead letter twice, or a dead letter and handled; None if there is no cause."""
    return next((one.what for one in history.causes if one.is_of(calls) and one.explains_attempts(calls)), None)


def _why(history: History, former: Call, again: Call) -> str:
    what = "still had it" if former.verdict is None else former.verdict.value + " it"
    shown = _shown(history, former, again)
    return f"{_told([former, again])}: the former {what} at {former.until} s, to be shown at {shown:g} s"


def _told(calls: list[Call]) -> str:
    return ", ".join(f"{call.key} by {call.member} at {call.began:.3f} s, attempt {call.attempt + 1}" for call in calls)
