"""Groups that pop: messages that came again without a cause, too early, or too late.

Of a popped message there is one copy at a time: hidden while a member has it, then acknowledged, or shown to all once
more, with one attempt more. So each delivery must be a later attempt than all before it, and these must be over by
then: failed, with the delay of their retry past, or left alone until the broker hid the message no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from rmqd.consumer.pop.pop_assignment import ACK_INTERVAL_SECONDS
from rmqd.consumer.pop.pop_retries import POP_DELAY_LEVEL_SECONDS
from tests.simulation.cluster import FLUSH_SECONDS
from tests.simulation.judging.trouble import HARMLESS, Trouble
from tests.simulation.judging.twice import counted_twice
from tests.simulation.judging.wrong import Wrong
from tests.simulation.ledger import Call, Copy, Verdict

if TYPE_CHECKING:
    from tests.simulation.history import History

BROKERS_SECONDS: Final = 0.002
"""Brokers count in milliseconds, and look for what is due in theirs."""
TOLD_SECONDS: Final = 6.0
"""How long it may take to tell a broker what became of a message, on a network that is slow."""
RECOVERY_SECONDS: Final = 20.0
"""For so long after a trouble members may be without connections, and brokers behind."""
ROUTES_SECONDS: Final = 100.0
"""For so long after an event with a name server members may know of no master of a broker, and tell it nothing."""
COMMITTED_SECONDS: Final = 25.0
"""The same of one that was pulled: it is committed once those before it are done, which takes up to 12 s, in a round
each 5 s, and a broker writes it down 5 s later."""
SWITCH_SECONDS: Final = 35.0
"""For so long after a switch members may go on as before: 20 s until they ask, and 5 s to hand over, twice a second of
a slow network for each question, and the round of commits that they were in."""
BEFORE_SWITCH_SECONDS: Final = 20.0
"""So long before a switch a message may have come to the handler that finishes it after it, or commits it."""
ENDINGS: Final = ("killed", "rushed")
"""Troubles by which a member may end before it has told brokers what it did."""


def latest_retry(history: History, keys: Iterable[str], since: float) -> float:
    """How many seconds the last retry of these messages may take from a moment on; 0 in groups that pull."""
    if history.plan.way != "pop":
        return 0.0
    longest = 0.0
    for key in keys:
        failed = [call for call in history.ledger.calls.get(key, ()) if call.verdict is Verdict.FAILED]
        delays = [_delay(history, call) for call in failed if (call.until or 0.0) + _delay(history, call) > since]
        longest = max(longest, sum(delays))
    return longest + 2 * history.most_invisible_seconds


def handled_again(history: History) -> tuple[list[Wrong], Counter[str]]:
    """Deliveries that should not have been, and the messages that were done twice, by cause."""
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
    """Messages that a handler was given when the member knew that they were hidden no more."""
    for key, calls in history.ledger.calls.items():
        for call in calls:
            if call.is_late and not any(_is_just_over(one, call) for one in history.causes):
                yield Wrong("late", _told([call]), frozenset((key,)))


def _is_just_over(trouble: Trouble, call: Call) -> bool:
    """Whether a member that was suspended with messages in its cache goes on, and has not looked at them yet."""
    since = call.began - trouble.until
    return trouble.what == "paused" and call.member in trouble.who and 0 <= since <= 2 * ACK_INTERVAL_SECONDS


def given_up_early(history: History) -> Iterator[Wrong]:
    """Dead letters that no handler asked for, though no last attempt has failed."""
    for key in history.ledger.dead:
        calls = history.ledger.calls.get(key, [])
        if not any(call.verdict is Verdict.DEAD or _is_last_failure(history, call) for call in calls):
            yield Wrong("dead-lettered early", f"{_told(calls)}, of {history.most_attempts + 1}", frozenset((key,)))


def _contradictions(history: History, calls: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Deliveries that cannot have been of one copy, in the order of the later one."""
    for number, again in enumerate(calls):
        for former in calls[:number]:
            if former.attempt >= again.attempt or again.began < _shown(history, former, again) - BROKERS_SECONDS:
                yield former, again


def _shown(history: History, former: Call, again: Call) -> float:
    """When a message may come again after a delivery."""
    if former.verdict in (Verdict.DONE, Verdict.DEAD) or _is_last_failure(history, former):
        return float("inf")
    if not former.is_popped:
        return former.until or history.causes.end_of(former.member)  # retries of pulls have delays of their own
    if former.verdict is Verdict.FAILED and former.until is not None:
        return former.until + _delay(history, former)
    is_over = former.until is not None or history.causes.end_of(former.member) <= again.began
    return former.hidden_until if is_over else float("inf")


def _is_last_failure(history: History, call: Call) -> bool:
    return call.verdict is Verdict.FAILED and call.attempt >= history.most_attempts


def _delay(history: History, failed: Call) -> float:
    """How long a failed message stays hidden."""
    level = history.plan.delay_level if failed.level is None else failed.level
    return POP_DELAY_LEVEL_SECONDS[min(level or failed.attempt, len(POP_DELAY_LEVEL_SECONDS) - 1)]


def _cause(history: History, former: Call, again: Call) -> str | None:
    """What explains that a message came again though it was not over, or not yet."""
    if any(_is_of_switch(history, at, former, again) for at in history.switched):
        return "switched"
    drain_seconds = history.options.queue_handover_timeout_seconds
    if (former.until or again.began) > former.began + drain_seconds and counted_twice(history)["handed_over"]:
        return "handed_over"  # its queue was given up, and the handler took longer than the hand-over waits
    told_seconds = TOLD_SECONDS if former.is_popped else COMMITTED_SECONDS
    if history.plan.slow and former.until is not None and 0 < again.began - former.until < told_seconds:
        return "slow network"  # its time was almost over when the handler was done, or it was given up just then
    for event in history.plan.events:
        if "name_server" in event.what and event.at <= again.began and event.at + ROUTES_SECONDS >= former.began:
            return event.what
    return next((one.what for one in history.causes if _explains(history, one, former, again)), None)


def _is_of_switch(history: History, at: float, former: Call, again: Call) -> bool:
    """Whether a switch may have had a message popped that was pulled, or pulled that was popped."""
    last = at + SWITCH_SECONDS
    is_between = at - BEFORE_SWITCH_SECONDS <= former.began <= last
    return is_between and again.began <= last + 2 * history.most_invisible_seconds  # it may be shown once more


def _forgotten(history: History, calls: list[Call], again: Call) -> str | None:
    """Whether a broker has forgotten that it had handed a message out: by a crash there are two copies from then on.

    That is seen where a handler had it then. Where none did, as it was popped and left to others for long, the broker
    shows the same attempt twice.
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
    """The copies up to a delivery that are of the same attempt as one before."""
    seen = set[tuple[str, int]]()
    for copy in history.ledger.copies.get(again.key, ()):
        if copy.at <= again.began:
            if copy[1:] in seen:
                yield copy
            seen.add(copy[1:])


def _explains(history: History, trouble: Trouble, former: Call, again: Call) -> bool:
    """Whether the broker was not told in time what became of the former delivery, or has forgotten it."""
    if trouble.what in HARMLESS:
        return False
    if former.attempt > again.attempt and trouble.what == "paused" and again.member in trouble.who:
        # it was popped before the former one, and handled when the member went on
        return _meets(trouble, former.began - history.most_invisible_seconds, again.began)
    if not trouble.is_of((former,)):
        return False
    if trouble.what == "noisy" and former.attempt == again.attempt > 0 and former.place != again.place:
        return trouble.at <= former.began  # a change that came twice made two copies, whoever has time for them
    ended = min(again.began, history.causes.end_of(former.member), former.until or again.began)
    told = ended + (TOLD_SECONDS if former.is_popped else COMMITTED_SECONDS)
    if trouble.what in ENDINGS:
        return former.member in trouble.who and trouble.at <= told
    # it was popped before the handler got it
    return _meets(trouble, former.began - history.most_invisible_seconds, told)


def _meets(trouble: Trouble, since: float, until: float) -> bool:
    return trouble.at <= until and trouble.until + RECOVERY_SECONDS >= since


def _cause_of_dead(history: History, calls: list[Call]) -> str | None:
    """Why a message is among the dead letters twice, or there and done."""
    return next((one.what for one in history.causes if one.is_of(calls) and one.explains_attempts(calls)), None)


def _why(history: History, former: Call, again: Call) -> str:
    what = "still had it" if former.verdict is None else former.verdict.value + " it"
    shown = _shown(history, former, again)
    return f"{_told([former, again])}: the former {what} at {former.until} s, to be shown at {shown:g} s"


def _told(calls: list[Call]) -> str:
    return ", ".join(f"{call.key} by {call.member} at {call.began:.3f} s, attempt {call.attempt + 1}" for call in calls)
